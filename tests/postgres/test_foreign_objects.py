"""What another role has made at the target must not run as the sink's role."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fix_follow import shape_of
from penstock.dsn import Dsn
from penstock.errors import SinkPrivilegeMissing, TargetObjectsForeign, TargetTableOccupied
from penstock.schema.describe import description_of
from penstock.sinks.postgres.connect import connect_target
from penstock.sinks.postgres.ddl.create import create_table, type_exists
from penstock.sinks.postgres.ddl.user_types import have_types
from penstock.sinks.postgres.evolve.following import follow_table
from penstock.sinks.postgres.expressions.foreign_code import refuse_foreign_code
from penstock.sinks.postgres.mapping.adoption import find_occupied
from penstock.sinks.postgres.mapping.kept_names import NO_NAMES
from penstock.sinks.postgres.mapping.table_mapping import TableMappings
from penstock.sinks.postgres.mapping.target import find_table
from penstock.sinks.postgres.options import PostgresOptions
from penstock.sinks.postgres.preflight import check_target
from penstock.sinks.postgres.state.objects import has_objects, make_objects
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fix_postgres import Database

T = TableName("public", "t")

# What would be run leaves the name of who has run it.
_SPY = (
    "CREATE TABLE public.seen (who text); CREATE FUNCTION public.spy({0}) RETURNS {1} LANGUAGE plpgsql"
    " AS $$ BEGIN INSERT INTO public.seen VALUES (current_user); RETURN {2}; END $$;"
)


@pytest.fixture
def strangers(target: Database) -> Iterator[Database]:
    """A target where roles `mallory` and `sink` may create; neither is a superuser."""
    target.execute(
        f'CREATE ROLE mallory LOGIN; CREATE ROLE sink LOGIN; GRANT CREATE ON DATABASE "{target.name}"'
        " TO mallory, sink; GRANT CREATE ON SCHEMA public TO mallory, sink"
    )
    yield target
    target.execute("DROP OWNED BY mallory, sink CASCADE; DROP ROLE mallory, sink")


def _dsn(database: Database, role: str = "postgres") -> Dsn:
    return Dsn.parse(database.url.replace("postgres@", f"{role}@"))


def _execute_as(database: Database, role: str, script: str) -> None:
    with database.connect() as connection:
        connection.execute(f"SET ROLE {role}")
        connection.execute(script)


def _table_mappings(database: Database, source_id_column: str | None = None) -> TableMappings:
    options = PostgresOptions(url=_dsn(database), source_id_column=source_id_column)
    return TableMappings(options, "p", "s", ["s"])


PLANTED = [
    "CREATE SCHEMA penstock",
    "CREATE SCHEMA penstock; CREATE TABLE penstock.progress (pipeline text)",
    "CREATE SCHEMA penstock; CREATE VIEW penstock.tables AS SELECT 1 AS pipeline",
]


@pytest.mark.parametrize("role", ["postgres", "sink"])
@pytest.mark.parametrize("planted", PLANTED)
def test_a_schema_that_somebody_else_has_made_is_not_used(
    strangers: Database, planted: str, role: str
) -> None:
    _execute_as(strangers, "mallory", planted)
    before = strangers.query("SELECT oid FROM pg_class ORDER BY 1")

    with connect_target(_dsn(strangers, role), "test") as connection:
        for use in (has_objects, make_objects):
            with pytest.raises(TargetObjectsForeign, match="role mallory"):
                use(connection)

    assert strangers.query("SELECT oid FROM pg_class ORDER BY 1") == before
    faults = check_target(_dsn(strangers, "postgres"))
    assert [type(each) for each in faults] == [TargetObjectsForeign]


HANDED = {
    "table": "ALTER TABLE penstock.tables OWNER TO mallory",
    "schema": "ALTER SCHEMA penstock OWNER TO mallory",
    "trigger": "CREATE TRIGGER spy BEFORE UPDATE ON penstock.progress FOR EACH ROW"
    " EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "rule": "CREATE RULE spy AS ON INSERT TO penstock.ranges DO ALSO SELECT 1",
    "row-level security": "ALTER TABLE penstock.tables ENABLE ROW LEVEL SECURITY",
    "no plain table": "DROP TABLE penstock.ranges; CREATE VIEW penstock.ranges AS SELECT 1",
}


@pytest.mark.parametrize("what", HANDED)
def test_own_tables_that_somebody_else_has_got_into_are_not_used(
    strangers: Database, what: str
) -> None:
    with connect_target(_dsn(strangers), "test") as connection:
        make_objects(connection)
        strangers.execute(HANDED[what])

        with pytest.raises(
            TargetObjectsForeign, match="mallory" if what in ("table", "schema") else what
        ):
            has_objects(connection)


def test_own_tables_of_a_superuser_may_be_used(strangers: Database) -> None:
    with connect_target(_dsn(strangers), "test") as connection:
        make_objects(connection)
    strangers.execute("GRANT USAGE ON SCHEMA penstock TO sink")

    with connect_target(_dsn(strangers, "sink"), "test") as connection:
        assert has_objects(connection)


# What an upgrade finds: a table and a column of this version are not there yet.
_OLDER = "DROP TABLE penstock.schemas; ALTER TABLE penstock.tables DROP COLUMN names_due"


def test_a_role_that_may_create_in_the_schema_alone_makes_what_is_missing_there(
    strangers: Database,
) -> None:
    with connect_target(_dsn(strangers, "sink"), "test") as connection:
        make_objects(connection)
    strangers.execute(_OLDER)
    strangers.execute(f'REVOKE CREATE ON DATABASE "{strangers.name}" FROM sink')

    faults = check_target(_dsn(strangers, "sink"))
    with connect_target(_dsn(strangers, "sink"), "test") as connection:
        make_objects(connection)

    assert faults == []
    assert strangers.value("SELECT to_regclass('penstock.schemas') IS NOT NULL")
    assert strangers.query("SELECT names_due FROM penstock.tables") == []


def test_a_table_of_a_superuser_that_lacks_nothing_is_not_altered(strangers: Database) -> None:
    with connect_target(_dsn(strangers), "test") as connection:
        make_objects(connection)
    strangers.execute("DROP TABLE penstock.schemas; GRANT USAGE, CREATE ON SCHEMA penstock TO sink")

    with connect_target(_dsn(strangers, "sink"), "test") as connection:
        make_objects(connection)

    assert check_target(_dsn(strangers, "sink")) == []


def test_what_the_role_may_not_make_is_reported_with_the_sql_that_makes_it(
    strangers: Database,
) -> None:
    with connect_target(_dsn(strangers), "test") as connection:
        make_objects(connection)
    strangers.execute(_OLDER)
    strangers.execute("GRANT USAGE, CREATE ON SCHEMA penstock TO sink")

    [fault] = check_target(_dsn(strangers, "sink"))

    assert isinstance(fault, SinkPrivilegeMissing)
    added = "ALTER TABLE penstock.tables ADD COLUMN IF NOT EXISTS names_due"
    assert added in fault.do
    strangers.execute(fault.do.split(": ", 1)[1])
    assert check_target(_dsn(strangers, "sink")) == []
    with connect_target(_dsn(strangers, "sink"), "test") as connection:
        make_objects(connection)


_FUNCTION = (
    "CREATE FUNCTION public.spy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;"
)
_TRIGGER = (
    "CREATE TRIGGER spy BEFORE INSERT ON public.t FOR EACH ROW EXECUTE FUNCTION public.spy();"
)


def _is_refused(database: Database, role: str = "postgres") -> bool:
    with connect_target(_dsn(database, role), "test") as connection:
        try:
            refuse_foreign_code(connection, find_table(connection, T), T, T)
        except TargetObjectsForeign:
            return True
    return False


@pytest.mark.parametrize(
    ("script", "is_refused"),
    [
        ("", False),
        (_TRIGGER, False),
        (_TRIGGER + "ALTER TABLE public.t ENABLE ALWAYS TRIGGER spy", True),
        (_TRIGGER + "ALTER TABLE public.t ENABLE REPLICA TRIGGER spy", True),
        (_TRIGGER + "ALTER TABLE public.t DISABLE TRIGGER spy", False),
        (
            _TRIGGER + "ALTER TABLE public.t ENABLE ALWAYS TRIGGER spy;"
            "ALTER FUNCTION public.spy() SECURITY DEFINER",
            False,
        ),
        ("CREATE RULE spy AS ON INSERT TO public.t DO ALSO SELECT 1", False),
        (
            (
                "CREATE RULE spy AS ON INSERT TO public.t DO ALSO SELECT 1;"
                "ALTER TABLE public.t ENABLE ALWAYS RULE spy"
            ),
            True,
        ),
        ("ALTER TABLE public.t ADD CHECK (id > 0), ADD at timestamptz DEFAULT now()", False),
        ("ALTER TABLE public.t ADD n serial, ADD x uuid DEFAULT gen_random_uuid()", False),
        ("ALTER TABLE public.t ADD CHECK (pg_sleep(id) IS NULL)", True),
        (
            (
                "CREATE FUNCTION public.f(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';"
                "CREATE INDEX ON public.t (public.f(id))"
            ),
            True,
        ),
    ],
)
def test_code_of_a_table_of_another_role_is_not_run(
    strangers: Database, script: str, is_refused: bool
) -> None:
    made = "CREATE TABLE public.t (id int PRIMARY KEY);" + _FUNCTION + script
    _execute_as(strangers, "mallory", made)

    assert _is_refused(strangers) is is_refused


def test_triggers_of_the_sinks_own_role_may_fire(strangers: Database) -> None:
    made = "CREATE TABLE public.t (id int PRIMARY KEY);" + _FUNCTION + _TRIGGER
    _execute_as(strangers, "sink", made + "ALTER TABLE public.t ENABLE ALWAYS TRIGGER spy")

    assert not _is_refused(strangers, "sink")
    assert _is_refused(strangers, "mallory")


def test_a_role_that_cannot_switch_triggers_off_does_not_fire_those_of_others(
    strangers: Database,
) -> None:
    made = "CREATE TABLE public.t (id int PRIMARY KEY);" + _FUNCTION + _TRIGGER
    _execute_as(strangers, "mallory", made)

    assert _is_refused(strangers, "sink")
    assert not _is_refused(strangers, "postgres")


def test_triggers_of_partitions_count(strangers: Database) -> None:
    _execute_as(
        strangers,
        "mallory",
        "CREATE TABLE public.t (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE public.part PARTITION OF public.t DEFAULT;" + _FUNCTION + "CREATE TRIGGER spy"
        " BEFORE INSERT ON public.part FOR EACH ROW EXECUTE FUNCTION public.spy();"
        "ALTER TABLE public.part ENABLE ALWAYS TRIGGER spy",
    )

    assert _is_refused(strangers)


_DOMAIN = (
    "CREATE FUNCTION public.spy(int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RETURN true; END $$;"
    "CREATE DOMAIN public.d AS int CHECK (public.spy(VALUE));"
)
_CAST = (
    "CREATE TYPE public.e AS ENUM ('a'); CREATE FUNCTION public.to_e(text) RETURNS public.e"
    " LANGUAGE plpgsql AS $$ BEGIN RETURN 'a'; END $$;"
    " CREATE CAST (text AS public.e) WITH FUNCTION public.to_e(text);"
)
_RANGE = (
    "CREATE FUNCTION public.apart(int, int) RETURNS float8 IMMUTABLE LANGUAGE plpgsql AS"
    " $$ BEGIN RETURN 1; END $$;"
    "CREATE TYPE public.r AS RANGE (SUBTYPE = int4, SUBTYPE_DIFF = public.apart);"
)
_TYPES_OF_MALLORY = {
    "domain": (_DOMAIN, "d"),
    "array of a domain": (_DOMAIN, "d[]"),
    "domain over a domain": (_DOMAIN + "CREATE DOMAIN public.dd AS public.d;", "dd"),
    "composite with a domain": (_DOMAIN + "CREATE TYPE public.c AS (a public.d);", "c"),
    "row with a domain": (_DOMAIN + "CREATE TABLE public.other (a public.d);", "other"),
    "enum with a cast": (_CAST, "e"),
    "range with a function": (_RANGE, "r"),
    "multirange with a function": (_RANGE, "r_multirange"),
}


@pytest.mark.parametrize("owner", ["mallory", "postgres"])
@pytest.mark.parametrize("kind", _TYPES_OF_MALLORY)
def test_columns_of_a_type_of_another_role_are_not_written(
    strangers: Database, kind: str, owner: str
) -> None:
    script, name = _TYPES_OF_MALLORY[kind]
    _execute_as(strangers, "mallory", script)

    _execute_as(strangers, owner, f"CREATE TABLE public.t (id int PRIMARY KEY, v public.{name})")

    assert _is_refused(strangers)
    assert _is_refused(strangers, "sink")


def test_columns_of_types_of_a_superuser_or_of_the_sinks_role_are_written(
    strangers: Database,
) -> None:
    for owner, ending in (("postgres", "a"), ("sink", "b")):
        script = (
            f"CREATE DOMAIN public.d_{ending} AS int; CREATE TYPE public.e_{ending} AS ENUM ('a')"
        )
        _execute_as(strangers, owner, script)
    columns = "id int PRIMARY KEY, a public.d_a, b public.d_b[], c public.e_a, d public.e_b"
    _execute_as(strangers, "sink", f"CREATE TABLE public.t ({columns})")

    assert not _is_refused(strangers, "sink")


def test_types_of_another_role_that_call_nothing_may_be_used(strangers: Database) -> None:
    made = "CREATE TYPE public.e AS ENUM ('a'); CREATE TYPE public.r AS RANGE (SUBTYPE = int4);"
    _execute_as(strangers, "mallory", made + "CREATE TYPE public.c AS (a int, b public.e)")
    columns = "id int PRIMARY KEY, a public.e, b public.r, c public.c[]"
    _execute_as(strangers, "mallory", f"CREATE TABLE public.t ({columns})")

    assert not _is_refused(strangers)


def test_constraints_of_partitions_count(strangers: Database) -> None:
    _execute_as(
        strangers, "postgres", "CREATE TABLE public.t (id int PRIMARY KEY) PARTITION BY RANGE (id)"
    )
    strangers.execute("CREATE TABLE public.part PARTITION OF public.t DEFAULT")
    strangers.execute("ALTER TABLE public.part OWNER TO mallory")
    assert not _is_refused(strangers)

    _execute_as(strangers, "mallory", "ALTER TABLE public.part ADD CHECK (pg_sleep(id) IS NULL)")

    assert _is_refused(strangers)


_KEY = (
    "CREATE FUNCTION public.spy(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
    " $$ BEGIN RETURN $1; END $$;"
    "CREATE TABLE public.t (id int) PARTITION BY RANGE ({key});"
    "CREATE TABLE public.part PARTITION OF public.t DEFAULT {below};"
)


@pytest.mark.parametrize(
    ("key", "below", "is_refused"),
    [
        ("public.spy(id)", "", True),
        (
            "id",
            "PARTITION BY LIST (public.spy(id)); CREATE TABLE public.deep PARTITION OF public.part DEFAULT",
            True,
        ),
        ("abs(id)", "PARTITION BY HASH (id)", False),
    ],
)
def test_keys_of_partitions_count(
    strangers: Database, key: str, below: str, is_refused: bool
) -> None:
    _execute_as(strangers, "mallory", _KEY.format(key=key, below=below))

    assert _is_refused(strangers) is is_refused


@pytest.mark.parametrize(
    "kind", ["domain", "composite with a domain", "enum with a cast", "range with a function"]
)
def test_a_type_of_another_role_is_not_used_for_a_table_that_is_made(
    strangers: Database, source: Database, kind: str
) -> None:
    script, name = _TYPES_OF_MALLORY[kind]
    _execute_as(strangers, "mallory", script)
    source.execute(script.replace(" CHECK (public.spy(VALUE))", ""))
    source.execute(f"CREATE TABLE public.t (id int PRIMARY KEY, v public.{name})")

    with connect_target(_dsn(strangers), "test") as connection:
        make_objects(connection)
        with pytest.raises(TargetObjectsForeign, match="mallory"):
            have_types(connection, ("test", "test"), T, shape_of(source).types)


def test_a_domain_of_another_role_is_not_taken_for_the_type_of_an_extension(
    strangers: Database, source: Database
) -> None:
    source.execute("CREATE EXTENSION citext; CREATE TABLE public.t (id int PRIMARY KEY, v citext)")
    _execute_as(
        strangers,
        "mallory",
        _SPY.format("text", "bool", "true")
        + "CREATE DOMAIN public.citext AS text CHECK (public.spy(VALUE))",
    )

    with connect_target(_dsn(strangers), "test") as connection:
        make_objects(connection)
        with pytest.raises(TargetObjectsForeign, match="mallory"):
            have_types(connection, ("test", "test"), T, shape_of(source).types)
        with connection.transaction():
            assert type_exists(connection, "public.citext")

    assert strangers.query("SELECT * FROM public.seen") == []


def test_a_table_of_another_role_is_looked_into_without_what_that_has_made(
    strangers: Database,
) -> None:
    _execute_as(
        strangers,
        "mallory",
        "CREATE TYPE public.e AS ENUM ('s');"
        + _SPY.format("public.e", "text", "'s'")
        + "CREATE CAST (public.e AS text) WITH FUNCTION public.spy(public.e);"
        "CREATE TABLE public.t (id int PRIMARY KEY, sid public.e); INSERT INTO public.t VALUES (1, 's')",
    )
    strangers.execute("CREATE TABLE public.padded (id int PRIMARY KEY, sid char(9))")
    strangers.execute("INSERT INTO public.padded VALUES (1, 's')")

    taken = find_occupied(_table_mappings(strangers, "sid"), [T, TableName("public", "padded")])

    assert [type(each) for each in taken] == [TargetTableOccupied] * 2
    assert strangers.query("SELECT * FROM public.seen") == []


def test_a_table_of_another_role_is_not_altered_where_that_runs_what_it_has_made(
    strangers: Database, source: Database
) -> None:
    made = "CREATE TABLE public.t (id int PRIMARY KEY, v int)"
    source.execute(made)
    _execute_as(strangers, "mallory", f"{made}; INSERT INTO public.t VALUES (1, 1)")
    before = shape_of(source)
    source.execute("ALTER TABLE t ALTER v TYPE bigint")
    mappings = _table_mappings(strangers)
    # After the table was planned.
    _execute_as(
        strangers,
        "mallory",
        _SPY.format("int8", "bool", "true") + "ALTER TABLE public.t ADD CHECK (public.spy(v))",
    )

    with connect_target(_dsn(strangers), "test") as connection, connection.cursor() as cursor:
        with pytest.raises(TargetObjectsForeign, match="spy"), connection.transaction():
            follow_table(cursor, mappings, before, shape_of(source), NO_NAMES, made_by_us=False)
        _execute_as(strangers, "mallory", "ALTER TABLE public.t DROP CONSTRAINT t_v_check")
        with connection.transaction():
            follow_table(cursor, mappings, before, shape_of(source), NO_NAMES, made_by_us=False)

    assert strangers.query("SELECT * FROM public.seen WHERE who <> 'mallory'") == []
    assert shape_of(strangers).columns[1].type == "bigint"


def test_tables_are_made_without_the_right_to_make_schemas(strangers: Database) -> None:
    with connect_target(_dsn(strangers, "sink"), "test") as connection:
        make_objects(connection)
    strangers.execute(f'REVOKE CREATE ON DATABASE "{strangers.name}" FROM sink')
    strangers.execute(
        "CREATE TYPE mood AS ENUM ('ok'); CREATE TABLE t (id int PRIMARY KEY, m mood)"
    )
    shape = shape_of(strangers)
    strangers.execute("DROP TABLE t; DROP TYPE mood")

    with connect_target(_dsn(strangers, "sink"), "test") as connection:
        create_table(connection, description_of(shape), T, None)

    assert strangers.value("SELECT to_regclass('public.t') IS NOT NULL")
