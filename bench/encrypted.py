"""What encryption costs: the same backlog of inserts with `log.encrypt` and without."""

from __future__ import annotations

from typing import Any

from bench.backlogs import Inserts
from bench.ours import Penstock


class Plain(Penstock):
    """What encryption is measured against."""

    name = "penstock, not encrypted"


class Encrypting(Penstock):
    """The log encrypted, and what Spark leaves on disks."""

    def followed(self, source: dict[str, Any]) -> dict[str, Any]:
        """See Penstock."""
        return {"source": source, "log": {"encrypt": True, "key": "5e" * 32}}


class EncryptedInserts(Inserts):
    """The backlog of inserts through an encrypted log."""

    name = "encrypted"
    required = "≥ 0.9 of the rate without"
    least_ratio = 0.9
    baseline = Plain.name
    systems = (Plain, Encrypting)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"the same backlog of {self.count:,} inserts through an encrypted log"
