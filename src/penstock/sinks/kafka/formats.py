"""The forms of a record beside penstock's JSON: Debezium's envelope, as JSON and as Avro. Runs in tasks."""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from penstock.changes.avro import AvroEncoder, AvroSchemas
from penstock.changes.debezium import DebeziumEncoder, Decimals
from penstock.changes.decode import TableTruncated
from penstock.changes.documents import documents, keyed
from penstock.changes.envelope import (
    RECORDS,
    Moments,
    change_records,
    copied_records,
    records_in_order,
    refused_records,
    seen_through,
    truncate_record,
    truncates_and_tables,
)
from penstock.errors import RecordSchemaRefused
from penstock.sinks.documents.format import DocumentFormat
from penstock.table import NO_ROUTES, Routes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from penstock.changes.copyrows import CopiedRows
    from penstock.changes.decode import Piece
    from penstock.changes.encoded import EnvelopeEncoder
    from penstock.changes.envelope import Origin
    from penstock.changes.pgoutput import Relation
    from penstock.changes.shares import Share
    from penstock.sinks.documents.format import CopiedAt
    from penstock.sinks.documents.patterns import Pattern
    from penstock.sinks.kafka.registry import Registry
    from penstock.table import TableName


@dataclass(frozen=True)
class EnvelopeFormat(DocumentFormat):
    """Debezium's envelope, however it is written."""

    schema = RECORDS

    routes: Routes = NO_ROUTES

    @abstractmethod
    def encoder(self, relation: Relation, origin: Origin, target: TableName) -> EnvelopeEncoder:
        """Writes the events of a table.

        Raises:
            RecordSchemaRefused: the table cannot be written.
        """

    def documents(self, pieces: Sequence[Piece], origin: Origin) -> pa.RecordBatch:
        """Changes as records; those of a table that cannot be written are marked with the reason."""
        return self._documents(_keyed(pieces), origin, None)

    def documents_of_share(
        self, pieces: Sequence[Piece], origin: Origin, share: Share
    ) -> pa.RecordBatch:
        """Those whose own keys belong to a share: of a row that moves, the delete is in that of the old key."""
        own = (share.of_either_key(piece) for piece in _keyed(pieces))
        return self._documents([piece for piece in own if piece is not None], origin, share)

    def _documents(
        self, pieces: Sequence[Piece], origin: Origin, share: Share | None
    ) -> pa.RecordBatch:
        batches: list[pa.RecordBatch] = []
        for piece in truncates_and_tables(pieces):
            target = self._target(piece.relation)
            try:
                encoder = self.encoder(piece.relation, origin, target)
            except RecordSchemaRefused as error:
                own = piece if share is None else share.of(piece)
                if own is not None:
                    batches.append(refused_records(documents([own], origin.name), str(error)))
                continue
            if isinstance(piece, TableTruncated):
                like = documents([piece], origin.name)
                batches.append(truncate_record(piece, origin, target, encoder, like))
            else:
                batches += change_records(piece, origin, target, encoder, share)
        return records_in_order(batches)

    def copied(
        self, relation: Relation, rows: CopiedRows, origin: Origin, at: CopiedAt
    ) -> pa.RecordBatch:
        """Copied rows as records with the op `r`."""
        relation = seen_through(keyed(relation))
        count = len(rows)
        moments = Moments(
            origin.name,
            origin.database,
            self._target(relation),
            True,
            np.full(count, at.commit_lsn, np.uint64),
            at.first_ordinal + np.arange(count, dtype=np.int64),
            np.full(count, time.time_ns() // 1000, np.int64),
            None,
        )
        encoder = self.encoder(relation, origin, moments.table)
        return copied_records(relation, rows, moments, encoder, at.copy_id)

    def _target(self, relation: Relation) -> TableName:
        return self.routes.of(relation.table) or relation.table


def _keyed(pieces: Sequence[Piece]) -> list[Piece]:
    return [replace(piece, relation=seen_through(keyed(piece.relation))) for piece in pieces]


@dataclass(frozen=True)
class DebeziumFormat(EnvelopeFormat):
    """As JSON without schemas."""

    content_type: ClassVar[str] = "application/vnd.debezium+json"

    decimals: Decimals = Decimals.PRECISE

    def encoder(self, relation: Relation, origin: Origin, target: TableName) -> EnvelopeEncoder:
        """Needs nothing but the columns."""
        del origin, target
        return DebeziumEncoder(relation.columns, self.decimals)


@dataclass(frozen=True)
class AvroFormat(EnvelopeFormat):
    """As Avro in Confluent's wire format; `topics` and `registry` are always given."""

    content_type: ClassVar[str] = "application/vnd.confluent.avro"

    topics: Pattern | None = None
    registry: Registry | None = None

    def encoder(self, relation: Relation, origin: Origin, target: TableName) -> EnvelopeEncoder:
        """With the ids of the table's schemas; registers those that the registry does not have."""
        assert self.topics is not None
        assert self.registry is not None
        schemas = AvroSchemas.of(relation, origin.name, target)
        topic = self.topics.of(*target)
        key_id = 0
        if schemas.key is not None:
            key_id = self.registry.id_of(f"{topic}-key", schemas.key, str(relation.table))
        value_id = self.registry.id_of(f"{topic}-value", schemas.value, str(relation.table))
        return AvroEncoder(relation.columns, key_id, value_id)
