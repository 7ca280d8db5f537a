"""Rows without a key, where the target calls texts equal that are spelled differently."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from penstock.sinks.postgres.connect import connect_target
from penstock.sinks.postgres.mapping.plan import StagedStep, TablePlan
from penstock.sinks.postgres.mapping.target import columns_of, find_table
from penstock.sinks.postgres.merge.statements import Statements
from penstock.table import TableName

if TYPE_CHECKING:
    from fix_postgres import Database, MakeDatabase
    from penstock.embedded.postgres import EmbeddedPostgres

COMPOSED, DECOMPOSED = "\u00e4", "a\u0308"


@pytest.fixture
def target(pg_15: EmbeddedPostgres, make_database: MakeDatabase) -> Database:
    """On 15, whatever the others run on: the newest is built without ICU."""
    database = make_database(pg_15, "target")
    database.execute(
        "CREATE COLLATION loose (provider = icu, locale = 'und', deterministic = false)"
    )
    database.execute("CREATE DOMAIN word AS text COLLATE loose; CREATE EXTENSION citext")
    return database


def _delete(target: Database, *gone: tuple[str | None, ...], copies: int = 1) -> int:
    """Delete rows of table t, as the stream sends them of a table without a key; how many went."""
    name = TableName("public", "t")
    with connect_target(target.dsn, "test") as connection:
        oid = find_table(connection, name).oid
        columns = columns_of(connection, [oid])[oid]
        plan = TablePlan(name, name, columns, (), ())
        step = StagedStep(
            name, "net", columns, has_operations=True, has_copies=True, delete_count=len(gone)
        )
        declared = ", ".join(f"{column} {kind}" for column, kind in step.stage_columns)
        connection.execute(f"CREATE TEMPORARY TABLE stage ({declared})".encode())
        places = ", ".join(["%s"] * len(columns))
        for row in gone:
            statement = f"INSERT INTO pg_temp.stage VALUES ('D', {copies}, {places})"
            connection.execute(statement.encode(), row)
        build = Statements(plan, step, sql.Identifier("pg_temp", "stage"))
        return connection.execute(build.delete()).rowcount


@pytest.mark.parametrize(
    "kind", ["text COLLATE loose", "varchar(5) COLLATE loose", "char(5) COLLATE loose", "word"]
)
def test_row_is_found_by_the_collation_of_the_target(target: Database, kind: str) -> None:
    target.execute(f"CREATE TABLE t (a {kind}, b json, c {kind})")
    target.execute("INSERT INTO t VALUES (%s, '[1]', NULL), ('b', '[1]', NULL)", DECOMPOSED)

    assert _delete(target, (COMPOSED, "[2]", None)) == 0
    assert _delete(target, (COMPOSED, "[1]", "")) == 0
    assert _delete(target, (COMPOSED, "[1]", None)) == 1

    assert target.value("SELECT a::text FROM t").rstrip() == "b"


def test_element_of_an_array_and_a_type_of_its_own_are_compared_as_the_target_does(
    target: Database,
) -> None:
    target.execute("CREATE TABLE t (a text[] COLLATE loose, b citext, c citext[])")
    target.execute("INSERT INTO t VALUES (ARRAY[%s], 'Bob', '{Ann}')", DECOMPOSED)
    target.execute("INSERT INTO t VALUES (NULL, NULL, NULL), ('{}', '', '{}')")

    assert _delete(target, (f"{{{COMPOSED}}}", "eve", "{ann}")) == 0
    assert _delete(target, (f"{{{COMPOSED}}}", "bob", "{ann}")) == 1
    assert _delete(target, (None, None, None)) == 1

    assert target.query("SELECT a, b::text FROM t") == [([], "")]


def test_of_equal_rows_those_go_first_that_are_spelled_alike_and_no_more_than_are_reported(
    target: Database,
) -> None:
    target.execute("CREATE TABLE t (a text COLLATE loose)")
    for text in (DECOMPOSED, COMPOSED, COMPOSED, DECOMPOSED, DECOMPOSED):
        target.execute("INSERT INTO t VALUES (%s)", text)
    spelled = 'SELECT a COLLATE "C", count(*) FROM t GROUP BY 1 ORDER BY 1'

    assert _delete(target, (COMPOSED,)) == 1
    assert target.query(spelled) == [(DECOMPOSED, 3), (COMPOSED, 1)]
    assert _delete(target, (COMPOSED,), (DECOMPOSED,)) == 2
    assert target.query(spelled) == [(DECOMPOSED, 2)]
    assert _delete(target, (COMPOSED,), copies=2) == 2
    assert _delete(target, (COMPOSED,)) == 0
