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
- A row that was copied has the op `read` and looks like an insert's, at the position of the snapshot.
  Nobody knows which transaction wrote it: `xid` and `committed_at` are null.

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

from penstock.changes.cells import ABSENT, Cells, Index, gather
from penstock.changes.decode import Positions, TableChanges, TableTruncated
from penstock.changes.jsonvalues import JsonColumn, json_column, json_string
from penstock.changes.pgoutput import (
    DELETE,
    INSERT,
    UPDATE,
    Column,
)
from penstock.changes.textcolumns import (
    Part,
    comma_list,
    concatenate,
    digits,
    join,
    lsn_texts,
    raw_bytes,
    utc_times,
)
from penstock.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.changes.copyrows import CopiedRows
    from penstock.changes.decode import Piece
    from penstock.changes.pgoutput import Relation

_NO_BEFORE, _KEY_BEFORE, _FULL_BEFORE = range(3)
_OPERATIONS = {INSERT: b"insert", UPDATE: b"update", DELETE: b"delete"}


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


def read_documents(
    relation: Relation, rows: CopiedRows, commit_lsn: int, first_ordinal: int, source: str
) -> memoryview:
    """Copied rows as JSON lines, UTF-8, in their own order.

    Args:
        relation: the table as pgoutput describes it; its columns are those of the rows.
        rows: the rows.
        commit_lsn: of the snapshot they were read from.
        first_ordinal: of the first row; the others are numbered on from there.
        source: the name the documents carry.
    """
    if not len(rows):
        return memoryview(b"")
    tuples = _Tuples(relation.columns, rows.cells)
    everything = list(range(len(relation.columns)))
    parts: list[Part] = [
        b'{"op":"read","schema":%b,"table":%b,"commit_lsn":"%b","ordinal":'
        % (*map(json_string, relation.table), str(Lsn(commit_lsn)).encode()),
        digits(first_ordinal + np.arange(len(rows), dtype=np.int64)),
        b',"xid":null,"committed_at":null,"source":' + json_string(source) + b',"key":',
        *(tuples.objects(marked) if (marked := _key_places(relation)) else [b"null"]),
        b',"before":null,"after":',
        *tuples.objects(everything),
        b',"unchanged":[]}\n',
    ]
    return raw_bytes(join(parts, len(rows)))


def change_count(pieces: Sequence[Piece]) -> int:
    """How many documents the changes give."""
    return sum(1 if isinstance(piece, TableTruncated) else len(piece) for piece in pieces)


def _in_order(lines: list[_Lines]) -> pa.Array:
    if len(lines) == 1:
        return lines[0].text
    commit_lsn = np.concatenate([some.commit_lsn for some in lines])
    ordinal = np.concatenate([some.ordinal for some in lines])
    # Stable, so that the tables of one TRUNCATE stay in the statement's order.
    order = np.lexsort((ordinal, commit_lsn))
    return concatenate([some.text for some in lines]).take(pa.array(order))


def _truncate_lines(piece: TableTruncated, source: str) -> _Lines:
    document = {
        "op": "truncate",
        "schema": piece.relation.table.schema,
        "table": piece.relation.table.name,
        "commit_lsn": str(Lsn(piece.commit_lsn)),
        "ordinal": piece.ordinal,
        "xid": piece.xid,
        "committed_at": utc_times(np.array([piece.committed_at], np.int64))[0].as_py().decode(),
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
        lines.append(_Group(changes.take(rows), one).lines(source))
    return lines


class _Tuples:
    """The old rows of a group, or the new ones. A column is gathered once, for key and row."""

    def __init__(self, columns: Sequence[Column], cells: Sequence[Cells]) -> None:
        self.cells = cells
        self._columns = columns
        self._encoded: dict[int, JsonColumn] = {}

    def objects(self, places: Sequence[int]) -> list[Part]:
        """The columns at these places as JSON objects, whose every value is known."""
        parts: list[Part] = [b"{"]
        for number, place in enumerate(places):
            parts += [b"," if number else b"", *self._field(place)]
        return [*parts, b"}"]

    def known_objects(self, places: Sequence[int], count: int) -> list[Part]:
        """The same, without the values that are not known."""
        fields = [
            (
                join(self._field(place), count),
                self.cells[place].is_value | self.cells[place].is_null,
            )
            for place in places
        ]
        return [b"{", comma_list(fields), b"}"] if fields else [b"{}"]

    def _field(self, place: int) -> list[Part]:
        column = self._columns[place]
        if place not in self._encoded:
            values = gather(self.cells[place])
            self._encoded[place] = json_column(column.type_oid, values)
        encoded = self._encoded[place]
        return [json_string(column.name), b":", encoded.prefix, encoded.values, encoded.suffix]


class _Group:
    """Rows of one table whose documents have the same shape."""

    def __init__(self, changes: TableChanges, shape: int) -> None:
        rest, self._is_partial = divmod(shape, 2)
        self._operation, self._before_kind = divmod(rest, 3)
        self._changes = changes
        self._before = self._tuples(changes.before)
        self._after = self._tuples(changes.after)

    def _tuples(self, cells: Sequence[Cells]) -> _Tuples:
        return _Tuples(self._changes.relation.columns, cells)

    def lines(self, source: str) -> _Lines:
        relation, positions = self._changes.relation, self._changes.positions
        everything = list(range(len(relation.columns)))
        marked = [place for place in everything if relation.columns[place].in_identity]
        before: list[Part] = [b"null"]
        if self._before_kind != _NO_BEFORE:
            sent = everything if self._before_kind == _FULL_BEFORE else marked
            before = self._objects(self._before, sent)
        after: list[Part] = [b"null"]
        if self._operation != DELETE:
            after = self._objects(self._after, everything)
        parts: list[Part] = [
            b'{"op":"%b","schema":%b,"table":%b,"commit_lsn":"'
            % (_OPERATIONS[self._operation], *map(json_string, relation.table)),
            *_position_parts(positions, source),
            b',"key":',
            *self._key(_key_places(relation)),
            b',"before":',
            *before,
            b',"after":',
            *after,
            b',"unchanged":[',
            *self._unchanged(),
            b"]}\n",
        ]
        text = join(parts, len(self._changes))
        return _Lines(positions.commit_lsn, positions.ordinal, text)

    def _objects(self, tuples: _Tuples, places: Sequence[int]) -> list[Part]:
        if self._is_partial:
            return tuples.known_objects(places, len(self._changes))
        return tuples.objects(places)

    def _key(self, places: Sequence[int]) -> list[Part]:
        if not places:
            return [b"null"]
        if self._operation == DELETE:
            return self._objects(self._before, places)
        if not self._is_partial:
            return self._objects(self._after, places)
        # A key column can be TOASTed too; the server then sends the old key, where it stands.
        known = [
            after.where(~after.is_unchanged, before)
            for after, before in zip(self._after.cells, self._before.cells, strict=True)
        ]
        return self._objects(self._tuples(known), places)

    def _unchanged(self) -> list[Part]:
        if not self._is_partial:
            return []
        names = []
        for column, cells in zip(self._changes.relation.columns, self._after.cells, strict=True):
            if bool(cells.is_unchanged.any()):
                name = pa.scalar(json_string(column.name), pa.binary())
                names.append((pa.repeat(name, len(self._changes)), cells.is_unchanged))
        return [comma_list(names)] if names else []


def _key_places(relation: Relation) -> list[int]:
    """Which columns tell a row; none where every one is marked, which is not a key."""
    if relation.replica_identity == "f":
        return []
    return [place for place, column in enumerate(relation.columns) if column.in_identity]


def _position_parts(positions: Positions, source: str) -> list[Part]:
    """`<commit_lsn>","ordinal":…,"source":"…"`. Most of it is the same within a transaction."""
    lsn = positions.commit_lsn
    first = np.flatnonzero(np.concatenate(([True], lsn[1:] != lsn[:-1])))
    one = positions.take(first)
    lsn_text = lsn_texts(one.commit_lsn)
    rest = join(
        [
            b',"xid":',
            digits(one.xid),
            b',"committed_at":"',
            utc_times(one.committed_at),
            b'","source":' + json_string(source),
        ],
        len(first),
    )
    ordinal = digits(positions.ordinal)
    if len(first) == 1:
        return [lsn_text[0].as_py(), b'","ordinal":', ordinal, rest[0].as_py()]
    of_row = pa.array(np.repeat(np.arange(len(first)), np.diff(first, append=len(lsn))))
    return [lsn_text.take(of_row), b'","ordinal":', ordinal, rest.take(of_row)]
