"""Changes -> JSON documents in source order, as Arrow batches. All rows of a table at once.

    {"id", "op", "schema", "table", "commit_lsn", "ordinal", "xid", "committed_at", "source",
     "key": {…} | null, "before": {…} | null, "after": {…} | null, "unchanged": ["col", …]}

- `id` is unique in the pipeline, and the same each time the document is delivered:
    `<source>:<commit_lsn>:<ordinal>` of a row, `…:truncate:<oid>` of a table that was emptied,
    `…:schema:<number>:<table>` of a change of its shape (`schema_documents`),
    `<source>:<commit_lsn>:read:<copy>:<oid>:<ordinal>` of a row that was copied.
- `key` holds the columns of the replica identity: the new key of an insert or update, the old one of a
  delete. It is null where pgoutput names no key: replica identity full, or nothing (with `full` every
  column is marked, and `before` is what identifies the row).
- `before` holds what the server sent of the old row: the key, when an update changed it; the whole
  row, with replica identity full; null when it sent nothing.
- `after` is the new row, without the columns in `unchanged`: TOASTed values that the update left alone
  and the server did not send again.
- A truncate has neither key nor rows. One TRUNCATE of several tables gives one document for each, all
  with the same position.
- A row that was copied has the op `read` and has the form of an insert's, at the position of the snapshot.
  Nobody knows which transaction wrote it: `xid` and `committed_at` are null.

A batch has a row for each document (`DOCUMENTS`): the JSON itself, and beside it what says where it
belongs. There `key` is that of the document, or the primary key where the document has none and somebody knows it (`keyed`). How values are spelled: `jsonvalues`. Rows are grouped by the shape of their document, so that everything
but the values is a constant, and Arrow joins constants and columns. Pure: no file, no clock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.cells import ABSENT, Cells, Index, gather
from penstock.changes.decode import Positions, TableChanges, TableTruncated
from penstock.changes.jsonvalues import JsonColumn, json_column, json_string
from penstock.changes.pgoutput import (
    DELETE,
    EPOCH_2000_UNIX_MICROSECONDS,
    INSERT,
    UPDATE,
    Column,
)
from penstock.changes.textcolumns import (
    Part,
    comma_list,
    digits,
    join,
    lsn_texts,
    raw_bytes,
    utc_times,
)
from penstock.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.changes.copyrows import CopiedRows
    from penstock.changes.decode import Piece
    from penstock.changes.pgoutput import Relation

_NO_BEFORE, _KEY_BEFORE, _FULL_BEFORE = range(3)
_OPERATIONS = {INSERT: b"insert", UPDATE: b"update", DELETE: b"delete"}


DOCUMENTS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("key", pa.large_string()),  # a JSON object; null where the table has no key
        pa.field("value", pa.large_string(), nullable=False),  # the JSON, without a line end
        pa.field("schema", pa.string(), nullable=False),
        pa.field("table", pa.string(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("commit_lsn", pa.uint64(), nullable=False),
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("committed_at", pa.timestamp("us", tz="UTC")),  # null of a row that was copied
    ]
)
"""The columns of a batch of documents."""


def documents(pieces: Sequence[Piece], source: str) -> pa.RecordBatch:
    """The changes as documents, by commit and, within a transaction, by ordinal.

    Args:
        pieces: what `decode` found in slices that lie one after another.
        source: the name the documents carry.
    """
    batches: list[pa.RecordBatch] = []
    for piece in pieces:
        if isinstance(piece, TableTruncated):
            batches.append(_truncate_document(piece, source))
        elif len(piece) and not is_unidentified(piece.relation):
            batches += _table_documents(piece, source)
    return in_order(batches) if batches else NO_DOCUMENTS


NO_DOCUMENTS = pa.RecordBatch.from_pylist([], DOCUMENTS)


def read_documents(
    relation: Relation,
    rows: CopiedRows,
    commit_lsn: int,
    first_ordinal: int,
    source: str,
    copy_id: str = "",
) -> pa.RecordBatch:
    """Copied rows as documents, in their own order.

    Args:
        relation: the table as pgoutput describes it; its columns are those of the rows.
        rows: the rows.
        commit_lsn: of the snapshot they were read from.
        first_ordinal: of the first row; the others are numbered on from there.
        source: the name the documents carry.
        copy_id: which copy of the table it is; two may be of one position.
    """
    if not len(rows) or is_unidentified(relation):
        return NO_DOCUMENTS
    tuples = _Tuples(relation.columns, rows.cells)
    everything = list(range(len(relation.columns)))
    ordinals = first_ordinal + np.arange(len(rows), dtype=np.int64)
    lsn = str(Lsn(commit_lsn)).encode()
    numbers = digits(ordinals)
    ids = join(
        [b"%b:%b:read:%b:%d:" % (source.encode(), lsn, copy_id.encode(), relation.oid), numbers],
        len(rows),
    )
    marked = key_places(keyed(relation))
    own_key = join(tuples.objects(marked), len(rows)) if marked else None
    key = own_key if key_places(relation) else None
    parts: list[Part] = [
        b'{"id":"',
        ids,
        b'","op":"read","schema":%b,"table":%b,"commit_lsn":"%b","ordinal":'
        % (*map(json_string, relation.table), lsn),
        numbers,
        b',"xid":null,"committed_at":null,"source":' + json_string(source) + b',"key":',
        b"null" if key is None else key,
        b',"before":null,"after":',
        *tuples.objects(everything),
        b',"unchanged":[]',
        *metadata(relation, np.full(len(rows), commit_lsn, np.uint64), ordinals),
        b"}",
    ]
    text = join(parts, len(rows))
    positions = (np.full(len(rows), commit_lsn, np.uint64), ordinals, None)
    return _batch(ids, own_key, text, relation, "read", positions)


def is_unidentified(relation: Relation) -> bool:
    """Whether documents are to say what identifies a row, and nothing does: then there are none."""
    return relation.injected is not None and relation.injected.identity == ()


def metadata(relation: Relation, commit_lsn: npt.NDArray[np.uint64], ordinal: Index) -> list[Part]:
    """What is injected, as a field of every document."""
    injected = relation.injected
    if injected is None or not injected.in_documents:
        return []
    fields: dict[str, Any] = {"table_id": str(injected.table_id)}
    if injected.has_column_ids:
        fields["column_ids"] = {
            column.name: f"{injected.table_id}-{column.id}"
            for column in relation.columns
            if column.id
        }
    if injected.identity is not None:
        fields["identity"] = [f"{injected.table_id}-{number}" for number in injected.identity]
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    if not injected.has_version:
        return [b',"metadata":', text]
    version = [_padded(commit_lsn.astype(np.int64)), b"-", _padded(ordinal)]
    return [b',"metadata":', text[:-1], b',"version":"', *version, b'"}']


def _padded(numbers: Index) -> pa.Array:
    """In the order of the numbers, also as text."""
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width=19, padding="0").cast(
        pa.binary()
    )


def document(value: Mapping[str, Any], committed_at: int) -> pa.RecordBatch:
    """One document that is no row, by its JSON; `committed_at` in microseconds since 2000-01-01."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    columns = {
        "id": value["id"],
        "key": None,
        "value": text,
        "schema": value["schema"],
        "table": value["table"],
        "op": value["op"],
        "commit_lsn": int(Lsn.parse(value["commit_lsn"])),
        "ordinal": value["ordinal"],
        "committed_at": committed_at + EPOCH_2000_UNIX_MICROSECONDS,
    }
    return pa.RecordBatch.from_pylist([columns], DOCUMENTS)


def json_lines(batch: pa.RecordBatch) -> memoryview:
    """The documents one after another, each with a line end: UTF-8."""
    if not len(batch):
        return memoryview(b"")
    return raw_bytes(join([batch.column("value").cast(pa.large_binary()), b"\n"], len(batch)))


def _batch(
    ids: pa.Array,
    key: pa.Array | None,
    text: pa.Array,
    relation: Relation,
    operation: str,
    positions: tuple[npt.NDArray[np.uint64], Index, Index | None],
) -> pa.RecordBatch:
    """Rows of one table and operation; what is the same in all of them is given once."""
    commit_lsn, ordinal, committed_at = positions
    count = len(text)
    columns = [
        ids.cast(pa.binary()).view(pa.string()),
        pa.nulls(count, pa.large_string()) if key is None else _large_string(key),
        _large_string(text),
        *(pa.repeat(pa.scalar(each, pa.string()), count) for each in (*relation.table, operation)),
        pa.array(commit_lsn, pa.uint64()),
        pa.array(ordinal, pa.int64()),
        pa.nulls(count, DOCUMENTS.field("committed_at").type)
        if committed_at is None
        else pa.array(committed_at + EPOCH_2000_UNIX_MICROSECONDS).view(
            DOCUMENTS.field("committed_at").type
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=DOCUMENTS)


def _large_string(text: pa.Array) -> pa.Array:
    """The same bytes as text: JSON that is made here is UTF-8."""
    return text.cast(pa.large_binary()).view(pa.large_string())


def change_count(pieces: Sequence[Piece]) -> int:
    """How many documents the changes give."""
    return sum(1 if isinstance(piece, TableTruncated) else len(piece) for piece in pieces)


def in_order(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """All documents by commit and place in it; those of one place stay as they are. At least one batch."""
    if len(batches) == 1:
        return batches[0]
    together = pa.concat_batches(batches)
    # Stable, so that the tables of one TRUNCATE stay in the statement's order.
    order = np.lexsort(
        (together.column("ordinal").to_numpy(), together.column("commit_lsn").to_numpy())
    )
    return together.take(pa.array(order))


def _truncate_document(piece: TableTruncated, source: str) -> pa.RecordBatch:
    lsn = str(Lsn(piece.commit_lsn))
    value = {
        "id": f"{source}:{lsn}:{piece.ordinal}:truncate:{piece.relation.oid}",
        "op": "truncate",
        "schema": piece.relation.table.schema,
        "table": piece.relation.table.name,
        "commit_lsn": lsn,
        "ordinal": piece.ordinal,
        "xid": piece.xid,
        "committed_at": utc_times(np.array([piece.committed_at], np.int64))[0].as_py().decode(),
        "source": source,
        "key": None,
        "before": None,
        "after": None,
        "unchanged": [],
    }
    return document(value, piece.committed_at)


def _table_documents(changes: TableChanges, source: str) -> list[pa.RecordBatch]:
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
        return [_Group(changes, found[0]).documents(source)]
    batches = []
    for one in found:
        rows = np.flatnonzero(shape == one)
        batches.append(_Group(changes.take(rows), one).documents(source))
    return batches


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

    def documents(self, source: str) -> pa.RecordBatch:
        relation, positions = self._changes.relation, self._changes.positions
        count = len(self._changes)
        everything = list(range(len(relation.columns)))
        marked = [place for place in everything if relation.columns[place].in_identity]
        before: list[Part] = [b"null"]
        if self._before_kind != _NO_BEFORE:
            sent = everything if self._before_kind == _FULL_BEFORE else marked
            before = self._objects(self._before, sent)
        after: list[Part] = [b"null"]
        if self._operation != DELETE:
            after = self._objects(self._after, everything)
        places, own_places = key_places(relation), key_places(keyed(relation))
        own_key = join(self._key(own_places), count) if own_places else None
        key = own_key if places else None
        where = _Where.of(positions, source)
        ids = where.ids(source, count)
        parts: list[Part] = [
            b'{"id":"',
            ids,
            b'","op":"%b","schema":%b,"table":%b,"commit_lsn":"'
            % (_OPERATIONS[self._operation], *map(json_string, relation.table)),
            where.lsn,
            b'","ordinal":',
            where.ordinal,
            where.rest,
            b',"key":',
            b"null" if key is None else key,
            b',"before":',
            *before,
            b',"after":',
            *after,
            b',"unchanged":[',
            *self._unchanged(),
            b"]",
            *metadata(relation, positions.commit_lsn, positions.ordinal),
            b"}",
        ]
        operation = _OPERATIONS[self._operation].decode()
        numbers = (positions.commit_lsn, positions.ordinal, positions.committed_at)
        return _batch(ids, own_key, join(parts, count), relation, operation, numbers)

    def _objects(self, tuples: _Tuples, places: Sequence[int]) -> list[Part]:
        if self._is_partial:
            return tuples.known_objects(places, len(self._changes))
        return tuples.objects(places)

    def _key(self, places: Sequence[int]) -> list[Part]:
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


def key_texts(
    relation: Relation, cells: Sequence[Cells], places: Sequence[int] | None = None
) -> pa.Array:
    """The keys of rows as JSON objects, as documents have them; of a table with a key, or that has one at `places`."""
    tuples = _Tuples(relation.columns, cells)
    marked = key_places(relation) if places is None else places
    return _large_string(join(tuples.objects(marked), len(cells[0])))


def row_ids(positions: Positions, source: str) -> pa.Array:
    """What identifies the documents of rows, by their positions."""
    return _Where.of(positions, source).ids(source, len(positions.ordinal))


def key_places(relation: Relation) -> list[int]:
    """Which columns identify a row; none where every one is marked, which is not a key."""
    if relation.replica_identity == "f":
        return []
    return [place for place, column in enumerate(relation.columns) if column.in_identity]


def keyed(relation: Relation) -> Relation:
    """The table with its primary key marked where pgoutput does not mark it, and somebody knows it."""
    injected = relation.injected
    if relation.replica_identity not in ("f", "n") or injected is None or not injected.primary_key:
        return relation
    if not {column.id for column in relation.columns}.issuperset(injected.primary_key):
        return relation  # a column of it does not come: generated, or left out by a rule
    columns = tuple(
        replace(column, in_identity=column.id in injected.primary_key)
        for column in relation.columns
    )
    return replace(relation, replica_identity="d", columns=columns)


@dataclass(frozen=True)
class _Where:
    """What documents say of their place: most of it is the same within a transaction."""

    lsn: Part
    ordinal: pa.Array
    rest: Part  # `,"xid":…,"committed_at":"…","source":"…"`

    @classmethod
    def of(cls, positions: Positions, source: str) -> _Where:
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
            return cls(lsn_text[0].as_py(), ordinal, rest[0].as_py())
        of_row = pa.array(np.repeat(np.arange(len(first)), np.diff(first, append=len(lsn))))
        return cls(lsn_text.take(of_row), ordinal, rest.take(of_row))

    def ids(self, source: str, count: int) -> pa.Array:
        """Of rows: positions identify them."""
        return join([source.encode() + b":", self.lsn, b":", self.ordinal], count)
