"""What the source's triggers say of each statement, on real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from fix_postgres import only_new
from penstock.source.connect import connect_source
from penstock.source.tracking.install import refresh_schemas

if TYPE_CHECKING:
    from conftest import Tracked
    from penstock.schema.shape import SchemaChange


def reported(changes: list[SchemaChange]) -> list[str]:
    """One word for each thing in what was said."""
    words: list[str] = []
    for change in changes:
        words += [f"table {each.name}" for each in change.tables]
        words += [f"type {each.name}" for each in change.types]
        words += [f"sequence {each.name}" for each in change.sequences]
        words += [f"schema {each.name}" for each in change.schemas]
        words += [f"no table {each.name}" for each in change.dropped_tables]
        words += [f"no type {each.name}" for each in change.dropped_types]
        words += [f"no sequence {each.name}" for each in change.dropped_sequences]
        words += [f"no schema {each.name}" for each in change.dropped_schemas]
    return sorted(words)


_GIVEN = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN happy AS mood;
CREATE TYPE pair AS (a int, b happy[]);
CREATE SEQUENCE alone;
CREATE SCHEMA other;
CREATE TABLE p (id int PRIMARY KEY, n int);
CREATE TABLE t (id serial PRIMARY KEY, a int CONSTRAINT positive CHECK (a > 0), m pair[],
                p int REFERENCES p);
CREATE INDEX i ON t (a);
CREATE TABLE other.o (id int PRIMARY KEY, t int REFERENCES t);
CREATE TABLE root (id int, d int, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);
CREATE TABLE part PARTITION OF root FOR VALUES FROM (0) TO (9);
CREATE TABLE parent (a int); CREATE TABLE child (b int) INHERITS (parent);
"""


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("CREATE TABLE new (id bigserial)", ["table new"]),
        ("CREATE TABLE new AS SELECT 1 AS a", ["table new"]),
        ("SELECT 1 AS a INTO new", ["table new"]),
        ("ALTER TABLE t ADD b text", ["table t"]),
        ("ALTER TABLE t DROP a", ["table t"]),
        ("ALTER TABLE t RENAME a TO c", ["table t"]),
        ("ALTER TABLE t RENAME id TO c", ["table o", "table t"]),
        ("ALTER TABLE t RENAME TO u", ["table o", "table u"]),
        ("ALTER TABLE t RENAME CONSTRAINT positive TO c", ["table t"]),
        ("ALTER TABLE t DROP CONSTRAINT positive", ["table t"]),
        ("ALTER TABLE t ALTER a SET DEFAULT 1", ["table t"]),
        ("ALTER TABLE t REPLICA IDENTITY FULL", ["table t"]),
        ("ALTER TABLE t SET SCHEMA other", ["table o", "table t"]),
        ("ALTER TABLE parent ADD c int", ["table child", "table parent"]),
        ("ALTER TABLE root ADD c int", ["table root"]),
        ("ALTER TABLE root DETACH PARTITION part", ["table part", "table root"]),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey CASCADE", ["table o", "table t"]),
        ("CREATE INDEX CONCURRENTLY j ON t (a)", ["table t"]),
        ("ALTER INDEX i RENAME TO j", ["table t"]),
        ("DROP INDEX i", ["table t"]),
        ("DROP INDEX CONCURRENTLY i", ["table t"]),
        ("COMMENT ON TABLE t IS 'it'", ["table t"]),
        ("COMMENT ON COLUMN t.a IS 'it'", ["table t"]),
        ("ALTER TYPE mood ADD VALUE 'bad'", ["table t", "type happy", "type mood", "type pair"]),
        ("ALTER TYPE mood RENAME TO m", ["table t", "type happy", "type m", "type pair"]),
        ("ALTER TYPE pair ADD ATTRIBUTE c int", ["table t", "type pair"]),
        ("ALTER DOMAIN happy SET DEFAULT 'ok'", ["table t", "type happy", "type pair"]),
        ("CREATE TYPE e AS ENUM ()", ["type e"]),
        ("CREATE SEQUENCE s", ["sequence s"]),
        ("ALTER SEQUENCE alone INCREMENT 7", ["sequence alone"]),
        ("ALTER SEQUENCE t_id_seq INCREMENT 7", ["table t"]),
        ("DROP SEQUENCE alone", ["no sequence alone"]),
        ("CREATE SCHEMA s CREATE TABLE new (a int)", ["schema s", "table new"]),
        ("ALTER SCHEMA other RENAME TO s", ["schema s", "table o"]),
        ("DROP SCHEMA other CASCADE", ["no schema other", "no table o"]),
        ("DROP TABLE t CASCADE", ["no sequence t_id_seq", "no table t", "table o"]),
        ("DROP TYPE pair CASCADE", ["no type pair", "table t"]),
    ],
)
def test_statement_reports_what_it_touched(tracked: Tracked, statement: str, words: list[str]):
    tracked.source.execute(_GIVEN)

    changes = tracked.said(statement)

    assert reported(changes) == words
    assert len({change.tag for change in changes}) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TEMP TABLE x (id serial PRIMARY KEY, m mood); CREATE INDEX ON x (m); DROP TABLE x",
        "ALTER TABLE part SET (fillfactor = 50)",
        "CREATE VIEW v AS SELECT 1 AS a; COMMENT ON VIEW v IS 'x'; DROP VIEW v",
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'; DROP FUNCTION f()",
        "COMMENT ON TABLE penstock.schema_log IS 'ours'",
        "GRANT SELECT ON t TO PUBLIC; ANALYZE t; TRUNCATE t CASCADE",
        "CREATE PUBLICATION x FOR TABLE t; DROP PUBLICATION x",
    ],
)
def test_statement_that_changes_no_table_says_nothing(tracked: Tracked, statement: str):
    tracked.source.execute(_GIVEN)

    assert tracked.said(statement) == []


@pytest.mark.parametrize("is_behind", [False, True])
def test_index_that_reindex_has_made_anew_is_renamed_and_dropped(tracked: Tracked, is_behind: bool):
    tracked.source.execute(
        "CREATE TABLE t (a int, b int); CREATE INDEX i ON t (a) WHERE b > 0;"
        "CREATE INDEX other ON t (b); CREATE UNIQUE INDEX u ON t (b)"
    )
    tracked.heard()

    def names_after(statement: str) -> list[str]:
        tracked.source.execute(statement)
        if not is_behind:
            tracked.heard()
        [known] = tracked.known.values()
        return [each.name for each in known.indexes]

    names_after("REINDEX TABLE CONCURRENTLY t")
    renamed = names_after("ALTER INDEX i RENAME TO j")
    names_after("REINDEX INDEX CONCURRENTLY j")
    names_after("ALTER TABLE j RENAME TO k")
    dropped = names_after("DROP INDEX u")
    names_after("DROP INDEX CONCURRENTLY k")
    tracked.heard()

    [known] = tracked.known.values()
    assert [each.name for each in known.indexes] == ["other"]
    if not is_behind:
        assert (renamed, dropped) == (["j", "other", "u"], ["k", "other"])


def test_partition_is_reported_with_its_root_and_as_a_table_when_it_has_left(tracked: Tracked):
    tracked.source.execute(_GIVEN)
    changes = tracked.said(
        "CREATE TABLE sub PARTITION OF root FOR VALUES FROM (9) TO (20) PARTITION BY RANGE (d)",
        "CREATE TABLE leaf PARTITION OF sub DEFAULT",
        "CREATE TABLE late (id int NOT NULL, d int NOT NULL)",
        "ALTER TABLE root ATTACH PARTITION late FOR VALUES FROM (20) TO (30)",
        "ALTER TABLE sub DETACH PARTITION leaf",
        "DROP TABLE late",
    )

    root = tracked.source.value("SELECT 'root'::regclass::oid::int8")
    made = [each for change in changes for each in change.partitions]
    assert [(each.name, each.root_id) for each in made] == [
        ("sub", root),
        ("leaf", root),
        ("late", root),
    ]
    assert "leaf" in [table.name for table in changes[-2].tables]
    assert [gone.id for gone in changes[-1].dropped_tables] == [made[2].id]


def test_partition_that_a_function_in_sql_attaches_or_detaches_is_reported(tracked: Tracked):
    tracked.source.execute(
        "CREATE TABLE root (id int, d int, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);"
        "CREATE TABLE late (id int NOT NULL, d int NOT NULL);"
        "CREATE FUNCTION come() RETURNS void LANGUAGE sql AS"
        " 'ALTER TABLE root ATTACH PARTITION late FOR VALUES FROM (20) TO (30)';"
        "CREATE FUNCTION go() RETURNS void LANGUAGE sql AS"
        " 'ALTER TABLE root DETACH PARTITION late'"
    )

    came, went = tracked.said("SELECT come()", "SELECT go()")

    assert [each.name for each in came.partitions] == ["late"]
    assert "late" in [each.name for each in went.tables]


def test_document_describes_the_table_as_it_is_after_the_statement(tracked: Tracked):
    [made] = tracked.said("CREATE TABLE t (id int PRIMARY KEY, a int)")
    [renamed] = tracked.said("ALTER TABLE t RENAME a TO b")
    [moved] = tracked.said("ALTER TABLE t RENAME TO u")
    _, again = tracked.said("DROP TABLE u", "CREATE TABLE u (id int PRIMARY KEY, b int)")

    assert renamed.tables[0].id == moved.tables[0].id == made.tables[0].id != again.tables[0].id
    assert [column.name for column in renamed.tables[0].columns] == ["id", "b"]
    assert [column.id for column in renamed.tables[0].columns] == [1, 2]
    assert moved.tables[0].name == "u"


@pytest.mark.parametrize(
    ("statement", "is_so"),
    [
        ("ALTER TABLE t ALTER a TYPE text Using a || 'x'", True),
        ("DO $$BEGIN EXECUTE 'ALTER TABLE t ALTER a TYPE text USING a::text'; END$$", True),
        ("SELECT migrate()", True),
        ("SELECT migrate_in_sql()", True),
        ('SELECT "alter"()', True),
        ("ALTER TABLE t ALTER a TYPE text", False),
        ("DO $$BEGIN ALTER TABLE t ALTER a TYPE text; END$$", False),
    ],
)
def test_values_of_its_own_are_reported(tracked: Tracked, statement: str, is_so: bool):
    tracked.source.execute(
        "CREATE TABLE t (a int); CREATE FUNCTION migrate() RETURNS void LANGUAGE plpgsql AS"
        " 'BEGIN ALTER TABLE t ALTER a TYPE text USING a::text; END';"
        "CREATE FUNCTION migrate_in_sql() RETURNS void LANGUAGE sql AS"
        " 'ALTER TABLE t ALTER a TYPE text USING a::text';"
        'CREATE FUNCTION "alter"() RETURNS void LANGUAGE sql AS'
        " 'ALTER TABLE t ALTER a TYPE text USING a::text'"
    )

    [change] = tracked.said(statement)

    assert change.has_using is is_so


def test_statement_is_understood_in_a_session_whose_strings_have_escapes(tracked: Tracked):
    tracked.source.execute(
        "CREATE TABLE t (a int, words text); CREATE TABLE late (id int NOT NULL, d int NOT NULL);"
        "CREATE TABLE root (id int, d int) PARTITION BY RANGE (d)"
    )
    tracked.heard()

    with tracked.source.connect() as connection:
        connection.execute("SET standard_conforming_strings = off; SET escape_string_warning = off")
        connection.execute("ALTER TABLE t ALTER a TYPE text USING a::text")
        connection.execute(
            r"ALTER TABLE t ALTER words SET DEFAULT E'a\\b', ADD CONSTRAINT c CHECK (words <> E'a\\b'),"
            r" ADD made text DEFAULT E'a\\b'"
        )
        connection.execute(r"CREATE INDEX i ON t (a) WHERE words <> E'a\\b'")
        connection.execute("ALTER TABLE root ATTACH PARTITION late FOR VALUES FROM (20) TO (30)")
    retyped, spelled, indexed, attached = tracked.heard()

    assert retyped.has_using
    [table] = spelled.tables
    words = next(each for each in table.columns if each.name == "words")
    assert words.default == r"'a\b'::text"
    assert table.constraints[0].definition == r"CHECK ((words <> 'a\b'::text))"
    assert indexed.tables[0].indexes[0].definition.endswith(r"WHERE (words <> 'a\b'::text)")
    assert [each.name for each in attached.partitions] == ["late"]


def test_what_is_rolled_back_leaves_nothing(tracked: Tracked):
    tracked.heard()

    with tracked.source.connect(autocommit=False) as connection:
        connection.execute("CREATE TABLE a (id int)")
        connection.rollback()
        connection.execute("CREATE TABLE b (id int)")
        connection.execute("SAVEPOINT s")
        connection.execute("CREATE SCHEMA gone; CREATE TABLE gone.c (id int)")
        connection.execute("ROLLBACK TO s")
        connection.execute("CREATE TABLE d (id int)")

    assert reported(tracked.heard()) == ["table b", "table d"]


@only_new
def test_prepared_transaction_is_reported_when_it_commits(tracked: Tracked):
    with tracked.source.connect() as connection:
        connection.execute("BEGIN; CREATE TABLE a (id int); PREPARE TRANSACTION 'p'")
        connection.execute("COMMIT PREPARED 'p'")

    assert reported(tracked.heard()) == ["table a"]


def test_role_without_rights_on_penstock_changes_its_tables(tracked: Tracked):
    tracked.source.execute("CREATE ROLE dev LOGIN; CREATE SCHEMA AUTHORIZATION dev")
    tracked.heard()

    with psycopg.connect(tracked.source.server.dsn(tracked.source.name, user="dev")) as connection:
        notices: list[str] = []
        connection.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
        connection.execute("CREATE TABLE dev.t (id int); ALTER TABLE dev.t ADD a int")
        connection.commit()
        for forbidden in (
            "SELECT * FROM penstock.seal",
            "DELETE FROM penstock.schema_log",
            "SELECT penstock.refresh_schema('dev')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(forbidden)
            connection.rollback()

    assert notices == []
    assert reported(tracked.heard()) == ["table t", "table t"]


@pytest.mark.parametrize(
    "name", ['x"; DROP TABLE safe; --', "it's /* */", "$penstock$", "%I.%s", "\\", "ü", "a\nb"]
)
def test_hostile_names_arrive_as_names(tracked: Tracked, name: str):
    quoted = '"' + name.replace('"', '""') + '"'
    index = '"i' + quoted[1:]
    tracked.source.execute("CREATE TABLE safe (id int)")

    changes = tracked.said(
        f"CREATE SCHEMA {quoted}",
        f"CREATE TABLE {quoted}.{quoted} ({quoted} int PRIMARY KEY)",
        f"CREATE INDEX {index} ON {quoted}.{quoted} ({quoted})",
        f"ALTER TABLE {quoted}.{quoted} RENAME {quoted} TO z",
        f"DROP INDEX {quoted}.{index}",
        f"DROP SCHEMA {quoted} CASCADE",
    )

    table = changes[1].tables[0]
    assert (table.schema_name, table.name, table.columns[0].name) == (name, name, name)
    assert changes[2].tables[0].indexes[0].name == f"i{name}"
    assert changes[4].tables[0].indexes == ()
    assert changes[5].dropped_schemas[0].name == name
    assert tracked.source.value("SELECT to_regclass('safe') IS NOT NULL")


@pytest.mark.parametrize(
    "harm",
    [
        "DROP TABLE penstock.schema_log CASCADE",
        "DROP TABLE penstock.seal",
        "DROP FUNCTION penstock.tell",
        "DROP FUNCTION penstock.table_documents",
        "ALTER TABLE penstock.schema_log DROP COLUMN schema",
        "DROP SCHEMA penstock CASCADE",
    ],
)
def test_damaged_triggers_never_fail_a_statement(tracked: Tracked, harm: str):
    tracked.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    tracked.source.execute(harm)

    tracked.source.execute("CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t)")
    tracked.source.execute("BEGIN; ALTER TABLE u ADD a int; DROP TABLE t CASCADE; COMMIT")

    assert (
        tracked.source.value(
            "SELECT count(*) FROM pg_attribute WHERE attrelid = 'u'::regclass AND attnum > 0"
        )
        == 3
    )


def test_replica_sessions_are_heard(tracked: Tracked):
    changes = tracked.said("SET session_replication_role = replica; CREATE TABLE t (id int)")

    assert reported(changes) == ["table t"]


def test_refresh_describes_everything_without_a_change(tracked: Tracked):
    tracked.source.execute("CREATE SCHEMA many")
    tracked.source.execute(
        "DO $$BEGIN FOR i IN 1..250 LOOP EXECUTE format('CREATE TABLE many.t%s (id int)', i);"
        " END LOOP; END$$"
    )
    tracked.heard()

    with connect_source(tracked.source.dsn) as connection:
        refresh_schemas(connection, ["many"])

    changes = tracked.heard()
    assert {change.tag for change in changes} == {"REFRESH"}
    assert len({table.id for change in changes for table in change.tables}) == 250
    assert len(changes) == 3
