"""What stands still, why, and what a person can do about it; and whether all is ready.

Errors may name keys of rows. Who has not shown the token is given the code and what it means, not the text.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.errors import SubscriptionEnded, error_classes, recognise
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.run.status import PipelineStatus
    from penstock.server.watched import Snapshot
    from penstock.sinks.status import SinkStatus, SubscriptionStatus

HOW_TO_SEE = "give the token to see what was found, and what to do"


@dataclass(frozen=True)
class Problem:
    """One thing that needs somebody, or may soon."""

    level: str  # error | warning
    part: str  # source | sink | table | pipeline
    name: str
    code: str | None
    what: str
    do: str
    sink: str | None = None
    actions: tuple[str, ...] = field(default=())  # what the admin API can do: retry, resync, …
    subscription: str | None = None  # its id, where it is about one

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def without_details(status: PipelineStatus) -> PipelineStatus:
    """The same status for who has not shown the token: no text of an error."""
    return replace(
        status,
        error=brief(status.error),
        sources={
            name: replace(each, error=brief(each.error), tracking_error=brief(each.tracking_error))
            for name, each in status.sources.items()
        },
        sinks={
            name: replace(
                sink,
                error=brief(sink.error),
                sources={
                    source: replace(flow, error=brief(flow.error))
                    for source, flow in sink.sources.items()
                },
                tables={
                    table: replace(entry, error=brief(entry.error)) if entry.error else entry
                    for table, entry in sink.tables.items()
                },
                subscriptions={
                    id_: replace(each, error=None) for id_, each in sink.subscriptions.items()
                },
            )
            for name, sink in status.sinks.items()
        },
    )


def brief(text: str | None) -> str | None:
    """An error by its code and what that means in general."""
    if text is None:
        return None
    code, what = meaning(text)
    return f"{code} {what}\n  Do: {HOW_TO_SEE}"


def meaning(text: str) -> tuple[str, str]:
    """The code of an error, and what it means in general."""
    known = recognise(text)
    cls = type(known) if known is not None else error_classes()["PEN-900"]
    said = (cls.__doc__ or "").strip().partition("\n")[0]
    return cls.code, said[:1].lower() + said[1:].rstrip(".")


def problems(
    snapshot: Snapshot, halves: frozenset[str], *, is_trusted: bool, now: float | None = None
) -> list[Problem]:
    """All of them, errors first."""
    now = time.time() if now is None else now
    status = snapshot.status if is_trusted else without_details(snapshot.status)
    found = [*_of_sources(status, now), *_of_sinks(status, halves)]
    if status.error:
        found.insert(0, _problem("error", "pipeline", status.name, status.error))
    if _is_stale(snapshot.at, now):
        found.insert(
            0,
            Problem(
                "error",
                "pipeline",
                status.name,
                None,
                f"its status was last read at {_clock(snapshot.at)}: what is shown is as old",
                "see the log of the run; start it again if it hangs",
            ),
        )
    return sorted(found, key=lambda each: each.level != "error")


def _is_stale(at: float | None, now: float) -> bool:
    return at is not None and now - at > timing().watch_stale_seconds


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _of_sources(status: PipelineStatus, now: float) -> Iterator[Problem]:
    for name, source in status.sources.items():
        if not source.error and source.connected and _is_stale(source.reported_at, now):
            yield Problem(
                "error",
                "source",
                name,
                None,
                f"capture has not reported since {_clock(source.reported_at or 0.0)}",
                "see the log; kill the capture process (SIGKILL): it is started again and loses nothing",
            )
        if source.error:
            yield _problem("error", "source", name, source.error)
        elif source.tracking_error:
            yield _problem("error", "source", name, source.tracking_error)
        if source.warning:
            yield _problem("warning", "source", name, source.warning)


def _of_sinks(status: PipelineStatus, halves: frozenset[str]) -> Iterator[Problem]:
    can_act = "deliver" in halves
    for name, sink in status.sinks.items():
        if sink.error:
            yield _problem("error", "sink", name, sink.error, sink=name)
        if sink.paused_since:
            yield Problem(
                "warning",
                "sink",
                name,
                None,
                f"paused since {sink.paused_since}; changes wait in the log",
                "resume it when its destination is ready",
                name,
                ("resume",),
            )
        for table, entry in sink.tables.items():
            if entry.error:
                actions = ("retry", "resync") if can_act else ("resync",)
                yield _problem("error", "table", table, entry.error, sink=name, actions=actions)
        if sink.parked:
            yield Problem(
                "warning",
                "sink",
                name,
                None,
                f"{sink.parked:,} changes are parked: the destination refused them",
                "fix what refuses them and retry, or drop them",
                name,
                ("parked",),
            )
        yield from _of_subscriptions(name, sink)


def _of_subscriptions(name: str, sink: SinkStatus) -> Iterator[Problem]:
    """Receivers that do not get what they subscribed to; the others go on."""
    for shown, each in sink.subscriptions.items():
        id_ = id_of(shown)
        if each.state == "failing":
            what = _of_subscription(shown, each)
            do = "correct the receiver; it is tried again"
            yield Problem("warning", "sink", name, None, what, do, name, (), id_)
        elif (ended := ended_subscription(name, shown, each)) is not None:
            level = "warning" if each.state == "disabled" else "error"
            actions = ("resume-subscription",)
            code, what, do = ended.code, ended.what, ended.do
            yield Problem(level, "sink", name, code, what, do, name, actions, id_)


def id_of(shown: str) -> str:
    """The id of a subscription, as the API takes it. With several sources a status has one for each."""
    return shown.rpartition("/")[2]


def _of_subscription(shown: str, each: SubscriptionStatus) -> str:
    return f"subscription {shown} is {each.state}" + (f": {each.error}" if each.error else "")


def ended_subscription(sink: str, shown: str, each: SubscriptionStatus) -> SubscriptionEnded | None:
    """What to say of a subscription that gets nothing more; None of one that goes on."""
    if each.state in ("active", "failing", "pending"):
        return None
    # In one line: it may be the error of something else, with advice of its own.
    what = " ".join(_of_subscription(shown, each).split())
    do = f"correct what it says, then: penstock webhooks PIPELINE.yml resume {id_of(shown)}"
    return SubscriptionEnded(what, f"sink {sink}", do)


def _problem(
    level: str,
    part: str,
    name: str,
    text: str,
    *,
    sink: str | None = None,
    actions: tuple[str, ...] = (),
) -> Problem:
    known = recognise(text)
    if known is None:
        return Problem(level, part, name, None, text, "", sink, actions)
    place = f"{known.where}: " if known.where else ""
    return Problem(level, part, name, known.code, f"{place}{known.what}", known.do, sink, actions)


@dataclass(frozen=True)
class Reason:
    """Why the pipeline is not ready."""

    component: str  # source shop, sink warehouse, table public.orders, …
    error: str


def reasons_not_ready(
    snapshot: Snapshot | None, halves: frozenset[str], now: float | None = None
) -> list[Reason]:
    """Empty when data can move: everything is connected, nothing has failed, and reports come in."""
    if snapshot is None:
        return [Reason("run", "is being started")]
    now = time.time() if now is None else now
    status = snapshot.status
    found = [Reason("pipeline", status.error)] if status.error else []
    if _is_stale(snapshot.at, now):
        found.append(Reason("run", f"its status is {now - snapshot.at:.0f} s old"))
    if "capture" in halves:
        found += _sources_not_ready(status, now)
    if "deliver" in halves:
        found += _sinks_not_ready(status)
    return found


def _sources_not_ready(status: PipelineStatus, now: float) -> Iterator[Reason]:
    for name, source in status.sources.items():
        if source.error:
            yield Reason(f"source {name}", source.error)
        elif not source.connected:
            yield Reason(f"source {name}", "is not connected")
        elif source.reported_at and _is_stale(source.reported_at, now):
            age = now - source.reported_at
            yield Reason(f"source {name}", f"capture has not reported for {age:.0f} s")


def _sinks_not_ready(status: PipelineStatus) -> Iterator[Reason]:
    for name, sink in status.sinks.items():
        if sink.error:
            yield Reason(f"sink {name}", sink.error)
        else:
            missing = [id_ for id_, flow in sink.sources.items() if not flow.delivered_lsn]
            if len(missing) == len(sink.sources):
                yield Reason(f"sink {name}", "is not connected yet")
            elif missing:
                sources = ", ".join(missing)
                yield Reason(f"sink {name}", f"is not connected yet for {sources}")
        for table, entry in sink.tables.items():
            if entry.error:
                yield Reason(f"table {table} at sink {name}", entry.error)
