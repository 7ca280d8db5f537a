"""What masks cost: the same backlog and the same copy with them and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.backlogs import Inserts
from bench.copies import BigTable
from bench.ours import Penstock

if TYPE_CHECKING:
    from bench.probe import System

_SALT = "the benchmark's own"
_NOTE = {"with": "masking", "type": "custom", "mask_begin": "4"}
_STATUS = {"with": "email", "salt": _SALT}
# Values are as long as they were, more or less: the target has as much to write.
_UNMASKED = ("id", "customer_id", "total", "created_at", "meta")


class Unmasked(Penstock):
    """What masks are measured against."""

    name = "penstock, no masks"


class TwoMasks(Penstock):
    """masking on 96 characters, and email."""

    def followed(self, source: dict[str, Any]) -> dict[str, Any]:
        """See Penstock."""
        return {"source": source, "modifiers": self.modifiers()}

    def modifiers(self) -> list[dict[str, Any]]:
        """The rules."""
        return [{"transform": {"columns": {"note": _NOTE, "status": _STATUS}}}]


class ThreeMasks(TwoMasks):
    """And a phone number out of what email gives."""

    def modifiers(self) -> list[dict[str, Any]]:
        """The rules."""
        phone = {"column": "status", "with": "phone_number", "salt": _SALT}
        return [*super().modifiers(), {"transform": phone}]


class Masks(Inserts):
    """The backlog of inserts through three masks."""

    name = "masks"
    required = "≥ 0.8 of the rate without masks"
    least_ratio = 0.8
    baseline = Unmasked.name
    systems = (Unmasked, ThreeMasks)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"the same backlog of {self.count:,} inserts through three masks"

    def compared(self, system: System) -> tuple[str, ...]:
        """See Workload."""
        return _UNMASKED if isinstance(system, TwoMasks) else ()


class MaskedCopy(BigTable):
    """The copy of a big table through two masks."""

    name = "masked_copy"
    required = "≤ 2.0 of the plain copy's time; memory of a task flat"
    most_ratio = 2.0
    baseline = Unmasked.name
    systems = (Unmasked, TwoMasks)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"copy of a table of {self.row_count:,} rows through two masks"

    def compared(self, system: System) -> tuple[str, ...]:
        """See Workload."""
        return _UNMASKED if isinstance(system, TwoMasks) else ()
