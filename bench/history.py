"""A table that keeps every version of its rows, beside one that is a clone of the source's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from bench.backlogs import Mixed
from bench.ours import Penstock

if TYPE_CHECKING:
    from bench.servers import Pair

# This key measured best: it finds the current version, and costs one index. Whoever searches the
# source's rows finds them in the view.
_MAKE_HISTORY = """
ALTER TABLE orders RENAME TO orders_history;
ALTER TABLE orders_history
    ADD COLUMN kvsz_start timestamptz NOT NULL DEFAULT '1900-01-01 00:00:00+00',
    ADD COLUMN kvsz_end timestamptz NOT NULL DEFAULT '9999-01-01 00:00:00+00',
    ADD COLUMN kvsz_deleted boolean NOT NULL DEFAULT false,
    DROP CONSTRAINT orders_pkey,
    ADD PRIMARY KEY (id, kvsz_end);
CREATE VIEW orders AS
    SELECT id, customer_id, status, total, note, created_at, meta FROM orders_history
    WHERE kvsz_end = '9999-01-01 00:00:00+00';
"""


class Clone(Penstock):
    """What a history is measured against."""

    name = "penstock, a clone"


class KeptHistory(Penstock):
    """The same pipeline, its table of kind `history`."""

    def __init__(self, pair: Pair, *, copies: bool = False) -> None:
        super().__init__(pair, copies=copies)
        self._pair = pair

    def __enter__(self) -> Self:
        self._pair.target.execute(_MAKE_HISTORY)
        self._pair.target.execute("VACUUM ANALYZE orders_history")
        self._pair.checkpoint()
        return super().__enter__()

    def sink_options(self) -> dict[str, Any]:
        """See Penstock."""
        rule = {"kind": "history", "target": "public.orders_history"}
        return {"tables": {"public.orders": rule}}


class History(Mixed):
    """The mixed backlog, of which a history keeps every change."""

    name = "history"
    required = "≥ 0.5 of a clone's rate"
    least_ratio = 0.5
    baseline = Clone.name
    systems = (Clone, KeptHistory)

    @property
    def title(self) -> str:
        """See Workload."""
        return f"the same backlog of {self.count:,} changes into a history, beside a clone"
