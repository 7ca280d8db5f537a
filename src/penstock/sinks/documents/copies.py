"""The hidden directory beside a sink's position where copied rows wait to be delivered, as documents.

    state.json                    how each copy stands
    copying-<copy_id>-<n>/        a table under way
    copied-<copy_id>-<n>/         a whole one; nothing comes into it any more
        part-<n>-<rows>-<bytes>   the documents of one range (`parts.py`), durable
    ask-<id>.json                 tables that a person wants copied again
    lock                          held by the one process that copies

The copier writes here and reads the position file, the delivering loop writes the position file and
reads here. So each file has one writer, whether both are threads of one process or not, and each
write is whole or not there: a crash leaves one of the states in which a table can be found anyway.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.disk import sync_directory
from penstock.errors import PositionMissing
from penstock.lsn import ZERO, Lsn
from penstock.sinks.durable import make_directory, replace_file
from penstock.sinks.tables import TableState
from penstock.table import TableName
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

COPIED = "copied"
_COPYING_PREFIX, _COPIED_PREFIX = "copying-", "copied-"
_ASK_PREFIX = "ask-"
# Until 0.1 a part was called range-… and held lines: such a copy is not found, and made again.
_PART_PREFIX = "part-"


@dataclass(frozen=True)
class TableCopy:
    """One attempt to copy one table. `state` is copying, copied or failed."""

    table: TableName
    schedule_id: str  # that of the table in the position file, if the copy is still wanted
    state: str
    copy_id: str = ""
    lsn: Lsn = ZERO
    number: int = 0  # among the tables of its copy
    range_count: int = 0
    error: str = ""
    attempts: int = 0
    retry_at: float = 0.0  # this machine's clock, seconds since 1970

    @property
    def may_be_tried_again(self) -> bool:
        """Whether it failed, and its time has come; a clock set back must not put it off for ever."""
        return (
            self.state == TableState.FAILED
            and not 0 < self.retry_at - time.time() <= timing().copy_retry_last_seconds
        )

    @property
    def directory(self) -> str:
        """The name of its directory."""
        prefix = _COPIED_PREFIX if self.state == COPIED else _COPYING_PREFIX
        return f"{prefix}{self.copy_id}-{self.number}"


@dataclass(frozen=True)
class CopyPart:
    """The documents of one range."""

    path: str
    number: int
    row_count: int
    size: int


def part_name(number: int, row_count: int, size: int) -> str:
    """What a finished part is called; two attempts at one range give the same."""
    return f"{_PART_PREFIX}{number}-{row_count}-{size}"


class Copies:
    """One sink's directory of copies. Any method may raise OSError.

    `parent_mode`: who may enter the directory around it, where that is made here.
    """

    def __init__(self, path: Path, parent_mode: int = 0o700) -> None:
        self.path = path
        self._parent_mode = parent_mode
        self._state = path / "state.json"

    def read(self) -> dict[TableName, TableCopy]:
        """How each copy stands.

        Raises:
            PositionMissing: the file cannot be made out.
        """
        try:
            text = self._state.read_text()
        except FileNotFoundError:
            return {}
        try:
            copies = [_read_copy(entry) for entry in json.loads(text)["copies"]]
        except (ValueError, KeyError, TypeError):
            raise _damaged(self._state) from None
        return {copy.table: copy for copy in copies}

    def write(self, copies: Iterable[TableCopy]) -> None:
        """Store how all copies stand."""
        entries = [_write_copy(copy) for copy in copies]
        replace_file(self._state, json.dumps({"format": 1, "copies": entries}).encode())

    def make_room(self, copy: TableCopy) -> Path:
        """Make the directory of a copy that begins."""
        directory = self.path / copy.directory
        directory.mkdir(mode=0o700, exist_ok=True)
        return directory

    def seal(self, copying: TableCopy, copied: TableCopy) -> None:
        """All parts are there: let no other one come in, from a task that was thought dead, say."""
        before, after = self.path / copying.directory, self.path / copied.directory
        if before.exists():
            sync_directory(before)
            before.rename(after)
        sync_directory(self.path)

    def parts(self, copy: TableCopy) -> dict[int, CopyPart]:
        """The parts that are there, by number."""
        found = {}
        try:
            paths = list((self.path / copy.directory).iterdir())
        except FileNotFoundError:
            return {}
        for path in paths:
            if path.name.startswith(_PART_PREFIX):
                numbers = path.name.removeprefix(_PART_PREFIX).split("-")
                number, row_count, size = map(int, numbers)
                found[number] = CopyPart(str(path), number, row_count, size)
        return found

    def remove(self, copy: TableCopy) -> None:
        """Remove the parts of a copy. What cannot be removed is tried again by `remove_others`."""
        shutil.rmtree(self.path / copy.directory, ignore_errors=True)

    def remove_others(self, copies: Iterable[TableCopy]) -> None:
        """Remove all parts but those of these copies."""
        wanted = {copy.directory for copy in copies}
        for path in self.path.iterdir():
            is_ours = path.name.startswith((_COPYING_PREFIX, _COPIED_PREFIX))
            if is_ours and path.name not in wanted:
                shutil.rmtree(path, ignore_errors=True)

    def _make(self) -> None:
        make_directory(self.path.parent, self._parent_mode)
        make_directory(self.path)

    def try_lock(self) -> int | None:
        """Be the copier as long as the descriptor is open; None while another one is."""
        self._make()
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def ask(self, tables: Collection[TableName]) -> None:
        """Leave word that tables are to be copied again."""
        self._make()
        path = self.path / f"{_ASK_PREFIX}{uuid.uuid4().hex}.json"
        replace_file(path, json.dumps(sorted(tables)).encode())

    def asked(self) -> dict[Path, set[TableName]]:
        """What was asked for, by the file that says so; remove it when it is done.

        Raises:
            PositionMissing: such a file cannot be made out.
        """
        try:
            paths = [path for path in self.path.iterdir() if path.name.startswith(_ASK_PREFIX)]
        except FileNotFoundError:
            return {}
        return {path: _read_names(path) for path in paths}


def _damaged(path: Path) -> PositionMissing:
    return PositionMissing(
        "a file that says which tables are copied is damaged",
        str(path),
        f"remove {path.parent}; tables that were not delivered whole are copied again",
    )


def _read_names(path: Path) -> set[TableName]:
    try:
        return {TableName(*name) for name in json.loads(path.read_text())}
    except (ValueError, TypeError):
        raise _damaged(path) from None


def _write_copy(copy: TableCopy) -> dict[str, Any]:
    return {**vars(copy), "table": list(copy.table), "lsn": str(copy.lsn)}


def _read_copy(entry: dict[str, Any]) -> TableCopy:
    copy = TableCopy(
        **{**entry, "table": TableName(*entry["table"]), "lsn": Lsn.parse(entry["lsn"])}
    )
    if copy.state not in (TableState.COPYING, COPIED, TableState.FAILED):
        raise ValueError(copy.state)
    return copy
