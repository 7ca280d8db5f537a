"""Publications and slot on a real server: made together, found again, kept in step, removed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from fix_postgres import Database, MakeServer, create_database
from fix_subscription import (
    ALL,
    ensure,
    follower,
    members,
    poll,
    publications,
    rules,
    slots,
    stamp_of,
)
from fix_wait import wait_until
from penstock import errors
from penstock.lsn import Lsn
from penstock.source import membership
from penstock.source.connect import connect_source
from penstock.source.publication import publication_names
from penstock.source.subscription import (
    Subscription,
    check_slot,
    compare_identity,
    drop_subscription,
    ensure_subscription,
    find_subscription,
    print_sql,
    read_identity,
    slot_state,
)

# Making.


def test_subscription_is_made_and_stamped(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")

    made = ensure(source, rules("public.*"))

    assert made.publications == ("penstock_shop", "penstock_shop_inserts")
    assert made.slot == f"penstock_shop_{made.generation[:8]}"
    assert slots(source) == [made.slot]
    assert members(source) == ["public.a"]
    assert stamp_of(source) == {
        "penstock": 1,
        "generation": made.generation,
        "slot": made.slot,
        "created_lsn": str(made.created_lsn),
    }
    [form] = source.query(
        "SELECT pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot FROM pg_publication"
        " WHERE pubname = 'penstock_shop'"
    )
    assert form == (True, True, True, True, True)
    [slot] = source.query(
        "SELECT plugin, temporary, two_phase, confirmed_flush_lsn::text FROM pg_replication_slots"
        " WHERE slot_name = %s",
        made.slot,
    )
    assert slot == ("pgoutput", False, False, str(made.created_lsn))


def test_ensure_repeated_changes_nothing(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    first = ensure(source, rules(*ALL))

    second = ensure(source, rules(*ALL))

    assert second == first
    assert slots(source) == [first.slot]


def test_find_gives_what_was_made_and_none_before(source: Database):
    with connect_source(source.dsn) as connection:
        assert find_subscription(connection, "shop") is None
        made = ensure_subscription(connection, "shop", rules(*ALL))
        assert find_subscription(connection, "shop") == made
        assert find_subscription(connection, "other") is None


def test_two_at_once_make_one_subscription(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    made: list[Subscription] = []
    threads = [
        threading.Thread(target=lambda: made.append(ensure(source, rules(*ALL)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(made) == 4
    assert len(set(made)) == 1
    assert slots(source) == [made[0].slot]


_MAKE = """
import sys
from penstock.dsn import Dsn
from penstock.source.connect import connect_source
from penstock.source.subscription import ensure_subscription
from penstock.table import TableRule, TableRules
rules = TableRules((TableRule.parse("*.*"),))
ensure_subscription(connect_source(Dsn.parse(sys.argv[1])), "shop", rules)
"""


@pytest.mark.parametrize("point", ["init.after_publication", "init.after_slot"])
def test_crash_while_making_is_finished_by_the_next_attempt(source: Database, point: str):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    environment = {**os.environ, "PENSTOCK_FAULT": point}
    done = subprocess.run([sys.executable, "-c", _MAKE, source.url], env=environment, check=False)
    assert done.returncode == -9
    half = stamp_of(source)
    assert half["created_lsn"] is None
    assert slots(source) == ([half["slot"]] if point == "init.after_slot" else [])
    with connect_source(source.dsn) as connection:
        assert find_subscription(connection, "shop") is None
    source.execute("INSERT INTO a VALUES (1)")  # WAL moves on; the slot's point does not

    made = ensure(source, rules(*ALL))

    assert made.generation == half["generation"]
    assert slots(source) == [made.slot]
    assert stamp_of(source)["created_lsn"] == str(made.created_lsn)
    confirmed = source.value(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", made.slot
    )
    assert confirmed == str(made.created_lsn)


_FAIL = """
import sys
from penstock.dsn import Dsn
from penstock.errors import SourceError
from penstock.source import subscription
from penstock.source.connect import connect_source
from penstock.source.options import Tracking
from penstock.table import TableRule, TableRules

def fail(*args):
    raise SourceError("made to fail", "here", "nothing")

subscription._describe_tables = fail
with connect_source(Dsn(sys.argv[1])) as connection:
    subscription.ensure_subscription(
        connection, "shop", TableRules((TableRule.parse("*.*"),)), Tracking.TRIGGERS
    )
"""


def test_failure_after_the_slot_was_made_leaves_nothing(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")

    done = subprocess.run([sys.executable, "-c", _FAIL, source.url], check=False)

    assert done.returncode == 1
    assert slots(source) == []
    assert publications(source) == []


def test_crash_while_undoing_is_finished_by_the_next_attempt(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    environment = {**os.environ, "PENSTOCK_FAULT": "init.inside_undo"}
    done = subprocess.run([sys.executable, "-c", _FAIL, source.url], env=environment, check=False)
    assert done.returncode == -9
    assert slots(source) == []

    made = ensure(source, rules(*ALL))

    assert slots(source) == [made.slot]
    assert members(source) == ["public.a"]


def test_slot_made_while_tables_are_altered_can_be_decoded(source: Database):
    """The server loses what a transaction altered that is open while the slot is being made."""
    source.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v int); CREATE TABLE b (id int PRIMARY KEY)"
    )
    source.execute("INSERT INTO a SELECT g, g FROM generate_series(1, 10) g")
    made: list[Subscription] = []
    maker = threading.Thread(target=lambda: made.append(ensure(source, rules(*ALL))))
    waiting_for = """SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted
                     AND transactionid::text = %s"""

    def begin(statement: str) -> tuple[Any, str]:
        connection = source.connect(autocommit=False)
        connection.execute(statement)
        row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
        assert row is not None
        return connection, row[0]

    older, older_id = begin("SELECT 1")
    maker.start()
    wait_until(lambda: source.value(waiting_for, older_id), what="the slot to wait for it")
    altering, altering_id = begin("ALTER TABLE a ALTER v TYPE bigint")
    older.commit()
    wait_until(lambda: source.value(waiting_for, altering_id), what="the slot to wait for it")
    later, _ = begin("INSERT INTO b VALUES (1)")
    altering.commit()
    ready = "SELECT count(*) FROM pg_replication_slots WHERE confirmed_flush_lsn IS NOT NULL"
    wait_until(lambda: source.value(ready), what="the slot to be ready")
    later.execute("INSERT INTO a VALUES (11, 11)")
    later.commit()
    maker.join(30)
    source.execute("INSERT INTO a VALUES (12, 12)")

    for each in (older, altering, later):
        each.close()
    decoded = source.value(
        "SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version',"
        " '1', 'publication_names', 'penstock_shop')",
        made[0].slot,
    )
    assert decoded >= 3


def test_crash_before_any_member_is_finished_by_the_next_attempt(
    source: Database, monkeypatch: pytest.MonkeyPatch
):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    with monkeypatch.context() as patch:
        patch.setattr(membership, "_carry_out", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            ensure(source, rules(*ALL))
    assert members(source) == []
    assert slots(source) == []

    ensure(source, rules(*ALL))

    assert members(source) == ["public.a"]


def _interrupt(*args: object) -> None:
    raise KeyboardInterrupt


def test_failure_to_make_the_slot_leaves_nothing(make_server: MakeServer):
    server = make_server(settings={"wal_level": "replica"})
    source = create_database(server, "source")
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")

    with pytest.raises(errors.WalLevelTooLow):
        ensure(source, rules(*ALL))

    assert publications(source) == []


def test_no_slot_left_is_said_and_leaves_nothing(make_server: MakeServer):
    source = create_database(make_server(settings={"max_replication_slots": "1"}), "source")
    source.execute("SELECT pg_create_logical_replication_slot('other', 'pgoutput')")

    with pytest.raises(errors.NoSlotLeft, match="max_replication_slots"):
        ensure(source, rules(*ALL))

    assert publications(source) == []


def test_slot_still_being_created_is_in_use(source: Database):
    ensure(source, rules(*ALL))
    with source.connect(autocommit=False) as writer:
        writer.execute("CREATE TABLE holds_an_xid (id int)")
        maker = threading.Thread(target=lambda: ensure(source, rules(*ALL), "second"))
        maker.start()
        wait_until(lambda: len(slots(source)) == 2, what="the second slot to be begun")
        with connect_source(source.dsn) as connection:
            state = slot_state(connection, next(s for s in slots(source) if "second" in s))
        writer.rollback()
    maker.join(30)

    assert state.confirmed_flush_lsn is None
    assert state.active


# What somebody else did.


def test_publication_of_somebody_else_is_refused(source: Database):
    source.execute("CREATE PUBLICATION penstock_shop")

    with pytest.raises(errors.PublicationChanged, match="no stamp"):
        ensure(source, rules(*ALL))
    with connect_source(source.dsn) as connection, pytest.raises(errors.PublicationChanged):
        drop_subscription(connection, "shop")

    assert publications(source) == ["penstock_shop"]
    assert slots(source) == []


def test_dropped_slot_is_missing_not_made_again(source: Database):
    made = ensure(source, rules(*ALL))
    source.execute("SELECT pg_drop_replication_slot(%s)", made.slot)

    with pytest.raises(errors.SlotMissing, match=made.slot):
        ensure(source, rules(*ALL))

    assert slots(source) == []


def test_slot_made_again_under_its_name_has_moved(source: Database):
    made = ensure(source, rules(*ALL))
    source.execute("SELECT pg_drop_replication_slot(%s)", made.slot)
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", made.slot)

    with connect_source(source.dsn) as connection:
        state = slot_state(connection, made.slot)

    with pytest.raises(errors.SlotMoved, match="re-created"):
        check_slot(state, made.slot, "here", have_lsn=made.created_lsn)
    check_slot(state, made.slot, "here", have_lsn=state.confirmed_flush_lsn)


def test_lost_slot_is_lost(make_server: MakeServer):
    server = make_server(settings={"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB"})
    source = create_database(server, "source")
    made = ensure(source, rules(*ALL))
    for _ in range(3):
        source.execute("SELECT pg_switch_wal()")
        source.execute("CREATE TABLE w AS SELECT generate_series(1, 1000); DROP TABLE w")
    source.execute("CHECKPOINT")

    with pytest.raises(errors.SlotLost):
        ensure(source, rules(*ALL))
    with connect_source(source.dsn) as connection:
        assert slot_state(connection, made.slot).is_lost


@pytest.mark.parametrize(
    "change",
    [
        "DROP PUBLICATION penstock_shop",
        "DROP PUBLICATION penstock_shop_inserts",
        "COMMENT ON PUBLICATION penstock_shop IS NULL",
        "ALTER PUBLICATION penstock_shop SET (publish = 'insert')",
        "ALTER PUBLICATION penstock_shop SET (publish_via_partition_root = false)",
        "ALTER PUBLICATION penstock_shop SET TABLE a WHERE (id > 5)",
        "DROP PUBLICATION penstock_shop; CREATE PUBLICATION penstock_shop FOR TABLE a",
    ],
)
def test_changed_publication_is_noticed(source: Database, change: str):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    made = ensure(source, rules(*ALL))
    source.execute(change)

    with pytest.raises(errors.PublicationChanged):
        poll(source, made, rules(*ALL))
    with pytest.raises(errors.PublicationChanged):
        ensure(source, rules(*ALL))


def test_both_publications_dropped_leave_a_slot_that_is_not_forgotten(source: Database):
    made = ensure(source, rules(*ALL))
    source.execute("DROP PUBLICATION penstock_shop, penstock_shop_inserts")

    with pytest.raises(errors.PublicationChanged, match=made.slot):
        ensure(source, rules(*ALL))
    with connect_source(source.dsn) as connection:
        assert drop_subscription(connection, "shop") == [f"slot {made.slot}"]
    assert ensure(source, rules(*ALL)).generation != made.generation


def test_subscription_made_anew_is_of_another_generation(source: Database):
    old = ensure(source, rules(*ALL))
    with connect_source(source.dsn) as connection:
        drop_subscription(connection, "shop")
        new = ensure_subscription(connection, "shop", rules(*ALL))
        stored, found = read_identity(connection, old), read_identity(connection, new)

    with pytest.raises(errors.PublicationChanged, match="generation"):
        poll(source, old, rules(*ALL))
    with pytest.raises(errors.PublicationChanged, match="generation"):
        compare_identity(stored, found, "here")


def test_identity_names_cluster_timeline_and_database(source: Database):
    made = ensure(source, rules(*ALL))

    with connect_source(source.dsn) as connection:
        found = read_identity(connection, made)

    assert found.system_identifier == source.value(
        "SELECT system_identifier::text FROM pg_control_system()"
    )
    assert (found.timeline, found.database) == (1, source.name)
    compare_identity(found, found, "here")
    for other in (
        replace(found, system_identifier="7"),
        replace(found, timeline=2),
        replace(found, database="x"),
    ):
        with pytest.raises(errors.OtherCluster, match="wanted"):
            compare_identity(other, found, "here")


def test_identity_is_read_over_replication_where_the_functions_are_revoked(source: Database):
    made = ensure(source, rules(*ALL))
    source.execute("CREATE ROLE follower LOGIN REPLICATION")
    source.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    dsn = type(source.dsn).parse(source.server.dsn(source.name, user="follower"))

    with connect_source(dsn) as connection:
        found = read_identity(connection, made, dsn)
    with connect_source(source.dsn) as connection:
        assert found == read_identity(connection, made)


# SQL for an admin, and the end.


def test_printed_sql_does_what_init_does(source: Database):
    limited = follower(source)
    source.execute('CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE "b\'" (id int)')
    chosen = rules("a", insert_only=('"b\'"',))
    with connect_source(limited.dsn) as connection:
        statements = print_sql(connection, "shop", chosen)
    assert publications(source) == []
    for statement in statements:
        source.execute(statement)

    made = ensure(limited, chosen)

    assert members(source) == ["public.a"]
    assert members(source, "penstock_shop_inserts") == ["public.b'"]
    assert stamp_of(source)["created_lsn"] == str(made.created_lsn)
    with connect_source(limited.dsn) as connection:
        assert print_sql(connection, "shop", chosen) == []


def test_printed_sql_for_a_table_that_appeared(source: Database):
    ensure(source, rules(*ALL))
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")

    with connect_source(source.dsn) as connection:
        statements = print_sql(connection, "shop", rules(*ALL))

    assert statements == ['ALTER PUBLICATION "penstock_shop" ADD TABLE ONLY "public"."a";']


def test_teardown_removes_everything_and_says_what(source: Database):
    made = ensure(source, rules(*ALL))
    with connect_source(source.dsn) as connection:
        removed = drop_subscription(connection, "shop")
        again = drop_subscription(connection, "shop")

    assert removed == [
        f"slot {made.slot}",
        "publication penstock_shop",
        "publication penstock_shop_inserts",
    ]
    assert again == []
    assert (slots(source), publications(source)) == ([], [])


def test_teardown_does_not_touch_another_pipeline(source: Database):
    other = ensure(source, rules(*ALL), "shop_eu")
    ensure(source, rules(*ALL), "shop")

    with connect_source(source.dsn) as connection:
        drop_subscription(connection, "shop")

    assert slots(source) == [other.slot]
    assert publications(source) == list(other.publications)


def test_teardown_cuts_off_nobody(source: Database):
    made = ensure(source, rules(*ALL))
    reader = psycopg.pq.PGconn.connect(source.dsn.with_options(replication="database").encode())
    started = reader.exec_(
        f"START_REPLICATION SLOT {made.slot} LOGICAL 0/0"
        " (proto_version '1', publication_names 'penstock_shop')".encode()
    )
    assert started.status == psycopg.pq.ExecStatus.COPY_BOTH

    with connect_source(source.dsn) as connection:
        with pytest.raises(errors.SlotInUse, match="still streams"):
            drop_subscription(connection, "shop", patience_seconds=0.3)
        assert slot_state(connection, made.slot).active
        reader.finish()
        assert len(drop_subscription(connection, "shop")) == 3


def test_slot_state_of_no_slot(source: Database):
    with connect_source(source.dsn) as connection:
        assert not slot_state(connection, "nothing").exists


def test_slot_state_counts_what_is_retained(source: Database):
    made = ensure(source, rules(*ALL))
    source.execute("CREATE TABLE w AS SELECT generate_series(1, 10000) AS x")

    with connect_source(source.dsn) as connection:
        state = slot_state(connection, made.slot)

    assert (state.exists, state.active, state.wal_status) == (True, False, "reserved")
    assert state.confirmed_flush_lsn == made.created_lsn
    assert isinstance(state.restart_lsn, Lsn)
    assert state.retained_bytes is not None
    assert state.retained_bytes > 100_000


@pytest.mark.parametrize("name", ["", "Shop", "a b", "é", "x" * 46, "a-b", 'a"b'])
def test_name_that_no_slot_can_carry_is_refused(name: str):
    with pytest.raises(errors.BadValue, match="name is"):
        publication_names(name)
