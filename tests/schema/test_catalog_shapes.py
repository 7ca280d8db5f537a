"""Tables as the catalog of a real server has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import SchemaUnreadable
from penstock.modifiers.transform.pgtypes import may_hold_text
from penstock.schema.catalog import read_shapes
from penstock.schema.shape import TableShape, read_change, read_tables
from penstock.table import TableName

if TYPE_CHECKING:
    from fix_postgres import Database


def shape_of(database: Database, name: str = "t", schema: str = "public") -> TableShape:
    with database.connect() as connection:
        connection.execute("SET search_path = ''")
        return read_shapes(connection, [TableName(schema, name)])[TableName(schema, name)]


# Categories of pg_type: numbers, times, ranges, geometry, bits and so on. Of the rest, what Postgres counts by.
_HARMLESS = """
    WITH RECURSIVE e(oid, element) AS (
        SELECT oid, oid FROM pg_type
        UNION ALL
        SELECT e.oid, t.typelem FROM e JOIN pg_type t ON t.oid = e.element
        WHERE t.typcategory = 'A' AND t.typelem <> 0)
    SELECT own.typname, format_type(e.oid, NULL), bool_or(t.typcategory IN ('N', 'B', 'D', 'T', 'G', 'V', 'R', 'E')
        OR t.typname IN ('uuid', 'xid', 'cid', 'tid', 'xid8', 'pg_lsn', 'txid_snapshot', 'pg_snapshot'))
    FROM e JOIN pg_type t ON t.oid = e.element JOIN pg_type own ON own.oid = e.oid
    WHERE own.typnamespace = 'pg_catalog'::regnamespace AND own.typtype IN ('b', 'r', 'm')
      AND own.oid < 10000
      AND NOT EXISTS (SELECT FROM pg_type x WHERE x.oid = own.typelem AND x.typtype IN ('c', 'p'))
    GROUP BY e.oid, own.typname ORDER BY e.oid"""


def test_columns_of_every_type_of_postgres_may_hold_words_but_for_those_that_cannot(
    source: Database,
):
    types = source.query(_HARMLESS)
    listed = ", ".join(f'"{name}" {spelled}' for name, spelled, _ in types)
    source.execute(f"CREATE TABLE t ({listed})")

    shape = shape_of(source)

    bare = {column.name for column in shape.columns if may_hold_text(column, shape)}
    assert bare == {name for name, _, is_harmless in types if not is_harmless}
    assert {"xml", "_jsonb", "inet"} <= bare


def test_columns_of_types_of_users_may_hold_what_their_parts_may(source: Database):
    source.execute(
        "CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('sad'); CREATE TYPE pair AS (a int, b text);"
        "CREATE TYPE moods AS RANGE (subtype = mood, multirange_type_name = many_moods);"
        "CREATE TYPE words AS RANGE (subtype = text); CREATE DOMAIN address AS text; CREATE DOMAIN age AS int;"
        "CREATE TABLE t (a citext, b citext[], c pair, d pair[], e words, f address,"
        " g mood, h mood[], i moods, j many_moods, k moods[], l age)"
    )

    shape = shape_of(source)

    assert [column.name for column in shape.columns if may_hold_text(column, shape)] == [*"abcdef"]


def test_everything_a_table_has_is_reported(source: Database):
    source.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'o''k');"
        "CREATE DOMAIN happy AS mood;"
        "CREATE TYPE pair AS (a int, b happy[]);"
        "CREATE TABLE p (id bigint PRIMARY KEY);"
        "CREATE TABLE t (id serial, k int GENERATED ALWAYS AS IDENTITY, n numeric(10, 2) DEFAULT 1.5,"
        ' v varchar(20) COLLATE "C" NOT NULL, m pair[], g int GENERATED ALWAYS AS (id * 2) STORED,'
        " ts timestamptz DEFAULT now(), r bigint REFERENCES p ON DELETE CASCADE DEFERRABLE,"
        " PRIMARY KEY (v, id), UNIQUE (k), CHECK (n > 0));"
        "CREATE INDEX i ON t (lower(v)) INCLUDE (n) WHERE n > 3;"
        "COMMENT ON COLUMN t.n IS 'a number';"
        "COMMENT ON TABLE t IS 'a table'"
    )

    shape = shape_of(source)

    assert (shape.schema_name, shape.name, shape.kind, shape.comment) == (
        "public",
        "t",
        "r",
        "a table",
    )
    columns = {column.name: column for column in shape.columns}
    assert [column.id for column in shape.columns] == list(range(1, 9))
    assert columns["id"].sequence is not None
    assert columns["id"].sequence.name == "t_id_seq"
    assert columns["k"].identity == "a"
    assert (columns["n"].type, columns["n"].default, columns["n"].comment) == (
        "numeric(10,2)",
        "1.5",
        "a number",
    )
    assert columns["v"].collation == 'pg_catalog."C"'
    assert columns["m"].type == "public.pair[]"
    assert columns["g"].expression == "(id * 2)"
    assert columns["ts"].default == "now()"
    assert shape.primary_key is not None
    assert shape.names_of(shape.primary_key.columns) == ("v", "id")
    assert sorted(each.kind for each in shape.constraints) == ["c", "p", "u"]
    (key,) = shape.foreign_keys
    assert (key.referenced_name, key.on_delete, key.is_deferrable) == ("p", "c", True)
    (index,) = shape.indexes
    assert index.definition == "btree (lower((v)::text)) INCLUDE (n) WHERE (n > (3)::numeric)"
    assert shape.names_of(index.used) == ("n", "v")
    types = {each.name: each for each in shape.types}
    assert set(types) == {"mood", "happy", "_happy", "pair", "_pair"}
    assert [label.name for label in types["mood"].labels] == ["sad", "o'k"]
    assert types["happy"].base == "public.mood"


def test_ids_stay_when_things_are_renamed_and_are_new_when_they_are_made_again(source: Database):
    source.execute("CREATE TABLE t (a int, b int)")
    before = shape_of(source)
    source.execute("ALTER TABLE t RENAME a TO c; ALTER TABLE t RENAME TO u")
    renamed = shape_of(source, "u")
    source.execute("ALTER TABLE u DROP b; ALTER TABLE u ADD b int")
    again = shape_of(source, "u")

    assert renamed.id == before.id
    assert [(c.id, c.name) for c in renamed.columns] == [(1, "c"), (2, "b")]
    assert [(c.id, c.name) for c in again.columns] == [(1, "c"), (3, "b")]


def test_value_that_older_rows_hold_is_reported(source: Database):
    source.execute("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
    source.execute(
        "ALTER TABLE t ADD b text DEFAULT 'it''s', ADD c int[] DEFAULT '{1,2}', ADD d int"
    )

    columns = {column.name: column for column in shape_of(source).columns}

    assert (columns["b"].missing, columns["c"].missing) == ("it's", "{1,2}")
    assert columns["d"].missing is None


def test_partitions_and_temporary_tables_are_left_out(source: Database):
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, r int REFERENCES t) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)"
    )
    with source.connect() as connection:
        connection.execute("CREATE TEMP TABLE tt (a int); SET search_path = ''")
        row = connection.execute("SELECT nspname FROM pg_namespace WHERE oid = pg_my_temp_schema()")
        temporary = row.fetchone()[0]
        names = [TableName("public", "t"), TableName("public", "t1"), TableName(temporary, "tt")]
        found = read_shapes(connection, names)

    assert [str(name) for name in found] == ["public.t"]
    assert found[TableName("public", "t")].kind == "p"
    assert len(found[TableName("public", "t")].foreign_keys) == 1


@pytest.mark.parametrize(
    "document", ["", "{", "[]", "null", '{"format": 2}', '{"format": 1, "tables": [{"id": "x"}]}']
)
def test_document_that_does_not_parse_is_reported_without_its_content(document: str):
    with pytest.raises(SchemaUnreadable) as caught:
        read_change(document, "0/1")
    assert caught.value.where == "0/1"


def test_tables_that_are_none_are_reported():
    with pytest.raises(SchemaUnreadable, match=r"name: missing"):
        read_tables([{"id": 1, "schema_name": "secret"}], "here")
