"""Which tables flow with a sink's position, which are detached, and whose turn it is to catch up."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import SchemaChangeRefused, TargetTableUnfit
from penstock.lsn import ZERO, Lsn
from penstock.retry import BackOff, may_pass, slow_back_off
from penstock.run.drift import PartitionDrift
from penstock.run.members import Members, table_name
from penstock.sinks.tables import TableState
from penstock.state.reports import CaptureReport, MembershipReport, SeenMembers
from penstock.table import TableName, name_tables
from penstock.text import printable
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    from penstock.log.contract import Log
    from penstock.run.ddl_transactions import DdlTransactionReader
    from penstock.run.delivered import Requests
    from penstock.sinks.sink import Sink
    from penstock.sinks.tables import DetachedTable
    from penstock.state.wire import Wire

_log = logging.getLogger(__name__)

# Among many tables a poll takes its time: it gets this part of it.
_MANY_TABLES = 100
_POLL_SHARE = 0.3
# How the reason of a copy begins that the target refused: another table may be in its way.
_REFUSALS = (TargetTableUnfit.code, SchemaChangeRefused.code)


class TableKeeper:
    """Keeps one sink's tables in step with what is published and what people ask for.

    `copies_first`: a table that is not known yet is to be copied before its changes are applied.
    `pace`: how much less often than those of a sole source tables are polled while nothing happens.
    `excludes`: which tables the sink is not to have, though they are published.
    `requests`: what people on machines ask for that do not see the sink's working files.
    """

    def __init__(
        self,
        sink: Sink,
        log: Log,
        wire: Wire,
        ddl_transactions: DdlTransactionReader,
        *,
        copies_first: bool,
        pace: float = 1.0,
        excludes: Callable[[TableName], bool] = lambda _: False,
        requests: Requests | None = None,
    ) -> None:
        self._sink = sink
        self._log = log
        self._ddl_transactions = ddl_transactions
        self._wire = wire
        self._copies_first = copies_first
        self._excludes = excludes
        self._requests = requests
        self._idle_seconds = timing().tables_idle_seconds * pace
        self._poll_at = 0.0
        self._is_busy = True
        self._polled_at = 0.0
        self._pause_seconds = 0.0
        self._has_news = False
        self._seen_report_at = 0.0
        # Compared, not ordered: capture may run on another machine, with another clock.
        before = wire.latest(MembershipReport)
        self._stale_at = before.at if before is not None else None
        self._has_seen_members = False
        self._are_members_delayed = False  # tables that the rules choose have yet to be published
        self._is_ahead = False  # the catalog was read later than the log goes
        self._are_names_taken = False  # copies are to be scheduled once others give up their names
        seen = wire.latest(SeenMembers, sink.name) or SeenMembers()
        # By name: their oids. And by oid, those of their entries in the publications.
        self._members = {table_name(text): oid for text, oid in seen.oids.items()}
        self._entries = seen.entries
        self._drift = PartitionDrift(wire, sink.name)
        self._pending: set[TableName] = set()
        # How members, past shapes and tables stood when all were last found in step.
        self._matched: tuple[Any, ...] | None = None
        self._waits: dict[TableName, tuple[float, BackOff]] = {}
        self._tried: set[TableName] = set()
        # Copies that failed while other tables were not at their places; and that were tried once more since.
        self._failed_amid: set[TableName] = set()
        self._tried_at_rest: set[TableName] = set()

    @property
    def safe_lsn(self) -> Lsn | None:
        """From where on the log is still wanted by tables that are detached; None when by none."""
        return min(
            (
                table.delivered_lsn
                for table in self._sink.tables.detached.values()
                if table.keeps_log
            ),
            default=None,
        )

    @property
    def requests_taken(self) -> int:
        """The number of the last request of another machine that was taken."""
        return 0 if self._requests is None else self._requests.taken

    def holds_flow(self, lsn: Lsn) -> bool:
        """Whether nothing flows yet: as long as every table is being copied, changes may wait.

        Not where one waits to be copied until the sink has come further.
        """
        return not self._sink.tables.streaming and any(
            table.is_underway and table.delivered_lsn <= lsn
            for table in self._sink.tables.detached.values()
        )

    @property
    def is_settled(self) -> bool:
        """Whether every table flows and has its keys, but for those that failed, and again.

        A copy that failed because a server was away, or Spark, has yet to be made.
        """
        if not self._has_seen_members or self._are_members_delayed:
            return False
        if self._sink.tables.objects_due or self._are_names_taken or self._failed_amid:
            return False
        for name, table in self._sink.tables.detached.items():
            if table.state == TableState.REMOVED:
                continue
            if table.is_underway or table.state == TableState.CATCHING_UP:
                return False
            if may_pass(table.error) if table.needs_copy else name not in self._tried:
                return False
        return True

    def are_on_their_way(self) -> bool:
        """Whether some do not flow or lack keys: the copier may be needed; from another thread."""
        return self._sink.tables.objects_due or any(
            table.state != TableState.REMOVED for table in list(self._sink.tables.detached.values())
        )

    def have_notes(self) -> bool:
        """Whether some lack an object that somebody may have made since; from another thread."""
        return self._sink.tables.has_notes

    def is_due(self, now: float, *, is_committing: bool) -> bool:
        """Whether it is time to poll again: often while tables change, and when members may have.

        A commit that is under way would have to be waited for, by the next job too: in a backlog, where one always is,
        what only comes round is polled less often.
        """
        if now < self._polled_at + self._pause_seconds:
            return False
        is_delayed = is_committing and not self._is_busy
        poll_at = self._poll_at + (timing().tables_backlog_seconds if is_delayed else 0.0)
        return self._has_news or now >= poll_at or self._report_at() != self._seen_report_at

    def poll(self, lsn: Lsn, now: float) -> bool:
        """See what copiers and people have done, and what is published. Never during a commit.

        The answer: whether there are more tables that wait to be copied.
        """
        self._polled_at, self._has_news = now, False
        began = time.monotonic()
        if self._requests is not None:
            self._requests.take()
        self._sink.refresh_tables(lsn)
        self._match_members(lsn)
        self._try_at_rest(lsn)
        is_busy = any(
            table.is_underway or table.state == TableState.CATCHING_UP
            for table in self._sink.tables.detached.values()
        )
        waits_for_members = (
            self._is_ahead or self._are_members_delayed or not self._has_seen_members
        )
        self._is_busy = is_busy or waits_for_members or self._sink.tables.objects_due
        self._poll_at = now + (
            timing().tables_busy_seconds if self._is_busy else self._idle_seconds
        )
        before = self._pending
        self._pending = {
            n
            for n, table in self._sink.tables.detached.items()
            if table.state == TableState.PENDING
        }
        self._pause_seconds = timing().tables_news_seconds
        if len(self._sink.tables.streaming) + len(self._sink.tables.detached) > _MANY_TABLES:
            took = time.monotonic() - began
            self._pause_seconds = min(
                max(timing().tables_news_seconds, took / _POLL_SHARE), timing().tables_idle_seconds
            )
        return bool(self._pending - before)

    def _try_at_rest(self, lsn: Lsn) -> None:
        """Try copies again that the target refused while other tables stood elsewhere in the stream.

        What was in their way may have gone. Once: what is refused then waits for a person, or for its time.
        """
        detached = self._sink.tables.detached
        self._tried_at_rest &= set(detached)
        failed = {
            name
            for name, table in detached.items()
            if table.state == TableState.FAILED
            and table.needs_copy
            and table.error.startswith(_REFUSALS)
        }
        self._failed_amid &= failed
        if any(
            (table.is_underway or table.state == TableState.CATCHING_UP)
            and name not in self._tried_at_rest
            for name, table in detached.items()
        ):
            self._failed_amid |= failed
        elif self._failed_amid:
            again, self._failed_amid = self._failed_amid, set()
            self._tried_at_rest |= again
            self._sink.tables.schedule_copy(
                {name: detached[name].oid for name in again}, lsn, is_new=False
            )
            _log.info("%s to be copied, now that the other tables are there", name_tables(again))

    def poll_soon(self) -> None:
        """Poll again at the next occasion; from another thread."""
        self._has_news = True

    def unknown(self, tables: Collection[TableName]) -> set[TableName]:
        """Those of the tables whose copy must be scheduled before anything of them is delivered."""
        if not self._copies_first:
            return set()
        return set(tables) - self._sink.tables.streaming - set(self._sink.tables.detached)

    def skipped(self, lsn: Lsn) -> set[TableName]:
        """The tables that batches skip: those that are detached, by their names at the sink's position."""
        return {
            self._called(name, table, lsn) for name, table in self._sink.tables.detached.items()
        }

    def _called(self, name: TableName, table: DetachedTable, lsn: Lsn) -> TableName:
        if table.oid and table.state != TableState.REMOVED:
            return self._ddl_transactions.name_of(table.oid, lsn) or name
        if table.needs_copy or table.delivered_lsn >= lsn:
            return name
        return self._ddl_transactions.name_at(name, table.delivered_lsn, lsn)

    def next_group(self, lsn: Lsn, now: float) -> set[TableName]:
        """Tables that stand at one position and can catch up with `lsn` now; empty when none can."""
        ready = {
            name: table
            for name, table in self._sink.tables.detached.items()
            if table.can_catch_up and table.delivered_lsn <= lsn
        }
        fresh = {name for name, table in ready.items() if table.state == TableState.CATCHING_UP}
        if fresh:
            first = min(ready[name].delivered_lsn for name in fresh)
            return {name for name in fresh if ready[name].delivered_lsn == first}
        for name in ready:
            due, _ = self._waits.setdefault(
                name, (now + timing().slow_retry_first_seconds, slow_back_off())
            )
            if now >= due:
                return {name}
        return set()

    def retry_now(self, table: TableName) -> None:
        """Let a table that failed have its turn at the next occasion; from another thread."""
        self._waits[table] = (0.0, slow_back_off())
        self._has_news = True

    def note_tried(self, tables: Collection[TableName]) -> None:
        """Tables have had their turn; those that failed get another one later."""
        for name in tables:
            table = self._sink.tables.detached.get(name)
            if table is None or table.state == TableState.CATCHING_UP:
                self._waits.pop(name, None)
                continue
            self._tried.add(name)
            _, back_off = self._waits.setdefault(name, (0.0, slow_back_off()))
            self._waits[name] = (time.monotonic() + back_off.next_seconds(), back_off)

    def _report_at(self) -> float:
        return self._wire.published_at(MembershipReport) if self._copies_first else 0.0

    def _match_members(self, lsn: Lsn) -> None:
        self._seen_report_at = self._report_at()
        report = self._wire.latest(MembershipReport)
        if report is None or report.at in (None, self._stale_at):
            return  # of an earlier run: what it does not name need not be gone
        stand = (
            replace(report, at=None),
            self._ddl_transactions.last_lsn,
            set(self._sink.tables.streaming),
            dict(self._sink.tables.detached),
        )
        if stand == self._matched:
            return
        self._matched = None
        members = Members.of(report).without(self._excludes)
        self._report_drift(report, members.oids)
        if not self._copies_first:
            # A table that goes and comes again would miss what it is skipped for.
            self._note_members(report)
            return
        # The stream itself reports what was renamed or dropped, once it has come so far.
        if lsn >= members.lsn:
            self._let_go(members, self._known_oids(lsn))
        self._is_ahead = not self._is_captured(members.lsn)
        if self._is_ahead:
            return
        self._rename_waiting(members, lsn)
        oids = self._known_oids(lsn)
        self._schedule_new(members, oids, lsn)
        self._schedule_again(members, oids, lsn)
        self._remember(members, oids, lsn)
        self._note_members(report)
        # Once the sink has passed all past shapes, its position makes no difference.
        if lsn >= members.lsn and lsn > self._ddl_transactions.last_lsn:
            self._matched = stand

    def _note_members(self, report: MembershipReport) -> None:
        """What is published has been acted on."""
        self._has_seen_members = True
        self._are_members_delayed = any(
            not self._excludes(table_name(text)) for text in report.delayed
        )

    def _report_drift(self, report: MembershipReport, members: dict[TableName, int]) -> None:
        streaming = {
            name: oid for name, oid in members.items() if name in self._sink.tables.streaming
        }
        waiting = [
            members[name]
            for name, table in self._sink.tables.detached.items()
            if name in members and table.needs_copy and table.state != TableState.COPYING
        ]
        for name, lines in self._drift.compare(
            report.partitions,
            streaming,
            waiting,
            self._ddl_transactions.left_partitions(),
            self._ddl_transactions.filled_partitions(),
        ).items():
            _log.warning("%s: %s", name, "; ".join(lines))
            self._sink.tables.note(name, "\n".join(map(printable, lines)))
        self._drift.remember()

    def _known_oids(self, lsn: Lsn) -> dict[TableName, int]:
        """The tables that the sink knows, with their oids where it or the past shapes have them."""
        oids = {
            name: self._ddl_transactions.oid_at(name, lsn) for name in self._sink.tables.streaming
        }
        for name, table in self._sink.tables.detached.items():
            at = lsn if table.needs_copy else table.delivered_lsn
            oids[name] = table.oid or self._ddl_transactions.oid_at(name, at)
        return oids

    def _name_at(self, oid: int, members: Members, lsn: Lsn) -> TableName | None:
        """What a table is called where the sink stands; None when the stream reports it later.

        As the stream says. Once that has come to where the catalog was read and has reported nothing of
        it since, as it was seen there: not everything is reported where the source has no triggers.
        """
        streamed, seen = self._ddl_transactions.name_of(oid, lsn), members.names.get(oid)
        if streamed is None:
            return None if self._ddl_transactions.came_after(oid, lsn) else seen
        if lsn < members.lsn or self._ddl_transactions.was_reported_after(
            oid, members.since_lsn, lsn
        ):
            return streamed
        return seen or streamed

    def _let_go(self, members: Members, oids: dict[TableName, int]) -> None:
        """Tables that are published no more; not those that came after the catalog was read."""
        detached = self._sink.tables.detached
        gone = {
            name
            for name, oid in oids.items()
            if name not in members.oids
            and oid not in members.names
            and not self._ddl_transactions.came_after(oid, members.since_lsn)
            and (name not in detached or detached[name].state != TableState.REMOVED)
        }
        if gone:
            self._sink.tables.remove(gone)
            _log.info("%s followed no more", name_tables(gone))

    def _rename_waiting(self, members: Members, lsn: Lsn) -> None:
        """Tables that need a copy wait under the names that they have where the sink stands.

        The stream sees to that itself, but for those that needed none yet when it came by.
        """
        for name, table in list(self._sink.tables.detached.items()):
            if not table.needs_copy or table.state == TableState.REMOVED or not table.oid:
                continue
            called = self._name_at(table.oid, members, lsn)
            if called not in (None, name) and called not in self._taken:
                self._sink.tables.rename(name, called, lsn)
                _log.info("%s is %s by now, and to be copied", name, called)

    @property
    def _taken(self) -> set[TableName]:
        """The names that are in use."""
        detached = self._sink.tables.detached
        return self._sink.tables.streaming | {
            n for n, table in detached.items() if table.state != TableState.REMOVED
        }

    def _schedule_new(self, members: Members, oids: dict[TableName, int], lsn: Lsn) -> None:
        detached, taken = self._sink.tables.detached, self._taken
        known = {oid for name, oid in oids.items() if oid and name in taken}
        new: dict[TableName, int] = {}
        self._are_names_taken = False
        for oid in members.names:
            if oid in known or self._is_the_streams(oid, lsn):
                continue
            name = self._name_at(oid, members, lsn)
            if name is None:
                continue
            before = detached.get(name)
            if name not in taken or self._is_replaced(name, oid, before, members):
                new[name] = oid
            elif before is not None and before.state == TableState.CATCHING_UP:
                self._are_names_taken = True  # by one that has yet to come to its new name
        if new:
            self._sink.tables.schedule_copy(new, lsn)
            _log.info("%s to be copied", name_tables(new))

    def _is_replaced(
        self, name: TableName, oid: int, before: DetachedTable | None, members: Members
    ) -> bool:
        """Whether another table has the name now, and nothing of the first one is on its way."""
        if before is None:
            return self._is_made_anew(name, oid)
        # One that waits for its copy and is gone: its copy would wait for ever, whatever was remembered of the name.
        is_gone = before.oid not in (0, oid) and before.oid not in members.names
        return before.needs_copy and (is_gone or self._is_made_anew(name, oid))

    def _is_the_streams(self, oid: int, lsn: Lsn) -> bool:
        """Whether the stream brings a table from its first row on, or has dropped it since."""
        reader = self._ddl_transactions
        return reader.will_be_created(oid, lsn) or reader.is_gone(oid)

    def _schedule_again(self, members: Members, oids: dict[TableName, int], lsn: Lsn) -> None:
        """Tables that left the publications and came back: what happened between was not sent."""
        detached = self._sink.tables.detached
        known = self._sink.tables.streaming | {
            name
            for name, table in detached.items()
            if table.state == TableState.COPYING
            or (table.state != TableState.REMOVED and not table.needs_copy)
        }
        back = self._published_anew(members)
        # By the names that the sink has for them, which may be older.
        names = members.names | {oid: name for name, oid in oids.items() if oid}
        missed = {names[oid]: oid for oid in back if oid in names and names[oid] in known}
        if missed:
            self._sink.tables.schedule_copy(missed, lsn, is_new=False)
            _log.warning(
                "%s to be copied again: published anew, and what happened before that was not sent",
                name_tables(missed),
            )

    def _published_anew(self, members: Members) -> set[int]:
        """Tables that have none of the entries in publications that they had."""
        found = set()
        for oid, now in members.entries.items():
            before = self._entries.get(oid) or self._ddl_transactions.first_entries(oid)
            if before and not set(before) & set(now):
                found.add(oid)
        return found

    def _remember(self, members: Members, oids: dict[TableName, int], lsn: Lsn) -> None:
        """Keep what was seen, beside the log: tables may go and come back while nobody watches.

        What the sink still has is not forgotten before it is let go. One that the stream is yet to
        bring is compared with its first entries, once it is there.
        """
        kept = self._taken
        seen = {n: oid for n, oid in self._members.items() if n in kept} | members.oids
        held = {*seen.values(), *(oids[name] for name in kept & set(oids))}
        known = {oid: each for oid, each in self._entries.items() if oid in held} | {
            oid: each
            for oid, each in members.entries.items()
            if not self._ddl_transactions.will_be_created(oid, lsn)
        }
        if (seen, known) != (self._members, self._entries):
            self._members, self._entries = seen, known
            oids_by_text = {str(name): oid for name, oid in seen.items()}
            self._wire.publish(SeenMembers(oids_by_text, known), self._sink.name)

    def _is_captured(self, lsn: Lsn) -> bool:
        """Whether the log goes so far; a report of that comes seldom, and the log says it at once."""
        report = self._wire.latest(CaptureReport)
        if report is not None and (report.durable_lsn or ZERO) >= lsn:
            return True
        end_lsn = self._log.end_lsn()
        return end_lsn is not None and end_lsn >= lsn

    def _is_made_anew(self, name: TableName, oid: int) -> bool:
        """Whether a table was dropped and made again under its name: another one, with other rows.

        What was there before is remembered beside the log, so that it is noticed after a stop as well.
        """
        return bool(self._members.get(name, oid) != oid)
