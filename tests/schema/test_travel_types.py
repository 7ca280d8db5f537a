"""Types travel with the tables that need them: real servers, the whole way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fix_pipeline import INITIAL, assert_equal, table_error, table_state, wait_for_state
from fix_postgres import only_15, only_new

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

TYPES = (
    "SELECT typname, typtype, format_type(typbasetype, typtypmod) FROM pg_type t"
    " WHERE typnamespace = 'public'::regnamespace AND typcategory <> 'A' AND typrelid NOT IN"
    " (SELECT oid FROM pg_class WHERE relkind <> 'c') ORDER BY 1"
)

ANEW = (
    "ALTER TABLE t ALTER v TYPE numeric; DROP DOMAIN m; CREATE DOMAIN m AS numeric(12,4);"
    "ALTER TABLE t ALTER v TYPE m; INSERT INTO t VALUES (2, 1.2345, '(2,two)')"
)


@only_new
def test_types_are_followed_by_definition_and_names_that_are_taken_stop_one_table(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE DOMAIN m AS numeric(8,2); CREATE TYPE ct AS (x int, y text);"
        "CREATE TABLE t (id int PRIMARY KEY, v m, c ct); INSERT INTO t VALUES (1, 1.25, '(1,one)');"
        "CREATE TABLE u (id int PRIMARY KEY)"
    )
    target.execute("CREATE TABLE status (id int)")
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    pipeline.catch_up()

    for statement in ANEW.split(";"):
        source.execute(statement)
    source.execute(
        "ALTER TYPE ct ADD ATTRIBUTE z int; UPDATE t SET c = '(3,three,33)' WHERE id = 1"
    )
    source.execute("CREATE TYPE status AS ENUM ('new'); ALTER TYPE status ADD VALUE 'old'")
    source.execute("CREATE TYPE _ct AS ENUM ('new'); DROP TYPE _ct")
    pipeline.catch_up()
    assert_equal(source, target, "t")
    assert target.value("SELECT v::text FROM t WHERE id = 2") == "1.2345"
    assert target.query(TYPES) == [row for row in source.query(TYPES) if row[0] != "status"]

    source.execute("ALTER TABLE u ADD s status; INSERT INTO u VALUES (1, 'new')")
    source.execute("INSERT INTO t VALUES (3, 0.0001, NULL)")
    pipeline.catch_up()
    wait_for_state(target, "u", "failed")
    assert_equal(source, target, "t")
    assert "at the target public.status is the row type of a table" in table_error(target, "u")

    pipeline.stop()
    pipeline.start()
    source.execute("ALTER TABLE t DROP c; INSERT INTO t VALUES (4, 4)")
    pipeline.catch_up()
    assert_equal(source, target, "t")
    assert table_state(target, "u") == "failed"
    target.execute("ALTER TABLE status RENAME TO mine")
    wait_for_state(target, "u", "streaming")
    assert_equal(source, target, "u")
    assert [row[0] for row in target.query(TYPES)] == ["m", "status"]


@pytest.mark.long
@pytest.mark.parametrize("tracking", ["triggers", "relation"])
@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        ("DOMAIN m AS numeric(8,2)", "DOMAIN m AS numeric(12,4)", "1.2345"),
        ("TYPE m AS ENUM ('a', 'b')", "TYPE m AS ENUM ('c', 'a')", "c"),
        ("TYPE m AS (x int)", "TYPE m AS (x int, y text)", "(1,one)"),
        ("TYPE m AS RANGE (SUBTYPE = int)", "TYPE m AS RANGE (SUBTYPE = numeric)", "[1.5,2.5)"),
        ("DOMAIN m AS int", "TYPE m AS ENUM ('a', 'c')", "c"),
    ],
)
def test_type_is_made_anew_in_one_transaction(
    source: Database,
    target: Database,
    make_pipeline: Make,
    tracking: str,
    first: str,
    second: str,
    value: str,
) -> None:
    source.execute(f"CREATE {first}; CREATE TABLE t (id int PRIMARY KEY, v m, w m[])")
    source.execute("INSERT INTO t VALUES (1, NULL, '{}')")
    options: dict[str, Any] = {**INITIAL, "schema": {"tracking": tracking}}
    pipeline = make_pipeline(source, target, source_options=options)
    pipeline.catch_up()

    with source.connect(autocommit=False) as connection:
        connection.execute("ALTER TABLE t ALTER v TYPE text, ALTER w TYPE text")
        connection.execute(f"DROP {first.split(maxsplit=1)[0]} m")
        connection.execute(f"CREATE {second}")
        connection.execute("ALTER TABLE t ALTER v TYPE m USING v::m, ALTER w TYPE m[] USING w::m[]")
        connection.execute("INSERT INTO t VALUES (2, %s, ARRAY[%s]::m[])", (value, value))
        connection.commit()
    source.execute("INSERT INTO t VALUES (3, %s)", value)
    pipeline.catch_up()

    wait_for_state(target, "t", "streaming")
    assert_equal(source, target, "t")
    assert target.query(TYPES) == source.query(TYPES)


@pytest.mark.long
@only_new
@pytest.mark.parametrize("snapshot", ["initial", "never"])
def test_table_and_type_are_dropped_and_made_anew(
    source: Database, target: Database, make_pipeline: Make, snapshot: str
) -> None:
    source.execute("CREATE DOMAIN m AS varchar(3); CREATE TABLE t (id int PRIMARY KEY, v m)")
    pipeline = make_pipeline(source, target, source_options={"snapshot": snapshot})
    source.execute("INSERT INTO t VALUES (1, 'abc')")
    pipeline.catch_up()

    source.execute("DROP TABLE t; DROP DOMAIN m; CREATE DOMAIN m AS varchar(9)")
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v m); INSERT INTO t VALUES (1, 'abcdefghi')"
    )
    pipeline.catch_up()
    assert_equal(source, target, "t")
    source.execute("DROP TABLE t")
    pipeline.catch_up()

    assert target.query(TYPES) == []


WORDS = (
    "CREATE DOMAIN word AS text COLLATE loose DEFAULT 'none';"
    'CREATE TYPE words AS RANGE (SUBTYPE = text, COLLATION = "C", MULTIRANGE_TYPE_NAME = all_words);'
    "CREATE TYPE spoken AS (a text COLLATE loose, b int);"
    "CREATE TABLE t (id int PRIMARY KEY, w word UNIQUE, r words, m all_words, s spoken);"
    "INSERT INTO t VALUES (1, 'Ab', '[B,a)', '{[B,a)}', '(Cd,1)')"
)
LOOSE = "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
NOTES = "SELECT coalesce(notes, '') FROM penstock.tables WHERE table_name = %s"


@pytest.mark.long
@only_15  # the embedded server has no ICU
@pytest.mark.parametrize("has_collation", [True, False])
def test_collations_defaults_and_multiranges_of_types_travel(
    source: Database, target: Database, make_pipeline: Make, *, has_collation: bool
) -> None:
    source.execute(LOOSE)
    source.execute(WORDS)
    if has_collation:
        target.execute(LOOSE)
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    pipeline.catch_up()
    wait_for_state(target, "t", "streaming")
    assert_equal(source, target, "t")
    lacking = [
        "type public.spoken has attribute a with collation default, wanted public.loose",
        "type public.word has collation default, wanted public.loose",
    ]
    assert sorted(target.value(NOTES, "t").splitlines()) == ([] if has_collation else lacking)

    source.execute("INSERT INTO t (id, r, m) VALUES (2, '[C,b)', '{[C,b)}')")
    source.execute("ALTER DOMAIN word SET DEFAULT 'some'")
    source.execute("ALTER TYPE spoken ADD ATTRIBUTE c text COLLATE loose")
    source.execute("INSERT INTO t VALUES (3, 'Ef', NULL, NULL, '(x,2,y)')")
    source.execute("CREATE TABLE u (id int PRIMARY KEY, m all_words, w word)")
    source.execute("INSERT INTO u VALUES (1, '{[D,c)}')")
    pipeline.catch_up()

    assert_equal(source, target, "t", "u")
    assert target.value("SELECT typdefault FROM pg_type WHERE typname = 'word'") == "'some'::text"
    equal = "SELECT count(*)::int FROM t WHERE w = 'aB' OR (s).a = 'cD' OR (s).c = 'Y'"
    assert target.value(equal) == (source.value(equal) if has_collation else 0)
    expected = set() if has_collation else {lacking[1]}
    assert set(target.value(NOTES, "u").splitlines()) == expected
    if has_collation:
        assert target.value(NOTES, "t") == ""


@pytest.mark.long
@only_new
def test_history_keeps_the_attribute_that_the_source_drops_until_a_person_has_said_so(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TYPE ct AS (x int, y text); CREATE TABLE h (id int PRIMARY KEY, v ct);"
        "CREATE TABLE t (id int PRIMARY KEY, v ct); CREATE TABLE plain (id int PRIMARY KEY);"
        "INSERT INTO h VALUES (1, '(1,past)'); INSERT INTO t VALUES (1, '(1,one)')"
    )
    pipeline = make_pipeline(
        source, target, source_options=INITIAL, sink={"tables": {"public.h": {"kind": "history"}}}
    )
    pipeline.catch_up()
    source.execute("UPDATE h SET v = '(2,now)'; UPDATE t SET v = '(2,two)'")
    pipeline.catch_up()

    source.execute("ALTER TYPE ct DROP ATTRIBUTE y")
    source.execute("INSERT INTO t VALUES (2, '(3)'); INSERT INTO plain VALUES (1)")
    source.execute("UPDATE h SET v = '(3)'")
    pipeline.catch_up()
    for table in ("h", "t"):
        wait_for_state(target, table, "failed")
    assert "type public.ct has lost or narrowed y at the source" in table_error(target, "h")
    assert "keep what the source's lose: public.h" in table_error(target, "t")
    assert_equal(source, target, "plain")
    assert target.query("SELECT (v).y FROM h ORDER BY 1") == [("now",), ("past",)]

    target.execute("ALTER TYPE ct DROP ATTRIBUTE y CASCADE")
    for table in ("h", "t"):
        wait_for_state(target, table, "streaming")
    assert_equal(source, target, "t")
    assert target.query("SELECT v::text FROM h ORDER BY 1") == [("(1)",), ("(2)",), ("(3)",)]


OF_EARLIER = """
    ALTER DOMAIN word DROP DEFAULT;
    UPDATE penstock.types SET shape = shape - ARRAY['collation', 'default', 'multirange', 'not_null'];
    UPDATE penstock.tables SET notes = NULL, shape = jsonb_set(shape, '{types}', (
        SELECT jsonb_agg(one - ARRAY['collation', 'default', 'multirange', 'not_null'])
        FROM jsonb_array_elements(shape -> 'types') AS one))
"""


@pytest.mark.long
@only_new
def test_types_that_an_earlier_version_made_are_noted_and_completed_after_an_upgrade(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE COLLATION own FROM \"C\"; CREATE DOMAIN word AS text COLLATE own DEFAULT 'none';"
        "CREATE TABLE t (id int PRIMARY KEY, w word); INSERT INTO t VALUES (1, 'one')"
    )
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    pipeline.catch_up()
    pipeline.stop()
    target.execute(OF_EARLIER)
    source.execute("DROP EVENT TRIGGER penstock_sql_drop")  # as if the functions were older

    pipeline.start()
    source.execute("INSERT INTO t VALUES (2, 'two')")
    pipeline.catch_up()

    assert table_state(target, "t") == "streaming"
    assert_equal(source, target, "t")
    assert target.value(NOTES, "t") == "type public.word has collation default, wanted public.own"
    assert target.value("SELECT typdefault FROM pg_type WHERE typname = 'word'") == "'none'::text"
