"""What a sink cannot know from the stream: partitions that came with rows, or went with theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.state.reports import SeenPartitions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.state.reports import Partitions
    from penstock.state.wire import Wire
    from penstock.table import TableName

    Leaves = Mapping[int, Mapping[int, TableName]]

_FIX = "penstock tables PIPELINE.yml resync {} makes both sides equal"
_CAME = "partition {} was attached with rows, which no change reports"
_WENT = "partition {} was detached or dropped, its rows stay at the target"
_REPORTED_KEPT = 2000


class PartitionDrift:
    """Compares the partitions of tables with those that one sink has seen; also after a stop."""

    def __init__(self, wire: Wire, sink: str) -> None:
        self._wire = wire
        self._sink = sink
        self._seen: Partitions | None = None
        self._now: Partitions = {}
        # Partitions that have left, and those that came with rows, in order.
        self._reported_left: dict[int, None] = {}
        self._reported_came: dict[int, None] = {}
        self._left: set[int] = set()
        self._came: set[int] = set()

    def compare(
        self,
        partitions: Partitions,
        streaming: Mapping[TableName, int],
        waiting: Collection[int],
        left: Leaves | None = None,
        filled: Leaves | None = None,
    ) -> dict[TableName, list[str]]:
        """What is to be noted of tables that are `streaming`, by name; the same again until `remember`.

        `partitions` are those that the source has. Tables that are `waiting` are copied as they are; what
        happens while one is being copied is compared afterwards. `left` are partitions that the stream
        reports as gone: one may have come and gone between two polls. `filled` are those that it reports as
        attached with rows, which the source's catalog does not always show.
        """
        seen = self._seen_before()
        self._left, self._came = set(), set()
        names = {oid: name for name, oid in streaming.items()}
        compared = {*names, *waiting}
        self._now = {
            root: leaves
            for root, leaves in partitions.items()
            if root in compared or root not in seen
        }
        found: dict[TableName, list[str]] = {}
        for root in self._now:
            went = self._which_went(root, (left or {}).get(root, {}))
            came = self._which_came(root, (filled or {}).get(root, {}))
            lines = [*map(_WENT.format, went), *map(_CAME.format, came)]
            if lines and root in names:
                found[names[root]] = [*lines, _FIX.format(names[root])]
        return found

    def _which_went(self, root: int, gone: Mapping[int, TableName]) -> Collection[str]:
        """Partitions that were seen and are not there, and those that the stream reports and nobody saw."""
        seen, leaves = self._seen_before(), self._now[root]
        before = seen.get(root, leaves)
        went = {leaf: each.name for leaf, each in before.items() if leaf not in leaves}
        self._left |= {*gone, *went}
        if root in seen:
            unseen = gone.keys() - before.keys() - self._reported_left.keys()
            went |= {leaf: str(name) for leaf, name in gone.items() if leaf in unseen}
        return went.values()

    def _which_came(self, root: int, full: Mapping[int, TableName]) -> Collection[str]:
        """Partitions that are there with rows and were not seen, by the catalog or by the stream."""
        seen, leaves = self._seen_before(), self._now[root]
        before = seen.get(root, leaves)
        came = {
            leaf: each.name
            for leaf, each in leaves.items()
            if leaf not in before and each.came_filled and leaf not in self._reported_came
        }
        self._came |= {*full, *came}
        if root in seen:
            unseen = full.keys() - came.keys() - self._reported_came.keys()
            came |= {leaf: str(name) for leaf, name in full.items() if leaf in unseen}
        return came.values()

    def remember(self) -> None:
        """What was compared last has been noted."""
        seen = self._seen_before()
        if (
            any(seen.get(root) != leaves for root, leaves in self._now.items())
            or not self._left <= self._reported_left.keys()
            or not self._came <= self._reported_came.keys()
        ):
            self._seen = seen | self._now
            self._reported_left |= dict.fromkeys(sorted(self._left))
            self._reported_came |= dict.fromkeys(sorted(self._came))
            left = tuple(self._reported_left)[-_REPORTED_KEPT:]
            came = tuple(self._reported_came)[-_REPORTED_KEPT:]
            self._wire.publish(SeenPartitions(self._seen, left, came), self._sink)

    def _seen_before(self) -> Partitions:
        if self._seen is None:
            report = self._wire.latest(SeenPartitions, self._sink) or SeenPartitions()
            self._seen = report.partitions
            self._reported_left = dict.fromkeys(report.left)
            self._reported_came = dict.fromkeys(report.came)
        return self._seen
