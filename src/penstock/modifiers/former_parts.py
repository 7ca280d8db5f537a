"""Tables that were partitions of another one: what rules did to that must not be lost with the bond.

DETACH PARTITION makes a partition a table like any other, with its rows and under a name that no rule for its root is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ModifierError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.errors import PenstockError
    from penstock.modifiers.chain import Chain
    from penstock.schema.shape import TableShape
    from penstock.table import TableName


@dataclass(frozen=True)
class FormerParts:
    """Says which tables may not be copied by the rules of a sink. `roots`: what tables were part of, by their oids."""

    chain: Chain
    roots: Callable[[], Mapping[int, TableShape]]

    def unfit(self, shapes: Mapping[TableName, TableShape]) -> dict[TableName, PenstockError]:
        """Those of the tables that rules do not do to what they did to their root, and why."""
        roots = self.roots()
        found: dict[TableName, PenstockError] = {}
        for name, shape in shapes.items():
            if shape.id in roots:
                try:
                    self.chain.require_kept_by_part(roots[shape.id], shape)
                except ModifierError as error:
                    found[name] = error
        return found
