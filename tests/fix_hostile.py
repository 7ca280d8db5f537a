"""A database whose owner has put something else under every name that penstock uses.

In schema public, which the database's search_path names before pg_catalog: whatever is not resolved in
pg_catalog alone is found there first. Every one of these notes its call, also where it is rolled back.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock

if TYPE_CHECKING:
    import psycopg

    from fix_postgres import Database

SAFE = "SET search_path = pg_catalog, public"

_FUNCTIONS = """
SELECT p.proname, pg_get_function_identity_arguments(p.oid), pg_get_function_result(p.oid)
FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = ANY (%s)
  AND pg_get_function_identity_arguments(p.oid) NOT LIKE '%%ORDER BY%%' AND NOT EXISTS (
      SELECT FROM pg_type t WHERE t.typtype = 'p' AND t.typname NOT LIKE 'any%%'
      AND t.typname <> 'void' AND t.typname <> 'record'
      AND (t.oid = p.prorettype OR t.oid = ANY (p.proargtypes::oid[])))
  AND NOT ('"any"'::regtype = ANY (p.proargtypes::oid[])) AND p.prorettype <> '"any"'::regtype
"""
_OPERATORS = """
SELECT o.oprname, o.oprleft::regtype::text, o.oprright::regtype::text, o.oprresult::regtype::text,
       o.oprleft <> 0
FROM pg_operator o WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprname = ANY (%s)
  AND NOT EXISTS (SELECT FROM pg_type t WHERE t.typtype = 'p' AND t.typname NOT LIKE 'any%%'
                  AND t.typname <> 'record' AND t.oid IN (o.oprleft, o.oprright, o.oprresult))
"""
_RELATIONS = """
SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'pg_catalog'::regnamespace
  AND c.relkind IN ('r', 'v') AND c.relname = ANY (%s)
"""
# Those that take anything take, too, what an attacker makes for the very arguments.
_ANY = ("format", "concat", "concat_ws", "jsonb_build_object", "jsonb_build_array", "num_nulls")
_ARGUMENTS = ("text", "name", "integer", "jsonb", "oid")
_EXACT = {  # as penstock writes them, with literals that are integers
    "hashtextextended": ("text, integer",),
    "set_config": ("name, text, boolean", "text, text, boolean"),
    "pg_advisory_lock": ("integer", "text"),
    "substr": ("text, integer, integer",),
}


def plant(database: Database) -> int:
    """Fill schema public; how many traps there are."""
    words = _words()
    with database.connect() as connection:
        connection.execute("SET search_path = pg_catalog")
        connection.execute("SET check_function_bodies = off")
        connection.execute(
            "CREATE SCHEMA trapped; CREATE TABLE trapped.traps (number serial PRIMARY KEY, what text)"
        )
        connection.execute(
            "CREATE SEQUENCE trapped.sprung; GRANT ALL ON trapped.sprung TO PUBLIC; GRANT USAGE ON SCHEMA trapped TO PUBLIC"
        )
        traps = _Traps(connection)
        for name, arguments, result in connection.execute(_FUNCTIONS, (words,)).fetchall():
            traps.function(name, arguments, result)
        for name in set(_ANY) & set(words):
            kind = "jsonb" if name.startswith("jsonb") else "text"
            for arguments in _combinations():
                traps.function(name, arguments, kind)
        for name, listed in _EXACT.items():
            for arguments in listed:
                traps.function(name, arguments, "bigint" if name.startswith("hash") else "text")
        operators = connection.execute(_OPERATORS, (_operators(),)).fetchall()
        for each in operators:
            traps.operator(*each)
        for (name,) in connection.execute(_RELATIONS, (words,)).fetchall():
            traps.relation(name)
        for name in ("text", "oid", "regclass", "int8", "jsonb", "pg_lsn"):
            connection.execute(f"CREATE DOMAIN public.{name} AS integer CHECK (false)")
        connection.execute(f'ALTER DATABASE "{database.name}" SET search_path = public, pg_catalog')
        return traps.count


def sprung(database: Database) -> str:
    """What was called last of all that was planted, "" when nothing was."""
    found = database.query(
        "SELECT t.what FROM trapped.sprung s JOIN trapped.traps t"
        " ON t.number OPERATOR(pg_catalog.=) s.last_value WHERE s.is_called"
    )
    return str(found[0][0]) if found else ""


def safely(database: Database, statement: str, *args: object) -> list[tuple[Any, ...]]:
    """What a user does who knows this database."""
    with database.connect() as connection:
        connection.execute(SAFE)
        cursor = connection.execute(statement, args or None)
        return cursor.fetchall() if cursor.description else []


class _Traps:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self.count = 0

    def function(self, name: str, arguments: str, result: str) -> None:
        if result.startswith(("TABLE", "SETOF record")):
            arguments = re.sub(r"OUT .*$", "", arguments).rstrip(", ")
            result = "SETOF record"
        signature = f'public."{name}"({arguments})'
        self._make(
            signature,
            f"CREATE OR REPLACE FUNCTION {signature} RETURNS {result} LANGUAGE plpgsql AS",
        )

    def operator(self, name: str, left: str, right: str, result: str, is_binary: bool) -> None:
        arguments = f"{left}, {right}" if is_binary else right
        sides = f"LEFTARG = {left}, RIGHTARG = {right}" if is_binary else f"RIGHTARG = {right}"
        trap = f"public.trap_{self.count}"
        head = f"CREATE FUNCTION {trap}({arguments}) RETURNS {result} LANGUAGE plpgsql AS"
        self._make(
            f"{left} {name} {right}",
            head,
            f"CREATE OPERATOR public.{name} (FUNCTION = {trap}, {sides})",
        )

    def relation(self, name: str) -> None:
        trap = f"public.trap_{self.count}"
        head = f"CREATE FUNCTION {trap}() RETURNS boolean LANGUAGE plpgsql AS"
        # pg_attribute and others have columns that no view can repeat.
        self._make(name, head, f"CREATE VIEW public.{name} AS SELECT WHERE {trap}()")

    def _make(self, what: str, head: str, *more: str) -> None:
        number = self._connection.execute(
            "INSERT INTO trapped.traps (what) VALUES (%s) RETURNING number", (what,)
        ).fetchone()
        assert number is not None
        self.count += 1
        body = (
            f"BEGIN PERFORM pg_catalog.setval('trapped.sprung'::pg_catalog.regclass, {number[0]});"
            " RAISE EXCEPTION 'a trap was sprung'; END"
        )
        for statement in (f"{head} $trap${body}$trap$", *more):
            self._connection.execute(statement)


def _source() -> str:
    root = Path(penstock.__file__).parent
    return "\n".join(path.read_text() for path in sorted(root.rglob("*.py")))


def _words() -> list[str]:
    """Whatever stands in penstock's texts, and is a function or a relation of Postgres's."""
    return sorted(set(re.findall(r"[a-z_][a-z0-9_]*", _source())))


def _operators() -> list[str]:
    return sorted(set(re.findall(r"(?<=[ '\"])[-+*/<>=~!@#%^&|`?]+(?=[ '\"])", _source())))


def _combinations() -> list[str]:
    pairs = [f"{one}, {other}" for one in _ARGUMENTS for other in _ARGUMENTS]
    triples = [f"{pair}, {last}" for pair in pairs for last in _ARGUMENTS]
    return [*_ARGUMENTS, *pairs, *triples, "VARIADIC text[]", "text, VARIADIC anyarray"]
