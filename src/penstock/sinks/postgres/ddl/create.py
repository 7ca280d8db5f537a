"""Create what is missing at the target, like it is at the source: schemas, types, tables with keys.

Names are quoted, types are the catalog's own spelling; no text of the source is run as it is, but
for the expressions of generated columns and defaults, which the catalog spells too, as far as the sink's
rules let them (`expressions/expressions.py`).
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.errors import TargetTableUnfit
from penstock.schema.describe import types_in_order
from penstock.sinks.postgres.ddl.type_parts import type_notes
from penstock.sinks.postgres.expressions.expressions import (
    BUILTIN,
    NO_COLUMNS,
    Expression,
    ExpressionRules,
    Scope,
    execute_one,
    refused_expressions,
    scope_of_columns,
)
from penstock.sinks.postgres.expressions.node_tree import FIRST_USER_OID
from penstock.sinks.postgres.expressions.sql_text import enclosed, is_name, is_type
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from penstock.schema.description import TableDescription
    from penstock.schema.shape import ColumnShape, SequenceShape, TypeShape

    Connection = psycopg.Connection[Any]

_VIRTUAL_SINCE = 180000
LONGEST_NAME = 63  # bytes; Postgres cuts off the rest

_MISSING_SCHEMAS = """
SELECT w.name FROM unnest(%s::text[]) AS w(name)
WHERE NOT EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = w.name)
"""

# Whether what has the name is a sequence that can be the column's: nobody's, and of its owner.
_RELATION = """
SELECT c.oid, c.relkind = 'S' AND pg_get_userbyid(c.relowner) = current_user AND NOT EXISTS (
    SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
    AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i'))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""

# A column that owns a sequence takes it along when it goes: that may happen to none but penstock's own.
_RECORDED = "SELECT FROM penstock.sequences m WHERE m.oid = %s AND m.made_by_us"

_WITH_DEFAULT = """
SELECT a.attname FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
JOIN pg_attribute a ON a.attrelid = c.oid AND a.atthasdef
WHERE n.nspname = %s AND c.relname = %s
"""

_SPELLED = """
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod),
       (SELECT l.collname::text FROM pg_collation l
        WHERE l.oid = a.attcollation AND a.attcollation <> t.typcollation), a.atthasdef
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped
"""


def create_table(
    connection: Connection,
    description: TableDescription,
    target: TableName,
    wanted: tuple[str, ...] | None,
    *,
    with_key: bool = True,
    rules: ExpressionRules = BUILTIN,
) -> list[str]:
    """Create a plain table like the source's: columns, types, defaults, NOT NULL, key. One transaction.

    A line for each thing that is left out.

    Partitioned tables become plain ones. Identity columns take the values they are given, and like
    serial ones they have a sequence, for inserts once the target has taken the source's place.
    Without its key a table is filled faster; `add_key` adds it.
    """
    columns = [column for column in description.columns if wanted is None or column.name in wanted]
    require_spelled(description.name, columns)
    with connection.transaction(), without_search_path(connection):
        for schema in missing_schemas(connection, [target.schema]):
            connection.execute(schema_statement(schema))
        for statement in missing_types(connection, types_in_order(description.types)):
            execute_one(connection, statement)
        columns, notes = _screen(connection, target, columns, rules)
        names = {column.name for column in columns}
        sequences = _create_sequences(connection, target, columns)
        declared = [
            _declare(connection, column, sequences.get(column.name), notes) for column in columns
        ]
        key = description.key_columns
        if with_key and key and names.issuperset(key):
            declared.append(sql.SQL("PRIMARY KEY ({})").format(_listed(map(sql.Identifier, key))))
        execute_one(
            connection,
            sql.SQL("CREATE TABLE {} ({})").format(
                sql.Identifier(*target), sql.SQL(", ").join(declared)
            ),
        )
        for column_name, sequence in sequences.items():
            connection.execute(owned_by(sequence, target, column_name))
        notes += _set_defaults(connection, target, columns)
        notes += type_notes(connection, description.types)
    return notes


def require_spelled(table: TableName, columns: Iterable[ColumnShape]) -> None:
    """See that types and collations are no more than that: they are put into statements as they are.

    Raises:
        TargetTableUnfit: no server has spelled one so.
    """
    for column in columns:
        types = [column.type, *([column.sequence.type] if column.sequence is not None else [])]
        if not all(map(is_type, types)) or not (
            column.collation is None or is_name(column.collation)
        ):
            raise _forged(f"type of column {column.name}", table)


def _forged(what: str, table: TableName) -> TargetTableUnfit:
    return TargetTableUnfit(
        f"the {what} is not spelled as a server spells one",
        str(table),
        "see who else writes into the stream: the source's own triggers do not say this",
    )


def complete_columns(
    connection: Connection, description: TableDescription, target: TableName, rules: ExpressionRules
) -> list[str]:
    """What a table that `create_table` made can be given once others are there; within a transaction.

    A line for each thing that a column goes without. Its default may count with the sequence of a table
    that was made after it.
    """
    columns, notes = _screen(connection, target, list(description.columns), rules)
    counting = [column for column in columns if "nextval(" in (_default(column) or "")]
    if counting:
        there = {name for (name,) in connection.execute(_WITH_DEFAULT, target)}
        late = [column for column in counting if column.name not in there]
        notes += _set_defaults(connection, target, late)
    notes += _substitutes(connection, description, target, rules)
    # Of a default that was refused here it is said twice.
    return [*dict.fromkeys([*notes, *type_notes(connection, description.types)])]


def _substitutes(
    connection: Connection, description: TableDescription, target: TableName, rules: ExpressionRules
) -> Iterator[str]:
    """Columns of a table that is there which lack their type or collation, or a default that nobody screens."""
    columns = [column for column in description.columns if _may_lack(column, rules)]
    if not columns:
        return
    rows = connection.execute(_SPELLED, target).fetchall()
    there = {name: (kind, collation, has_default) for name, kind, collation, has_default in rows}
    for column in columns:
        known = (column.type, column.collation, True)
        kind, collation, has_default = there.get(column.name, known)
        if _has_unscreened_default(column, rules) and not has_default:
            yield lacks_default(column.name)
        if kind != column.type and kind == "text":
            yield becomes_text(column.name, column.type)
        if column.collation is not None and collation is None:
            yield lacks_collation(column.name, column.collation)


def _may_lack(column: ColumnShape, rules: ExpressionRules) -> bool:
    """Whether something of it may not be at the target."""
    is_special = column.type_id >= FIRST_USER_OID or column.collation is not None
    return is_special or _has_unscreened_default(column, rules)


def _has_unscreened_default(column: ColumnShape, rules: ExpressionRules) -> bool:
    return rules.policy == "all" and _default(column) is not None


def becomes_text(column: str, kind: str) -> str:
    """What is noted of a column whose type the target does not have."""
    return f"column {column} becomes text: type {kind} is not at the target"


def lacks_default(column: str) -> str:
    """What is noted of a column whose default the target refuses."""
    return f"column {column} goes without its default, which the target refuses"


def lacks_collation(column: str, collation: str) -> str:
    """What is noted of a column whose collation the target does not have."""
    return f"column {column} goes without its collation: {collation} is not at the target"


def _screen(
    connection: Connection,
    target: TableName,
    columns: list[ColumnShape],
    rules: ExpressionRules,
) -> tuple[list[ColumnShape], list[str]]:
    """The columns without the expressions that are not taken over, and a line for each of those.

    A computed column goes with its expression: the stream does not bring what it holds.
    """
    places = [column for column in columns if _expression(column) is not None]
    wanted = _scoped(connection, target, columns, places)
    refused = refused_expressions(connection, rules, wanted)
    left_out = {places[place].name: why for place, why in refused.items()}
    notes, kept = [], []
    for column in columns:
        why = left_out.get(column.name)
        if why is None:
            kept.append(column)
        elif column.generated:
            notes.append(f"column {column.name}: its expression is not taken over, {why}")
        else:
            notes.append(f"column {column.name} goes without its default: not taken over, {why}")
            kept.append(column.model_copy(update={"default": None}))
    return kept, notes


def _scoped(
    connection: Connection,
    target: TableName,
    columns: list[ColumnShape],
    places: list[ColumnShape],
) -> list[tuple[Scope, Expression]]:
    """The expressions of some columns, with what they may name: only computed ones name columns."""
    all_columns = NO_COLUMNS
    if any(column.generated for column in places):
        plain = [each for each in columns if not each.generated]
        kinds = ((each.name, sql.SQL(_kind(connection, each))) for each in plain)
        all_columns = scope_of_columns(target, kinds)
    return [
        (all_columns if column.generated else NO_COLUMNS, expression)
        for column in places
        if (expression := _expression(column)) is not None
    ]


def _expression(column: ColumnShape) -> Expression | None:
    if column.generated and column.expression:
        return Expression("generated", column.expression)
    default = _default(column)
    return None if default is None else Expression("default", default)


def _default(column: ColumnShape) -> str | None:
    """Its default, unless it counts or is computed."""
    is_counted = column.sequence is not None or bool(column.identity)
    return None if is_counted or column.generated else column.default


@contextmanager
def without_search_path(connection: Connection) -> Iterator[None]:
    """Names without a schema are Postgres's own, whatever the role's search_path says.

    For a part of an open transaction; should it fail, rolling back puts the search_path right.
    """
    row = connection.execute("SELECT pg_catalog.current_setting('search_path')").fetchone()
    before = row[0] if row else ""
    connection.execute("SELECT pg_catalog.set_config('search_path', '', true)")
    yield
    connection.execute("SELECT pg_catalog.set_config('search_path', %s, true)", (before,))


def missing_schemas(connection: Connection, names: Collection[str]) -> list[str]:
    """Those of the names that no schema has.

    IF NOT EXISTS is no help to a role that may make tables there but no schemas: the right is asked for first.
    """
    return [name for (name,) in connection.execute(_MISSING_SCHEMAS, (sorted(set(names)),))]


def schema_statement(schema: str) -> sql.Composed:
    """Makes the schema where there is none."""
    return sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))


def owned_by(sequence: TableName, target: TableName, column: str) -> sql.Composed:
    """Has the sequence go when the column goes."""
    return sql.SQL("ALTER SEQUENCE {} OWNED BY {}").format(
        sql.Identifier(*sequence), sql.Identifier(*target, column)
    )


def next_value(sequence: TableName) -> sql.Composed:
    """The default of a serial column."""
    name = sql.Identifier(*sequence).as_string(None)
    return sql.SQL("nextval({}::regclass)").format(sql.Literal(name))


def _set_defaults(
    connection: Connection, target: TableName, columns: list[ColumnShape]
) -> list[str]:
    """Those that the target takes. It may lack a sequence that is nobody's."""
    defaults = {
        column.name: default for column in columns if (default := _default(column)) is not None
    }
    if not defaults or _set_some(connection, target, defaults):
        return []
    return [
        lacks_default(name)
        for name, default in defaults.items()
        if not _set_some(connection, target, {name: default})
    ]


def _set_some(connection: Connection, target: TableName, defaults: dict[str, str]) -> bool:
    alterations = _listed(
        sql.SQL("ALTER {} SET DEFAULT {}").format(sql.Identifier(name), sql.SQL(enclosed(default)))
        for name, default in defaults.items()
    )
    statement = sql.SQL("ALTER TABLE {} {}").format(sql.Identifier(*target), alterations)
    try:
        with connection.transaction():
            execute_one(connection, statement)
    except psycopg.OperationalError:
        raise
    except psycopg.Error:
        return False
    return True


def _declare(
    connection: Connection,
    column: ColumnShape,
    sequence: TableName | None,
    notes: list[str],
) -> sql.Composed:
    """The column's clause; `notes` gets a line for what it goes without."""
    kind = _kind(connection, column)
    if kind != column.type:
        notes.append(becomes_text(column.name, column.type))
    parts: list[sql.Composable] = [sql.Identifier(column.name), sql.SQL(kind)]
    if column.collation is not None:
        if collation_exists(connection, column.collation):
            parts.append(sql.SQL("COLLATE {}").format(sql.SQL(column.collation)))
        else:
            notes.append(lacks_collation(column.name, column.collation))
    if column.generated and column.expression:
        # The stream does not carry generated columns; the target computes them as the source does.
        parts.append(generated_clause(connection, column.generated, column.expression))
    if column.identity:
        parts.append(identity_clause(column, kind))
    elif sequence is not None:
        parts.append(sql.SQL("DEFAULT {}").format(next_value(sequence)))
    if column.not_null:
        parts.append(sql.SQL("NOT NULL"))
    return sql.SQL(" ").join(parts)


def generated_clause(connection: Connection, generated: str, expression: str) -> sql.Composed:
    """A column that the target computes: stored where the target knows no virtual ones."""
    is_virtual = generated == "v" and connection.info.server_version >= _VIRTUAL_SINCE
    clause = sql.SQL(
        "GENERATED ALWAYS AS ({}) VIRTUAL" if is_virtual else "GENERATED ALWAYS AS ({}) STORED"
    )
    return clause.format(sql.SQL(expression))


def _kind(connection: Connection, column: ColumnShape) -> str:
    """The column's type, or text where the target lacks it."""
    is_built_in = column.type_id < FIRST_USER_OID
    return column.type if is_built_in or type_exists(connection, column.type) else "text"


def identity_clause(column: ColumnShape, kind: str) -> sql.Composed:
    """A column that counts, but takes the values it is given."""
    clause = sql.SQL("GENERATED BY DEFAULT AS IDENTITY")
    # Its limits may have been widened beyond what the column takes; then Postgres's own do.
    if column.sequence is None or column.sequence.type != kind:
        return sql.Composed([clause])
    return sql.SQL("{} ({})").format(clause, counting(column.sequence))


def _create_sequences(
    connection: Connection, target: TableName, columns: list[ColumnShape]
) -> dict[str, TableName]:
    """A sequence for each serial column, of the source's name where that is free."""
    return {
        column.name: _create_sequence(connection, target.schema, column.sequence)
        for column in columns
        if column.sequence is not None and not column.identity
    }


def _create_sequence(connection: Connection, schema: str, sequence: SequenceShape) -> TableName:
    name, is_there = free_sequence_name(connection, schema, sequence.name)
    if not is_there:
        execute_one(connection, sequence_statement(name, sequence))
    return name


def free_sequence_name(connection: Connection, schema: str, wanted: str) -> tuple[TableName, bool]:
    """A name that a column's sequence can have, and whether one that penstock has made is there, no column's."""
    for number in itertools.count():
        ending = f"_{number}" if number else ""
        kept = wanted.encode()[: LONGEST_NAME - len(ending)].decode(errors="ignore")
        name = TableName(schema, kept + ending)
        row = connection.execute(_RELATION, name).fetchone()
        if row is None:
            return name, False
        oid, can_be_owned = row
        if can_be_owned and _is_recorded(connection, oid):
            return name, True
    raise AssertionError("numbers do not end")


def _is_recorded(connection: Connection, oid: int) -> bool:
    row = connection.execute("SELECT to_regclass('penstock.sequences') IS NOT NULL").fetchone()
    has_records = row is not None and row[0]
    return has_records and connection.execute(_RECORDED, (oid,)).fetchone() is not None


def sequence_statement(name: TableName, sequence: SequenceShape) -> sql.Composed:
    """Makes a sequence."""
    return sql.SQL("CREATE SEQUENCE {} AS {} {}").format(
        sql.Identifier(*name), sql.SQL(sequence.type), counting(sequence)
    )


def counting(sequence: SequenceShape) -> sql.Composed:
    """How it counts."""
    return sql.SQL("INCREMENT BY {} MINVALUE {} MAXVALUE {} START WITH {} CACHE {} {}").format(
        sql.Literal(sequence.increment),
        sql.Literal(sequence.minimum),
        sql.Literal(sequence.maximum),
        sql.Literal(sequence.start),
        sql.Literal(sequence.cache),
        sql.SQL("CYCLE" if sequence.cycles else "NO CYCLE"),
    )


def type_exists(connection: Connection, type_text: str) -> bool:
    """Whether the target knows the type; within a transaction."""
    # Nothing is evaluated: a domain would run its checks.
    query = sql.SQL("SELECT NULL::{} WHERE false").format(sql.SQL(type_text))
    return _is_known(connection, query)


def collation_exists(connection: Connection, collation: str) -> bool:
    """Whether the target knows the collation; within a transaction."""
    return _is_known(connection, sql.SQL("SELECT ''::text COLLATE {}").format(sql.SQL(collation)))


def _is_known(connection: Connection, query: sql.Composed) -> bool:
    try:
        with connection.transaction():
            execute_one(connection, query)
    except psycopg.OperationalError:
        raise
    except psycopg.Error:
        return False
    return True


def missing_types(
    connection: Connection, user_types: Iterable[TypeShape]
) -> Iterator[sql.Composed]:
    """Makes those types that the target has not.

    Those of extensions are not ours to make; a column of one becomes text.
    """
    for user_type in user_types:
        if user_type.extension is not None or user_type.kind == "other":
            continue
        found = connection.execute(
            "SELECT 1 FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace"
            " WHERE n.nspname = %s AND t.typname = %s"
            # An array's type gives way to whoever wants its name.
            " AND NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid)",
            user_type.qualified,
        ).fetchone()
        if found is None:
            yield from map(schema_statement, missing_schemas(connection, [user_type.schema_name]))
            known = with_known_collations(connection, user_type)
            yield type_statement(sql.Identifier(*user_type.qualified), known)


def with_known_collations(connection: Connection, user_type: TypeShape) -> TypeShape:
    """The type without collations that the target lacks; within a transaction.

    Raises:
        TargetTableUnfit: no server has spelled one so.
    """
    named = [user_type.collation, *(each.collation for each in user_type.fields)]
    wanted = {each for each in named if each is not None}
    if not all(map(is_name, wanted)):
        raise _forged("definition of the type", user_type.qualified)
    lacking = {each for each in wanted if not collation_exists(connection, each)}
    if not lacking:
        return user_type
    fields = tuple(
        each.model_copy(update={"collation": None}) if each.collation in lacking else each
        for each in user_type.fields
    )
    own = None if user_type.collation in lacking else user_type.collation
    return user_type.model_copy(update={"collation": own, "fields": fields})


def type_statement(name: sql.Identifier, user_type: TypeShape) -> sql.Composed:
    """Makes a type; a domain without its default, NOT NULL and checks.

    Raises:
        TargetTableUnfit: no server has spelled its definition so.
    """
    if not _is_spelled_by_a_server(user_type):
        raise _forged("definition of the type", user_type.qualified)
    if user_type.kind == "enum":
        return sql.SQL("CREATE TYPE {} AS ENUM ({})").format(
            name, _listed(sql.Literal(label.name) for label in user_type.labels)
        )
    if user_type.kind == "domain":
        # Without its checks: the source has made them.
        return sql.SQL("CREATE DOMAIN {} AS {}{}").format(
            name, sql.SQL(user_type.base), _collate(user_type.collation)
        )
    if user_type.kind == "range":
        return _range_statement(name, user_type)
    fields = (
        sql.SQL("{} {}{}").format(
            sql.Identifier(field.name), sql.SQL(field.type), _collate(field.collation)
        )
        for field in user_type.fields
    )
    return sql.SQL("CREATE TYPE {} AS ({})").format(name, _listed(fields))


def _is_spelled_by_a_server(user_type: TypeShape) -> bool:
    """Whether every name and type in its definition is one, and nothing more."""
    used = [field.type for field in user_type.fields]
    if user_type.kind in ("domain", "range"):
        used.append(user_type.base)
    named = [user_type.collation, user_type.multirange]
    named += [field.collation for field in user_type.fields]
    return all(map(is_type, used)) and all(each is None or is_name(each) for each in named)


def _range_statement(name: sql.Identifier, user_type: TypeShape) -> sql.Composed:
    parts = {
        "SUBTYPE": user_type.base,
        "COLLATION": user_type.collation,
        "MULTIRANGE_TYPE_NAME": user_type.multirange,
    }
    listed = (sql.SQL(f"{key} = {value}") for key, value in parts.items() if value)
    return sql.SQL("CREATE TYPE {} AS RANGE ({})").format(name, _listed(listed))


def _collate(collation: str | None) -> sql.SQL:
    return sql.SQL("" if collation is None else f" COLLATE {collation}")


def _listed(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
