"""Sinks whose working files lie on the machine that delivers, where the halves share no disk.

What is asked of such a sink on another machine is posted for who delivers, or is an error that says where to ask; what
people are to see of it is in the report of the loop.
"""

from __future__ import annotations

import time
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from penstock.errors import DeliveredElsewhere, LogUnreachable
from penstock.pipeline import board_of, build_copying, state_of, top_of, wire_of
from penstock.run.members import table_name
from penstock.sinks.status import SinkStatus, SubscriptionStatus, TableStatus
from penstock.state.reports import CopyRequest, DeliveryReport
from penstock.state.wire import FileWire
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from penstock.config import PipelineFile
    from penstock.state.wire import Wire
    from penstock.table import TableName

# A report goes through a broker, and is read by all, several times a second.
_MOST_SUBSCRIPTIONS = 200
_MOST_COPIES = 200
# Reading working files takes the flow's own thread: at most so much of its time.
_READING_SHARE = 0.05
_COPY_FIELDS = ("rows_copied", "bytes_copied", "ranges_done", "ranges_total", "request")


def is_shared(pipeline: PipelineFile, sink: str) -> bool:
    """Whether every machine that has the file sees all that is kept of a sink."""
    return board_of(pipeline) is None or not pipeline.kind_of(sink).has_working_files


def is_delivered_here(pipeline: PipelineFile, sink: str) -> bool:
    """Whether this machine delivers a source to a sink, or did so last; or every machine may be asked."""
    if is_shared(pipeline, sink):
        return True
    top = top_of(pipeline)
    if top.run_of(f"deliver-{sink}") is not None:
        return True
    wire = wire_of(pipeline)
    mine = FileWire(state_of(pipeline), top).latest(DeliveryReport, sink)
    if mine is None or wire.delivering_run(sink) is not None:
        return False
    posted = wire.latest(DeliveryReport, sink)
    return posted is None or posted.run == mine.run or posted.at <= mine.at


def require_here(pipeline: PipelineFile, sink: str) -> None:
    """See that who has subscribed to a sink is known on this machine.

    Raises:
        DeliveredElsewhere: it is not.
    """
    if not is_delivered_here(pipeline, sink):
        raise elsewhere(sink, "its subscriptions are kept")


def elsewhere(sink: str, what: str) -> DeliveredElsewhere:
    """The error that says where to ask."""
    return DeliveredElsewhere(
        f"{what} on the machine that delivers to the sink, which this one is not",
        f"sink {sink}",
        "run it where penstock deliver runs, with its state directory; there the server has it, too",
    )


def add_reported(status: SinkStatus, report: DeliveryReport) -> None:
    """Add to a status what the loop reports of working files."""
    status.parked = report.parked
    known = {each.name for each in fields(SubscriptionStatus)}
    for id_, said in report.subscriptions.items():
        status.subscriptions[id_] = SubscriptionStatus(
            **{name: value for name, value in said.items() if name in known}
        )
    for table, said in report.copies.items():
        entry = status.tables.setdefault(table, TableStatus("copying"))
        for name in _COPY_FIELDS:
            setattr(entry, name, said.get(name, getattr(entry, name)))


def add_posted(status: SinkStatus, wire: Wire, sink: str, report: DeliveryReport) -> None:
    """Add to a status what was asked for on other machines, and is not taken yet."""
    posted = wire.latest(CopyRequest, sink)
    if posted is not None and posted.number > report.requests_taken:
        for table in posted.tables:
            status.tables.setdefault(table, TableStatus()).request = "resync"


def ask_for_copies(pipeline: PipelineFile, sink: str, tables: Collection[TableName]) -> None:
    """Have a sink that is delivered to here copy tables again, now or when somebody delivers.

    Raises:
        SinkError: it cannot be reached.
    """
    copying = build_copying(pipeline, sink)
    copying.open()
    try:
        copying.ask(tables)
    finally:
        copying.close()


def post_copy_request(pipeline: PipelineFile, sink: str, tables: Collection[TableName]) -> None:
    """Have who delivers to a sink copy tables again, now or when it runs.

    Raises:
        LogUnreachable: the broker is away.
    """
    wire = wire_of(pipeline)
    before = wire.latest(CopyRequest, sink) or CopyRequest()
    taken = (wire.latest(DeliveryReport, sink) or DeliveryReport()).requests_taken
    waiting = before.tables if before.number > taken else ()
    wanted = dict.fromkeys((*waiting, *map(str, tables)))
    # A number that was taken, and whose request is lost with the broker's memory, is not given again.
    number = max(before.number, taken) + 1
    if not wire.publish(CopyRequest(number, tuple(wanted)), sink):
        raise LogUnreachable(
            "the request could not be posted: the broker does not answer",
            f"sink {sink}",
            "try again when it does, or where the sink is delivered",
        )


class Requests:
    """What people on other machines ask of one sink; for its loop.

    `ask` has tables copied again, and outlasts a crash.
    """

    def __init__(
        self, wire: Wire, sink: str, ask: Callable[[Collection[TableName]], object]
    ) -> None:
        self._wire = wire
        self._sink = sink
        self._ask = ask
        self.taken = (wire.latest(DeliveryReport, sink) or DeliveryReport()).requests_taken

    def take(self) -> None:
        """Take what is new. After a crash a request may be taken again, which only costs time."""
        posted = self._wire.latest(CopyRequest, self._sink)
        if posted is None or posted.number <= self.taken:
            return
        self._ask([table_name(text) for text in posted.tables])
        self.taken = posted.number


class WorkingFiles:
    """What the working files of one sink say, for the reports of its loop; read now and then.

    `read` completes a status, as `SinkKind.read_status` does.
    """

    def __init__(self, read: Callable[[SinkStatus], object]) -> None:
        self._read = read
        self._read_again_at = float("-inf")
        self._reported: dict[str, Any] = {}

    def refresh(self) -> bool:
        """Read them if it is time to; whether there is anything new."""
        now = time.monotonic()
        if now < self._read_again_at:
            return False
        found = SinkStatus()
        self._read(found)
        ended = time.monotonic()
        self._read_again_at = ended + max(
            timing().flow_files_seconds, (ended - now) / _READING_SHARE
        )
        if found.error is not None:  # busy, say: what was known counts
            return False
        before, self._reported = self._reported, _as_reported(found)
        return before != self._reported

    @property
    def reported(self) -> dict[str, Any]:
        """Fields of a DeliveryReport."""
        return self._reported


def _as_reported(found: SinkStatus) -> dict[str, Any]:
    # Where there are very many, those first of which there is something to say. The states and errors of all tables are
    # in the report anyway.
    ordered = sorted(found.subscriptions.items(), key=lambda each: each[1].state == "active")
    copies = sorted(found.tables.items(), key=lambda each: _rank(each[1]))
    return {
        "parked": found.parked,
        "subscriptions": {id_: asdict(each) for id_, each in ordered[:_MOST_SUBSCRIPTIONS]},
        "copies": {
            table: {name: getattr(entry, name) for name in _COPY_FIELDS}
            for table, entry in copies[:_MOST_COPIES]
        },
    }


def _rank(entry: TableStatus) -> int:
    """What is asked for, then what moves, then what has all its ranges, then what has not begun."""
    if entry.request is not None:
        return 0
    if entry.ranges_done < entry.ranges_total:
        return 1 if entry.ranges_done or entry.rows_copied else 3
    return 2
