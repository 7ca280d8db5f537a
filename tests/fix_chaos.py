"""Random statements about tables and their rows, chosen from the source's shapes at that moment."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

# What the source has before anything random happens to it.
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
WHERE relkind = 'r' AND nspname = ANY (%s) ORDER BY 2, 3
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

# Large inserts do not meet: the rows of one number end before those of the next begin.
LONGEST_STRETCH = 5000
LARGE_SHARE = 0.15


def quoted(name: str) -> str:
    """A name as SQL spells it."""
    return '"' + name.replace('"', '""') + '"'


class Chaos:
    """Says what is done next, from the source's shapes inside the transaction.

    A session among many keeps to tables of `schemas`, of which the first gets the new ones; its
    numbers begin at `first_number`, and `large_rows` at once make transactions that are streamed.
    """

    def __init__(
        self,
        seed: int,
        connection: psycopg.Connection[Any],
        schemas: tuple[str, ...] = ("public", "other"),
        *,
        first_number: int = 100,
        large_rows: int = 0,
        has_types: bool = True,
    ) -> None:
        self._choice = random.Random(seed)
        self._connection = connection
        self.schemas = list(schemas)
        self._number = first_number
        self._large_rows = large_rows
        self._has_types = has_types
        self._kinds = [each for each in TYPES.items() if has_types or "mood" not in each[0]]

    def ask(self, query: str, *args: object) -> list[Any]:
        found = self._connection.execute(query, args or None).fetchall()
        return [row[0] if len(row) == 1 else row for row in found]

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def statement(self) -> str:
        tables = self.ask(TABLES, self.schemas)
        if not tables or (len(tables) < 5 and self._choice.random() < 0.05):
            return self._create(tables)
        oid, schema, name = self._choice.choice(tables)
        table = f"{quoted(schema)}.{quoted(name)}"
        draw = self._choice.random()
        if draw < 0.45:
            return self._rows(oid, table)
        if draw < 0.5:
            return self._types() if self._has_types else self._rows(oid, table)
        if draw < 0.53 and len(tables) > 2:
            return f"DROP TABLE {table} CASCADE"
        return self._alter(oid, schema, table, tables)

    def _create(self, tables: list[Any]) -> str:
        kind, value = self._choice.choice(self._kinds)
        return (
            f"CREATE TABLE {self.schemas[0]}.t{self._choice.randrange(8)}"
            " (id int PRIMARY KEY, a int, b text,"
            f" c {kind} DEFAULT {value})"
        )

    def _rows(self, oid: int, table: str) -> str:
        number = self.next_number()
        columns = self.ask(COLUMNS, oid)
        column = quoted(self._choice.choice(columns)) if columns else "id"
        first, large = number * LONGEST_STRETCH, self._large_rows
        if large and self._choice.random() < LARGE_SHARE:
            return f"INSERT INTO {table} (id) SELECT generate_series({first}, {first + large - 1})"
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
        # Of a type that no table has, a new name cannot be distinguished from a new label.
        is_rename = self._choice.choice([False, True]) and self.ask(USED)
        return rename if is_rename else add

    def _alter(self, oid: int, schema: str, table: str, tables: list[Any]) -> str:
        choose = self._choice.choice
        column = quoted(choose(self.ask(COLUMNS, oid) or ["id"]))
        constraint = quoted(choose(self.ask(CONSTRAINTS, oid) or ["none"]))
        index = f"{quoted(schema)}.{quoted(choose(self.ask(INDEXES, oid) or ['none']))}"
        new, (kind, value) = quoted(choose(NAMES)), choose(self._kinds)
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
            f"SET SCHEMA {choose(self.schemas)}",
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
WHERE relkind = 'r' AND nspname = ANY (%s) AND NOT EXISTS (
    SELECT FROM pg_constraint WHERE conrelid = c.oid AND contype = 'p')
"""
