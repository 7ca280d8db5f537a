"""Tables of every shape are copied: kinds of tables, columns, types, names, and targets made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from test_types import SHAPES, TEXT_SHAPES, _fill, _run, _shipped, _texts, _wide

from fix_pipeline import ALWAYS_COPIED, assert_equal, rows, table_error, table_state, wait_for_state
from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]
    Small = Callable[[int], None]


def copied(pipeline: RunningPipeline) -> None:
    """Wait until everything is copied; nothing has failed on the way."""
    pipeline.catch_up(120)
    assert pipeline.deliveries[0].stopped_tables == {}


def wait_for_key(target: Database, name: str) -> None:
    """Foreign keys come last, once both tables stream."""
    query = "SELECT convalidated FROM pg_constraint WHERE conname = %s"
    wait_until(lambda: target.query(query, name) == [(True,)], what=f"foreign key {name}")


def test_partitioned_table_arrives_as_one_with_leaves_of_other_column_orders(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    source.execute(
        """
        CREATE TABLE p (id int, at date, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
        CREATE TABLE p_2023 PARTITION OF p FOR VALUES FROM ('2023-01-01') TO ('2024-01-01');
        CREATE TABLE odd (v text, gone int, at date NOT NULL, id int NOT NULL);
        ALTER TABLE odd DROP COLUMN gone;
        ALTER TABLE p ATTACH PARTITION odd FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
        CREATE TABLE sub PARTITION OF p FOR VALUES FROM ('2025-01-01') TO ('2026-01-01')
            PARTITION BY HASH (id);
        CREATE SCHEMA elsewhere;
        CREATE TABLE elsewhere.sub_0 PARTITION OF sub FOR VALUES WITH (MODULUS 2, REMAINDER 0);
        CREATE TABLE sub_1 PARTITION OF sub FOR VALUES WITH (MODULUS 2, REMAINDER 1);
        CREATE TABLE p_rest PARTITION OF p DEFAULT;
        INSERT INTO p SELECT g, '2022-06-01'::date + g % 1500, 'v' || g FROM generate_series(1, 3000) g;
        """
    )

    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    copied(pipeline)
    assert target.value("SELECT count(*) FROM p") == 3000
    assert_equal(source, target, "p")
    source.execute("UPDATE p SET at = at + 365 WHERE id % 10 = 0; DELETE FROM p WHERE id < 50")
    source.execute("INSERT INTO p VALUES (9000, '2024-05-05', 'n')")
    copied(pipeline)

    assert_equal(source, target, "p")
    for leaf in ("p_2023", "odd", "sub", "elsewhere.sub_0", "sub_1", "p_rest"):
        assert target.value("SELECT to_regclass(%s)::text", leaf) is None


@only_new
def test_partitioned_table_without_a_partition_is_copied_as_an_empty_one(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    copied(pipeline)
    source.execute(
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (1) TO (9); INSERT INTO p VALUES (1)"
    )
    pipeline.catch_up()
    assert target.query("SELECT id FROM p") == [(1,)]


@pytest.mark.long
def test_inheritance_parent_and_child_are_copied_each_with_its_own_rows(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE parent (id int PRIMARY KEY, v text)")
    source.execute("CREATE TABLE child (w text, PRIMARY KEY (id)) INHERITS (parent)")
    source.execute("CREATE TABLE unchosen (PRIMARY KEY (id)) INHERITS (parent)")
    source.execute("INSERT INTO parent SELECT g, 'p' FROM generate_series(1, 100) g")
    source.execute("INSERT INTO child SELECT g, 'c', 'w' FROM generate_series(201, 300) g")
    source.execute("INSERT INTO unchosen SELECT g, 'u' FROM generate_series(401, 500) g")

    tables = ("public.parent", "public.child")
    pipeline = make_pipeline(source, target, tables=tables, source_options=ALWAYS_COPIED)
    copied(pipeline)
    assert rows(target, "parent") == rows(source, "ONLY parent")
    assert_equal(source, target, "child")
    source.execute("UPDATE parent SET v = 'q' WHERE id % 2 = 0")
    copied(pipeline)

    assert rows(target, "parent") == rows(source, "ONLY parent")
    assert_equal(source, target, "child")


@pytest.mark.parametrize("identity", ["insert_only", "full"])
def test_table_without_a_key_arrives_with_its_equal_rows(
    source: Database,
    target: Database,
    make_pipeline: Make,
    small_ranges: Small,
    identity: str,
) -> None:
    small_ranges(1)
    source.execute("CREATE TABLE t (n int, v text)")
    options = dict(ALWAYS_COPIED)
    if identity == "full":
        source.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    else:
        options["insert_only"] = ["public.t"]
    source.execute("INSERT INTO t SELECT g % 7, repeat('x', 90) FROM generate_series(1, 1500) g")
    source.execute("INSERT INTO t SELECT NULL, NULL FROM generate_series(1, 5)")

    pipeline = make_pipeline(source, target, source_options=options)
    copied(pipeline)
    assert_equal(source, target, "t")
    source.execute("INSERT INTO t SELECT 3, 'more' FROM generate_series(1, 3)")
    if identity == "full":
        source.execute("DELETE FROM t WHERE ctid IN (SELECT ctid FROM t WHERE n = 3 LIMIT 2)")
        source.execute("UPDATE t SET v = 'y' WHERE n IS NULL")
    copied(pipeline)

    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
def test_empty_never_analysed_and_bloated_tables_are_copied(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    source.execute("CREATE TABLE empty (id int PRIMARY KEY)")
    source.execute("CREATE TABLE unseen (id int PRIMARY KEY) WITH (autovacuum_enabled = false)")
    source.execute("INSERT INTO unseen SELECT generate_series(1, 2000)")
    source.execute(
        "CREATE TABLE bloated (id int PRIMARY KEY, v text) WITH (autovacuum_enabled = false)"
    )
    source.execute("INSERT INTO bloated SELECT g, repeat('x', 200) FROM generate_series(1, 2000) g")
    source.execute("DELETE FROM bloated WHERE id % 400 <> 0")
    source.execute("CREATE TABLE emptied (id int PRIMARY KEY) WITH (autovacuum_enabled = false)")
    source.execute("INSERT INTO emptied SELECT generate_series(1, 2000); DELETE FROM emptied")
    source.execute(
        "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY); INSERT INTO unlogged VALUES (1)"
    )

    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    copied(pipeline)

    tables = ("empty", "unseen", "bloated", "emptied")
    assert_equal(source, target, *tables)
    assert {table_state(target, name) for name in tables} == {"streaming"}
    assert target.value("SELECT count(*) FROM bloated") == 5
    assert table_state(target, "unlogged") is None, "what is in no WAL cannot be followed"


def test_generated_and_identity_columns_are_copied_with_equal_values(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    kind = "VIRTUAL" if source.value("SHOW server_version_num") >= "180000" else "STORED"
    source.execute(
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int,"
        " stored int GENERATED ALWAYS AS (a * 2) STORED, n int GENERATED BY DEFAULT AS IDENTITY,"
        f" other text GENERATED ALWAYS AS (a || '%') {kind}, s serial)"
    )
    source.execute("INSERT INTO t (a) SELECT generate_series(1, 300)")
    source.execute("INSERT INTO t (id, a, n) OVERRIDING SYSTEM VALUE VALUES (-5, NULL, 3)")
    # The target's own may be ALWAYS as well.
    for database in (source, target):
        database.execute(
            "CREATE TABLE ready (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)"
        )
    source.execute("INSERT INTO ready (v) SELECT 'v' FROM generate_series(1, 300)")

    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    copied(pipeline)
    assert_equal(source, target, "t", "ready")
    source.execute("UPDATE t SET a = a + 1 WHERE id < 50; INSERT INTO ready (v) VALUES ('w')")
    copied(pipeline)

    assert_equal(source, target, "t", "ready")


def test_objects_on_generated_columns_are_made_by_the_copy(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    is_new = source.value("SHOW server_version_num") >= "180000"
    virtual = "v int GENERATED ALWAYS AS (a * 3) VIRTUAL, CHECK (v > 0)," if is_new else ""
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int,"
        f" {virtual} g int GENERATED ALWAYS AS (a * 2) STORED, CONSTRAINT g_more CHECK (g > a),"
        " CONSTRAINT g_once UNIQUE (g));"
        "CREATE INDEX by_g ON t (g, id); CREATE UNIQUE INDEX by_more ON t ((g + 1)) WHERE g > 2;"
        "CREATE INDEX with_g ON t (a) INCLUDE (g); INSERT INTO t VALUES (1, 1), (2, 2)"
    )

    copied(make_pipeline(source, target, source_options=ALWAYS_COPIED))

    there = (
        "SELECT indexdef FROM pg_indexes WHERE tablename = 't' UNION ALL"
        " SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conrelid = 't'::regclass AND contype <> 'n' ORDER BY 1"
    )
    assert target.query(there) == source.query(there)
    generated = (
        "SELECT attname, attgenerated FROM pg_attribute WHERE attrelid = 't'::regclass ORDER BY 1"
    )
    assert target.query(generated) == source.query(generated)
    assert_equal(source, target, "t")


@only_new
def test_sequences_stand_where_the_sources_stood_so_that_the_target_can_take_over(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id serial PRIMARY KEY, n int GENERATED BY DEFAULT AS IDENTITY)")
    source.execute("INSERT INTO t SELECT FROM generate_series(1, 300)")

    copied(make_pipeline(source, target, source_options=ALWAYS_COPIED))

    # After the state has moved on: sequences and statistics are the last that a copy does.
    wait_until(
        lambda: target.value("SELECT last_value FROM t_id_seq") >= 300,
        what="the sequence to be set",
    )
    [(key, number)] = target.query("INSERT INTO t DEFAULT VALUES RETURNING id, n")
    assert key > 300
    assert number > 300


def test_dropped_columns_wide_rows_and_values_out_of_line_are_copied(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    source.execute(
        "CREATE TABLE t (gone int, id int, also text DEFAULT 'x', v text, w bytea, z jsonb);"
        "ALTER TABLE t DROP COLUMN gone; ALTER TABLE t ADD PRIMARY KEY (id);"
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL;"
        "INSERT INTO t (id, v, w, z) SELECT g, repeat(md5(g::text), g * 20),"
        " decode(repeat(md5(g::text), g), 'hex'), jsonb_build_object('k', repeat('j', g * 100))"
        " FROM generate_series(1, 200) g;"
        "ALTER TABLE t DROP COLUMN also; ALTER TABLE t ADD COLUMN late int DEFAULT 42"
    )

    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    copied(pipeline)
    assert_equal(source, target, "t")
    source.execute("UPDATE t SET late = 43 WHERE id % 3 = 0")
    copied(pipeline)

    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
def test_table_of_1500_columns_is_copied(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    columns = ", ".join(f"c{number} int" for number in range(1500))
    source.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    values = ", ".join(f"g + {number}" if number % 7 else "NULL" for number in range(1500))
    source.execute(f"INSERT INTO t SELECT g, {values} FROM generate_series(1, 50) g")

    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    copied(pipeline)

    assert_equal(source, target, "t")


@pytest.mark.long
@only_new
def test_value_of_100_megabytes_is_copied(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w bytea)")
    source.execute(
        "INSERT INTO t VALUES (1, repeat('0123456789', 10000000), NULL), (2, 'x', '\\x00')"
    )

    copied(make_pipeline(source, target, source_options=ALWAYS_COPIED))

    digest = "SELECT id, md5(v), length(v), w FROM t ORDER BY id"
    assert target.query(digest) == source.query(digest)


# aclitem has no binary form, and Postgres does not read its own binary form of an empty tsquery.
AWKWARD = {"aclitem", "tsquery"}


@pytest.mark.parametrize("are_awkward", [False, pytest.param(True)])
def test_every_type_that_postgres_ships_is_copied_as_it_is(
    source: Database, target: Database, make_pipeline: Make, are_awkward: bool
) -> None:
    columns = {
        name: _texts(source, name)
        for name in sorted(_shipped(source))
        if (name in AWKWARD) == are_awkward
    }
    # Binary where every type of a table is one of Postgres's own: each by itself, and all together.
    alone = {f'"one_{name}"': {name: texts} for name, texts in columns.items()}
    statements = [*_wide("every", columns, "PRIMARY KEY"), *_fill("every", columns)]
    for table, one in alone.items():
        bare = table.strip('"')
        statements += [*_wide(bare, one, "PRIMARY KEY"), *_fill(bare, one)]
    _run(source, statements)
    source.execute("CREATE TABLE shapes (id int PRIMARY KEY, n int8[], w text[], d numeric(5,2)[])")
    for number, text in enumerate(SHAPES):
        source.execute("INSERT INTO shapes VALUES (%s, %s, NULL, %s)", number, text, text)
    for number, text in enumerate(TEXT_SHAPES):
        source.execute("INSERT INTO shapes VALUES (%s, NULL, %s)", 100 + number, text)

    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up(180)

    stopped = {str(name): why for name, why in pipeline.deliveries[0].stopped_tables.items()}
    differing = [
        table for table in ("every", "shapes", *alone) if rows(target, table) != rows(source, table)
    ]
    assert (stopped, differing) == ({}, [])


@pytest.mark.long
@only_new
def test_names_of_objects_are_copied_as_names_not_as_numbers_of_the_source(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE filler (id int PRIMARY KEY)")
    for database in (source, target):
        database.execute("CREATE TYPE mood AS ENUM ('sad')")
        database.execute("CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    target.execute("CREATE TABLE pushes_numbers_on (id int)")
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, c regclass, k regtype, p regprocedure, n regnamespace)"
    )
    source.execute("INSERT INTO t VALUES (1, 't', 'mood', 'f()', 'public')")
    for database in (source, target):
        database.execute("DROP TYPE mood")
        database.execute("CREATE TYPE mood AS ENUM ('sad')")
    source.execute("UPDATE t SET k = 'mood'")

    copied(make_pipeline(source, target, source_options=ALWAYS_COPIED))

    assert_equal(source, target, "t")


def test_types_that_people_make_are_made_at_the_target_and_copied(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        """
        CREATE SCHEMA "t %s{}";
        CREATE TYPE "t %s{}"."Mood's" AS ENUM ('sad', 'it''s ok', 'a,b', '"', '\\', '', 'żółć');
        CREATE DOMAIN short AS varchar(5) CHECK (VALUE <> 'bad');
        CREATE DOMAIN moods AS "t %s{}"."Mood's"[];
        CREATE TYPE pair AS (a int, "B c" text);
        CREATE TYPE nested AS (p pair, ps pair[], m "t %s{}"."Mood's", s numeric(4,1));
        CREATE TYPE span AS RANGE (SUBTYPE = float8);
        CREATE TABLE "t %s{}"."Odd ""name"" %s" ("id %s" int PRIMARY KEY, "select" "t %s{}"."Mood's",
            moods moods, list "t %s{}"."Mood's"[], short short, pair pair, nested nested, span span,
            "ż" text);
        INSERT INTO "t %s{}"."Odd ""name"" %s" VALUES
          (1, 'sad', '{sad,NULL,"a,b","\\"","\\\\",""}', '{"it''s ok",NULL}', 'y', '(1,"a ""b"" (c), \\\\ ")',
           '("(2,)","{""(3,x)"",NULL}",żółć,99.9)', '[1.5,NaN)', E'\\t\\\\.'),
          (2, '', '{}', '{}', '', '(,)', '(,,,)', 'empty', '\\N'),
          (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
        """
    )

    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    copied(pipeline)
    assert_equal(source, target, '"t %s{}"."Odd ""name"" %s"')
    source.execute('UPDATE "t %s{}"."Odd ""name"" %s" SET "select" = \'a,b\'')
    copied(pipeline)

    assert_equal(source, target, '"t %s{}"."Odd ""name"" %s"')
    kind = 'SELECT pg_typeof("select")::text FROM "t %s{}"."Odd ""name"" %s" LIMIT 1'
    assert target.value(kind) == source.value(kind)


@only_new
def test_chosen_columns_and_another_schema_are_kept_to(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text, secret text, b text)")
    source.execute("CREATE INDEX ON t (secret); CREATE INDEX t_b ON t (b)")
    source.execute("INSERT INTO t SELECT g, 'a' || g, 'secret', 'b' FROM generate_series(1, 500) g")
    source.execute("CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t)")
    source.execute("INSERT INTO u SELECT g, g FROM generate_series(1, 500) g")

    sink = {"schema": "Other", "tables": {"public.t": {"columns": ["b", "id", "a"]}}}
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED, sink=sink)
    copied(pipeline)
    source.execute("UPDATE t SET a = 'x', secret = 'other' WHERE id < 10")
    copied(pipeline)

    here = source.query("SELECT id, a, b FROM t ORDER BY id")
    assert target.query('SELECT id, a, b FROM "Other".t ORDER BY id') == here
    names = (
        "SELECT attname FROM pg_attribute WHERE attrelid = '\"Other\".t'::regclass AND attnum > 0"
    )
    assert {name for (name,) in target.query(names)} == {"id", "a", "b"}
    assert target.value("SELECT to_regclass('public.t')") is None
    wait_for_key(target, "u_t_fkey")
    assert target.value("SELECT indexdef FROM pg_indexes WHERE indexname = 't_b'")


@pytest.mark.long
def test_target_made_by_hand_with_other_types_and_columns_takes_the_copy(
    source: Database, target: Database, make_pipeline: Make, small_ranges: Small
) -> None:
    small_ranges(1)
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, v text, missing text, m numeric(9,2), f real)"
    )
    source.execute(
        "INSERT INTO t SELECT g, g, 'v' || g, 'm', g / 3.0, g / 3.0 FROM generate_series(1, 700) g"
    )
    target.execute(
        "CREATE TABLE t (extra int DEFAULT 5, v varchar(9), id bigint PRIMARY KEY, n bigint, m numeric, f text,"
        " stamped timestamptz NOT NULL DEFAULT now())"
    )

    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    copied(pipeline)
    query = "SELECT id, n, v, m, f::text FROM t ORDER BY id"
    assert target.query(query) == source.query(query)
    source.execute(
        "UPDATE t SET n = n + 1, missing = 'x' WHERE id % 3 = 0; DELETE FROM t WHERE id = 1"
    )
    copied(pipeline)

    assert target.query(query) == source.query(query)
    assert target.query("SELECT DISTINCT extra FROM t") == [(5,)]
    assert target.value("SELECT count(*) FROM t WHERE stamped IS NULL") == 0


@pytest.mark.long
@only_new
def test_target_made_by_hand_without_a_key_column_of_the_source_says_so(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    target.execute("CREATE TABLE t (v text)")

    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    pipeline.catch_up()
    source.execute("UPDATE t SET v = 'c' WHERE id = 1")
    pipeline.catch_up()

    [(name, why)] = pipeline.deliveries[0].stopped_tables.items()
    assert str(name) == "public.t"
    assert "PEN-507" in why


INDEXES = "SELECT indexname, replace(indexdef, 'public.', '') FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
CONSTRAINTS = (
    "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace = 'public'::regnamespace AND contype <> 'n' ORDER BY 1, 2"
)


def shop(source: Database) -> None:
    source.execute(
        """
        CREATE TABLE customer (id serial PRIMARY KEY, email text NOT NULL UNIQUE, age int CHECK (age > 0));
        CREATE TABLE purchase (id int PRIMARY KEY, customer int REFERENCES customer ON DELETE CASCADE,
            parent int REFERENCES purchase ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED, at timestamptz);
        CREATE INDEX purchase_at ON purchase (at DESC) WHERE parent IS NULL;
        CREATE INDEX customer_email ON customer (lower(email)) INCLUDE (age);
        INSERT INTO customer (email, age) SELECT 'e' || g, g FROM generate_series(1, 500) g;
        INSERT INTO purchase SELECT g, g % 500 + 1, nullif(g / 2, 0), now() FROM generate_series(1, 1500) g;
        """
    )


def test_indexes_and_constraints_are_made_after_the_rows(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    shop(source)
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    # Written to all the time that keys are being made.
    source.execute("INSERT INTO customer (email) SELECT 'n' || g FROM generate_series(1, 50) g")
    source.execute("INSERT INTO purchase SELECT 5000 + g, 500 + g, 1 FROM generate_series(1, 50) g")
    copied(pipeline)
    for key in ("purchase_customer_fkey", "purchase_parent_fkey"):
        wait_for_key(target, key)
    source.execute(
        "DELETE FROM customer WHERE id < 20; UPDATE purchase SET id = -id WHERE id > 5040"
    )
    copied(pipeline)

    assert_equal(source, target, "customer", "purchase")
    assert target.query(INDEXES) == source.query(INDEXES)
    assert target.query(CONSTRAINTS) == source.query(CONSTRAINTS)
    assert target.query("SELECT notes FROM penstock.tables WHERE notes <> ''") == []


@pytest.mark.long
@only_new
def test_only_the_key_is_made_when_create_indexes_is_false(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    shop(source)
    pipeline = make_pipeline(
        source, target, source_options=ALWAYS_COPIED, sink={"create_indexes": False}
    )
    copied(pipeline)
    source.execute("UPDATE customer SET age = age + 1")
    copied(pipeline)

    assert_equal(source, target, "customer", "purchase")
    assert [name for name, _ in target.query(INDEXES)] == ["customer_pkey", "purchase_pkey"]
    kinds = "SELECT DISTINCT contype FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n'"
    assert target.query(kinds) == [("p",)]


@pytest.mark.long
@only_new
def test_table_that_was_made_by_hand_is_given_no_index_and_no_key(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    shop(source)
    target.execute("CREATE TABLE customer (id int PRIMARY KEY, email text, age int)")
    target.execute("CREATE INDEX own ON customer (age)")

    copied(make_pipeline(source, target, source_options=ALWAYS_COPIED))

    assert_equal(source, target, "customer", "purchase")
    names = "SELECT indexname FROM pg_indexes WHERE tablename = 'customer' ORDER BY 1"
    assert target.query(names) == [("customer_pkey",), ("own",)]


@only_new
def test_index_that_cannot_be_made_is_reported_and_keeps_nothing_back(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE FUNCTION odd(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 % 2'")
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    source.execute("CREATE INDEX t_odd ON t (odd(v)); CREATE INDEX t_v ON t (v)")
    source.execute("INSERT INTO t SELECT g, g FROM generate_series(1, 100) g")

    copied(make_pipeline(source, target, source_options=ALWAYS_COPIED))

    assert_equal(source, target, "t")
    assert "t_odd" in target.value("SELECT notes FROM penstock.tables WHERE table_name = 't'")
    assert target.value("SELECT to_regclass('t_v')::text") == "t_v"


@only_new
def test_identity_by_an_index_and_identity_full_beside_a_key_are_copied_and_followed(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        """
        CREATE TABLE by_index (id int PRIMARY KEY, u text NOT NULL, v text);
        CREATE UNIQUE INDEX by_index_u ON by_index (u);
        ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_u;
        CREATE TABLE full_key (id int PRIMARY KEY, v text);
        ALTER TABLE full_key REPLICA IDENTITY FULL;
        INSERT INTO by_index SELECT g, 'u' || g, 'v' FROM generate_series(1, 300) g;
        INSERT INTO full_key SELECT g, 'v' FROM generate_series(1, 300) g;
        """
    )
    pipeline = make_pipeline(source, target, source_options=ALWAYS_COPIED)
    copied(pipeline)
    assert_equal(source, target, "by_index", "full_key")
    source.execute("UPDATE by_index SET id = id + 1000, v = 'w' WHERE id < 50")
    source.execute(
        "UPDATE full_key SET id = id + 1000 WHERE id < 50; DELETE FROM full_key WHERE id = 60"
    )
    copied(pipeline)

    assert_equal(source, target, "by_index", "full_key")


@pytest.mark.long
@only_new
def test_foreign_leaf_fails_its_table_by_name_and_the_others_are_copied(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        f"""
        CREATE EXTENSION postgres_fdw;
        CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw
            OPTIONS (dbname '{target.name}', port '{target.server.port}', host '127.0.0.1');
        CREATE TABLE p (id int, v text) PARTITION BY RANGE (id);
        CREATE TABLE near PARTITION OF p FOR VALUES FROM (0) TO (100);
        CREATE FOREIGN TABLE far_away PARTITION OF p FOR VALUES FROM (100) TO (200) SERVER far;
        CREATE TABLE ok (id int PRIMARY KEY);
        INSERT INTO ok VALUES (1);
        """
    )
    pipeline = make_pipeline(
        source, target, source_options={**ALWAYS_COPIED, "insert_only": ["public.p"]}
    )
    pipeline.catch_up()

    assert_equal(source, target, "ok")
    wait_for_state(target, "p", "failed")
    assert "PEN-219" in table_error(target, "p")
    assert "far_away" in table_error(target, "p")


@pytest.mark.long
@only_new
def test_target_that_is_partitioned_takes_the_copy(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 1000) g")
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY HASH (id)")
    for number in range(3):
        target.execute(
            f"CREATE TABLE t{number} PARTITION OF t FOR VALUES WITH (MODULUS 3, REMAINDER {number})"
        )

    pipeline = make_pipeline(source, target, tables=("public.t",), source_options=ALWAYS_COPIED)
    copied(pipeline)
    source.execute("DELETE FROM t WHERE id % 2 = 0; UPDATE t SET id = id + 5000 WHERE id < 100")
    wait_for_state(target, "t", "streaming")
    copied(pipeline)

    assert_equal(source, target, "t")
