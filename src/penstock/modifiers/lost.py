"""Names in rules that no table and no column has: such a rule does nothing, and nobody else would notice.

Tables are those of all sources together: a rule may be for those of one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import RuleUnfit
from penstock.findings import Finding
from penstock.modifiers.places import located
from penstock.options import nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from penstock.schema.shape import TableShape
    from penstock.table import TableRule


def lost_table(
    rule: TableRule, shapes: Collection[TableShape], place: str = ""
) -> Iterator[Finding]:
    """An error where the one table that is named is not followed, a warning where a pattern is for none."""
    if any(rule.matches(shape.table) for shape in shapes) or (rule.schema, rule.name) == (
        None,
        None,
    ):
        return
    do = "take it out"
    if rule.is_outright:
        if shapes:
            do = nearest(str(rule), sorted({str(shape.table) for shape in shapes}))
        what = "rules are for a table that is not followed"
        yield Finding(RuleUnfit(what, located(place, str(rule)), do))
        return
    if shapes:
        alike = {
            f"{shape.schema_name}.*" if rule.name is None else f"*.{shape.name}" for shape in shapes
        }
        do = nearest(str(rule), sorted(alike))
    what = "no table that is followed fits"
    yield Finding(RuleUnfit(what, located(place, str(rule)), do), "warning")


def lost_columns(
    rule: TableRule, names: Iterable[str], shapes: Collection[TableShape]
) -> Iterator[Finding]:
    """A warning for each column that none of the tables has which a pattern is for."""
    known = {
        column.name for shape in shapes if rule.matches(shape.table) for column in shape.columns
    }
    for name in names:
        if known and name not in known:
            what = f"no table has a column {name}"
            yield Finding(RuleUnfit(what, str(rule), nearest(name, sorted(known))), "warning")
