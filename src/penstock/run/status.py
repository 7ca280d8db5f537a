"""Where every table and every sink stands, while running and when stopped.

From the same objects the loops use: the slot as the server shows it, the position as the target
holds it, the log as it lies on disk, and the loops' own last reports for what only they know.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.changes.pgoutput import EPOCH_2000_UNIX_MICROSECONDS
from penstock.errors import LogUnreachable, PenstockError, recognise
from penstock.lsn import ZERO, Lsn
from penstock.pipeline import log_of, top_wire_of, wire_of
from penstock.retry import is_temporary
from penstock.run.delivered import add_posted, add_reported, is_delivered_here, is_shared
from penstock.run.failures import CAPTURE, DELIVER, last_failure
from penstock.run.pauses import paused_since
from penstock.sinks.status import FlowStatus, SinkStatus, TableStatus
from penstock.source.connect import connect_source, source_errors
from penstock.source.options import Tracking
from penstock.source.slot import check_slot, has_changes, slot_state, slot_warning
from penstock.source.subscription import find_subscription
from penstock.source.tracking.install import broken_tracking, tier_in_force
from penstock.state.reports import (
    CaptureReport,
    DeliveryReport,
    MembershipReport,
    SourceErrors,
)
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import psycopg

    from penstock.config import PipelineFile
    from penstock.state.wire import Wire

# So many sources are asked at once: one that does not answer takes its time.
_AT_ONCE = 16
# Until when the logs of pipelines are not read, by name: their broker does not answer.
_away_until: dict[str, float] = {}


@dataclass
class SourceStatus:
    """One source and its slot."""

    slot: str | None = None
    slot_active: bool = False
    current_lsn: str | None = None
    received_lsn: str | None = None
    durable_lsn: str | None = None
    acknowledged_lsn: str | None = None
    retained_bytes: int | None = None
    wal_status: str | None = None
    slot_has_changes: bool | None = None  # that nobody has received; None: not known
    log_bytes: int = 0
    error: str | None = None
    warning: str | None = None  # what may become an error
    tracking: str = "off"  # how changes of tables are noticed
    tracking_error: str | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    connected: bool = False  # whether capture is, as it last said
    reported_at: float | None = None  # when it did, seconds since 1970
    transactions: int = 0  # that it has written to the log since it was started
    # Since when the server has had something that capture has not received, seconds since 1970; None: it has all
    # that was seen there.
    unreceived_since: float | None = None

    @property
    def newest_lsn(self) -> str | None:
        """Where what sinks should have ends: with the WAL, or, if the slot has no more, with the log."""
        if self.slot_has_changes is False:
            return self.durable_lsn or self.acknowledged_lsn  # the log may have been deleted
        return self.current_lsn


@dataclass
class PipelineStatus:
    """The whole pipeline."""

    name: str
    phase: str
    sources: dict[str, SourceStatus]
    sinks: dict[str, SinkStatus]
    error: str | None = None  # what ended the last run
    asked_at: float = 0.0  # when servers were last asked, seconds since 1970

    @property
    def errors(self) -> list[str]:
        """Those of sources and sinks; not of single tables."""
        found = [source.error for source in self.sources.values()]
        found += [sink.error for sink in self.sinks.values()]
        return [error for error in found if error]

    def as_dict(self) -> dict[str, Any]:
        """As `status --json` prints it."""
        return asdict(self)


def read_status(
    pipeline: PipelineFile, before: PipelineStatus | None = None, *, may_peek: bool = True
) -> PipelineStatus:
    """Read sources, state and sinks; a server that does not answer is reported, not raised.

    Args:
        before: the last one. What a server said then counts while it does not answer.
        may_peek: into slots that nobody streams, to say whether they hold changes.
    """
    views = pipeline.each()
    read = partial(_source, before=before, may_peek=may_peek)
    if len(views) == 1:
        sources = {view.source_id: read(view) for view in views}
    else:
        with ThreadPoolExecutor(min(len(views), _AT_ONCE)) as pool:
            found = pool.map(read, views)
            sources = {view.source_id: each for view, each in zip(views, found, strict=True)}
    sinks = {name: _asked_sink(pipeline, name, sources, before) for name in pipeline.sinks}
    return _whole(pipeline, sources, sinks, time.time())


def refresh_status(pipeline: PipelineFile, before: PipelineStatus) -> PipelineStatus:
    """The same from what the halves have reported since, and what servers last said. Asks no server."""
    sources = {
        view.source_id: _refreshed_source(view, before.sources[view.source_id])
        for view in pipeline.each()
    }
    sinks = {name: _refreshed_sink(pipeline, name, sources, before) for name in pipeline.sinks}
    return _whole(pipeline, sources, sinks, before.asked_at)


def _whole(
    pipeline: PipelineFile,
    sources: dict[str, SourceStatus],
    sinks: dict[str, SinkStatus],
    asked_at: float,
) -> PipelineStatus:
    top = top_wire_of(pipeline)
    ended = last_failure(top, CAPTURE) or last_failure(top, DELIVER)
    return PipelineStatus(
        name=pipeline.name,
        phase="failed" if ended else _phase(top, sources, sinks),
        sources=sources,
        sinks=sinks,
        error=ended,
        asked_at=asked_at,
    )


def _phase(top: Wire, sources: dict[str, SourceStatus], sinks: dict[str, SinkStatus]) -> str:
    tables = [table for sink in sinks.values() for table in sink.tables.values()]
    if _has_error(sources.values(), sinks.values(), tables):
        return "failed"
    if top.capturing_run() is None or top.delivering_run() is None:
        return "stopped"
    states = {table.state for table in tables}
    if states & {"pending", "copying"}:
        return "copying"
    is_behind = any((sink.lag_seconds or 0.0) > 5.0 for sink in sinks.values())
    return "catching_up" if is_behind or "catching_up" in states else "streaming"


def _has_error(
    sources: Iterable[SourceStatus], sinks: Iterable[SinkStatus], tables: Iterable[TableStatus]
) -> bool:
    return (
        any(each.error or each.tracking_error for each in sources)
        or any(each.error for each in sinks)
        or any(each.error for each in tables)
    )


def _source(
    pipeline: PipelineFile, *, before: PipelineStatus | None, may_peek: bool
) -> SourceStatus:
    wire = wire_of(pipeline)
    report = wire.latest(CaptureReport) or CaptureReport()
    members = wire.latest(MembershipReport) or MembershipReport()
    status = SourceStatus(
        received_lsn=_text(report.received_lsn),
        durable_lsn=_text(report.durable_lsn),
        acknowledged_lsn=_text(report.acknowledged_lsn),
        log_bytes=report.log_bytes,
        tracking=pipeline.source.schema_options.tracking.value,
        left_out=members.left_out,
        connected=report.connected and wire.capturing_run() is not None,
        reported_at=report.at or None,
        transactions=report.transactions,
    )
    try:
        with connect_source(pipeline.source.url, "penstock status") as connection:
            _ask_source(pipeline, connection, status, may_peek=may_peek)
    except PenstockError as error:
        status.error = str(error)
    status.error = _reported_error(pipeline, report) or status.error
    status.warning = status.warning or _log_warning(pipeline, report)
    last = before.sources[pipeline.source_id] if before is not None else SourceStatus()
    status.unreceived_since = _unreceived_since(status, last, time.time())
    return status


def _log_warning(pipeline: PipelineFile, report: CaptureReport) -> str | None:
    """What may delete what a sink needs of the log: capture says it while it runs, else the log is asked."""
    wire = wire_of(pipeline)
    if wire.capturing_run() is not None:
        return report.warning
    delivered = [wire.latest(DeliveryReport, name) or DeliveryReport() for name in pipeline.sinks]
    needed = min((each.safe_lsn or ZERO for each in delivered), default=ZERO)
    if time.monotonic() < _away_until.get(pipeline.name, 0.0):
        return report.warning
    try:
        risk = log_of(pipeline).risk(needed)
    except PenstockError as error:
        _note_away(pipeline, error)
        return report.warning
    if risk is not None:
        return str(risk)
    return report.warning if needed < (report.durable_lsn or ZERO) else None


def _note_away(pipeline: PipelineFile, error: PenstockError) -> None:
    """A broker that does not answer is not waited for again for each source and each sink."""
    if isinstance(error, LogUnreachable):
        _away_until[pipeline.name] = time.monotonic() + 3 * timing().log_read_seconds


def _unreceived_since(status: SourceStatus, last: SourceStatus, now: float) -> float | None:
    """Since when capture has not received what the server had.

    A server is always a little ahead, by WAL that concerns nobody as well. What counts is for how long a
    position that was seen there has not come.
    """
    if status.received_lsn is None or status.current_lsn is None:
        return last.unreceived_since
    received_lsn = Lsn.parse(status.received_lsn)
    if received_lsn >= Lsn.parse(status.current_lsn):
        return None
    if last.unreceived_since is None or last.current_lsn is None:
        return now
    return now if received_lsn >= Lsn.parse(last.current_lsn) else last.unreceived_since


def _refreshed_source(pipeline: PipelineFile, before: SourceStatus) -> SourceStatus:
    """A source by its last report, with what its server said before."""
    wire = wire_of(pipeline)
    report = wire.latest(CaptureReport) or CaptureReport()
    received_lsn = report.received_lsn or ZERO
    current_lsn = max(received_lsn, Lsn.parse(before.current_lsn or str(ZERO)))
    has_all = before.current_lsn is not None and received_lsn >= Lsn.parse(before.current_lsn)
    return replace(
        before,
        current_lsn=_text(current_lsn) if before.current_lsn else None,
        received_lsn=_text(report.received_lsn),
        durable_lsn=_text(report.durable_lsn),
        acknowledged_lsn=_text(report.acknowledged_lsn) or before.acknowledged_lsn,
        log_bytes=report.log_bytes,
        connected=report.connected and wire.capturing_run() is not None,
        reported_at=report.at or None,
        transactions=report.transactions,
        unreceived_since=None if has_all else before.unreceived_since,
        error=_reported_error(pipeline, report) or _still_true(before.error, report),
    )


def _still_true(error: str | None, report: CaptureReport) -> str | None:
    """What the server said counts until it is asked again; unless it was only away, and is back."""
    known = recognise(error) if error else None
    is_over = known is not None and is_temporary(known) and report.connected
    return None if is_over else error


def _ask_source(
    pipeline: PipelineFile,
    connection: psycopg.Connection[Any],
    status: SourceStatus,
    *,
    may_peek: bool,
) -> None:
    """What the server says of itself and of the slot.

    Raises:
        PenstockError: it cannot be asked, or the slot is lost.
    """
    with source_errors(connection):
        row = connection.execute(
            "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
            " ELSE pg_current_wal_lsn() END::text"
        ).fetchone()
    status.current_lsn = row[0] if row else None
    subscription = find_subscription(connection, pipeline.name)
    if subscription is None:
        return
    slot = slot_state(connection, subscription.slot)
    status.slot = subscription.slot
    status.slot_active = slot.active
    status.retained_bytes = slot.retained_bytes
    status.wal_status = slot.wal_status
    if may_peek and wire_of(pipeline).capturing_run() is None:
        publications = subscription.publications
        status.slot_has_changes = has_changes(connection, subscription.slot, publications, slot)
    status.acknowledged_lsn = _text(slot.confirmed_flush_lsn) or status.acknowledged_lsn
    place = str(pipeline.source.url)
    warning = slot_warning(slot, subscription.slot, place)
    status.warning = str(warning) if warning is not None else None
    _ask_tracking(pipeline, connection, status)
    check_slot(slot, subscription.slot, place)


def _reported_error(pipeline: PipelineFile, report: CaptureReport) -> str | None:
    """What capture of a source last failed with; while it runs, what it reports itself comes first."""
    top = top_wire_of(pipeline)
    is_running = wire_of(pipeline).capturing_run() is not None
    ended = last_failure(top, CAPTURE) if pipeline.is_alone else None
    reported = _news(report.error, is_running=is_running)
    if reported is None and pipeline.top != pipeline.state:
        runs = top.capturing_run() is not None or top.delivering_run() is not None
        others = top.latest(SourceErrors) or SourceErrors()
        reported = _news(others.errors.get(pipeline.source_id), is_running=runs)
    return reported or ended if is_running else ended or reported


def _news(reported: str | None, *, is_running: bool) -> str | None:
    """An error that was reported, unless it may have passed since and no process runs that could say so."""
    if not reported or is_running:
        return reported
    known = recognise(reported)
    return None if known is not None and is_temporary(known) else reported


def _ask_tracking(
    pipeline: PipelineFile, connection: psycopg.Connection[Any], status: SourceStatus
) -> None:
    wanted = pipeline.source.schema_options.tracking
    status.tracking = tier_in_force(connection, wanted).value
    broken = broken_tracking(connection) if wanted is Tracking.TRIGGERS else None
    if broken is not None:
        status.tracking = Tracking.RELATION.value
        status.tracking_error = str(broken)


def _asked_sink(
    pipeline: PipelineFile,
    name: str,
    sources: dict[str, SourceStatus],
    before: PipelineStatus | None,
) -> SinkStatus:
    """One sink, which is asked how it stands."""
    views = pipeline.each()
    parts = [_reported(view, name) for view in views]
    reported = [part.error for part in parts]
    for part in parts:
        part.error = None
    here = _add_files_of_others(views, name, parts)
    pipeline.kind_of(name).read_status(
        [view.place_of(name) for view, _ in here], [part for _, part in here]
    )
    has_answered = not any(part.error for part in parts)
    for part, error in zip(parts, reported, strict=True):
        part.error = part.error or error
    if has_answered or before is None:
        return _put_together(pipeline, name, parts, sources)
    for view, part in zip(views, parts, strict=True):
        _add_said(view, name, part, before)
    return _with_kept(_put_together(pipeline, name, parts, sources), before.sinks[name])


def _add_files_of_others(
    views: Sequence[PipelineFile], name: str, parts: Sequence[SinkStatus]
) -> list[tuple[PipelineFile, SinkStatus]]:
    """Add what is reported of working files on other machines; those parts that can be asked for here."""
    here = []
    for view, part in zip(views, parts, strict=True):
        if is_shared(view, name):
            here.append((view, part))
            continue
        wire = wire_of(view)
        report = wire.latest(DeliveryReport, name) or DeliveryReport()
        if is_delivered_here(view, name):
            here.append((view, part))
        else:
            add_reported(part, report)
        add_posted(part, wire, name, report)
    return here


def _refreshed_sink(
    pipeline: PipelineFile, name: str, sources: dict[str, SourceStatus], before: PipelineStatus
) -> SinkStatus:
    """One sink by what its loops reported since it was asked."""
    views = pipeline.each()
    parts = [_reported(view, name) for view in views]
    for view, part in zip(views, parts, strict=True):
        _add_said(view, name, part, before)
    is_asked = len(_add_files_of_others(views, name, parts)) == len(parts)
    whole = _put_together(pipeline, name, parts, sources)
    if is_asked:
        _with_kept(whole, before.sinks[name])
    whole.error = whole.error or before.sinks[name].error
    return whole


def _with_kept(whole: SinkStatus, before: SinkStatus) -> SinkStatus:
    """With what only the sink itself can say, as it last did."""
    whole.parked, whole.subscriptions = before.parked, before.subscriptions
    return whole


def _put_together(
    pipeline: PipelineFile, name: str, parts: list[SinkStatus], sources: dict[str, SourceStatus]
) -> SinkStatus:
    """A sink: of a sole source as it is, of several put together."""
    views = pipeline.each()
    for view, part in zip(views, parts, strict=True):
        _complete(view, name, part, sources[view.source_id])
    whole = parts[0] if len(parts) == 1 else _together(parts, views)
    whole.paused_since = paused_since(pipeline, name)
    return whole


def _add_said(pipeline: PipelineFile, name: str, part: SinkStatus, before: PipelineStatus) -> None:
    """Add to a report of a loop what the sink said when it was asked."""
    sink = before.sinks[name]
    prefix = "" if pipeline.is_alone else f"{pipeline.source_id}/"
    said = {
        table.removeprefix(prefix): entry
        for table, entry in sink.tables.items()
        if table.startswith(prefix)
    }
    reported, part.tables = part.tables, said
    for table, entry in reported.items():
        if table in said:
            part.tables[table] = replace(said[table], state=entry.state, error=entry.error)
        else:
            part.tables[table] = entry
    report = wire_of(pipeline).latest(DeliveryReport, name) or DeliveryReport()
    flow = sink.sources.get(pipeline.source_id)
    if flow is None or report.at > before.asked_at:
        return
    # Loops report now and then: the sink may have said more since. A counter must not go back.
    part.changes_delivered = max(part.changes_delivered, flow.changes_delivered)
    positions = [each for each in (part.delivered_lsn, flow.delivered_lsn) if each is not None]
    part.delivered_lsn = max(positions, key=Lsn.parse, default=None)


def _together(parts: list[SinkStatus], views: list[PipelineFile]) -> SinkStatus:
    """The sum, or the worst; tables of two sources may have one name."""
    return SinkStatus(
        lag_bytes=_worst(part.lag_bytes for part in parts),
        lag_seconds=_worst(part.lag_seconds for part in parts),
        log_age_seconds=_worst(part.log_age_seconds for part in parts),
        changes_delivered=sum(part.changes_delivered for part in parts),
        parked=sum(part.parked for part in parts),
        error=next((part.error for part in parts if part.error), None),
        sources={source_id: flow for part in parts for source_id, flow in part.sources.items()},
        tables={
            f"{view.source_id}/{table}": entry
            for view, part in zip(views, parts, strict=True)
            for table, entry in part.tables.items()
        },
        subscriptions={
            f"{view.source_id}/{id_}": entry
            for view, part in zip(views, parts, strict=True)
            for id_, entry in part.subscriptions.items()
        },
    )


_Number = TypeVar("_Number", int, float)


def _worst(lags: Iterable[_Number | None]) -> _Number | None:
    """Of those that are known."""
    return max((lag for lag in lags if lag is not None), default=None)


def _reported(pipeline: PipelineFile, name: str) -> SinkStatus:
    """What the loop last said."""
    report = wire_of(pipeline).latest(DeliveryReport, name) or DeliveryReport()
    status = SinkStatus(
        delivered_lsn=_text(report.delivered_lsn),
        changes_delivered=report.changes_delivered,
        tables={
            table: TableStatus(state=each.state, error=each.error)
            for table, each in report.tables.items()
        },
    )
    is_running = top_wire_of(pipeline).delivering_run(name) is not None
    status.error = _news(report.error, is_running=is_running)
    return status


def _complete(pipeline: PipelineFile, name: str, status: SinkStatus, source: SourceStatus) -> None:
    """Add what follows from the rest: tables that are new, and the lag."""
    wire = wire_of(pipeline)
    new = TableStatus("pending" if pipeline.source.snapshot.copies_first else "streaming")
    for table in (wire.latest(MembershipReport) or MembershipReport()).published:
        status.tables.setdefault(table, new)
    if status.delivered_lsn is not None:
        delivered = Lsn.parse(status.delivered_lsn)
        waiting_since = _waiting_since(pipeline, delivered)
        newest = source.newest_lsn
        if source.slot_has_changes is False and waiting_since is None:
            status.lag_bytes = 0  # the log may go on, with marks of time alone
        elif newest is not None:
            status.lag_bytes = max(0, Lsn.parse(newest) - delivered)
        report = wire.latest(DeliveryReport, name) or DeliveryReport()
        status.lag_seconds = _lag_seconds(pipeline, waiting_since, status.lag_bytes, report, source)
        status.log_age_seconds = _log_age_seconds(pipeline, waiting_since, delivered, report)
    flow = {each.name: getattr(status, each.name) for each in fields(FlowStatus)}
    status.sources = {pipeline.source_id: FlowStatus(**flow)}


def _waiting_since(pipeline: PipelineFile, delivered: Lsn) -> int | None:
    """When the first commit was that the log holds and the sink does not, with rows or changes of tables."""
    if time.monotonic() < _away_until.get(pipeline.name, 0.0):
        return None
    reader = log_of(pipeline).reader(delivered)
    try:
        while slices := reader.read(1):
            heads = [ref.head for ref in slices]
            if any(head.meta.get("relations") or head.meta.get("schema") for head in heads):
                return max(head.committed_at for head in heads)  # parts do not know it yet
    except PenstockError as error:
        _note_away(pipeline, error)
        return None
    finally:
        reader.close()
    return None


def _lag_seconds(
    pipeline: PipelineFile,
    waiting_since: int | None,
    lag_bytes: int | None,
    report: DeliveryReport,
    source: SourceStatus,
) -> float | None:
    """The age of the oldest commit that the log holds and the sink does not; or, where capture does not keep up,
    of the last one that the sink has."""
    if waiting_since is not None:
        return _age(waiting_since)
    if not lag_bytes or (
        wire_of(pipeline).capturing_run() is not None and not _is_behind(pipeline, source)
    ):
        return 0.0
    # What the source has written since is not known, only since when.
    return _age(report.committed_at) if report.committed_at else None


def _is_behind(pipeline: PipelineFile, source: SourceStatus) -> bool:
    """Whether capture hangs, or has not received for long what the server has."""
    now = time.time()
    if source.reported_at is not None and now - source.reported_at > timing().watch_stale_seconds:
        return True
    # At every beat an idle source moves, and that is reported a little later.
    beat = max(
        pipeline.source.heartbeat_seconds, pipeline.paced(timing().capture_paced_beat_seconds)
    )
    limit = 2 * beat + timing().capture_quiet_status_seconds
    return source.unreceived_since is not None and now - source.unreceived_since > limit


def _log_age_seconds(
    pipeline: PipelineFile, waiting_since: int | None, delivered: Lsn, report: DeliveryReport
) -> float:
    """The age of the oldest commit that the log keeps for the sink, or for a table that has stopped there."""
    if report.safe_lsn is not None and report.safe_lsn < delivered:
        waiting_since = _waiting_since(pipeline, report.safe_lsn) or waiting_since
    return _age(waiting_since) if waiting_since is not None else 0.0


def _text(lsn: Lsn | None) -> str | None:
    return str(lsn) if lsn is not None else None


def _age(committed_at: int) -> float:
    unix_seconds = (committed_at + EPOCH_2000_UNIX_MICROSECONDS) / 1_000_000
    return round(max(0.0, time.time() - unix_seconds), 3)
