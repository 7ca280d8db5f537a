"""Changes as records that carry rows themselves, and back: how rows reach a sink that is given them typed. Pure.

A record's `value` is the row's pgoutput message, so that what decodes the log decodes it, exactly and all rows at once.
Its `record_key` says under which description the row stands:

    key that the row had before, JSON, where an update changes it | LF | Relation message

and before the message, where the table has columns of enums, the oids of their types, as `16400,16404` and another LF.
The other columns are those of every record (`envelope.RECORDS`); `op` is `move` of an update that changes the key.
Truncates and changes of tables are penstock's JSON, and have no `record_key`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.cells import ABSENT, gather
from penstock.changes.compact import fill_from_before, key_changes
from penstock.changes.decode import TableChanges, TableTruncated, Transaction, decode
from penstock.changes.documents import documents, key_places, key_texts, keyed, row_ids
from penstock.changes.envelope import (
    NO_RECORDS,
    as_records,
    copied_ids,
    record_batch,
    records_in_order,
)
from penstock.changes.pgoutput import DELETE, INSERT, NULL, TEXT, UPDATE, relation_message
from penstock.changes.textcolumns import join, raw_bytes
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.changes.cells import Cells, Index
    from penstock.changes.copyrows import CopiedRows
    from penstock.changes.decode import Piece
    from penstock.changes.pgoutput import Relation
    from penstock.changes.textcolumns import Part

_NAMES = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}
_NO_BEFORE, _KEY_BEFORE, _FULL_BEFORE = range(3)
_MARKS = {_KEY_BEFORE: b"K", _FULL_BEFORE: b"O"}
# A run that is cut into more steps than this has its keys listed once, by key.
_MANY_STEPS = 16
_NOWHERE = Transaction(0, 0, 0, 0, carries_xids=False)


def row_records(pieces: Sequence[Piece], source: str) -> pa.RecordBatch:
    """Changes as records, by commit and place in it. Also of a table whose rows nothing identifies: they are known whole."""
    found: list[pa.RecordBatch] = []
    for piece in pieces:
        if isinstance(piece, TableTruncated):
            found.append(as_records(documents([piece], source)))
        elif len(piece):
            found += _table_records(replace(piece, relation=keyed(piece.relation)), source)
    return records_in_order(found)


def _table_records(changes: TableChanges, source: str) -> Iterator[pa.RecordBatch]:
    """The rows of a table, in groups whose messages have the same parts."""
    changes = replace(changes, after=fill_from_before(changes))
    places = key_places(changes.relation)
    count = len(changes)
    moves = np.zeros(count, np.bool_)
    before = np.zeros(count, np.int64)
    if changes.before:
        before[changes.before[0].kind != ABSENT] = _KEY_BEFORE
        before[changes.has_full_before] = _FULL_BEFORE
    if places:
        moves = key_changes(changes, changes.after, places)
    group = (changes.operation.astype(np.int64) * 3 + before) * 2 + moves
    for one in np.unique(group).tolist():
        some = changes.take(np.flatnonzero(group == one))
        yield _group_records(some, one // 2 % 3, source, is_move=bool(one % 2))


def _group_records(
    changes: TableChanges, before: int, source: str, *, is_move: bool
) -> pa.RecordBatch:
    relation, positions, count = changes.relation, changes.positions, len(changes)
    operation = int(changes.operation[0])
    parts: list[Part] = [struct.pack(">BI", operation, relation.oid)]
    if before != _NO_BEFORE:
        parts += [_MARKS[before], *_tuple(changes.before)]
    if operation != DELETE:
        parts += [b"N", *_tuple(changes.after)]
    key = None
    if key_places(relation):
        key = key_texts(relation, changes.before if operation == DELETE else changes.after)
    columns = {
        "id": join([row_ids(positions, source)], count).cast(pa.binary()).view(pa.string()),
        "key": key,
        "value": _column(parts, count),
        "record_key": _column(
            [
                key_texts(relation, changes.before).view(pa.large_binary()) if is_move else b"",
                b"\n" + _description(relation),
            ],
            count,
        ),
        "committed_at": positions.committed_at,
    }
    op = "move" if is_move else _NAMES[operation]
    return record_batch(columns, relation, op, positions.commit_lsn, positions.ordinal)


def copied_row_records(
    relation: Relation,
    rows: CopiedRows,
    source: str,
    commit_lsn: int,
    first_ordinal: int,
    copy_id: str,
) -> pa.RecordBatch:
    """Copied rows as records, in their own order: inserts with the op `read`."""
    if not len(rows):
        return NO_RECORDS
    relation, count = keyed(relation), len(rows)
    lsn = np.full(count, commit_lsn, np.uint64)
    ordinals = first_ordinal + np.arange(count, dtype=np.int64)
    head = struct.pack(">BI", INSERT, relation.oid) + b"N"
    columns = {
        "id": copied_ids(source, lsn, copy_id, relation.oid, ordinals),
        "key": key_texts(relation, rows.cells) if key_places(relation) else None,
        "value": _column([head, *_tuple(rows.cells)], count),
        "record_key": _column([b"\n" + _description(relation)], count),
        "committed_at": None,
    }
    return record_batch(columns, relation, "read", lsn, ordinals)


def _description(relation: Relation) -> bytes:
    """What a row stands under: the table's columns, and which of their types are enums."""
    enums = relation.injected.enums if relation.injected is not None else ()
    marks = b"%b\n" % ",".join(map(str, enums)).encode() if enums else b""
    return marks + relation_message(relation)


def _enums_and_message(description: bytes) -> tuple[frozenset[int], bytes]:
    """The two parts of a description. A Relation message begins with its letter, oids with a digit."""
    if not description[:1].isdigit():
        return frozenset(), description
    marks, _, message = description.partition(b"\n")
    return frozenset(map(int, marks.split(b","))), message


def _column(parts: Sequence[Part], count: int) -> pa.Array:
    if all(isinstance(part, bytes) for part in parts):
        return pa.repeat(pa.scalar(b"".join(parts), pa.large_binary()), count)
    return join(parts, count, null=b"").cast(pa.large_binary())


def _tuple(columns: Sequence[Cells]) -> list[Part]:
    """count u16 | for each column: kind u8 | of a value: length u32 | text."""
    parts: list[Part] = [struct.pack(">H", len(columns))]
    for cells in columns:
        parts += [_heads(cells), gather(cells)]
    return parts


def _heads(cells: Cells) -> pa.Array:
    """What stands before each text: five bytes, or the one that says that there is none."""
    count = len(cells)
    heads = np.zeros((count, 5), np.uint8)
    # A key that is sent alone has the columns beside it as NULL; an old row that is not there has none.
    heads[:, 0] = np.where(cells.kind == ABSENT, NULL, cells.kind)
    heads[:, 1:] = cells.length.astype(">u4").view(np.uint8).reshape(count, 4)
    is_text = cells.kind == TEXT
    sizes = np.where(is_text, 5, 1)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    wanted = np.ones((count, 5), np.bool_)
    wanted[~is_text, 1:] = False
    data = heads[wanted].tobytes()
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


@dataclass(frozen=True)
class Run:
    """Records of one table, one after another: rows under one description, or one that is no row."""

    table: TableName
    records: pa.RecordBatch
    changes: TableChanges | None  # None of a record that is no row
    enums: frozenset[int] = frozenset()  # types of its columns that are enums

    def ids_of(self, keys: pa.Array | None, count: int) -> pa.Array:
        """For each of some rows: the id of the run's first record of the same key, or else of its first at all."""
        ids = self.records.column("id")
        if keys is None:
            return pa.repeat(ids[0], count)
        if count * _MANY_STEPS > len(ids):
            own, places = self._known_keys
            return ids.take(places.take(pc.fill_null(pc.index_in(keys, value_set=own), 0)))
        # Of a run that was cut into many steps, not all of its keys for each of them.
        return ids.take(pa.array([self._place_of.get(key, 0) for key in keys.to_pylist()]))

    @cached_property
    def _known_keys(self) -> tuple[pa.Array, pa.Array]:
        """The keys of the records, and those that rows had before they moved; for each, which record it is of."""
        moves = pc.indices_nonzero(pc.equal(self.records.column("op"), "move"))
        left = self.records.column("record_key").take(moves).to_pylist()
        former = pa.array([former_key(each) for each in left], pa.large_string())
        own = self.records.column("key")
        places = pa.concat_arrays([pa.array(np.arange(len(own))), moves.cast(pa.int64())])
        # In the order of the records: the first one of a key is found.
        order = pa.array(np.argsort(places.to_numpy(), kind="stable"))
        return pa.concat_arrays([own, former]).take(order), places.take(order)

    @cached_property
    def _place_of(self) -> dict[str, int]:
        own, places = self._known_keys
        return dict(zip(reversed(own.to_pylist()), reversed(places.to_pylist()), strict=True))


def former_key(record_key: bytes) -> str:
    """The key, as JSON, that the row of a `move` had before; empty of others."""
    return record_key.partition(b"\n")[0].decode()


def runs_of(batch: pa.RecordBatch) -> Iterator[Run]:
    """The records of a batch by table; those of one table in their order."""
    if not len(batch):
        return
    names = pc.binary_join_element_wise(batch.column("schema"), batch.column("table"), "\0")
    encoded = names.dictionary_encode()
    tables = [TableName(*text.split("\0")) for text in encoded.dictionary.to_pylist()]
    table = encoded.indices.to_numpy()
    shape, messages = _shapes(batch)
    order = np.argsort(table, kind="stable")
    # A record that is no row is a run of its own.
    is_new = (np.diff(table[order]) != 0) | (np.diff(shape[order]) != 0) | (shape[order][1:] < 0)
    for rows in np.split(order, np.flatnonzero(is_new) + 1):
        records = batch.take(pa.array(rows))
        number = int(shape[rows[0]])
        name = tables[int(table[rows[0]])]
        if number < 0:
            yield Run(name, records, None)
        else:
            enums, message = _enums_and_message(messages[number])
            yield Run(name, records, _decoded(records, message), enums)


def _shapes(batch: pa.RecordBatch) -> tuple[Index, list[bytes]]:
    """Under which description each row stands, by its number; -1 where there is none."""
    encoded = batch.column("record_key").dictionary_encode()
    messages: dict[bytes, int] = {}
    numbers = [
        messages.setdefault(each.partition(b"\n")[2], len(messages))
        for each in encoded.dictionary.to_pylist()
    ]
    places = pc.fill_null(encoded.indices, len(numbers)).to_numpy()
    return np.array([*numbers, -1], np.int64)[places], list(messages)


def _decoded(records: pa.RecordBatch, message: bytes) -> TableChanges:
    values = records.column("value")
    lengths = np.asarray(pc.binary_length(values)).astype(np.int64)
    data = message + bytes(raw_bytes(values))
    [changes] = decode(data, np.concatenate(([len(message)], lengths)), _NOWHERE)
    assert isinstance(changes, TableChanges)
    return changes
