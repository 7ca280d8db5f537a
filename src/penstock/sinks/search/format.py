"""Changes as documents of rows, for a search server. Runs in tasks, where it also sees that indexes have the fields that they need."""

from __future__ import annotations

import base64
import logging
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock import vault
from penstock.changes.decode import TableTruncated
from penstock.changes.documents import documents
from penstock.changes.envelope import (
    NO_RECORDS,
    RECORDS,
    records_in_order,
    refused_records,
)
from penstock.errors import IndexMissing, PenstockError, RecordSchemaRefused
from penstock.sinks.documents.format import DocumentFormat
from penstock.sinks.search.indexes import Lost, Unfit, Wanted
from penstock.sinks.search.mapping import Mapper
from penstock.sinks.search.options import Fields
from penstock.sinks.search.rows import RowWriter, identified

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.changes.copyrows import CopiedRows
    from penstock.changes.decode import Piece
    from penstock.changes.envelope import Origin
    from penstock.changes.pgoutput import Relation
    from penstock.changes.shares import Share
    from penstock.sinks.documents.format import CopiedAt
    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.search.options import SearchOptions
    from penstock.table import TableName

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchFormat(DocumentFormat):
    """The rows themselves. Pickled without what people have said of the sink, passwords included."""

    content_type = "application/json"
    schema = RECORDS

    place: SinkPlace[SearchOptions]

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        text = base64.b64encode(pickle.dumps(self.place)).decode()
        return _unsealed, vault.seal(text)

    def documents(self, pieces: Sequence[Piece], origin: Origin) -> pa.RecordBatch:
        """Changes as documents; those of a table whose index cannot be made are marked with the reason."""
        return self._documents(pieces, origin, None)

    def documents_of_share(
        self, pieces: Sequence[Piece], origin: Origin, share: Share
    ) -> pa.RecordBatch:
        """Those whose own keys belong to a share: of a row that moves, each half is in that of its key.

        So one task alone writes a document. Versions could not say which of two tasks was later, in a long transaction.
        """
        own = (share.of_either_key(piece) for piece in pieces)
        return self._documents([piece for piece in own if piece is not None], origin, share)

    def _documents(
        self, pieces: Sequence[Piece], origin: Origin, share: Share | None
    ) -> pa.RecordBatch:
        found: list[pa.RecordBatch] = []
        tables: dict[TableName, list[Any]] = {}
        for piece in pieces:
            if isinstance(piece, TableTruncated):
                found.append(_as_records(documents([piece], origin.name)))
            elif len(piece) and identified(piece.relation) is not None:
                tables.setdefault(piece.relation.table, []).append(piece)
        relations = {piece.relation: None for some in tables.values() for piece in some}
        skipped = self._prepare(list(relations))
        mapper = Mapper.of(self.place.options)
        for table, some in tables.items():
            reason = skipped.get(table)
            for piece in some:
                if isinstance(reason, PenstockError):
                    found.append(refused_records(documents([piece], origin.name), str(reason)))
                elif reason is None:
                    relation = identified(piece.relation)
                    assert relation is not None
                    found += self._writer(relation, mapper, origin).changes(piece, share)
        return records_in_order(found)

    def _prepare(self, relations: Sequence[Relation]) -> dict[TableName, Exception]:
        """See that the indexes of tables have their fields; why one has not, or is to be made anew."""
        from penstock.sinks.search.parts import parts_of

        if not relations:
            return {}
        options = self.place.options
        failures: dict[TableName, Exception] = {}
        with parts_of(self.place) as parts:
            mapper, engine = Mapper.of(options), parts.engine
            wanted: dict[str, Wanted] = {}
            tables: dict[str, TableName] = {}
            for relation in relations:
                if options.fields is Fields.IDS and not all(each.id for each in relation.columns):
                    failures[relation.table] = _no_ids(relation)
                    continue
                alias = parts.alias(relation.table)
                properties = mapper.properties(relation, engine)
                if alias in wanted and tables[alias] != relation.table:
                    failures[relation.table] = parts.indexes.taken(alias, str(tables[alias]))
                    continue
                if alias in wanted:
                    properties = {**wanted[alias].properties, **properties}
                wanted[alias] = Wanted(properties, str(relation.table), relation.oid)
                tables[alias] = relation.table
            for alias, error in parts.indexes.ensure(wanted).items():
                table = tables[alias]
                failures[table] = error
                if isinstance(error, Unfit):
                    failures[table] = self._begin_anew(table, error)
        return failures

    def _begin_anew(self, table: TableName, error: Unfit) -> Exception:
        """Have a table copied into an index with the right fields; its changes are in that copy."""
        from penstock.sinks.search.parts import ask_for_copy

        if isinstance(error, Lost):
            return self._find_again(table, error)
        names = ", ".join(error.fields)
        if ask_for_copy(self.place, table):
            _log.warning("%s is copied anew: fields %s have another type now", table, names)
            return error
        return RecordSchemaRefused(
            f"fields {names} of its index have another type than the columns",
            str(table),
            "have the table copied anew: penstock tables PIPELINE.yml resync; or, where penstock or its"
            " file has changed and not the table, let numeric_as, json_as, point_as, range_as or vector_as say what it was",
        )

    def _find_again(self, table: TableName, error: Lost) -> Exception:
        """Have a table copied whose index somebody has removed, or searches under another name since `index:` changed."""
        from penstock.sinks.search.parts import ask_for_copy

        what = f"its index {error.index} is gone, or has lost its alias"
        if ask_for_copy(self.place, table):
            _log.warning("%s is copied anew: %s", table, what)
            return error
        return IndexMissing(
            f"{what}, and rows would be missing in another one",
            str(table),
            f"restore it; or have the table copied: penstock tables PIPELINE.yml resync {table}; or, to go on"
            f" without those rows, DELETE {error.note} at the server",
        )

    def copied(
        self, relation: Relation, rows: CopiedRows, origin: Origin, at: CopiedAt
    ) -> pa.RecordBatch:
        """Copied rows as documents; the index that they go into is made."""
        from penstock.sinks.search.parts import parts_of

        marked = identified(relation)
        if marked is None:
            return NO_RECORDS
        if self.place.options.fields is Fields.IDS and not all(each.id for each in marked.columns):
            raise _no_ids(relation)
        mapper = Mapper.of(self.place.options)
        with parts_of(self.place) as parts:
            properties = mapper.properties(marked, parts.engine)
            wish = Wanted(properties, str(relation.table), relation.oid)
            parts.indexes.begin_copy(parts.alias(relation.table), at.copy_id, wish)
        return self._writer(marked, mapper, origin).copied(rows, at)

    def _writer(self, relation: Relation, mapper: Mapper, origin: Origin) -> RowWriter:
        table = self.place.routes.of(relation.table) or relation.table
        return RowWriter(relation, mapper, origin.name, table)

    def shape_changes(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Documents of changes of tables, for the schema log and for what they mean to indexes."""
        return [_as_records(each) for each in batches]


def _unsealed(path: str, name: str) -> SearchFormat:
    # Of this process's own making on both sides, so that it may be pickled.
    return SearchFormat(pickle.loads(base64.b64decode(vault.unseal(path, name))))  # noqa: S301


def _as_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    count = len(batch)
    columns = list(batch.columns)
    place = RECORDS.get_field_index("value")
    columns[place] = columns[place].cast(pa.large_binary())
    return pa.RecordBatch.from_arrays(
        [*columns, pa.nulls(count, pa.large_binary()), pa.nulls(count, pa.string())],
        schema=RECORDS,
    )


def _no_ids(relation: Relation) -> PenstockError:
    return RecordSchemaRefused(
        "nobody knows the ids of its columns, and fields: ids needs them",
        str(relation.table),
        "let penstock reach the source's catalog, or write fields: names",
    )
