"""Random changes of tables and rows, with restarts between: both sides are the same after every few."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import psycopg
import pytest
from test_travel_hard import assert_same, quoted, settle

from fix_pipeline import INITIAL

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

BEFORE = """
CREATE SCHEMA other;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE t0 (id int PRIMARY KEY, a int DEFAULT 3, b varchar(20), c numeric(10,2));
CREATE TABLE t1 (id int PRIMARY KEY, a text, m mood DEFAULT 'ok');
CREATE TABLE t2 (id int PRIMARY KEY, p int REFERENCES t0, d date);
INSERT INTO t0 SELECT g, g, 'b' || g, g / 3.0 FROM generate_series(1, 5) g;
INSERT INTO t1 SELECT g, 'a' || g FROM generate_series(1, 5) g;
INSERT INTO t2 SELECT g, g FROM generate_series(1, 5) g
"""
TYPES = {
    "int": "7",
    "bigint": "12345678901",
    "varchar(20)": "'it''s'",
    "varchar(40)": "'b c'",
    "text": "'%s {} ; --'",
    "numeric(12,3)": "4.125",
    "boolean": "true",
    "jsonb": """'{"a": null}'""",
    "int[]": "'{1,NULL}'",
    "public.mood": "'sad'",
    "timestamptz": "now()",
    "date": "current_date",
}
NAMES = ["a", "b", "c", "d", 'q"', "Up", "%s", "{}"]
TABLES = """
SELECT c.oid, nspname, relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE relkind = 'r' AND nspname IN ('public', 'other') ORDER BY 2, 3
"""
COLUMNS = """
SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
AND attname <> 'id' ORDER BY attnum
"""
CONSTRAINTS = "SELECT conname FROM pg_constraint WHERE conrelid = %s AND contype <> 'n' ORDER BY 1"
INDEXES = """
SELECT x.relname FROM pg_index i JOIN pg_class x ON x.oid = indexrelid
WHERE indrelid = %s AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = x.oid) ORDER BY 1
"""
USED = "SELECT 1 FROM pg_attribute WHERE atttypid = 'public.mood'::regtype AND NOT attisdropped LIMIT 1"
LABELS = "SELECT enumlabel FROM pg_enum ORDER BY enumsortorder"


class Chaos:
    """Says what is done next, from how the source looks inside the transaction."""

    def __init__(self, seed: int, connection: psycopg.Connection[Any]) -> None:
        self._choice = random.Random(seed)
        self._connection = connection
        self._number = 100

    def ask(self, query: str, *args: object) -> list[Any]:
        found = self._connection.execute(query, args or None).fetchall()
        return [row[0] if len(row) == 1 else row for row in found]

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def statement(self) -> str:
        tables = self.ask(TABLES)
        if not tables or (len(tables) < 5 and self._choice.random() < 0.05):
            return self._create(tables)
        oid, schema, name = self._choice.choice(tables)
        table = f"{quoted(schema)}.{quoted(name)}"
        draw = self._choice.random()
        if draw < 0.45:
            return self._rows(oid, table)
        if draw < 0.5:
            return self._types()
        if draw < 0.53 and len(tables) > 2:
            return f"DROP TABLE {table} CASCADE"
        return self._alter(oid, schema, table, tables)

    def _create(self, tables: list[Any]) -> str:
        kind, value = self._choice.choice(list(TYPES.items()))
        return (
            f"CREATE TABLE t{self._choice.randrange(8)} (id int PRIMARY KEY, a int, b text,"
            f" c {kind} DEFAULT {value})"
        )

    def _rows(self, oid: int, table: str) -> str:
        number = self.next_number()
        columns = self.ask(COLUMNS, oid)
        column = quoted(self._choice.choice(columns)) if columns else "id"
        return self._choice.choice(
            [
                f"INSERT INTO {table} (id) VALUES ({number})",
                f"INSERT INTO {table} (id) SELECT generate_series({number * 1000}, {number * 1000 + 9})",
                f"UPDATE {table} SET {column} = DEFAULT WHERE id % 3 = 0",
                f"UPDATE {table} SET {column} = NULL WHERE id % 4 = 0",
                f"UPDATE {table} SET {column} = '{number}' WHERE id % 2 = 0",
                f"UPDATE {table} SET id = id + 1000000 WHERE id = (SELECT max(id) FROM {table})",
                f"DELETE FROM {table} WHERE id % 7 = 0",
                f"TRUNCATE {table}" if number % 5 == 0 else f"DELETE FROM {table} WHERE id % 9 = 0",
            ]
        )

    def _types(self) -> str:
        label = self._choice.choice(self.ask(LABELS))
        place = self._choice.choice(["", f" BEFORE '{label}'", f" AFTER '{label}'"])
        add, rename = (
            f"ALTER TYPE public.mood ADD VALUE 'l{self.next_number()}'{place}",
            f"ALTER TYPE public.mood RENAME VALUE '{label}' TO 'l{self.next_number()}'",
        )
        # Of a type that no table has, a new name cannot be told from a new label.
        is_rename = self._choice.choice([False, True]) and self.ask(USED)
        return rename if is_rename else add

    def _alter(self, oid: int, schema: str, table: str, tables: list[Any]) -> str:
        choose = self._choice.choice
        column = quoted(choose(self.ask(COLUMNS, oid) or ["id"]))
        constraint = quoted(choose(self.ask(CONSTRAINTS, oid) or ["none"]))
        index = f"{quoted(schema)}.{quoted(choose(self.ask(INDEXES, oid) or ['none']))}"
        new, (kind, value) = quoted(choose(NAMES)), choose(list(TYPES.items()))
        _, its_schema, its_name = choose(tables)
        other = f"{quoted(its_schema)}.{quoted(its_name)}"
        alterations = [
            f"ADD {new} {kind}",
            f"ADD {new} {kind} DEFAULT {value}",
            f"ADD {new} {kind} NOT NULL DEFAULT {value}",
            f"ADD {new} uuid DEFAULT gen_random_uuid()",
            f"DROP {column} CASCADE",
            f"DROP {column} CASCADE, ADD {column} {kind} DEFAULT {value}",
            f"RENAME {column} TO {new}",
            f"RENAME {column} TO {new}",
            f"ALTER {column} TYPE {kind}",
            f"ALTER {column} TYPE text",
            f"ALTER {column} TYPE bigint",
            f"ALTER {column} TYPE bigint USING 5",
            f"ALTER {column} SET NOT NULL",
            f"ALTER {column} DROP NOT NULL",
            f"ALTER {column} SET DEFAULT {value}",
            f"ALTER {column} DROP DEFAULT",
            f"ADD CONSTRAINT {new} UNIQUE (id, {column})",
            f"ADD CONSTRAINT {new} CHECK ({column} IS NULL OR id >= 0)",
            f"ADD CONSTRAINT {new} FOREIGN KEY (id) REFERENCES {other} NOT VALID",
            f"DROP CONSTRAINT IF EXISTS {constraint} CASCADE, ADD PRIMARY KEY (id)",
            f"DROP CONSTRAINT {constraint}",
            f"RENAME CONSTRAINT {constraint} TO {new}",
            f"RENAME TO t{self._choice.randrange(8)}",
            f"SET SCHEMA {choose(['public', 'other'])}",
        ]
        return choose(
            [
                *(f"ALTER TABLE {table} {each}" for each in alterations),
                f"CREATE INDEX {new} ON {table} ({column}, id)",
                f"CREATE UNIQUE INDEX {new} ON {table} (id, {column})",
                f"DROP INDEX {index}",
                f"ALTER INDEX {index} RENAME TO {new}",
            ]
        )


# A table of penstock's needs its key. What goes without one is not what this is about.
KEYLESS = """
SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE relkind = 'r' AND nspname IN ('public', 'other') AND NOT EXISTS (
    SELECT FROM pg_constraint WHERE conrelid = c.oid AND contype = 'p')
"""


def transact(connection: psycopg.Connection[Any], chaos: Chaos, choice: random.Random) -> list[str]:
    """A transaction of a few statements, some of them undone; what was tried and did not fail."""
    done = []
    for _ in range(choice.choice([1, 1, 2, 5])):
        statement = chaos.statement()
        undone = choice.random() < 0.15
        connection.execute("SAVEPOINT one")
        try:
            connection.execute(statement)
            if connection.execute(KEYLESS).fetchone() != (0,):
                undone = True
        except psycopg.Error:
            undone = True
        else:
            done.append(f"{statement}{' -- undone' if undone else ''}")
        connection.execute("ROLLBACK TO one" if undone else "RELEASE one")
    if choice.random() < 0.1:
        connection.rollback()
        done.append("ROLLBACK")
    else:
        try:
            connection.commit()
        except psycopg.Error:
            connection.rollback()
            done.append("ROLLBACK, for COMMIT failed")
    return ["BEGIN", *done] if done else []


def play(seed: int, steps: int, source: Database, target: Database, make_pipeline: Make) -> None:
    source.execute(BEFORE)
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    settle(pipeline, target)
    done: list[str] = []
    choice = random.Random(-seed - 1)
    with source.connect(autocommit=False) as connection:
        chaos = Chaos(seed, connection)
        for step in range(steps):
            is_stopped = choice.random() < 0.3
            if is_stopped:
                pipeline.stop()
                done.append("-- stopped")
            for _ in range(choice.choice([1, 3, 6])):
                done += transact(connection, chaos, choice)
            if is_stopped:
                pipeline.start()
                done.append("-- started")
            try:
                assert_same(pipeline, source, target)
            except BaseException:
                print(";\n".join(done))
                raise
            done.append(f"-- same after step {step}")


@pytest.mark.parametrize("seed", range(2))
def test_both_sides_are_the_same_whatever_is_done(
    seed: int, source: Database, target: Database, make_pipeline: Make
) -> None:
    play(seed, 5, source, target, make_pipeline)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 30))
def test_both_sides_are_the_same_whatever_is_done_for_long(
    seed: int, source: Database, target: Database, make_pipeline: Make
) -> None:
    play(seed, 15, source, target, make_pipeline)
