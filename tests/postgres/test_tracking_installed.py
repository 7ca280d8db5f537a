"""Triggers on the source: made by init, put right, reported, taken off; and tables they publish."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from fix_subscription import ALL, follower, members, poll, publications, rules, stamp_of
from fix_wait import wait_until
from penstock import errors
from penstock.source.connect import connect_source, role_of
from penstock.source.options import Tracking
from penstock.source.preflight import preflight
from penstock.source.publication import Stamp
from penstock.source.subscription import (
    change_tables,
    drop_subscription,
    ensure_subscription,
    print_sql,
)
from penstock.source.tracking.install import (
    broken_tracking,
    drop_tracking,
    install_tracking,
    read_seal,
    read_tracking,
    tier_in_force,
)
from penstock.source.tracking.members import IS_OWN_ENTRY
from penstock.source.tracking.sql import tracking_statements, tracking_steps
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Tracked
    from fix_postgres import Database
    from penstock.source.subscription import Subscription
    from penstock.source.tracking.install import TrackingState
    from penstock.table import TableRules


def ensure(source: Database, chosen: TableRules, name: str = "shop") -> Subscription:
    with connect_source(source.dsn) as connection:
        return ensure_subscription(connection, name, chosen, Tracking.TRIGGERS)


def state_of(source: Database) -> TrackingState:
    with connect_source(source.dsn) as connection:
        return read_tracking(connection)


def install(source: Database) -> bool:
    with connect_source(source.dsn) as connection:
        return install_tracking(connection, role_of(connection))


def broken(source: Database) -> errors.TrackingBroken | None:
    with connect_source(source.dsn) as connection:
        return broken_tracking(connection)


def own_objects(source: Database) -> list[str]:
    rows = source.query(
        "SELECT 'trigger ' || evtname FROM pg_event_trigger"
        " UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname = 'penstock'"
    )
    return sorted(row for (row,) in rows)


ALL_OF_IT = [
    "schema penstock",
    "trigger penstock_ddl_command_end",
    "trigger penstock_ddl_command_start",
    "trigger penstock_sql_drop",
]

_EMPTY = (
    "CREATE OR REPLACE FUNCTION penstock.on_sql_drop() RETURNS event_trigger"
    " LANGUAGE plpgsql AS 'BEGIN END'"
)

# Installed.


def test_installed_twice_is_installed_once(source: Database):
    assert install(source)
    seal = source.value("SELECT secret FROM penstock.seal")

    assert not install(source)

    assert state_of(source).in_force
    assert own_objects(source) == ALL_OF_IT
    assert source.value("SELECT secret FROM penstock.seal") == seal


def test_several_install_at_once(source: Database):
    done: list[bool] = []
    threads = [threading.Thread(target=lambda: done.append(install(source))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(done) == 4
    assert state_of(source).in_force


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        ("ALTER EVENT TRIGGER penstock_sql_drop DISABLE", "penstock_sql_drop is disabled"),
        ("ALTER EVENT TRIGGER penstock_sql_drop ENABLE", "not enabled ALWAYS"),
        ("DROP EVENT TRIGGER penstock_ddl_command_start", "penstock_ddl_command_start is gone"),
        ("DROP EVENT TRIGGER penstock_ddl_command_end", "penstock_ddl_command_end is gone"),
        ("ALTER TABLE penstock.schema_log DROP COLUMN is_whole", "no column is_whole"),
        ("DROP TABLE penstock.schema_log", "penstock.schema_log is gone"),
        ("DROP TABLE penstock.seal", "penstock.seal is gone"),
        ("DROP FUNCTION penstock.say", "penstock.say is gone"),
        ("ALTER FUNCTION penstock.tell RESET ALL", "penstock.tell is altered"),
        ("COMMENT ON FUNCTION penstock.say(text) IS 'penstock tracking 0'", ""),
        (_EMPTY, "penstock.on_sql_drop is altered"),
        ("DROP SCHEMA penstock CASCADE", "are gone"),
    ],
)
def test_damage_is_seen_and_put_right(source: Database, harm: str, what: str):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    ensure(source, rules(*ALL))
    assert broken(source) is None
    source.execute(harm)

    found = broken(source)
    findings = preflight(source.dsn, rules(*ALL), "shop", Tracking.TRIGGERS)
    ensure(source, rules(*ALL))

    assert (found is None) == (what == "")
    if found is not None:
        assert found.code == "PEN-221"
        assert what in found.what
        # Where all of it is gone, check says nothing: init makes it.
        count = 0 if harm.startswith("DROP SCHEMA") else 1
        assert [each.severity for each in findings] == ["warning"] * count
    assert state_of(source).in_force
    assert broken(source) is None


def test_tables_are_reported_when_the_slot_is_new_and_after_damage_alone(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE SCHEMA s")
    source.execute("CREATE TABLE s.b (id int PRIMARY KEY)")
    made = ensure(source, rules("public.*"))

    def reported() -> int:
        return source.value(
            "SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'penstock_shop', 'messages', 'true')"
            " WHERE position('penstock.schema'::bytea IN data) > 0",
            made.slot,
        )

    assert reported() == 1
    ensure(source, rules("public.*"))
    assert reported() == 1
    source.execute("ALTER EVENT TRIGGER penstock_sql_drop DISABLE")
    ensure(source, rules("public.*"))

    assert reported() == 2


def test_functions_are_known_again_where_all_names_are_quoted(source: Database):
    source.execute(f'ALTER DATABASE "{source.name}" SET quote_all_identifiers = on')
    ensure(source, rules(*ALL))

    assert broken(source) is None
    assert not install(source)
    source.execute(f'ALTER DATABASE "{source.name}" RESET quote_all_identifiers')
    assert broken(source) is None


def test_functions_of_a_newer_penstock_are_left_alone(source: Database):
    install(source)
    source.execute("COMMENT ON FUNCTION penstock.say(text) IS 'penstock tracking 99'")
    source.execute(
        "CREATE OR REPLACE FUNCTION penstock.say(document text) RETURNS void LANGUAGE sql AS 'SELECT 1'"
    )

    assert state_of(source).in_force


# Tiers.


@pytest.mark.parametrize(
    "made",
    [
        "CREATE SCHEMA penstock AUTHORIZATION {}",
        (
            "CREATE SCHEMA penstock; CREATE TABLE penstock.seal (id boolean PRIMARY KEY, secret bytea);"
            "ALTER TABLE penstock.seal OWNER TO {}"
        ),
        (
            "CREATE SCHEMA penstock; CREATE FUNCTION penstock.say(document text) RETURNS void"
            " LANGUAGE sql AS ''; ALTER FUNCTION penstock.say(text) OWNER TO {}"
        ),
    ],
    ids=["schema", "table", "function"],
)
def test_nothing_is_installed_where_another_role_could_put_its_own_in_place(
    source: Database, made: str
):
    role = f"other_{source.name}"
    source.execute(f"CREATE ROLE {role}")
    try:
        source.execute(made.format(role))
        with (
            connect_source(source.dsn) as connection,
            pytest.raises(errors.SourcePrivilegeMissing, match="penstock"),
        ):
            install_tracking(connection, role_of(connection))
        assert (
            source.query("SELECT evtname FROM pg_event_trigger WHERE evtname LIKE 'penstock%'")
            == []
        )
    finally:
        source.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.fixture
def rival(source: Database) -> Iterator[str]:
    """A role that may make schemas, and nothing else."""
    role = f"other_{source.name}"
    source.execute(f'CREATE ROLE {role}; GRANT CREATE ON DATABASE "{source.name}" TO {role}')
    yield role
    source.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_schema_that_another_role_makes_after_the_check_is_not_installed_in(
    source: Database, rival: str, isolation: str
):
    check, made, rest = tracking_steps("CURRENT_USER")[0].partition("CREATE SCHEMA IF NOT EXISTS")
    with source.connect(autocommit=False) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        connection.execute(check)
        source.execute(f"CREATE SCHEMA penstock AUTHORIZATION {rival}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="schema penstock"):
            connection.execute((made + rest).encode())

    assert own_objects(source) == ["schema penstock"]
    assert source.query("SELECT FROM pg_class WHERE relnamespace = 'penstock'::regnamespace") == []
    assert source.query("SELECT FROM pg_proc WHERE pronamespace = 'penstock'::regnamespace") == []


def test_printed_sql_leaves_nothing_in_a_schema_that_another_role_has_made(
    source: Database, rival: str
):
    printed = tracking_statements("CURRENT_USER")
    theirs = printed.replace(
        "CREATE SCHEMA IF NOT EXISTS penstock", f"CREATE SCHEMA penstock AUTHORIZATION {rival}", 1
    )

    with (
        source.connect() as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match=rival),
    ):
        connection.execute(theirs.encode())

    assert own_objects(source) == []
    source.execute(printed)
    assert state_of(source).in_force


def test_role_that_may_not_falls_to_relation_and_says_so(
    source: Database, caplog: pytest.LogCaptureFixture
):
    limited = follower(source)
    source.execute("CREATE TABLE a (id int PRIMARY KEY); ALTER TABLE a OWNER TO follower")

    with caplog.at_level(logging.WARNING):
        ensure(limited, rules("a"))
    [finding] = preflight(limited.dsn, rules("a"), "shop", Tracking.TRIGGERS)

    assert own_objects(source) == []
    [record] = caplog.records
    assert "--print-sql" in record.getMessage()
    assert (finding.severity, finding.code) == ("warning", "PEN-205")
    assert "--print-sql" in finding.do
    assert broken(limited) is None
    with connect_source(limited.dsn) as connection:
        assert tier_in_force(connection, Tracking.TRIGGERS) is Tracking.RELATION
        assert tier_in_force(connection, Tracking.OFF) is Tracking.OFF
    with connect_source(source.dsn) as connection:
        assert tier_in_force(connection, Tracking.TRIGGERS) is Tracking.TRIGGERS


def test_printed_sql_gives_the_role_what_it_needs(source: Database):
    limited = follower(source)
    source.execute("CREATE TABLE null_ish (id int PRIMARY KEY)")
    source.execute("ALTER TABLE null_ish OWNER TO follower")
    with connect_source(limited.dsn) as connection:
        statements = print_sql(connection, "shop", rules("null_ish", "*.x"), Tracking.TRIGGERS)
    for statement in statements:
        source.execute(statement)

    with connect_source(limited.dsn) as connection:
        made = ensure_subscription(connection, "shop", rules("null_ish", "*.x"), Tracking.TRIGGERS)
        assert read_tracking(connection).in_force
        assert read_seal(connection)
        assert print_sql(connection, "shop", rules("null_ish", "*.x"), Tracking.TRIGGERS) == []
    assert stamp_of(source)["created_lsn"] == str(made.created_lsn)


def test_role_without_grants_is_told_which(source: Database):
    install(source)
    limited = follower(source)

    with connect_source(limited.dsn) as connection:
        [problem] = read_tracking(connection).problems
        assert read_seal(connection) is None

    assert 'GRANT USAGE ON SCHEMA penstock TO "follower";' in problem


# Created in stream.


def test_stamp_carries_the_rules_and_an_older_one_is_read(source: Database):
    chosen = rules("public.*", "*.orders", exclude=("audit",), insert_only=("*.events",))
    ensure(source, chosen)

    reported = stamp_of(source)
    stamp = Stamp.parse(json.dumps(reported))

    assert reported["rules"] == {
        "include": [{"schema": "public"}, {"name": "orders"}],
        "exclude": [{"schema": "public", "name": "audit"}],
        "insert_only": [{"name": "events"}],
    }
    assert stamp is not None
    assert stamp.rules == chosen
    del reported["rules"]
    older = Stamp.parse(json.dumps(reported))
    assert older is not None
    assert older.rules is None
    ensure(source, rules("public.*"))
    assert stamp_of(source)["rules"]["exclude"] == []
    with connect_source(source.dsn) as connection:
        ensure_subscription(connection, "shop", rules("public.*"))
    assert "rules" not in stamp_of(source)


def test_table_that_matches_is_in_the_publication_from_its_creation_on(tracked: Tracked):
    source = tracked.source
    chosen = rules("public.*", "*.orders", exclude=("audit", "s.*"), insert_only=("*.events",))
    source.execute("CREATE SCHEMA s; CREATE SCHEMA t")
    made = ensure(source, chosen)
    ensure(source, rules("t.*"), "second")

    changes = tracked.said(
        'CREATE TABLE "A\'b" (id int PRIMARY KEY)',
        "CREATE TABLE audit (id int PRIMARY KEY)",
        "CREATE TABLE events (id int PRIMARY KEY)",
        "CREATE TABLE keyless (id int)",
        "CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE)",
        "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)",
        "CREATE TEMP TABLE temporary (id int PRIMARY KEY)",
        "CREATE TABLE copied AS SELECT 1 AS id",
        "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF root DEFAULT",
        "CREATE TABLE s.orders (id int PRIMARY KEY)",
        "CREATE TABLE t.orders (id int PRIMARY KEY)",
    )

    created_in_stream = {table.name: table.born_in for change in changes for table in change.tables}
    assert {name: where for name, where in created_in_stream.items() if where} == {
        "A'b": ("penstock_shop",),
        "root": ("penstock_shop",),
        "orders": ("penstock_second", "penstock_shop"),
    }
    entries = {
        table.name: set(table.first_entries) for change in changes for table in change.tables
    }
    found = source.query("SELECT prrelid::regclass::text, oid::int8 FROM pg_publication_rel")
    assert {entry for _, entry in found} == set().union(*entries.values())
    assert all(bool(entries[name]) == bool(where) for name, where in created_in_stream.items())
    assert members(source) == ["public.A'b", "public.root", "t.orders"]
    assert members(source, "penstock_shop_inserts") == []
    assert poll(source, made, chosen).added == [TableName("public", "events")]


def test_tables_added_and_removed_by_people_are_published_accordingly(source: Database):
    source.execute("CREATE SCHEMA s; CREATE TABLE s.a (id int PRIMARY KEY)")
    source.execute("CREATE TABLE b (id int PRIMARY KEY)")
    ensure(source, rules("public.*"))
    with connect_source(source.dsn) as connection:
        a, b = TableName("s", "a"), TableName("public", "b")
        change_tables(connection, "shop", rules("public.*"), added=[a], removed=[b])
    source.execute("DROP TABLE s.a, b")

    source.execute("CREATE TABLE s.a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")

    assert members(source) == ["s.a"]


def test_nothing_is_published_at_creation_without_tracking(source: Database):
    install(source)
    with connect_source(source.dsn) as connection:
        ensure_subscription(connection, "shop", rules(*ALL), Tracking.RELATION)

    source.execute("CREATE TABLE a (id int PRIMARY KEY)")

    assert members(source) == []


def test_birth_does_not_wait_for_another_migration(source: Database):
    made = ensure(source, rules(*ALL))
    with source.connect(autocommit=False) as one, source.connect(autocommit=False) as two:
        one.execute("CREATE TABLE a (id int PRIMARY KEY)")

        two.execute("SET LOCAL lock_timeout = '1s'")
        two.execute("CREATE TABLE b (id int PRIMARY KEY)")

        one.commit()
        two.commit()
    assert members(source) == ["public.a"]
    wait_until(
        lambda: (
            poll(source, made, rules(*ALL)).published
            == [TableName("public", "a"), TableName("public", "b")]
        ),
        what="both tables to be followed",
    )


@pytest.mark.parametrize(
    "harm", ["ALTER TABLE a DROP CONSTRAINT a_pkey", "ALTER TABLE a REPLICA IDENTITY NOTHING"]
)
def test_table_that_loses_its_key_in_the_transaction_that_made_it_is_let_go(
    source: Database, harm: str
):
    ensure(source, rules(*ALL))
    with source.connect(autocommit=False) as connection:
        connection.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
        connection.execute("CREATE TABLE b (id int PRIMARY KEY, n int)")
        connection.execute("ALTER TABLE b ADD m int")
        connection.execute("INSERT INTO a VALUES (1, 1)")
        connection.execute(harm)
        connection.execute("UPDATE a SET n = 2")
        connection.commit()

    assert members(source) == ["public.b"]


# Taken off.


def test_teardown_leaves_nothing_once_the_last_pipeline_goes(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    ensure(source, rules(*ALL), "one")
    ensure(source, rules(*ALL), "two")

    with connect_source(source.dsn) as connection:
        drop_subscription(connection, "one")
        assert drop_tracking(connection) == []
        assert own_objects(source) == ALL_OF_IT
        drop_subscription(connection, "two")
        removed = drop_tracking(connection)
        assert drop_tracking(connection) == []

    assert removed == [
        "event trigger penstock_ddl_command_start",
        "event trigger penstock_ddl_command_end",
        "event trigger penstock_sql_drop",
        "table penstock.schema_log",
        "table penstock.seal",
        "schema penstock",
    ]
    assert (own_objects(source), publications(source)) == ([], [])


def test_teardown_leaves_what_a_target_has_in_the_same_schema(source: Database):
    install(source)
    source.execute("CREATE TABLE penstock.progress (id int)")

    with connect_source(source.dsn) as connection:
        assert "schema penstock" not in drop_tracking(connection)

    assert own_objects(source) == ["schema penstock"]
    assert (
        source.query("SELECT proname FROM pg_proc WHERE pronamespace = 'penstock'::regnamespace")
        == []
    )


def test_teardown_by_a_role_that_may_not_says_what_an_admin_runs(source: Database):
    install(source)
    limited = follower(source)

    with (
        connect_source(limited.dsn) as connection,
        pytest.raises(errors.SourcePrivilegeMissing) as caught,
    ):
        drop_tracking(connection)

    assert own_objects(source) == ALL_OF_IT
    for statement in caught.value.do.removeprefix("let an admin run ").split(";"):
        source.execute(statement)
    assert own_objects(source) == []


def test_failed_init_takes_its_triggers_with_it(source: Database):
    source.execute(
        "SELECT pg_create_logical_replication_slot('penstock_shop_12345678', 'pgoutput')"
    )

    with pytest.raises(errors.PublicationChanged):
        ensure(source, rules(*ALL))

    assert own_objects(source) == []


@pytest.mark.parametrize(
    ("entry", "is_own"),
    [
        # What a frozen row still says that is more than 2^31 transactions old.
        ("((pg_current_xact_id()::text::int8 + 1000000) % 4294967296)::text::xid", False),
        ("pg_current_xact_id()::xid", True),
        ("(SELECT xmin FROM pg_class WHERE relname = 'made')", True),  # of a subtransaction
        ("(SELECT xmin FROM pg_class WHERE relname = 'pg_class')", False),
    ],
)
def test_whether_a_transaction_has_made_an_entry_is_told_of_entries_of_any_age(
    source: Database, entry: str, is_own: bool
) -> None:
    ensure(source, rules())

    with source.connect(autocommit=False) as connection:
        connection.execute("SELECT pg_current_xact_id(); SAVEPOINT s; CREATE TABLE made (id int)")
        row = connection.execute(
            f"SELECT coalesce({IS_OWN_ENTRY}, false) FROM (SELECT {entry} AS xmin) AS r"
        ).fetchone()

    assert row == (is_own,)
