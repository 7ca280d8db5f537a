"""Let types, sequences and schemas of the target follow those of the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from penstock.errors import SchemaChangeStops
from penstock.schema.describe import sequence_of
from penstock.schema.difference import compare_sequences, compare_types
from penstock.schema.telling import tell, tell_all
from penstock.sinks.postgres.alter_steps import Outcome, Step, run_steps
from penstock.sinks.postgres.create import (
    counting,
    schema_statement,
    sequence_statement,
    without_search_path,
)
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import psycopg

    from penstock.schema.shape import SequenceShape, TypeShape

    Connection = psycopg.Connection[Any]
    Cursor = psycopg.Cursor[Any]

# What is not ours to make: an extension's, or the target's own of that name.
_LABELS = """
SELECT ARRAY(SELECT e.enumlabel::text FROM pg_enum e WHERE e.enumtypid = t.oid
             ORDER BY e.enumsortorder)
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE n.nspname = %s AND t.typname = %s
"""

_SEQUENCE = """
SELECT format_type(s.seqtypid, NULL), s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache,
       s.seqcycle
FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""


def follow_type(cursor: Cursor, before: TypeShape, after: TypeShape, policy: str) -> Outcome:
    """Rename a type, move it, add and rename labels of an enum; else a note.

    A label that was added can be used once the transaction has ended, as at the source.

    Raises:
        SchemaChangeRefused: the target refuses.
        SchemaChangeStops: the policy is to stop, and there is something to do.
        psycopg.Error: others are in the way, or the server went away.
    """
    if policy == "ignore":
        return Outcome()
    connection, where = cursor.connection, TableName(after.schema_name, after.name)
    with connection.transaction(), without_search_path(connection):
        steps, notes = type_changes(connection, before, after)
        told = tell_all(compare_types(before, after))
        outcome = _run(connection, steps, where, told, policy)
    outcome.notes += notes
    return outcome


def complete_enums(cursor: Cursor, types: Iterable[TypeShape], policy: str) -> None:
    """Add the labels that enums of the target lack, where no table has brought them yet.

    Raises:
        SchemaChangeRefused: the target refuses.
        psycopg.Error: others are in the way, or the server went away.
    """
    for each in types if policy in ("apply", "additive") else ():
        if each.kind == "enum" and not each.is_array:
            follow_type(cursor, each.model_copy(update={"labels": ()}), each, "apply")


def _run(
    connection: Connection, steps: list[Step], where: TableName, told: str, policy: str
) -> Outcome:
    if policy == "stop" and steps:
        statements = "; ".join(step.statement.as_string(connection) for step in steps)
        raise SchemaChangeStops(
            f"it changed at the source, and schema_changes is stop: {told}",
            str(where),
            f"this is what apply would run at the target: {statements}",
        )
    return run_steps(connection, steps, where, f"source: {told}")


def type_changes(
    connection: Connection, before: TypeShape, after: TypeShape
) -> tuple[list[Step], list[str]]:
    """What is to be done to a type, and what cannot be."""
    notes = [
        f"type {after.title}: {tell(each)}; that is not carried over"
        for each in compare_types(before, after)
        if each.op == "change_type"
    ]
    if before.extension is not None or after.extension is not None or after.is_array:
        return [], []
    old, new = TableName(before.schema_name, before.name), TableName(after.schema_name, after.name)
    labels = _labels(connection, old)
    if old != new and labels is None:
        old, labels = new, _labels(connection, new)
    if labels is None:
        return [], []  # columns of it are text
    steps = list(_move_type(old, new))
    if after.kind == "enum":
        steps += _label_steps(new, before, after, labels)
    return steps, notes


def _labels(connection: Connection, name: TableName) -> list[str] | None:
    row = connection.execute(_LABELS, name).fetchone()
    return None if row is None else list(row[0])


def _move_type(old: TableName, new: TableName) -> Iterator[Step]:
    if old.schema != new.schema:
        yield Step(schema_statement(new.schema))
        yield Step(
            sql.SQL("ALTER TYPE {} SET SCHEMA {}").format(
                sql.Identifier(*old), sql.Identifier(new.schema)
            )
        )
    if old.name != new.name:
        yield Step(
            sql.SQL("ALTER TYPE {} RENAME TO {}").format(
                sql.Identifier(new.schema, old.name), sql.Identifier(new.name)
            )
        )


def _label_steps(
    name: TableName, before: TypeShape, after: TypeShape, there: list[str]
) -> Iterator[Step]:
    table, labels = sql.Identifier(*name), list(there)
    known = {label.id: label.name for label in before.labels}
    for label in after.labels:
        was = known.get(label.id)
        if was is not None and was != label.name and was in labels and label.name not in labels:
            labels[labels.index(was)] = label.name
            yield Step(
                sql.SQL("ALTER TYPE {} RENAME VALUE {} TO {}").format(
                    table, sql.Literal(was), sql.Literal(label.name)
                )
            )
    names = [label.name for label in after.labels]
    for place, label in enumerate(after.labels):
        if label.id in known or label.name in labels:
            continue
        add = sql.SQL("ALTER TYPE {} ADD VALUE {}").format(table, sql.Literal(label.name))
        follower = next((each for each in names[place + 1 :] if each in labels), None)
        if follower is not None:
            labels.insert(labels.index(follower), label.name)
            add = sql.SQL("{} BEFORE {}").format(add, sql.Literal(follower))
        else:
            labels.append(label.name)
        yield Step(add)


def follow_sequence(
    cursor: Cursor,
    before: SequenceShape | None,
    after: SequenceShape | None,
    *,
    place: Callable[[TableName], TableName],
    policy: str,
) -> Outcome:
    """Create, rename, change or drop a sequence that belongs to no column.

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
        steps = list(
            _sequence_steps(connection, before, after, place, is_kept=policy == "additive")
        )
        told = tell_all(compare_sequences(before, after))
        return _run(connection, steps, TableName(shape.schema_name, shape.name), told, policy)


def _sequence_steps(
    connection: Connection,
    before: SequenceShape | None,
    after: SequenceShape | None,
    place: Callable[[TableName], TableName],
    *,
    is_kept: bool,
) -> Iterator[Step]:
    old, new = (
        None if each is None else place(TableName(each.schema_name, each.name))
        for each in (before, after)
    )
    there = connection.execute(_SEQUENCE, old).fetchone() if old is not None else None
    if new is None or after is None:
        if there is not None and old is not None and not is_kept:
            yield Step(sql.SQL("DROP SEQUENCE {}").format(sql.Identifier(*old)))
        return
    if there is None or old is None:
        there = connection.execute(_SEQUENCE, new).fetchone()
    elif old != new:
        if old.schema != new.schema:
            yield Step(schema_statement(new.schema))
            move = sql.SQL("ALTER SEQUENCE {} SET SCHEMA {}")
            yield Step(move.format(sql.Identifier(*old), sql.Identifier(new.schema)))
        if old.name != new.name:
            rename = sql.SQL("ALTER SEQUENCE {} RENAME TO {}")
            current = sql.Identifier(new.schema, old.name)
            yield Step(rename.format(current, sql.Identifier(new.name)))
    counts = (
        after.type, after.start, after.increment, after.minimum, after.maximum, after.cache,
        after.cycles,
    )  # fmt: skip
    if there is None:
        yield Step(schema_statement(new.schema))
        yield Step(sequence_statement(new, sequence_of(after)))
    elif tuple(there) != counts and before is not None:
        yield Step(
            sql.SQL("ALTER SEQUENCE {} AS {} {}").format(
                sql.Identifier(*new), sql.SQL(after.type), counting(sequence_of(after))
            )
        )


def drop_schema(cursor: Cursor, name: str) -> list[str]:
    """Drop a schema in which there is nothing; else a line that says why it is kept.

    Raises:
        psycopg.Error: others are in the way, or the server went away.
    """
    drop = sql.SQL("DROP SCHEMA IF EXISTS {}").format(sql.Identifier(name))
    step = Step(drop, f"schema {name} is kept")
    return run_steps(cursor.connection, [step], TableName(name, ""), "").notes


def rename_schema(cursor: Cursor, before: str, after: str) -> list[str]:
    """Rename a schema where the target has it and the new name is free; what was not done.

    Raises:
        psycopg.Error: others are in the way, or the server went away.
    """
    rows = cursor.connection.execute(
        "SELECT nspname FROM pg_namespace WHERE nspname IN (%s, %s)", (before, after)
    ).fetchall()
    if [row[0] for row in rows] != [before]:
        return []
    rename = sql.SQL("ALTER SCHEMA {} RENAME TO {}")
    statement = rename.format(sql.Identifier(before), sql.Identifier(after))
    step = Step(statement, f"schema {before} keeps its name")
    return run_steps(cursor.connection, [step], TableName(after, ""), "").notes
