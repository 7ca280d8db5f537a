"""Keys, indexes and constraints: read at a real source, made at a real target."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fix_postgres import Database, only_15, only_new
from penstock.schema.describe import description_of
from penstock.sinks.postgres.ddl.create import create_table
from penstock.sinks.postgres.ddl.structure import add_foreign_keys, add_indexes, add_key
from penstock.sinks.postgres.expressions.expressions import ExpressionRules
from penstock.source.connect import connect_source
from penstock.source.shapes import read_named_shapes
from penstock.source.structure import TableStructure, _values, read_structure
from penstock.table import TableName, TableRule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fix_postgres import MakeDatabase
    from penstock.embedded.postgres import EmbeddedPostgres

    Place = Callable[[TableName], TableName]

# The same for both sides: how the server itself spells what a table has.
DEFINITIONS = """
    SELECT pg_get_indexdef(indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
    WHERE c.relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT format('%I %I %s', c.relname, conname, pg_get_constraintdef(o.oid))
    FROM pg_constraint o JOIN pg_class c ON c.oid = o.conrelid
    WHERE c.relnamespace = 'public'::regnamespace AND contype <> 'n' ORDER BY 1
"""


def name(table: str) -> TableName:
    return TableName("public", table)


def same(table: TableName) -> TableName:
    return table


def structure_of(source: Database, table: str = "t") -> TableStructure:
    with source.connect() as connection:
        return read_structure(connection, [name(table)])[name(table)]


def tables_of(source: Database) -> list[TableName]:
    query = "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition AND relnamespace = 'public'::regnamespace ORDER BY 1"
    return [name(table) for (table,) in source.query(query)]


def clone(
    source: Database,
    target: Database,
    *,
    place: Place = same,
    rows: str = "",
    wanted: tuple[str, ...] | None = None,
    times: int = 1,
) -> list[str]:
    """Do with every table what the copy of tables does; what could not be made."""
    names = tables_of(source)
    failures: list[str] = []
    with source.connect() as there, target.connect() as here:
        structures = read_structure(there, names)
        for each in names:
            description = description_of(read_named_shapes(there, [each])[each])
            create_table(here, description, place(each), wanted, with_key=False, rules=_OWN)
        if rows:
            here.execute(rows)  # type: ignore[arg-type]
        for _ in range(times):
            for each in names:
                columns = _columns(here, place(each))
                add_key(here, place(each), structures[each])
                failures += add_indexes(here, place(each), structures[each], columns, _OWN)
            for each in names:
                failures += add_foreign_keys(here, place(each), structures[each], place)
    return failures


def _columns(connection: psycopg.Connection[Any], table: TableName) -> set[str]:
    query = "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
    return {column for (column,) in connection.execute(query, table)}


_OWN = ExpressionRules("builtin", (TableRule.parse("public.*"), TableRule.parse("s.f")))

EVERY_INDEX = """
    CREATE EXTENSION btree_gist; CREATE EXTENSION pg_trgm;
    CREATE COLLATION "odd ""one" FROM "C";
    CREATE FUNCTION twice(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 * 2';
    CREATE TYPE mood AS ENUM ('sad', 'it''s ok');
    CREATE TABLE t (id int PRIMARY KEY, a int, b text, c text, doc jsonb, span int4range, m mood);
    CREATE INDEX plain ON t (a);
    CREATE UNIQUE INDEX two ON t (a DESC NULLS LAST, b);
    CREATE INDEX partly ON t (a) WHERE b IS NOT NULL AND m <> 'it''s ok';
    CREATE INDEX expression ON t (lower(b), twice(a), (a + 1));
    CREATE UNIQUE INDEX carrying ON t (a) INCLUDE (c);
    CREATE INDEX pattern ON t (b text_pattern_ops);
    CREATE INDEX collated ON t (b COLLATE "odd ""one", c COLLATE "C");
    CREATE INDEX documents ON t USING gin (doc jsonb_path_ops) WITH (fastupdate = off);
    CREATE INDEX trigrams ON t USING gin (b gin_trgm_ops);
    CREATE INDEX spans ON t USING gist (span);
    CREATE INDEX hashed ON t USING hash (b);
    CREATE INDEX ranges ON t USING brin (a) WITH (pages_per_range = 8);
    CREATE UNIQUE INDEX no_nulls ON t (c) NULLS NOT DISTINCT;
    CREATE INDEX full_pages ON t (a) WITH (fillfactor = 100);
    CREATE INDEX braces ON t ((b || '{} %s %% '' \\'))
"""

EVERY_CONSTRAINT = """
    CREATE EXTENSION btree_gist;
    CREATE TABLE t (id int, a int, b text, during tstzrange, room int,
        CONSTRAINT "its key" PRIMARY KEY (id) INCLUDE (b),
        UNIQUE (a, b), CONSTRAINT late UNIQUE (room) DEFERRABLE INITIALLY DEFERRED,
        CONSTRAINT nulls UNIQUE NULLS NOT DISTINCT (b) INCLUDE (a),
        CONSTRAINT booked EXCLUDE USING gist (room WITH =, during WITH &&) WHERE (a > 0),
        CONSTRAINT computed EXCLUDE USING btree ((a + room) WITH =),
        CHECK (a > 0), CONSTRAINT "two; of them" CHECK (a < room OR b <> 'it''s {} %s'));
    ALTER TABLE t ADD CONSTRAINT later CHECK (room < 1000) NOT VALID;
    CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE);
    ALTER TABLE deferred REPLICA IDENTITY FULL
"""

EVERY_FOREIGN_KEY = """
    CREATE TABLE parent (id int PRIMARY KEY, a int, b text, UNIQUE (a, b));
    CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES parent, a int, b text,
        up int REFERENCES child ON DELETE CASCADE,
        CONSTRAINT "a; b" FOREIGN KEY (a, b) REFERENCES parent (a, b) MATCH FULL
            ON UPDATE CASCADE ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED,
        CONSTRAINT partly FOREIGN KEY (b, a) REFERENCES parent (b, a) ON DELETE SET NULL (b),
        CONSTRAINT strict FOREIGN KEY (p) REFERENCES parent ON UPDATE RESTRICT ON DELETE SET DEFAULT
            DEFERRABLE);
    ALTER TABLE child ADD CONSTRAINT later FOREIGN KEY (p) REFERENCES parent NOT VALID;
    ALTER TABLE parent ADD COLUMN favourite int REFERENCES child
"""

HOSTILE_NAMES = """
    CREATE TABLE "t USING btree (x)" (
        "a"" USING (" int PRIMARY KEY, "b'; DROP TABLE t; --" int, "%s {} \\" int,
        CONSTRAINT "c USING hash (" CHECK ("%s {} \\" > 0), UNIQUE ("%s {} \\"),
        CONSTRAINT "f""k" FOREIGN KEY ("b'; DROP TABLE t; --") REFERENCES "t USING btree (x)");
    CREATE INDEX "i USING hash (y) ON ONLY " ON "t USING btree (x)" USING hash ("%s {} \\");
    CREATE UNIQUE INDEX "x"" ON public.t USING gist (" ON "t USING btree (x)"
        ("b'; DROP TABLE t; --", "a"" USING (") WHERE "%s {} \\" > 0
"""


@pytest.mark.parametrize(
    "script", [EVERY_INDEX, EVERY_CONSTRAINT, EVERY_FOREIGN_KEY, HOSTILE_NAMES]
)
def test_target_has_what_the_source_has_however_often_it_is_made(
    source: Database, target: Database, script: str
):
    source.execute(script)
    target.execute("CREATE EXTENSION btree_gist; CREATE EXTENSION pg_trgm")
    target.execute('CREATE COLLATION "odd ""one" FROM "C"')
    target.execute(
        "CREATE FUNCTION twice(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 * 2'"
    )

    failures = clone(source, target, times=3)

    assert failures == []
    assert target.query(DEFINITIONS) == source.query(DEFINITIONS)


def test_what_an_older_target_cannot_have_is_reported_and_the_rest_is_made(
    pg_new: EmbeddedPostgres, pg_15: EmbeddedPostgres, make_database: MakeDatabase
):
    source, target = make_database(pg_new, "source"), make_database(pg_15, "target")
    source.execute(EVERY_CONSTRAINT)
    expected = source.query(DEFINITIONS)
    source.execute("ALTER TABLE t ADD CONSTRAINT loose CHECK (a <> 9) NOT ENFORCED")
    target.execute("CREATE EXTENSION btree_gist")

    failures = clone(source, target, times=2)

    refused = 'check constraint loose: SyntaxError, syntax error at or near "ENFORCED"'
    assert failures == [refused, refused]
    assert target.query(DEFINITIONS) == expected


def test_partitioned_table_gives_the_indexes_and_constraints_of_its_root(
    source: Database, target: Database
):
    source.execute(
        "CREATE TABLE other (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE other_1 PARTITION OF other FOR VALUES FROM (0) TO (9);"
        "CREATE TABLE t (id int PRIMARY KEY, a int CHECK (a > 0), o int REFERENCES other, UNIQUE (id, a))"
        " PARTITION BY RANGE (id); CREATE INDEX i ON t (a DESC);"
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (9); CREATE INDEX own ON t_1 (o);"
        "CREATE INDEX half ON ONLY t (o)"
    )

    found = structure_of(source)
    failures = clone(source, target)

    assert [(each.name, each.definition) for each in found.indexes] == [("i", "btree (a DESC)")]
    assert [each.referenced for each in found.foreign_keys] == [name("other")]
    assert failures == []
    made = "SELECT conname FROM pg_constraint WHERE conrelid = 't'::regclass AND contype <> 'n' ORDER BY 1"
    assert target.query(made) == [("t_a_check",), ("t_id_a_key",), ("t_o_fkey",), ("t_pkey",)]


def test_partition_that_is_followed_alone_has_what_it_inherits(source: Database):
    source.execute(
        "CREATE TABLE other (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE other_1 PARTITION OF other FOR VALUES FROM (0) TO (9);"
        "CREATE TABLE t (id int PRIMARY KEY, o int REFERENCES other) PARTITION BY RANGE (id);"
        "CREATE INDEX i ON t (o); CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (9)"
    )

    found = structure_of(source, "t_1")

    assert found.key_columns == ("id",)
    assert [each.definition for each in found.indexes] == ["btree (o)"]
    assert [each.referenced for each in found.foreign_keys] == [name("other")]


@pytest.mark.parametrize("knows_setting", [True, False])
def test_view_that_got_the_name_of_a_sequence_is_not_read(
    source: Database, knows_setting: bool
) -> None:
    source.execute(
        "CREATE FUNCTION evil() RETURNS bigint LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'evil ran'; END$$;"
        "CREATE VIEW s AS SELECT evil() AS last_value, true AS is_called; CREATE SEQUENCE q"
    )

    with connect_source(source.dsn) as connection:
        if not knows_setting:  # as of a server before August 2024
            connection.execute("RESET restrict_nonsystem_relation_kind")
        found = dict(_values(connection, [name("s"), name("q")], is_safe=knows_setting))

    assert found == {name("q"): (1, False)}


def test_structure_can_be_sent_to_another_process(source: Database):
    source.execute(EVERY_CONSTRAINT + ";" + EVERY_FOREIGN_KEY)

    found = structure_of(source, "child")

    assert pickle.loads(pickle.dumps(found)) == found


def test_key_is_named_as_at_the_source_unless_the_name_is_taken(source: Database, target: Database):
    source.execute(
        "CREATE TABLE t (id int CONSTRAINT taken PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY);"
        'CREATE TABLE v ("Id" int CONSTRAINT "the; key" PRIMARY KEY)'
    )
    target.execute("CREATE SEQUENCE taken")

    assert clone(source, target, times=2) == []

    names = "SELECT indrelid::regclass::text, c.relname FROM pg_index JOIN pg_class c ON c.oid = indexrelid WHERE indisprimary AND indrelid > 16384 ORDER BY 1"
    assert target.query(names) == [("t", "t_pkey"), ("u", "u_pkey"), ("v", "the; key")]


@pytest.mark.parametrize(
    "identity",
    ["CREATE UNIQUE INDEX i ON t (y, x)", "ALTER TABLE t ADD CONSTRAINT i UNIQUE (y, x)"],
)
@pytest.mark.parametrize("with_primary", [True, False])
def test_replica_identity_is_the_targets_primary_key_and_the_primary_key_stays_unique(
    source: Database, target: Database, identity: str, with_primary: bool
):
    primary = "PRIMARY KEY" if with_primary else ""
    source.execute(
        f"CREATE TABLE t (id int {primary}, x int NOT NULL, y int NOT NULL);"
        f"{identity}; ALTER TABLE t REPLICA IDENTITY USING INDEX i"
    )

    assert clone(source, target, times=2) == []

    made = "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 't'::regclass AND contype <> 'n' ORDER BY 1"
    unique = [("t_pkey", "UNIQUE (id)")] if with_primary else []
    assert target.query(made) == [("i", "PRIMARY KEY (y, x)"), *unique]
    assert (
        target.value("SELECT count(*) FROM pg_index WHERE indrelid = 't'::regclass")
        == len(unique) + 1
    )


def test_what_needs_a_column_that_is_not_delivered_is_left_out(source: Database, target: Database):
    source.execute(
        "CREATE TABLE t (id int, a int, hidden int CHECK (hidden > 0), PRIMARY KEY (id) INCLUDE (hidden),"
        " UNIQUE (a, hidden), CHECK (a > 0), CHECK (a > hidden), self int REFERENCES t);"
        "CREATE INDEX i1 ON t (a); CREATE INDEX i2 ON t (a) INCLUDE (hidden);"
        "CREATE INDEX i3 ON t (a) WHERE hidden > 0; CREATE INDEX i4 ON t ((a + hidden));"
        "ALTER TABLE t ADD EXCLUDE USING btree ((a * hidden) WITH =)"
    )

    failures = clone(source, target, wanted=("id", "a"))

    assert failures == []
    names = "SELECT relname FROM pg_class JOIN pg_index ON oid = indexrelid WHERE indrelid = 't'::regclass ORDER BY 1"
    assert target.query(names) == [("i1",), ("t_pkey",)]
    checks = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 't'::regclass AND contype IN ('c', 'f')"
    assert target.query(checks) == [("CHECK ((a > 0))",)]


def test_what_the_rows_do_not_allow_is_reported_without_their_values_and_the_rest_is_made(
    source: Database, target: Database
):
    source.execute(
        "CREATE FUNCTION loud(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS"
        " $$BEGIN IF $1 = 'canary' THEN RAISE unique_violation USING MESSAGE = $1; END IF; RETURN $1; END$$;"
        "CREATE TABLE p (id int PRIMARY KEY);"
        "CREATE TABLE t (id int PRIMARY KEY, v text UNIQUE, n int CHECK (n > 0), p int REFERENCES p);"
        "CREATE UNIQUE INDEX a_unique ON t (v); CREATE INDEX b_cast ON t ((v::int));"
        "CREATE INDEX c_loud ON t (loud(v)); CREATE INDEX d_good ON t (n)"
    )
    target.execute(
        "CREATE FUNCTION loud(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS"
        " $$BEGIN IF $1 = 'canary' THEN RAISE unique_violation USING MESSAGE = $1; END IF; RETURN $1; END$$"
    )

    failures = clone(
        source, target, rows="INSERT INTO t VALUES (1, 'canary', -77, 5), (2, 'canary', 1, NULL)"
    )

    assert failures == [
        'check constraint t_n_check: CheckViolation, check constraint "t_n_check" of relation "t" is violated by some row',
        'unique constraint t_v_key: UniqueViolation, could not create unique index "t_v_key"',
        'index a_unique: UniqueViolation, could not create unique index "a_unique"',
        "index b_cast: InvalidTextRepresentation (22P02)",
        "index c_loud: UniqueViolation (23505)",
        'foreign key t_p_fkey: ForeignKeyViolation, insert or update on table "t" violates foreign key constraint "t_p_fkey"',
    ]
    there = (
        "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 't'::regclass ORDER BY 1"
    )
    assert target.query(there) == [("d_good",), ("t_pkey",)]
    # The foreign key holds for new rows, and for all of them once they are fixed.
    validated = "SELECT convalidated FROM pg_constraint WHERE conname = 't_p_fkey'"
    assert target.query(validated) == [(False,)]
    target.execute("UPDATE t SET p = NULL")
    with target.connect() as connection:
        assert add_foreign_keys(connection, name("t"), structure_of(source), same) == []
    assert target.query(validated) == [(True,)]


def test_index_whose_name_is_taken_gets_another_one_and_only_once(
    source: Database, target: Database
):
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int, CONSTRAINT taken_too UNIQUE (b));"
        "CREATE INDEX taken ON t (a); CREATE INDEX again ON t (a)"
    )
    target.execute("CREATE TABLE taken (id int); CREATE VIEW taken_too AS SELECT 1 AS id")

    assert clone(source, target, times=3) == []

    names = "SELECT relname FROM pg_class JOIN pg_index ON oid = indexrelid WHERE indrelid = 't'::regclass ORDER BY 1"
    assert target.query(names) == [("again",), ("t_a_idx",), ("t_b_key",), ("t_pkey",)]


def test_foreign_key_to_a_table_that_is_not_there_is_reported(source: Database, target: Database):
    source.execute(
        "CREATE SCHEMA far; CREATE TABLE far.away (id int PRIMARY KEY);"
        "CREATE TABLE t (id int PRIMARY KEY, up int REFERENCES t, f int REFERENCES far.away)"
    )

    failures = clone(source, target)

    assert failures == ["foreign key t_f_fkey: the target has no table far.away"]
    keys = "SELECT conname FROM pg_constraint WHERE contype = 'f'"
    assert target.query(keys) == [("t_up_fkey",)]


@only_15
def test_everything_lands_in_the_one_schema_of_the_sink(source: Database, target: Database):
    source.execute(EVERY_FOREIGN_KEY + "; CREATE INDEX i ON child (lower(b))")

    failures = clone(source, target, place=lambda table: TableName("one schema", table.name))

    assert failures == []
    made = target.query(DEFINITIONS.replace("'public'", "'\"one schema\"'"))
    assert len(made) == len(source.query(DEFINITIONS))
    led_to = "SELECT DISTINCT confrelid::regclass::text FROM pg_constraint WHERE contype = 'f' ORDER BY 1"
    assert target.query(led_to) == [('"one schema".child',), ('"one schema".parent',)]


@only_15
def test_definitions_mean_the_same_whatever_the_search_path_of_the_role(
    source: Database, target: Database
):
    source.execute(
        "CREATE SCHEMA s; CREATE FUNCTION s.f(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';"
        "CREATE TABLE t (id int PRIMARY KEY, a int); CREATE INDEX i ON t (s.f(a), abs(a))"
    )
    for database in (source, target):
        database.execute(
            f'ALTER DATABASE "{database.name}" SET search_path = s, public, pg_catalog'
        )
    target.execute(
        "CREATE SCHEMA s; CREATE FUNCTION s.f(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';"
        "CREATE FUNCTION s.abs(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1'"
    )

    assert structure_of(source).indexes[0].definition == "btree (s.f(a), abs(a))"
    assert clone(source, target) == []

    with target.connect() as connection:
        connection.execute("SET search_path = ''")
        made = connection.execute(
            "SELECT pg_get_indexdef(oid) FROM pg_class WHERE relname = 'i'"
        ).fetchone()
    assert made == ("CREATE INDEX i ON public.t USING btree (s.f(a), abs(a))",)


@only_new
def test_foreign_key_waits_only_briefly_for_its_lock(
    source: Database, target: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("penstock.sinks.postgres.ddl.structure._LOCK_TIMEOUT", "50ms")
    monkeypatch.setattr("penstock.sinks.postgres.ddl.structure._LOCK_ATTEMPTS", 2)
    source.execute("CREATE TABLE t (id int PRIMARY KEY, up int REFERENCES t)")
    target.execute("CREATE TABLE t (id int PRIMARY KEY, up int)")

    with target.connect(autocommit=False) as holder, target.connect() as connection:
        holder.execute("LOCK TABLE t IN ROW EXCLUSIVE MODE")
        failures = add_foreign_keys(connection, name("t"), structure_of(source), same)

    assert failures == [
        "foreign key t_up_fkey: LockNotAvailable, canceling statement due to lock timeout"
    ]


@only_new
def test_foreign_key_gives_way_to_whoever_writes_the_two_tables_the_other_way_round(
    source: Database, target: Database
):
    tables = "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY, p int{})"
    source.execute(tables.format(" REFERENCES p"))
    target.execute(tables.format(""))

    with target.connect(autocommit=False) as writer, target.connect() as connection:
        writer.execute("INSERT INTO p VALUES (1)")
        pool = ThreadPoolExecutor(1)
        made = pool.submit(add_foreign_keys, connection, name("t"), structure_of(source), same)
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'p'::regclass"
        while target.query(waits) == [(0,)]:
            assert not made.done()
        writer.execute("INSERT INTO t VALUES (1, 1)")  # whoever made a deadlock would fail here
        writer.commit()

        assert made.result() == []


@only_new
def test_keys_over_periods_are_plain_keys_at_the_target(source: Database, target: Database):
    source.execute(
        "CREATE EXTENSION btree_gist;"
        "CREATE TABLE p (id int, during daterange, PRIMARY KEY (id, during WITHOUT OVERLAPS));"
        "CREATE TABLE t (id int PRIMARY KEY, p int, during daterange, c int CHECK (c > 0) NOT ENFORCED,"
        " up int REFERENCES t NOT ENFORCED,"
        " FOREIGN KEY (p, PERIOD during) REFERENCES p (id, PERIOD during))"
    )
    target.execute("CREATE EXTENSION btree_gist")

    failures = clone(source, target, times=2)

    assert set(failures) == {"foreign key t_p_during_fkey: a key over a period is not carried over"}
    made = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid IN ('p'::regclass, 't'::regclass) AND contype <> 'n' ORDER BY 1"
    assert target.query(made) == [
        ("CHECK ((c > 0)) NOT ENFORCED",),
        ("FOREIGN KEY (up) REFERENCES t(id) NOT ENFORCED",),
        ("PRIMARY KEY (id)",),
        ("PRIMARY KEY (id, during)",),
    ]


@only_15
def test_server_that_goes_away_is_no_line_of_text(source: Database, target: Database):
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a int); CREATE INDEX i ON t (a)")
    structure = structure_of(source)

    with target.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
        target.execute("SELECT pg_terminate_backend(%s)", connection.info.backend_pid)
        with pytest.raises(psycopg.OperationalError):
            add_indexes(connection, name("t"), structure, {"id", "a"})


class _Counting(psycopg.Cursor[Any]):
    count = 0

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        _Counting.count += 1
        return super().execute(*args, **kwargs)


@contextmanager
def counted(connection: psycopg.Connection[Any]) -> Iterator[type[_Counting]]:
    connection.cursor_factory = _Counting
    _Counting.count = 0
    yield _Counting


@only_15
def test_two_hundred_tables_are_read_in_a_few_queries(source: Database):
    source.execute(
        "".join(
            f"CREATE TABLE t{n} (id serial PRIMARY KEY, a int UNIQUE CHECK (a > 0), up int REFERENCES t{n});"
            f"CREATE INDEX ON t{n} (lower(a::text));"
            for n in range(200)
        )
    )
    names = [name(f"t{n}") for n in range(200)]

    with connect_source(source.dsn) as connection, counted(connection) as queries:
        found = read_structure(connection, names)

    assert set(found) == set(names)
    assert all(
        (len(each.indexes), len(each.constraints), len(each.foreign_keys), len(each.sequences))
        == (1, 2, 1, 1)
        for each in found.values()
    )
    assert queries.count <= 12, "however many tables there are"


def test_constraint_and_index_of_one_name_are_both_made(source: Database, target: Database) -> None:
    source.execute(
        "CREATE TABLE parent (id int PRIMARY KEY);"
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int CONSTRAINT y CHECK (b > 0),"
        " CONSTRAINT x FOREIGN KEY (a) REFERENCES parent);"
        "CREATE INDEX x ON t (a); CREATE INDEX y ON t (b)"
    )

    assert clone(source, target, times=2) == []

    assert target.query(DEFINITIONS) == source.query(DEFINITIONS)


@pytest.mark.parametrize("lost", ["DROP INDEX y", "ALTER TABLE t DROP CONSTRAINT y"])
def test_what_is_missing_is_made_beside_another_of_its_name(
    source: Database, target: Database, lost: str
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, b int CONSTRAINT y CHECK (b > 0)); CREATE INDEX y ON t (b)"
    )
    clone(source, target)
    target.execute(lost)

    with target.connect() as connection:
        structure = structure_of(source)
        assert add_indexes(connection, name("t"), structure, {"id", "b"}) == []

    assert target.query(DEFINITIONS) == source.query(DEFINITIONS)
