"""Documents that a destination refused, kept until somebody retries or drops them.

    <name>.parked.jsonl       one line for each: the document, why it was refused, when
    <name>.parked.ask.<number>.json    what a person asks for: retry or drop, all or by id

Nothing that is parked is overtaken: later documents of its key are parked behind it, and so is a
truncate or a change of the table; behind one of those, or behind a document without a key, everything
of the table waits. So a retry delivers in order. One process writes here, the one that delivers, or a
command while none does.

Where `log.encrypt` is asked for, a line is the base64 of a frame (`encryption.py`) instead of JSON.
"""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from penstock.changes.documents import DOCUMENTS
from penstock.changes.envelope import RECORDS
from penstock.changes.rowrecords import former_key
from penstock.disk import sync_directory, write_all
from penstock.encryption import NO_KEYS, NotAuthentic
from penstock.errors import PositionMissing, SinkDefect
from penstock.lsn import Lsn
from penstock.sinks.durable import cannot_use, make_directory, replace_file
from penstock.sinks.parked import ALL, ParkedEntry
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.encryption import Keyring
    from penstock.sinks.parked import Wanted

Key = tuple[tuple[str, Any], ...]

WHOLE_TABLE = ("truncate", "schema")


@dataclass(frozen=True)
class ParkedDocument:
    """One document; `reason` is None of one that waits behind another."""

    id: str
    key: str | None
    value: str
    schema: str
    table: str
    op: str
    commit_lsn: int
    ordinal: int
    committed_at: int | None  # microseconds since 1970
    reason: str | None
    parked_at: str
    # Of a format that is not penstock's JSON: `value` and `record_key` are base64; `refused` where it has no form for it.
    is_record: bool = False
    record_key: str | None = None
    refused: str | None = None

    @property
    def content(self) -> Any:
        """The document, for people."""
        if not self.is_record:
            return json.loads(self.value)
        try:
            return json.loads(base64.b64decode(self.value))
        except ValueError:
            return {"base64": self.value}

    def columns(self) -> dict[str, Any]:
        """As a row of a batch."""
        row = asdict(self)
        if self.is_record:
            row["value"] = base64.b64decode(self.value)
            row["record_key"] = self.record_key and base64.b64decode(self.record_key)
        return row

    @property
    def table_name(self) -> TableName:
        """The table that it is of."""
        return TableName(self.schema, self.table)


@dataclass
class Holds:
    """What must wait behind parked documents."""

    keys: dict[TableName, set[Key]] = field(default_factory=dict)
    tables: set[TableName] = field(default_factory=set)  # as a whole

    def __bool__(self) -> bool:
        return bool(self.keys or self.tables)

    def copy(self) -> Holds:
        """One that can be added to."""
        return Holds({name: set(keys) for name, keys in self.keys.items()}, set(self.tables))

    def add(self, row: dict[str, Any]) -> None:
        """Hold what comes behind this document."""
        name = TableName(row["schema"], row["table"])
        if row["key"] is None:
            self.tables.add(name)
        else:
            self.keys.setdefault(name, set()).update(keys_of(row))

    def waits(self, row: dict[str, Any]) -> bool:
        """Whether a document must wait."""
        name = TableName(row["schema"], row["table"])
        if name in self.tables:
            return True
        if self.concerns(former_names(row)):
            return True
        held = self.keys.get(name)
        if not held:
            return False
        return row["op"] in WHOLE_TABLE or row["key"] is None or not held.isdisjoint(keys_of(row))

    def concerns(self, tables: Iterable[TableName]) -> bool:
        """Whether documents of these tables may have to wait."""
        return any(name in self.tables or name in self.keys for name in tables)


def former_names(row: Mapping[str, Any]) -> list[TableName]:
    """What tables were called before the change of a table that a document is of: what is parked of them has that name."""
    # Sinks of rows, which have another form, stop such a table, or have what is parked bear the new name.
    if row["op"] != "schema" or is_record(row):
        return []
    return [
        TableName.parse(each["before"])
        for each in json.loads(row["value"])["difference"]
        if each["op"] == "rename_table"
    ]


def keys_of(row: Mapping[str, Any]) -> Iterator[Key]:
    """The key, and the one that an update has replaced."""
    key = _parse(row["key"])
    yield tuple(sorted(key.items()))
    if row["op"] == "move":
        left = row["record_key"]
        left = base64.b64decode(left) if isinstance(left, str) else left
        yield tuple(sorted(_parse(former_key(left)).items()))
    # Any other format makes two documents of an update that changes a key.
    elif row["op"] == "update" and not is_record(row):
        before = _parse(row["value"])["before"]
        if before is not None and all(name in before for name in key):
            yield tuple(sorted((name, before[name]) for name in key))


def _parse(text: str) -> Any:
    """JSON whose numbers are distinct from texts, and are equal digit for digit."""
    return json.loads(text, parse_int="n{}".format, parse_float="n{}".format)


@dataclass(frozen=True)
class ParkedRequest:
    """What a person asks for; no ids: of all."""

    action: str  # retry or drop
    ids: frozenset[str] | None = (
        None  # looked up for each document: there may be a hundred thousand of both
    )
    path: Path | None = None  # where it lies

    def means(self, document: ParkedDocument) -> bool:
        """Whether a document is meant."""
        return self.ids is None or document.id in self.ids


class Parked:
    """The parked documents of one sink and source. Any method may raise OSError."""

    def __init__(self, path: Path, keyring: Keyring = NO_KEYS) -> None:
        self._path = path
        self._keyring = keyring
        self._ask_prefix = path.name.removesuffix(".jsonl") + ".ask."
        self._ids: set[str] = set()
        self.holds = Holds()

    def open(self) -> None:
        """Know what is parked; what a killed predecessor has written in half is cut off."""
        documents = self.read()
        self._ids = {each.id for each in documents}
        self.holds = _holds_of(documents)

    def read(self) -> list[ParkedDocument]:
        """Everything that is parked, in the source's order.

        Raises:
            LogKeyMissing: it is encrypted with a key that is not given.
            PositionMissing: the file cannot be made out.
        """
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        lines.pop()  # empty, or torn: then its position was not stored, and it comes again
        try:
            found = [ParkedDocument(**json.loads(self._plain(line))) for line in lines]
        except (ValueError, TypeError, NotAuthentic):
            raise PositionMissing(
                "the file of parked documents is damaged",
                str(self._path),
                "put it back from a backup; or move it away, and the documents in it are lost",
            ) from None
        return sorted(found, key=lambda each: (each.commit_lsn, each.ordinal))

    def _plain(self, line: bytes) -> bytes:
        if line.startswith(b"{"):
            return line
        return self._keyring.unframe(base64.b64decode(line, validate=True), str(self._path))

    def _lines(self, documents: Iterable[ParkedDocument]) -> bytes:
        lines = [json.dumps(asdict(each)).encode() for each in documents]
        encryptor = self._keyring.encryptor()
        if encryptor is not None:
            lines = [base64.b64encode(encryptor.frame(line)) for line in lines]
        return b"".join(line + b"\n" for line in lines)

    def __len__(self) -> int:
        return len(self._ids)

    def count(self) -> int:
        """How many there are, by the file: for observers, who ask again and again."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                state = (found.st_ino, found.st_size, found.st_mtime_ns)
                before = _counted.get(self._path)
                if before is None or before[0] != state:
                    before = (state, _count_lines(file))
                    _counted[self._path] = before
                return before[1]
        except FileNotFoundError:
            _counted.pop(self._path, None)
            return 0

    def append(self, rows: Sequence[dict[str, Any]], reasons: dict[str, str]) -> None:
        """Park documents durably; those that are parked already stay as they are."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        new = [
            _parked(row, reasons.get(row["id"]), at) for row in rows if row["id"] not in self._ids
        ]
        if not new:
            return
        self._trim()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self._path, flags, 0o600)
        try:
            write_all(fd, self._lines(new))
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_directory(self._path.parent)
        self._ids |= {each.id for each in new}
        for each in new:
            self.holds.add(asdict(each))

    def _trim(self) -> None:
        """Cut off half a line that a killed predecessor left."""
        # Each append looks here: of a whole file it reads one byte.
        with suppress(FileNotFoundError), self._path.open("r+b") as file:
            end = file.seek(0, os.SEEK_END)
            whole = _end_of_lines(file, end)
            if whole < end:
                file.truncate(whole)

    def replace(self, documents: Collection[ParkedDocument]) -> None:
        """Keep these, and no others."""
        make_directory(self._path.parent)
        replace_file(self._path, self._lines(documents))
        self._ids = {each.id for each in documents}
        self.holds = _holds_of(documents)

    def drop(self, request: ParkedRequest) -> list[ParkedDocument]:
        """Forget documents for good; which."""
        documents = self.read()
        dropped = [each for each in documents if request.means(each)]
        if dropped:
            self.replace([each for each in documents if not request.means(each)])
        return dropped

    def drop_table(self, table: TableName) -> int:
        """Forget documents of a table for good, also of when it had another name; how many."""
        if not self.holds.concerns((table,)):
            return 0
        documents = self.read()
        stays, names = [], {table}
        for each in reversed(documents):
            if each.table_name in names:
                names.update(former_names(asdict(each)))
            else:
                stays.append(each)
        self.replace(stays[::-1])
        return len(documents) - len(stays)

    def rename(self, names: Mapping[TableName, TableName], commit_lsn: int, ordinal: int) -> None:
        """Have documents from before a change of their tables' names bear the new ones."""
        if not self.holds.concerns(names):
            return

        def renamed(each: ParkedDocument) -> ParkedDocument:
            is_older = (each.commit_lsn, each.ordinal) < (commit_lsn, ordinal)
            if not is_older or each.table_name not in names:
                return each
            schema, table = names[each.table_name]
            return dataclasses.replace(each, schema=schema, table=table)

        self.replace([renamed(each) for each in self.read()])

    def ask(self, request: ParkedRequest) -> None:
        """Leave a request for who delivers. Each has a file of its own, so that none gets lost."""
        ids = None if request.ids is None else sorted(request.ids)
        make_directory(self._path.parent)
        replace_file(
            self._path.with_name(f"{self._ask_prefix}{time.time_ns():020}.json"),
            json.dumps({"action": request.action, "ids": ids}).encode(),
        )

    def asked(self) -> list[ParkedRequest]:
        """What people have asked for, in their order."""
        found = []
        for path in self._ask_paths():
            try:
                content = json.loads(path.read_text())
                ids = content["ids"]
                found.append(
                    ParkedRequest(
                        str(content["action"]), None if ids is None else frozenset(ids), path
                    )
                )
            except (ValueError, KeyError, TypeError):
                path.unlink(missing_ok=True)
        return found

    def answered(self, request: ParkedRequest) -> None:
        """A request is carried out."""
        if request.path is not None:
            request.path.unlink(missing_ok=True)

    def _ask_paths(self) -> list[Path]:
        try:
            names = os.listdir(self._path.parent)  # noqa: PTH208 - asked for all the time
        except FileNotFoundError:
            return []
        chosen = [
            each for each in names if each.startswith(self._ask_prefix) and each.endswith(".json")
        ]
        return [self._path.with_name(each) for each in sorted(chosen)]

    def remove(self) -> None:
        """Leave nothing, for teardown."""
        self._path.unlink(missing_ok=True)
        for path in self._ask_paths():
            path.unlink(missing_ok=True)


# Of files that were counted: inode, size and time of the last write; and how many lines they had.
_counted: dict[Path, tuple[tuple[int, int, int], int]] = {}


def _count_lines(file: BinaryIO) -> int:
    """How many lines there are, without the whole file in memory."""
    return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def _end_of_lines(file: BinaryIO, end: int) -> int:
    """Where the last whole line ends; read backwards from the end of the file."""
    size = 1
    while end:
        begin = max(0, end - size)
        file.seek(begin)
        place = file.read(end - begin).rfind(b"\n")
        if place >= 0:
            return begin + place + 1
        end, size = begin, 1 << 16
    return 0


class Retry:
    """Parked documents that are tried again."""

    def __init__(self, documents: Sequence[ParkedDocument]) -> None:
        self.left = list(documents)
        self._reasons: dict[str, str] = {}

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Leave out what is refused again, and what waits behind it.

        Raises:
            SinkDefect: none of them was given to the sink.
        """
        if not any(each.id in reasons for each in self.left):
            raise SinkDefect(
                "the sink refuses documents that it was not given",
                "parked documents",
                "report it to who wrote the sink",
            )
        self._reasons |= reasons
        holds, left = Holds(), []
        for each in self.left:
            row = asdict(each)
            if each.id in reasons or holds.waits(row):
                holds.add(row)
            else:
                left.append(each)
        self.left = left

    def reasoned(self, document: ParkedDocument) -> ParkedDocument:
        """A document that stays, with the newest reason."""
        return dataclasses.replace(document, reason=self._reasons.get(document.id, document.reason))


@contextmanager
def for_a_command(path: Path, keyring: Keyring = NO_KEYS) -> Iterator[Parked]:
    """The parked documents, for a command: what the disk refuses is an error of penstock's."""
    try:
        yield Parked(path, keyring)
    except OSError as error:
        raise cannot_use(error, path.parent) from error


def entries_of(parked: Parked, wanted: Wanted = ALL) -> list[ParkedEntry]:
    """What is parked, as people are shown it."""
    asked = parked.asked()
    return [
        ParkedEntry(
            id=each.id,
            table=each.table_name,
            op=each.op,
            key=each.key,
            commit_lsn=str(Lsn(each.commit_lsn)),
            reason=each.reason,
            parked_at=each.parked_at,
            request=next((one.action for one in reversed(asked) if one.means(each)), None),
            values=each.content if wanted.with_values else None,
        )
        for each in parked.read()[: wanted.most]
    ]


def batches_of(documents: Sequence[ParkedDocument]) -> Iterator[pa.RecordBatch]:
    """Parked documents as they are delivered; those of one form together."""
    for is_records, some in itertools.groupby(documents, lambda each: each.is_record):
        schema = RECORDS if is_records else DOCUMENTS
        rows = [each.columns() for each in some]
        yield pa.RecordBatch.from_pylist(
            [{name: row[name] for name in schema.names} for row in rows], schema
        )


def is_record(row: Mapping[str, Any]) -> bool:
    """Whether a row of a batch, or of a parked document, is of another form than penstock's JSON."""
    return isinstance(row["value"], bytes) or bool(row.get("is_record"))


def _parked(row: dict[str, Any], reason: str | None, at: str) -> ParkedDocument:
    committed_at = row["committed_at"]
    if isinstance(committed_at, datetime):
        committed_at = int(committed_at.timestamp() * 1_000_000)
    given = {**row, "committed_at": committed_at}
    if is_record(row):
        key = row["record_key"]
        given |= {
            "is_record": True,
            "value": base64.b64encode(row["value"]).decode(),
            "record_key": key and base64.b64encode(key).decode(),
        }
    return ParkedDocument(**given, reason=reason, parked_at=at)


def _holds_of(documents: Collection[ParkedDocument]) -> Holds:
    holds = Holds()
    for each in documents:
        holds.add(asdict(each))
    return holds
