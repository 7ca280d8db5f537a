"""What penstock reads from the catalog of a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fix_postgres import Database, only_new
from penstock.errors import SourceError
from penstock.schema.describe import types_in_order
from penstock.source.catalog import SourceTable, list_tables, other_relations
from penstock.source.shapes import read_named_shapes, read_published_shapes
from penstock.source.tracking.install import install_tracking, refresh_schemas
from penstock.table import TableName

if TYPE_CHECKING:
    from penstock.schema.shape import TableShape


def _shape(connection: Any, name: TableName) -> TableShape | None:
    return read_named_shapes(connection, [name]).get(name)


def _primary_key(shape: TableShape) -> tuple[str, ...]:
    assert shape.primary_key is not None
    return shape.names_of(shape.primary_key.columns)


def tables_of(source: Database) -> dict[str, SourceTable]:
    with source.connect() as connection:
        return {str(table.name): table for table in list_tables(connection)}


def test_list_leaves_out_system_temporary_and_own_schemas(source: Database):
    with source.connect() as connection:
        connection.execute("CREATE SCHEMA penstock; CREATE TABLE penstock.schema_log (id int)")
        connection.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TEMP TABLE t (id int)")
        connection.execute("CREATE VIEW v AS SELECT 1; CREATE SCHEMA s; CREATE TABLE s.b (id int)")

        found = [str(table.name) for table in list_tables(connection)]

    assert found == ["public.a", "s.b"]


_WITH_INDEX = (
    "CREATE TABLE t (id int NOT NULL); CREATE UNIQUE INDEX i ON t (id);"
    "ALTER TABLE t REPLICA IDENTITY USING INDEX i"
)


@pytest.mark.parametrize(
    ("definition", "flaw"),
    [
        ("CREATE TABLE t (id int PRIMARY KEY)", ""),
        ("CREATE TABLE t (id int)", "no primary key"),
        ("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)", "deferrable"),
        ("CREATE TABLE t (id int); ALTER TABLE t REPLICA IDENTITY FULL", ""),
        ("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING", "NOTHING"),
        (
            _WITH_INDEX,
            "",
        ),
        (
            _WITH_INDEX + "; DROP INDEX i",
            "index is gone",
        ),
        (
            "CREATE TABLE t (id int, g int GENERATED ALWAYS AS (id * 2) STORED PRIMARY KEY)",
            "generated column in its key",
        ),
    ],
)
def test_usable_key_agrees_with_the_server(source: Database, definition: str, flaw: str):
    source.execute(definition)

    table = tables_of(source)["public.t"]

    assert flaw in table.flaw
    assert table.has_usable_key == (flaw == "")
    source.execute("CREATE PUBLICATION p FOR TABLE t")
    source.execute("INSERT INTO t VALUES (1)")
    if table.has_usable_key:
        source.execute("UPDATE t SET id = 2")  # never refused by the server


@only_new
def test_full_identity_with_generated_columns_is_refused_where_the_server_refuses(source: Database):
    source.execute("CREATE TABLE t (id int, g int GENERATED ALWAYS AS (id * 2) STORED)")
    source.execute("ALTER TABLE t REPLICA IDENTITY FULL")

    table = tables_of(source)["public.t"]

    assert not table.has_usable_key
    assert "generated columns" in table.flaw


def test_partitions_know_their_ancestors(source: Database):
    source.execute(
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE m PARTITION OF r FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (id);"
        "CREATE TABLE l PARTITION OF m FOR VALUES FROM (0) TO (5)"
    )

    found = tables_of(source)

    root, middle, leaf = (found[f"public.{name}"] for name in "rml")
    assert (root.kind, root.root, root.ancestors) == ("p", None, ())
    assert (middle.kind, middle.root) == ("p", root.oid)
    assert (leaf.kind, leaf.ancestors) == ("r", (middle.oid, root.oid))
    assert root.has_usable_key


def test_one_leaf_without_key_spoils_its_root(source: Database):
    source.execute(
        "CREATE TABLE r (id int NOT NULL) PARTITION BY RANGE (id);"
        "CREATE TABLE good PARTITION OF r FOR VALUES FROM (0) TO (5);"
        "CREATE TABLE bad PARTITION OF r FOR VALUES FROM (5) TO (9);"
        "ALTER TABLE r REPLICA IDENTITY FULL; ALTER TABLE good REPLICA IDENTITY FULL"
    )

    root = tables_of(source)["public.r"]

    assert not root.has_usable_key
    assert "public.bad" in root.flaw
    assert "public.good" not in root.flaw
    assert root.fix == 'ALTER TABLE "public"."bad" REPLICA IDENTITY FULL'


def test_leaf_that_logs_another_identity_than_its_root_spoils_it(source: Database):
    source.execute(
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE l PARTITION OF r FOR VALUES FROM (0) TO (5);"
        "ALTER TABLE r REPLICA IDENTITY FULL"
    )

    assert "another replica identity" in tables_of(source)["public.r"].flaw


def test_rights_and_persistence_are_listed(source: Database):
    source.execute("CREATE ROLE reader LOGIN; CREATE UNLOGGED TABLE u (id int PRIMARY KEY)")
    source.execute("CREATE TABLE r (id int PRIMARY KEY); GRANT SELECT ON r TO reader")
    url = source.server.dsn(source.name, user="reader")

    with psycopg.connect(url, autocommit=True) as connection:
        found = {table.name.name: table for table in list_tables(connection)}

    assert found["u"].persistence == "u"
    assert (found["r"].readable, found["r"].owned) == (True, False)
    assert not found["u"].readable


def test_what_is_no_table_is_named(source: Database):
    source.execute("CREATE VIEW v AS SELECT 1; CREATE SEQUENCE s")
    names = [TableName("public", name) for name in ("v", "s", "nothing")]

    with source.connect() as connection:
        found = other_relations(connection, [*names, TableName("pg_catalog", "pg_class")])

    assert found[names[0]] == "a view"
    assert found[names[1]] == "a sequence"
    assert names[2] not in found
    assert found[TableName("pg_catalog", "pg_class")] == "a system table"


def test_description_has_types_nullability_and_key_in_order(source: Database):
    source.execute(
        "CREATE TABLE t (b varchar(20) NOT NULL, a bigint GENERATED BY DEFAULT AS IDENTITY,"
        " gone int, total numeric(12,2), at timestamptz(3), tags text[],"
        " twice numeric GENERATED ALWAYS AS (total * 2) STORED, PRIMARY KEY (a, b));"
        "ALTER TABLE t DROP COLUMN gone"
    )

    with source.connect() as connection:
        table = _shape(connection, TableName("public", "t"))

    assert table is not None
    assert [(column.name, column.type) for column in table.columns] == [
        ("b", "character varying(20)"),
        ("a", "bigint"),
        ("total", "numeric(12,2)"),
        ("at", "timestamp(3) with time zone"),
        ("tags", "text[]"),
        ("twice", "numeric"),
    ]
    assert [column.not_null for column in table.columns] == [True, True, False, False, False, False]
    assert table.key_columns == _primary_key(table) == ("a", "b")
    assert table.columns[1].identity == "d"
    assert table.columns[-1].generated == "s"
    assert "total" in (table.columns[-1].expression or "")
    assert table.types == ()


def test_key_is_the_replica_identity_index_where_one_is_set(source: Database):
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, x int NOT NULL, y int NOT NULL);"
        "CREATE UNIQUE INDEX i ON t (y, x) INCLUDE (id); ALTER TABLE t REPLICA IDENTITY USING INDEX i"
    )

    with source.connect() as connection:
        table = _shape(connection, TableName("public", "t"))

    assert table is not None
    assert table.key_columns == ("y", "x")
    assert _primary_key(table) == ("id",)


def test_no_table_gives_none(source: Database):
    with source.connect() as connection:
        assert _shape(connection, TableName("public", "nothing")) is None


def test_user_types_come_in_order_of_need_with_their_schema(source: Database):
    source.execute(
        """CREATE SCHEMA "my types";
        CREATE TYPE "my types".mood AS ENUM ('ok', 'it''s "bad"');
        CREATE DOMAIN public.moods AS "my types".mood[];
        CREATE TYPE public.a_pair AS (first public.moods, "Second One" numeric(5,1));
        CREATE TYPE public.span AS RANGE (subtype = timestamptz);
        CREATE TABLE t (id int PRIMARY KEY, p public.a_pair[], m "my types".mood, s public.span)"""
    )

    with source.connect() as connection:
        table = _shape(connection, TableName("public", "t"))
        path = connection.execute("SHOW search_path").fetchone()

    assert table is not None
    assert [column.type for column in table.columns] == [
        "integer",
        "public.a_pair[]",
        '"my types".mood',
        "public.span",
    ]
    types = {each.qualified: each for each in types_in_order(table.types)}
    order = list(types)
    mood, moods = TableName("my types", "mood"), TableName("public", "moods")
    pair, span = TableName("public", "a_pair"), TableName("public", "span")
    assert sorted(order) == sorted([mood, moods, pair, span])
    assert order.index(mood) < order.index(moods) < order.index(pair)
    assert tuple(label.name for label in types[mood].labels) == ("ok", 'it\'s "bad"')
    assert (types[moods].kind, types[moods].base) == ("domain", '"my types".mood[]')
    assert [(field.name, field.type) for field in types[pair].fields] == [
        ("first", "public.moods"),
        ("Second One", "numeric(5,1)"),
    ]
    assert (types[span].kind, types[span].base) == ("range", "timestamp with time zone")
    assert path == ('"$user", public',)


def test_type_of_an_extension_names_the_extension(source: Database):
    source.execute("CREATE EXTENSION citext; CREATE TABLE t (id citext PRIMARY KEY)")

    with source.connect() as connection:
        table = _shape(connection, TableName("public", "t"))

    assert table is not None
    assert table.columns[0].type == "public.citext"
    assert [(each.kind, each.extension) for each in types_in_order(table.types)] == [
        ("other", "citext")
    ]


@pytest.mark.parametrize("name", ['a "b" c', "dot.ted", "*", "Größe-数", "x" * 63, "sel'ect"])
def test_odd_names_are_read_as_they_are(source: Database, name: str):
    quoted = name.replace('"', '""')
    source.execute(f'CREATE SCHEMA "{quoted}"')
    source.execute(f'CREATE TABLE "{quoted}"."{quoted}" ("{quoted}" int PRIMARY KEY)')

    with source.connect() as connection:
        listed = [table.name for table in list_tables(connection)]
        table = _shape(connection, TableName(name, name))

    assert listed == [TableName(name, name)]
    assert table is not None
    assert table.key_columns == (name,)


@pytest.mark.parametrize(
    ("lock", "named"),
    [
        ("LOCK TABLE s.t", r"s\.t is locked against readers by session \d+"),
        ("ALTER TABLE p1 ADD CHECK (id > 0)", r"public\.p is locked against readers"),
    ],
)
def test_table_that_somebody_has_locked_is_named_and_waited_for_only_a_while(
    source: Database, monkeypatch: pytest.MonkeyPatch, lock: str, named: str
):
    monkeypatch.setattr("penstock.source.shapes._PATIENCE", "SET LOCAL lock_timeout = '50ms'")
    source.execute(
        "CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY DEFAULT 5 CHECK (id > 1));"
        "CREATE TABLE p (id int DEFAULT 5 CHECK (id > 1)) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9);"
        "CREATE PUBLICATION x FOR TABLE s.t, p"
    )
    names = [TableName("s", "t"), TableName("public", "p")]
    with source.connect() as connection, source.connect(autocommit=False) as other:
        install_tracking(connection, "postgres")
        other.execute("LOCK TABLE p" if "p1" in lock else "SELECT 1")
        other.execute(lock.encode())

        for read in (
            lambda: read_named_shapes(connection, names),
            lambda: read_published_shapes(connection, ["x"]),
            lambda: refresh_schemas(connection, ["s", "public"]),
        ):
            with pytest.raises(SourceError, match=named):
                read()

        other.rollback()
        refresh_schemas(connection, ["s", "public"])
        assert set(read_named_shapes(connection, names)) == set(names)
