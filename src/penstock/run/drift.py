"""What a sink cannot know from the stream: partitions that came with rows, or went with theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.run.state import StateDirectory
    from penstock.table import TableName

_MEND = "penstock tables PIPELINE.yml resync {} makes both sides equal"
_CAME = "partition {} was attached with rows, which no change tells of"
_WENT = "partition {} was detached or dropped, its rows stay at the target"


class PartitionDrift:
    """Compares the partitions of tables with those that one sink has seen; also after a stop."""

    def __init__(self, state: StateDirectory, sink: str) -> None:
        self._state = state
        self._report_name = f"sinks/{sink}.partitions"
        self._seen: dict[str, dict[str, list[Any]]] | None = None

    def look(
        self, report: Mapping[str, Any], flowing: Mapping[TableName, int]
    ) -> dict[TableName, list[str]]:
        """What is to be said of tables, by what was last reported of the source.

        Of those that flow: whoever is being copied is looked at afterwards.
        """
        seen = self._seen_before()
        told: dict[TableName, list[str]] = {}
        names = {str(oid): name for name, oid in flowing.items()}
        now = {
            root: leaves
            for root, leaves in report.get("partitions", {}).items()
            if root in names or root not in seen
        }
        for root, leaves in now.items():
            before = seen.get(root, leaves)
            lines = [
                *(_WENT.format(name) for leaf, (name, _) in before.items() if leaf not in leaves),
                *(
                    _CAME.format(name)
                    for leaf, (name, came_filled) in leaves.items()
                    if leaf not in before and came_filled
                ),
            ]
            if lines and root in names:
                told[names[root]] = [*lines, _MEND.format(names[root])]
        if any(seen.get(root) != leaves for root, leaves in now.items()):
            self._seen = seen | now
            self._state.write_report(self._report_name, {"partitions": self._seen})
        return told

    def _seen_before(self) -> dict[str, dict[str, list[Any]]]:
        if self._seen is None:
            self._seen = self._state.read_report(self._report_name).get("partitions", {})
        return self._seen
