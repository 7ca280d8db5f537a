"""What a sink cannot know from the stream: partitions that came with rows, or went with theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.state.reports import SeenPartitions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.state.reports import Partitions
    from penstock.state.wire import Wire
    from penstock.table import TableName

_MEND = "penstock tables PIPELINE.yml resync {} makes both sides equal"
_CAME = "partition {} was attached with rows, which no change tells of"
_WENT = "partition {} was detached or dropped, its rows stay at the target"
_TOLD_KEPT = 2000


class PartitionDrift:
    """Compares the partitions of tables with those that one sink has seen; also after a stop."""

    def __init__(self, wire: Wire, sink: str) -> None:
        self._wire = wire
        self._sink = sink
        self._seen: Partitions | None = None
        self._now: Partitions = {}
        self._told: dict[int, None] = {}  # partitions that have left, in order
        self._left: set[int] = set()

    def look(
        self,
        partitions: Partitions,
        flowing: Mapping[TableName, int],
        waiting: Collection[int],
        left: Mapping[int, Mapping[int, TableName]] | None = None,
    ) -> dict[TableName, list[str]]:
        """What is to be said of tables, by what was last reported of the source; until `remember`.

        Of those that are `flowing`. Those that are `waiting` are copied as they are; what happens
        while one is being copied is looked at afterwards. `left` are partitions that are no more, as
        the stream tells: one may have come and gone between two polls.
        """
        seen = self._seen_before()
        self._left = set()
        names = {oid: name for name, oid in flowing.items()}
        compared = {*names, *waiting}
        self._now = {
            root: leaves
            for root, leaves in partitions.items()
            if root in compared or root not in seen
        }
        told: dict[TableName, list[str]] = {}
        for root, leaves in self._now.items():
            before = seen.get(root, leaves)
            gone = (left or {}).get(root, {})
            self._left |= {*gone, *(leaf for leaf in before if leaf not in leaves)}
            lines = [
                *(_WENT.format(name) for leaf, (name, _) in before.items() if leaf not in leaves),
                *(
                    _CAME.format(name)
                    for leaf, (name, came_filled) in leaves.items()
                    if leaf not in before and came_filled
                ),
                *(
                    _WENT.format(name)
                    for leaf, name in gone.items()
                    if root in seen and leaf not in before and leaf not in self._told
                ),
            ]
            if lines and root in names:
                told[names[root]] = [*lines, _MEND.format(names[root])]
        return told

    def remember(self) -> None:
        """What was looked at has been told."""
        seen = self._seen_before()
        is_new = any(seen.get(root) != leaves for root, leaves in self._now.items())
        if is_new or not self._left <= self._told.keys():
            self._seen = seen | self._now
            self._told |= dict.fromkeys(sorted(self._left))
            left = tuple(self._told)[-_TOLD_KEPT:]
            self._wire.publish(SeenPartitions(self._seen, left), self._sink)

    def _seen_before(self) -> Partitions:
        if self._seen is None:
            report = self._wire.latest(SeenPartitions, self._sink) or SeenPartitions()
            self._seen = report.partitions
            self._told = dict.fromkeys(report.left)
        return self._seen
