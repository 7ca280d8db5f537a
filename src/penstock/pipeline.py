"""Build one pipeline from its file, left to right. Read this first.

    source ──► log ──► Spark tasks ──► sinks

Parts are made here and nowhere else; nothing is reached or touched by making them.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import LogKeyMissing, LogKeyUnusable, ModifierError, PenstockError
from penstock.log.contract import LogOwner
from penstock.log.registry import kind_of
from penstock.modifiers.binding import Binding
from penstock.modifiers.chain import chain_for
from penstock.modifiers.former_parts import FormerParts
from penstock.retry import is_temporary
from penstock.schema.past_shapes import PastShapes
from penstock.schema.versions import schemas_of
from penstock.sinks.describe import WholeSchema
from penstock.source.connect import connect_source
from penstock.source.shapes import read_named_shapes
from penstock.state.boardshapes import BoardLines
from penstock.state.boardwire import BoardWire
from penstock.state.directory import StateDirectory
from penstock.state.wire import FileWire

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from penstock.config import PipelineFile
    from penstock.dsn import Dsn
    from penstock.log.contract import Board, Log
    from penstock.lsn import Lsn
    from penstock.modifiers.modifier import Modifiers
    from penstock.schema.shape import TableShape
    from penstock.sinks.copying import Copying
    from penstock.sinks.sink import Sink
    from penstock.state.wire import Wire
    from penstock.table import TableName


class Describer:
    """Describes a source table to a sink as it was at a position: by the past shapes, else as it is now.

    As the sink's modifiers leave it. Remembers what it has learned, for when the source is away.
    """

    def __init__(
        self,
        dsn: Dsn,
        past_shapes: PastShapes,
        modifiers: Modifiers | None = None,
        chooses: Callable[[TableName], bool] = lambda _: True,
    ) -> None:
        self._dsn = dsn
        self._chooses = chooses
        self._past_shapes = past_shapes
        self._modifiers = modifiers
        self._now: dict[TableName, TableShape | None] = {}
        self._lock = threading.Lock()

    def __call__(self, table: TableName, lsn: Lsn) -> TableShape | None:
        """How a table was, or is now where that is not known; None when the source has no such table.

        Raises:
            SourceError: the source is away, and was never asked about this table.
        """
        found = self.source_shape(table, lsn)
        if found is None or self._modifiers is None:
            return found
        return self._modifiers.modified_shape(found)

    def shape(self, table: TableName, lsn: Lsn) -> TableShape | None:
        """The table's shape at a position, where it is known.

        Raises:
            ModifierError: a rule and the table do not fit.
        """
        shape = self._past_shapes.shape_at(table, lsn)
        if shape is None or self._modifiers is None:
            return shape
        return self._modifiers.modified_shape(shape)

    def source_shape(self, table: TableName, lsn: Lsn) -> TableShape | None:
        """How the source has the table: at a position, or now where that is not known.

        Raises:
            SourceError: the source is away, and was never asked about this table.
        """
        shape = self._past_shapes.shape_at(table, lsn)
        if shape is not None:
            return shape
        with self._lock:
            try:
                with connect_source(self._dsn, "penstock describe") as connection:
                    self._now[table] = read_named_shapes(connection, [table]).get(table)
            except PenstockError as error:
                if table not in self._now or not is_temporary(error):
                    raise
            return self._now[table]

    def lacks_rows(self, table: TableName) -> bool:
        """Whether rules leave rows of the table out."""
        return self._modifiers is not None and self._modifiers.lacks_rows(table)

    def name_of(self, oid: int, lsn: Lsn) -> TableName | None:
        """What the table of an oid was called at a position, where it is known."""
        return self._past_shapes.name_of(oid, lsn)

    def schemas(
        self, lsn: Lsn, known: Collection[TableName], only: Collection[str] | None = None
    ) -> dict[str, WholeSchema]:
        """The schemas of the tables that the sink is to have, or knows, as they were at a position; or some of them."""
        versions = self._past_shapes.versions_before(lsn)
        shapes = (
            shape
            for shape in self._seen_shapes(lsn, known)
            if only is None or shape.schema_name in only
        )
        return {
            name: WholeSchema(name, content, versions.get(name))
            for name, content in schemas_of(shapes).items()
        }

    def _seen_shapes(self, lsn: Lsn, known: Collection[TableName]) -> Iterator[TableShape]:
        """Shapes as the sink's modifiers leave them, without tables that it does not have."""
        for shape in self._past_shapes.at(lsn).values():
            if shape.table not in known and not self._chooses(shape.table):
                continue
            if self._modifiers is None:
                yield shape
            elif not self._modifiers.excludes(shape.table):
                # One that no rule fits is stopped where its rows are delivered, and said to be.
                with suppress(ModifierError):
                    yield self._modifiers.modified_shape(shape)


def state_of(pipeline: PipelineFile) -> StateDirectory:
    """The state directory of a source."""
    return StateDirectory(pipeline.state, pipeline.name)


def top_of(pipeline: PipelineFile) -> StateDirectory:
    """The state directory of the whole pipeline: the source's own, unless the file has `sources:`."""
    return StateDirectory(pipeline.top, pipeline.name)


def wire_of(pipeline: PipelineFile) -> Wire:
    """What the halves report to each other of a source."""
    files = FileWire(state_of(pipeline), top_of(pipeline))
    board = board_of(pipeline)
    if board is None:
        return files
    source_id = pipeline.source_id
    return BoardWire(
        board, files, top_of(pipeline), source_id, f"capture/{source_id}", pipeline.all_sinks
    )


def top_wire_of(pipeline: PipelineFile) -> Wire:
    """What is reported of the whole pipeline: of a sole source, the same."""
    if not pipeline.is_whole and pipeline.top == pipeline.state:
        return wire_of(pipeline)
    top = top_of(pipeline)
    board = board_of(pipeline)
    if board is None:
        return FileWire(top)
    return BoardWire(board, FileWire(top), top, "", "capture", pipeline.all_sinks)


def past_shapes_of(pipeline: PipelineFile, state: StateDirectory | None = None) -> PastShapes:
    """Which shapes the tables of a source had when; `state`: its directory, where somebody has it."""
    board = board_of(pipeline)
    if board is None:
        return (state or state_of(pipeline)).past_shapes
    return PastShapes(BoardLines(board, f"{pipeline.source_id}/shapes"))


def board_of(pipeline: PipelineFile) -> Board | None:
    """What the halves share beside the logs; None: the state directory."""
    return kind_of(pipeline.log.kind).board_of(pipeline.log, pipeline.name)


def forget_logs(
    pipeline: PipelineFile, leaving: Sequence[PipelineFile], *, is_all: bool
) -> list[str]:
    """Remove the logs of sources that leave; with all of them, what the halves have shared, too."""
    owners = [_owner(view) for view in leaving]
    removed = kind_of(pipeline.log.kind).forget(pipeline.log, owners)
    board = board_of(pipeline) if is_all else None
    return [*removed, *(board.forget() if board is not None else ())]


def log_of(pipeline: PipelineFile) -> Log:
    """The log of a source."""
    return kind_of(pipeline.log.kind).log_of(pipeline.log, _owner(pipeline))


def check_logs(pipeline: PipelineFile) -> list[PenstockError]:
    """What `penstock check` says of the logs of all sources together."""
    return _check_logs(pipeline, [_owner(view) for view in pipeline.each()])


def require_keys(pipeline: PipelineFile) -> None:
    """See that the log of a source can be read and written with the keys that are given. Changes nothing.

    Raises:
        LogKeyMissing: something in it is encrypted with another key.
        LogKeyUnusable: they cannot be used.
    """
    for fault in _check_logs(pipeline, [_owner(pipeline)]):
        if isinstance(fault, LogKeyMissing | LogKeyUnusable):
            raise fault


def _check_logs(pipeline: PipelineFile, owners: Sequence[LogOwner]) -> list[PenstockError]:
    try:
        pipeline.log.keyring().check()
        return kind_of(pipeline.log.kind).check(pipeline.log, owners)
    except LogKeyUnusable as error:
        return [error]


def _owner(pipeline: PipelineFile) -> LogOwner:
    return LogOwner(pipeline.name, pipeline.source_id, pipeline.state)


def build_sinks(pipeline: PipelineFile, shared: Mapping[str, Any] | None = None) -> list[Sink]:
    """The driver halves of the pipeline's sinks, unopened.

    Those of several sources that are delivered by one loop have what `build_shared` made.
    """
    shared = shared or {}
    return [
        pipeline.kind_of(name).build(
            pipeline.place_of(name), describer_of(pipeline, name), shared.get(name)
        )
        for name in pipeline.sinks
    ]


def describer_of(pipeline: PipelineFile, sink: str) -> Describer:
    """What describes the source's tables to a sink."""
    past_shapes = past_shapes_of(pipeline)
    modifiers = chain_for(pipeline.modifiers, sink)
    return Describer(pipeline.source.url, past_shapes, modifiers, pipeline.source.tables.chooses)


def modifiers_of(pipeline: PipelineFile, sink: str) -> Binding | None:
    """What is done to changes and copied rows on their way to a sink; None where nothing."""
    chain = chain_for(pipeline.modifiers, sink)
    return None if chain is None else Binding(chain, describer_of(pipeline, sink).source_shape)


def former_parts_of(pipeline: PipelineFile, sink: str) -> FormerParts | None:
    """Which tables may not be copied to a sink since they were partitions of one that it has rules for."""
    chain = chain_for(pipeline.modifiers, sink)
    return None if chain is None else FormerParts(chain, past_shapes_of(pipeline).former_roots)


def build_shared(pipeline: PipelineFile) -> dict[str, Any]:
    """What the sources of a pipeline share at each sink, such as connections, by the sink's name."""
    return {
        name: pipeline.kind_of(name).build_shared(options)
        for name, options in pipeline.sinks.items()
    }


def build_copying(pipeline: PipelineFile, name: str) -> Copying:
    """What copies tables into a sink, unopened."""
    return pipeline.kind_of(name).build_copying(pipeline.place_of(name))
