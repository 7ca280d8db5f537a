"""Any legal name, of schemas, tables and columns, on both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql
from test_conflicts import stopped, wait_for_stop

from fix_postgres import only_15, only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

NAMES = [
    "select",
    "User",
    "with space",
    " lead and trail ",
    "dot.ted",
    'quo"ted',
    '""',
    "it's",
    "back\\slash",
    "%s",
    "%(name)s %%",
    "{}",
    "{0}{name}",
    "$1",
    ":param",
    "tab\tand\nnewline",
    "PEN-506 x: y",
    "żółć",
    "表",
    "😀",
    "\u0131 \u0130 ß",
    "*",
    "a/b\\c..",
    "x" * 63,
    "é" * 31,
    "public",
    "pg_temp",
    "stage_1",
    "null",
]
# Names that penstock's own SQL uses for something.
OWN = [
    "op",
    "s",
    "t",
    "g",
    "n",
    "c0",
    "c1",
    "k0",
    "r",
    "place",
    "part",
    "found",
    "gone",
    "oid",
    "excluded",
]


def content(database: Database, *name: str) -> list[tuple[str]]:
    """All rows as text, whatever the columns are called."""
    query = sql.SQL("SELECT (row_alias.*)::text FROM {} row_alias").format(sql.Identifier(*name))
    return sorted(database.query(query.as_string()))


def run(database: Database, statement: str, *names: str) -> None:
    """Run SQL whose {} are names."""
    database.execute(sql.SQL(statement).format(*map(sql.Identifier, names)).as_string())


def test_every_odd_name_works_for_tables_and_columns(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    columns = NAMES + OWN
    for name in NAMES:
        run(source, "CREATE TABLE {} ({} text PRIMARY KEY, {} int)", name, name, f"{name}2"[-30:])
    declared = sql.SQL(", ").join(
        sql.SQL("{} text").format(sql.Identifier(name)) for name in columns
    )
    for table in ("wide", "bag"):
        source.execute(
            sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(table), declared).as_string()
        )
    run(source, "ALTER TABLE wide ADD PRIMARY KEY ({}, {}, {}, {})", "op", "%s", "c0", "s")
    run(source, "ALTER TABLE wide ALTER {} SET STORAGE EXTERNAL", "t")
    source.execute("ALTER TABLE bag REPLICA IDENTITY FULL")
    pipeline = make_pipeline(source, target)

    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    values = sql.SQL(", ").join(sql.SQL("{} || v").format(sql.Literal(name)) for name in columns)
    for table in ("wide", "bag"):
        insert = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM (VALUES ('1'), ('2'), ('3')) x(v)")
        source.execute(insert.format(sql.Identifier(table), listed, values).as_string())
    run(source, "UPDATE wide SET {} = repeat('x', 9000)", "t")
    for name in NAMES:
        run(source, "INSERT INTO {} VALUES ('a', 1), ('b', 2), ('c', 3)", name)
    pipeline.catch_up()
    for table in ("wide", "bag"):
        run(
            source,
            "UPDATE {} SET {} = 'new', {} = 'n' WHERE {} LIKE '%1'",
            table,
            "{}",
            "excluded",
            "op",
        )
        run(source, "UPDATE {} SET {} = 'key' WHERE {} LIKE '%2'", table, "c0", "op")
        run(source, "DELETE FROM {} WHERE {} LIKE '%3'", table, "op")
    for name in NAMES:
        run(source, "UPDATE {0} SET {1} = 9 WHERE {0}.{2} = 'a'", name, f"{name}2"[-30:], name)
        run(source, "UPDATE {0} SET {1} = 'z' WHERE {1} = 'b'", name, name)
        run(source, "DELETE FROM {0} WHERE {1} = 'c'", name, name)
    pipeline.catch_up()

    assert not stopped(pipeline)
    for name in (*NAMES, "wide", "bag"):
        assert content(target, name) == content(source, name), name
        assert len(content(target, name)) == 2, name


@only_new
def test_odd_names_are_reported_as_they_are_when_their_rows_are_refused(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    name = 'a"b.c %s {}'
    run(source, "CREATE TABLE {} ({} int PRIMARY KEY, {} text)", name, name, "PEN-1: x")
    run(target, "CREATE TABLE {} ({} int PRIMARY KEY, {} varchar(3))", name, name, "PEN-1: x")
    pipeline = make_pipeline(source, target)

    run(source, "INSERT INTO {} VALUES (1, 'ok'), (2, 'canary')", name)
    reason = wait_for_stop(pipeline, 'public."a""b.c %s {}"')

    assert reason.startswith('PEN-506 public."a""b.c %s {}" key (a"b.c %s {}=2): ')
    assert "canary" not in reason


@only_15
def test_odd_schemas_are_kept_apart_or_joined_as_asked(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    schemas = ["S ö.%s{}", 'x"y', "UPPER"]
    for number, schema in enumerate(schemas):
        run(source, "CREATE SCHEMA {}", schema)
        run(source, "CREATE TABLE {}.t (id int PRIMARY KEY, v text)", schema)
        run(source, "CREATE TABLE {}.{} (id int PRIMARY KEY)", schema, f"own {number}")
    include = ['"S ö.%s{}".*', '"x""y".*', "UPPER.*"]
    detached = make_pipeline(source, target, tables=include, name="apart")
    own = ['*."own 0"', '*."own 1"', '*."own 2"', '"x""y".t']
    joined = make_pipeline(
        source, target, tables=own, name="joined", sink={"schema": "all Of %s{}"}
    )

    for number, schema in enumerate(schemas):
        run(
            source,
            f"INSERT INTO {{}}.t VALUES ({number}, {{}}::text)".replace("{}::text", "'v'"),
            schema,
        )
        run(source, "INSERT INTO {}.{} VALUES (1), (2)", schema, f"own {number}")
        run(source, "UPDATE {}.{} SET id = 3 WHERE id = 1", schema, f"own {number}")
    detached.catch_up()
    joined.catch_up()

    for number, schema in enumerate(schemas):
        assert content(target, schema, "t") == content(source, schema, "t")
        expected = content(source, schema, f"own {number}")
        assert content(target, schema, f"own {number}") == expected
        assert content(target, "all Of %s{}", f"own {number}") == expected
    assert content(target, "all Of %s{}", "t") == content(source, 'x"y', "t")


@only_new
def test_two_tables_of_one_name_are_never_mixed_in_one_schema(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE SCHEMA a; CREATE SCHEMA b")
    source.execute("CREATE TABLE a.t (id int PRIMARY KEY); CREATE TABLE b.t (id int PRIMARY KEY)")
    pipeline = make_pipeline(source, target, sink={"schema": "one"})

    source.execute("INSERT INTO b.t VALUES (1); INSERT INTO a.t VALUES (2)")
    pipeline.catch_up()
    wait_until(lambda: stopped(pipeline), what="one of the two to be refused")
    [(loser, reason)] = stopped(pipeline).items()
    winner = {"a.t": "b", "b.t": "a"}[loser]
    pipeline.stop()
    pipeline.start()
    source.execute("INSERT INTO a.t VALUES (3); INSERT INTO b.t VALUES (4)")
    pipeline.catch_up()

    assert f"{winner}.t" in reason
    assert list(stopped(pipeline)) == [loser]
    assert content(target, "one", "t") == content(source, winner, "t")
