"""Which expressions are taken over, on every path by which one gets to the target; nothing is evaluated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from fix_follow import CONTEXT, T, follow_at, shape_of
from penstock.errors import TargetTableUnfit
from penstock.schema.describe import description_of, structure_of
from penstock.sinks.postgres.connect import connect_target
from penstock.sinks.postgres.ddl.alter import create_from_shape, follow
from penstock.sinks.postgres.ddl.create import create_table
from penstock.sinks.postgres.ddl.structure import add_indexes
from penstock.sinks.postgres.expressions.expressions import (
    BUILTIN,
    Expression,
    ExpressionRules,
    execute_one,
    refused_expressions,
    scope_of_columns,
)
from penstock.table import TableName, TableRule

if TYPE_CHECKING:
    from fix_postgres import Database

# Sequences stay where they are when a transaction is rolled back: who was called is seen.
_SPIES = """
CREATE SCHEMA ev;
CREATE SEQUENCE ev.calls;
CREATE FUNCTION ev.spy() RETURNS int IMMUTABLE LANGUAGE plpgsql AS
    $$ BEGIN PERFORM nextval('ev.calls'); RETURN 1; END $$;
CREATE FUNCTION ev.spy(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
    $$ BEGIN PERFORM nextval('ev.calls'); RETURN $1; END $$;
CREATE FUNCTION ev.spies(int, int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS
    $$ BEGIN PERFORM nextval('ev.calls'); RETURN true; END $$;
CREATE OPERATOR ev.<<<>>> (LEFTARG = int, RIGHTARG = int, FUNCTION = ev.spies);
CREATE FUNCTION ev.fine(int) RETURNS int IMMUTABLE LANGUAGE sql RETURN $1 + 1;
"""

_COLUMNS = [
    ("a", "integer"), ("b", "text"), ("ts", "timestamp with time zone"), ("j", "jsonb"),
    ("e", "ev.e"), ("c", "public.citext"), ("od", "ev.od"),
]  # fmt: skip

GOOD = """
a + 1 | lower(b) | (a)::text | (b)::integer | COALESCE(a, 1) | CASE a WHEN 1 THEN 2 ELSE NULL::integer END
a = ANY (ARRAY[1, 2]) | ROW(a, 1) < ROW(2, 2) | CURRENT_DATE | (now() AT TIME ZONE 'utc'::text)
(b COLLATE "C") | EXTRACT(year FROM ts) | to_tsvector('english'::regconfig, b) | (t.*) IS NULL
(b)::character varying(3) | e = 'a'::ev.e | ((a)::ev.d > 1) | c OPERATOR(public.=) 'x'::public.citext
nextval('ev.s'::regclass) | nextval('ev.not_yet'::regclass) | ts > '2020-01-01'::date
b ~ '^[a-z]+$'::text | md5((random())::text) | date_trunc('day'::text, ts) | (ts + '1 day'::interval)
jsonb_typeof(j) = 'object'::text | (j ->> 'x'::text) | gen_random_uuid() | CURRENT_USER | to_char(ts, 'YYYY'::text)
((b)::text = ANY ((ARRAY['a'::character varying, 'b'::character varying])::text[])) | concat(b, 'x') | ev.span(a, a + 1) @> 3
"""

BAD = """
pg_sleep(1) IS NULL | ev.spy() | ev.spy(a) | a OPERATOR(ev.<<<>>>) 1 | (SELECT 1) | pg_read_file('/etc/passwd')
query_to_xml('select 1', true, false, '') IS NULL | table_to_xml('pg_class'::regclass, true, false, '') IS NULL
generate_series(1, 2) | count(*) | sum(a) OVER () | 1) AS x, (2 | 1; DROP TABLE x | a -- | 1 || $$x$$
current_setting('x') | set_config('a', 'b', true) | od > 1 | (a)::ev.od > 1 | '{1}'::ev.od[] IS NULL
lo_export(1, '/tmp/x') | no_such_function(1) | pg_notify('a', 'b') IS NULL | 'pg_class'::regclass = 1::oid
currval('ev.s') | EXISTS (SELECT FROM pg_class) | pg_advisory_lock(1) IS NULL | nextval('ev.others'::regclass)
ts_rewrite('a'::tsquery, 'select 1') IS NULL | version() IS NULL | pg_terminate_backend(1) | $1 | ARRAY(SELECT 1)
nextval((('ev.oth'::text || 'ers'::text))::regclass) | nextval((16400)::oid) | nextval((16400)::regclass)
nextval(('{ev.others}'::regclass[])[1]) | to_tsvector(('ev.own'::text)::regconfig, b) | satisfies_hash_partition((1)::oid, 1, 1, a)
ts_lexize(('ev.dict'::text)::regdictionary, b) IS NULL
txid_current_snapshot() IS NULL | pg_ls_dir('.') | dblink('x') | to_tsvector('ev.own'::regconfig, b)
"""


def _listed(texts: str) -> list[str]:
    return [each.strip() for line in texts.strip().splitlines() for each in line.split(" | ")]


@pytest.fixture
def spied(target: Database) -> Database:
    target.execute(_SPIES)
    target.execute(
        "DROP ROLE IF EXISTS somebody; CREATE ROLE somebody; CREATE EXTENSION citext SCHEMA public;"
        " CREATE TYPE ev.e AS ENUM ('a'); CREATE DOMAIN ev.d AS int; CREATE SEQUENCE ev.s;"
        " CREATE SEQUENCE ev.others; ALTER SEQUENCE ev.others OWNER TO somebody;"
        " CREATE TYPE ev.span AS RANGE (SUBTYPE = int4); CREATE TEXT SEARCH CONFIGURATION ev.own (COPY = english);"
        " CREATE DOMAIN ev.od AS int CHECK (ev.spies(VALUE, 1)); ALTER DOMAIN ev.od OWNER TO somebody"
    )
    return target


def _calls(database: Database) -> int:
    [(value, is_called)] = database.query("SELECT last_value, is_called FROM ev.calls")
    return value if is_called else 0


def _refused(
    database: Database, texts: list[str], rules: ExpressionRules = BUILTIN, use: Any = "default"
) -> dict[str, str]:
    scope = scope_of_columns(T, [(name, sql.SQL(kind)) for name, kind in _COLUMNS])
    with database.connect() as connection:
        wanted = [(scope, Expression(use, text)) for text in texts]
        found = refused_expressions(connection, rules, wanted)
    return {texts[place]: why for place, why in found.items()}


def test_only_what_computes_is_taken_over(spied: Database) -> None:
    good, bad = _listed(GOOD), _listed(BAD)

    refused = _refused(spied, [*good, *bad])

    assert {text: refused[text] for text in good if text in refused} == {}
    assert [text for text in bad if text not in refused] == []
    assert refused["ev.spy(a)"] == "it calls ev.spy"
    assert _calls(spied) == 0
    assert spied.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'penstock%%'") == 0


def test_functions_that_were_named_may_be_called(spied: Database) -> None:
    rules = ExpressionRules("builtin", (TableRule.parse("ev.spy"),))

    refused = _refused(spied, ["ev.spy(a)", "ev.spy() + 1", "a OPERATOR(ev.<<<>>>) 1"], rules)

    assert list(refused) == ["a OPERATOR(ev.<<<>>>) 1"]


def test_security_definer_functions_of_a_trusted_extension_are_not_called(spied: Database) -> None:
    alter = "ALTER FUNCTION public.citext_eq(public.citext, public.citext) SECURITY DEFINER"
    spied.execute(alter)

    assert _refused(spied, ["c OPERATOR(public.=) 'x'::public.citext"])


def test_none_takes_constants_alone_and_all_takes_everything(spied: Database) -> None:
    texts = ["1", "'x'::text", "now()", "a + 1", "ev.spy()"]

    assert set(_refused(spied, texts, ExpressionRules("none"))) == {"now()", "a + 1", "ev.spy()"}
    assert _refused(spied, texts, ExpressionRules("all")) == {}


def test_next_values_are_for_defaults_alone(spied: Database) -> None:
    assert _refused(spied, ["nextval('ev.s'::regclass)"], use="check")
    assert not _refused(spied, ["nextval('ev.s'::regclass)"], use="default")


def test_many_expressions_cost_few_statements(spied: Database) -> None:
    scopes = [
        scope_of_columns(TableName("public", f"t{n}"), [("a", sql.SQL("integer"))])
        for n in range(100)
    ]
    wanted = [(s, Expression("check", f"a > {n} + abs(a)")) for s in scopes for n in range(5)]
    with spied.connect() as connection:
        sent = _count_statements(connection)
        assert refused_expressions(connection, BUILTIN, wanted) == {}

    assert len(sent) < 40


def test_what_was_judged_once_is_known(spied: Database) -> None:
    scope = scope_of_columns(T, [("a", sql.SQL("integer"))])
    wanted = [(scope, Expression("check", "a > abs(a)"))]
    with spied.connect() as connection:
        refused_expressions(connection, BUILTIN, wanted)
        sent = _count_statements(connection)
        assert refused_expressions(connection, BUILTIN, wanted) == {}
        assert sent == []
        again = [(scope, Expression("check", "a > ev.spy(a)"))] * 2
        assert len(refused_expressions(connection, BUILTIN, again)) == 2
        assert len(refused_expressions(connection, BUILTIN, again)) == 2


def _count_statements(connection: psycopg.Connection[Any]) -> list[object]:
    sent: list[object] = []
    execute = connection.execute

    def counted(query: Any, *args: Any, **options: Any) -> Any:
        sent.append(query)
        return execute(query, *args, **options)

    connection.execute = counted  # type: ignore[method-assign]
    return sent


def test_one_string_is_one_statement(target: Database) -> None:
    with target.connect() as connection, pytest.raises(psycopg.errors.SyntaxError):
        execute_one(connection, sql.SQL("CREATE TABLE one (); CREATE TABLE two ()"))

    assert not target.query("SELECT FROM pg_tables WHERE schemaname = 'public'")


_HOSTILE = """
CREATE TABLE t (
    id int PRIMARY KEY,
    plain int NOT NULL DEFAULT 7,
    fine timestamptz NOT NULL DEFAULT now(),
    spied int NOT NULL DEFAULT ev.spy(),
    twice int GENERATED ALWAYS AS (plain * 2) STORED,
    thrice int GENERATED ALWAYS AS (ev.spy(plain)) STORED,
    CONSTRAINT is_fine CHECK (plain > 0),
    CONSTRAINT is_spied CHECK (ev.spy(plain) > 0),
    CONSTRAINT is_operated CHECK (plain OPERATOR(ev.<<<>>>) 1)
);
CREATE INDEX on_fine ON t (abs(plain)) WHERE plain > 0;
CREATE INDEX on_spied ON t (ev.spy(plain));
CREATE INDEX where_spied ON t (plain) WHERE ev.spy(plain) > 0;
CREATE INDEX where_constant ON t (plain) WHERE ev.spy() > 0;
CREATE UNIQUE INDEX unique_spied ON t (id, (ev.spy(plain) + 1));
CREATE INDEX on_thrice ON t (thrice);
"""
_LEFT_OUT = {
    "column spied goes without its default: not taken over, it calls ev.spy",
    "column thrice: its expression is not taken over, it calls ev.spy",
    "check constraint is_spied: not taken over, it calls ev.spy",
    "check constraint is_operated: not taken over, it calls ev.spies",
    "index on_spied: not taken over, it calls ev.spy",
    "index where_spied: not taken over, it calls ev.spy",
    "index where_constant: not taken over, it calls ev.spy",
    "index unique_spied: not taken over, it calls ev.spy",
}


def _has_what_is_fine(target: Database) -> None:
    shape = shape_of(target)
    columns = {column.name: column for column in shape.columns}
    assert set(columns) == {"id", "plain", "fine", "spied", "twice"}
    assert columns["spied"].default is None
    assert columns["spied"].not_null
    assert (columns["plain"].default, columns["fine"].default) == ("7", "now()")
    assert {each.name for each in shape.constraints} == {"t_pkey", "is_fine"}
    assert {each.name for each in shape.indexes} == {"on_fine"}
    assert _calls(target) == 0


def test_a_table_that_is_created_and_copied_gets_what_is_fine(
    source: Database, target: Database
) -> None:
    source.execute(_SPIES + _HOSTILE)
    target.execute(_SPIES)
    shape = shape_of(source)

    with target.connect() as connection:
        notes = create_table(connection, description_of(shape), T, None)
        connection.execute("INSERT INTO t (id, spied) VALUES (1, 1)")
        columns = {"id", "plain", "fine", "spied", "twice"}
        notes += add_indexes(connection, T, structure_of(shape), columns)

    assert set(notes) == _LEFT_OUT
    _has_what_is_fine(target)


def test_a_table_created_in_stream_gets_what_is_fine(source: Database, target: Database) -> None:
    source.execute(_SPIES + _HOSTILE)
    target.execute(_SPIES)
    shape = shape_of(source)

    with target.connect() as connection, connection.cursor() as cursor:
        made = create_from_shape(
            cursor, description_of(shape), structure_of(shape), T, with_indexes=True
        )

    assert set(made.notes) >= _LEFT_OUT
    _has_what_is_fine(target)


def test_a_table_that_follows_gets_what_is_fine(source: Database, target: Database) -> None:
    source.execute(_SPIES + "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    target.execute(_SPIES + "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    before = shape_of(source)
    source.execute(
        """
        ALTER TABLE t ADD plain int NOT NULL DEFAULT 7, ADD fine timestamptz NOT NULL DEFAULT now(),
            ADD spied int, ADD twice int GENERATED ALWAYS AS (id * 2) STORED,
            ADD thrice int GENERATED ALWAYS AS (ev.spy(id)) STORED;
        ALTER TABLE t ALTER spied SET DEFAULT ev.spy();
        ALTER TABLE t ADD CONSTRAINT is_fine CHECK (plain > 0),
            ADD CONSTRAINT is_spied CHECK (ev.spy(plain) > 0),
            ADD CONSTRAINT is_operated CHECK (plain OPERATOR(ev.<<<>>>) 1);
        CREATE INDEX on_fine ON t (abs(plain)) WHERE plain > 0;
        CREATE INDEX on_spied ON t (ev.spy(plain));
        CREATE INDEX where_spied ON t (plain) WHERE ev.spy(plain) > 0;
        CREATE INDEX where_constant ON t (plain) WHERE ev.spy() > 0;
        CREATE UNIQUE INDEX unique_spied ON t (id, (ev.spy(plain) + 1));
        """
    )

    followed = follow_at(target, before, shape_of(source))

    assert set(followed.notes) == _LEFT_OUT
    target.execute("UPDATE t SET spied = 1; ALTER TABLE t ALTER spied SET NOT NULL")
    _has_what_is_fine(target)


def test_a_new_column_whose_values_are_not_taken_over_is_copied(
    source: Database, target: Database
) -> None:
    source.execute(_SPIES + "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    target.execute(_SPIES + "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    before = shape_of(source)
    source.execute("ALTER FUNCTION ev.spy() VOLATILE")
    source.execute("ALTER TABLE t ADD spied int NOT NULL DEFAULT ev.spy()")

    followed = follow_at(target, before, shape_of(source))

    assert followed.needs_copy
    assert (
        "column spied goes without its default: not taken over, it calls ev.spy" in followed.notes
    )
    assert _calls(target) == 0


def test_a_computed_column_that_changes_to_what_is_not_taken_over_is_dropped(
    source: Database, target: Database
) -> None:
    made = "CREATE TABLE t (id int PRIMARY KEY, x int GENERATED ALWAYS AS (id + 1) STORED)"
    source.execute(_SPIES + made)
    target.execute(_SPIES + made)
    before = shape_of(source)
    after = before.model_copy(
        update={
            "columns": tuple(
                each.model_copy(update={"expression": "ev.spy(id)"}) if each.generated else each
                for each in before.columns
            )
        }
    )

    followed = follow_at(target, before, after)

    assert [column.name for column in shape_of(target).columns] == ["id"]
    assert any("its expression is not taken over" in note for note in followed.notes)
    assert _calls(target) == 0


def test_definitions_that_hold_a_second_action_do_nothing(
    source: Database, target: Database
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a int DEFAULT 1, CHECK (a > 0))")
    target.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    target.execute("CREATE TABLE precious (id int)")
    shape = shape_of(source)
    before = shape_of(target).model_copy(update={"id": shape.id})
    before = before.model_copy(
        update={"columns": shape.columns, "constraints": shape.constraints[:0]}
    )
    forged = [
        "CHECK ((a > 0)), DROP COLUMN a",
        "CHECK ((a > 0)); DROP TABLE public.precious",
        "UNIQUE (a); DROP TABLE public.precious",
    ]
    for number, definition in enumerate(forged):
        check = next(each for each in shape.constraints if each.kind == "c")
        extra = check.model_copy(
            update={"definition": definition, "id": 990 + number, "name": f"forged_{number}"}
        )
        after = shape.model_copy(update={"constraints": (*before.constraints, extra)})

        followed = follow_at(target, before, after)

        assert any(f"forged_{number}: not taken over" in note for note in followed.notes)
    forged_default = shape.model_copy(
        update={
            "constraints": before.constraints,
            "columns": tuple(
                each.model_copy(update={"default": "1; DROP TABLE public.precious"})
                if each.name == "a"
                else each
                for each in shape.columns
            ),
        }
    )
    assert follow_at(target, before, forged_default).notes
    assert target.query("SELECT a FROM t") == []
    assert target.query("SELECT id FROM precious") == []


def test_a_computed_column_that_was_left_out_is_not_missed_by_later_changes(
    source: Database, target: Database
) -> None:
    source.execute(
        _SPIES
        + "CREATE TABLE t (id int PRIMARY KEY, x int GENERATED ALWAYS AS (ev.spy(id)) STORED)"
    )
    target.execute(_SPIES + "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    before = shape_of(source)
    source.execute("ALTER TABLE t ADD y int")

    followed = follow_at(target, before, shape_of(source))

    assert not followed.needs_copy
    assert [column.name for column in shape_of(target).columns] == ["id", "y"]
    assert _calls(target) == 0


_SLOW = "length(regexp_replace(repeat('ab', 20000000 + id), 'a', '', 'g')) > 0"


def test_what_takes_longer_than_the_role_may_is_left_out(
    source: Database, target: Database
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    before = shape_of(source)
    source.execute(f"ALTER TABLE t ADD CONSTRAINT slow CHECK ({_SLOW})")
    after = shape_of(source)
    target.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1)")
    target.execute(f"ALTER DATABASE {target.name} SET statement_timeout = '300ms'")

    with connect_target(target.dsn, "test") as connection:
        notes = add_indexes(connection, T, structure_of(after), {"id", "v"})
        with connection.transaction():
            without_keys = replace(CONTEXT, with_foreign_keys=False)
            followed = follow(connection.cursor(), before, after, T, without_keys)
            [(limit,)] = connection.execute("SHOW statement_timeout").fetchall()

    wanted = "check constraint slow: TimeLimitReachedError (54000)"
    assert [*notes, *followed.notes] == [wanted, wanted]
    assert limit == "0"


@pytest.mark.parametrize(
    "forged", [{"type": "integer DEFAULT ev.spy()"}, {"collation": '"C" DEFAULT ev.spy()'}]
)
def test_a_type_that_holds_more_than_a_type_is_refused(
    source: Database, target: Database, forged: dict[str, str]
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    target.execute(_SPIES)
    shape = shape_of(source)
    columns = (shape.columns[0], shape.columns[1].model_copy(update=forged))
    after = shape.model_copy(update={"columns": columns})

    with target.connect() as connection, pytest.raises(TargetTableUnfit):
        create_table(connection, description_of(after), T, None)
    target.execute("CREATE TABLE t (id int PRIMARY KEY)")
    before = shape.model_copy(update={"columns": shape.columns[:1]})
    with pytest.raises(TargetTableUnfit):
        follow_at(target, before, after)

    assert [column.name for column in shape_of(target).columns] == ["id"]
    assert _calls(target) == 0
