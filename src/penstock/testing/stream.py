"""What tests of changes need: pgoutput messages made by hand, and logs written from them.

Every function gives the bytes of one message, exactly as a server would send it; lists of messages
become changes (`changes`) or a log on disk (`write_log`). Needs no server and no Spark.

    orders = table(16400, "orders", {"id": "int8", "note": "text"}, key=["id"])
    stream = [
        relation(orders),
        *transaction(0x16B3748, insert(orders, ["1", "first"]), delete(orders, key=["1"])),
    ]
    pieces = changes(stream)
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.changes.decode import Piece, Transaction, decode
from penstock.changes.pgoutput import Column, Relation, relation_message
from penstock.log.files.reader import FilesReader
from penstock.log.files.writer import FilesWriter
from penstock.lsn import Lsn
from penstock.source.assemble import Assembler
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from penstock.log.contract import Slice

TYPE_OIDS: Final = {
    "bool": 16,
    "bytea": 17,
    "char": 18,
    "name": 19,
    "int8": 20,
    "int2": 21,
    "int4": 23,
    "text": 25,
    "oid": 26,
    "json": 114,
    "float4": 700,
    "float8": 701,
    "money": 790,
    "int4[]": 1007,
    "text[]": 1009,
    "bpchar": 1042,
    "varchar": 1043,
    "date": 1082,
    "time": 1083,
    "timestamp": 1114,
    "timestamptz": 1184,
    "interval": 1186,
    "timetz": 1266,
    "numeric": 1700,
    "uuid": 2950,
    "jsonb": 3802,
}
"""The OIDs of types that tests name; others can be given as numbers."""


class Unchanged:
    """The kind of `UNCHANGED`."""


UNCHANGED: Final = Unchanged()
"""In a new row: a TOASTed value that the UPDATE left alone and the server did not send."""

Value = str | bytes | None | Unchanged
"""A value as Postgres's text, NULL, or UNCHANGED."""


def table(
    oid: int,
    name: str | TableName,
    columns: Mapping[str, str | int],
    *,
    key: Iterable[str] = (),
    identity: str = "d",
) -> Relation:
    """Describe a table.

    Args:
        oid: what its rows name it by.
        name: `orders` for `public.orders`, or a TableName.
        columns: name -> type, by a name of TYPE_OIDS or by OID.
        key: the columns of the replica identity; with identity `f` every column is marked, as
            Postgres does.
        identity: d(efault), n(othing), f(ull) or i(ndex).
    """
    marked = set(columns if identity == "f" else key)
    return Relation(
        oid,
        name if isinstance(name, TableName) else TableName("public", name),
        identity,
        tuple(
            Column(column, kind if isinstance(kind, int) else TYPE_OIDS[kind], -1, column in marked)
            for column, kind in columns.items()
        ),
    )


def begin(commit_lsn: int, xid: int = 1, committed_at: int = 0) -> bytes:
    """B: `committed_at` in microseconds since 2000-01-01."""
    return struct.pack(">cQqI", b"B", commit_lsn, committed_at, xid)


def commit(commit_lsn: int, end_lsn: int | None = None, committed_at: int = 0) -> bytes:
    """C: the transaction's end is 8 bytes after its commit when nothing else is said."""
    return struct.pack(">cBQQq", b"C", 0, commit_lsn, _end(commit_lsn, end_lsn), committed_at)


def relation(described: Relation, *, xid: int | None = None) -> bytes:
    """R: the columns of a table's rows from here on. `xid` as in every message of a stream."""
    return relation_message(described, xid=xid)


def insert(described: Relation, row: Sequence[Value], *, xid: int | None = None) -> bytes:
    """I: a new row, one value per column."""
    return _row(b"I", described, xid) + b"N" + _tuple(row)


def update(
    described: Relation,
    row: Sequence[Value],
    *,
    key: Sequence[Value] | None = None,
    before: Sequence[Value] | None = None,
    xid: int | None = None,
) -> bytes:
    """U: the new row, and what the server sends of the old one.

    Args:
        described: the table.
        row: the new row, one value per column.
        key: the old key, one value per key column: the server sends it when the key changed.
        before: the whole old row: the server sends it with replica identity full.
        xid: of the subtransaction, in a stream.
    """
    return _row(b"U", described, xid) + _old(described, key, before) + b"N" + _tuple(row)


def delete(
    described: Relation,
    *,
    key: Sequence[Value] | None = None,
    before: Sequence[Value] | None = None,
    xid: int | None = None,
) -> bytes:
    """D: the old key, one value per key column, or the whole old row."""
    return _row(b"D", described, xid) + _old(described, key, before)


def truncate(*described: Relation, restart_identity: bool = False, xid: int | None = None) -> bytes:
    """T: several tables emptied by one statement."""
    oids = [one.oid for one in described]
    options = 2 if restart_identity else 0
    return _start(b"T", xid) + struct.pack(f">IB{len(oids)}I", len(oids), options, *oids)


def logical_message(prefix: str, content: bytes, *, xid: int | None = None, lsn: int = 0) -> bytes:
    """M: what pg_logical_emit_message wrote, in a transaction."""
    return b"".join(
        (
            _start(b"M", xid),
            struct.pack(">BQ", 1, lsn),
            prefix.encode() + b"\0",
            struct.pack(">I", len(content)),
            content,
        )
    )


def stream_start(xid: int, *, is_first: bool = True) -> bytes:
    """S: messages of a transaction that has not committed follow, each with its own xid."""
    return struct.pack(">cIB", b"S", xid, is_first)


def stream_stop() -> bytes:
    """E: enough of that transaction for now."""
    return b"E"


def stream_commit(
    xid: int, commit_lsn: int, end_lsn: int | None = None, committed_at: int = 0
) -> bytes:
    """c: everything streamed under this xid has happened."""
    end = _end(commit_lsn, end_lsn)
    return struct.pack(">cIBQQq", b"c", xid, 0, commit_lsn, end, committed_at)


def stream_abort(xid: int, subxid: int | None = None) -> bytes:
    """A: nothing of the transaction, or of one subtransaction of it, has happened."""
    return struct.pack(">cII", b"A", xid, xid if subxid is None else subxid)


def transaction(
    commit_lsn: int,
    *rows: bytes,
    xid: int = 1,
    committed_at: int = 0,
    end_lsn: int | None = None,
) -> list[bytes]:
    """Begin, the given messages, Commit."""
    return [
        begin(commit_lsn, xid, committed_at),
        *rows,
        commit(commit_lsn, end_lsn, committed_at),
    ]


def joined(messages: Sequence[bytes]) -> tuple[bytes, npt.NDArray[np.int64]]:
    """The messages as `decode` takes them: one after another, and the length of each."""
    return b"".join(messages), np.array([len(message) for message in messages], np.int64)


def changes(
    messages: Sequence[bytes], part: Transaction | None = None, after_lsn: int = 0
) -> list[Piece]:
    """Decode messages: whole transactions, or a part of the one that `part` describes."""
    data, lengths = joined(messages)
    return decode(data, lengths, part, after_lsn)


def write_log(directory: Path, messages: Sequence[bytes], start_lsn: int = 0) -> Lsn:
    """Append messages to the log in a directory, as capture does; where the log then ends.

    Whole transactions of one call become one slice. A log that is not there begins at `start_lsn`.
    """
    writer = FilesWriter(directory)
    writer.open(Lsn(start_lsn))
    try:
        assembler = Assembler(writer)
        for message in messages:
            assembler.add(memoryview(message))
        assembler.seal()
        return writer.durable_lsn
    finally:
        writer.close()


def read_log(directory: Path, after_lsn: int = 0) -> list[Slice]:
    """Every slice of a log after a position."""
    reader = FilesReader(directory, Lsn(after_lsn))
    try:
        return reader.read(1 << 62)
    finally:
        reader.close()


def _end(commit_lsn: int, end_lsn: int | None) -> int:
    return commit_lsn + 8 if end_lsn is None else end_lsn


def _start(kind: bytes, xid: int | None) -> bytes:
    return kind if xid is None else kind + struct.pack(">I", xid)


def _row(kind: bytes, described: Relation, xid: int | None) -> bytes:
    return _start(kind, xid) + struct.pack(">I", described.oid)


def _old(described: Relation, key: Sequence[Value] | None, before: Sequence[Value] | None) -> bytes:
    if before is not None:
        return b"O" + _tuple(before)
    if key is None:
        return b""
    # A key travels as a row whose other columns are NULL.
    given = iter(key)
    return b"K" + _tuple(
        [next(given) if column.in_identity else None for column in described.columns]
    )


def _tuple(values: Sequence[Value]) -> bytes:
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif isinstance(value, Unchanged):
            parts.append(b"u")
        else:
            raw = value.encode() if isinstance(value, str) else value
            parts.append(b"t" + struct.pack(">I", len(raw)) + raw)
    return b"".join(parts)
