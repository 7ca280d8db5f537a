"""What is read again and again while nothing happens: marks that say whether anything has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fix_postgres import only_new
from fix_subscription import ensure, rules
from fix_wait import wait_until
from penstock.lsn import Lsn
from penstock.sinks.postgres.state.objects import make_objects
from penstock.sinks.postgres.state.tables import TargetTables
from penstock.source.catalogmark import read_catalog_mark
from penstock.source.connect import connect_source
from penstock.table import TableName

if TYPE_CHECKING:
    from fix_postgres import Database

TABLES = """
CREATE SCHEMA s;
CREATE TABLE a (id int PRIMARY KEY, v text);
CREATE UNIQUE INDEX a_v ON a (v);
ALTER TABLE a ALTER v SET NOT NULL;
CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE part (id int PRIMARY KEY)
"""


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE b (id int)",
        "DROP TABLE a",
        "ALTER TABLE a RENAME TO b",
        "ALTER TABLE a SET SCHEMA s",
        "ALTER TABLE a SET SCHEMA s; ALTER TABLE s.a SET SCHEMA public",
        "ALTER SCHEMA s RENAME TO t",
        "ALTER TABLE a DROP CONSTRAINT a_pkey",
        "ALTER TABLE a REPLICA IDENTITY FULL",
        "ALTER TABLE a REPLICA IDENTITY USING INDEX a_v",
        "ALTER TABLE p ATTACH PARTITION part FOR VALUES FROM (1) TO (9)",
        "ALTER PUBLICATION penstock_shop DROP TABLE a",
        "COMMENT ON PUBLICATION penstock_shop IS 'mine'",
        "DROP PUBLICATION penstock_shop",
        "GRANT SELECT ON a TO public",
    ],
)
def test_catalog_mark_differs_after_what_changes_the_choice(source: Database, statement: str):
    source.execute(TABLES)
    ensure(source, rules("public.*"), name="shop")
    with connect_source(source.dsn) as connection:
        before = read_catalog_mark(connection)

        source.execute(statement)

        assert read_catalog_mark(connection, before).catalog != before.catalog


@only_new
def test_catalog_mark_stays_while_rows_are_written(source: Database):
    source.execute(TABLES)
    with connect_source(source.dsn) as connection:
        before = read_catalog_mark(connection)
        assert read_catalog_mark(connection, before) is before

        source.execute("INSERT INTO a SELECT n, n FROM generate_series(1, 1000) n")
        for statement in ("ANALYZE a", "VACUUM a", "CREATE TEMP TABLE b (id int)"):
            source.execute(statement)

        after = read_catalog_mark(connection, before)
        assert after.snapshot != before.snapshot
        assert after.catalog == before.catalog


@only_new
def test_change_that_commits_between_two_marks_is_seen(source: Database):
    source.execute(TABLES)
    with (
        connect_source(source.dsn) as connection,
        source.connect(autocommit=False) as another,
    ):
        another.execute("CREATE TABLE b (id int PRIMARY KEY)")
        before = read_catalog_mark(connection)

        another.commit()

        assert read_catalog_mark(connection, before).catalog != before.catalog


@only_new
def test_sign_of_tables_differs_after_every_change_and_with_the_time_of_a_retry(target: Database):
    tables, names = TargetTables("p", "s"), [TableName("public", "a"), TableName("public", "b")]
    with target.connect() as connection:
        make_objects(connection)
        signs = [tables.sign(connection)]
        tables.schedule(connection, dict.fromkeys(names, 0), Lsn(8), is_new=True)
        signs.append(tables.sign(connection))
        assert tables.sign(connection) == signs[-1]
        for statement in (
            "UPDATE penstock.tables SET request = 'resync' WHERE table_name = 'a'",
            "UPDATE penstock.tables SET insert_exists = 1 WHERE table_name = 'b'",
            "DELETE FROM penstock.tables WHERE table_name = 'a'",
            "UPDATE penstock.tables SET retry_at = now() + interval '0.2 s'",
        ):
            connection.execute(statement)
            signs.append(tables.sign(connection))
        asked = "SELECT retry_at <= now() FROM penstock.tables"
        wait_until(lambda: target.value(asked), what="the time of the next attempt")
        signs.append(tables.sign(connection))

    assert len(set(signs)) == len(signs)
