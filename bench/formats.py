"""How many documents a second each format makes of decoded changes, on one core; beside Avro row by row by fastavro.

.venv/bin/python bench/formats.py [ROWS]
"""

from __future__ import annotations

import io
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import fastavro

from penstock.changes.avro import AvroEncoder, AvroSchemas
from penstock.changes.debezium import DebeziumEncoder
from penstock.changes.documents import documents
from penstock.changes.envelope import Origin, change_records, records_in_order
from penstock.testing import changes, insert, relation, table, transaction

if TYPE_CHECKING:
    from collections.abc import Callable

COLUMNS = {
    "id": "int8",
    "customer": "int4",
    "status": "text",
    "total": "numeric",
    "note": "text",
    "created_at": "timestamptz",
    "attributes": "jsonb",
}
ORDERS = table(16400, "orders", COLUMNS, key=["id"])
ORIGIN = Origin("shop", "shopdb")


def _pieces(count: int) -> list[Any]:
    """Inserts of seven columns, a hundred to a transaction."""
    messages = [relation(ORDERS)]
    for begin in range(0, count, 100):
        rows = [
            insert(
                ORDERS,
                [
                    str(number),
                    str(number % 1000),
                    "paid",
                    f"{number / 100:.2f}",
                    f"a note of order {number}, as long as such notes are",
                    "2026-10-31 12:54:56.789012+00",
                    f'{{"source": "web", "step": {number % 7}}}',
                ],
            )
            for number in range(begin, begin + 100)
        ]
        messages += transaction(0x1000 + begin, *rows, xid=begin)
    return list(changes(messages))


def _best(make: Callable[[], Any]) -> float:
    taken = []
    for _ in range(5):
        began = time.process_time()
        make()
        taken.append(time.process_time() - began)
    return min(taken)


def main() -> None:
    """Print documents and values a second of each."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    pieces = _pieces(count)
    (piece,) = pieces
    columns, target = piece.relation.columns, piece.relation.table

    def records(encoder: Any) -> Callable[[], Any]:
        return lambda: records_in_order(change_records(piece, ORIGIN, target, encoder))

    schema = json.loads(AvroSchemas.of(piece.relation, "shop", target).value)
    row_schema = fastavro.parse_schema(schema["fields"][0]["type"][1])
    texts = documents(pieces, "shop").column("value").to_pylist()
    rows = [json.loads(text)["after"] for text in texts]
    for row in rows:
        row["total"], row["attributes"] = str(row["total"]), json.dumps(row["attributes"])

    def one_by_one() -> None:
        for row in rows:
            fastavro.schemaless_writer(io.BytesIO(), row_schema, row)

    ways = {
        "json": lambda: documents(pieces, "shop"),
        "debezium": records(DebeziumEncoder(columns)),
        "avro": records(AvroEncoder(columns, 1, 2)),
        "fastavro, row alone, of dicts that are there": one_by_one,
    }
    for name, way in ways.items():
        seconds = _best(way)
        print(
            f"{name:45} {count / seconds:12,.0f} documents/s {count * 7 / seconds:12,.0f} values/s"
        )


if __name__ == "__main__":
    main()
