"""How one table stands at one sink: whether it flows with the others, and if not, why and where.

    pending -> copying -> catching_up -> streaming
       ^          |            |             |
       |          +--> failed <+-------------+     (each goes on from where it failed)
       +---------------- resync ----------------   removed

A table that streams has the sink's position. Any other one is detached: batches skip it, and it
has a position of its own, which the log keeps. Whoever delivers makes a table pending, again after a
copy has failed: only then is the log known to be kept from before the moment of the copy.

A table is known by its oid at the source; its name is the one that it has at its position in the stream.
One that needs a copy goes by the sink's position: the stream renames or drops it there, and a copy that is
under way begins again. So a copy is made only of a table that has the same name at the sink's position and
under the snapshot. Until then it is pending at a position that the sink has yet to reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.lsn import Lsn
    from penstock.table import TableName

PENDING = "pending"
COPYING = "copying"
CATCHING_UP = "catching_up"
STREAMING = "streaming"
FAILED = "failed"
REMOVED = "removed"


@dataclass(frozen=True)
class DetachedTable:
    """A table that does not flow with the others.

    Changes after `delivered_lsn` wait for it in the log. `needs_copy`: its rows are not there yet, so
    that changes cannot be applied, whether or not a copy has failed. `oid` is 0 where it is not known.
    """

    state: str
    delivered_lsn: Lsn
    error: str = ""
    needs_copy: bool = False
    oid: int = 0

    @property
    def can_catch_up(self) -> bool:
        """Whether its changes can be applied."""
        return self.state in (CATCHING_UP, FAILED) and not self.needs_copy

    @property
    def is_underway(self) -> bool:
        """Whether somebody copies it, or will as soon as there is one to do so."""
        return self.state in (PENDING, COPYING)

    @property
    def keeps_log(self) -> bool:
        """Whether what lies in the log after its position is still wanted.

        Not for a copy that failed: the next one is of a later moment.
        """
        return self.state != REMOVED and not (self.state == FAILED and self.needs_copy)


@dataclass(frozen=True)
class WantedTables:
    """Whose changes a worker takes: all but some, or some alone. Travels to the executors."""

    skipped: frozenset[TableName] = frozenset()
    only: frozenset[TableName] | None = None

    def __contains__(self, table: TableName) -> bool:
        return table not in self.skipped if self.only is None else table in self.only


ALL_TABLES = WantedTables()
