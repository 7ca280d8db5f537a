"""Foreign keys whose two ends the rules of a sink do not modify alike: rows would lead to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import RuleUnfit
from penstock.findings import Finding
from penstock.modifiers.chain import Chain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.modifiers.rule import Rule
    from penstock.schema.shape import TableShape
    from penstock.table import TableName


def torn_keys(rules: Sequence[Rule], shapes: Mapping[TableName, TableShape]) -> Iterator[Finding]:
    """A warning for each column of a key that is not what it leads to, by all rules together."""
    chain = Chain(tuple(rules))
    done = {shape.id: chain.done_to_columns(shape) for shape in shapes.values()}
    by_id = {shape.id: shape for shape in shapes.values()}
    for shape in shapes.values():
        for key in shape.foreign_keys:
            other = by_id.get(key.referenced_id)
            if other is None:
                continue
            ids = {column.name: column.id for column in other.columns}
            for own, name in zip(key.columns, key.referenced_columns, strict=False):
                if done[shape.id].get(own) != done[other.id].get(ids.get(name, 0)):
                    [column] = shape.names_of((own,)) or ("?",)
                    what = (
                        f"{key.name} leads to {other.table}.{name}, which is not transformed alike"
                    )
                    do = "give both columns the same rule, with limits where their types differ, or neither"
                    yield Finding(RuleUnfit(what, f"{shape.table}.{column}", do), "warning")
