"""Versions of a schema are made of the one before: they say the same as the whole catalog does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.source.connect import connect_source
from penstock.source.tracking import refresh_schemas

if TYPE_CHECKING:
    import psycopg

    from conftest import Tracked

_GIVEN = """
CREATE SCHEMA other;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN happy AS mood;
CREATE TYPE pair AS (a int, b happy[]);
CREATE TYPE span AS RANGE (subtype = int);
CREATE SEQUENCE alone;
CREATE TABLE p (id int PRIMARY KEY, n int);
CREATE TABLE t (id serial PRIMARY KEY, a int CONSTRAINT positive CHECK (a > 0), m pair[],
                p int REFERENCES p);
CREATE INDEX i ON t (a);
CREATE TABLE rows (id int, whole p, words text DEFAULT 'sad'::mood::text);
CREATE TABLE other.o (id int PRIMARY KEY, t int REFERENCES t, m mood, n int DEFAULT nextval('alone'));
CREATE TABLE root (id int, d int, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);
CREATE TABLE part PARTITION OF root FOR VALUES FROM (0) TO (9);
CREATE TABLE parent (a int); CREATE TABLE child (b int) INHERITS (parent);
CREATE TABLE typed OF pair;
CREATE TABLE bystander (id int PRIMARY KEY);
CREATE FUNCTION rename_p() RETURNS void LANGUAGE sql AS 'ALTER TABLE p RENAME n TO m';
CREATE FUNCTION rename_back() RETURNS void LANGUAGE sql AS 'ALTER TABLE p RENAME m TO n';
"""

_STATEMENTS = [
    "CREATE TABLE a (id bigserial, b int GENERATED ALWAYS AS IDENTITY)",
    "CREATE TABLE b AS SELECT 1 AS a",
    'CREATE TABLE "Z" (id int); CREATE TABLE "a b" (id int)',
    "ALTER TABLE t ADD b text DEFAULT 'x'",
    "ALTER TABLE t ALTER b TYPE varchar(9)",
    "ALTER TABLE t ALTER a TYPE bigint",
    "ALTER TABLE t RENAME b TO c",
    "ALTER TABLE t DROP c",
    "ALTER TABLE p ADD z int",
    "ALTER TABLE p DROP z",
    "ALTER TABLE p RENAME TO q",
    "ALTER TABLE q RENAME id TO key",
    "ALTER INDEX q RENAME TO p",
    "ALTER TABLE p RENAME key TO id",
    "SELECT rename_p()",
    "SELECT rename_back()",
    "ALTER TABLE t RENAME CONSTRAINT positive TO above",
    "ALTER TABLE t DROP CONSTRAINT above",
    "ALTER TABLE t ADD CONSTRAINT x CHECK (a > 1) NOT VALID",
    "ALTER TABLE t VALIDATE CONSTRAINT x",
    "ALTER TABLE t REPLICA IDENTITY FULL",
    "ALTER TABLE parent ADD c int",
    "ALTER TABLE child NO INHERIT parent",
    "ALTER TABLE root ADD c int",
    "ALTER TABLE root DETACH PARTITION part",
    "ALTER TABLE root ATTACH PARTITION part DEFAULT",
    "CREATE UNIQUE INDEX j ON t ((a + 1)) WHERE a > 0",
    "ALTER INDEX i RENAME TO k",
    "DROP INDEX k",
    "COMMENT ON TABLE t IS 'it'",
    "COMMENT ON COLUMN t.a IS 'it'",
    "CREATE TYPE late AS ENUM ()",
    "ALTER TYPE mood ADD VALUE 'bad'",
    "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
    "ALTER TYPE mood RENAME TO temper",
    "ALTER TYPE temper SET SCHEMA other",
    "ALTER TYPE pair ADD ATTRIBUTE c int CASCADE",
    "ALTER DOMAIN happy SET DEFAULT 'ok'",
    "DROP TYPE late",
    "CREATE SEQUENCE s",
    "ALTER SEQUENCE s INCREMENT 7",
    "ALTER SEQUENCE s RENAME TO r",
    "ALTER SEQUENCE alone RENAME TO lonely",
    "ALTER SEQUENCE t_id_seq INCREMENT 7",
    "ALTER SEQUENCE t_id_seq OWNED BY NONE",
    "ALTER SEQUENCE t_id_seq OWNED BY t.id",
    "DROP SEQUENCE r",
    "ALTER TABLE t SET SCHEMA other",
    "ALTER TABLE other.t SET SCHEMA public",
    "TRUNCATE bystander; COMMENT ON TABLE p IS 'p'",
    "ALTER TABLE bystander SET UNLOGGED",
    "CREATE TABLE other.n (id int, p int REFERENCES p)",
    "ALTER SCHEMA other RENAME TO another",
    "ALTER SCHEMA another RENAME TO other",
    "DROP TABLE a, b",
    "CREATE TABLE a (id int)",
    "CREATE TYPE inner_ AS (x int); CREATE TYPE outer_ AS (y inner_, z int)",
    "CREATE TABLE nested (o outer_)",
    "DROP TYPE inner_ CASCADE",
    "DROP TYPE other.temper CASCADE",
    "DROP TABLE p CASCADE",
    "DROP SCHEMA other CASCADE",
]


def assert_last_is_whole(connection: psycopg.Connection[Any]) -> None:
    """The last version of each schema that this transaction or the one before has changed."""
    rows = connection.execute(
        "SELECT DISTINCT ON (schema_name) schema_name, version, touched, schema,"
        " penstock.schema_document(schema_name) FROM penstock.schema_log"
        " WHERE id > (SELECT coalesce(max(id), 0) FROM seen)"
        " ORDER BY schema_name, version DESC NULLS FIRST"
    ).fetchall()
    assert rows
    for schema_name, version, touched, document, whole in rows:
        assert (schema_name, document) == (schema_name, whole)
        assert version is not None
        assert not touched
    connection.execute("INSERT INTO seen SELECT max(id) FROM penstock.schema_log")


def prepare(connection: psycopg.Connection[Any]) -> list[str]:
    """What is there at first; all warnings from then on."""
    connection.execute("SET search_path = public")
    connection.execute(_GIVEN)
    connection.execute("CREATE TEMP TABLE seen AS SELECT 0::bigint AS id")
    connection.execute("INSERT INTO seen SELECT max(id) FROM penstock.schema_log")
    warnings: list[str] = []
    connection.add_notice_handler(
        lambda notice: (
            warnings.append(str(notice.message_primary))
            if notice.severity_nonlocalized == "WARNING"
            else None
        )
    )
    return warnings


def test_version_of_each_statement_is_what_the_catalog_says(tracked: Tracked):
    with tracked.source.connect() as connection:
        warnings = prepare(connection)

        for statement in _STATEMENTS:
            connection.execute(statement)
            assert_last_is_whole(connection)

    assert warnings == []


@pytest.mark.parametrize("size", [2, 5, 100])
def test_version_of_many_statements_is_what_the_catalog_says(tracked: Tracked, size: int):
    with tracked.source.connect() as connection:
        warnings = prepare(connection)

        for start in range(0, len(_STATEMENTS), size):
            with connection.transaction():
                for statement in _STATEMENTS[start : start + size]:
                    connection.execute(statement)
            assert_last_is_whole(connection)

    assert warnings == []


def test_savepoint_rolled_back_leaves_what_was_touched_before_and_after(tracked: Tracked):
    with tracked.source.connect() as connection:
        warnings = prepare(connection)

        for before, undone, after in zip(
            _STATEMENTS[::2], _STATEMENTS[1::2], _STATEMENTS[1::2], strict=False
        ):
            with connection.transaction():
                connection.execute(before)
                connection.execute("SAVEPOINT s")
                connection.execute(undone)
                connection.execute("ALTER TABLE IF EXISTS bystander ADD gone int")
                connection.execute("ROLLBACK TO s")
                connection.execute(
                    "ALTER TABLE parent ADD extra int; ALTER TABLE parent DROP extra"
                )
                connection.execute(after)
            assert_last_is_whole(connection)

    assert warnings == []


def test_version_is_made_of_the_one_before(tracked: Tracked):
    with tracked.source.connect() as connection:
        connection.execute("CREATE TABLE a (id int); CREATE TABLE b (id int)")
        connection.execute(
            "UPDATE penstock.schema_log SET schema = jsonb_set(schema, '{tables,1,comment}', '\"old\"')"
        )

        connection.execute("ALTER TABLE a ADD x int")
        [patched] = comments(connection)
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("ALTER TABLE a ADD y int")
        [whole] = comments(connection)

    assert (patched, whole) == (["old"], [None])


def test_version_of_an_older_snapshot_is_not_built_on(tracked: Tracked):
    tracked.source.execute("CREATE TABLE a (id int); CREATE TABLE b (id int)")
    with (
        tracked.source.connect(autocommit=False) as late,
        tracked.source.connect() as connection,
    ):
        late.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        late.execute("SELECT 1")
        connection.execute("ALTER TABLE a ADD x int")
        late.execute("ALTER TABLE b ADD x int")
        late.commit()

        connection.execute("ALTER TABLE b ADD y int")

        last, now = document_and_catalog(connection)
    assert last == now


def test_new_name_is_in_the_next_version_of_every_schema(tracked: Tracked):
    with tracked.source.connect() as connection:
        connection.execute("CREATE SCHEMA other; CREATE SEQUENCE other.s; CREATE TABLE b (id int)")
        connection.execute("CREATE TABLE a (id int DEFAULT nextval('other.s'))")
        connection.execute("ALTER SEQUENCE other.s RENAME TO r")

        connection.execute("ALTER TABLE b ADD x int")

        last, now = document_and_catalog(connection)
    assert last == now


def test_version_that_was_left_is_made_up_for_by_the_next(tracked: Tracked):
    tracked.source.execute("CREATE TABLE a (id int); CREATE TABLE b (id int)")
    tracked.source.execute(
        "ALTER TABLE penstock.schema_log DISABLE TRIGGER ALL; ALTER TABLE a ADD x int"
    )
    tracked.source.execute(
        "ALTER TABLE penstock.schema_log ENABLE ALWAYS TRIGGER penstock_write_versions"
    )

    with tracked.source.connect() as connection:
        connection.execute("ALTER TABLE b ADD x int")
        last, now = document_and_catalog(connection)

    assert last == now
    assert tracked.versions() == [("public", 1), ("public", 2), ("public", 3)]


def test_document_of_another_format_is_not_built_on(tracked: Tracked):
    with tracked.source.connect() as connection:
        connection.execute("CREATE TABLE a (id int); CREATE TABLE b (id int)")
        connection.execute("UPDATE penstock.schema_log SET schema = '{\"format\": 0}'")

        connection.execute("ALTER TABLE b ADD y int")

        last, now = document_and_catalog(connection)
    assert last == now


def test_transaction_that_touches_very_much_notes_everything(tracked: Tracked):
    with tracked.source.connect() as connection:
        connection.execute("CREATE TABLE a (id int)")
        with connection.transaction():
            connection.execute(
                "DO $$BEGIN FOR i IN 1..1100 LOOP EXECUTE format('CREATE TYPE e%s AS ENUM ()', i);"
                " END LOOP; END$$"
            )
            [(touched,)] = connection.execute(
                "SELECT touched FROM penstock.schema_log WHERE version IS NULL"
            ).fetchall()
        last, now = document_and_catalog(connection)

    assert touched is None
    assert last == now


def test_refresh_prunes_what_is_delivered_and_old(tracked: Tracked):
    for name in "abcd":
        tracked.source.execute(f"CREATE TABLE {name} (id int)")
    tracked.source.execute(
        "UPDATE penstock.schema_log SET created_at = now() - interval '91 days', acked = version <> 2"
        " WHERE version < 4"
    )

    with connect_source(tracked.source.dsn) as connection:
        refresh_schemas(connection, ["public"])

    assert tracked.versions() == [("public", 2), ("public", 4), ("public", 5)]


def comments(connection: psycopg.Connection[Any]) -> list[list[str | None]]:
    last, _ = document_and_catalog(connection)
    return [[table["comment"]] for table in last["tables"] if table["name"] == "b"]


def document_and_catalog(connection: psycopg.Connection[Any]) -> tuple[Any, Any]:
    [(last, now)] = connection.execute(
        "SELECT schema, penstock.schema_document('public') FROM penstock.schema_log"
        " WHERE schema_name = 'public' ORDER BY version DESC LIMIT 1"
    ).fetchall()
    return last, now
