"""Read Debezium's envelopes as a consumer does, whichever way they are written, and play them back."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

from penstock.changes.decode import TableTruncated
from penstock.changes.documents import documents
from penstock.changes.envelope import Origin, change_records, records_in_order, truncate_record

ORIGIN = Origin("shop", "shopdb")


def plain_schema(schema: str) -> Any:
    """A schema without logical types: values as they were written. Python has no date before the year 1."""
    return fastavro.parse_schema(_without_meaning(json.loads(schema)))


def _without_meaning(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_meaning(each) for each in schema]
    if isinstance(schema, dict):
        kept = {
            key: value
            for key, value in schema.items()
            if key not in ("logicalType", "precision", "scale")
        }
        return {
            key: _without_meaning(value) if key in ("type", "fields", "items") else value
            for key, value in kept.items()
        }
    return schema


def read_avro(raw: bytes, schema: Any) -> Any:
    """One value behind the header of five bytes; all of it is read."""
    assert raw[0] == 0
    stream = io.BytesIO(raw[5:])
    found = fastavro.schemaless_reader(stream, schema)
    assert stream.read() == b""
    return found


def records(pieces: list[Any], encoder_of: Any) -> list[dict[str, Any]]:
    """The rows of the batch that pieces become, of tables that `encoder_of` makes encoders for."""
    batches = []
    for piece in pieces:
        encoder = encoder_of(piece.relation)
        if isinstance(piece, TableTruncated):
            like = documents([piece], ORIGIN.name)
            batches.append(truncate_record(piece, ORIGIN, piece.relation.table, encoder, like))
        else:
            batches += change_records(piece, ORIGIN, piece.relation.table, encoder)
    return list(records_in_order(batches).to_pylist())
