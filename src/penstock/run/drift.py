"""What a sink cannot know from the stream: partitions that came with rows, or went with theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.state.reports import SeenPartitions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.source.partitions import Partition
    from penstock.state.reports import Partitions
    from penstock.state.wire import Wire
    from penstock.table import TableName

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
        self._reported: dict[int, None] = {}  # partitions that have left, in order
        self._left: set[int] = set()

    def compare(
        self,
        partitions: Partitions,
        streaming: Mapping[TableName, int],
        waiting: Collection[int],
        left: Mapping[int, Mapping[int, TableName]] | None = None,
    ) -> dict[TableName, list[str]]:
        """What is to be noted of tables that are `streaming`, by name; the same again until `remember`.

        `partitions` are those that the source has. Tables that are `waiting` are copied as they are; what
        happens while one is being copied is compared afterwards. `left` are partitions that the stream
        reports as gone: one may have come and gone between two polls.
        """
        seen = self._seen_before()
        self._left = set()
        names = {oid: name for name, oid in streaming.items()}
        compared = {*names, *waiting}
        self._now = {
            root: leaves
            for root, leaves in partitions.items()
            if root in compared or root not in seen
        }
        found: dict[TableName, list[str]] = {}
        for root, leaves in self._now.items():
            before = seen.get(root, leaves)
            gone = (left or {}).get(root, {})
            self._left |= {*gone, *(leaf for leaf in before if leaf not in leaves)}
            lines = _differences(before, leaves)
            if root in seen:
                unseen = gone.keys() - before.keys() - self._reported.keys()
                lines += [_WENT.format(name) for leaf, name in gone.items() if leaf in unseen]
            if lines and root in names:
                found[names[root]] = [*lines, _FIX.format(names[root])]
        return found

    def remember(self) -> None:
        """What was compared last has been noted."""
        seen = self._seen_before()
        is_new = any(seen.get(root) != leaves for root, leaves in self._now.items())
        if is_new or not self._left <= self._reported.keys():
            self._seen = seen | self._now
            self._reported |= dict.fromkeys(sorted(self._left))
            left = tuple(self._reported)[-_REPORTED_KEPT:]
            self._wire.publish(SeenPartitions(self._seen, left), self._sink)

    def _seen_before(self) -> Partitions:
        if self._seen is None:
            report = self._wire.latest(SeenPartitions, self._sink) or SeenPartitions()
            self._seen = report.partitions
            self._reported = dict.fromkeys(report.left)
        return self._seen


def _differences(before: dict[int, Partition], leaves: dict[int, Partition]) -> list[str]:
    """What partitions of one table have come with rows, or gone, since."""
    went = [each.name for leaf, each in before.items() if leaf not in leaves]
    came = [each.name for leaf, each in leaves.items() if leaf not in before and each.came_filled]
    return [*map(_WENT.format, went), *map(_CAME.format, came)]
