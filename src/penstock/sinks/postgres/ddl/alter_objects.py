"""Let sequences of the target follow those of the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from penstock.errors import SchemaChangeStops
from penstock.schema.difference import compare_sequences
from penstock.schema.difference_text import describe_differences
from penstock.sinks.postgres.ddl.alter_steps import Outcome, Step, run_steps
from penstock.sinks.postgres.ddl.create import (
    counting,
    sequence_statement,
    without_search_path,
)
from penstock.sinks.postgres.ddl.schemas import schema_steps
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from penstock.schema.shape import SequenceShape

    Connection = psycopg.Connection[Any]
    Cursor = psycopg.Cursor[Any]

_SEQUENCE = """
SELECT format_type(s.seqtypid, NULL), s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache,
       s.seqcycle
FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""


def _run(
    connection: Connection, steps: list[Step], where: TableName, described: str, policy: str
) -> Outcome:
    if policy == "stop" and steps:
        shown = [step.statement for step in steps if not step.is_record]
        statements = "; ".join(each.as_string(connection) for each in shown)
        raise SchemaChangeStops(
            f"it changed at the source, and schema_changes is stop: {described}",
            str(where),
            f"this is what apply would run at the target: {statements}",
        )
    return run_steps(connection, steps, where, f"source: {described}")


def follow_sequence(
    cursor: Cursor,
    before: SequenceShape | None,
    after: SequenceShape | None,
    *,
    policy: str,
    owner: tuple[str, str] | None = None,
) -> Outcome:
    """Create, rename, change or drop a sequence that belongs to no column.

    `owner`, pipeline and source, is who has made the schema that it may need.

    Raises:
        SchemaChangeRefused: the target refuses.
        SchemaChangeStops: the policy is to stop, and there is something to do.
        psycopg.Error: others are in the way, or the server went away.
    """
    shape = after or before
    if policy == "ignore" or shape is None:
        return Outcome()
    connection = cursor.connection
    with connection.transaction(), without_search_path(connection):
        is_kept = policy == "additive"
        steps = list(_sequence_steps(connection, before, after, owner, is_kept=is_kept))
        described = describe_differences(compare_sequences(before, after))
        return _run(connection, steps, TableName(shape.schema_name, shape.name), described, policy)


def _sequence_steps(
    connection: Connection,
    before: SequenceShape | None,
    after: SequenceShape | None,
    owner: tuple[str, str] | None,
    *,
    is_kept: bool,
) -> Iterator[Step]:
    there = None
    if before is not None:
        there = connection.execute(_SEQUENCE, before.qualified).fetchone()
    if after is None:
        if before is not None and there is not None and not is_kept:
            yield Step(sql.SQL("DROP SEQUENCE {}").format(sql.Identifier(*before.qualified)))
        return
    new = after.qualified
    if before is None or there is None:
        there = connection.execute(_SEQUENCE, new).fetchone()
    elif before.qualified != new:
        if before.qualified.schema != new.schema:
            yield from schema_steps(connection, owner, new.schema)
        yield from _move_sequence(before.qualified, new)
    counts = (
        after.type, after.start, after.increment, after.minimum, after.maximum, after.cache,
        after.cycles,
    )  # fmt: skip
    if there is None:
        yield from schema_steps(connection, owner, new.schema)
        yield Step(sequence_statement(new, after))
    elif tuple(there) != counts and before is not None:
        yield Step(
            sql.SQL("ALTER SEQUENCE {} AS {} {}").format(
                sql.Identifier(*new), sql.SQL(after.type), counting(after)
            )
        )


def _move_sequence(old: TableName, new: TableName) -> Iterator[Step]:
    if old.schema != new.schema:
        move = sql.SQL("ALTER SEQUENCE {} SET SCHEMA {}")
        yield Step(move.format(sql.Identifier(*old), sql.Identifier(new.schema)))
    if old.name != new.name:
        rename = sql.SQL("ALTER SEQUENCE {} RENAME TO {}")
        current = sql.Identifier(new.schema, old.name)
        yield Step(rename.format(current, sql.Identifier(new.name)))
