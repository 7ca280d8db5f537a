"""Build one pipeline from its file, left to right. Read this first.

    source ──► log ──► Spark tasks ──► sinks

Parts are made here and nowhere else; nothing is reached or touched by making them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.log.contract import LogOwner
from penstock.log.registry import kind_of
from penstock.retry import is_temporary
from penstock.schema.describe import description_of
from penstock.source.connect import connect_source
from penstock.source.description import TableDescription, describe_table
from penstock.state.directory import StateDirectory
from penstock.state.wire import FileWire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.config import PipelineFile
    from penstock.dsn import Dsn
    from penstock.log.contract import Log
    from penstock.lsn import Lsn
    from penstock.schema.past_shapes import PastShapes
    from penstock.schema.shape import TableShape
    from penstock.sinks.copying import Copying
    from penstock.sinks.sink import Sink
    from penstock.state.wire import Wire
    from penstock.table import TableName


class Describer:
    """Describes a source table to sinks as it was at a position: by the past shapes, else as it is now.

    Remembers what it has learned, for when the source is away.
    """

    def __init__(self, dsn: Dsn, past_shapes: PastShapes) -> None:
        self._dsn = dsn
        self._past_shapes = past_shapes
        self._known: dict[TableName, TableDescription | None] = {}
        self._lock = threading.Lock()

    def __call__(self, table: TableName, lsn: Lsn) -> TableDescription | None:
        """The description of a table, None when the source has no such table.

        Raises:
            SourceError: the source is away, and was never asked about this table.
        """
        shape = self.shape(table, lsn)
        if shape is not None:
            return description_of(shape)
        with self._lock:
            try:
                with connect_source(self._dsn, "penstock describe") as connection:
                    self._known[table] = describe_table(connection, table)
            except PenstockError as error:
                if table not in self._known or not is_temporary(error):
                    raise
            return self._known[table]

    def shape(self, table: TableName, lsn: Lsn) -> TableShape | None:
        """The table's shape at a position, where it is known."""
        return self._past_shapes.shape_at(table, lsn)

    def name_of(self, oid: int, lsn: Lsn) -> TableName | None:
        """What the table of an oid was called at a position, where it is known."""
        return self._past_shapes.name_of(oid, lsn)


def state_of(pipeline: PipelineFile) -> StateDirectory:
    """The state directory of a source."""
    return StateDirectory(pipeline.state, pipeline.name)


def top_of(pipeline: PipelineFile) -> StateDirectory:
    """The state directory of the whole pipeline: the source's own, unless the file has `sources:`."""
    return StateDirectory(pipeline.top, pipeline.name)


def wire_of(pipeline: PipelineFile) -> Wire:
    """What the halves report to each other of a source."""
    return FileWire(state_of(pipeline), top_of(pipeline))


def top_wire_of(pipeline: PipelineFile) -> Wire:
    """What is reported of the whole pipeline."""
    return FileWire(top_of(pipeline))


def log_of(pipeline: PipelineFile) -> Log:
    """The log of a source."""
    return kind_of(pipeline.log.kind).log_of(pipeline.log, _owner(pipeline))


def check_logs(pipeline: PipelineFile) -> list[PenstockError]:
    """What `penstock check` warns of: the logs of all sources together."""
    owners = [_owner(view) for view in pipeline.each()]
    return kind_of(pipeline.log.kind).check(pipeline.log, owners)


def _owner(pipeline: PipelineFile) -> LogOwner:
    return LogOwner(pipeline.name, pipeline.source_id, pipeline.state)


def build_sinks(pipeline: PipelineFile, shared: Mapping[str, Any] | None = None) -> list[Sink]:
    """The driver halves of the pipeline's sinks, unopened.

    Those of several sources that are delivered by one loop have what `build_shared` made.
    """
    describe = Describer(pipeline.source.url, state_of(pipeline).past_shapes)
    shared = shared or {}
    return [
        pipeline.kind_of(name).build(pipeline.place_of(name), describe, shared.get(name))
        for name in pipeline.sinks
    ]


def build_shared(pipeline: PipelineFile) -> dict[str, Any]:
    """What the sources of a pipeline share at each sink, such as connections, by the sink's name."""
    return {
        name: pipeline.kind_of(name).build_shared(options)
        for name, options in pipeline.sinks.items()
    }


def build_copying(pipeline: PipelineFile, name: str) -> Copying:
    """What copies tables into a sink, unopened."""
    return pipeline.kind_of(name).build_copying(pipeline.place_of(name))
