"""Changes of tables at the worst moments, in the worst order, with the worst names."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest
from test_travel import shape_of

from fix_pipeline import INITIAL, rows, slowly, table_error, table_state, wait_for_state
from fix_postgres import only_new
from fix_wait import wait_until
from penstock.schema.catalog import read_shapes
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database
    from penstock.schema.shape import TableShape

    Make = Callable[..., RunningPipeline]

TRIGGERS: dict[str, Any] = {"schema": {"tracking": "triggers"}}
COPIED: dict[str, Any] = {"source_options": INITIAL}
SETTLED = ("streaming", "removed")
USER_TABLES = """
SELECT nspname, relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE relkind IN ('r', 'p') AND NOT relispartition AND nspname <> 'penstock'
  AND nspname <> 'information_schema' AND nspname !~ '^pg_' ORDER BY 1, 2
"""


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def everything(database: Database) -> dict[tuple[str, str], Any]:
    """Every table of a person, with its shape and its rows."""
    found = {}
    with database.connect() as connection:
        tables = connection.execute(USER_TABLES).fetchall()
        connection.execute("SET search_path = ''")
        shapes = read_shapes(connection, [TableName(*each) for each in tables])
        for schema, table in tables:
            query = f"SELECT to_jsonb(t)::text FROM {quoted(schema)}.{quoted(table)} t"
            found[schema, table] = {
                "shape": picture(shapes[TableName(schema, table)]),
                "rows": sorted(connection.execute(query).fetchall()),
            }
    return found


def picture(shape: TableShape) -> dict[str, Any]:
    """A table as its catalog has it, less what differs between any two servers."""
    return {
        "columns": {
            c.name: (c.type, c.not_null, c.default, c.identity, c.expression, c.collation)
            for c in shape.columns
        },
        "constraints": {c.name: c.definition for c in shape.constraints},
        "foreign_keys": {
            k.name: (k.referenced_schema, k.referenced_name, k.on_delete, k.is_valid)
            for k in shape.foreign_keys
        },
        "indexes": {i.name: i.definition for i in shape.indexes},
        "types": {t.name: [label.name for label in t.labels] for t in shape.types},
    }


def states(target: Database) -> dict[tuple[str, str], tuple[str, str | None]]:
    """How each table stands at the target, and why."""
    found = target.query("SELECT schema_name, table_name, state, error FROM penstock.tables")
    return {(schema, table): (state, error) for schema, table, state, error in found}


def settle(pipeline: RunningPipeline, target: Database) -> None:
    """Wait until all is delivered, and no table is detached."""
    pipeline.catch_up()
    wait_until(
        lambda: pipeline.failures or all(s in SETTLED for s, _ in states(target).values()),
        what="every table to stream",
    )
    pipeline.catch_up()


def assert_same(pipeline: RunningPipeline, source: Database, target: Database) -> None:
    """Both sides have the same tables, shapes and rows; foreign keys may come a little later."""
    try:
        settle(pipeline, target)
    except BaseException:
        print(states(target))
        raise
    wanted = everything(source)
    deadline = time.monotonic() + 5
    while everything(target) != wanted and time.monotonic() < deadline:
        pipeline.catch_up()
    found = everything(target)
    assert list(found) == list(wanted)
    for table, each in wanted.items():
        assert found[table] == each, table


# By name: the statements before the pipeline starts, and after it, each compared on its own.
SCENARIOS: dict[str, tuple[str, list[str]]] = {
    "swap": (
        (
            "CREATE TABLE orders (id int PRIMARY KEY, v text); INSERT INTO orders VALUES (1, 'a');"
            "CREATE TABLE orders_new (id bigint PRIMARY KEY, v text, n int);"
            "INSERT INTO orders_new VALUES (1, 'a', 1), (2, 'b', 2)"
        ),
        [
            (
                "BEGIN; INSERT INTO orders VALUES (3, 'before');"
                "ALTER TABLE orders RENAME TO orders_old; ALTER TABLE orders_new RENAME TO orders;"
                "INSERT INTO orders VALUES (3, 'after', 3); INSERT INTO orders_old VALUES (4, 'old');"
                "COMMIT"
            ),
            "INSERT INTO orders VALUES (5, 'five', 5); DELETE FROM orders_old WHERE id = 1",
            (
                "BEGIN; ALTER TABLE orders RENAME TO x; ALTER TABLE orders_old RENAME TO orders;"
                "ALTER TABLE x RENAME TO orders_old; UPDATE orders SET v = 'back'; COMMIT"
            ),
        ],
    ),
    "rename and a new one under the old name": (
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')",
        [
            (
                "BEGIN; ALTER TABLE t RENAME TO t_old; CREATE TABLE t (id int PRIMARY KEY, n int);"
                "INSERT INTO t VALUES (1, 10); UPDATE t_old SET v = 'kept'; COMMIT"
            ),
            "DROP TABLE t; ALTER TABLE t_old RENAME TO t; INSERT INTO t VALUES (2, 'b')",
        ],
    ),
    "drop and create under the same name": (
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        [
            "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (2, 'new')",
            (
                "BEGIN; INSERT INTO t VALUES (9, 'lost'); DROP TABLE t;"
                "CREATE TABLE t (v text PRIMARY KEY); INSERT INTO t VALUES ('x'); COMMIT"
            ),
            "BEGIN; DROP TABLE t; CREATE TABLE t (v text PRIMARY KEY); DROP TABLE t; COMMIT",
            "CREATE TABLE t (v int PRIMARY KEY); INSERT INTO t VALUES (1)",
        ],
    ),
    "columns that fill themselves": (
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 20)",
        [
            "ALTER TABLE t ADD a timestamptz NOT NULL DEFAULT now()",
            "ALTER TABLE t ADD b uuid DEFAULT gen_random_uuid()",
            "ALTER TABLE t ADD c serial; INSERT INTO t VALUES (21)",
            "ALTER TABLE t ADD d int GENERATED BY DEFAULT AS IDENTITY; INSERT INTO t VALUES (22)",
            "ALTER TABLE t ADD e int GENERATED ALWAYS AS (id * 2) STORED; UPDATE t SET id = id + 100",
            "ALTER TABLE t ADD f timestamptz DEFAULT clock_timestamp(), ADD g text DEFAULT 'x''y'",
            "ALTER TABLE t ADD h timestamptz DEFAULT now(), ALTER c TYPE bigint",
            (
                "BEGIN; ALTER TABLE t ADD i text DEFAULT current_user || now(); INSERT INTO t VALUES (999);"
                "ALTER TABLE t ALTER i DROP DEFAULT; INSERT INTO t VALUES (1000); COMMIT"
            ),
        ],
    ),
    "types": (
        (
            "CREATE TABLE t (id int PRIMARY KEY, n int, v varchar(5), d numeric(10,4), b bool);"
            "INSERT INTO t SELECT g, g, 'v' || g, g / 3.0, g % 2 = 0 FROM generate_series(1, 20) g"
        ),
        [
            "ALTER TABLE t ALTER n TYPE bigint, ALTER v TYPE varchar(50), ALTER d TYPE numeric(12,2)",
            "UPDATE t SET v = repeat('w', 50) WHERE id = 1",
            "ALTER TABLE t ALTER n TYPE text, ALTER b TYPE int USING b::int",
            "ALTER TABLE t ALTER n TYPE int USING n::int * 2",
            "ALTER TABLE t ALTER n TYPE int USING n + 1",
            (
                "BEGIN; ALTER TABLE t ALTER n TYPE int USING n + 1; INSERT INTO t VALUES (30, 30);"
                "ALTER TABLE t ALTER n TYPE int USING n + 1; UPDATE t SET n = 7 WHERE id = 30; COMMIT"
            ),
            "ALTER TABLE t ALTER v TYPE char(60); ALTER TABLE t ALTER v TYPE text",
            "ALTER TABLE t ALTER id TYPE numeric; DELETE FROM t WHERE id < 5",
        ],
    ),
    "types by the settings of a session": (
        (
            "CREATE TABLE t (id int PRIMARY KEY, a timestamptz, d date, i interval, f float8, y bytea);"
            "INSERT INTO t VALUES (1, '2024-05-05 12:00+00', '2024-05-06', '1 year 3 days', 0.1, '\\x00ff')"
        ),
        [
            "SET timezone = 'Asia/Tokyo'; ALTER TABLE t ALTER a TYPE timestamp",
            "SET timezone = 'America/New_York'; ALTER TABLE t ALTER a TYPE timestamptz",
            "SET datestyle = 'German'; ALTER TABLE t ALTER d TYPE text",
            "SET intervalstyle = 'iso_8601'; ALTER TABLE t ALTER i TYPE text",
            (
                "SET bytea_output = 'escape'; SET extra_float_digits = -10;"
                "ALTER TABLE t ALTER y TYPE text, ALTER f TYPE text"
            ),
        ],
    ),
    "partitions": (
        (
            "CREATE TABLE p (id int, d date, v text, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);"
            "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');"
            "INSERT INTO p VALUES (1, '2024-02-02', 'a')"
        ),
        [
            "ALTER TABLE p ADD n int DEFAULT 4; INSERT INTO p VALUES (2, '2024-03-03', 'b', 5)",
            (
                "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');"
                "INSERT INTO p VALUES (3, '2025-03-03', 'c', 6)"
            ),
            "ALTER TABLE p RENAME v TO w; ALTER TABLE p ALTER n TYPE bigint; UPDATE p SET n = n + 1",
            (
                "CREATE TABLE p3 (id int, d date, w text, n bigint, PRIMARY KEY (id, d));"
                "INSERT INTO p3 VALUES (9, '2026-01-01', 'nine', 9)"
            ),
            "ALTER TABLE p RENAME TO q; INSERT INTO q VALUES (7, '2024-07-07', 'seven', 7)",
            "ALTER TABLE q DROP n; CREATE INDEX i ON q (w); DELETE FROM q WHERE id = 1",
        ],
    ),
    "foreign keys": (
        (
            "CREATE TABLE parent (id int PRIMARY KEY, code text UNIQUE);"
            "CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES parent, c text REFERENCES parent (code));"
            "INSERT INTO parent VALUES (1, 'a'); INSERT INTO child VALUES (1, 1, 'a')"
        ),
        [
            "ALTER TABLE child DROP CONSTRAINT child_c_fkey",
            (
                "BEGIN; ALTER TABLE parent RENAME TO ancestor; ALTER TABLE ancestor RENAME id TO key;"
                "INSERT INTO ancestor VALUES (2, 'b'); INSERT INTO child VALUES (2, 2, 'b'); COMMIT"
            ),
            "ALTER TABLE child ADD FOREIGN KEY (c) REFERENCES ancestor (code) ON DELETE CASCADE NOT VALID",
            "ALTER TABLE child VALIDATE CONSTRAINT child_c_fkey",
            "DROP TABLE ancestor CASCADE; INSERT INTO child VALUES (3, 333, 'nobody')",
        ],
    ),
    "enum as key": (
        (
            "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN felt AS mood;"
            "CREATE TABLE t (m mood PRIMARY KEY, n int); INSERT INTO t VALUES ('sad', 1), ('ok', 2);"
            "CREATE TABLE u (f felt, n int PRIMARY KEY); INSERT INTO u VALUES ('sad', 1)"
        ),
        [
            "ALTER TYPE mood ADD VALUE 'so-so' BEFORE 'ok'",
            "INSERT INTO t VALUES ('so-so', 3); DELETE FROM t WHERE m = 'sad'; DELETE FROM u",
            "ALTER TYPE mood RENAME VALUE 'ok' TO 'it''s; fine'; UPDATE t SET n = n + 1",
            "ALTER TYPE mood RENAME TO feeling; INSERT INTO u VALUES ('so-so', 7)",
            "ALTER TYPE feeling ADD VALUE 'first' BEFORE 'sad'",
            "BEGIN; UPDATE t SET m = 'first' WHERE m = 'so-so'; ALTER TABLE t ADD x feeling[]; COMMIT",
            "ALTER TABLE t ALTER m TYPE text; UPDATE t SET m = m || '!'",
        ],
    ),
    "keys": (
        "CREATE TABLE t (id int PRIMARY KEY, v text NOT NULL); INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        [
            "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (v)",
            "UPDATE t SET v = v || v; DELETE FROM t WHERE id = 1",
            (
                "BEGIN; ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t REPLICA IDENTITY FULL;"
                "UPDATE t SET v = 'full'; INSERT INTO t VALUES (5, 'five'); COMMIT"
            ),
            "DELETE FROM t WHERE id = 5; INSERT INTO t VALUES (6, 'six')",
            (
                "ALTER TABLE t ADD PRIMARY KEY (id); ALTER TABLE t REPLICA IDENTITY DEFAULT;"
                "UPDATE t SET id = id + 10"
            ),
            (
                "CREATE UNIQUE INDEX other ON t (id, v); ALTER TABLE t DROP CONSTRAINT t_pkey,"
                " ADD CONSTRAINT pk PRIMARY KEY USING INDEX other; ALTER TABLE t REPLICA IDENTITY DEFAULT"
            ),
            "UPDATE t SET v = 'end' || id",
        ],
    ),
    "rows between": (
        (
            "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE o (id int PRIMARY KEY, t int);"
            "INSERT INTO t VALUES (1, 'a')"
        ),
        [
            (
                "BEGIN; INSERT INTO t VALUES (2, 'b'); SAVEPOINT a; ALTER TABLE t ADD x int DEFAULT 1;"
                "INSERT INTO t VALUES (3, 'c', 3); ROLLBACK TO a; INSERT INTO t VALUES (3, 'really');"
                "ALTER TABLE t ADD y text DEFAULT 'y'; UPDATE t SET y = y || id; INSERT INTO o VALUES (1, 2);"
                "SAVEPOINT b; DELETE FROM t WHERE id = 1; ALTER TABLE t DROP v; RELEASE b; COMMIT"
            ),
            (
                "BEGIN; ALTER TABLE t ADD z int; ALTER TABLE o RENAME t TO u; UPDATE t SET z = 1;"
                "TRUNCATE o; INSERT INTO o VALUES (4, 4); ALTER TABLE t DROP z; ROLLBACK"
            ),
            (
                "BEGIN; TRUNCATE t; ALTER TABLE t DROP y; INSERT INTO t VALUES (1); TRUNCATE o, t;"
                "ALTER TABLE t ADD v int; INSERT INTO t VALUES (1, 1), (2, 2); UPDATE t SET id = id + 1 WHERE id = 2; COMMIT"
            ),
            (
                "BEGIN; ALTER TABLE t ADD a int; ALTER TABLE t DROP a; ALTER TABLE t ADD a text;"
                "UPDATE t SET a = 'x'; ALTER TABLE t DROP a; ALTER TABLE t ADD a int DEFAULT 5; COMMIT"
            ),
        ],
    ),
    "schemas": (
        (
            "CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY, v text); INSERT INTO s.t VALUES (1, 'a');"
            "CREATE TABLE s.u (id int PRIMARY KEY REFERENCES s.t); CREATE TABLE k (id int PRIMARY KEY)"
        ),
        [
            "ALTER SCHEMA s RENAME TO r; INSERT INTO r.t VALUES (2, 'b'); INSERT INTO r.u VALUES (2)",
            "ALTER TABLE r.t SET SCHEMA public; INSERT INTO t VALUES (3, 'c'); INSERT INTO r.u VALUES (3)",
            "INSERT INTO k VALUES (1); DROP SCHEMA r CASCADE; INSERT INTO k VALUES (2)",
            "CREATE SCHEMA r CREATE TABLE t (id int PRIMARY KEY); INSERT INTO r.t VALUES (1)",
            (
                "BEGIN; CREATE SCHEMA z; CREATE TABLE z.a (id int PRIMARY KEY); INSERT INTO z.a VALUES (1);"
                "ALTER TABLE z.a SET SCHEMA r; DROP SCHEMA z; COMMIT"
            ),
        ],
    ),
}


SCENARIOS["domain over an enum as key"] = (
    (
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN felt AS mood;"
        "CREATE TABLE u (f felt, n int, PRIMARY KEY (f, n)); INSERT INTO u VALUES ('sad', 1)"
    ),
    ["INSERT INTO u VALUES ('ok', 1)", "DELETE FROM u WHERE f::mood = 'sad'"],
)
SCENARIOS["drop of tables that lead to one another"] = (
    (
        "CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY); INSERT INTO s.t VALUES (1);"
        "CREATE TABLE s.w (id int PRIMARY KEY REFERENCES s.t); INSERT INTO s.w VALUES (1);"
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY REFERENCES a);"
        "ALTER TABLE a ADD FOREIGN KEY (id) REFERENCES b"
    ),
    ["DROP TABLE a, b", "DROP SCHEMA s CASCADE"],
)
SCENARIOS["label added while no table has the type"] = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE t (id int PRIMARY KEY, m mood)",
    [
        "ALTER TABLE t DROP m",
        "ALTER TYPE mood ADD VALUE 'new' BEFORE 'sad'",
        "CREATE TABLE n (id int PRIMARY KEY, m mood DEFAULT 'new'); INSERT INTO n VALUES (1)",
    ],
)
SCENARIOS["foreign key to a table that moves"] = (
    (
        "CREATE SCHEMA other; CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p VALUES (1);"
        "CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p); INSERT INTO c VALUES (1, 1)"
    ),
    ["ALTER TABLE p ADD d int", "ALTER TABLE p SET SCHEMA other", "INSERT INTO c VALUES (2, 1)"],
)
SCENARIOS["indexes that REINDEX makes anew"] = (
    (
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int); CREATE INDEX i ON t (a);"
        "CREATE UNIQUE INDEX u ON t (b); INSERT INTO t VALUES (1, 1, 1)"
    ),
    [
        "REINDEX TABLE CONCURRENTLY t",
        "ALTER INDEX i RENAME TO j",
        "DROP INDEX u; INSERT INTO t VALUES (2, 1, 1)",
        "REINDEX INDEX CONCURRENTLY j",
        "DROP INDEX CONCURRENTLY j",
    ],
)
# Each in a transaction of its own: the first has the table copied again, the second comes meanwhile.
_COPIED_AGAIN = "BEGIN; ALTER TABLE t ADD {} uuid DEFAULT gen_random_uuid(); COMMIT;"
SCENARIOS["names that change while a table is copied again"] = (
    (
        "CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 9);"
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int, CONSTRAINT f FOREIGN KEY (a) REFERENCES p,"
        " CONSTRAINT g FOREIGN KEY (b) REFERENCES p, CONSTRAINT u UNIQUE (a, id), CONSTRAINT c CHECK (a > 0));"
        "CREATE INDEX i ON t (b); INSERT INTO t SELECT g, g, g FROM generate_series(1, 9) g"
    ),
    [
        _COPIED_AGAIN.format("v") + "BEGIN; ALTER TABLE t RENAME CONSTRAINT f TO h; COMMIT",
        (
            _COPIED_AGAIN.format("w") + "BEGIN; ALTER TABLE t RENAME CONSTRAINT c TO d;"
            "ALTER TABLE t RENAME CONSTRAINT u TO v; ALTER INDEX i RENAME TO j; COMMIT"
        ),
        (
            _COPIED_AGAIN.format("x") + "BEGIN; ALTER TABLE t RENAME CONSTRAINT h TO k;"
            "ALTER TABLE t RENAME CONSTRAINT g TO h; ALTER TABLE t RENAME CONSTRAINT k TO g; COMMIT"
        ),
        # A key may have the name of an index.
        _COPIED_AGAIN.format("y") + "BEGIN; ALTER TABLE t RENAME CONSTRAINT h TO j; COMMIT",
    ],
)
# One of each sort is enough while somebody waits.
QUICK = {"swap", "types", "foreign keys", "rows between"}
SOME_LONG = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in SCENARIOS
]
long_on_15 = pytest.mark.parametrize(
    "server", [pytest.param("15", marks=pytest.mark.long), "new"], indirect=True
)


@long_on_15
@pytest.mark.parametrize("name", SOME_LONG)
def test_both_sides_are_the_same_after_each_step(
    source: Database, target: Database, make_pipeline: Make, name: str
) -> None:
    before, steps = SCENARIOS[name]
    source.execute(before)
    pipeline = make_pipeline(source, target, **COPIED)
    settle(pipeline, target)
    for step in steps:
        print(step)
        source.execute(step)
        assert_same(pipeline, source, target)


@pytest.mark.long
@pytest.mark.parametrize("name", SCENARIOS)
def test_all_that_happened_while_stopped_is_made_up_for(
    source: Database, target: Database, make_pipeline: Make, name: str
) -> None:
    before, steps = SCENARIOS[name]
    source.execute(before)
    pipeline = make_pipeline(source, target, **COPIED)
    settle(pipeline, target)
    pipeline.stop()
    for step in steps:
        source.execute(step)
    pipeline.start()
    assert_same(pipeline, source, target)


@only_new
def test_dropped_table_leaves_no_trace_and_no_error(
    source: Database,
    target: Database,
    make_pipeline: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE k (id int PRIMARY KEY)")
    pipeline = make_pipeline(source, target, **COPIED)
    settle(pipeline, target)
    for number in range(6):
        source.execute(f"DROP TABLE t; INSERT INTO k VALUES ({number})")
        pipeline.catch_up()
        # Long enough for the list of tables to be read once more.
        source.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY)")
        wait_for_state(target, f"t{number}", "streaming")
        pipeline.catch_up()
        assert ("public", "t") not in states(target)
        source.execute(f"DROP TABLE t{number}; CREATE TABLE t (id int PRIMARY KEY)")
        pipeline.catch_up()
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


@long_on_15
@pytest.mark.parametrize(
    "undone",
    [
        "ALTER TABLE t DROP COLUMN keep",
        *(
            pytest.param(statement, marks=pytest.mark.long)
            for statement in ("ALTER TABLE t ALTER n TYPE int", "ALTER TABLE t ADD own int")
        ),
    ],
)
def test_savepoint_that_was_streamed_and_rolled_back_leaves_nothing(
    source: Database, target: Database, make_pipeline: Make, undone: str
) -> None:
    source.execute(f"ALTER DATABASE \"{source.name}\" SET logical_decoding_work_mem = '64kB'")
    source.execute("CREATE TABLE t (id int PRIMARY KEY, keep text, n numeric DEFAULT 1.25)")
    source.execute("INSERT INTO t SELECT g, 'k' || g FROM generate_series(1, 10) g")
    pipeline = make_pipeline(source, target, **COPIED)
    settle(pipeline, target)
    fill = "INSERT INTO t (id) SELECT g FROM generate_series({}, {}) g"
    with source.connect(autocommit=False) as connection:
        connection.execute(fill.format(100, 3000))
        connection.execute("SAVEPOINT s1")
        connection.execute(undone)
        connection.execute("SAVEPOINT s2")
        connection.execute(fill.format(5000, 9000))
        wait_until(lambda: list(pipeline.file.state.rglob("*.spool")), what="a spool of it")
        connection.execute(fill.format(10000, 11000))
        connection.execute("ROLLBACK TO s1")
        connection.execute("INSERT INTO t VALUES (-1, 'z', 2.5)")
        connection.commit()

    assert_same(pipeline, source, target)


@only_new
def test_large_streamed_transaction_with_changes_and_savepoints_arrives(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(f"ALTER DATABASE \"{source.name}\" SET logical_decoding_work_mem = '64kB'")
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pipeline = make_pipeline(source, target, **COPIED)
    settle(pipeline, target)
    fill = "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series({}, {}) g"
    with source.connect(autocommit=False) as connection:
        connection.execute(fill.format(1, 5000))
        connection.execute("ALTER TABLE t ADD n int DEFAULT 7")
        connection.execute("SAVEPOINT a")
        connection.execute(fill.format(5001, 9000))
        connection.execute("ALTER TABLE t DROP v, ADD gone text DEFAULT 'gone'")
        connection.execute("UPDATE t SET gone = 'x'")
        connection.execute("ROLLBACK TO a")
        connection.execute(fill.format(5001, 10000))
        connection.execute("ALTER TABLE t RENAME v TO w")
        connection.execute("UPDATE t SET w = 'y' WHERE id % 10 = 0")
        connection.execute("ALTER TABLE t ALTER n TYPE bigint")
        connection.execute("DELETE FROM t WHERE id % 7 = 0")
        connection.commit()
    assert_same(pipeline, source, target)


@pytest.mark.long
@only_new
def test_two_migrations_at_once_and_many_more_leave_versions_without_gaps(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY);"
        "CREATE TABLE c (id int PRIMARY KEY); CREATE TABLE d (id int PRIMARY KEY)"
    )
    pipeline = make_pipeline(source, target, **COPIED)
    settle(pipeline, target)
    failures: list[BaseException] = []

    def migrate(table: str) -> None:
        try:
            with source.connect(autocommit=False) as connection:
                for number in range(12):
                    connection.execute(f"INSERT INTO {table} (id) VALUES ({2 * number})")
                    connection.execute(f"ALTER TABLE {table} ADD c{number} int DEFAULT {number}")
                    connection.execute(f"INSERT INTO {table} (id) VALUES ({2 * number + 1})")
                    if number % 4 == 3:
                        connection.rollback()
                    else:
                        connection.commit()
        except BaseException as error:  # noqa: BLE001 - asserted on below
            failures.append(error)

    threads = [threading.Thread(target=migrate, args=(table,)) for table in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert_same(pipeline, source, target)
    query = "SELECT version FROM penstock.schema_log WHERE acked ORDER BY version"
    # The first describes all tables; one transaction of four was rolled back.
    wait_until(
        lambda: source.query(query) == [(number,) for number in range(1, 2 + 4 * 9)],
        what="every version to be acknowledged",
    )


@only_new
def test_migration_of_two_tables_in_two_open_transactions_follows_the_commits(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    pipeline = make_pipeline(source, target, **COPIED)
    settle(pipeline, target)
    with source.connect(autocommit=False) as one, source.connect(autocommit=False) as two:
        one.execute("ALTER TABLE a ADD x int")
        two.execute("SET LOCAL lock_timeout = '20s'")
        two.execute("ALTER TABLE b ADD y int")
        two.execute("INSERT INTO b VALUES (1, 1)")
        one.execute("INSERT INTO a VALUES (1, 1)")
        done = threading.Thread(target=one.commit)
        done.start()
        two.execute("ALTER TABLE b RENAME y TO z")
        two.commit()
        done.join()
    assert_same(pipeline, source, target)


@only_new
def test_statement_does_not_undo_what_others_did_to_tables_it_only_reports(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE users (id int PRIMARY KEY, nick text);"
        "CREATE TABLE orders (id int PRIMARY KEY, u int REFERENCES users, m mood);"
        "INSERT INTO users VALUES (1, 'a'); INSERT INTO orders VALUES (1, 1, 'sad')"
    )
    pipeline = make_pipeline(source, target, **COPIED)
    settle(pipeline, target)
    with source.connect(autocommit=False) as slow:
        slow.execute("ALTER TABLE users RENAME nick TO name")  # reports orders, too
        slow.execute("ALTER TYPE mood RENAME TO feeling")
        source.execute("ALTER TABLE orders ADD note text DEFAULT 'n'")
        source.execute("UPDATE orders SET note = 'kept'")
        source.execute("CREATE INDEX one ON orders (note)")
        slow.execute("UPDATE users SET name = 'b'")
        slow.commit()
        slow.execute("CREATE INDEX two ON orders (u)")
        source.execute("CREATE INDEX three ON orders (m)")
        slow.commit()
    source.execute("INSERT INTO orders VALUES (3, 1, 'sad', 'too')")
    assert_same(pipeline, source, target)


@only_new
def test_table_is_followed_step_by_step_where_sessions_keep_one_snapshot(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    """What the catalog has by the time that capture reads of a step is of later steps."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    pipeline = make_pipeline(source, target, **COPIED)
    settle(pipeline, target)
    pipeline.stop()
    with source.connect() as one, source.connect() as other:
        for session in (one, other):
            session.execute("SET default_transaction_isolation = 'repeatable read'")
        one.execute("ALTER TABLE t ADD a text")
        one.execute("INSERT INTO t VALUES (2, 'a')")
        one.execute("ALTER TABLE t RENAME a TO b")
        one.execute("INSERT INTO t VALUES (3, 'b')")
        # And one whose snapshot is older than what another has done since.
        other.execute("BEGIN; SELECT FROM t")
        one.execute("CREATE TABLE u (id int PRIMARY KEY, n int); CREATE INDEX i ON u (n)")
        other.execute("ALTER TABLE u ADD late text")
        other.execute("INSERT INTO u VALUES (1, 1, 'late')")
        other.execute("COMMIT")
    pipeline.start()

    assert_same(pipeline, source, target)


@only_new
def test_values_are_reported_alike_whatever_the_session_is_set_to(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    pipeline = make_pipeline(source, target, **COPIED)
    settle(pipeline, target)
    with source.connect() as connection:
        connection.execute(
            "SET datestyle = 'SQL, DMY'; SET intervalstyle = sql_standard; SET timezone = 'Asia/Tokyo';"
            "SET extra_float_digits = -10; SET bytea_output = escape; SET quote_all_identifiers = on"
        )
        connection.execute(
            "ALTER TABLE t ADD due date NOT NULL DEFAULT DATE '4/3/2024',"
            " ADD span interval DEFAULT '-1 day +2 hours', ADD f float8 DEFAULT 0.1234567890123456,"
            " ADD at timestamptz DEFAULT '4/3/2024 12:00', ADD b bytea DEFAULT '\\x00ff',"
            " ADD CHECK (due > DATE '3/2/2024')"
        )
    source.execute("INSERT INTO t (id) VALUES (2)")
    assert_same(pipeline, source, target)
    assert target.query("SELECT due::text FROM t") == [("2024-03-04",), ("2024-03-04",)]


@only_new
def test_role_that_may_not_touch_penstock_migrates_as_ever(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE ROLE dev; GRANT CREATE, USAGE ON SCHEMA public TO dev;"
        "CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO dev; INSERT INTO t VALUES (1)"
    )
    pipeline = make_pipeline(source, target, **COPIED)
    settle(pipeline, target)
    notices: list[str] = []
    with source.connect() as connection:
        connection.add_notice_handler(lambda note: notices.append(str(note.message_primary)))
        connection.execute("SET ROLE dev")
        for attempt in (
            "SELECT * FROM penstock.schema_log",
            "DELETE FROM penstock.schema_log",
            "SELECT * FROM penstock.seal",
            "SELECT penstock.say('{}')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(attempt)
        connection.execute("ALTER TABLE t ADD v text DEFAULT 'x'")
        connection.execute("CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1)")
        connection.execute("SET search_path = pg_temp; CREATE TEMP TABLE passing (id int)")
        connection.execute("ALTER TABLE passing ADD x int; DROP TABLE passing")
    assert notices == []
    assert_same(pipeline, source, target)


HOSTILE = (
    'quote"d',
    "semi; DROP TABLE victim; --",
    "'; DROP TABLE victim; --",
    "/* comment */ -- end",
    "%s %(x)s %",
    "{} {0} {x}",
    "back\\slash $1 $$",
    "new\nline",
    "ünï cödé 🙂",
    " USING ",
)


@only_new
def test_hostile_names_are_names_and_nothing_runs(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE victim (id int PRIMARY KEY); INSERT INTO victim VALUES (1)")
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    pipeline = make_pipeline(source, target, **COPIED)
    settle(pipeline, target)
    table = "t"
    source.execute("CREATE TYPE mood AS ENUM ('a'); ALTER TABLE t ADD m mood DEFAULT 'a'")
    for name in HOSTILE:
        column, literal = quoted(name), "'" + name.replace("'", "''") + "'"
        source.execute(f"ALTER TYPE mood ADD VALUE {literal}")
        source.execute(
            f"BEGIN; ALTER TABLE {table} ADD {column} text DEFAULT {literal};"
            f"CREATE INDEX {quoted('i ' + name)} ON {table} ({column});"
            f"ALTER TABLE {table} ADD CONSTRAINT {quoted('c ' + name)} CHECK ({column} <> {literal} || 'x');"
            f"ALTER TABLE {table} RENAME TO {column}; COMMIT"
        )
        table = column
        source.execute(f"INSERT INTO {table} (id, m) SELECT 1 + count(*), {literal} FROM {table}")
        source.execute(f"CREATE TABLE {quoted('n ' + name)} ({column} int PRIMARY KEY)")
    assert_same(pipeline, source, target)
    for name in HOSTILE:
        source.execute(f"ALTER TABLE {table} RENAME {quoted(name)} TO {quoted(name + ' two')}")
        source.execute(f"ALTER INDEX {quoted('i ' + name)} RENAME TO {quoted('j ' + name)}")
    source.execute(
        f"CREATE SCHEMA {quoted(HOSTILE[1])}; ALTER TABLE {table} SET SCHEMA {quoted(HOSTILE[1])}"
    )
    assert_same(pipeline, source, target)
    assert rows(target, "victim") == [("(1)",)]


@only_new
def test_forged_message_changes_nothing(
    source: Database,
    target: Database,
    make_pipeline: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE ROLE dev")
    pipeline = make_pipeline(source, target, **COPIED)
    settle(pipeline, target)
    oid = source.value("SELECT 't'::regclass::oid::int8")
    forged = (
        '{"format": 1, "tag": "DROP TABLE", "dropped_tables":'
        f' [{{"id": {oid}, "schema_name": "public", "name": "t"}}]}}'
    )
    with source.connect() as connection:
        connection.execute("SET ROLE dev")
        for transactional in ("true", "false"):
            for prefix in ("penstock.schema", "penstock.version", "penstock.seal", "penstock"):
                for content in (forged, "x" * 32 + forged, "", "{", '{"format": 99}', "\\x00"):
                    connection.execute(
                        f"SELECT pg_logical_emit_message({transactional}, %s, %s)",
                        (prefix, content),
                    )
    source.execute("INSERT INTO t VALUES (2)")
    assert_same(pipeline, source, target)
    assert "penstock" in caplog.text


@pytest.mark.long
@only_new
def test_message_overheard_and_sent_again_changes_nothing(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    """Somebody who may read the stream, but not the secret, repeats what the triggers said."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    pipeline = make_pipeline(source, target, **COPIED)
    settle(pipeline, target)
    source.execute("SELECT pg_create_logical_replication_slot('spy', 'pgoutput')")
    source.execute(
        "CREATE PUBLICATION spied FOR TABLE t; ALTER TABLE t ADD a int; ALTER TABLE t DROP a"
    )
    heard = source.query(
        "SELECT data FROM pg_logical_slot_get_binary_changes('spy', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'spied', 'messages', 'true')"
    )
    messages = [bytes(data) for (data,) in heard if bytes(data)[:1] == b"M"]
    assert messages
    with source.connect() as connection:
        for message in messages:
            prefix, _, rest = message[10:].partition(b"\0")
            connection.execute(
                "SELECT pg_logical_emit_message(true, %s, %b)", (prefix.decode(), rest[4:])
            )
    source.execute("INSERT INTO t VALUES (2)")
    assert_same(pipeline, source, target)


@pytest.mark.long
@only_new
@pytest.mark.parametrize(
    "harm",
    [
        "ALTER EVENT TRIGGER {} DISABLE",
        "DROP EVENT TRIGGER {}",
    ],
)
def test_added_columns_travel_also_when_somebody_has_taken_the_triggers(
    source: Database, target: Database, make_pipeline: Make, harm: str
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    pipeline = make_pipeline(source, target, **COPIED)
    settle(pipeline, target)
    triggers = source.query("SELECT evtname FROM pg_event_trigger WHERE evtname LIKE 'penstock%'")
    assert triggers
    for (trigger,) in triggers:
        source.execute(harm.format(quoted(trigger)))
    source.execute("ALTER TABLE t ADD n int; INSERT INTO t VALUES (2, 'b', 2)")
    source.execute("ALTER TABLE t ALTER v TYPE varchar(10); INSERT INTO t VALUES (3, 'c', 3)")
    assert_same(pipeline, source, target)
    source.execute("ALTER TABLE t DROP v; INSERT INTO t VALUES (4, 4)")
    assert_same(pipeline, source, target)
    pipeline.stop()
    pipeline.start()  # puts the triggers right
    source.execute("ALTER TABLE t RENAME n TO m; INSERT INTO t VALUES (5, 5)")
    assert_same(pipeline, source, target)


@pytest.mark.long
@only_new
def test_changes_during_the_first_copy_arrive(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w int)")
    source.execute("CREATE TABLE u (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO t SELECT g, repeat('x', 50), g FROM generate_series(1, 3000) g")
    source.execute("INSERT INTO u SELECT g, repeat('x', 50) FROM generate_series(1, 3000) g")
    pipeline = make_pipeline(source, target, source_options={**slowly(1500), **TRIGGERS})
    wait_until(lambda: table_state(target, "t") == "copying", what="the copy to begin")
    with source.connect() as connection:
        connection.execute("SET lock_timeout = '30s'")
        connection.execute("ALTER TABLE u ADD n int DEFAULT 3")
        connection.execute("INSERT INTO u VALUES (10001, 'late', 4)")
        connection.execute("ALTER TABLE t ADD n int DEFAULT 3")
        connection.execute("INSERT INTO t VALUES (10001, 'late', 1, 4)")
        connection.execute("ALTER TABLE t RENAME v TO renamed")
        connection.execute("UPDATE t SET renamed = 'r' WHERE id < 10; ALTER TABLE t DROP w")
        connection.execute("ALTER TABLE u RENAME TO moved; UPDATE moved SET v = 'm' WHERE id < 5")
    assert_same(pipeline, source, target)


@pytest.mark.long
@only_new
def test_refused_change_waits_and_more_changes_wait_behind_it(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
    pipeline = make_pipeline(source, target, **COPIED)
    settle(pipeline, target)
    target.execute("CREATE VIEW seen AS SELECT v FROM t")
    source.execute("ALTER TABLE t ALTER v TYPE bigint; INSERT INTO t VALUES (2, 2)")
    wait_for_state(target, "t", "failed")
    assert "PEN-510" in table_error(target, "t")
    assert 'ALTER COLUMN "v" TYPE bigint' in table_error(target, "t")
    source.execute("ALTER TABLE t ADD w text DEFAULT 'w'; INSERT INTO t VALUES (3, 3, 'x')")
    source.execute("ALTER TABLE t DROP v; INSERT INTO t VALUES (4, 'y')")
    pipeline.stop()
    pipeline.start()
    wait_for_state(target, "t", "failed")
    target.execute("DROP VIEW seen")
    assert_same(pipeline, source, target)


@pytest.mark.long
@only_new
def test_only_the_chosen_columns_follow(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a text, secret text DEFAULT 's')")
    sink = {"tables": {"public.t": {"columns": ["id", "a"]}}}
    pipeline = make_pipeline(source, target, sink=sink, **COPIED)
    source.execute("INSERT INTO t VALUES (1, 'a')")
    settle(pipeline, target)
    source.execute("ALTER TABLE t ADD other text DEFAULT 'o'; INSERT INTO t VALUES (2, 'b')")
    source.execute("CREATE INDEX i ON t (a); CREATE INDEX hidden ON t (secret, a)")
    source.execute("ALTER TABLE t ADD CHECK (secret <> a); ALTER TABLE t ALTER a TYPE varchar(9)")
    source.execute("ALTER TABLE t DROP other; ALTER TABLE t RENAME secret TO hidden")
    source.execute("UPDATE t SET hidden = 'h'; INSERT INTO t VALUES (3, 'c')")
    settle(pipeline, target)
    assert states(target)["public", "t"][0] == "streaming"
    assert rows(target, "t") == [("(1,a)",), ("(2,b)",), ("(3,c)",)]
    assert [name for name, *_ in shape_of(target, "t")["columns"]] == ["a", "id"]
    assert [name for name, _ in shape_of(target, "t")["indexes"]] == ["i"]


@pytest.mark.long
@only_new
def test_all_tables_in_one_schema_follow(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE SCHEMA s; INSERT INTO t VALUES (1)"
    )
    pipeline = make_pipeline(source, target, sink={"schema": "warehouse"}, **COPIED)
    settle(pipeline, target)
    source.execute("ALTER TABLE t ADD n int DEFAULT 2; INSERT INTO t VALUES (2)")
    source.execute("CREATE TABLE s.u (id int PRIMARY KEY REFERENCES t); INSERT INTO s.u VALUES (1)")
    settle(pipeline, target)
    source.execute("ALTER TABLE t SET SCHEMA s; INSERT INTO s.t VALUES (3)")
    settle(pipeline, target)
    source.execute("ALTER TABLE s.u RENAME TO w; INSERT INTO s.w VALUES (3)")
    source.execute("CREATE SCHEMA z; DROP SCHEMA z")
    settle(pipeline, target)
    for table in ("t", "w"):
        assert rows(target, f"warehouse.{table}") == rows(source, f"s.{table}")
    assert target.query(USER_TABLES) == [("warehouse", "t"), ("warehouse", "w")]
    source.execute("DROP SCHEMA s CASCADE")
    settle(pipeline, target)
    assert target.query(USER_TABLES) == []


@pytest.mark.long
@only_new
def test_without_indexes_columns_follow_and_indexes_do_not(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    pipeline = make_pipeline(source, target, sink={"create_indexes": False}, **COPIED)
    settle(pipeline, target)
    source.execute("ALTER TABLE t ADD n int UNIQUE CHECK (n > 0); CREATE INDEX i ON t (v)")
    source.execute("INSERT INTO t VALUES (2, 'b', 2); ALTER TABLE t RENAME v TO w")
    source.execute("DROP INDEX i; ALTER TABLE t DROP CONSTRAINT t_n_key; ALTER TABLE t DROP n")
    source.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (w); UPDATE t SET w = w || '!'"
    )
    settle(pipeline, target)
    assert rows(target, "t") == rows(source, "t")
    assert shape_of(target, "t")["indexes"] == []
    assert [text for _, text in shape_of(target, "t")["constraints"]] == ["PRIMARY KEY (w)"]


@pytest.mark.long
@only_new
def test_table_renamed_out_of_the_rules_and_back(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE app (id int PRIMARY KEY, v text); INSERT INTO app VALUES (1, 'a')")
    source.execute("CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1)")
    rules = {"include": ["public.*"], "exclude": ["public.hidden", "public.other"]}
    pipeline = make_pipeline(source, target, tables=rules, **COPIED)
    settle(pipeline, target)
    source.execute("ALTER TABLE app RENAME TO hidden; INSERT INTO hidden VALUES (2, 'unseen')")
    pipeline.catch_up()
    source.execute("ALTER TABLE other RENAME TO shown; INSERT INTO shown VALUES (2)")
    wait_for_state(target, "shown", "streaming")
    source.execute("INSERT INTO shown VALUES (3); INSERT INTO hidden VALUES (3, 'unseen')")
    pipeline.catch_up()
    assert rows(target, "shown") == rows(source, "shown")
    assert table_state(target, "hidden") in (None, "removed")
    source.execute("ALTER TABLE hidden RENAME TO app; INSERT INTO app VALUES (4, 'seen')")
    wait_for_state(target, "app", "streaming")
    pipeline.catch_up()
    assert rows(target, "app") == rows(source, "app")
    source.execute("ALTER TABLE app ADD n int; INSERT INTO app VALUES (5, 'more', 5)")
    pipeline.catch_up()
    assert rows(target, "app") == rows(source, "app")


@only_new
@pytest.mark.parametrize("count", [50, pytest.param(400, marks=pytest.mark.long)])
def test_many_tables_made_in_one_transaction_are_there_soon(
    source: Database, target: Database, make_pipeline: Make, count: int
) -> None:
    pipeline = make_pipeline(source, target, **COPIED)
    with source.connect(autocommit=False) as connection:
        for number in range(count):
            connection.execute(
                f"CREATE TABLE t{number} (id int PRIMARY KEY, a text, b int, c timestamptz, d numeric)"
            )
            connection.execute(f"INSERT INTO t{number} (id, a) VALUES (1, 'x')")
        committing = time.monotonic()
        connection.commit()
    pipeline.catch_up()
    made = time.monotonic() - committing
    settle(pipeline, target)
    print(f"{count} tables: {made:.1f} s, settled after {time.monotonic() - committing:.1f} s")
    assert everything(target) == everything(source)
    with source.connect(autocommit=False) as connection:
        for number in range(count):
            connection.execute(f"ALTER TABLE t{number} ADD e int DEFAULT 5")
        committing = time.monotonic()
        connection.commit()
    pipeline.catch_up()
    print(f"{count} tables altered: {time.monotonic() - committing:.1f} s")
    assert everything(target) == everything(source)
