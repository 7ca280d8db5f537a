"""The pgoutput message format, one message at a time, and nothing else.

For the few messages that are read singly: Relation, Begin, Commit, Stream …, Truncate. Rows are
decoded many at once, in `decode`. Pure: no socket, no file, no clock.
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import DecodeError
from penstock.lsn import Lsn
from penstock.table import TableName

if TYPE_CHECKING:
    from penstock.schema.shape import TableShape

Buffer = bytes | memoryview

BEGIN, COMMIT, ORIGIN, RELATION, TYPE = b"BCORY"
INSERT, UPDATE, DELETE, TRUNCATE, MESSAGE = b"IUDTM"
STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT = b"SEcA"
ROW_KINDS = frozenset((INSERT, UPDATE, DELETE))
KNOWN_KINDS = frozenset(b"BCORYIUDTMSEcA")

# Inside a tuple, before each column.
NULL, UNCHANGED, TEXT = b"nut"

# Postgres counts time from here, in microseconds.
EPOCH_2000_UNIX_MICROSECONDS = 946_684_800_000_000

_BEGIN = struct.Struct(">cQqI")
_COMMIT = struct.Struct(">cBQQq")
_STREAM_COMMIT = struct.Struct(">cIBQQq")
_STREAM_START = struct.Struct(">cIB")
_STREAM_ABORT = struct.Struct(">cII")
_COLUMN = struct.Struct(">Ii")


@dataclass(frozen=True)
class Begin:
    """B: a transaction's rows follow, and its commit's position is known already."""

    commit_lsn: Lsn
    committed_at: int
    xid: int


@dataclass(frozen=True)
class Commit:
    """C, or c for a streamed transaction (then `xid` is set)."""

    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at: int
    xid: int = 0


@dataclass(frozen=True)
class Column:
    """One column as a Relation message describes it.

    `id` is its number in the catalog, `type_name` that of a type that is not Postgres's own, where somebody knows them.
    """

    name: str
    type_oid: int
    type_modifier: int
    in_identity: bool
    id: int = 0
    type_name: str = ""


@dataclass(frozen=True)
class Injected:
    """What is known of a table beside its rows. `identity`: ids of columns, None where it is not asked for.

    `primary_key`: ids of its columns, for formats that need it; `in_documents`: whether documents say the rest.
    `enums`: oids of types of its columns that are enums. `domains`: those that are domains, with oid and modifier of
    the type below.
    """

    table_id: int
    identity: tuple[int, ...] | None = None
    has_version: bool = False
    has_column_ids: bool = False
    primary_key: tuple[int, ...] = ()
    in_documents: bool = True
    enums: tuple[int, ...] = ()
    domains: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class Relation:
    """R: the columns of one table's rows from here on."""

    oid: int
    table: TableName
    replica_identity: str  # d(efault), n(othing), f(ull), i(ndex)
    columns: tuple[Column, ...]
    injected: Injected | None = None


def relation_of(shape: TableShape) -> Relation:
    """A table as R will describe it: generated columns left out, the identity marked."""
    identity = shape.replica_identity
    marked: set[str] = set()
    if identity == "f":
        marked = {column.name for column in shape.columns}
    elif identity != "n":
        marked = set(shape.key_columns)
    return Relation(
        shape.id,
        shape.table,
        identity,
        tuple(
            Column(column.name, column.type_id, column.type_modifier, column.name in marked)
            for column in shape.columns
            if not column.generated
        ),
    )


@dataclass(frozen=True)
class Truncate:
    """T: several tables emptied by one statement."""

    relation_oids: tuple[int, ...]
    restart_identity: bool


@dataclass(frozen=True)
class Message:
    """M: what pg_logical_emit_message wrote; `xid` is 0 outside of a streamed transaction."""

    xid: int
    prefix: str
    content: bytes


def _unpack(layout: struct.Struct, raw: Buffer, name: str) -> tuple[int, ...]:
    try:
        return layout.unpack_from(raw)[1:]
    except struct.error:
        raise DecodeError(f"a {name} message of {len(raw)} bytes is too short") from None


def parse_begin(raw: Buffer) -> Begin:
    """B | commit_lsn u64 | committed_at i64 | xid u32."""
    commit_lsn, committed_at, xid = _unpack(_BEGIN, raw, "Begin")
    return Begin(Lsn(commit_lsn), committed_at, xid)


def parse_commit(raw: Buffer) -> Commit:
    """C | flags u8 | commit_lsn u64 | end_lsn u64 | committed_at i64."""
    _, commit_lsn, end_lsn, committed_at = _unpack(_COMMIT, raw, "Commit")
    return Commit(Lsn(commit_lsn), Lsn(end_lsn), committed_at)


def parse_stream_commit(raw: Buffer) -> Commit:
    """c | xid u32 | flags u8 | commit_lsn u64 | end_lsn u64 | committed_at i64."""
    xid, _, commit_lsn, end_lsn, committed_at = _unpack(_STREAM_COMMIT, raw, "Stream Commit")
    return Commit(Lsn(commit_lsn), Lsn(end_lsn), committed_at, xid)


def parse_stream_start(raw: Buffer) -> int:
    """S | xid u32 | first segment u8: the transaction whose messages follow."""
    return _unpack(_STREAM_START, raw, "Stream Start")[0]


def parse_stream_abort(raw: Buffer) -> tuple[int, int]:
    """A | xid u32 | subxid u32: equal when the whole transaction is rolled back."""
    xid, subxid = _unpack(_STREAM_ABORT, raw, "Stream Abort")
    return xid, subxid


def relation_oid(raw: Buffer, *, carries_xid: bool = False) -> int:
    """The table a Relation message is about, without reading the rest."""
    start = 5 if carries_xid else 1
    return int.from_bytes(memoryview(raw)[start : start + 4], "big")


def parse_relation(raw: Buffer, *, carries_xid: bool = False) -> Relation:
    """R | [xid u32] | oid u32 | schema | name | identity u8 | count u16 | columns.

    A column is: in identity u8 | name | type oid u32 | type modifier i32. Strings end with a zero.
    """
    message = bytes(raw)
    at = 5 if carries_xid else 1
    try:
        oid = int.from_bytes(message[at : at + 4], "big")
        schema, at = _string(message, at + 4)
        name, at = _string(message, at)
        identity = chr(message[at])
        count = int.from_bytes(message[at + 1 : at + 3], "big")
        at += 3
        columns = []
        for _ in range(count):
            in_identity = bool(message[at] & 1)
            column, at = _string(message, at + 1)
            type_oid, modifier = _COLUMN.unpack_from(message, at)
            at += 8
            columns.append(Column(column, type_oid, modifier, in_identity))
    except (IndexError, ValueError, struct.error) as error:
        raise DecodeError("a Relation message ends too early") from error
    if at != len(message):
        raise DecodeError(f"a Relation message has {len(message) - at} bytes too many")
    return Relation(oid, TableName(schema or "pg_catalog", name), identity, tuple(columns))


def relation_message(relation: Relation, *, xid: int | None = None) -> bytes:
    """The message that `parse_relation` reads; `xid` as in every message of a stream."""
    columns = b"".join(
        struct.pack(">B", column.in_identity)
        + column.name.encode()
        + b"\0"
        + _COLUMN.pack(column.type_oid, column.type_modifier)
        for column in relation.columns
    )
    schema = "" if relation.table.schema == "pg_catalog" else relation.table.schema
    return b"".join(
        (
            b"R" if xid is None else b"R" + struct.pack(">I", xid),
            struct.pack(">I", relation.oid),
            schema.encode() + b"\0",
            relation.table.name.encode() + b"\0",
            relation.replica_identity.encode(),
            struct.pack(">H", len(relation.columns)),
            columns,
        )
    )


def _string(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(b"\0", at)
    return message[at:end].decode(), end + 1


def parse_truncate(raw: Buffer, *, carries_xid: bool = False) -> Truncate:
    """T | [xid u32] | count u32 | options u8 | oid u32 * count.

    Option 1 is CASCADE: the tables that it has reached are named as well.
    """
    message = bytes(raw)
    at = 5 if carries_xid else 1
    count = int.from_bytes(message[at : at + 4], "big")
    if len(message) != at + 5 + 4 * count:
        raise DecodeError(f"a Truncate message of {len(message)} bytes names {count} tables")
    options = message[at + 4]
    oids = struct.unpack_from(f">{count}I", message, at + 5)
    return Truncate(oids, restart_identity=bool(options & 2))


def parse_message(raw: Buffer, *, carries_xid: bool = False) -> Message:
    """M | [xid u32] | flags u8 | lsn u64 | prefix | length u32 | content. The prefix ends with a zero."""
    message = bytes(raw)
    at = 5 if carries_xid else 1
    try:
        prefix, start = _string(message, at + 9)
    except ValueError:
        raise DecodeError("a logical message ends too early") from None
    content = message[start + 4 :]
    if len(message) < start + 4 or int.from_bytes(message[start : start + 4], "big") != len(
        content
    ):
        raise DecodeError(f"a logical message of {len(content)} bytes states another length")
    xid = int.from_bytes(message[1:5], "big") if carries_xid else 0
    return Message(xid, prefix, content)
