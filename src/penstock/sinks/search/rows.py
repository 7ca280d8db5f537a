"""Changes of a table -> the documents of its rows: `_id` and source for each, columns at a time. Pure.

    op        record_key   value
    insert    _id          {"<field>":…,…,"_position":<version>}; and "_table" where all tables of a schema are searched as one,
                           "_ordinal" where other changes of the transaction have the same version
    update    _id          the same; where values were not sent, {"_unchanged":["<field>",…],…}
    delete    _id of old   empty
    read      _id          as an insert's

An update that changes the key is an insert of the new document, with `"_moved":"<old _id>"` where values were not sent, and a
delete of the old one. With replica identity full the old row brings what was not sent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.cells import ABSENT, gather
from penstock.changes.documents import DOCUMENTS, is_unidentified, key_places, key_texts, row_ids
from penstock.changes.envelope import NO_RECORDS, RECORDS
from penstock.changes.jsonvalues import json_column, json_string
from penstock.changes.pgoutput import DELETE, EPOCH_2000_UNIX_MICROSECONDS, INSERT, UPDATE
from penstock.changes.textcolumns import comma_list, digits, join, lsn_texts
from penstock.sinks.search.names import MOVED, ORDINAL, POSITION, TABLE, UNCHANGED, document_ids
from penstock.sinks.search.versions import is_coarse, versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.changes.cells import Cells, Index, Mask
    from penstock.changes.copyrows import CopiedRows
    from penstock.changes.decode import TableChanges
    from penstock.changes.pgoutput import Relation
    from penstock.changes.shares import Share
    from penstock.changes.textcolumns import Part
    from penstock.sinks.documents.format import CopiedAt
    from penstock.sinks.search.mapping import Mapper
    from penstock.table import TableName

_TEXT = 25
# At the end of the id of the document that a row which moved has left.
DELETE_HALF = b":delete"


def identified(relation: Relation) -> Relation | None:
    """The table with the columns marked that identify its rows; None where nothing does."""
    if is_unidentified(relation) or relation.replica_identity == "n":
        return None
    if relation.replica_identity != "f":
        return relation if key_places(relation) else None
    injected = relation.injected
    if injected is None or not injected.identity:
        return None
    columns = tuple(
        replace(column, in_identity=column.id in injected.identity) for column in relation.columns
    )
    return replace(relation, replica_identity="d", columns=columns)


@dataclass(frozen=True)
class RowWriter:
    """Writes the documents of one table; `relation` is `identified`."""

    relation: Relation
    mapper: Mapper
    source: str  # the name of the source
    table: TableName  # what the table is called where the documents go

    def changes(self, changes: TableChanges, share: Share | None = None) -> list[pa.RecordBatch]:
        """The changes as batches of `RECORDS`: those documents whose keys belong to a share."""
        places = key_places(self.relation)
        is_update = changes.operation == UPDATE
        is_moved = _moved(changes, is_update, places)
        after = _completed(changes, places)
        is_partial = np.zeros(len(changes), np.bool_)
        for cells in after:
            is_partial |= cells.is_unchanged
        is_delete = changes.operation == DELETE
        is_written, is_left = ~is_delete, is_moved
        if share is not None:
            is_written = is_written & share.has_keys(changes)
            is_left = is_left & share.has_keys(changes, before=True)
        found = []
        for mask, is_whole in ((is_written & ~is_partial, True), (is_written & is_partial, False)):
            if bool(mask.any()):
                rows = np.flatnonzero(mask)
                some = replace(changes, after=after).take(rows)
                found += self._written(some, is_moved[rows], is_whole=is_whole)
        # After what is written: of a row that has moved, what was not sent is read from where it was.
        for mask, suffix in ((is_delete, b""), (is_left, DELETE_HALF)):
            if bool(mask.any()):
                found.append(self._deleted(changes.take(np.flatnonzero(mask)), suffix))
        return found

    def _written(
        self, changes: TableChanges, is_moved: Mask, *, is_whole: bool
    ) -> list[pa.RecordBatch]:
        """Documents of rows as they are after a change; inserts and updates apart."""
        count, places = len(changes), key_places(self.relation)
        positions = changes.positions
        version = digits(versions(positions.commit_lsn, positions.ordinal))
        prefix: list[Part] = []
        if is_whole:
            fields, unfit = self._fields(changes.after, count)
        else:
            fields, unfit = self._known_fields(changes.after, count)
            prefix = [*self._unchanged(changes.after, count), *self._moves(changes, is_moved)]
        parts: list[Part] = [
            b"{",
            *prefix,
            *fields,
            self._end(),
            version,
            *_ordinals(positions.ordinal),
            b"}",
        ]
        batch = self._batch(
            join([row_ids(positions, self.source)], count),
            changes.after,
            join(parts, count),
            (positions.commit_lsn, positions.ordinal, positions.committed_at),
            _refusals(unfit, count),
        )
        names = pa.array(np.where(changes.operation == INSERT, "insert", "update"))
        place = RECORDS.get_field_index("op")
        del places
        return [batch.set_column(place, RECORDS.field(place), names.cast(pa.string()))]

    def copied(self, rows: CopiedRows, at: CopiedAt) -> pa.RecordBatch:
        """Copied rows as documents."""
        count = len(rows)
        if not count:
            return NO_RECORDS
        lsn = np.full(count, at.commit_lsn, np.uint64)
        ordinals = at.first_ordinal + np.arange(count, dtype=np.int64)
        start = b"%b:%b:read:%b:%d:" % (
            self.source.encode(),
            lsn_texts(lsn[:1])[0].as_py(),
            at.copy_id.encode(),
            self.relation.oid,
        )
        fields, unfit = self._fields(rows.cells, count)
        version = b"%d" % copied_version(at.commit_lsn)
        text = join([b"{", *fields, self._end(), version, b"}"], count)
        return self._batch(
            join([start, digits(ordinals)], count),
            rows.cells,
            text,
            (lsn, ordinals, None),
            _refusals(unfit, count),
            op="read",
        )

    def _deleted(self, changes: TableChanges, suffix: bytes) -> pa.RecordBatch:
        positions, count = changes.positions, len(changes)
        return self._batch(
            join([row_ids(positions, self.source), suffix], count),
            changes.before,
            pa.repeat(pa.scalar(b"", pa.large_binary()), count),
            (positions.commit_lsn, positions.ordinal, positions.committed_at),
            None,
            op="delete",
        )

    # --- fields --------------------------------------------------------------------------------

    def _fields(self, cells: Sequence[Cells], count: int) -> tuple[list[Part], Mask | None]:
        if any(map(self.mapper.is_vector, self.relation.columns)):
            return self._known_fields(cells, count)
        parts: list[Part] = []
        unfit: Mask | None = None
        for column, each in zip(self.relation.columns, cells, strict=True):
            values, bad = self.mapper.values(column, gather(each))
            parts += [b"," if parts else b"", self._name(column), b":", values]
            unfit = _either(unfit, bad)
        del count
        return parts, unfit

    def _known_fields(self, cells: Sequence[Cells], count: int) -> tuple[list[Part], Mask | None]:
        items = []
        unfit: Mask | None = None
        for column, each in zip(self.relation.columns, cells, strict=True):
            values, bad = self.mapper.values(column, gather(each))
            is_there = ~each.is_unchanged
            if self.mapper.is_vector(column):
                is_there = is_there & np.asarray(values.is_valid())
            items.append((join([self._name(column), b":", values], count), is_there))
            unfit = _either(unfit, bad)
        return [comma_list(items)], unfit

    def _unchanged(self, cells: Sequence[Cells], count: int) -> list[Part]:
        names = [
            (pa.repeat(pa.scalar(self._name(column), pa.binary()), count), each.is_unchanged)
            for column, each in zip(self.relation.columns, cells, strict=True)
            if bool(each.is_unchanged.any())
        ]
        return [b'"%b":[' % UNCHANGED.encode(), comma_list(names), b"],"]

    def _moves(self, changes: TableChanges, is_moved: Mask) -> list[Part]:
        if not bool(is_moved.any()):
            return []
        encoded = json_column(_TEXT, self._ids(changes.before))
        whole = join(
            [
                b'"%b":' % MOVED.encode(),
                encoded.prefix,
                encoded.values,
                encoded.suffix,
                b",",
            ],
            len(changes),
        )
        return [pc.if_else(pa.array(is_moved), whole, pa.scalar(b"", whole.type))]

    def _end(self) -> bytes:
        """What stands behind the fields of every document, up to its version."""
        start = b',"%b":' % POSITION.encode()
        if not self.mapper.names_table:
            return start
        return b',"%b":%b%b' % (TABLE.encode(), json_string(self.table.name), start)

    def _name(self, column: Any) -> bytes:
        return json_string(self.mapper.field(column, self.relation.oid))

    def _ids(self, cells: Sequence[Cells]) -> pa.Array:
        values = [gather(cells[place]) for place in key_places(self.relation)]
        # A key has no NULL; one that nobody knows would be one.
        return document_ids([pc.fill_null(each, b"") for each in values])

    def _batch(
        self,
        ids: pa.Array,
        cells: Sequence[Cells],
        text: pa.Array,
        positions: tuple[Any, Any, Any],
        refused: pa.Array | None,
        op: str = "",
    ) -> pa.RecordBatch:
        commit_lsn, ordinal, committed_at = positions
        count = len(text)
        at = DOCUMENTS.field("committed_at").type
        made = {
            "id": ids.cast(pa.binary()).view(pa.string()),
            "key": key_texts(self.relation, cells),
            "value": text.cast(pa.large_binary()),
            "schema": pa.repeat(pa.scalar(self.relation.table.schema, pa.string()), count),
            "table": pa.repeat(pa.scalar(self.relation.table.name, pa.string()), count),
            "op": pa.repeat(pa.scalar(op, pa.string()), count),
            "commit_lsn": pa.array(commit_lsn, pa.uint64()),
            "ordinal": pa.array(ordinal, pa.int64()),
            "committed_at": pa.nulls(count, at)
            if committed_at is None
            else pa.array(committed_at + EPOCH_2000_UNIX_MICROSECONDS).view(at),
            "record_key": self._ids(cells),
            "refused": pa.nulls(count, pa.string()) if refused is None else refused,
        }
        return pa.RecordBatch.from_arrays([made[name] for name in RECORDS.names], schema=RECORDS)


def _ordinals(ordinal: Index) -> list[Part]:
    """The place in the transaction, where the version does not say it."""
    is_told = is_coarse(ordinal)
    if not bool(is_told.any()):
        return []
    texts = join([b',"%b":' % ORDINAL.encode(), digits(ordinal)], len(ordinal))
    return [pc.if_else(pa.array(is_told), texts, pa.scalar(b"", texts.type))]


def copied_version(commit_lsn: int) -> int:
    """The version of a copied row: that of the first change at its position, which may overwrite it."""
    found = versions(np.array([commit_lsn], np.uint64), np.zeros(1, np.int64))
    return int(found[0])


def _moved(changes: TableChanges, is_update: Mask, places: Sequence[int]) -> Mask:
    """Updates whose key changed. The server sends the old key also where a part of it is TOASTed."""
    moved = np.zeros(len(changes), np.bool_)
    if not bool(is_update.any()):
        return moved
    was_sent = is_update & (changes.before[places[0]].kind != ABSENT)
    rows = np.flatnonzero(was_sent)
    for place in places if len(rows) else ():
        before, after = changes.before[place].take(rows), changes.after[place].take(rows)
        differs = pc.fill_null(pc.not_equal(gather(before), gather(after)), False)
        moved[rows] |= np.asarray(differs) & ~after.is_unchanged
    return moved


def _completed(changes: TableChanges, places: Sequence[int]) -> tuple[Cells, ...]:
    """New rows with what is known of values that were not sent, from the old ones."""
    after = list(changes.after)
    for place, (new, old) in enumerate(zip(changes.after, changes.before, strict=True)):
        known = changes.has_full_before & ~old.is_unchanged
        if place in places:
            known = known | old.is_value
        mask = new.is_unchanged & known
        if bool(mask.any()):
            after[place] = new.where(~mask, old)
    return tuple(after)


def _either(one: Mask | None, other: Mask | None) -> Mask | None:
    if one is None or other is None:
        return other if one is None else one
    return one | other


def _refusals(unfit: Mask | None, count: int) -> pa.Array | None:
    if unfit is None:
        return None
    reason = pa.scalar("an array of several dimensions, or with bounds of its own", pa.string())
    del count
    return pc.if_else(pa.array(unfit), reason, pa.scalar(None, pa.string()))


def partial(value: bytes) -> tuple[list[str], str | None, bytes]:
    """Of a document that lacks values: which fields, the old id where it has moved, and the rest of its text."""
    lead = b'{"%b":' % UNCHANGED.encode()
    decoder = json.JSONDecoder()
    text = value.decode(errors="surrogatepass")
    names, end = decoder.raw_decode(text, len(lead))
    moved: str | None = None
    mark = f',"{MOVED}":'
    if text.startswith(mark, end):
        moved, end = decoder.raw_decode(text, end + len(mark))
    rest = "{" + text[end + 1 :]
    return names, moved, rest.encode(errors="surrogatepass")
