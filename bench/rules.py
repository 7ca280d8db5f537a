"""What filters and SQL cost: the same backlog of inserts with them and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from bench.backlogs import Inserts
from bench.ours import Penstock

if TYPE_CHECKING:
    from bench.probe import System

_SQL = "total >= 0 AND status IN ('new', 'paid', 'shipped', 'returned') AND lower(note) <> 'xx'"


class Unruled(Penstock):
    """What rules are measured against."""

    name = "penstock, no rules"


class Ruled(Penstock):
    """Penstock with rules; under its own name, as the one that is judged."""

    rules: ClassVar[list[dict[str, Any]]] = []
    chosen: ClassVar[str] = ""  # what a row must be to arrive

    def followed(self, source: dict[str, Any]) -> dict[str, Any]:
        """See Penstock."""
        return {"source": source, "modifiers": self.rules}


class HalfFiltered(Ruled):
    """A filter that keeps half of the rows."""

    rules: ClassVar = [
        {
            "filter": {
                "table": "public.orders",
                "where": {"column": "customer_id", "operator": "lt", "value": "25000"},
            }
        }
    ]
    chosen: ClassVar = "customer_id < 25000"


class Computed(Ruled):
    """An SQL filter that every row passes, and a column that SQL computes."""

    rules: ClassVar = [
        {"filter": {"table": "public.orders", "where": _SQL}},
        {"transform": {"table": "public.orders", "set": {"status": "upper(status)"}}},
    ]


class RuledInserts(Inserts):
    """The backlog of inserts through rules."""

    baseline = Unruled.name

    def chosen(self, system: System) -> str:
        """See Workload."""
        return system.chosen if isinstance(system, Ruled) else ""


class FilteredInserts(RuledInserts):
    """Half of the rows are left out."""

    name = "filter"
    required = "≥ 1.0 of the rate without"
    least_ratio = 1.0
    systems = (Unruled, HalfFiltered)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"the same backlog of {self.count:,} inserts through a filter that keeps half"


class SqlInserts(RuledInserts):
    """SQL looks at every row, and computes a column of each."""

    name = "sql"
    required = "≥ 0.8 of the rate without"
    least_ratio = 0.8
    systems = (Unruled, Computed)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"the same backlog of {self.count:,} inserts through an SQL filter and an SQL column"

    def compared(self, system: System) -> tuple[str, ...]:
        """See Workload."""
        kept = ("id", "customer_id", "total", "note", "created_at", "meta")
        return kept if isinstance(system, Ruled) else ()
