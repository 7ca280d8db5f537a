"""Which tables are published, at first and while they come and go, on a real server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from fix_subscription import ALL, ensure, follower, members, poll, publications, rules, slots
from fix_wait import wait_until
from penstock import errors
from penstock.source import membership
from penstock.source.catalog import SourceTable, list_tables
from penstock.source.choice import judge_tables
from penstock.source.connect import connect_source
from penstock.source.subscription import drop_subscription, raise_first, read_identity
from penstock.table import TableName, TableRule, TableRules

if TYPE_CHECKING:
    from fix_postgres import Database

# Which tables.


def test_wildcards_and_exclusions_choose(source: Database):
    source.execute(
        "CREATE SCHEMA s; CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY);"
        "CREATE TABLE s.a (id int PRIMARY KEY); CREATE TABLE s.c (id int PRIMARY KEY)"
    )

    ensure(source, rules("*.a", "s.*", exclude=("s.c",)))
    assert members(source) == ["public.a", "s.a"]

    ensure(source, rules(exclude=("*.a",)))
    assert members(source) == ["public.b", "s.c"]


def test_nothing_matching_a_wildcard_is_allowed(source: Database):
    made = ensure(source, rules("later.*"))

    assert members(source) == []
    assert slots(source) == [made.slot]


def test_every_keyless_table_named_outright_is_listed_at_once(source: Database):
    source.execute("CREATE TABLE a (x int); CREATE TABLE b (x int); CREATE TABLE c (x int)")

    with pytest.raises(errors.TableWithoutKey) as caught:
        ensure(source, rules("a", "public.b", "*.c"))

    assert caught.value.where == "public.a, public.b"
    assert 'ALTER TABLE "public"."b" REPLICA IDENTITY FULL' in caught.value.do
    assert publications(source) == []


def test_keyless_table_of_a_wildcard_is_left_out_and_stays_updatable(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE keyless (x int)")
    made = ensure(source, rules("public.*"))

    change = poll(source, made, rules("public.*"))

    [left] = change.left_out
    assert left.table == TableName("public", "keyless")
    assert "no primary key" in left.reason
    assert 'ALTER TABLE "public"."keyless" REPLICA IDENTITY FULL' in left.do
    source.execute("INSERT INTO keyless VALUES (1); UPDATE keyless SET x = 2; DELETE FROM keyless")


def test_table_without_columns_is_left_out_until_it_has_one(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE bare ()")
    source.execute("ALTER TABLE bare REPLICA IDENTITY FULL")
    chosen = rules("public.*", insert_only=("*.computed",))
    source.execute("CREATE TABLE computed (n int GENERATED ALWAYS AS (1) STORED)")
    made = ensure(source, chosen)

    left = poll(source, made, chosen).left_out
    source.execute("ALTER TABLE bare ADD id int")
    change = poll(source, made, chosen)

    assert {each.table.name for each in left} == {"bare", "computed"}
    assert all("has no columns" in each.reason for each in left)
    assert [each.table.name for each in change.left_out] == ["computed"]
    assert members(source) == ["public.a", "public.bare"]


def test_insert_only_table_is_followed_for_inserts_and_stays_updatable(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE audit (x int)")

    ensure(source, rules("a", insert_only=("audit",)))

    assert members(source) == ["public.a"]
    assert members(source, "penstock_shop_inserts") == ["public.audit"]
    source.execute("INSERT INTO audit VALUES (1); UPDATE audit SET x = 2; DELETE FROM audit")


@pytest.mark.parametrize(
    ("name", "found"),
    [("nothing", "does not exist"), ("v", "a view"), ("u", "unlogged"), ("f", "a foreign table")],
)
def test_table_named_outright_that_cannot_be_published(source: Database, name: str, found: str):
    source.execute("CREATE VIEW v AS SELECT 1; CREATE UNLOGGED TABLE u (id int PRIMARY KEY)")
    source.execute("CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w")
    source.execute("CREATE FOREIGN TABLE f (id int) SERVER s")

    with pytest.raises(errors.TableMissing, match=found) as caught:
        ensure(source, rules(name))

    assert caught.value.where == f"public.{name}"
    assert publications(source) == []


def test_partitions_are_represented_by_their_root(source: Database):
    source.execute(
        "CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (5);"
        "CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (5) TO (9)"
    )

    ensure(source, rules("public.*"))
    assert members(source) == ["public.r"]

    ensure(source, rules("r1"))
    assert members(source) == ["public.r1"]


def test_children_of_inheritance_are_tables_of_their_own(source: Database):
    source.execute("CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE child () INHERITS (p)")

    ensure(source, rules("p"))

    assert members(source) == ["public.p"]
    source.execute("INSERT INTO child VALUES (1); UPDATE child SET id = 2")


@pytest.mark.parametrize("name", ['a "b" c', "dot.ted", "*", "Größe-数", "x" * 63, "sel'ect", "%s"])
def test_odd_names_are_published(source: Database, name: str):
    quoted = name.replace('"', '""')
    source.execute(f'CREATE SCHEMA "{quoted}"')
    source.execute(f'CREATE TABLE "{quoted}"."{quoted}" (id int PRIMARY KEY)')
    source.execute(f'CREATE TABLE "{quoted}".keyless (id int)')
    chosen = TableRules((TableRule(name, None),))

    made = ensure(source, chosen)
    change = poll(source, made, chosen)

    assert members(source) == [str(TableName(name, name))]
    assert [left.table for left in change.left_out] == [TableName(name, "keyless")]
    source.execute(change.left_out[0].do.split(";")[0])
    assert poll(source, made, chosen).added == [TableName(name, "keyless")]


def test_partition_named_outright_is_not_left_out_with_its_root():
    root = SourceTable(1, TableName("public", "r"), "p", "d", False, flaw="no key", fix="FIX")
    leaf = SourceTable(2, TableName("public", "l"), "r", "d", True, root=1, ancestors=(1,))

    choice, faults = judge_tables([root, leaf], rules("public.*"))
    assert faults == []
    assert [left.table for left in choice.left_out] == [root.name]
    assert (choice.updates, choice.inserts, choice.swept_in) == ([], [], [])
    with pytest.raises(errors.TableWithoutKey, match="no key"):
        raise_first(judge_tables([root, leaf], rules("public.*", "l"))[1])
    assert judge_tables([root, leaf], rules("l"))[0].updates == [leaf]


def test_partition_whose_index_does_not_have_the_roots_key_is_a_flaw(source: Database):
    source.execute(
        "CREATE TABLE p (a int NOT NULL, b int NOT NULL, d int NOT NULL) PARTITION BY RANGE (d);"
        "CREATE UNIQUE INDEX pa ON p (a, d); ALTER TABLE p REPLICA IDENTITY USING INDEX pa;"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (1) TO (2);"
        "CREATE UNIQUE INDEX p1b ON p1 (b); ALTER TABLE p1 REPLICA IDENTITY USING INDEX p1b"
    )
    with source.connect() as connection:
        found = {table.name.name: table for table in list_tables(connection)}
    assert "partition public.p1: another replica identity" in found["p"].flaw
    source.execute("ALTER TABLE p1 REPLICA IDENTITY USING INDEX p1_a_d_idx")
    with source.connect() as connection:
        found = {table.name.name: table for table in list_tables(connection)}
    assert found["p"].flaw == ""


# Membership while running.


def test_quiet_source_changes_nothing(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    made = ensure(source, rules(*ALL))

    change = poll(source, made, rules(*ALL))

    assert (change.added, change.removed, change.left_out) == ([], [], [])
    assert change.published == [TableName("public", "a")]


def test_table_that_appears_is_followed(source: Database):
    made = ensure(source, rules("public.*"))
    source.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE SCHEMA s; CREATE TABLE s.b (id int)"
    )

    change = poll(source, made, rules("public.*"))

    assert change.added == change.published == [TableName("public", "a")]
    assert members(source) == ["public.a"]


def test_table_dropped_and_made_again_is_followed_again(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    made = ensure(source, rules("a"))
    source.execute("DROP TABLE a")

    gone = poll(source, made, rules("a"))
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    back = poll(source, made, rules("a"))

    assert gone.published == []
    assert [left.reason for left in gone.left_out] == ["does not exist"]
    assert back.added == back.published == [TableName("public", "a")]


def test_renamed_table_follows_the_rules_by_its_new_name(source: Database):
    source.execute("CREATE SCHEMA s; CREATE TABLE s.a (id int PRIMARY KEY)")
    made = ensure(source, rules("s.*"))
    source.execute("ALTER TABLE s.a RENAME TO b")

    renamed = poll(source, made, rules("s.*"))
    source.execute("ALTER TABLE s.b SET SCHEMA public")
    moved = poll(source, made, rules("s.*"))

    assert (renamed.added, renamed.removed) == ([], [])
    assert renamed.published == [TableName("s", "b")]
    assert moved.removed == [TableName("public", "b")]


def test_table_that_loses_its_key_leaves_before_its_updates_fail_for_long(source: Database):
    source.execute("CREATE TABLE a (id int CONSTRAINT k PRIMARY KEY)")
    made = ensure(source, rules("a"))
    source.execute("ALTER TABLE a DROP CONSTRAINT k")

    lost = poll(source, made, rules("a"))
    source.execute("INSERT INTO a VALUES (1); UPDATE a SET id = 2")
    source.execute("ALTER TABLE a REPLICA IDENTITY FULL")
    back = poll(source, made, rules("a"))

    assert lost.removed == [TableName("public", "a")]
    assert [left.table for left in lost.left_out] == [TableName("public", "a")]
    assert back.added == [TableName("public", "a")]


def test_table_changes_from_updates_to_inserts_and_back(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    ensure(source, rules("a"))

    made = ensure(source, rules("a", insert_only=("a",)))
    assert (members(source), members(source, made.publications[1])) == ([], ["public.a"])

    ensure(source, rules("a"))
    assert (members(source), members(source, made.publications[1])) == (["public.a"], [])


def test_partition_attached_later_is_taken_over_by_its_root(source: Database):
    source.execute("CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    source.execute("CREATE TABLE l (id int PRIMARY KEY)")
    made = ensure(source, rules("public.*"))
    source.execute("ALTER TABLE r ATTACH PARTITION l FOR VALUES FROM (0) TO (5)")

    change = poll(source, made, rules("public.*"))

    assert change.removed == [TableName("public", "l")]
    assert change.published == [TableName("public", "r")]


def test_table_vanishing_between_check_and_statement_does_no_harm(
    source: Database, monkeypatch: pytest.MonkeyPatch
):
    made = ensure(source, rules(*ALL))
    source.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    carry_out = membership._carry_out

    def drop_first(*args: Any) -> None:
        source.execute("DROP TABLE IF EXISTS a")
        carry_out(*args)

    monkeypatch.setattr(membership, "_carry_out", drop_first)
    change = poll(source, made, rules(*ALL))

    assert change.added == change.published == [TableName("public", "b")]


def test_locked_table_waits_for_the_next_poll(source: Database):
    made = ensure(source, rules(*ALL))
    source.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    with source.connect(autocommit=False) as holder:
        holder.execute("LOCK TABLE a")

        change = poll(source, made, rules(*ALL))

    assert change.added == [TableName("public", "b")]
    assert [left.table for left in change.left_out] == [TableName("public", "a")]
    assert change.delayed == [TableName("public", "a")]
    again = poll(source, made, rules(*ALL))
    assert (again.added, again.delayed) == ([TableName("public", "a")], [])


def test_user_who_holds_one_new_table_and_alters_another_meets_no_deadlock(source: Database):
    made = ensure(source, rules(*ALL))
    source.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    waits = "SELECT FROM pg_locks WHERE relation = 'b'::regclass AND NOT granted"
    with (
        ThreadPoolExecutor() as polling,
        source.connect() as watch,
        source.connect(autocommit=False) as user,
    ):
        user.execute("SET LOCAL deadlock_timeout = '1ms'")  # whoever notices it is ended
        user.execute("LOCK TABLE b")
        change = polling.submit(poll, source, made, rules(*ALL))
        wait_until(lambda: change.done() or watch.execute(waits).fetchone() is not None)
        user.execute("ALTER TABLE a ADD v text")
        user.commit()

        assert TableName("public", "a") in change.result().added


# Rights.


def test_role_with_the_least_rights_suffices(source: Database):
    limited = follower(source)
    source.execute("CREATE TABLE a (id int PRIMARY KEY); ALTER TABLE a OWNER TO follower")

    made = ensure(limited, rules("a"))

    assert members(source) == ["public.a"]
    with connect_source(limited.dsn) as connection:
        assert read_identity(connection, made).timeline == 1
        assert len(drop_subscription(connection, "shop")) == 3


def test_role_without_replication_is_reported_and_leaves_nothing(source: Database):
    limited = follower(source, replication="NOREPLICATION")

    with pytest.raises(errors.SourcePrivilegeMissing, match="REPLICATION"):
        ensure(limited, rules(*ALL))

    assert publications(source) == []


def test_role_without_create_is_reported(source: Database):
    limited = follower(source)
    source.execute(f'REVOKE CREATE ON DATABASE "{source.name}" FROM follower')

    with pytest.raises(errors.SourcePrivilegeMissing, match="permission denied for database"):
        ensure(limited, rules(*ALL))


def test_table_of_another_owner_is_an_error_outright_and_left_out_by_wildcard(source: Database):
    limited = follower(source)
    source.execute("CREATE TABLE mine (id int PRIMARY KEY); ALTER TABLE mine OWNER TO follower")
    source.execute("CREATE TABLE theirs (id int PRIMARY KEY)")

    with pytest.raises(errors.SourcePrivilegeMissing, match="does not own") as caught:
        ensure(limited, rules("mine", "theirs"))
    assert caught.value.where == "public.theirs"
    made = ensure(limited, rules("public.*"))
    change = poll(limited, made, rules("public.*"))

    assert members(source) == ["public.mine"]
    assert [left.table for left in change.left_out] == [TableName("public", "theirs")]


def test_nothing_but_tables_of_others_is_an_error(source: Database):
    limited = follower(source)
    source.execute("CREATE TABLE theirs (id int PRIMARY KEY)")

    with pytest.raises(errors.SourcePrivilegeMissing, match="does not own"):
        ensure(limited, rules("public.*"))
