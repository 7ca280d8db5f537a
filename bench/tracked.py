"""What it costs the stream that the source's triggers are there."""

from __future__ import annotations

from typing import Any

from bench.backlogs import Mixed
from bench.ours import Penstock


class Untracked(Penstock):
    """Nothing at the source notices changes of tables."""

    name = "penstock, tracking off"

    def followed(self, source: dict[str, Any]) -> dict[str, Any]:
        """See Penstock."""
        return {"source": {**source, "schema": {"tracking": "off"}}}


class Tracked(Mixed):
    """The mixed backlog, with event triggers at the source and without."""

    name = "tracked"
    required = "≥ 0.98 of the rate without triggers"
    least_ratio = 0.98
    baseline = Untracked.name
    systems = (Untracked, Penstock)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"the same backlog of {self.count:,} changes, with triggers for schema changes"
