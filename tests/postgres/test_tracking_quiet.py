"""Triggers disturb nobody: statements succeed, fail and wait as they do on a server without them."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fix_postgres import only_new
from fix_subscription import ALL, rules
from penstock.source.connect import connect_source
from penstock.source.options import Tracking
from penstock.source.subscription import ensure_subscription

if TYPE_CHECKING:
    from fix_postgres import Database

_GIVEN = """
CREATE SCHEMA s;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE pair AS (a int, b mood);
CREATE SEQUENCE counter;
CREATE TABLE parent (id int PRIMARY KEY, n int, m mood DEFAULT 'ok', CHECK (n > 0));
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent, p pair);
CREATE TABLE s.other (id serial PRIMARY KEY, parent int REFERENCES parent, m mood);
CREATE TABLE root (id int, d int, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);
CREATE TABLE part PARTITION OF root FOR VALUES FROM (0) TO (9);
CREATE TABLE base (a int); CREATE TABLE heir (b int) INHERITS (base);
CREATE INDEX by_n ON parent ((n + 1)) WHERE n > 1;
"""

# {n} is the session's number, {r} some other number.
_STATEMENTS = [
    "CREATE TABLE own{n}_{r} (id int PRIMARY KEY, t text DEFAULT 'x')",
    "CREATE TABLE own{n}_{r} (id serial PRIMARY KEY, m mood, parent int REFERENCES parent)",
    "DROP TABLE IF EXISTS own{n}_{r}",
    "ALTER TABLE own{n} ADD c{r} int DEFAULT 7",
    "ALTER TABLE own{n} DROP COLUMN IF EXISTS c{r}",
    "ALTER TABLE own{n} RENAME TO own{n}_x; ALTER TABLE own{n}_x RENAME TO own{n}",
    "INSERT INTO own{n} (id) VALUES ({r}) ON CONFLICT DO NOTHING",
    "UPDATE own{n} SET t = 'y'",
    "CREATE INDEX i{n}_{r} ON own{n} (t)",
    "ALTER TABLE own{n} DROP CONSTRAINT IF EXISTS own{n}_pkey",
    "ALTER TABLE own{n} ADD PRIMARY KEY (id)",
    "COMMENT ON COLUMN own{n}.t IS '{r}'",
    "ALTER TABLE parent ADD x{r} int",
    "ALTER TABLE parent RENAME n TO n{r}",
    "ALTER TABLE parent RENAME TO parents",
    "ALTER TABLE parents RENAME TO parent",
    "ALTER TABLE child RENAME TO child{r}",
    "CREATE INDEX c{n}_{r} ON child (parent)",
    "ALTER INDEX by_n RENAME TO by_n{r}",
    "DROP INDEX IF EXISTS by_n",
    "COMMENT ON TABLE parent IS '{r}'",
    "INSERT INTO parent (id) VALUES ({r}) ON CONFLICT DO NOTHING",
    "INSERT INTO child (id, parent) SELECT {r}, min(id) FROM parent ON CONFLICT DO NOTHING",
    "SELECT * FROM parent JOIN child ON child.parent = parent.id",
    "ALTER TYPE mood RENAME TO temper",
    "ALTER TYPE temper RENAME TO mood",
    "ALTER TYPE mood ADD VALUE IF NOT EXISTS 'v{r}'",
    "ALTER TYPE pair ADD ATTRIBUTE a{r} int",
    "ALTER SEQUENCE counter INCREMENT {r}",
    "ALTER SEQUENCE s.other_id_seq INCREMENT {r}",
    "ALTER SCHEMA s RENAME TO s{r}",
    "ALTER TABLE base ADD b{r} int",
    "ALTER TABLE root DETACH PARTITION part",
    "ALTER TABLE root ATTACH PARTITION part FOR VALUES FROM (0) TO (9)",
    "ALTER TABLE ONLY base ALTER a SET DEFAULT {r}",
    "TRUNCATE child",
    "LOCK TABLE parent IN SHARE MODE",
    "DROP TABLE child",
    "SAVEPOINT p",
    "ROLLBACK TO p",
    "RELEASE p",
    "CREATE TEMP TABLE tmp{r} (id int)",
    "SET LOCAL transaction_isolation = 'serializable'",
]


class Session:
    """One user's session; what its statements led to, and all warnings."""

    def __init__(self, database: Database) -> None:
        self._connection = database.connect(autocommit=True)
        self._connection.execute("SET lock_timeout = '400ms'; SET statement_timeout = '20s'")
        self.warnings: list[str] = []
        self._connection.add_notice_handler(self._take)

    def _take(self, notice: psycopg.errors.Diagnostic) -> None:
        if "penstock" in str(notice.message_primary):
            self.warnings.append(str(notice.message_primary))

    def run(self, statement: str) -> str:
        try:
            self._connection.execute(statement)
        except psycopg.Error as error:
            return str(error.sqlstate)
        return "ok"

    def value(self, query: str) -> Any:
        row = self._connection.execute(query).fetchone()
        assert row is not None
        return row[0]

    def close(self) -> None:
        self._connection.close()


def prepare(database: Database, *, tracked: bool, sessions: int) -> None:
    if tracked:
        with connect_source(database.dsn) as connection:
            ensure_subscription(connection, "shop", rules("keyed.*"), Tracking.TRIGGERS)
    database.execute(_GIVEN)
    for number in range(sessions):
        database.execute(f"CREATE TABLE own{number} (id int PRIMARY KEY, t text)")


def outcomes(database: Database, steps: list[tuple[int, str]]) -> tuple[list[str], list[str]]:
    sessions = [Session(database) for _ in range(4)]
    try:
        found = [sessions[number].run(statement) for number, statement in steps]
        return found, [each for session in sessions for each in session.warnings]
    finally:
        for session in sessions:
            session.close()


def course(seed: int, length: int) -> list[tuple[int, str]]:
    """Statements of four sessions in turn, within transactions that overlap."""
    dice = random.Random(seed)
    steps: list[tuple[int, str]] = []
    is_open = [False] * 4
    for _ in range(length):
        number = dice.randrange(4)
        if not is_open[number]:
            steps.append((number, "BEGIN"))
        elif dice.random() < 0.3:
            steps.append((number, dice.choice(["COMMIT", "ROLLBACK"])))
        else:
            statement = dice.choice(_STATEMENTS)
            steps.append((number, statement.format(n=number, r=dice.randint(1, 3))))
            continue
        is_open[number] = not is_open[number]
    return steps


@only_new
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))]
)
def test_sessions_in_turn_see_what_they_see_without_triggers(
    source: Database, target: Database, seed: int
):
    steps = course(seed, 120 if seed == 1 else 400)
    prepare(source, tracked=True, sessions=4)
    prepare(target, tracked=False, sessions=4)

    expected, _ = outcomes(target, steps)
    found, warnings = outcomes(source, steps)

    differing = [
        (step, other, one)
        for step, other, one in zip(steps, expected, found, strict=True)
        if one != other
    ]
    assert (differing, warnings) == ([], [])
    assert {"ok", "55P03"} <= set(expected)


# What may happen to a table in the transaction that has made it.
_FIRST_STEPS = [
    "ALTER TABLE keyed.t REPLICA IDENTITY DEFAULT",
    "ALTER TABLE keyed.t REPLICA IDENTITY FULL",
    "ALTER TABLE keyed.t REPLICA IDENTITY NOTHING",
    "ALTER TABLE keyed.t REPLICA IDENTITY USING INDEX ux",
    "ALTER TABLE keyed.t DROP CONSTRAINT t_pkey",
    "ALTER TABLE keyed.t ADD PRIMARY KEY (id)",
    "ALTER TABLE keyed.t ADD g int GENERATED ALWAYS AS (a * 2) STORED",
    "ALTER TABLE keyed.t DROP g",
    "CREATE UNIQUE INDEX ux ON keyed.t (a)",
    "DROP INDEX keyed.ux",
    "DROP DOMAIN keyed.number CASCADE",
    "ALTER TABLE keyed.t SET UNLOGGED",
    "ALTER TABLE keyed.t SET LOGGED",
    "INSERT INTO keyed.t (a) VALUES (1)",
    "UPDATE keyed.t SET a = a + 1",
    "DELETE FROM keyed.t",
]
_UPDATE = _FIRST_STEPS[-2]


_NEW_TABLE = [
    "DROP TABLE IF EXISTS keyed.t; DROP DOMAIN IF EXISTS keyed.number; CREATE DOMAIN keyed.number AS int",
    "CREATE TABLE keyed.t (id keyed.number DEFAULT nextval('keyed.s') PRIMARY KEY, a int NOT NULL)",
    "INSERT INTO keyed.t (a) VALUES (1)",
]


@pytest.mark.parametrize("is_new", [False, True])
def test_trigger_looks_for_tables_to_let_go_only_where_the_transaction_has_published_some(
    source: Database, is_new: bool
):
    """In a migration that is sent as one long text each statement would look at all that it has locked."""
    source.execute("CREATE SCHEMA keyed; CREATE SEQUENCE keyed.s")
    prepare(source, tracked=True, sessions=1)
    source.execute("CREATE TABLE keyed.before (id int PRIMARY KEY)")
    plans: list[str] = []
    with source.connect(autocommit=True) as session:
        for step in ("BEGIN", *(_NEW_TABLE if is_new else ["LOCK TABLE keyed.before"])):
            session.execute(step.encode())
        session.execute(
            "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0;"
            " SET auto_explain.log_nested_statements = on; SET client_min_messages = log"
        )
        session.add_notice_handler(lambda notice: plans.append(str(notice.message_primary)))
        text = f"ALTER TABLE keyed.before ADD c int /* {'x' * 70_000} */"
        session.execute(text.encode())
        session.execute("COMMIT")

    assert source.value("SELECT count(*) FROM pg_publication_rel") > 0, "else this shows nothing"
    assert any("penstock.release(h.oid" in plan for plan in plans) is is_new


def first_steps(seed: int) -> list[str]:
    """What may happen to tables that are made one after the other: one that was let go stays out."""
    dice = random.Random(seed)
    steps: list[str] = []
    for _ in range(15):
        steps += _NEW_TABLE
        steps += [step for _ in range(5) for step in (dice.choice(_FIRST_STEPS), _UPDATE)]
    return steps


@pytest.mark.parametrize(
    "steps",
    [
        [_FIRST_STEPS[6], _FIRST_STEPS[1], _UPDATE],
        [_FIRST_STEPS[1], _FIRST_STEPS[6], _UPDATE],
        [_FIRST_STEPS[8], _FIRST_STEPS[3], _FIRST_STEPS[9], _UPDATE],
        [_FIRST_STEPS[10], _UPDATE],
        [_FIRST_STEPS[11], _UPDATE, _FIRST_STEPS[12], _UPDATE],
        *(first_steps(seed) for seed in range(6)),
    ],
    ids=["computed", "computed later", "index", "domain", "unlogged", *map(str, range(6))],
)
def test_new_table_is_altered_and_updated_at_once_as_without_triggers(
    source: Database, target: Database, steps: list[str]
):
    found: list[list[str]] = []
    for database, tracked in ((source, True), (target, False)):
        database.execute("CREATE SCHEMA keyed; CREATE SEQUENCE keyed.s")
        prepare(database, tracked=tracked, sessions=0)
        session = Session(database)
        outcome = [session.run(step) for step in ("BEGIN", *_NEW_TABLE)]
        if tracked:
            query = "SELECT count(*) FROM pg_publication_rel"
            assert session.value(query) == 1, "else this shows nothing"
        for step in steps:
            session.run("SAVEPOINT s")
            outcome.append(session.run(step))
            session.run("RELEASE s" if outcome[-1] == "ok" else "ROLLBACK TO s")
        outcome.append(session.run("COMMIT"))
        session.close()
        found.append([*outcome, *session.warnings])
    assert found[0] == found[1]


_UNLOGGED = {
    "plain": "ALTER TABLE keyed.t SET UNLOGGED",
    "spelled": 'alter table "keyed"."t" set /* why */ unLogged, ADD b int',
    "script": "SELECT 1; CREATE TABLE keyed.u (id int PRIMARY KEY); ALTER TABLE keyed.u SET UNLOGGED;"
    "ALTER TABLE keyed.t SET UNLOGGED",
    "computed text": "DO $$ BEGIN EXECUTE 'ALTER TABLE keyed.t SET UNLOG' || 'GED'; END $$",
    "plpgsql": "CREATE FUNCTION keyed.f() RETURNS void LANGUAGE plpgsql AS"
    " 'BEGIN ALTER TABLE keyed.t SET UNLOGGED; END'",
    "sql": "CREATE FUNCTION keyed.f() RETURNS void LANGUAGE sql AS 'ALTER TABLE keyed.t SET UNLOGGED'",
    "long text": f"ALTER TABLE keyed.t /* {'x' * 70_000} */ SET UNLOGGED",
}


@pytest.mark.parametrize("level", ["read committed", "serializable"])
@pytest.mark.parametrize("way", _UNLOGGED)
def test_new_table_becomes_unlogged_in_its_own_transaction(source: Database, way: str, level: str):
    """However the statement is written: Postgres refuses it for a table that is published."""
    source.execute("CREATE SCHEMA keyed; CREATE SEQUENCE keyed.s")
    prepare(source, tracked=True, sessions=0)
    source.execute("CREATE TABLE keyed.before (id int PRIMARY KEY)")
    session = Session(source)
    # It has an id that is older than what others publish next, of which it holds the tables.
    for step in (f"BEGIN ISOLATION LEVEL {level}", "SELECT pg_current_xact_id()"):
        assert session.run(step) == "ok"
    source.execute("CREATE TABLE keyed.since (id int PRIMARY KEY)")
    for step in _NEW_TABLE:
        assert session.run(step) == "ok"
    query = "SELECT count(*) FROM pg_publication_rel WHERE prrelid = 'keyed.t'::regclass"
    assert session.value(query) == 1, "else this shows nothing"
    session.run("SAVEPOINT s")
    session.run("LOCK TABLE keyed.before, keyed.since")

    outcome = session.run(_UNLOGGED[way])
    if way in ("plpgsql", "sql"):
        outcome = session.run("SELECT keyed.f()")

    committed = session.run("COMMIT")
    session.close()
    assert (outcome, committed, session.warnings) == ("ok", "ok", [])
    kept = "SELECT relname FROM pg_class WHERE oid = 'keyed.t'::regclass AND relpersistence = 'u'"
    assert source.query(kept) == [("t",)]
    published = "SELECT prrelid::regclass::text FROM pg_publication_rel ORDER BY 1"
    assert source.query(published) == [("keyed.before",), ("keyed.since",)]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE keyed.t ADD b int",
        "ALTER TABLE keyed.t ADD b int; CREATE UNLOGGED TABLE keyed.u (id int PRIMARY KEY)",
        "DO $$ BEGIN ALTER TABLE keyed.t ADD b int; END $$",
    ],
)
def test_new_table_that_is_altered_otherwise_stays_published(source: Database, statement: str):
    source.execute("CREATE SCHEMA keyed; CREATE SEQUENCE keyed.s")
    prepare(source, tracked=True, sessions=0)
    session = Session(source)

    for step in ("BEGIN", *_NEW_TABLE, statement, "COMMIT"):
        assert session.run(step) == "ok"

    session.close()
    assert source.value("SELECT count(*) FROM pg_publication_rel") == 1


@pytest.mark.parametrize("level", ["read committed", "serializable"])
@only_new
def test_many_change_their_own_tables_at_once(source: Database, level: str):
    source.execute("CREATE TYPE mood AS ENUM ('sad')")
    for number in range(8):
        source.execute(f"CREATE TABLE own{number} (id int PRIMARY KEY, t text, m mood)")
    with connect_source(source.dsn) as connection:
        ensure_subscription(connection, "shop", rules(*ALL), Tracking.TRIGGERS)
    failed: list[Any] = []
    barrier = threading.Barrier(8)

    def migrate(number: int) -> None:
        session = Session(source)
        session.run(f"SET default_transaction_isolation = '{level}'")
        barrier.wait(30)
        for step in range(8):
            for statement in (
                "BEGIN",
                f"ALTER TABLE own{number} ADD c{step} int DEFAULT {step}",
                f"INSERT INTO own{number} (id) VALUES ({step})",
                f"CREATE TABLE new{number}_{step} (id int PRIMARY KEY, m mood)",
                f"INSERT INTO new{number}_{step} VALUES (1)",
                f"ALTER TABLE own{number} RENAME t TO u; ALTER TABLE own{number} RENAME u TO t",
                "COMMIT",
            ):
                outcome = session.run(statement)
                if outcome != "ok":
                    failed.append((number, statement, outcome))
        failed.extend(session.warnings)
        session.close()

    threads = [threading.Thread(target=migrate, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert failed == []


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE parent RENAME TO parents",
        "ALTER TABLE parent RENAME id TO key",
        "ALTER TYPE mood RENAME TO temper",
        "ALTER TYPE mood ADD VALUE 'new'",
        "ALTER TYPE pair ADD ATTRIBUTE z int",
        "ALTER SCHEMA s RENAME TO z",
        "ALTER SEQUENCE s.other_id_seq INCREMENT 3",
        "ALTER INDEX by_n RENAME TO by",
        "ALTER TABLE ONLY base ALTER a SET DEFAULT 1",
        "CREATE TABLE own (id int PRIMARY KEY, parent int)",
        "COMMENT ON TYPE mood IS 'x'",
    ],
)
def test_statement_waits_for_no_table_that_it_has_not_locked(source: Database, statement: str):
    """Others hold every table that is not the statement's own in the strongest lock."""
    prepare(source, tracked=True, sessions=0)
    session = Session(source)
    with source.connect(autocommit=False) as other:
        locked = ["child", "s.other", "root", "heir", "base"]
        if "parent RENAME" not in statement:
            locked.append("parent")
        if "base" in statement:
            locked.remove("base")
        if "pair" in statement:
            locked.remove("child")  # which is altered with it
        other.execute(f"LOCK TABLE {', '.join(locked)} IN ACCESS EXCLUSIVE MODE")

        outcome = session.run(statement)

        other.rollback()
    session.close()
    assert (outcome, session.warnings) == ("ok", [])


@pytest.mark.parametrize(
    ("statement", "most"),
    [
        ("ALTER TABLE own0 ADD c int", 3),
        ("ALTER TABLE child ADD c int", 5),
        ("CREATE INDEX ON child (parent)", 6),
        ("COMMENT ON TABLE own0 IS 'x'", 3),
        ("DROP TABLE own0", 6),
    ],
)
def test_trigger_asks_little_and_finds_it_by_indexes(source: Database, statement: str, most: int):
    """However small a catalog is, or how long ago somebody analyzed it."""
    prepare(source, tracked=True, sessions=1)
    plans: list[str] = []
    with source.connect(autocommit=True) as session:
        session.execute(
            "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0;"
            " SET auto_explain.log_nested_statements = on; SET client_min_messages = log"
        )
        session.add_notice_handler(lambda notice: plans.append(str(notice.message_primary)))
        session.execute(statement.encode())

    asked = [plan for plan in plans if "Query Text" in plan]
    assert 0 < len(asked) <= most, "\n".join(asked)
    assert [plan for plan in asked if "Hash Join" in plan or "Seq Scan on pg_" in plan] == []
