"""Changes -> the events of Debezium's Postgres connector, as documents. How they are written, encoders say.

    before, after, source {…}, op, ts_ms      c(reate) u(pdate) d(elete) r(ead) t(runcate)

- `before` is what the server sent of the old row: nothing of an update that left the key alone, the key of a delete, the
  whole row with replica identity full. `after` is the new row; TOASTed values that were not sent are taken from the old
  row where that was sent, and are `UNAVAILABLE` elsewhere.
- An update that changes the key is two events: a delete with the old key, and a create with the new one.
- `source.lsn` is where the transaction committed; `source.sequence` is that, and the place within the transaction.
- `ts_ms` is when the transaction committed, so that an event is the same each time it is delivered; of a copied row, when
  it was copied.

Rows are grouped by op and by what is known of the old row, and each group is encoded at once. Pure: no file, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.cells import ABSENT, Index, Mask, gather
from penstock.changes.decode import Positions, TableChanges, TableTruncated
from penstock.changes.documents import (
    DOCUMENTS,
    documents,
    in_order,
    is_unidentified,
    key_places,
    key_texts,
    read_documents,
    row_ids,
)
from penstock.changes.encoded import any_unfit
from penstock.changes.pgoutput import DELETE, EPOCH_2000_UNIX_MICROSECONDS, INSERT, UPDATE
from penstock.changes.textcolumns import join, lsn_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.changes.copyrows import CopiedRows
    from penstock.changes.decode import Piece
    from penstock.changes.encoded import Encoded, EnvelopeEncoder
    from penstock.changes.pgoutput import Relation
    from penstock.changes.shares import Share
    from penstock.changes.textcolumns import Part
    from penstock.table import TableName

RECORDS = pa.schema(
    [
        *(
            pa.field("value", pa.large_binary(), nullable=False) if field.name == "value" else field
            for field in DOCUMENTS
        ),
        pa.field("record_key", pa.large_binary()),
        pa.field("refused", pa.string()),
    ]
)
"""The columns of a batch whose values are not penstock's JSON.

`record_key` is the key in the same form. `refused` says why a document cannot be written so, null where it can; then
`value` is penstock's JSON. A reason that is an error, code and all, concerns the whole table."""

NO_RECORDS = pa.RecordBatch.from_pylist([], RECORDS)


@dataclass(frozen=True)
class Moments:
    """Where events of one table are from: what is the same in all of them, and for each row its transaction."""

    name: str  # of the source
    database: str
    table: TableName  # as consumers know it
    snapshot: bool
    commit_lsn: npt.NDArray[np.uint64]
    ordinal: Index
    ts_us: Index
    xid: Index | None  # None of copied rows

    def __len__(self) -> int:
        return len(self.commit_lsn)

    @property
    def ts_ms(self) -> Index:
        """When it was, in milliseconds."""
        milliseconds: Index = self.ts_us // 1000
        return milliseconds

    def transactions(self) -> tuple[Moments, pa.Array | None]:
        """One row for each transaction, and which of them each row is of; None where there is one only."""
        lsn = self.commit_lsn
        first = np.flatnonzero(np.concatenate(([True], lsn[1:] != lsn[:-1])))
        one = replace(
            self,
            commit_lsn=lsn[first],
            ordinal=self.ordinal[first],
            ts_us=self.ts_us[first],
            xid=None if self.xid is None else self.xid[first],
        )
        if len(first) == 1:
            return one, None
        of_row = np.repeat(np.arange(len(first)), np.diff(first, append=len(lsn)))
        return one, pa.array(of_row)


@dataclass(frozen=True)
class Events:
    """Rows that become events of one kind: `before` are the places of columns known of the old row."""

    op: str
    operation: str
    changes: TableChanges
    before: tuple[int, ...] | None = None
    has_after: bool = True
    id_suffix: bytes = b""


def seen_through(relation: Relation) -> Relation:
    """The table with the types below its domains, where somebody knows them: values are written as those are."""
    below = {oid: rest for oid, *rest in relation.injected.domains} if relation.injected else {}
    if not below:
        return relation
    columns = tuple(
        replace(column, type_oid=below[column.type_oid][0], type_modifier=below[column.type_oid][1])
        if column.type_oid in below
        else column
        for column in relation.columns
    )
    return replace(relation, columns=columns)


def events(changes: TableChanges, share: Share | None = None) -> list[Events]:
    """The rows of a table by the kind of their events. A delete stands before a create of the same row.

    With a share, events whose own key belongs to it; rows are those that have a key of it, or had one.
    """
    marked = tuple(key_places(changes.relation))
    everything = tuple(range(len(changes.relation.columns)))
    is_full = changes.has_full_before
    is_update = changes.operation == UPDATE
    is_moved = _moved(changes, is_update, marked)
    is_left = is_come = is_moved
    if share is not None and bool(is_moved.any()):
        is_left = is_moved & share.has_keys(changes, before=True)
        is_come = is_moved & share.has_keys(changes)
    if bool(is_update.any()):
        changes = _completed(changes, marked)
    is_delete = changes.operation == DELETE
    kinds: list[tuple[Mask, Events]] = [
        (
            is_left & ~is_full,
            Events("d", "delete", changes, marked, has_after=False, id_suffix=b":delete"),
        ),
        (
            is_left & is_full,
            Events("d", "delete", changes, everything, has_after=False, id_suffix=b":delete"),
        ),
        (is_come, Events("c", "insert", changes)),
        (changes.operation == INSERT, Events("c", "insert", changes)),
        (is_update & ~is_moved & ~is_full, Events("u", "update", changes)),
        (is_update & ~is_moved & is_full, Events("u", "update", changes, everything)),
        (is_delete & ~is_full, Events("d", "delete", changes, marked, has_after=False)),
        (is_delete & is_full, Events("d", "delete", changes, everything, has_after=False)),
    ]
    found = []
    for mask, kind in kinds:
        rows = np.flatnonzero(mask)
        if len(rows):
            found.append(
                kind if len(rows) == len(changes) else replace(kind, changes=changes.take(rows))
            )
    return found


def _moved(changes: TableChanges, is_update: Mask, marked: Sequence[int]) -> Mask:
    """Updates whose key changed. The server sends the old key also where a part of it is TOASTed."""
    moved = np.zeros(len(changes), np.bool_)
    if not marked or not bool(is_update.any()):
        return moved
    was_sent = is_update & (changes.before[marked[0]].kind != ABSENT)
    rows = np.flatnonzero(was_sent)
    for place in marked if len(rows) else ():
        before, after = changes.before[place].take(rows), changes.after[place].take(rows)
        differs = pc.fill_null(pc.not_equal(gather(before), gather(after)), False)
        moved[rows] |= np.asarray(differs) & ~after.is_unchanged
    return moved


def _completed(changes: TableChanges, marked: Sequence[int]) -> TableChanges:
    """New rows with what is known of values that were not sent, from the old ones."""
    after = list(changes.after)
    for place, (new, old) in enumerate(zip(changes.after, changes.before, strict=True)):
        known = changes.has_full_before | (old.is_value if place in marked else False)
        mask = new.is_unchanged & known
        if bool(mask.any()):
            after[place] = new.where(~mask, old)
    return replace(changes, after=tuple(after))


@dataclass(frozen=True)
class Origin:
    """What events say of their source beside their table."""

    name: str
    database: str


def change_records(
    changes: TableChanges,
    origin: Origin,
    target: TableName,
    encoder: EnvelopeEncoder,
    share: Share | None = None,
) -> list[pa.RecordBatch]:
    """The changes of a table, or of a share of them, as batches of `RECORDS`, one after another."""
    return [_records(each, origin, target, encoder) for each in events(changes, share)]


def _records(
    kind: Events, origin: Origin, target: TableName, encoder: EnvelopeEncoder
) -> pa.RecordBatch:
    changes = kind.changes
    positions, relation = changes.positions, changes.relation
    moments = _moments(positions, origin, target)
    everything = range(len(relation.columns))
    before = None if kind.before is None else encoder.row(changes.before, kind.before)
    after = encoder.row(changes.after, everything) if kind.has_after else None
    places = key_places(relation)
    source_cells = changes.after if kind.has_after else changes.before
    key = encoder.key(source_cells, places) if places else None
    text = join(
        encoder.event(kind.op, _parts(before), _parts(after), moments),
        len(changes),
        encoder.null,
    )
    ids = join([row_ids(positions, origin.name), kind.id_suffix], len(changes))
    unfit = any_unfit([each.unfit for each in (before, after, key) if each], len(changes))
    columns = {
        "id": ids.cast(pa.binary()).view(pa.string()),
        "key": key_texts(relation, source_cells) if places else None,
        "value": text.cast(pa.large_binary()),
        "record_key": join(key.parts, len(changes)).cast(pa.large_binary()) if key else None,
        "committed_at": positions.committed_at,
    }
    batch = record_batch(columns, relation, kind.operation, positions.commit_lsn, positions.ordinal)
    return _without_unfit(batch, unfit, lambda rows: documents([changes.take(rows)], origin.name))


def _parts(encoded: Encoded | None) -> list[Part] | None:
    return None if encoded is None else encoded.parts


def copied_records(
    relation: Relation,
    rows: CopiedRows,
    moments: Moments,
    encoder: EnvelopeEncoder,
    copy_id: str,
) -> pa.RecordBatch:
    """Copied rows as a batch of `RECORDS`, in their own order."""
    if not len(rows) or is_unidentified(relation):
        return NO_RECORDS
    count = len(rows)
    after = encoder.row(rows.cells, range(len(relation.columns)))
    places = key_places(relation)
    key = encoder.key(rows.cells, places) if places else None
    text = join(encoder.event("r", None, after.parts, moments), count, encoder.null)
    columns = {
        "id": copied_ids(moments.name, moments.commit_lsn, copy_id, relation.oid, moments.ordinal),
        "key": key_texts(relation, rows.cells) if places else None,
        "value": text.cast(pa.large_binary()),
        "record_key": join(key.parts, count).cast(pa.large_binary()) if key else None,
        "committed_at": None,
    }
    batch = record_batch(columns, relation, "read", moments.commit_lsn, moments.ordinal)
    unfit = any_unfit([after.unfit, key.unfit if key else None], count)
    place = (int(moments.commit_lsn[0]), int(moments.ordinal[0]), moments.name, copy_id)
    return _without_unfit(
        batch, unfit, lambda some: read_documents(relation, rows, *place).take(pa.array(some))
    )


def copied_ids(
    source: str, commit_lsn: npt.NDArray[np.uint64], copy_id: str, oid: int, ordinal: Index
) -> pa.Array:
    """What identifies the documents of copied rows, all of one snapshot."""
    lsn = lsn_texts(commit_lsn[:1])[0].as_py()
    start = b"%b:%b:read:%b:%d:" % (source.encode(), lsn, copy_id.encode(), oid)
    numbers = pa.array(ordinal).cast(pa.string()).cast(pa.binary())
    return join([start, numbers], len(ordinal)).cast(pa.binary()).view(pa.string())


def truncate_record(
    piece: TableTruncated,
    origin: Origin,
    target: TableName,
    encoder: EnvelopeEncoder,
    like: pa.RecordBatch,
) -> pa.RecordBatch:
    """The event of a table that was emptied; `like` is its document."""
    positions = Positions(
        np.array([piece.commit_lsn], np.uint64),
        np.array([piece.ordinal], np.int64),
        np.array([piece.committed_at], np.int64),
        np.array([piece.xid], np.int64),
    )
    parts = encoder.event("t", None, None, _moments(positions, origin, target))
    columns = [*like.columns, pa.nulls(1, pa.large_binary()), pa.nulls(1, pa.string())]
    columns[RECORDS.get_field_index("value")] = join(parts, 1, encoder.null).cast(pa.large_binary())
    return pa.RecordBatch.from_arrays(columns, schema=RECORDS)


def as_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Documents of penstock's own among records of another form."""
    return refused_records(batch, None)


def refused_records(batch: pa.RecordBatch, reason: str | None) -> pa.RecordBatch:
    """Documents that cannot be written, all for one reason."""
    count = len(batch)
    columns = list(batch.columns)
    place = RECORDS.get_field_index("value")
    columns[place] = columns[place].cast(pa.large_binary())
    reasons = pa.repeat(pa.scalar(reason, pa.string()), count)
    return pa.RecordBatch.from_arrays(
        [*columns, pa.nulls(count, pa.large_binary()), reasons], schema=RECORDS
    )


def records_in_order(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """All of them, by commit and place in it."""
    return in_order(list(batches)) if batches else NO_RECORDS


def truncates_and_tables(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces that become events."""
    return [
        piece
        for piece in pieces
        if isinstance(piece, TableTruncated) or (len(piece) and not is_unidentified(piece.relation))
    ]


def _moments(positions: Positions, origin: Origin, target: TableName) -> Moments:
    ts_us = positions.committed_at + EPOCH_2000_UNIX_MICROSECONDS
    return Moments(
        origin.name,
        origin.database,
        target,
        False,
        positions.commit_lsn,
        positions.ordinal,
        ts_us,
        positions.xid,
    )


def record_batch(
    columns: dict[str, pa.Array | Index | None],
    relation: Relation,
    operation: str,
    commit_lsn: npt.NDArray[np.uint64],
    ordinal: Index,
) -> pa.RecordBatch:
    """A batch of `RECORDS` of one table and operation; a column that is not given is null."""
    count = len(commit_lsn)
    committed_at = columns["committed_at"]
    same = {"schema": relation.table.schema, "table": relation.table.name, "op": operation}
    made = {
        **columns,
        **{name: pa.repeat(pa.scalar(text, pa.string()), count) for name, text in same.items()},
        "commit_lsn": pa.array(commit_lsn, pa.uint64()),
        "ordinal": pa.array(ordinal, pa.int64()),
        "committed_at": None
        if committed_at is None
        else pa.array(committed_at + EPOCH_2000_UNIX_MICROSECONDS).view(
            RECORDS.field("committed_at").type
        ),
    }
    arrays = [
        pa.nulls(count, field.type) if made.get(field.name) is None else made[field.name]
        for field in RECORDS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS)


def _without_unfit(
    batch: pa.RecordBatch, unfit: Mask, documents_of: Callable[[Index], pa.RecordBatch]
) -> pa.RecordBatch:
    """Rows with a value that the format has no form for are refused, and say so in penstock's JSON."""
    if not bool(unfit.any()):
        return batch
    rows = np.flatnonzero(unfit)
    plain = documents_of(rows)
    reason = "a value has no form in this format: see the table of types"
    columns = {name: batch.column(name) for name in RECORDS.names}
    places = pa.array(np.maximum(np.cumsum(unfit) - 1, 0))
    mask = pa.array(unfit)
    texts = plain.column("value").cast(pa.large_binary())
    columns["value"] = pc.if_else(mask, texts.take(places), columns["value"])
    columns["refused"] = pc.if_else(mask, reason, pa.scalar(None, pa.string()))
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=RECORDS)
