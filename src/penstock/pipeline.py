"""Build one pipeline from its file, left to right. Read this first.

    source ──► log ──► Spark tasks ──► sinks

Parts are made here and nowhere else; nothing is reached or touched by making them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.log.contract import LogOwner
from penstock.log.registry import kind_of
from penstock.retry import is_temporary
from penstock.schema.describe import description_of
from penstock.sinks.file.options import FileOptions
from penstock.sinks.postgres.landing import Landings
from penstock.sinks.postgres.options import PostgresOptions
from penstock.source.connect import connect_source
from penstock.source.description import TableDescription, describe_table
from penstock.state.directory import StateDirectory
from penstock.state.wire import FileWire

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.config import PipelineFile
    from penstock.dsn import Dsn
    from penstock.log.contract import Log
    from penstock.lsn import Lsn
    from penstock.schema.history import SchemaHistory
    from penstock.schema.shape import TableShape
    from penstock.sinks.copying import Copying
    from penstock.sinks.eventcopying import EventCopying
    from penstock.sinks.postgres.session import TargetSession
    from penstock.sinks.sink import Sink
    from penstock.state.wire import Wire
    from penstock.table import TableName


class Describer:
    """Tells sinks how a source table looked at a position: by the history, else as it is now.

    Remembers what it was told, for when the source is away.
    """

    def __init__(self, dsn: Dsn, history: SchemaHistory) -> None:
        self._dsn = dsn
        self._history = history
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
        """The table's shape at a position, where the history tells it."""
        return self._history.shape_at(table, lsn)

    def name_of(self, oid: int, lsn: Lsn) -> TableName | None:
        """What the table of an oid was called at a position, where the history tells it."""
        return self._history.name_of(oid, lsn)


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


def build_sinks(
    pipeline: PipelineFile, sessions: Mapping[str, TargetSession] | None = None
) -> list[Sink]:
    """The driver halves of the pipeline's sinks, unopened.

    Those of several sources that are delivered by one loop share `sessions`, by the sink's name.
    """
    describe = Describer(pipeline.source.url, state_of(pipeline).history)
    return [_build_sink(pipeline, name, describe, sessions or {}) for name in pipeline.sinks]


def build_sessions(pipeline: PipelineFile) -> dict[str, TargetSession]:
    """What the sources of a pipeline share at each Postgres target, by the sink's name."""
    from penstock.sinks.postgres.session import TargetSession

    return {
        name: TargetSession(options.url)
        for name, options in pipeline.sinks.items()
        if isinstance(options, PostgresOptions)
    }


def _build_sink(
    pipeline: PipelineFile, name: str, describe: Describer, sessions: Mapping[str, TargetSession]
) -> Sink:
    options = pipeline.sinks[name]
    if isinstance(options, PostgresOptions):
        from penstock.sinks.postgres.sink import PostgresSink

        return PostgresSink(
            name, landings_of(pipeline, options), pipeline.name, describe, sessions.get(name)
        )
    if isinstance(options, FileOptions):
        from penstock.sinks.file.sink import FileSink

        return FileSink(name, options, pipeline.name, pipeline.source_id)
    from penstock.sinks.stdout.sink import StdoutSink

    position = _stdout_position(pipeline, name)
    return StdoutSink(name, options, pipeline.name, pipeline.source_id, position)


def landings_of(pipeline: PipelineFile, options: PostgresOptions) -> Landings:
    """Where the source's tables land in a Postgres."""
    return Landings(options, pipeline.name, pipeline.source_id, pipeline.source_ids)


def _stdout_position(pipeline: PipelineFile, name: str) -> Path:
    return pipeline.state / "sinks" / f"{name}.position.json"


def build_copying(pipeline: PipelineFile, name: str) -> Copying:
    """What copies tables into a sink, unopened."""
    options = pipeline.sinks[name]
    if isinstance(options, PostgresOptions):
        from penstock.sinks.postgres.copying import PostgresCopying

        return PostgresCopying(landings_of(pipeline, options), pipeline.name)
    return build_event_copying(pipeline, name)


def build_event_copying(pipeline: PipelineFile, name: str) -> EventCopying:
    """The same of a sink of documents, which can also be asked to copy again."""
    from penstock.sinks.eventcopying import EventCopying

    options = pipeline.sinks[name]
    if isinstance(options, FileOptions):
        from penstock.sinks.file.sink import copies_of, position_of

        position = position_of(options.path, pipeline.name, pipeline.source_id)
        return EventCopying(position, copies_of(options), pipeline.source_id)
    from penstock.sinks.positionfile import PositionFile
    from penstock.sinks.stdout.sink import copies_of as copies_of_stdout

    path = _stdout_position(pipeline, name)
    position = PositionFile(path, pipeline.name, pipeline.source_id)
    return EventCopying(position, copies_of_stdout(path), pipeline.source_id)
