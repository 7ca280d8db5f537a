"""Which expressions of the source may be evaluated at the target, where that is done as the sink's role.

Defaults, checks, computed columns, expressions and predicates of indexes: whoever may alter a table of
the source writes them. The target parses them, as a view that is rolled back, and evaluates nothing: views
are not planned when they are made. What they call is then read from the tree that it has stored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from penstock.sinks.postgres.expressions.node_tree import FIRST_USER_OID, Used, entries, used_by
from penstock.sinks.postgres.expressions.sql_text import (
    UnreadableTextError,
    is_constant,
    qualified_names,
    require_expression,
)
from penstock.table import TableName, TableRule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    Connection = psycopg.Connection[Any]

Policy = Literal["builtin", "none", "all"]
Use = Literal["default", "generated", "check", "index"]

# So many expressions in one view: its tree is some KB for each.
_AT_ONCE = 200
_PREFIX = "penstock_"

# Functions of Postgres's own that are not immutable and yet do no more than to compute: with the clock, with
# random bits, with the session's settings, with the names of who asks and where.
_HARMLESS_WORDS = """
now transaction_timestamp statement_timestamp clock_timestamp timeofday
gen_random_uuid uuidv4 uuidv7 random random_normal
timestamptz timestamp date time timetz timezone date_trunc date_part extract age overlaps
to_char to_date to_timestamp to_number make_timestamptz date_add date_subtract
timestamptz_pl_interval timestamptz_mi_interval interval_pl_timestamptz
concat concat_ws format array_to_string textanycat anytextcat quote_literal quote_nullable
to_json to_jsonb row_to_json array_to_json json_build_object json_build_array
jsonb_build_object jsonb_build_array
to_tsvector to_tsquery plainto_tsquery phraseto_tsquery websearch_to_tsquery
enum_first enum_last enum_range money numeric pg_column_size
current_user session_user current_database current_schema
txid_current pg_current_xact_id
"""
_HARMLESS = frozenset(_HARMLESS_WORDS.split())
# Immutable, as they say, and yet they open a table that is named by a number.
_NOT_HARMLESS = frozenset({"satisfies_hash_partition"})
_COMPARISON = re.compile(
    r"(?:date|timestamp|timestamptz)_(?:eq|ne|lt|le|gt|ge|cmp)_(?:date|timestamp|timestamptz)"
)
_HARMLESS_OF_EXTENSIONS = {
    "uuid-ossp": frozenset({"uuid_generate_v1", "uuid_generate_v1mc", "uuid_generate_v4"}),
    "pgcrypto": frozenset({"gen_random_uuid"}),
}
# The same as the server spells them, so that the commonest defaults are known without it.
_HARMLESS_TEXTS_WORDS = """
now() CURRENT_TIMESTAMP CURRENT_DATE CURRENT_TIME LOCALTIMESTAMP LOCALTIME clock_timestamp()
statement_timestamp() transaction_timestamp() gen_random_uuid() uuidv7() uuidv4() random()
"""
_HARMLESS_TEXTS = frozenset(_HARMLESS_TEXTS_WORDS.split())
_NEXT_VALUE = re.compile(r"nextval\('((?:[^'\\]|'')+)'::regclass\)")

UNREADABLE = "the target cannot read it"
_STRANGE_TYPE = "it has a type that neither the sink's role nor a superuser owns"

_FUNCTIONS = """
SELECT p.oid::bigint AS number, o.oid::bigint AS operator, n.nspname AS schema, p.proname AS name,
       p.prosecdef AS is_definer, p.provolatile::text AS volatility, p.proretset AS gives_sets,
       p.prokind::text AS kind, l.lanname = 'c' AND r.rolsuper AS is_of_superuser,
       l.lanname = 'internal' AS is_internal,
       (SELECT e.extname FROM pg_catalog.pg_depend d
        JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
        WHERE d.classid = 'pg_catalog.pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
          AND d.refclassid = 'pg_catalog.pg_extension'::regclass) AS extension
FROM pg_catalog.pg_proc p
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
JOIN pg_catalog.pg_language l ON l.oid = p.prolang
JOIN pg_catalog.pg_roles r ON r.oid = p.proowner
LEFT JOIN pg_catalog.pg_operator o ON o.oprcode = p.oid AND o.oid = ANY (%(operators)s::oid[])
WHERE p.oid = ANY (%(functions)s::oid[]) OR o.oid IS NOT NULL
"""

# What Postgres's makers, or an extension's, let any owner of a database install.
_TRUSTED = """
SELECT e.extname FROM pg_catalog.pg_extension e
JOIN pg_catalog.pg_available_extension_versions v ON v.name = e.extname AND v.version = e.extversion
WHERE v.trusted AND e.extname = ANY (%s)
"""

# Whoever owns a type may have it call functions: a domain in its checks, a range to measure itself.
_TYPES = """
SELECT t.oid::bigint FROM pg_catalog.pg_type t JOIN pg_catalog.pg_roles r ON r.oid = t.typowner
WHERE t.oid = ANY (%s::oid[]) AND (r.rolsuper OR r.rolname = current_user)
"""

# Literals of an array or a composite type are read while they are parsed, and with them domains are checked.
_TYPES_OF_OTHERS = """
SELECT n.nspname, t.typname
FROM unnest(%s::text[], %s::text[]) AS named(schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = named.schema
JOIN pg_catalog.pg_type t ON t.typnamespace = n.oid AND t.typname = named.name
JOIN pg_catalog.pg_roles r ON r.oid = t.typowner
WHERE NOT r.rolsuper AND r.rolname <> current_user
"""

_OWN_SEQUENCES = """
SELECT c.oid::bigint FROM pg_catalog.pg_class c JOIN pg_catalog.pg_roles r ON r.oid = c.relowner
WHERE c.oid = ANY (%s::oid[]) AND c.relkind = 'S' AND r.rolname = current_user
"""

_CONFIGURATIONS = """
SELECT c.oid::bigint FROM pg_catalog.pg_ts_config c WHERE c.oid = ANY (%(all)s::oid[])
  AND c.cfgnamespace = 'pg_catalog'::regnamespace
UNION ALL
SELECT d.oid::bigint FROM pg_catalog.pg_ts_dict d WHERE d.oid = ANY (%(all)s::oid[])
  AND d.dictnamespace = 'pg_catalog'::regnamespace
"""


@dataclass(frozen=True)
class ExpressionRules:
    """What a person has said: `builtin`, `none` or `all`, and functions that may be called beside."""

    policy: Policy = "builtin"
    functions: tuple[TableRule, ...] = ()

    def allows(self, schema: str, name: str) -> bool:
        """Whether a function was named."""
        return any(rule.matches(TableName(schema, name)) for rule in self.functions)


BUILTIN = ExpressionRules()


class Scope(NamedTuple):
    """What an expression may name: the columns of `relation`, a table or a query in parentheses, as SQL."""

    relation: str
    name: str


NO_COLUMNS = Scope("(SELECT)", "t")  # for defaults


class Expression(NamedTuple):
    """One text, and what it is for."""

    use: Use
    text: str


# What was accepted and is made of Postgres's own alone: that does not change. By server and database.
_accepted: set[tuple[str, Scope, Expression]] = set()
_MOST_ACCEPTED = 20_000


def scope_of_table(table: TableName) -> Scope:
    """The columns of a table that is there."""
    return Scope(sql.Identifier(*table).as_string(None), table.name)


def scope_of_columns(table: TableName, columns: Iterable[tuple[str, sql.Composable]]) -> Scope:
    """The columns, by name and type, that a table of this name is about to have."""
    listed = [
        sql.SQL("NULL::{} AS {}").format(kind, sql.Identifier(name)) for name, kind in columns
    ]
    query = sql.SQL("(SELECT {})").format(sql.SQL(", ").join(listed))
    return Scope(query.as_string(None), table.name)


def refused_expressions(
    connection: Connection,
    rules: ExpressionRules,
    wanted: Sequence[tuple[Scope, Expression]],
) -> dict[int, str]:
    """Why expressions are not taken over, by their places in `wanted`. Nothing is evaluated.

    Raises:
        psycopg.Error: the server went away.
    """
    if rules.policy == "all":
        return {}
    refused: dict[int, str] = {}
    asked: list[int] = []
    database = _database(connection)
    for place, (scope, expression) in enumerate(wanted):
        is_known = rules.policy == "builtin" and (database, scope, expression) in _accepted
        why = "" if is_known else _refused_by_text(rules, expression)
        if why is None:
            asked.append(place)
        elif why:
            refused[place] = why
    named = {place: qualified_names(wanted[place][1].text) for place in asked}
    others = _types_of_others(connection, set[tuple[str, str]]().union(*named.values()))
    for place in [each for each in asked if not others.isdisjoint(named[each])]:
        refused[place] = _STRANGE_TYPE
        asked.remove(place)
    for begin in range(0, len(asked), _AT_ONCE):
        refused |= _ask(connection, rules, wanted, asked[begin : begin + _AT_ONCE])
    return refused


def _database(connection: Connection) -> str:
    info = connection.info
    return f"{info.user}@{info.host}:{info.port}/{info.dbname}"


def _remember(connection: Connection, scope: Scope, expression: Expression) -> None:
    if not scope.relation.startswith("("):
        return  # a table, whose columns may change
    if len(_accepted) >= _MOST_ACCEPTED:
        _accepted.clear()
    _accepted.add((_database(connection), scope, expression))


def _types_of_others(connection: Connection, names: set[tuple[str, str]]) -> set[tuple[str, str]]:
    if not names:
        return set()
    columns = ([schema for schema, _ in names], [name for _, name in names])
    return {(schema, name) for schema, name in connection.execute(_TYPES_OF_OTHERS, columns)}


def refused_trees(
    connection: Connection, rules: ExpressionRules, trees: Sequence[str]
) -> dict[int, str]:
    """The same of expressions that the target has stored already, by their places.

    Sequences and types are whoever's: their owners can do no more with them than the table's.
    """
    if not trees:
        return {}
    used = [replace(used_by(tree), types=set(), relations=set()) for tree in trees]
    known = _Known(connection, rules, used)
    found = {place: known.refuse(each, "default") for place, each in enumerate(used)}
    return {place: why for place, why in found.items() if why}


def _refused_by_text(rules: ExpressionRules, expression: Expression) -> str | None:
    """Why it is refused, "" where it is not, None where only the target knows."""
    text = expression.text
    if is_constant(text):
        return ""
    if rules.policy == "none":
        return "expressions is none"
    try:
        require_expression(text)
    except UnreadableTextError:
        return "it is no expression"
    return "" if text in _HARMLESS_TEXTS else None


def _ask(
    connection: Connection,
    rules: ExpressionRules,
    wanted: Sequence[tuple[Scope, Expression]],
    places: Sequence[int],
) -> dict[int, str]:
    refused: dict[int, str] = {}
    trees: dict[int, str] = {}
    try:
        trees = _parse(connection, wanted, places)
    except psycopg.Error as error:
        if not _is_about_text(error):
            raise
        if len(places) == 1:
            if _is_of_sequence_to_come(connection, wanted[places[0]][1]):
                return {}
            return {places[0]: f"{UNREADABLE} ({type(error).__name__})"}
        # Halves: one that the target cannot read is found in few steps, all of them in not many more.
        middle = len(places) // 2
        for part in (places[:middle], places[middle:]):
            refused |= _ask(connection, rules, wanted, part)
        return refused
    used = {place: used_by(tree) for place, tree in trees.items()}
    known = _Known(connection, rules, used.values())
    for place in places:
        # One that is not in the tree has broken out of its parentheses, which `tokens` should have seen.
        why = (
            known.refuse(used[place], wanted[place][1].use)
            if place in used
            else "it is no expression"
        )
        if why:
            refused[place] = why
        elif used[place].is_builtin:
            _remember(connection, *wanted[place])
    return refused


def _parse(
    connection: Connection, wanted: Sequence[tuple[Scope, Expression]], places: Sequence[int]
) -> dict[int, str]:
    """The stored trees."""
    by_scope: dict[Scope, list[int]] = {}
    for place in places:
        by_scope.setdefault(wanted[place][0], []).append(place)
    parts = [
        sql.SQL("(SELECT {} FROM {} AS {}) AS {}").format(
            sql.SQL(", ").join(
                sql.SQL("({}) AS {}").format(
                    sql.SQL(wanted[place][1].text), sql.Identifier(f"{_PREFIX}{place}")
                )
                for place in mine
            ),
            sql.SQL(scope.relation),
            sql.Identifier(scope.name),
            sql.Identifier(f"scope_{number}"),
        )
        for number, (scope, mine) in enumerate(by_scope.items())
    ]
    make = sql.SQL("CREATE TEMPORARY VIEW penstock_expressions AS SELECT 1 AS one FROM {}")
    with connection.transaction(force_rollback=True):
        connection.execute(
            "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)"
        )
        execute_one(connection, make.format(sql.SQL(", ").join(parts)))
        row = connection.execute(
            "SELECT ev_action::text FROM pg_catalog.pg_rewrite"
            " WHERE ev_class = 'pg_temp.penstock_expressions'::regclass"
        ).fetchone()
    assert row is not None
    return entries(row[0], _PREFIX)


def _is_about_text(error: psycopg.Error) -> bool:
    """Whether the target cannot read an expression, rather than be asked at all."""
    return (error.sqlstate or "").startswith(("42", "22", "0A", "54", "2B", "3F"))


def _is_of_sequence_to_come(connection: Connection, expression: Expression) -> bool:
    """Whether it counts with a sequence of which nobody has the name; who makes it then owns it."""
    counted = _NEXT_VALUE.fullmatch(expression.text)
    if counted is None or expression.use != "default":
        return False
    row = connection.execute(
        "SELECT pg_catalog.to_regclass(%s) IS NULL", (counted[1].replace("''", "'"),)
    ).fetchone()
    return row == (True,)


class _Known:
    """What the target says of all that some expressions use."""

    def __init__(
        self, connection: Connection, rules: ExpressionRules, used: Collection[Used]
    ) -> None:
        self._rules = rules
        every = Used.together(used)
        with connection.cursor(row_factory=namedtuple_row) as cursor:
            values = {"functions": list(every.functions), "operators": list(every.operators)}
            rows: list[Any] = cursor.execute(_FUNCTIONS, values).fetchall()
        self._functions = {row.number: row for row in rows}
        self._operators = {row.operator: row for row in rows if row.operator is not None}
        extensions = {row.extension for row in rows if row.extension is not None}
        self._trusted = self._ask(connection, _TRUSTED, extensions)
        types = {number for number in every.types if number >= FIRST_USER_OID}
        self._types = self._ask(connection, _TYPES, types)
        self._sequences = self._ask(connection, _OWN_SEQUENCES, every.relations)
        self._configurations: set[Any] = set()
        if every.configurations:
            values = {"all": list(every.configurations)}
            self._configurations = {row[0] for row in connection.execute(_CONFIGURATIONS, values)}

    @staticmethod
    def _ask(connection: Connection, query: str, values: set[Any]) -> set[Any]:
        if not values:
            return set()
        return {row[0] for row in connection.execute(query, (list(values),))}

    def refuse(self, used: Used, use: Use) -> str:
        """Why the expression is not taken over, or ""."""
        if used.strange:
            return f"it has parts that are not carried over ({', '.join(sorted(used.strange)).lower()})"
        called = [self._functions.get(number) for number in used.functions]
        called += [self._operators.get(number) for number in used.operators]
        for each in called:
            why = (
                "it calls what the target does not have"
                if each is None
                else self._refuse(each, use)
            )
            if why:
                return why
        if any(each >= FIRST_USER_OID and each not in self._types for each in used.types):
            return _STRANGE_TYPE
        if not used.relations <= self._sequences:
            return "it names a relation that the sink's role does not own as a sequence"
        if not used.configurations <= self._configurations:
            return "it names a text search configuration that is not Postgres's own"
        return ""

    def _refuse(self, function: Any, use: Use) -> str:
        called = TableName(function.schema, function.name)
        if self._rules.allows(*called):
            return ""
        is_plain = function.kind == "f" and not function.is_definer and not function.gives_sets
        if is_plain and self._is_harmless(function, use):
            return ""
        return f"it calls {called}"

    def _is_harmless(self, function: Any, use: Use) -> bool:
        """Whether whoever calls it can do nothing by it but compute a value."""
        if function.schema == "pg_catalog" and function.number < FIRST_USER_OID:
            return _is_harmless_builtin(function, use)
        if function.is_internal:
            # What makes values of a range: it came with the type, or a superuser has declared it.
            return bool(function.volatility == "i")
        if function.extension not in self._trusted or not function.is_of_superuser:
            return False
        harmless = _HARMLESS_OF_EXTENSIONS.get(function.extension, ())
        return function.volatility == "i" or function.name in harmless


def _is_harmless_builtin(function: Any, use: Use) -> bool:
    if function.name in _NOT_HARMLESS:
        return False
    return (
        function.volatility == "i"
        or function.name in _HARMLESS
        or _COMPARISON.fullmatch(function.name) is not None
        or (function.name == "nextval" and use == "default")
    )


def execute_one(connection: Connection, statement: sql.Composable) -> None:
    """Run one statement, and never a second one behind it: the extended protocol takes no more.

    For every statement that has text of the source's in it. Nothing is fetched, so that the format
    of the result, by which psycopg is brought to that protocol, is nobody's concern.
    """
    connection.execute(sql.Composed([statement]), binary=True)
