"""Rules of a sink that no table is meant by: a name that is mistyped would be skipped silently."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from penstock.errors import BadTableRule, PenstockError
from penstock.sinks.postgres.connect import connect_target
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.sinks.postgres.options import PostgresOptions

# Tables that the source calls differently by now, and that keep the rule of their first name.
_RULED_AS = """
SELECT mapping -> 'ruled_as' FROM penstock.tables
WHERE pipeline = %s AND state <> 'removed' AND mapping ? 'ruled_as'
"""


def orphaned_rules(
    pipeline: str, sink: str, options: PostgresOptions, tables: Iterable[TableName]
) -> list[PenstockError]:
    """The entries of `tables:` that match none of `tables`, nor one that was renamed since."""
    known = set(tables)
    orphans = [rule for rule in options.tables if not any(map(rule.matches, known))]
    if orphans:
        known = _renamed(pipeline, options)
    return [
        BadTableRule(
            f"the rule {rule} matches no table that is followed",
            f"sinks.{sink}.tables",
            "correct its name, or take it out; a table that is yet to come needs nothing",
        )
        for rule in orphans
        if not any(map(rule.matches, known))
    ]


def _renamed(pipeline: str, options: PostgresOptions) -> set[TableName]:
    """The first names of tables that were renamed; none where nothing was delivered yet."""
    try:
        with connect_target(options.url, "penstock check") as connection:
            return {TableName(*name) for (name,) in connection.execute(_RULED_AS, (pipeline,))}
    except (psycopg.Error, PenstockError):
        return set()  # no pipeline has been here; whether it can is another finding's concern
