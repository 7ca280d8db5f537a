"""What comes before either loop: see that all is well, make what is missing, compare positions.

Everything stored with a position (cluster, timeline, database, slot, its generation) is compared
with the server before the first byte. Any difference has one named outcome.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.config import DEFAULT_PARENT, pipeline_from_document
from penstock.errors import (
    LogGone,
    PenstockError,
    PositionMissing,
    PublicationChanged,
    SecondInstance,
    SourceTwice,
)
from penstock.lsn import ZERO, Lsn
from penstock.modifiers.chain import chain_for
from penstock.pipeline import build_sinks, log_of, require_keys, state_of, top_of
from penstock.run.rules import idle_findings, lost_findings, rule_findings
from penstock.run.signals import Stop
from penstock.source.choice import read_choice
from penstock.source.connect import connect_source
from penstock.source.identity import (
    SourceIdentity,
    compare_identity,
    read_cluster,
    read_identity,
    restored,
)
from penstock.source.options import Acknowledge
from penstock.source.preflight import preflight
from penstock.source.refusals import START_ANEW
from penstock.source.shapes import read_named_shapes
from penstock.source.slot import SlotState, check_slot, slot_state
from penstock.source.subscription import Subscription, ensure_subscription, find_subscription
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import psycopg

    from penstock.config import PipelineFile
    from penstock.dsn import Dsn
    from penstock.findings import Finding
    from penstock.schema.shape import TableShape
    from penstock.sinks.sink import Sink, StoredPosition
    from penstock.state.directory import StateDirectory
    from penstock.table import TableName

    Connection = psycopg.Connection[Any]


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Started:
    """What both loops need to know of the source."""

    subscription: Subscription
    identity: SourceIdentity
    slot: SlotState
    state: StateDirectory

    @property
    def start_lsn(self) -> Lsn:
        """Where a log that is empty begins: the slot has everything after it."""
        return self.slot.confirmed_flush_lsn or self.subscription.created_lsn


@dataclass(frozen=True)
class Origin:
    """What is captured, and from where on: as it was at the start."""

    subscription: Subscription
    identity: SourceIdentity
    start_lsn: Lsn

    @classmethod
    def of(cls, started: Started) -> Origin:
        """That of a source that has been started."""
        return cls(started.subscription, started.identity, started.start_lsn)

    def as_json(self) -> dict[str, Any]:
        """For another process."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Origin:
        """As another process reported it: positions have become numbers, tuples lists."""
        subscription = given["subscription"]
        return cls(
            Subscription(
                **{
                    **subscription,
                    "publications": tuple(subscription["publications"]),
                    "created_lsn": Lsn(subscription["created_lsn"]),
                }
            ),
            SourceIdentity(**given["identity"]),
            Lsn(given["start_lsn"]),
        )


def start(pipeline: PipelineFile, databases: Databases | None = None) -> Started:
    """Check everything, then create slot and publication where they are missing. Safe to repeat.

    Args:
        databases: those of the pipeline's other sources.

    Raises:
        PenstockError: and nothing has been changed.
    """
    require_keys(pipeline)
    state = state_of(pipeline)
    existed = state.path.exists()
    state.claim()
    try:
        for name, options in pipeline.sinks.items():
            for finding in pipeline.kind_of(name).faults(options):
                if finding.severity == "error":
                    raise finding.error
        url = pipeline.source.url
        with connect_source(url, "penstock start") as connection:
            if databases is not None:
                databases.claim(pipeline.source_id, connection, url)
            if not _is_first_start(pipeline, connection):
                for finding in idle_findings(pipeline):
                    _log.warning("%s", finding.error)
            subscription = ensure_subscription(
                connection,
                pipeline.name,
                pipeline.source.tables,
                pipeline.source.schema_options.tracking,
            )
            identity = read_identity(connection, subscription, url)
            slot = slot_state(connection, subscription.slot)
        check_slot(slot, subscription.slot, str(url))
    except PenstockError as error:
        # Where another process has begun beside this one, it may be that one's by now.
        if not existed and not isinstance(error, SecondInstance):
            _remove(state.path)
        raise
    return Started(subscription, identity, slot, state)


def _is_first_start(pipeline: PipelineFile, connection: Connection) -> bool:
    """Whether nothing of the pipeline is at its source yet, and all that it needs may be made.

    The other half may be doing the same at this moment: it has the sinks open while it looks, and is waited for.

    Raises:
        PenstockError: it is not, and may not.
    """
    patience_ends = time.monotonic() + timing().state_lock_patience_seconds
    while find_subscription(connection, pipeline.name) is None:
        try:
            _require_fresh(pipeline, connection)
        except SecondInstance:
            if time.monotonic() > patience_ends:
                raise
            time.sleep(timing().state_lock_poll_seconds)
        else:
            return True
    return False


def _remove(path: Path) -> None:
    """Remove a state directory that was made for nothing."""
    shutil.rmtree(path, ignore_errors=True)
    if path.parent.name == DEFAULT_PARENT:
        with suppress(OSError):  # not empty: another pipeline's state is there
            path.parent.rmdir()


class Databases:
    """Which database each source of a pipeline turned out to be: no two are the same.

    Slot and publications are named after the pipeline, so that two sources in one database would
    share them. Of two, the one that stands first in the file has it, unless its server does not answer.
    """

    def __init__(self, source_ids: Iterable[str]) -> None:
        self._order = list(source_ids)
        self._owners: dict[tuple[str, str], str] = {}
        self._reported: set[str] = set()
        self._changed = threading.Condition()

    def claim(self, source_id: str, connection: Connection, url: Dsn) -> None:
        """Take the database that answers for a source. From any thread.

        Raises:
            SourceTwice: another source has it.
        """
        found = read_cluster(connection, url)
        with self._changed:
            before = self._order[: self._order.index(source_id)]
            self._changed.wait_for(
                lambda: self._reported.issuperset(before), timing().sources_patience_seconds
            )
            owner = self._owners.setdefault(found, source_id)
        self.report(source_id)
        if owner != source_id:
            raise SourceTwice(
                f"source {source_id} is the same database as source {owner}, wanted another",
                str(url),
                f"take {source_id} out of `sources:`, or fix its url",
            )

    def report(self, source_id: str) -> None:
        """Nobody need wait for this source: it has its database, or does not answer."""
        with self._changed:
            self._reported.add(source_id)
            self._changed.notify_all()


def _require_fresh(pipeline: PipelineFile, connection: Connection) -> None:
    """See, before anything is made, that it can be used and that no sink goes on from elsewhere.

    Raises:
        SourceError: what `penstock check` would report first.
        OtherCluster: a sink holds a position in another cluster.
        PublicationChanged: a sink holds a position, but slot and publication are gone.
    """
    url = pipeline.source.url
    for finding in preflight(url, pipeline.source.tables, pipeline.name):
        if finding.severity == "error":
            raise finding.error
    _require_rules_fit(pipeline, connection)
    _name_occupied(pipeline, connection)
    for sink in build_sinks(pipeline):
        try:
            stored = sink.open()
        finally:
            sink.close()
        if stored is None:
            continue
        before = _identity_of(stored)
        gone = Subscription(pipeline.name, (), before.slot, before.generation, stored.delivered_lsn)
        compare_identity(before, read_identity(connection, gone, url), str(url))
        raise PublicationChanged(
            f"slot and publication are gone, but sink {sink.name} stands at {stored.delivered_lsn}",
            str(url),
            START_ANEW,
        )


def _require_rules_fit(pipeline: PipelineFile, connection: Connection) -> None:
    """See that the rules of `modifiers:` fit the tables, before anything is made.

    Raises:
        ModifierError: one does not.
    """
    if not pipeline.modifiers:
        return
    choice, _ = read_choice(connection, pipeline.source.tables)
    names = [each.name for each in (*choice.updates, *choice.inserts)]
    shapes = read_named_shapes(connection, names)
    for sink in pipeline.sinks:
        for finding in (*_lost(pipeline, sink, shapes), *rule_findings(pipeline, sink, shapes)):
            if finding.severity == "error":
                raise finding.error
            _log.warning("%s", finding.error)


def _lost(
    pipeline: PipelineFile, sink: str, shapes: Mapping[TableName, TableShape]
) -> list[Finding]:
    """What rules name that is not there; the other sources are asked where this one has not all of it."""
    sources = [shapes]
    found = list(lost_findings(pipeline, sink, sources))
    if not found or pipeline.is_alone:
        return found
    whole = pipeline_from_document(pipeline.document, "the pipeline")
    for other in whole.each():
        if found and other.source_id != pipeline.source_id:
            try:
                sources.append(_shapes_of(other))
            except PenstockError as error:
                _log.debug("%s: %s", other.source_id, error)
                return [replace(each, severity="warning") for each in found]
            found = list(lost_findings(pipeline, sink, sources))
    return found


def _shapes_of(pipeline: PipelineFile) -> Mapping[TableName, TableShape]:
    with connect_source(pipeline.source.url, "penstock start") as connection:
        choice, _ = read_choice(connection, pipeline.source.tables)
        names = [each.name for each in (*choice.updates, *choice.inserts)]
        return read_named_shapes(connection, names)


def _name_occupied(pipeline: PipelineFile, connection: Connection) -> None:
    """Name the tables whose place at a target is taken: they stop, and the others go on.

    Raises:
        TargetTableOccupied: there are no others.
        TargetTableUnfit: the same, by what is no table.
    """
    if not pipeline.source.snapshot.copies_first:
        return  # then they are meant
    choice, _ = read_choice(connection, pipeline.source.tables)
    tables = [each.name for each in (*choice.updates, *choice.inserts)]
    for name in pipeline.sinks:
        chain = chain_for(pipeline.modifiers, name)
        own = [each for each in tables if chain is None or not chain.excludes(each)]
        for finding in pipeline.kind_of(name).occupied(pipeline.place_of(name), own):
            if finding.severity == "error":
                raise finding.error
            _log.warning("%s", finding.error)


def _identity_of(stored: StoredPosition) -> SourceIdentity:
    given = stored.identity
    return SourceIdentity(
        given.get("system_identifier", ""),
        int(given.get("timeline", "0")),
        given.get("database", ""),
        given.get("slot", ""),
        given.get("generation", ""),
    )


def start_up(pipeline: PipelineFile, stop: threading.Event) -> Started:
    """`start`, in a command that a signal ends at once until it is through."""
    started = start(pipeline)
    if isinstance(stop, Stop):
        stop.raises = False
    return started


class PositionCheck:
    """Compares what a sink has stored with the source, each time the sink is opened."""

    def __init__(self, pipeline: PipelineFile, started: Started) -> None:
        self._pipeline = pipeline
        self._log = log_of(pipeline)
        self._started = started

    def __call__(self, sink: Sink) -> Lsn:
        """Open the sink; the position to go on from.

        Raises:
            PositionMissing: the slot has moved, but the sink knows nothing of it.
            OtherCluster, PublicationChanged, SlotMoved: the position belongs to something else.
        """
        started = self._started
        place = str(self._pipeline.source.url)
        stored = sink.open()
        if stored is None:
            first = started.subscription.created_lsn
            if started.start_lsn > first and self._pipeline.source.snapshot.copies_first:
                # A sink that came later: its tables are copied, as of a moment that is still to come.
                first = max(started.start_lsn, self._log.span().end_lsn)
            elif started.start_lsn > first:
                raise PositionMissing(
                    f"the slot stands at {started.start_lsn}, but the sink holds no position",
                    f"sink {sink.name}",
                    "penstock teardown and init to begin anew, or put the sink's own position back",
                )
            sink.begin({key: str(value) for key, value in asdict(started.identity).items()}, first)
            return first
        compare_identity(_identity_of(stored), started.identity, place)
        self._check_reach(stored.delivered_lsn, place)
        detached = [
            table.delivered_lsn for table in sink.tables.detached.values() if table.keeps_log
        ]
        self._check_slot(min([stored.delivered_lsn, *detached]), place)
        return stored.delivered_lsn

    def _check_reach(self, delivered_lsn: Lsn, place: str) -> None:
        """See that the source has what was delivered; asked again, for it goes on meanwhile."""
        if (self._started.slot.server_lsn or ZERO) >= delivered_lsn:
            return
        found = self._slot_now()
        if found.server_lsn is not None and found.server_lsn < delivered_lsn:
            what = f"the server's WAL ends at {found.server_lsn}, wanted {delivered_lsn}, which is delivered"
            raise restored(what, place)

    def _check_slot(self, wanted_lsn: Lsn, place: str) -> None:
        """See that the log or the slot has everything from where a sink needs it.

        A sink may have gone back: a target that crashed, or was failed over, loses its last commits.
        """
        logged = self._log.span()
        # What the log has let go was acknowledged, perhaps since the start.
        is_cut = logged.is_emptied or logged.begin_lsn > wanted_lsn
        slot = self._slot_now() if is_cut else self._started.slot
        is_acknowledged = ZERO < wanted_lsn < (slot.confirmed_flush_lsn or ZERO)
        if is_cut and is_acknowledged and self._pipeline.source.acknowledge is Acknowledge.LOGGED:
            found = (
                "nothing is left of the log"
                if logged.is_emptied
                else f"the log begins at {logged.begin_lsn}"
            )
            raise LogGone(
                f"{found}, wanted {wanted_lsn}, where a sink stands; the slot, which"
                " was acknowledged what is logged, has it no more either",
                self._log.place,
                START_ANEW,
            )
        have_lsn = logged.end_lsn if logged.holds(wanted_lsn) else wanted_lsn
        check_slot(slot, self._started.subscription.slot, place, have_lsn)

    def _slot_now(self) -> SlotState:
        with connect_source(self._pipeline.source.url, "penstock position") as connection:
            return slot_state(connection, self._started.subscription.slot)


def init_pipeline(pipeline: PipelineFile) -> list[str]:
    """Create everything on both sides without starting either loop; what is there afterwards.

    Raises:
        PenstockError: nothing has been changed for the source at fault, nor for those after it.
    """
    databases = Databases(pipeline.sources)
    existed = pipeline.top.exists()
    try:
        if pipeline.is_whole:
            top_of(pipeline).claim()  # so that two pipelines cannot share it
        return [line for view in pipeline.each() for line in _init(view, databases)]
    except PenstockError:
        if not existed and not any(view.state.exists() for view in pipeline.each()):
            _remove(pipeline.top)
        raise


def _init(pipeline: PipelineFile, databases: Databases) -> list[str]:
    started = start(pipeline, databases)
    check = PositionCheck(pipeline, started)
    lines = [
        (
            f"source {pipeline.source.url}: slot {started.subscription.slot}, "
            f"publication {started.subscription.publications[0]}"
        )
    ]
    given = "" if pipeline.is_alone else f" with source {pipeline.source_id}"
    for sink in build_sinks(pipeline):
        try:
            position = check(sink)
        finally:
            sink.close()
        lines.append(f"sink {sink.name}: stands at {position}{given}")
    return lines
