"""Make at the target what belongs to a table beside its rows, once those are there.

Keys, indexes and constraints, like the source's. Each is made in a transaction of its own, so that
one which the target refuses keeps none of the others away. All of it may be repeated: what is there
stays. Connections are in autocommit mode and outside of any transaction.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.sinks.postgres.ddl.displaced import await_names, is_held_by_ours, stand_in
from penstock.sinks.postgres.expressions.expressions import (
    BUILTIN,
    Expression,
    ExpressionRules,
    Scope,
    Use,
    execute_one,
    refused_expressions,
    scope_of_table,
)
from penstock.sinks.postgres.expressions.sql_text import (
    UnreadableTextError,
    expressions_of_constraint,
    expressions_of_index,
    is_constraint,
)
from penstock.sinks.postgres.expressions.time_limit import own_time_limit
from penstock.table import TableName, as_columns
from penstock.text import printable
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set

    from penstock.schema.description import ForeignKey, TableStructure

    Connection = psycopg.Connection[Any]

# Classes of SQLSTATE whose primary message names objects, never values of rows. An expression that
# fails over a row (22, P0) does contain the value.
_CLASSES_WITHOUT_VALUES = ("0A", "23", "2B", "40", "42", "53", "54", "55", "57", "58")

# The connection or the server, not what was to be made: no use to go on.
_STATES_OF_SERVER = ("08", "25", "28", "3D", "57P")

# Everybody else who wants the table queues behind a lock that is waited for; and whoever waits less
# than Postgres's deadlock_timeout is never half of a deadlock. So: briefly, and often.
_LOCK_TIMEOUT = "400ms"
_LOCK_ATTEMPTS = 25
_LOCKED = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)

# Others can read such a table, but not write to it, while its rows are checked.
_CHECKED_AT_ONCE_BYTES = 4 * 1024 * 1024

TAKEN = (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject)

_TABLES = """
SELECT n.nspname::text, c.relname::text, c.oid::int8, EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
       ARRAY(SELECT a.attname::text FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       coalesce(pg_relation_size(c.oid), 0)
FROM unnest(%s::text[], %s::text[]) AS w(schema, name)
JOIN pg_namespace n ON n.nspname = w.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name AND c.relkind IN ('r', 'p')
"""

_NULLABLE = """
SELECT a.attname::text FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p') AND a.attnum > 0
  AND NOT a.attisdropped AND NOT a.attnotnull AND a.attname = ANY (%s) ORDER BY a.attnum
"""

# Kinds of what `_THERE` finds, as pg_constraint has them.
_PLAIN_INDEX = "i"
_WITH_INDEX = frozenset({_PLAIN_INDEX, "p", "u", "x"})

# Constraints that Postgres 18 makes of NOT NULL are left out: their names are nobody's.
_THERE = """
SELECT o.conrelid::int8, o.contype::text, o.conname::text, pg_get_constraintdef(o.oid), o.convalidated
FROM pg_constraint o
WHERE o.conrelid = ANY (%(oids)s::oid[]) AND o.contype <> 'n'
UNION ALL
SELECT i.indrelid::int8, 'i', c.relname::text,
       CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END || 'INDEX ' || substr(
           pg_get_indexdef(c.oid), 1 + length(format('CREATE %%sINDEX %%I ON %%s%%I.%%I USING ',
               CASE WHEN i.indisunique THEN 'UNIQUE ' END, c.relname,
               CASE WHEN c.relkind = 'I' THEN 'ONLY ' END, n.nspname, t.relname))), true
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_class t ON t.oid = i.indrelid JOIN pg_namespace n ON n.oid = t.relnamespace
WHERE i.indrelid = ANY (%(oids)s::oid[]) AND NOT EXISTS (
    SELECT FROM pg_constraint o WHERE o.conindid = c.oid AND o.contype IN ('p', 'u', 'x'))
"""


@dataclass(frozen=True)
class Found:
    """What the target's table has; empty when there is no such table."""

    columns: frozenset[str] = frozenset()
    has_primary_key: bool = False
    # By name: its definition, and whether it holds for every row. A key or check may have the name of
    # an index; a constraint that has an index is among both.
    constraints: dict[str, tuple[str, bool]] = field(default_factory=dict)
    indexes: dict[str, tuple[str, bool]] = field(default_factory=dict)
    byte_count: int = 0
    oid: int = 0

    def like(self, piece: Piece) -> tuple[str, bool] | None:
        """What has the name that the piece would get, or waits for it."""
        named = self.indexes if piece.has_index else self.constraints
        return named.get(piece.name) or named.get(stand_in(self.oid, piece.name))

    def called(self, piece: Piece) -> str:
        """What that is called."""
        named = self.indexes if piece.has_index else self.constraints
        return piece.name if piece.name in named else stand_in(self.oid, piece.name)

    def has_definition(self, definition: str) -> bool:
        """Whether anything is defined so, whatever its name."""
        return any(
            definition == each for each, _ in (*self.constraints.values(), *self.indexes.values())
        )


@dataclass(frozen=True)
class Piece:
    """One thing to make. `definition` is what identifies it when its name is taken.

    `statement` makes it, with a place for what it is called.
    """

    word: str
    name: str
    definition: str
    target: TableName
    statement: Callable[[sql.Composable], sql.Composed]

    @property
    def named(self) -> sql.Composed:
        """Makes it under its own name."""
        return self.called(self.name)

    @property
    def unnamed(self) -> sql.Composed:
        """Makes it under a name that Postgres finds."""
        return self.statement(sql.SQL(""))

    def called(self, name: str) -> sql.Composed:
        """Makes it under a name."""
        word = sql.SQL("" if self.word == "index" else "CONSTRAINT ")
        return self.statement(sql.SQL("{}{} ").format(word, sql.Identifier(name)))

    @property
    def has_index(self) -> bool:
        """Whether its name is that of an index, too."""
        return self.word != "check constraint"

    @property
    def expressions(self) -> list[Expression]:
        """The expressions of the source's that it has.

        Raises:
            UnreadableTextError: its definition is not of the form that a server gives it.
        """
        if self.word == "index":
            _, _, definition = self.definition.partition("INDEX ")
            return [Expression("index", text) for text in expressions_of_index(definition)]
        use: Use = "check" if self.word == "check constraint" else "index"
        return [Expression(use, text) for text in expressions_of_constraint(self.definition)]


def add_key(
    connection: Connection,
    target: TableName,
    structure: TableStructure,
    found: Found | None = None,
    hold: Callable[[], object] = lambda: None,
) -> None:
    """Add the primary key that `create_table` would have made, unless the table has one.

    `found`: what the table has, where that is known (`find_all`). `hold` is called in the transaction that
    makes it, and may refuse that by an error of its own.
    It bears the source's name where that is free. Nothing is made where the source has no key, or
    the target lacks a column of it.

    Raises:
        psycopg.Error: rows that the key does not allow, a column that is NULL, and the like.
    """
    found = found or _find(connection, target)
    piece = key_piece(target, structure, found.columns)
    if piece is not None and not found.has_primary_key:
        _make(connection, piece, found, hold)


def add_not_null(
    connection: Connection,
    target: TableName,
    columns: Iterable[str],
    hold: Callable[[], object] = lambda: None,
) -> list[str]:
    """Have columns NOT NULL that are not; a line for each that the rows do not allow.

    Raises:
        psycopg.Error: the server went away.
    """
    nullable = [row[0] for row in connection.execute(_NULLABLE, (*target, list(columns)))]
    if not nullable:
        return []
    try:
        # One scan of the rows for all.
        _execute(connection, _set_not_null(target, nullable), hold)
    except psycopg.Error as error:
        if len(nullable) == 1:
            return [one_line(f"column {nullable[0]} is not NOT NULL: {reason(error)}")]
        reason(error)
        return [
            line for name in nullable for line in add_not_null(connection, target, [name], hold)
        ]
    return []


def _set_not_null(target: TableName, columns: list[str]) -> sql.Composed:
    actions = [sql.SQL("ALTER {} SET NOT NULL").format(sql.Identifier(name)) for name in columns]
    table = sql.Identifier(*target)
    return sql.SQL("ALTER TABLE {} {}").format(table, sql.SQL(", ").join(actions))


def key_piece(target: TableName, structure: TableStructure, columns: Set[str]) -> Piece | None:
    """The target's primary key, where it has the columns and the source has a key."""
    if not structure.key_columns or not columns >= set(structure.key_columns):
        return None
    primary = structure.primary_key
    name, definition = structure.identity_index, _primary_key(structure.key_columns)
    if name is None and primary is not None:
        name = primary.name
        # A key WITHOUT OVERLAPS is none that ON CONFLICT could name.
        is_usable = primary.used_columns <= columns and not primary.has_period
        if is_usable and is_constraint(primary.definition):
            definition = primary.definition
    return _constraint(target, "primary key", name or f"{target.name}_pkey", definition)


def add_indexes(
    connection: Connection,
    target: TableName,
    structure: TableStructure,
    columns: set[str],
    rules: ExpressionRules = BUILTIN,
    found: Found | None = None,
    hold: Callable[[], object] = lambda: None,
) -> list[str]:
    """Make indexes, and unique, exclusion and check constraints; a line for each that failed.

    `columns` are those that the target has: what needs another is left out without a word. Of those with an
    expression, the `rules` say which ones are made. `hold` as with `add_key`.

    Raises:
        psycopg.Error: the server went away.
    """
    found = found or _find(connection, target)
    every = list(pieces_of(target, structure, columns & found.columns))
    failures = _validate(connection, target, every, found, hold)
    pieces = [piece for piece in every if found.like(piece) is None]
    pieces, left_out = screen_pieces(connection, rules, target, pieces)
    failures += left_out
    for piece in pieces:
        try:
            _make(connection, piece, found, hold)
        except psycopg.Error as error:
            failures.append(one_line(f"{piece.word} {piece.name}: {reason(error)}"))
    return failures


def _validate(
    connection: Connection,
    target: TableName,
    pieces: Iterable[Piece],
    found: Found,
    hold: Callable[[], object],
) -> list[str]:
    """Have constraints that are there hold for every row, as they do at the source."""
    failures: list[str] = []
    for piece in pieces:
        definition, is_valid = found.like(piece) or ("", True)
        if is_valid or definition == piece.definition:
            continue
        table, name = sql.Identifier(*target), sql.Identifier(found.called(piece))
        try:
            validate = sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}").format(table, name)
            _execute(connection, validate, hold)
        except psycopg.Error as error:
            failures.append(one_line(f"{piece.word} {piece.name} is not valid: {reason(error)}"))
    return failures


def screen_pieces(
    connection: Connection, rules: ExpressionRules, target: TableName, pieces: Iterable[Piece]
) -> tuple[list[Piece], list[str]]:
    """Those that may be made of a table that is there, and a line for each of the others.

    Raises:
        psycopg.Error: the server went away.
    """
    listed = list(pieces)
    scope = scope_of_table(target)
    why: dict[int, str] = {}
    wanted: list[tuple[Scope, Expression]] = []
    places: list[int] = []
    for place, piece in enumerate(listed):
        try:
            expressions = piece.expressions
        except UnreadableTextError:
            why[place] = "its definition is not one that a server gives"
            continue
        wanted += [(scope, each) for each in expressions]
        places += [place] * len(expressions)
    for number, reason_why in refused_expressions(connection, rules, wanted).items():
        why.setdefault(places[number], reason_why)
    kept = [piece for place, piece in enumerate(listed) if place not in why]
    notes = [
        one_line(f"{listed[place].word} {listed[place].name}: not taken over, {said}")
        for place, said in sorted(why.items())
    ]
    return kept, notes


def add_foreign_keys(
    connection: Connection,
    target: TableName,
    structure: TableStructure,
    place: Callable[[TableName], TableName],
    hold: Callable[[], None] = lambda: None,
) -> list[str]:
    """Make foreign keys; a line for each that was not made, or does not hold for every row.

    `place` says where a source table goes. The key is made without a check of the rows, which are
    checked under a lock that lets others write. `hold` is called in the transaction that makes a key,
    and may refuse it by an error of its own.

    Raises:
        psycopg.Error: the server went away.
    """
    found = _find(connection, target)
    failures: list[str] = []
    for key in structure.foreign_keys:
        if not found.columns >= set(key.columns):
            continue
        try:
            said = _add_foreign_key(connection, target, key, place(key.referenced), found, hold)
        except psycopg.Error as error:
            said = reason(error)
        if said:
            failures.append(one_line(f"foreign key {key.name}: {said}"))
    return failures


def _add_foreign_key(
    connection: Connection,
    target: TableName,
    key: ForeignKey,
    referenced: TableName,
    found: Found,
    hold: Callable[[], None],
) -> str:
    """Why it was not made, or ""."""
    _, is_valid = found.constraints.get(key.name, ("", None))
    if is_valid is None:
        if not _find(connection, referenced).columns:
            return f"the target has no table {referenced}"
        if key.has_period:
            return "a key over a period is not carried over"
        with suppress(psycopg.errors.DuplicateObject):  # another process copies, too
            _execute(connection, foreign_key_statement(target, key, referenced), hold)
    if key.is_valid and key.is_enforced and not is_valid:
        validate = sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}")
        with suppress(psycopg.errors.UndefinedObject):  # dropped since, as the source has done
            _execute(connection, validate.format(sql.Identifier(*target), sql.Identifier(key.name)))
    return ""


def add_small_foreign_keys(
    connection: Connection,
    target: TableName,
    keys: Sequence[ForeignKey],
    place: Callable[[TableName], TableName],
    found: Mapping[TableName, Found],
) -> bool:
    """Make foreign keys of a small table and check its rows at once; within a transaction.

    The answer is False, and nothing is made, where that is not all there is to it.

    Raises:
        psycopg.Error: one is refused, or not all rows hold it.
    """
    there = found[target]
    wanted = [key for key in keys if there.columns >= set(key.columns)]
    if there.byte_count > _CHECKED_AT_ONCE_BYTES:
        return False
    for key in wanted:
        is_plain = key.is_valid and key.is_enforced and not key.has_period
        if (
            not is_plain
            or key.name in there.constraints
            or not found[place(key.referenced)].columns
        ):
            return False
    for key in wanted:
        connection.execute(
            foreign_key_statement(target, key, place(key.referenced), checks_rows=True)
        )
    return True


def limit_locks(connection: Connection) -> None:
    """Wait little for a lock, and as long as it takes for the work itself; for one transaction.

    Names in definitions are Postgres's own where they have no schema, whatever the role's
    search_path says.
    """
    connection.execute(
        "SELECT set_config('lock_timeout', %s, true), set_config('search_path', '', true),"
        " set_config('statement_timeout', '0', true)",
        (_LOCK_TIMEOUT,),
    )


def foreign_key_statement(
    target: TableName, key: ForeignKey, referenced: TableName, *, checks_rows: bool = False
) -> sql.Composed:
    """Adds the key, without a check of the rows unless asked."""
    of_delete: sql.Composable = sql.SQL("")
    if key.on_delete_columns:
        of_delete = sql.SQL(" ({})").format(_listed(key.on_delete_columns))
    deferrable = ""
    if key.is_deferrable:
        deferrable = " DEFERRABLE INITIALLY " + ("DEFERRED" if key.is_deferred else "IMMEDIATE")
    return sql.SQL(
        "ALTER TABLE {} ADD CONSTRAINT {} FOREIGN KEY ({}) REFERENCES {} ({})"
        " MATCH {} ON UPDATE {} ON DELETE {}{}{} {}"
    ).format(
        sql.Identifier(*target),
        sql.Identifier(key.name),
        _listed(key.columns),
        sql.Identifier(*referenced),
        _listed(key.referenced_columns),
        sql.SQL(key.match),
        sql.SQL(key.on_update),
        sql.SQL(key.on_delete),
        of_delete,
        sql.SQL(deferrable),
        sql.SQL("NOT ENFORCED" if not key.is_enforced else "" if checks_rows else "NOT VALID"),
    )


def pieces_of(target: TableName, structure: TableStructure, columns: Set[str]) -> Iterator[Piece]:
    """What can be made of these columns and is not the key that `add_key` makes."""
    has_key = bool(structure.key_columns) and columns >= set(structure.key_columns)
    yield from _primary_key_piece(target, structure, columns)
    for constraint in structure.constraints:
        is_key = has_key and constraint.name == structure.identity_index
        if columns >= constraint.used_columns and not (is_key and constraint.kind == "unique"):
            word = f"{constraint.kind} constraint"
            yield _constraint(target, word, constraint.name, constraint.definition)
    for index in structure.indexes:
        is_key = has_key and index.name == structure.identity_index
        if columns >= index.used_columns and not is_key:
            yield _index(target, index.name, index.definition, is_unique=index.is_unique)


def _primary_key_piece(
    target: TableName, structure: TableStructure, columns: Set[str]
) -> Iterator[Piece]:
    """The source's, where the target has not got it as its key."""
    primary = structure.primary_key
    if primary is None or not columns >= primary.used_columns:
        return
    if not structure.key_columns:
        yield _constraint(target, "primary key", primary.name, primary.definition)
    elif structure.key_columns != primary.columns and not primary.has_period:
        # The replica identity's columns have become the target's primary key.
        unique = "UNIQUE" + primary.definition.removeprefix("PRIMARY KEY")
        yield _constraint(target, "unique constraint", primary.name, unique)


def _constraint(target: TableName, word: str, name: str, definition: str) -> Piece:
    table, text = sql.Identifier(*target), sql.SQL(definition)
    statement = sql.SQL("ALTER TABLE {} ADD {}{}")
    return Piece(
        word, name, definition, target, lambda called: statement.format(table, called, text)
    )


def _index(target: TableName, name: str, definition: str, *, is_unique: bool) -> Piece:
    table, text = sql.Identifier(*target), sql.SQL(definition)
    head = sql.SQL("CREATE UNIQUE INDEX" if is_unique else "CREATE INDEX")
    statement = sql.SQL("{} {}ON {} USING {}")
    return Piece(
        "index",
        name,
        f"{'UNIQUE ' if is_unique else ''}INDEX {definition}",
        target,
        lambda called: statement.format(head, called, table, text),
    )


def _make(connection: Connection, piece: Piece, found: Found, hold: Callable[[], object]) -> None:
    is_limited = bool(piece.expressions)
    try:
        _execute(connection, piece.named, hold, is_limited=is_limited)
    except TAKEN:
        # Another relation of the schema has the name: for the time being, where it is ours.
        await_name = partial(await_names, connection, found.oid)
        if is_held_by_ours(connection, piece.target, piece.name) and await_name():
            statement = piece.called(stand_in(found.oid, piece.name))
            _execute(connection, statement, lambda: (hold(), await_name()), is_limited=is_limited)
        # Else Postgres finds a free one, but must not do so each time that this is repeated.
        elif not found.has_definition(piece.definition):
            _execute(connection, piece.unnamed, hold, is_limited=is_limited)


def _execute(
    connection: Connection,
    statement: sql.Composed,
    hold: Callable[[], object] = lambda: None,
    *,
    is_limited: bool = False,
) -> None:
    """Wait little for a lock, again and again.

    `is_limited`: no longer than the role may, since it evaluates expressions of the source's.
    """
    for attempt in range(1, _LOCK_ATTEMPTS + 1):
        try:
            with connection.transaction():
                limit_locks(connection)
                hold()
                with own_time_limit(connection, is_limited=is_limited):
                    execute_one(connection, statement)
        except _LOCKED:
            if attempt == _LOCK_ATTEMPTS:
                raise
            time.sleep(timing().lock_pause_seconds)
        else:
            return


def find_all(connection: Connection, targets: Collection[TableName]) -> dict[TableName, Found]:
    """What each of the tables has at the target, asked for all at once."""
    with connection.transaction():
        connection.execute("SELECT set_config('search_path', '', true)")
        tables = connection.execute(_TABLES, as_columns(targets)).fetchall()
        by_oid = {
            oid: Found(frozenset(columns), has_key, byte_count=byte_count, oid=oid)
            for _, _, oid, has_key, columns, byte_count in tables
        }
        rows = connection.execute(_THERE, {"oids": list(by_oid)}).fetchall() if by_oid else []
    for oid, kind, name, definition, is_valid in rows:
        if kind != _PLAIN_INDEX:
            by_oid[oid].constraints[name] = (definition, is_valid)
        if kind in _WITH_INDEX:
            by_oid[oid].indexes[name] = (definition, is_valid)
    found = {TableName(schema, name): by_oid[oid] for schema, name, oid, *_ in tables}
    return {target: found.get(target, Found()) for target in targets}


def _find(connection: Connection, target: TableName) -> Found:
    return find_all(connection, [target])[target]


def _primary_key(columns: tuple[str, ...]) -> str:
    return f"PRIMARY KEY ({_listed(columns).as_string(None)})"


def _listed(names: tuple[str, ...]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def reason(error: psycopg.Error) -> str:
    """What Postgres calls it, and its words where they hold no value of a row.

    The words of a function, which has a context, may hold anything.

    Raises:
        psycopg.Error: the same one, when it is not about what was to be made.
    """
    if error.sqlstate is None or error.sqlstate.startswith(_STATES_OF_SERVER):
        raise error
    kind, said = type(error).__name__, error.diag.message_primary
    has_words = error.sqlstate.startswith(_CLASSES_WITHOUT_VALUES)
    if not said or not has_words or error.diag.context not in (None, "parallel worker"):
        return f"{kind} ({error.sqlstate})"
    return f"{kind}, {said}"


def one_line(text: str) -> str:
    """The text without line ends, and without what cannot be seen."""
    return printable(" ".join(text.split()))
