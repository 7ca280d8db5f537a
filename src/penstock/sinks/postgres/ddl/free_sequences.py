"""Sequences that no column owns, and that defaults of followed tables count with.

They are made before the first table that needs them, under the names they have at the source, and follow the
source's. penstock.sequences keeps which of them penstock has made: others are used, and nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql
from psycopg.types.json import Jsonb

from penstock.errors import SinkError
from penstock.schema.shape import SequenceShape
from penstock.sinks.postgres.ddl.alter_objects import follow_sequence
from penstock.sinks.postgres.ddl.alter_steps import Step, run_steps
from penstock.sinks.postgres.ddl.create import (
    sequence_statement,
    without_search_path,
)
from penstock.sinks.postgres.ddl.schemas import schema_steps
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from penstock.schema.shape import SchemaChange

    Connection = psycopg.Connection[Any]
    Cursor = psycopg.Cursor[Any]
    Owner = tuple[str, str]  # pipeline and source

# With the table by which one is owned: its default may have let go of it at the source.
_THERE = """
SELECT n.nspname, c.relname, c.relkind = 'S', tn.nspname, t.relname
FROM unnest(%s::text[], %s::text[]) AS w(schema_name, name)
JOIN pg_namespace n ON n.nspname = w.schema_name
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'a'
    AND d.refclassid = 'pg_class'::regclass AND d.refobjsubid > 0
LEFT JOIN pg_class t ON t.oid = d.refobjid LEFT JOIN pg_namespace tn ON tn.oid = t.relnamespace
"""

_RECORDS = """
SELECT m.source_oid, m.made_by_us AND c.oid IS NOT NULL, m.schema_name, m.sequence_name, m.shape
FROM penstock.sequences m
LEFT JOIN (pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace)
    ON c.oid = m.oid AND c.relname = m.sequence_name AND n.nspname = m.schema_name
WHERE m.pipeline = %s AND m.source = %s AND m.source_oid = ANY (%s)
"""

_GONE = """
SELECT m.source_oid, m.schema_name, m.sequence_name FROM penstock.sequences m
JOIN pg_class c ON c.oid = m.oid AND c.relname = m.sequence_name
JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = m.schema_name
WHERE m.pipeline = %s AND m.source = %s AND m.is_gone AND m.made_by_us AND NOT EXISTS (
    SELECT FROM pg_depend d WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid
    AND d.deptype = 'n')
"""

_THIS = " WHERE pipeline = %s AND source = %s AND source_oid = %s"


@dataclass(frozen=True)
class _Record:
    made_by_us: bool
    shape: SequenceShape


def have_sequences(
    connection: Connection, owner: Owner, table: TableName, wanted: Sequence[SequenceShape]
) -> None:
    """Make the sequences that a table needs which is to be made.

    Raises:
        SchemaChangeRefused: the target refuses.
        psycopg.Error: others are in the way, or the server went away.
    """
    if wanted:
        with connection.transaction(), without_search_path(connection):
            steps = plan_sequences(connection, owner, wanted, None)
            run_steps(connection, steps, table, "sequences that it needs")


def plan_sequences(
    connection: Connection,
    owner: Owner | None,
    wanted: Sequence[SequenceShape],
    target: TableName | None,
) -> list[Step]:
    """What is to be done so that the target has them. One that a column of `target` owns is set free.

    What has the name and is no sequence is left alone: the default is refused then, and that is noted.
    """
    if not wanted:
        return []
    names = [_name(each) for each in wanted]
    there = {
        TableName(schema, name): (is_sequence, TableName(*table) if table[0] else None)
        for schema, name, is_sequence, *table in connection.execute(_THERE, as_columns(names))
    }
    steps: list[Step] = []
    for each, name in zip(wanted, names, strict=True):
        is_sequence, of_table = there.get(name, (False, None))
        # One that a column of another table owns may be anybody's.
        is_freed = of_table is not None and of_table == target
        if name not in there:
            steps += schema_steps(connection, owner, name.schema)
            steps.append(Step(sequence_statement(name, each)))
        elif not is_sequence:
            continue
        elif is_freed:
            steps.append(_free(name))
        if owner is not None:
            is_ours = name not in there or is_freed
            steps.append(_record(owner, each, name, made_by_us=is_ours))
    return steps


def _free(name: TableName) -> Step:
    free = sql.SQL("ALTER SEQUENCE {} OWNED BY NONE").format(sql.Identifier(*name))
    return Step(free, f"sequence {name} stays its column's")


def _note_gone(cursor: Cursor, owner: Owner, number: int, *, is_dropped: bool) -> None:
    """The source has one no more; where it is dropped here, that waits until no default needs it."""
    statement = (
        "UPDATE penstock.sequences SET is_gone = true"
        if is_dropped
        else "DELETE FROM penstock.sequences"
    )
    cursor.execute(statement + _THIS, (*owner, number))


def follow_sequences(cursor: Cursor, owner: Owner, change: SchemaChange, policy: str) -> list[str]:
    """Let those that penstock has made follow the source's; a line for each that could not.

    Raises:
        psycopg.Error: others are in the way, or the server went away.
    """
    gone = {each.id for each in change.dropped_sequences}
    after = {each.id: each for each in change.sequences if each.id not in gone}
    if policy not in ("apply", "additive") or not (gone or after):
        return []
    rows = cursor.execute(_RECORDS, (*owner, [*gone, *after])).fetchall()
    notes: list[str] = []
    for number, made_by_us, schema, name, document in rows:
        now = after.get(number)
        if now is None:
            _note_gone(cursor, owner, number, is_dropped=made_by_us and policy == "apply")
        if now is None or not made_by_us:
            continue
        was = SequenceShape.model_validate(document, strict=False)
        was = was.model_copy(update={"schema_name": schema, "name": name})
        try:
            with cursor.connection.transaction():
                notes += _follow(cursor, owner, was, now, policy)
                cursor.execute(
                    "UPDATE penstock.sequences SET shape = %s, schema_name = %s, sequence_name = %s"
                    + _THIS,
                    (Jsonb(now.model_dump()), *_name(now), *owner, number),
                )
        except SinkError as error:
            notes.append(f"sequence {_name(was)} stays as it was: {error.what}")
    return notes


def drop_gone_sequences(cursor: Cursor, owner: Owner) -> list[str]:
    """Drop what penstock has made, the source has dropped and no default names any more; the names.

    Raises:
        psycopg.Error: others are in the way, or the server went away.
    """
    dropped: list[str] = []
    for number, schema, name in cursor.execute(_GONE, owner).fetchall():
        drop = sql.SQL("DROP SEQUENCE {}").format(sql.Identifier(schema, name))
        step = Step(drop, "kept")
        if not run_steps(cursor.connection, [step], TableName(schema, name), "").notes:
            dropped.append(f"{schema}.{name}")
            cursor.execute("DELETE FROM penstock.sequences" + _THIS, (*owner, number))
    return dropped


def _follow(
    cursor: Cursor, owner: Owner, was: SequenceShape, now: SequenceShape, policy: str
) -> list[str]:
    name = _name(was)
    there = cursor.execute(_THERE, as_columns([name])).fetchone()
    notes: list[str] = []
    if there is not None and there[3] is not None:
        notes += run_steps(cursor.connection, [_free(name)], name, "").notes
    return notes + follow_sequence(cursor, was, now, policy=policy, owner=owner).notes


def _record(owner: Owner, shape: SequenceShape, name: TableName, *, made_by_us: bool) -> Step:
    """Note it; what penstock has made it has made, whatever is noted later."""
    statement = sql.SQL(
        "INSERT INTO penstock.sequences (pipeline, source, source_oid, made_by_us, shape, oid,"
        " schema_name, sequence_name)"
        " SELECT {}, {}, {}, {}, {}::jsonb, c.oid, n.nspname, c.relname"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = {} AND c.relname = {}"
        " ON CONFLICT (pipeline, source, source_oid) DO UPDATE SET shape = excluded.shape,"
        " oid = excluded.oid, schema_name = excluded.schema_name,"
        " sequence_name = excluded.sequence_name, made_by_us = excluded.made_by_us"
        " OR (sequences.made_by_us AND sequences.oid = excluded.oid)"
    )
    values = (*owner, shape.id, made_by_us, shape.model_dump_json(), *name)
    return Step(statement.format(*map(sql.Literal, values)), is_record=True)


def _name(shape: SequenceShape) -> TableName:
    return TableName(shape.schema_name, shape.name)
