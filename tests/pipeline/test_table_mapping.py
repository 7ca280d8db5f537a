"""Where rows land: other tables, other names, some columns, and which source they are from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fix_pipeline import (
    ALWAYS_COPIED,
    INITIAL,
    row_count,
    rows,
    table_error,
    table_state,
    wait_for_state,
)
from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

pytestmark = only_new

SNAPSHOTS = pytest.mark.parametrize("snapshot", ["initial", "never"])


@SNAPSHOTS
def test_table_lands_under_another_name_with_some_columns_under_others(
    source: Database, target: Database, make_pipeline: Make, snapshot: str
) -> None:
    source.execute(
        "CREATE TABLE users (id int PRIMARY KEY, name text, secret text, age int DEFAULT 7)"
    )
    if snapshot == "initial":
        source.execute("INSERT INTO users VALUES (1, 'a', 's', 1), (2, 'b', 's', 2)")
    rule = {
        "target": "crm.customers",
        "columns": {"id": "customer_id", "name": None, "age": None},
    }
    pipeline = make_pipeline(
        source,
        target,
        sink={"tables": {"users": rule}},
        source_options={"snapshot": snapshot},
    )
    if snapshot == "never":
        source.execute("INSERT INTO users VALUES (1, 'a', 's', 1), (2, 'b', 's', 2)")
    source.execute(
        "INSERT INTO users VALUES (3, 'c', 's', 3); UPDATE users SET age = 20 WHERE id = 2;"
        "UPDATE users SET id = 5 WHERE id = 1; DELETE FROM users WHERE id = 3"
    )
    pipeline.catch_up()

    found = target.query("SELECT * FROM crm.customers ORDER BY customer_id")
    assert found == [(2, "b", 20), (5, "a", 1)]
    key = target.query(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conrelid = 'crm.customers'::regclass AND contype = 'p'"
    )
    assert key == [("PRIMARY KEY (customer_id)",)]
    assert target.query("SELECT to_regclass('public.users')::text") == [(None,)]


def test_two_schemas_tables_of_one_name_land_in_different_tables_and_the_rest_as_it_is(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE SCHEMA private; CREATE TABLE t8 (id int PRIMARY KEY, v text);"
        "CREATE TABLE private.t8 (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY)"
    )
    tables = {"*.*": {}, "private.t8": {"target": "public.pt8"}}
    pipeline = make_pipeline(source, target, sink={"tables": tables}, source_options=INITIAL)
    source.execute(
        "INSERT INTO t8 VALUES (1, 'public'); INSERT INTO private.t8 VALUES (1, 'private');"
        "UPDATE private.t8 SET id = 2, v = 'moved'; INSERT INTO other VALUES (9)"
    )
    pipeline.catch_up()

    assert rows(target, "t8") == [("(1,public)",)]
    assert rows(target, "pt8") == [("(2,moved)",)]
    assert rows(target, "other") == [("(9)",)]


@SNAPSHOTS
def test_source_id_is_a_column_of_every_table_and_of_every_key(
    source: Database, target: Database, make_pipeline: Make, snapshot: str
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE keyless (v text);"
        "ALTER TABLE keyless REPLICA IDENTITY FULL;"
        "INSERT INTO t VALUES (1, 'old'), (2, 'old'); INSERT INTO keyless VALUES ('x'), ('x'), (NULL)"
    )
    # Rows of another source, with the same keys.
    target.execute(
        "CREATE TABLE t (sid text NOT NULL, id int, v text, PRIMARY KEY (sid, id));"
        "CREATE TABLE keyless (sid text, v text);"
        "INSERT INTO t VALUES ('else', 1, 'theirs'), ('else', 3, 'theirs');"
        "INSERT INTO keyless VALUES ('else', 'x'), ('else', NULL)"
    )
    pipeline = make_pipeline(
        source,
        target,
        sink={"source_id_column": "sid"},
        source_options={"snapshot": snapshot},
    )
    source.execute(
        "INSERT INTO t VALUES (3, 'new'); DELETE FROM t WHERE id = 1; UPDATE t SET v = 'now';"
        "DELETE FROM keyless WHERE v IS NULL; UPDATE keyless SET v = 'y' WHERE ctid = '(0,1)'"
    )
    pipeline.catch_up()

    theirs = [("else", 1, "theirs"), ("else", 3, "theirs")]
    expected = (
        [("test", 3, "now")] if snapshot == "never" else [("test", 2, "now"), ("test", 3, "now")]
    )
    if snapshot == "never":  # an UPDATE of a row that was not there makes it
        expected = [("test", 2, "now"), ("test", 3, "now")]
    assert target.query("SELECT * FROM t ORDER BY sid, id") == theirs + expected
    found = target.query("SELECT sid, v FROM keyless ORDER BY sid, v")
    if snapshot == "initial":
        assert found == [("else", "x"), ("else", None), ("test", "x"), ("test", "y")]
    else:
        assert found[:2] == [("else", "x"), ("else", None)]

    source.execute("TRUNCATE t")
    pipeline.catch_up()
    assert target.query("SELECT * FROM t ORDER BY sid, id") == theirs


def test_source_id_takes_the_type_of_the_targets_column(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'copied');"
        "CREATE TABLE made (id int PRIMARY KEY)"
    )
    target.execute("CREATE TABLE t (sid int, id int, v text, PRIMARY KEY (sid, id))")
    pipeline = make_pipeline(
        source, target, name="42", sink={"source_id_column": "sid"}, source_options=INITIAL
    )
    source.execute("INSERT INTO t VALUES (2, 'streamed'); INSERT INTO made VALUES (7)")
    pipeline.catch_up()

    assert target.query("SELECT * FROM t ORDER BY id") == [(42, 1, "copied"), (42, 2, "streamed")]
    assert target.query("SELECT * FROM made") == [("42", 7)]


@pytest.mark.parametrize("kind", ["integer", "character varying(2)", "character(3)"])
def test_source_whose_name_the_column_cannot_hold_is_refused(
    source: Database, target: Database, make_pipeline: Make, kind: str
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE fine (id int PRIMARY KEY)")
    target.execute(f"CREATE TABLE t (sid {kind}, id int, PRIMARY KEY (sid, id))")
    pipeline = make_pipeline(source, target, sink={"source_id_column": "sid"})
    source.execute("INSERT INTO t VALUES (1); INSERT INTO fine VALUES (1)")
    pipeline.catch_up()

    wait_for_state(target, "t", "failed")
    assert f"column sid is {kind}, but the source is called test" in table_error(target, "t")
    assert rows(target, "fine") == [("(test,1)",)]


def test_table_with_a_column_of_the_source_ids_name_is_refused(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (sid int PRIMARY KEY)")
    pipeline = make_pipeline(source, target, sink={"source_id_column": "sid"})
    source.execute("INSERT INTO t VALUES (1)")
    pipeline.catch_up()

    wait_for_state(target, "t", "failed")
    assert "column sid, which penstock is to fill" in table_error(target, "t")


def test_several_tables_are_brought_into_one(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE orders_2025 (id int PRIMARY KEY, v text);"
        "CREATE TABLE orders_2026 (id int PRIMARY KEY, v text);"
        "INSERT INTO orders_2025 VALUES (1, 'a'); INSERT INTO orders_2026 VALUES (2, 'b')"
    )
    tables = {name: {"target": "dw.orders"} for name in ("orders_2025", "orders_2026")}
    pipeline = make_pipeline(source, target, sink={"tables": tables}, source_options=INITIAL)
    source.execute("INSERT INTO orders_2025 VALUES (3, 'c'); DELETE FROM orders_2026")
    pipeline.catch_up()
    assert rows(target, "dw.orders") == [("(1,a)",), ("(3,c)",)]

    # Whose rows are whose cannot be known any more.
    source.execute("TRUNCATE orders_2025")
    pipeline.catch_up()
    wait_for_state(target, "orders_2025", "failed")
    assert "nothing distinguishes its rows in dw.orders from others" in table_error(
        target, "orders_2025"
    )
    assert rows(target, "dw.orders") == [("(1,a)",), ("(3,c)",)]


def test_target_has_columns_of_its_own_and_lacks_some_of_the_source(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, extra text);"
        "CREATE TABLE f (a int, v text, extra text); ALTER TABLE f REPLICA IDENTITY FULL"
    )
    target.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, loaded text DEFAULT 'yes');"
        "CREATE TABLE f (a int, v text)"
    )
    pipeline = make_pipeline(source, target)
    source.execute(
        "INSERT INTO t VALUES (1, 'a', 'x'), (2, 'b', 'y'); UPDATE t SET extra = 'z', v = 'c'"
        " WHERE id = 1; INSERT INTO f VALUES (1, NULL, NULL), (1, NULL, 'e'), (2, 'b', 'e')"
    )
    source.execute("UPDATE f SET a = 5 WHERE v IS NULL AND extra = 'e'; DELETE FROM f WHERE a = 2")
    pipeline.catch_up()

    assert rows(target, "t") == [("(1,c,yes)",), ("(2,b,yes)",)]
    assert rows(target, "f") == [("(1,)",), ("(5,)",)]


@pytest.mark.parametrize("sink", [{"source_id_column": "sid"}, {}], ids=["sid", "names"])
def test_migration_is_followed_where_names_and_source_id_were_given(
    source: Database, target: Database, make_pipeline: Make, sink: dict[str, Any]
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w int)")
    rule = {"target": "dw.t"} if sink else {"target": "dw.t", "columns": {"id": "tid", "v": "vv"}}
    pipeline = make_pipeline(
        source, target, sink={**sink, "tables": {"t": rule}}, source_options=INITIAL
    )
    source.execute("INSERT INTO t VALUES (1, 'a', 1)")
    pipeline.catch_up()
    source.execute(
        "ALTER TABLE t ADD COLUMN more int DEFAULT 5; ALTER TABLE t RENAME v TO value;"
        "ALTER TABLE t ALTER w TYPE bigint; INSERT INTO t VALUES (2, 'b', 2, 6);"
        "ALTER TABLE t RENAME TO u; INSERT INTO u VALUES (3, 'c', 3, 7)"
    )
    pipeline.catch_up()

    found = target.query("SELECT * FROM dw.t ORDER BY 1, 2")
    if sink:
        assert found == [("test", 1, "a", 1, 5), ("test", 2, "b", 2, 6), ("test", 3, "c", 3, 7)]
    else:
        assert found == [(1, "a"), (2, "b"), (3, "c")]
    assert [state for (state,) in target.query("SELECT state FROM penstock.tables")] == [
        "streaming"
    ]


def test_resync_takes_away_rows_of_this_source_alone(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    pipeline = make_pipeline(
        source, target, sink={"source_id_column": "sid"}, source_options=ALWAYS_COPIED
    )
    pipeline.catch_up()
    target.execute(
        "INSERT INTO t VALUES ('else', 1, 'theirs'), ('test', 9, 'stray');"
        "UPDATE t SET v = 'wrong' WHERE sid = 'test' AND id = 1;"
        "UPDATE penstock.tables SET request = 'resync'"
    )
    wait_for_state(target, "t", "pending", "copying", "catching_up")
    wait_for_state(target, "t", "streaming")

    assert rows(target, "t") == [("(else,1,theirs)",), ("(test,1,a)",)]


def test_history_keeps_its_kind_and_follows_what_becomes_of_its_table(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, k int NOT NULL, v text, w int)")
    source.execute("INSERT INTO t VALUES (1, 0, 'a', 1)")
    pipeline = make_pipeline(
        source, target, sink={"tables": {"t": {"kind": "history"}}}, source_options=INITIAL
    )
    pipeline.catch_up()
    source.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, k)")
    source.execute("INSERT INTO t VALUES (1, 1, 'b', 2)")
    source.execute("ALTER TABLE t RENAME TO u; ALTER TABLE u DROP COLUMN w")
    source.execute("ALTER TABLE u RENAME v TO value; UPDATE u SET value = 'c' WHERE k = 0")
    pipeline.catch_up()

    found = target.query(
        "SELECT id, k, value, w, kvsz_end < '9999-01-01' FROM u ORDER BY k, kvsz_end"
    )
    assert found == [(1, 0, "a", 1, True), (1, 0, "c", None, False), (1, 1, "b", 2, False)]
    assert table_state(target, "u") == "streaming"


@pytest.mark.parametrize(
    ("made", "reported"),
    [
        (
            "kvsz_deleted int, PRIMARY KEY (id, kvsz_end)",
            "column kvsz_deleted of public.t is integer",
        ),
        ("kvsz_deleted boolean, PRIMARY KEY (id)", "but a history has many"),
        ("PRIMARY KEY (id, kvsz_end)", "no column kvsz_deleted, which a history has"),
    ],
)
def test_table_that_cannot_be_a_history_is_reported_before_it_is_copied(
    source: Database, target: Database, make_pipeline: Make, made: str, reported: str
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    source.execute("CREATE TABLE good (id int PRIMARY KEY); INSERT INTO good VALUES (1)")
    target.execute(f"CREATE TABLE t (id int, kvsz_start timestamptz, kvsz_end timestamptz, {made})")
    pipeline = make_pipeline(
        source, target, sink={"tables": {"t": {"kind": "history"}}}, source_options=INITIAL
    )
    pipeline.catch_up()

    wait_for_state(target, "t", "failed")  # it is tried again meanwhile, each time in vain
    assert reported in table_error(target, "t")
    assert rows(target, "good") == [("(1)",)]
    assert rows(target, "t") == []


def test_columns_without_the_key_are_refused_before_anything_is_copied(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE t (a int, b int, v text, PRIMARY KEY (a, b)); INSERT INTO t VALUES (1, 2)"
    )
    sink = {"tables": {"t": {"columns": ["a", "v"]}}}
    pipeline = make_pipeline(source, target, sink=sink, source_options=INITIAL)
    pipeline.catch_up()

    assert "lacks key columns b" in table_error(target, "t")
    assert rows(target, "t") == []


def test_computed_columns_are_left_out_of_a_choice_of_columns(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) STORED)"
    )
    sink = {"tables": {"t": {"columns": {"id": "tid", "g": "gg"}}}}
    pipeline = make_pipeline(source, target, sink=sink, source_options=INITIAL)
    source.execute("INSERT INTO t VALUES (1, 2)")
    pipeline.catch_up()

    assert rows(target, "t") == [("(1)",)]


@pytest.mark.parametrize("kind", ["append", "history"])
def test_column_that_is_dropped_and_comes_again_does_not_bring_its_old_values_back(
    source: Database, target: Database, make_pipeline: Make, kind: str
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, g text); INSERT INTO t VALUES (1, 'old')")
    pipeline = make_pipeline(
        source, target, sink={"tables": {"t": {"kind": kind}}}, source_options=INITIAL
    )
    pipeline.catch_up()
    source.execute("ALTER TABLE t DROP COLUMN g")
    source.execute("ALTER TABLE t ADD COLUMN g text")
    pipeline.catch_up()

    now = "WHERE kvsz_end = '9999-01-01 00:00:00+00'" if kind == "history" else ""
    assert target.query(f"SELECT id, g FROM t {now}") == [(1, None)]


@pytest.mark.parametrize("kind", ["clone", "history"])
def test_column_that_comes_late_or_again_lands_under_the_name_that_the_rule_gives_it(
    source: Database, target: Database, make_pipeline: Make, kind: str
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'a')")
    columns = {"id": "key", "a": "b", "late": "later", "other": None}
    rule = {"target": "crm.u", "columns": columns, "kind": kind}
    pipeline = make_pipeline(source, target, sink={"tables": {"t": rule}}, source_options=INITIAL)
    pipeline.catch_up()
    source.execute("ALTER TABLE t ADD late int DEFAULT 7; INSERT INTO t VALUES (2, 'b', 8)")
    source.execute("ALTER TABLE t ADD other int, ADD secret text DEFAULT 's'")
    source.execute("ALTER TABLE t DROP a; ALTER TABLE t ADD a int DEFAULT 5")
    source.execute("INSERT INTO t (id, late, other, a) VALUES (3, 9, 10, 11)")
    pipeline.catch_up()

    now = "WHERE kvsz_end = '9999-01-01 00:00:00+00'" if kind == "history" else ""
    query = f"SELECT key, later, other, b::text FROM crm.u {now} ORDER BY key"
    wait_until(lambda: len(target.query(query)) == 3)
    assert target.query(query) == [(1, 7, None, "5"), (2, 8, None, "5"), (3, 9, 10, "11")]
    named = "SELECT column_name FROM information_schema.columns WHERE table_name = 'u'"
    assert {"a", "late", "secret"}.isdisjoint(name for (name,) in target.query(named))


@pytest.mark.parametrize(
    ("before", "reported"),
    [
        ({"tables": {"t": {"kind": "history"}}}, "public.t is a history"),
        ({"source_id_column": "sid"}, "nothing fills sid"),
    ],
    ids=["history", "sid"],
)
def test_slip_in_the_file_does_not_make_a_clone_of_what_is_more(
    source: Database, target: Database, make_pipeline: Make, before: dict[str, Any], reported: str
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'a')"
    )
    pipeline = make_pipeline(source, target, sink=before, source_options=INITIAL)
    source.execute("UPDATE t SET v = 'b'")
    pipeline.catch_up()
    pipeline.stop()
    there = rows(target, "t")

    pipeline = make_pipeline(source, target, sink={}, source_options=INITIAL)
    source.execute("UPDATE t SET v = 'c'; DELETE FROM t WHERE id = 2; TRUNCATE t")
    pipeline.catch_up()
    assert reported in table_error(target, "t")
    assert rows(target, "t") == there
    pipeline.stop()

    pipeline = make_pipeline(source, target, sink=before, source_options=INITIAL)
    wait_for_state(target, "t", "streaming")
    pipeline.catch_up()
    now = "WHERE kvsz_end = '9999-01-01 00:00:00+00'" if "tables" in before else ""
    assert target.query(f"SELECT id, v FROM t {now}") == []


@pytest.mark.parametrize("snapshot", ["initial", "never"])
@pytest.mark.parametrize(
    ("sink", "names", "landed"),
    [
        ({"tables": {"public.a": {"target": "public.b"}}}, ("public.a", "public.b"), "public.b"),
        ({"schema": "dw"}, ("s1.b", "s2.b"), "dw.b"),
        (
            {"tables": {"*.*": {"target": "dw.{schema}_{table}"}}},
            ("s1.b_c", "s1_b.c"),
            "dw.s1_b_c",
        ),
    ],
    ids=["rule", "schema", "template"],
)
def test_two_tables_that_land_in_one_by_chance_are_not_mixed(
    source: Database,
    target: Database,
    make_pipeline: Make,
    sink: dict[str, Any],
    names: tuple[str, str],
    landed: str,
    snapshot: str,
) -> None:
    source.execute("CREATE SCHEMA s1; CREATE SCHEMA s2; CREATE SCHEMA s1_b")
    for name in names:
        source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    pipeline = make_pipeline(source, target, sink=sink, source_options={"snapshot": snapshot})
    for name in names:
        source.execute(f"INSERT INTO {name} VALUES (1, '{name}')")
    pipeline.catch_up()

    query = "SELECT state, schema_name || '.' || table_name FROM penstock.tables ORDER BY state"
    # It is tried again now and then, and pending meanwhile.
    wait_until(lambda: [state for state, _ in target.query(query)] == ["failed", "streaming"])
    (_, other), (_, first) = target.query(query)
    assert rows(target, landed) == [(f"(1,{first})",)]
    source.execute(f"TRUNCATE {other}; DROP TABLE {other}")
    pipeline.catch_up()
    assert rows(target, landed) == [(f"(1,{first})",)]


@pytest.mark.parametrize("snapshot", ["initial", "never"])
@pytest.mark.parametrize("tracking", ["triggers", pytest.param("relation", marks=pytest.mark.long)])
def test_table_that_was_rotated_is_not_mixed_with_its_successor(
    source: Database, target: Database, make_pipeline: Make, tracking: str, snapshot: str
) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, v text)")
    pipeline = make_pipeline(
        source,
        target,
        sink={"tables": {"public.orders": {"target": "dw.orders"}}},
        source_options={"snapshot": snapshot, "schema": {"tracking": tracking}},
    )
    source.execute("INSERT INTO orders VALUES (1, 'old')")
    pipeline.catch_up()
    source.execute("ALTER TABLE orders RENAME TO orders_2024")
    source.execute("INSERT INTO orders_2024 VALUES (2, 'old')")
    pipeline.catch_up()
    assert rows(target, "dw.orders") == [("(1,old)",), ("(2,old)",)]

    source.execute("CREATE TABLE orders (LIKE orders_2024 INCLUDING ALL)")
    published = "SELECT 1 FROM pg_publication_tables WHERE tablename = 'orders'"
    wait_until(lambda: source.query(published), what="the new table to be followed")
    source.execute(
        "INSERT INTO orders VALUES (1, 'new'), (3, 'new'); DELETE FROM orders WHERE id = 3"
    )
    wait_for_state(target, "orders", "failed")
    source.execute("TRUNCATE orders; INSERT INTO orders_2024 VALUES (4, 'old')")
    source.execute("INSERT INTO orders VALUES (2, 'newer')")
    pipeline.catch_up()
    wait_for_state(target, "orders", "failed")

    reported = "dw.orders at the target already takes the rows of public.orders_2024"
    assert reported in table_error(target, "orders")
    assert table_state(target, "orders_2024") == "streaming"
    assert rows(target, "dw.orders") == [("(1,old)",), ("(2,old)",), ("(4,old)",)]
    # Who was first keeps the place, also when it is copied again.
    if snapshot == "initial":
        target.execute(
            "DELETE FROM dw.orders WHERE id = 1;"
            "UPDATE penstock.tables SET request = 'resync' WHERE table_name = 'orders_2024'"
        )
        wait_until(lambda: row_count(target, "dw.orders") == 3, what="the copy")
        wait_for_state(target, "orders_2024", "streaming")
        assert rows(target, "dw.orders") == [("(1,old)",), ("(2,old)",), ("(4,old)",)]


@pytest.mark.parametrize(
    "sink",
    [
        pytest.param({"tables": {"public.a": {"target": "public.b"}}}, id="rule"),
        pytest.param({"source_id_column": "sid"}, id="sid", marks=pytest.mark.long),
        pytest.param({"schema_changes": "ignore"}, id="ignore", marks=pytest.mark.long),
    ],
)
def test_table_that_is_made_later_does_not_join_one_that_stayed_in_its_place(
    source: Database, target: Database, make_pipeline: Make, sink: dict[str, Any]
) -> None:
    first, later = ("b", "a") if "tables" in sink else ("c", "b")
    source.execute("CREATE TABLE b (id int PRIMARY KEY, v text)")
    pipeline = make_pipeline(source, target, sink=sink, source_options=INITIAL)
    source.execute("INSERT INTO b VALUES (1, 'first')")
    pipeline.catch_up()
    if first == "c":
        source.execute("ALTER TABLE b RENAME TO c; INSERT INTO c VALUES (2, 'first')")
        pipeline.catch_up()
    there = rows(target, "b")
    source.execute(f"CREATE TABLE {later} (id int PRIMARY KEY, v text, w int)")
    source.execute(f"INSERT INTO {later} VALUES (1, 'later'), (7, 'later')")
    wait_for_state(target, later, "failed")
    pipeline.catch_up()

    reported = f"public.b at the target already takes the rows of public.{first}"
    assert reported in table_error(target, later)
    assert rows(target, "b") == there
    assert table_state(target, first) == "streaming"


def test_history_that_was_renamed_is_one_again_when_its_table_is_made_anew(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE salary (id int PRIMARY KEY, v int); INSERT INTO salary VALUES (1, 1)"
    )
    pipeline = make_pipeline(
        source,
        target,
        sink={"tables": {"public.salary": {"kind": "history"}}},
        source_options=INITIAL,
    )
    pipeline.catch_up()
    source.execute("ALTER TABLE salary RENAME TO wages; UPDATE wages SET v = 2")
    pipeline.catch_up()
    assert target.query("SELECT v FROM wages ORDER BY kvsz_end") == [(1,), (2,)]

    target.execute(
        "DROP TABLE wages; UPDATE penstock.tables SET request = 'resync' WHERE table_name = 'wages'"
    )
    wait_until(lambda: rows(target, "wages") != [], what="the table to be made again")
    wait_for_state(target, "wages", "streaming")
    source.execute("UPDATE wages SET v = 3")
    pipeline.catch_up()
    source.execute("ALTER TABLE wages RENAME TO pay; UPDATE pay SET v = 4")
    pipeline.catch_up()

    now = "kvsz_end = '9999-01-01 00:00:00+00'"
    assert target.query(f"SELECT v, {now} FROM pay ORDER BY kvsz_end") == [
        (2, False),
        (3, False),
        (4, True),
    ]


@SNAPSHOTS
def test_table_that_is_made_with_rows_where_another_lands_stops_alone(
    source: Database, target: Database, make_pipeline: Make, snapshot: str
) -> None:
    source.execute("CREATE SCHEMA a; CREATE SCHEMA b; CREATE TABLE a.t (id int PRIMARY KEY)")
    pipeline = make_pipeline(
        source, target, sink={"schema": "dw"}, source_options={"snapshot": snapshot}
    )
    source.execute("INSERT INTO a.t VALUES (1)")
    pipeline.catch_up()
    source.execute(
        "BEGIN; CREATE TABLE b.t (id int PRIMARY KEY); INSERT INTO b.t VALUES (7);"
        "INSERT INTO a.t VALUES (2); COMMIT"
    )
    wait_for_state(target, "t", "failed", schema="b")
    source.execute("INSERT INTO a.t VALUES (3); INSERT INTO b.t VALUES (8)")
    pipeline.catch_up()

    assert "dw.t at the target already takes the rows of a.t" in table_error(target, "t", "b")
    assert rows(target, "dw.t") == [("(1)",), ("(2)",), ("(3)",)]
    assert table_state(target, "t", "a") == "streaming"
