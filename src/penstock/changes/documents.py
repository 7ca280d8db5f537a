"""Changes -> JSON documents, one line each, in source order. All rows of a table at once.

    {"op", "schema", "table", "commit_lsn", "ordinal", "xid", "committed_at", "source",
     "key": {…} | null, "before": {…} | null, "after": {…} | null, "unchanged": ["col", …]}

- `key` holds the columns of the replica identity: the new key of an insert or update, the old one of a
  delete. It is null where pgoutput names no key: replica identity full, or nothing (with `full` every
  column is marked, and `before` is what tells the row).
- `before` holds what the server sent of the old row: the key, when an update changed it; the whole
  row, with replica identity full; null when it sent nothing.
- `after` is the new row, without the columns in `unchanged`: TOASTed values that the update left alone
  and the server did not send again.
- A truncate has neither key nor rows. One TRUNCATE of several tables gives one document for each, all
  with the same position.

How values look: `jsonvalues`. Rows are grouped by the shape of their document, so that everything
but the values is a constant, and Arrow joins constants and columns. Pure: no file, no clock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.cells import ABSENT, Cells, Index, Mask, gather
from penstock.changes.decode import Positions, TableChanges, TableTruncated
from penstock.changes.jsonvalues import JsonColumn, json_column, json_string, raw_bytes
from penstock.changes.pgoutput import (
    DELETE,
    EPOCH_2000_UNIX_MICROSECONDS,
    INSERT,
    UPDATE,
    Relation,
)
from penstock.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.changes.decode import Piece

_NO_BEFORE, _KEY_BEFORE, _FULL_BEFORE = range(3)
_OPERATIONS = {INSERT: b"insert", UPDATE: b"update", DELETE: b"delete"}
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
# Arrow counts the bytes of a binary array in 31 bits.
_LARGEST = 2**31 - 1

Part = bytes | pa.Array


@dataclass(frozen=True)
class _Lines:
    """Documents of rows of one shape, and where in the source's order each belongs."""

    commit_lsn: npt.NDArray[np.uint64]
    ordinal: Index
    text: pa.Array


def documents(pieces: Sequence[Piece], source: str) -> memoryview:
    """The changes as JSON lines, UTF-8, by commit and, within a transaction, by ordinal.

    Args:
        pieces: what `decode` found in slices that lie one after another.
        source: the name the documents carry.
    """
    lines: list[_Lines] = []
    for piece in pieces:
        if isinstance(piece, TableTruncated):
            lines.append(_truncate_lines(piece, source))
        elif len(piece):
            lines += _table_lines(piece, source)
    if not lines:
        return memoryview(b"")
    return raw_bytes(_in_order(lines))


def _in_order(lines: list[_Lines]) -> pa.Array:
    if len(lines) == 1:
        return lines[0].text
    texts = [some.text for some in lines]
    if sum(len(raw_bytes(text)) for text in texts) > _LARGEST:
        texts = [text.cast(pa.large_binary()) for text in texts]
    elif any(pa.types.is_large_binary(text.type) for text in texts):
        texts = [text.cast(pa.binary()) for text in texts]
    commit_lsn = np.concatenate([some.commit_lsn for some in lines])
    ordinal = np.concatenate([some.ordinal for some in lines])
    # Stable, so that the tables of one TRUNCATE stay in the statement's order.
    order = np.lexsort((ordinal, commit_lsn))
    return pa.concat_arrays(texts).take(pa.array(order))


def _truncate_lines(piece: TableTruncated, source: str) -> _Lines:
    document = {
        "op": "truncate",
        "schema": piece.relation.table.schema,
        "table": piece.relation.table.name,
        "commit_lsn": str(Lsn(piece.commit_lsn)),
        "ordinal": piece.ordinal,
        "xid": piece.xid,
        "committed_at": _times(np.array([piece.committed_at], np.int64))[0].as_py().decode(),
        "source": source,
        "key": None,
        "before": None,
        "after": None,
        "unchanged": [],
    }
    line = json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
    return _Lines(
        np.array([piece.commit_lsn], np.uint64),
        np.array([piece.ordinal], np.int64),
        pa.array([line.encode()], pa.binary()),
    )


def _table_lines(changes: TableChanges, source: str) -> list[_Lines]:
    """Group the rows by what their documents have in common."""
    has_before = changes.has_full_before | (changes.operation == DELETE)
    if changes.before:
        has_before |= changes.before[0].kind != ABSENT
    is_partial = np.zeros(len(changes), np.bool_)
    for cells in (*changes.after, *changes.before):
        is_partial |= cells.is_unchanged
    before = np.where(changes.has_full_before, _FULL_BEFORE, has_before.astype(np.int64))
    shape = (changes.operation.astype(np.int64) * 3 + before) * 2 + is_partial
    found = np.unique(shape).tolist()
    if len(found) == 1:
        return [_Group(changes, found[0]).lines(source)]
    lines = []
    for one in found:
        rows = np.flatnonzero(shape == one)
        lines.append(_Group(_take(changes, rows), one).lines(source))
    return lines


def _take(changes: TableChanges, rows: Index) -> TableChanges:
    return TableChanges(
        changes.relation,
        changes.data,
        changes.operation[rows],
        changes.positions.take(rows),
        tuple(cells.take(rows) for cells in changes.after),
        tuple(cells.take(rows) for cells in changes.before),
        changes.has_full_before[rows],
    )


class _Group:
    """Rows of one table whose documents have the same shape."""

    def __init__(self, changes: TableChanges, shape: int) -> None:
        self._changes = changes
        self._columns = changes.relation.columns
        rest, self._is_partial = divmod(shape, 2)
        self._operation, self._before = divmod(rest, 3)
        self._encoded: dict[int, JsonColumn] = {}

    def lines(self, source: str) -> _Lines:
        changes = self._changes
        positions = changes.positions
        table = changes.relation.table
        everything = range(len(self._columns))
        marked = [place for place in everything if self._columns[place].in_identity]
        before_places = everything if self._before == _FULL_BEFORE else marked
        parts: list[Part] = [
            b'{"op":"%b","schema":%b,"table":%b,"commit_lsn":"'
            % (_OPERATIONS[self._operation], json_string(table.schema), json_string(table.name)),
            *_position_parts(positions, source),
            b',"key":',
            *self._key(key_places(changes.relation)),
            b',"before":',
            *(
                [b"null"]
                if self._before == _NO_BEFORE
                else self._row(changes.before, before_places)
            ),
            b',"after":',
            *([b"null"] if self._operation == DELETE else self._row(changes.after, everything)),
            b',"unchanged":[',
            *self._unchanged(),
            b"]}\n",
        ]
        return _Lines(positions.commit_lsn, positions.ordinal, _join(parts, len(changes)))

    def _key(self, places: Sequence[int]) -> list[Part]:
        changes = self._changes
        if not places:
            return [b"null"]
        if self._operation == DELETE:
            return self._row(changes.before, places)
        if not self._is_partial:
            return self._row(changes.after, places)
        # A key column can be TOASTed too; the server then sends the old key, where it stands.
        cells = [
            after.where(~after.is_unchanged, before)
            for after, before in zip(changes.after, changes.before, strict=True)
        ]
        return self._row(cells, places)

    def _row(self, cells: Sequence[Cells], places: Sequence[int]) -> list[Part]:
        """The columns at these places as an object."""
        if self._is_partial:
            return [b"{", self._told(cells, places), b"}"] if places else [b"{}"]
        parts: list[Part] = [b"{"]
        for number, place in enumerate(places):
            column = self._column(cells[place], place)
            name = json_string(self._columns[place].name)
            parts += [b"," if number else b"", name, b":", column.prefix]
            parts += [column.values, column.suffix]
        return [*parts, b"}"]

    def _told(self, cells: Sequence[Cells], places: Sequence[int]) -> pa.Array:
        """The same, without the values that are not known."""
        fields = []
        for place in places:
            column = self._column(cells[place], place)
            name = json_string(self._columns[place].name)
            field = _join(
                [name, b":", column.prefix, column.values, column.suffix], len(self._changes)
            )
            fields.append((field, cells[place].is_value | cells[place].is_null))
        return _list(fields)

    def _unchanged(self) -> list[Part]:
        if not self._is_partial:
            return []
        count = len(self._changes)
        names = []
        for column, cells in zip(self._columns, self._changes.after, strict=True):
            if bool(cells.is_unchanged.any()):
                name = pa.repeat(pa.scalar(json_string(column.name), pa.binary()), count)
                names.append((name, cells.is_unchanged))
        return [_list(names)] if names else []

    def _column(self, cells: Cells, place: int) -> JsonColumn:
        """A column's values; those that stand in key and row are gathered once."""
        if id(cells) not in self._encoded:
            values = gather(self._changes.data, cells)
            self._encoded[id(cells)] = json_column(self._columns[place].type_oid, values)
        return self._encoded[id(cells)]


def key_places(relation: Relation) -> list[int]:
    """Which columns make the key of a document; none where pgoutput names no key."""
    if relation.replica_identity == "f":
        return []
    return [place for place, column in enumerate(relation.columns) if column.in_identity]


def _position_parts(positions: Positions, source: str) -> list[Part]:
    """`<commit_lsn>","ordinal":…,"source":"…"`. Most of it is the same within a transaction."""
    lsn = positions.commit_lsn
    first = np.flatnonzero(np.concatenate(([True], lsn[1:] != lsn[:-1])))
    one = positions.take(first)
    lsn_text = _lsn_texts(one.commit_lsn)
    rest = _join(
        [
            b',"xid":',
            _digits(one.xid),
            b',"committed_at":"',
            _times(one.committed_at),
            b'","source":' + json_string(source),
        ],
        len(first),
    )
    ordinal = _digits(positions.ordinal)
    if len(first) == 1:
        return [lsn_text[0].as_py(), b'","ordinal":', ordinal, rest[0].as_py()]
    of_row = pa.array(np.repeat(np.arange(len(first)), np.diff(first, append=len(lsn))))
    return [lsn_text.take(of_row), b'","ordinal":', ordinal, rest.take(of_row)]


def _digits(numbers: Index) -> pa.Array:
    return pa.array(numbers).cast(pa.string()).cast(pa.binary())


def _times(committed_at: Index) -> pa.Array:
    """Microseconds since 2000-01-01 as ISO 8601, UTC."""
    since_1970 = pa.array(committed_at + EPOCH_2000_UNIX_MICROSECONDS).view(pa.timestamp("us"))
    text = since_1970.cast(pa.string()).cast(pa.binary())
    text = pc.replace_substring(text, pattern=b" ", replacement=b"T", max_replacements=1)
    return _join([text, b"+00:00"], len(text))


def _lsn_texts(lsn: npt.NDArray[np.uint64]) -> pa.Array:
    """As Lsn prints them: two hexadecimal numbers around a slash, without leading zeros."""
    shifts = np.arange(60, -4, -4, dtype=np.uint64)
    nibbles = ((lsn[:, None] >> shifts) & np.uint64(15)).astype(np.intp)
    shown = np.ones((len(lsn), 17), np.bool_)
    text = np.full((len(lsn), 17), ord("/"), np.uint8)
    for begin, to in ((0, 0), (8, 9)):
        half = nibbles[:, begin : begin + 8]
        text[:, to : to + 8] = _HEX[half]
        # The last digit stands even when it is zero.
        shown[:, to : to + 7] = np.logical_or.accumulate(half[:, :7] != 0, axis=1)
    offsets = np.zeros(len(lsn) + 1, np.int32)
    np.cumsum(shown.sum(axis=1), out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(lsn), [None, pa.py_buffer(offsets), pa.py_buffer(text[shown])]
    )


def _list(items: Sequence[tuple[pa.Array, Mask]]) -> pa.Array:
    """Of each row the items whose mask holds, with commas between."""
    kept = [pc.if_else(pa.array(mask), item, pa.scalar(None, item.type)) for item, mask in items]
    kind = pa.large_binary() if any(pa.types.is_large_binary(i.type) for i in kept) else pa.binary()
    # The empty string in front: Arrow (26) drops rows whose every item is null.
    listed = pc.binary_join_element_wise(
        pa.scalar(b"", kind),
        *(item.cast(kind) for item in kept),
        pa.scalar(b",", kind),
        null_handling="skip",
    )
    return pc.binary_slice(listed, 1)


def _join(parts: Sequence[Part], count: int) -> pa.Array:
    """Constants and columns, row by row; nulls become `null`."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    size = sum(
        len(part) * count if isinstance(part, bytes) else len(raw_bytes(part)) + 4 * part.null_count
        for part in merged
    )
    kind = pa.binary() if size < _LARGEST else pa.large_binary()
    return pc.binary_join_element_wise(
        *(pa.scalar(part, kind) if isinstance(part, bytes) else part.cast(kind) for part in merged),
        pa.scalar(b"", kind),
        null_handling="replace",
        null_replacement=b"null",
    )
