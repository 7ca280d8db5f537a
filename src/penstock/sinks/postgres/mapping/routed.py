"""Routes of `modifiers:` as entries of `tables:`: both say where tables go, and mean the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import BadValue
from penstock.sinks.postgres.options import TableOptions
from penstock.table import TableName, TableRule

if TYPE_CHECKING:
    from penstock.sinks.postgres.options import PostgresOptions
    from penstock.table import Route, Routes


def with_routes(options: PostgresOptions, routes: Routes) -> PostgresOptions:
    """The options, with the targets that routes say.

    Raises:
        BadValue: an entry says another one of the same table.
    """
    tables = dict(options.tables)
    for route in routes.routes:
        _refuse_clash(options, route)
        if route.target is None:
            continue
        target = TableRule(route.target.schema, route.target.name)
        # What an entry says of some of the tables beside a target holds for them still.
        for rule, entry in options.tables.items():
            if _covers(route.rule, rule) and rule != route.rule:
                tables[rule] = entry.model_copy(update={"target": target})
        own = tables.get(route.rule) or _said_of(options, route.rule)
        tables[route.rule] = own.model_copy(update={"target": target})
    return options.model_copy(update={"tables": tables})


def _refuse_clash(options: PostgresOptions, route: Route) -> None:
    for rule, entry in options.tables.items():
        if not rule.overlaps(route.rule):
            continue
        do = "say it in one of the two places"
        if entry.target is not None and route.target is not None:
            raise BadValue(
                f"sends {route.rule} to {route.target}, and the sink's tables.{rule} to {entry.target}",
                do=do,
            )
        if entry.columns is not None and route.names_columns:
            raise BadValue(
                f"names columns of {route.rule}, and so do the sink's tables.{rule}.columns", do=do
            )


def _covers(wide: TableRule, narrow: TableRule) -> bool:
    return wide.schema in (None, narrow.schema) and wide.name in (None, narrow.name)


def _said_of(options: PostgresOptions, rule: TableRule) -> TableOptions:
    if rule.schema is None or rule.name is None:
        return TableOptions()
    return options.rule_of(TableName(rule.schema, rule.name))
