"""Documents of tables that `modifiers:` sends elsewhere: their own sink is given the names there.

Everything before it, positions, parked documents and errors, goes by the names of the source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.jsonvalues import json_string
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np

    from penstock.sinks.documents.contract import DocumentKind, DocumentSink
    from penstock.sinks.kind import SinkPlace
    from penstock.table import Routes


def sink_of(kind: DocumentKind[Any], place: SinkPlace[Any]) -> DocumentSink:
    """The sink of a place, unopened; given the names of where its tables go."""
    sink = kind.sink(place)
    return RoutedSink(sink, place.routes) if place.routes.moves_tables else sink  # type: ignore[return-value]


class RoutedSink:
    """A sink whose documents bear the names of where their tables go. All else is the sink's own."""

    def __init__(self, sink: DocumentSink, routes: Routes) -> None:
        self._sink = sink
        self._routes = routes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        """Hand them on."""
        self._sink.deliver((routed(batch, self._routes) for batch in documents), state)

    def begin_copies(self, copies: Mapping[TableName, str]) -> None:
        """Under the names of where the tables go."""
        self._sink.begin_copies(
            {self._routes.of(table) or table: copy_id for table, copy_id in copies.items()}
        )


def routed(batch: pa.RecordBatch, routes: Routes) -> pa.RecordBatch:
    """The documents under the names of where their tables go."""
    if not len(batch):
        return batch
    names = pc.binary_join_element_wise(batch.column("schema"), batch.column("table"), "\0")
    encoded = names.dictionary_encode()
    numbers = encoded.indices.to_numpy()
    for number, text in enumerate(encoded.dictionary.to_pylist()):
        table = TableName(*text.split("\0"))
        target = routes.of(table)
        if target is not None and target != table:
            batch = _renamed(batch, numbers == number, table, target)
    return batch


def _renamed(
    batch: pa.RecordBatch,
    mask: np.ndarray[Any, np.dtype[np.bool_]],
    table: TableName,
    target: TableName,
) -> pa.RecordBatch:
    where = pa.array(mask)
    columns = {name: batch.column(name) for name in batch.schema.names}
    for name, part in zip(("schema", "table"), target, strict=True):
        columns[name] = pc.if_else(where, pa.scalar(part, columns[name].type), columns[name])
    if not pa.types.is_large_string(columns["value"].type):
        # Another format than penstock's JSON: it has written the names of where tables go.
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)
    # The first occurrence: an id, which alone stands before it, has no quotation mark.
    values = pc.replace_substring(
        columns["value"], pattern=_header(table), replacement=_header(target), max_replacements=1
    )
    columns["value"] = pc.if_else(where, values, columns["value"])
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)


def _header(table: TableName) -> str:
    schema, name = (json_string(part).decode() for part in table)
    return f'"schema":{schema},"table":{name}'
