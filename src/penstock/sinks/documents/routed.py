"""Documents of tables that `modifiers:` sends elsewhere: their own sink is given the names there.

Everything before it, positions, parked documents and errors, goes by the names of the source.
"""

from __future__ import annotations

import json
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
        # Documents speak of the source's tables; rows are of the destination's.
        self._is_of_rows = sink.shows_rows and sink.delivered_by == "driver"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        """Hand them on."""
        self._sink.deliver((self._routed(batch) for batch in documents), state)

    def _routed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._is_of_rows:
            batch = _with_differences(batch, self._routes)
        return routed(batch, self._routes)

    def begin_copies(self, copies: Mapping[TableName, str]) -> None:
        """Under the names of where the tables go."""
        self._sink.begin_copies(self._names(copies))

    def end_copies(self, copies: Mapping[TableName, str]) -> None:
        """Under the names of where the tables go."""
        self._sink.end_copies(self._names(copies))

    def _names(self, copies: Mapping[TableName, str]) -> dict[TableName, str]:
        return {_target(table, self._routes): copy_id for table, copy_id in copies.items()}


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


def _target(table: TableName, routes: Routes) -> TableName:
    return routes.of(table) or table


def _with_differences(batch: pa.RecordBatch, routes: Routes) -> pa.RecordBatch:
    """Changes of tables, with the tables that they name under the names of where those go."""
    is_change = pc.equal(batch.column("op"), "schema")
    if not pc.any(is_change).as_py():
        return batch
    values = batch.column("value").to_pylist()
    for place in pc.indices_nonzero(is_change).to_pylist():
        document = json.loads(values[place])
        found = [_routed_difference(each, routes) for each in document["difference"]]
        document["difference"] = [each for each in found if each is not None]
        values[place] = json.dumps(document, ensure_ascii=False).encode()
    at = batch.schema.get_field_index("value")
    return batch.set_column(at, batch.schema.field(at), pa.array(values, pa.large_binary()))


def _routed_difference(difference: dict[str, Any], routes: Routes) -> dict[str, Any] | None:
    """One thing that differs, under the names of where tables go; None of a new name that leads to the same place."""
    if difference["kind"] != "table":
        return difference
    schema, name = _target(TableName(difference["schema"], difference["name"]), routes)
    changed = {**difference, "schema": schema, "name": name}
    for side in ("before", "after"):
        value = difference[side]
        if difference["op"] == "rename_table":
            changed[side] = _routed_name(value, routes)
        elif isinstance(value, dict) and "references" in value:
            changed[side] = {**value, "references": _routed_name(value["references"], routes)}
    is_same = difference["op"] == "rename_table" and changed["before"] == changed["after"]
    return None if is_same else changed


def _routed_name(name: str, routes: Routes) -> str:
    return str(_target(TableName.parse(name), routes))


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
