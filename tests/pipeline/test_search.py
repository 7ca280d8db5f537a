"""From Postgres through Spark to a search server: documents are what the rows are, whatever happened on the way."""

from __future__ import annotations

import json
import random
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from fix_pipeline import INITIAL
from fix_postgres import only_new
from fix_wait import wait_until
from penstock.run.status import read_status

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database
    from fix_search import SearchServer

    Make = Callable[..., RunningPipeline]

pytestmark = only_new


@pytest.fixture
def sink(search_server: SearchServer) -> dict[str, Any]:
    """A sink with indexes of this test's own."""
    search_server.call("DELETE", "/penstock")
    return {
        "kind": "search",
        "url": search_server.url,
        "index": f"t{uuid.uuid4().hex[:8]}-{{schema}}-{{table}}",
    }


def alias_of(sink: dict[str, Any], table: str) -> str:
    return sink["index"].replace("{schema}", "public").replace("{table}", table)


def wanted(source: Database, table: str, key: str = "id::text") -> dict[str, Any]:
    """The rows as the source has them, as JSON by `_id`."""
    return dict(source.query(f"SELECT {key}, to_jsonb(t) FROM {table} t"))


def assert_same(
    server: SearchServer, sink: dict[str, Any], source: Database, table: str, key: str = "id::text"
) -> None:
    found, rows = server.rows(alias_of(sink, table)), wanted(source, table, key)
    assert found.keys() == rows.keys()
    differing = [(found[one], rows[one]) for one in rows if found[one] != rows[one]]
    assert not differing, f"{len(differing)} documents differ, such as {differing[0]}"


def test_documents_are_what_the_rows_are(
    source: Database, make_pipeline: Make, search_server: SearchServer, sink: dict[str, Any]
) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, n int, big text)")
    source.execute("ALTER TABLE orders ALTER big SET STORAGE EXTERNAL")
    source.execute("CREATE TABLE lines (a int, b text, n numeric, PRIMARY KEY (a, b))")
    source.execute(
        "INSERT INTO orders SELECT g, 0, repeat(g::text, 3000) FROM generate_series(1, 80) g"
    )
    pipeline = make_pipeline(source, sink=sink, source_options=INITIAL)
    wait_until(lambda: search_server.hits(alias_of(sink, "orders")), what="the copy")
    assert len(search_server.hits(alias_of(sink, "orders"))) == 80, "half a copy is searched"

    source.execute(
        "INSERT INTO lines SELECT g, 'l,\\' || g, g / 7.0 FROM generate_series(1, 100) g"
    )
    for number in range(5):
        source.execute(f"UPDATE orders SET n = {number} WHERE id % 3 = {number % 3}")
    source.execute("UPDATE orders SET id = id + 1000 WHERE id <= 10")
    source.execute("UPDATE orders SET n = -1 WHERE id = 1001")
    source.execute("DELETE FROM orders WHERE id BETWEEN 20 AND 30")
    pipeline.catch_up()

    assert_same(search_server, sink, source, "orders")
    key = r"a || ',' || replace(replace(b, '\', '\\'), ',', '\,')"
    assert_same(search_server, sink, source, "lines", key)

    source.execute("TRUNCATE orders; INSERT INTO orders VALUES (7, 7, 'after')")
    pipeline.catch_up()
    assert_same(search_server, sink, source, "orders")
    pipeline.stop()
    (stands,) = read_status(pipeline.file).sinks.values()
    assert {name: each.state for name, each in stands.tables.items()} == {
        "public.orders": "streaming",
        "public.lines": "streaming",
    }


def test_values_are_found_as_what_they_are(
    source: Database, make_pipeline: Make, search_server: SearchServer, sink: dict[str, Any]
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a bigint, b numeric(8,2), c numeric, d timestamptz, e text,"
        " f jsonb, g int[], h point, i bytea, j bool, k float8, l date, m text[], n uuid)"
    )
    # What is flattened is no part of Elasticsearch that packages have.
    has_flat = search_server.version.engine == "opensearch"
    json_as = "flat" if has_flat else "text"
    pipeline = make_pipeline(source, sink={**sink, "point_as": "geo", "json_as": json_as})
    source.execute(
        """INSERT INTO t VALUES (1, 9223372036854775807, 1234.50, 12345678901234567890.123456789,
        '2024-02-29 01:02:03.000004+02', E'Say "no"\\tż', '{"a": {"b": "deep"}}', '{1,NULL,3}', '(13.4,52.5)',
        '\\x00ff', true, 'NaN', 'infinity', '{"a,b",c}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11')"""
    )
    source.execute("INSERT INTO t (id) VALUES (2)")
    pipeline.catch_up()

    index = alias_of(sink, "t")
    search_server.must("POST", f"/{index}/_refresh")
    for query in (
        {"term": {"a": 9223372036854775807}},
        {"range": {"b": {"gte": 1234.5, "lte": 1234.5}}},
        {"term": {"c": "12345678901234567890.123456789"}},
        {"range": {"d": {"gte": "2024-02-28T23:02:03Z", "lt": "2024-02-28T23:02:04Z"}}},
        {"match": {"e.text": "no"}},
        {"term": {"f.a.b": "deep"}} if has_flat else {"match": {"f": "deep"}},
        {"term": {"g": 3}},
        {"geo_distance": {"distance": "1km", "h": {"lat": 52.5, "lon": 13.4}}},
        {"term": {"i": "AP8="}},
        {"term": {"j": True}},
        {"term": {"m": "a,b"}},
        {"term": {"n": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}},
    ):
        found = search_server.must("POST", f"/{index}/_search", {"query": query})["hits"]["hits"]
        assert [each["_id"] for each in found] == ["1"], query
    one, two = (search_server.rows(index)[each] for each in ("1", "2"))
    assert one["k"] == "NaN"
    assert one["l"] == "infinity"
    assert one["i"] == "AP8="
    assert one["e"] == 'Say "no"\tż'
    assert two == {"id": 2, **dict.fromkeys("abcdefghijklmn")}


def test_ranges_are_found_by_what_they_hold(
    source: Database, make_pipeline: Make, search_server: SearchServer, sink: dict[str, Any]
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int4range, b int8range, c daterange, d tsrange, e tstzrange,"
        " f numrange)"
    )
    source.execute(
        """INSERT INTO t VALUES (1, '[1,5]', '[1,9223372036854775807)', '[2024-02-01,2024-02-29]',
        '(2024-02-29 10:00:00.0001,2024-02-29 10:00:00.0009)', '[2024-02-29 10:00+02,infinity)',
        '[0.10000000000000000001,0.2)')"""
    )
    # Elasticsearch 7 refuses years of five digits in ranges.
    far = "9999" if search_server.version.engine == "elasticsearch" else "+12024"
    pipeline = make_pipeline(source, sink=sink, source_options=INITIAL)
    source.execute(
        f"""INSERT INTO t VALUES (2, '(,0]', 'empty', '[0044-03-15 BC,0044-03-16 BC)',
        '[2024-02-29 11:00,2024-02-29 12:00]', '[{far.lstrip("+")}-02-28,)', '(,)')"""
    )
    source.execute("INSERT INTO t (id) VALUES (3)")
    pipeline.catch_up()
    index = alias_of(sink, "t")
    wait_until(lambda: len(search_server.hits(index)) == 3, what="copy and stream")

    for field, value, wanted in (
        ("a", 5, ["1"]),
        ("a", 6, []),
        ("a", -2147483648, ["2"]),
        ("b", 9223372036854775806, ["1"]),
        ("c", "2024-02-29", ["1"]),
        ("c", "2024-03-01", []),
        ("c", "-0043-03-15", ["2"]),
        ("d", "2024-02-29T10:00:00.000", ["1"]),
        ("d", "2024-02-29T12:00:00.000", ["2"]),
        ("d", "2024-02-29T12:00:00.001", []),
        ("e", "2024-02-29T07:59:59.999Z", []),
        ("e", "2024-02-29T08:00:00.000Z", ["1"]),
        ("e", f"{far}-02-28T00:00:00Z", ["1", "2"]),
        ("f", "[0.10000000000000000001,0.2)", ["1"]),
    ):
        query = {"query": {"term": {field: value}}, "sort": ["id"]}
        found = search_server.must("POST", f"/{index}/_search", query)["hits"]["hits"]
        assert [each["_id"] for each in found] == wanted, (field, value)
    rows = search_server.rows(index)
    assert rows["1"]["e"] == {"gte": "2024-02-29T08:00:00+00:00"}
    assert rows["2"]["a"] == {"lt": 1}
    assert rows["2"]["b"] is None
    assert rows["3"] == {"id": 3, **dict.fromkeys("abcdef")}


@pytest.mark.long
def test_index_that_has_ranges_as_keywords_serves_until_the_table_is_copied_anew(
    source: Database, make_pipeline: Make, search_server: SearchServer, sink: dict[str, Any]
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a int4range)")
    source.execute("INSERT INTO t VALUES (1, '[1,5]')")
    index = alias_of(sink, "t")
    pipeline = make_pipeline(source, sink={**sink, "range_as": "keyword"}, source_options=INITIAL)
    wait_until(lambda: search_server.hits(index), what="the copy")
    assert search_server.rows(index)["1"]["a"] == "[1,6)"

    pipeline.stop()
    pipeline = make_pipeline(source, sink=sink, source_options=INITIAL)
    source.execute("INSERT INTO t VALUES (2, '[7,8]')")
    ranges = {"1": {"gte": 1, "lt": 6}, "2": {"gte": 7, "lt": 9}}
    wait_until(
        lambda: {one: row["a"] for one, row in search_server.rows(index).items()} == ranges,
        what="a copy with ranges",
    )


def test_table_whose_index_somebody_removed_is_copied_anew(
    source: Database, make_pipeline: Make, search_server: SearchServer, sink: dict[str, Any]
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    source.execute("INSERT INTO t SELECT g, 0 FROM generate_series(1, 50) g")
    pipeline = make_pipeline(source, sink=sink, source_options=INITIAL)
    index = alias_of(sink, "t")
    wait_until(lambda: search_server.hits(index), what="the copy")
    source.execute("UPDATE t SET n = 1 WHERE id = 7")
    pipeline.catch_up()

    for removed in search_server.indexes(f"{index}.*"):
        search_server.must("DELETE", f"/{removed}")
    source.execute("UPDATE t SET n = 2 WHERE id = 8")
    wait_until(
        lambda: search_server.rows(index) == wanted(source, "t"), what="a copy of all the rows"
    )
    source.execute("DELETE FROM t WHERE id = 9")
    pipeline.catch_up()
    assert_same(search_server, sink, source, "t")


def test_long_key_is_hashed_and_kept_as_a_field(
    source: Database, make_pipeline: Make, search_server: SearchServer, sink: dict[str, Any]
) -> None:
    source.execute("CREATE TABLE t (id text PRIMARY KEY, n int)")
    pipeline = make_pipeline(source, sink=sink)
    source.execute(
        "INSERT INTO t VALUES (repeat('k', 600), 1), (repeat('ż', 256), 2), ('short', 3)"
    )
    source.execute("UPDATE t SET n = 10 + n; DELETE FROM t WHERE n = 12")
    pipeline.catch_up()

    found = {
        one["id"]: (key, one["n"]) for key, one in search_server.rows(alias_of(sink, "t")).items()
    }
    assert found["short"] == ("short", 13)
    key, n = found["k" * 600]
    assert key.startswith("sha256:")
    assert (len(key), n, len(found)) == (71, 11, 2)


def test_table_with_replica_identity_full_needs_no_old_document(
    source: Database, make_pipeline: Make, search_server: SearchServer, sink: dict[str, Any]
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, n int, big text)")
    source.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL, REPLICA IDENTITY FULL")
    source.execute("CREATE TABLE keyless (n int)")
    source.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    # While its ids are counted up two rows have the same: documents would take one another away.
    source.execute("CREATE TABLE ranks (id int PRIMARY KEY DEFERRABLE, name text)")
    source.execute("ALTER TABLE ranks REPLICA IDENTITY FULL")
    pipeline = make_pipeline(source, sink=sink)
    source.execute("INSERT INTO t SELECT g, 0, repeat('x', 3000) FROM generate_series(1, 9) g")
    source.execute("INSERT INTO keyless VALUES (1)")
    source.execute("INSERT INTO ranks VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    source.execute("UPDATE ranks SET id = id + 1")
    pipeline.catch_up()
    for number in range(1, 5):  # as if a person had removed them
        search_server.must("DELETE", f"/{alias_of(sink, 't')}/_doc/{number}")
    source.execute("UPDATE t SET n = 1; UPDATE t SET id = id + 100 WHERE id = 2")
    source.execute("DELETE FROM t WHERE id = 3; UPDATE keyless SET n = 2")
    pipeline.catch_up()

    assert_same(search_server, sink, source, "t")
    assert search_server.hits(alias_of(sink, "keyless")) == []
    assert search_server.hits(alias_of(sink, "ranks")) == [], "none, rather than two of three"


@pytest.mark.long
def test_random_changes_across_restarts(
    source: Database, make_pipeline: Make, search_server: SearchServer, sink: dict[str, Any]
) -> None:
    dice = random.Random(16)
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric(9,2), arr int[], big text, s text)"
    )
    source.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    pipeline = make_pipeline(source, sink=sink, source_options=INITIAL)
    for number in range(60):
        statements = [_statement(dice, number * 10 + each) for each in range(dice.randint(1, 6))]
        source.execute(";".join(statements))
        if number % 20 == 9:
            pipeline.stop()
            source.execute(_statement(dice, 1000 + number))
            pipeline.start()
        if number % 20 == 15:
            pipeline.catch_up()
            assert_same(search_server, sink, source, "t")
    pipeline.catch_up()
    assert_same(search_server, sink, source, "t")


def _statement(dice: random.Random, number: int) -> str:
    low = dice.randint(1, 400)
    where = f"id BETWEEN {low} AND {low + dice.choice((1, 5, 60))}"
    big = f"repeat(md5(id::text || '{number}'), 90)"
    insert = (
        f"INSERT INTO t SELECT g, {number}, ARRAY[g, NULL], repeat(md5(g::text), 90), 'é{number}'"
        f" FROM generate_series({low}, {low + dice.choice((1, 40))}) g ON CONFLICT DO NOTHING"
    )
    back = (
        f"UPDATE t SET id = id - 1000, s = 'back' WHERE id BETWEEN {low + 1000} AND {low + 1060}"
        " AND NOT EXISTS (SELECT FROM t o WHERE o.id = t.id - 1000)"
    )
    return dice.choices(
        (
            insert,
            f"UPDATE t SET n = {number} / 7.0 WHERE {where}",
            f"UPDATE t SET big = {big}, arr = NULL WHERE {where}",
            f"DELETE FROM t WHERE {where}",
            f"UPDATE t SET id = id + 1000 WHERE {where} AND NOT EXISTS (SELECT FROM t o WHERE o.id = t.id + 1000)",
            back,
            "TRUNCATE t",
        ),
        (30, 30, 15, 10, 6, 6, 1),
    )[0]


@pytest.mark.long
def test_tables_that_change_are_followed(
    source: Database, make_pipeline: Make, search_server: SearchServer, sink: dict[str, Any]
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    source.execute("INSERT INTO t SELECT g, g FROM generate_series(1, 5) g")
    sink = {**sink, "dropped_tables": "delete"}
    pipeline = make_pipeline(source, sink=sink, source_options=INITIAL)

    def same() -> bool:
        return search_server.rows(alias_of(sink, "t")) == wanted(source, "t")

    wait_until(same, what="the copy")
    (first,) = search_server.indexes(f"{alias_of(sink, 't')}.*")
    source.execute("ALTER TABLE t ADD b text")
    source.execute("INSERT INTO t VALUES (6, 6, 'six')")
    pipeline.catch_up()
    assert search_server.rows(alias_of(sink, "t"))["6"] == {"id": 6, "a": 6, "b": "six"}
    assert search_server.indexes(f"{alias_of(sink, 't')}.*") == [first], (
        "a column needs no other index"
    )
    source.execute("ALTER TABLE t ALTER a TYPE bigint; INSERT INTO t VALUES (9, 9000000000, 'n')")
    pipeline.catch_up()
    assert search_server.rows(alias_of(sink, "t"))["9"] == {"id": 9, "a": 9000000000, "b": "n"}
    assert search_server.indexes(f"{alias_of(sink, 't')}.*") == [first], "nor does a wider type"

    for statement in (
        "ALTER TABLE t ALTER a TYPE numeric(15,0) USING a * 2",
        "ALTER TABLE t ALTER b TYPE varchar(90) USING upper(b)",
        "ALTER TABLE t ALTER b TYPE text USING b || '!'",  # wider, but computed
        "ALTER TABLE t RENAME a TO c",
        "ALTER TABLE t ALTER c TYPE text USING 'n' || c; INSERT INTO t VALUES (7, 'seven', 'x')",
        "ALTER TABLE t ADD d int DEFAULT 8",
    ):
        source.execute(statement)
        wait_until(same, 60, f"documents after {statement}")
        pipeline.catch_up()
        indexes = f"{alias_of(sink, 't')}.*"
        wait_until(lambda: len(search_server.indexes(indexes)) == 1, what="the old index to go")  # noqa: B023

    source.execute("ALTER TABLE t RENAME TO u; INSERT INTO u VALUES (8, 'eight', 'x')")
    pipeline.catch_up()
    assert_same(search_server, sink, source, "u")
    assert search_server.hits(alias_of(sink, "t")) == []

    source.execute("BEGIN; ALTER TABLE u RENAME TO v; ALTER TABLE v RENAME c TO e; COMMIT")
    wait_until(
        lambda: search_server.rows(alias_of(sink, "v")) == wanted(source, "v"),
        60,
        "documents of a table that was renamed with its column",
    )
    pipeline.catch_up()

    source.execute("CREATE TABLE t (id int PRIMARY KEY, z bool); INSERT INTO t VALUES (1, true)")
    pipeline.catch_up()
    wait_until(same, what="another table of the name")
    source.execute("DROP TABLE v")
    pipeline.catch_up()
    assert search_server.hits(alias_of(sink, "v")) == []
    search_server.must("POST", "/penstock/_refresh")
    logged = search_server.must(
        "POST",
        "/penstock/_search?size=100",
        {"query": {"term": {"acked": True}}, "sort": ["created_at"]},
    )["hits"]["hits"]
    assert {each["_source"].get("table_name") for each in logged} >= {"public.t", "public.u"}
    assert any("rename_column" in each["_source"]["state"] for each in logged)


def schema_log(server: SearchServer, schema: str = "public") -> list[dict[str, Any]]:
    """What the index says of a schema, oldest first, with the columns of its tables."""
    if server.call("POST", "/penstock/_refresh")[0] == 404:
        return []
    query = {"query": {"term": {"schema_name": schema}}, "sort": ["version"]}
    hits = server.must("POST", "/penstock/_search?size=100", query)["hits"]["hits"]
    found = [each["_source"] for each in hits]
    for each in found:
        each["columns"] = {
            table["name"]: [column["name"] for column in table["columns"]]
            for table in json.loads(each["schema"])["tables"]
        }
    return found


@pytest.mark.parametrize("tracking", ["triggers", "relation"])
def test_schema_log_has_the_whole_schema_of_each_version(
    source: Database,
    make_pipeline: Make,
    search_server: SearchServer,
    sink: dict[str, Any],
    tracking: str,
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a int, secret text)")
    source.execute("CREATE TABLE other (id int PRIMARY KEY, b text)")
    options = {**INITIAL, "schema": {"tracking": tracking}}
    rules = [{"route": {"table": "public.t", "drop": ["secret"]}}]
    pipeline = make_pipeline(source, sink=sink, source_options=options, modifiers=rules)
    wait_until(lambda: schema_log(search_server), what="the schema at the start")
    first = schema_log(search_server)[-1]
    assert first["version"] == 1
    assert first["acked"]
    assert first["columns"] == {"other": ["id", "b"], "t": ["id", "a"]}, "as rules leave it"

    source.execute("ALTER TABLE t ADD c text; INSERT INTO t VALUES (1, 1, 's', 'x')")
    pipeline.catch_up()
    source.execute("ALTER TABLE t RENAME c TO d; INSERT INTO t VALUES (2, 2, 's', 'y')")
    pipeline.catch_up()

    log = schema_log(search_server)
    assert [each["version"] for each in log] == [1, 2, 3]
    assert [each["columns"]["t"][-1] for each in log] == ["a", "c", "d"]
    assert all(each["columns"]["other"] == ["id", "b"] for each in log), "all of it, each time"
    if tracking == "triggers":
        last = "SELECT max(version) FROM penstock.schema_log"
        wait_until(lambda: source.query(last) == [(3,)], what="version 3 at the source, as here")

    pipeline.stop()
    pipeline.start()
    source.execute("INSERT INTO t VALUES (3, 3, 's', 'z')")
    pipeline.catch_up()
    assert schema_log(search_server) == log, "nothing is new after a restart"
    source.execute("DROP TABLE t; DROP TABLE other")
    source.execute("CREATE SCHEMA s; CREATE TABLE s.x (id int PRIMARY KEY)")
    source.execute("INSERT INTO s.x VALUES (1)")
    pipeline.catch_up()
    if tracking == "triggers":
        assert schema_log(search_server)[-1]["columns"] == {}
        assert schema_log(search_server, "s")[-1]["columns"] == {"x": ["id"]}


@pytest.mark.long
def test_ids_stay_when_columns_are_renamed(
    source: Database, make_pipeline: Make, search_server: SearchServer, sink: dict[str, Any]
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    source.execute("INSERT INTO t VALUES (1, 'one')")
    pipeline = make_pipeline(source, sink={**sink, "fields": "ids"}, source_options=INITIAL)
    index = alias_of(sink, "t")
    wait_until(lambda: search_server.hits(index), what="the copy")
    before = search_server.indexes(f"{index}.*")
    source.execute("ALTER TABLE t RENAME a TO b; INSERT INTO t VALUES (2, 'two')")
    pipeline.catch_up()

    oid = source.query("SELECT 't'::regclass::oid::int")[0][0]
    assert search_server.rows(index) == {
        "1": {f"{oid}-1": 1, f"{oid}-2": "one"},
        "2": {f"{oid}-1": 2, f"{oid}-2": "two"},
    }
    for name in ("a", "b"):
        query = {"query": {"terms": {name: ["one", "two"]}}}
        assert search_server.must("POST", f"/{index}/_search", query)["hits"]["total"]["value"] == 2
    assert search_server.indexes(f"{index}.*") == before


@pytest.mark.long
def test_resync_goes_into_an_index_of_its_own(
    source: Database, make_pipeline: Make, search_server: SearchServer, sink: dict[str, Any]
) -> None:
    from penstock.run.requests import resync_tables

    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    source.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 50) g")
    pipeline = make_pipeline(source, sink=sink, source_options=INITIAL)
    index = alias_of(sink, "t")
    wait_until(lambda: len(search_server.hits(index)) == 50, what="the copy")
    pipeline.catch_up()
    before = search_server.indexes(f"{index}.*")
    search_server.must("DELETE", f"/{index}/_doc/7")

    resync_tables(pipeline.file, ["public.t"])
    wait_until(lambda: search_server.indexes(f"{index}.*") != before, what="another index")
    wait_until(lambda: search_server.rows(index) == wanted(source, "t"), what="the other copy")
    pipeline.catch_up()
    wait_until(lambda: len(search_server.indexes(f"{index}.*")) == 1, what="the old index to go")


@pytest.mark.long
def test_two_tables_do_not_share_an_index(
    source: Database, make_pipeline: Make, search_server: SearchServer, sink: dict[str, Any]
) -> None:
    source.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)")
    source.execute("CREATE TABLE b (id int PRIMARY KEY)")
    routes = [{"route": {"table": f"public.{each}", "target": "public.x"}} for each in ("a", "b")]
    # Rules are for tables that are followed.
    only_a = {"modifiers": routes[:1], "source_options": {**INITIAL, "tables": ["public.a"]}}
    pipeline = make_pipeline(source, sink=sink, **only_a)
    wait_until(lambda: search_server.hits(alias_of(sink, "x")), what="the copy")
    pipeline.catch_up()
    pipeline.stop()

    other = make_pipeline(source, sink=sink, modifiers=routes, source_options=INITIAL)
    source.execute("INSERT INTO a VALUES (2)")
    wait_until(lambda: len(search_server.hits(alias_of(sink, "x"))) == 2, what="the first table")
    assert sorted(search_server.rows(alias_of(sink, "x"))) == ["1", "2"]
    other.stop()


@pytest.mark.long
def test_tables_of_a_schema_are_searched_as_one(
    source: Database, make_pipeline: Make, search_server: SearchServer, sink: dict[str, Any]
) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, n int)")
    source.execute("CREATE TABLE notes (id text PRIMARY KEY, big text, _table int)")
    source.execute("ALTER TABLE notes ALTER big SET STORAGE EXTERNAL")
    source.execute("INSERT INTO orders VALUES (1, 10)")
    source.execute("INSERT INTO notes VALUES ('1', repeat('x', 9000), 3)")
    whole = sink["index"].removesuffix("-{table}")
    pipeline = make_pipeline(source, sink={**sink, "index": whole}, source_options=INITIAL)
    alias = whole.replace("{schema}", "public")

    def found(name: str = alias) -> list[tuple[str, str]]:
        return sorted((each["_source"]["_table"], each["_id"]) for each in search_server.hits(name))

    wait_until(lambda: len(found()) == 2, what="both copies")
    source.execute("CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (7)")
    source.execute("UPDATE notes SET _table = 4; INSERT INTO orders VALUES (2, 20)")
    pipeline.catch_up()
    assert found() == [("late", "7"), ("notes", "1"), ("orders", "1"), ("orders", "2")]
    assert found(f"{alias}.orders") == [("orders", "1"), ("orders", "2")]
    (note,) = search_server.rows(f"{alias}.notes").values()
    assert note == {"id": "1", "big": "x" * 9000, "%5ftable": 4, "_table": "notes"}
    query = {"query": {"term": {"_table": "orders"}}}
    assert search_server.must("POST", f"/{alias}/_search", query)["hits"]["total"]["value"] == 2

    # What tells documents apart follows a rename; a truncated table leaves the others alone.
    source.execute("ALTER TABLE orders RENAME TO sales")
    wait_until(lambda: ("sales", "2") in found(), what="documents with the new name")
    source.execute("INSERT INTO sales VALUES (3, 30); TRUNCATE late")
    pipeline.catch_up()
    assert found() == [("notes", "1"), ("sales", "1"), ("sales", "2"), ("sales", "3")]
    assert found(f"{alias}.sales") == [("sales", "1"), ("sales", "2"), ("sales", "3")]
    pipeline.stop()


def test_vectors_stop_their_table_alone_where_the_server_has_none(
    source: Database, make_pipeline: Make, search_server: SearchServer, sink: dict[str, Any]
) -> None:
    # As pgvector has it, as far as a search sink sees: the name, the text, and a modifier that is the dimensions.
    source.execute(
        "CREATE TYPE vector;"
        "CREATE FUNCTION vector_in(cstring) RETURNS vector AS 'textin' LANGUAGE internal IMMUTABLE STRICT;"
        "CREATE FUNCTION vector_out(vector) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE STRICT;"
        "CREATE TYPE vector (INPUT = vector_in, OUTPUT = vector_out,"
        " TYPMOD_IN = bittypmodin, TYPMOD_OUT = bittypmodout);"
        "CREATE TABLE t (id int PRIMARY KEY, at vector(3), any_size vector);"
        "CREATE TABLE plain (id int PRIMARY KEY, any_size vector);"
        "INSERT INTO t VALUES (1, '[1,2,3]', '[1]'), (2, NULL, NULL);"
        "INSERT INTO plain VALUES (1, '[1,2]')"
    )
    pipeline = make_pipeline(source, sink=sink, source_options=INITIAL)

    def stopped() -> str | None:
        (status,) = read_status(pipeline.file).sinks.values()
        entry = status.tables.get("public.t")
        return entry.error if entry is not None else None

    error = wait_until(stopped, 60, "the table to stop")
    assert error.startswith("PEN-520")
    assert "vector_as: text" in error
    wait_until(
        lambda: search_server.rows(alias_of(sink, "plain")) == wanted(source, "plain"),
        60,
        "the other table",
    )
    pipeline.stop()

    as_text = {**sink, "vector_as": "text", "index": f"x{sink['index']}"}
    make_pipeline(source, sink=as_text, source_options=INITIAL, name="other")
    wait_until(
        lambda: search_server.rows(alias_of(as_text, "t")) == wanted(source, "t"), 60, "as text"
    )
