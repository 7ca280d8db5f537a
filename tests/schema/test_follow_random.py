"""Random alterations, one after the other: after each one both sides have the same shape and rows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import psycopg
import pytest

from fix_follow import assert_follows, clone, quoted, shapes

if TYPE_CHECKING:
    from fix_postgres import Database
    from penstock.schema.shape import TableShape

TYPES = {
    "smallint": "7",
    "integer": "-3",
    "bigint": "12345678901",
    "numeric(12,3)": "4.125",
    "text": "'it''s'",
    "character varying(20)": "'a b'",
    "jsonb": """'{"a": 1}'""",
    "boolean": "true",
    "date": "'2024-02-29'",
    "integer[]": "'{1,NULL}'",
    "public.mood": "'sad'",
}
NAMES = ["a", "b", "c", "d", "e", 'q"', "Up", "%s", "{}"]


def name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def statement(choice: random.Random, shape: TableShape) -> str:
    """A statement that may or may not work."""
    table = quoted(shape.table)
    column = name(
        choice.choice([each.name for each in shape.columns if each.name != "id"] or ["id"])
    )
    other = name(choice.choice(NAMES))
    kind, value = choice.choice(list(TYPES.items()))
    constraint = choice.choice([*shape.constraints, None])
    index = choice.choice([*shape.indexes, None])
    alterations = [
        f"ADD {other} {kind}",
        f"ADD {other} {kind} DEFAULT {value}",
        f"ADD {other} {kind} NOT NULL DEFAULT {value}",
        f"ADD {other} {kind}, ADD COLUMN x{choice.randrange(99)} {kind} DEFAULT {value}",
        f"ADD {other} text GENERATED ALWAYS AS ({column} || '') STORED",
        f"ADD {other} serial",
        f"DROP {column} CASCADE",
        f"DROP {column}, ADD {column} {kind} DEFAULT {value}",
        f"RENAME {column} TO {other}",
        f"RENAME {column} TO {other}",
        f"ALTER {column} TYPE {kind}",
        f"ALTER {column} TYPE {kind}",
        f"ALTER {column} DROP DEFAULT",
        f"ALTER {column} SET DEFAULT {value}",
        f"ALTER {column} SET NOT NULL",
        f"ALTER {column} DROP NOT NULL",
        f"ALTER {column} ADD GENERATED ALWAYS AS IDENTITY",
        f"ALTER {column} DROP IDENTITY IF EXISTS",
        f"ALTER {column} DROP EXPRESSION IF EXISTS",
        f"ADD CONSTRAINT {other} CHECK ({column} IS NOT NULL OR {column} IS NULL)",
        f"ADD CONSTRAINT {other} UNIQUE (id, {column})",
        f"ADD PRIMARY KEY (id, {column})",
        f"RENAME TO t{choice.randrange(3)}",
        f"SET SCHEMA {choice.choice(['public', 'other'])}",
    ]
    statements = [f"ALTER TABLE {table} {each}" for each in alterations]
    statements += [
        f"CREATE INDEX {other} ON {table} ({column}) WHERE {column} IS NOT NULL",
        f"CREATE UNIQUE INDEX ON {table} (({column}::text), id)",
    ]
    if constraint is not None:
        old = name(constraint.name)
        statements.append(f"ALTER TABLE {table} DROP CONSTRAINT {old}")
        statements.append(f"ALTER TABLE {table} RENAME CONSTRAINT {old} TO {other}")
    if index is not None:
        old = f"{name(shape.schema_name)}.{name(index.name)}"
        statements += [f"DROP INDEX {old}", f"ALTER INDEX {old} RENAME TO {other}"]
    return choice.choice(statements)


def copy_rows(source: Database, target: Database, shape: TableShape) -> None:
    columns = [name(column.name) for column in shape.columns if not column.generated]
    cells = ", ".join(f"{column}::text" for column in columns)
    rows = source.query(f"SELECT {cells} FROM {quoted(shape.table)}")
    listed = ", ".join(columns).replace("%", "%%")
    values = ", ".join(["%s"] * len(columns))
    table = quoted(shape.table)
    with target.connect() as connection:
        connection.execute(f"DELETE FROM {table}")
        for row in rows:
            connection.execute(f"INSERT INTO {table} ({listed}) VALUES ({values})", row)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))]
)
def test_target_follows_whatever_is_done(seed: int, source: Database, target: Database):
    choice = random.Random(seed)
    source.execute(
        "CREATE SCHEMA other; CREATE TYPE mood AS ENUM ('sad', 'ok');"
        "CREATE TABLE t (id int PRIMARY KEY, a int DEFAULT 3, b text, c numeric CHECK (c > 0));"
        "CREATE INDEX ON t (a, b); INSERT INTO t VALUES (1, 1, '1', 1), (2, NULL, NULL, NULL)"
    )
    clone(source, target)

    done: list[str] = []
    for _ in range(60):
        (shape,) = shapes(source).values()
        if "id" not in {column.name for column in shape.columns} or len(done) >= 15:
            break
        ddl = statement(choice, shape)
        try:
            with source.connect(autocommit=False) as connection:
                connection.execute(ddl)
                connection.rollback()
        except psycopg.Error:
            continue
        done.append(ddl)
        try:
            followed = assert_follows(source, target, ddl, repeats="DROP" not in ddl)
        except AssertionError:
            raise AssertionError("\n".join(done)) from None
        if any(each.needs_copy for each in followed):
            copy_rows(source, target, next(iter(shapes(source).values())))

    assert len(done) > 3
