"""How tables looked when: every document of the stream about their shapes, by position.

A file of lines beside the log, written by the process that captures before the slice that holds the
same document is, and read by everybody else. So whoever has read the log up to a position finds here
how tables looked at it. It outlives the segments of the log. What comes twice, because
the slot sent it again, is written once.
"""

from __future__ import annotations

import json
import os
import threading
from bisect import bisect_right
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

from penstock.disk import write_all
from penstock.errors import LogError, SchemaUnreadable
from penstock.lsn import ZERO, Lsn
from penstock.schema.mark import CHANGE, VERSION, Mark
from penstock.schema.shape import TableShape, VersionWritten, read_change, read_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock.table import TableName

    Position = tuple[int, int]


@dataclass
class _Life:
    """One table's shapes, oldest first, each from a position on; None: it was dropped there."""

    shapes: list[tuple[Position, TableShape | None]] = field(default_factory=list)

    def at(self, position: Position) -> TableShape | None:
        index = bisect_right(self.shapes, position, key=itemgetter(0))
        return self.shapes[index - 1][1] if index else None


class SchemaHistory:
    """The history of one source. Any number of readers; one writer, who calls `open_for_writing`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._last_lsn = ZERO
        self._file: int | None = None
        self._lives: dict[int, _Life] = {}
        self._named: dict[TableName, set[int]] = {}  # the tables that have ever had a name
        self._versions: list[tuple[Mark, VersionWritten]] = []
        self._lock = threading.Lock()

    def open_for_writing(self) -> None:
        """Cut off what a crash has left half-written, and go on after it.

        Raises:
            LogError: the file cannot be used.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            raw = self.path.read_bytes()
            sound = raw.rfind(b"\n") + 1
            if sound < len(raw):
                os.ftruncate(self._file, sound)
        except OSError as error:
            raise self._unusable(error) from None
        self.refresh()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known yet."""
        self.refresh()
        return not self._lives

    def append(self, marks: Sequence[Mark]) -> None:
        """Make the documents of one transaction durable.

        Raises:
            LogError: the file cannot be written.
        """
        assert self._file is not None, "opened for writing first"
        if not marks or marks[0].commit_lsn <= self._last_lsn:
            return
        # One line, so that a crash leaves all of them or none.
        line = json.dumps([mark.as_json() for mark in marks]) + "\n"
        try:
            write_all(self._file, line.encode())
            os.fdatasync(self._file)
        except OSError as error:
            raise self._unusable(error) from None
        self.refresh()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def refresh(self) -> None:
        """Read what has been added."""
        with self._lock:
            if not self._has_grown():
                return
            for line in self._new_lines():
                for document in json.loads(line):
                    self._take(Mark.from_json(document))

    def shape_at(self, name: TableName, lsn: Lsn) -> TableShape | None:
        """How the table that had this name at a position looked then; None when that is not known."""
        self.refresh()
        for table_id in tuple(self._named.get(name, ())):
            shape = self._lives[table_id].at((int(lsn), -1))
            if shape is not None and shape.table == name:
                return shape
        return None

    def by_id_at(self, table_id: int, lsn: Lsn) -> TableShape | None:
        """How a table looked at a position; None when it was not there, or is not known."""
        self.refresh()
        life = self._lives.get(table_id)
        return life.at((int(lsn), -1)) if life is not None else None

    def first_of(self, table_id: int) -> tuple[Lsn, TableShape] | None:
        """Where a table is first told of, and how it looked there."""
        self.refresh()
        life = self._lives.get(table_id)
        if life is None:
            return None
        (commit_lsn, _), shape = life.shapes[0]
        return (Lsn(commit_lsn), shape) if shape is not None else None

    def is_dropped(self, table_id: int) -> bool:
        """Whether a table was there, and was dropped."""
        self.refresh()
        life = self._lives.get(table_id)
        return life is not None and life.shapes[-1][1] is None

    def shape_before(self, table_id: int, mark: Mark) -> TableShape | None:
        """How a table looked before a document told something of it."""
        self.refresh()
        life = self._lives.get(table_id)
        return life.at((int(mark.commit_lsn), mark.number - 1)) if life is not None else None

    def at(self, lsn: Lsn) -> dict[int, TableShape]:
        """Every table that was there at a position, as it looked then, by id."""
        self.refresh()
        then = {oid: life.at((int(lsn), -1)) for oid, life in self._lives.items()}
        return {oid: shape for oid, shape in then.items() if shape is not None}

    def latest(self) -> dict[int, TableShape]:
        """Every table that is there, as it last looked, by id."""
        self.refresh()
        last = {oid: life.shapes[-1][1] for oid, life in self._lives.items() if life.shapes}
        return {oid: shape for oid, shape in last.items() if shape is not None}

    def versions(self) -> list[tuple[Mark, VersionWritten]]:
        """The versions of schemas and where each begins, oldest first."""
        self.refresh()
        return list(self._versions)

    def _take(self, mark: Mark) -> None:
        position = (int(mark.commit_lsn), mark.number)
        self._last_lsn = max(self._last_lsn, mark.commit_lsn)
        try:
            if mark.kind == CHANGE:
                change = read_change(mark.content, mark.where)
                for shape in change.tables:
                    self._lives.setdefault(shape.id, _Life()).shapes.append((position, shape))
                    self._named.setdefault(shape.table, set()).add(shape.id)
                for gone in change.dropped_tables:
                    if gone.id in self._lives:
                        self._lives[gone.id].shapes.append((position, None))
            elif mark.kind == VERSION:
                self._versions.append((mark, read_version(mark.content, mark.where)))
        except SchemaUnreadable:
            return  # whoever delivers it says so

    def _has_grown(self) -> bool:
        try:
            return self.path.stat().st_size > self._offset
        except OSError:
            return False

    def _new_lines(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                raw = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unusable(error) from None
        whole = raw[: raw.rfind(b"\n") + 1]
        self._offset += len(whole)
        yield from whole.splitlines()

    def _unusable(self, error: OSError) -> LogError:
        return LogError(
            f"cannot use the history of schemas: {error.strerror}",
            str(self.path),
            "make the state directory writable for this user, with space left",
        )
