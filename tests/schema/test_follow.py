"""A table at the target follows what is done to the source's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fix_follow import CONTEXT, T, assert_follows, clone, follow_at, plain, same, shape_of, shapes
from fix_postgres import only_15, only_new
from penstock.errors import SchemaChangeRefused, SchemaChangeStops, TargetTableMissing
from penstock.schema.describe import description_of, structure_of
from penstock.schema.shape import SequenceShape
from penstock.sinks.postgres.ddl.alter import (
    create_from_shape,
    drop_gone_foreign_keys,
    drop_table,
    follow,
)
from penstock.sinks.postgres.ddl.alter_objects import follow_sequence
from penstock.sinks.postgres.ddl.schemas import drop_schema
from penstock.sinks.postgres.ddl.structure import add_foreign_keys
from penstock.sinks.postgres.state.objects import make_objects, statements
from penstock.table import TableName

if TYPE_CHECKING:
    from fix_postgres import Database
    from penstock.schema.shape import TableShape

HOSTILE = """a"; DROP TABLE t; -- %s {} '"""


START = """
CREATE SCHEMA other;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE p (id bigint PRIMARY KEY, code text UNIQUE);
CREATE TABLE t (
    id int PRIMARY KEY, a int NOT NULL DEFAULT 5, b text, c numeric(10,2) DEFAULT 1.5, d timestamp,
    m mood DEFAULT 'ok', s serial, i int GENERATED ALWAYS AS IDENTITY,
    g int GENERATED ALWAYS AS (a * 2) STORED, r bigint, v varchar(10),
    CONSTRAINT positive CHECK (a > 0), CONSTRAINT b_once UNIQUE (b),
    CONSTRAINT to_p FOREIGN KEY (r) REFERENCES p);
CREATE INDEX by_c ON t (c DESC) WHERE a > 1;
CREATE INDEX by_lower ON t (lower(b), d);
INSERT INTO p VALUES (1, 'one'), (2, 'two');
INSERT INTO t (id, a, b, c, d, r, v) VALUES
    (1, 1, '1', 2.25, '2020-01-01', 1, 'x'), (2, 2, '2', NULL, NULL, NULL, NULL),
    (3, 3, '3', -7, '2021-02-03 04:05', 2, '12');
"""

SCRIPTS = {
    "add column": "ALTER TABLE t ADD x text",
    "add column with default": "ALTER TABLE t ADD x text DEFAULT 'it''s' NOT NULL, ADD y int[] DEFAULT '{1,2}'",
    "add column, default later": "ALTER TABLE t ADD x int; ALTER TABLE t ALTER x SET DEFAULT 3",
    "add column, other default later": "ALTER TABLE t ADD x int DEFAULT 1; ALTER TABLE t ALTER x SET DEFAULT 2",
    "add column, default away": "ALTER TABLE t ADD x bytea DEFAULT '\\x00ff'; ALTER TABLE t ALTER x DROP DEFAULT",
    "add column of new type": "CREATE TYPE other.kind AS ENUM ('a', 'b'); ALTER TABLE t ADD x other.kind[] DEFAULT '{a}'",
    "add column of stable default": "ALTER TABLE t ADD x timestamptz DEFAULT now()",
    "add generated": "ALTER TABLE t ADD x int GENERATED ALWAYS AS (id + a) STORED",
    "add collation": 'ALTER TABLE t ADD x text COLLATE "C"',
    "drop column": "ALTER TABLE t DROP b",
    "drop column with all that hangs on it": "ALTER TABLE t DROP a CASCADE",
    "drop key column": "ALTER TABLE t DROP id",
    "drop and add": "ALTER TABLE t DROP b, ADD b int DEFAULT 4",
    "rename column": "ALTER TABLE t RENAME a TO aa",
    "rename two in a chain": "ALTER TABLE t RENAME c TO c2; ALTER TABLE t RENAME b TO c",
    "swap names": "ALTER TABLE t RENAME b TO tmp; ALTER TABLE t RENAME v TO b; ALTER TABLE t RENAME tmp TO v",
    "drop and take its name": "ALTER TABLE t DROP c; ALTER TABLE t RENAME d TO c",
    "rename and drop and add": "ALTER TABLE t RENAME b TO bb; ALTER TABLE t DROP v; ALTER TABLE t ADD b int",
    "rename table": "ALTER TABLE t RENAME TO u",
    "rename to strange": 'ALTER TABLE t RENAME TO "x"" y;"; ALTER TABLE "x"" y;" RENAME b TO "%s {} "" --"',
    "set schema": "ALTER TABLE t SET SCHEMA other",
    "set new schema and rename": "CREATE SCHEMA more; ALTER TABLE t SET SCHEMA more; ALTER TABLE more.t RENAME TO tt; ALTER TABLE more.tt ADD z int",
    "type wider": "ALTER TABLE t ALTER s TYPE numeric",
    "type of key": "ALTER TABLE t ALTER id TYPE bigint",
    "type with default": "ALTER TABLE t ALTER c TYPE int, ALTER v TYPE text",
    "type with check": "ALTER TABLE t DROP g; ALTER TABLE t ALTER a TYPE bigint; ALTER TABLE t ADD g int GENERATED ALWAYS AS (a + 2) STORED",
    "type with index": "ALTER TABLE t ALTER b TYPE varchar(30)",
    "type of serial": "ALTER TABLE t ALTER s TYPE bigint; ALTER SEQUENCE t_s_seq AS bigint",
    "type of identity": "ALTER TABLE t ALTER i TYPE bigint",
    "type to text": "ALTER TABLE t ALTER m DROP DEFAULT; ALTER TABLE t ALTER m TYPE text; ALTER TABLE t ALTER c TYPE text",
    "collation": 'ALTER TABLE t ALTER b TYPE text COLLATE "C"',
    "collation back": 'ALTER TABLE t ALTER v TYPE varchar(10) COLLATE "C"; ALTER TABLE t ALTER v TYPE varchar(12)',
    "default": "ALTER TABLE t ALTER a SET DEFAULT 7, ALTER c DROP DEFAULT, ALTER b SET DEFAULT 'x'",
    "not null": "ALTER TABLE t ALTER a DROP NOT NULL, ALTER b SET NOT NULL",
    "identity away": "ALTER TABLE t ALTER i DROP IDENTITY",
    "identity away, and null": "ALTER TABLE t ALTER i DROP IDENTITY; ALTER TABLE t ALTER i DROP NOT NULL",
    "identity by default": "ALTER TABLE t ALTER i SET GENERATED BY DEFAULT",
    "identity counts": "ALTER TABLE t ALTER i SET INCREMENT 7 SET CACHE 3",
    "identity comes": "ALTER TABLE t ALTER a DROP DEFAULT; ALTER TABLE t ALTER a ADD GENERATED ALWAYS AS IDENTITY (START 100)",
    "serial comes": "CREATE SEQUENCE q OWNED BY t.r; ALTER TABLE t ALTER r SET DEFAULT nextval('q')",
    "serial goes": "ALTER TABLE t ALTER s DROP DEFAULT",
    "sequence": "ALTER SEQUENCE t_s_seq INCREMENT 3 CACHE 2; ALTER SEQUENCE t_s_seq RENAME TO q",
    "expression away": "ALTER TABLE t ALTER g DROP EXPRESSION",
    "key away": "ALTER TABLE t DROP CONSTRAINT t_pkey",
    "other key": "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD CONSTRAINT k PRIMARY KEY (b, id)",
    "key renamed": "ALTER TABLE t RENAME CONSTRAINT t_pkey TO k",
    "constraints come": "ALTER TABLE t ADD CONSTRAINT e EXCLUDE (v WITH =), ADD UNIQUE (s, i), ADD CHECK (i > 0) NOT VALID",
    "constraints go": "ALTER TABLE t DROP CONSTRAINT positive, DROP CONSTRAINT b_once, DROP CONSTRAINT to_p",
    "constraints are renamed": "ALTER TABLE t RENAME CONSTRAINT positive TO nn; ALTER TABLE t RENAME CONSTRAINT b_once TO bo; ALTER TABLE t RENAME CONSTRAINT to_p TO tp",
    "constraint changes": "ALTER TABLE t DROP CONSTRAINT positive, ADD CONSTRAINT positive CHECK (a > -1)",
    "indexes": "DROP INDEX by_c; CREATE UNIQUE INDEX n ON t (b) INCLUDE (c); ALTER INDEX by_lower RENAME TO bl",
    "index under a name that became free": "DROP INDEX by_c; ALTER INDEX by_lower RENAME TO by_c",
    "index changes": "DROP INDEX by_c; CREATE INDEX by_c ON t (c)",
    "index of renamed column": "ALTER TABLE t RENAME c TO cc; ALTER TABLE t RENAME b TO bb",
    "foreign key comes": "ALTER TABLE t ADD FOREIGN KEY (v) REFERENCES p (code) ON DELETE SET NULL DEFERRABLE NOT VALID",
    "foreign key changes": "ALTER TABLE t ALTER CONSTRAINT to_p DEFERRABLE INITIALLY DEFERRED",
    "foreign key is another": "ALTER TABLE t DROP CONSTRAINT to_p, ADD CONSTRAINT to_p FOREIGN KEY (r) REFERENCES p ON DELETE CASCADE",
    "enum": "ALTER TYPE mood ADD VALUE 'fine' AFTER 'sad'; ALTER TYPE mood ADD VALUE 'first' BEFORE 'sad'; ALTER TYPE mood ADD VALUE 'last'",
    "enum renamed": "ALTER TYPE mood RENAME TO humour; ALTER TYPE humour SET SCHEMA other; ALTER TYPE other.humour RENAME VALUE 'ok' TO 'okay'; ALTER TABLE t ADD z int",
    "identity index": "ALTER TABLE t ALTER b SET NOT NULL; ALTER TABLE t ADD z int",
    "parent renamed": "ALTER TABLE p RENAME TO pp; ALTER TABLE pp RENAME id TO pid",
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_target_follows(name: str, source: Database, target: Database):
    source.execute(START)
    clone(source, target)

    done = assert_follows(source, target, SCRIPTS[name])

    assert all(not followed.notes and not followed.needs_copy for followed in done)


def test_names_that_would_run_do_not(source: Database, target: Database):
    name = HOSTILE.replace('"', '""')
    source.execute(
        f'CREATE TABLE t (id int PRIMARY KEY, a int); CREATE TABLE "{name}" (id int PRIMARY KEY);'
        "INSERT INTO t VALUES (1, 2)"
    )
    clone(source, target)

    assert_follows(
        source,
        target,
        f'CREATE TYPE "e{name}" AS ENUM (\'x\'); ALTER TYPE "e{name}" ADD VALUE $q${HOSTILE}$q$;'
        f'ALTER TABLE t RENAME a TO "{name}"; ALTER TABLE t ADD "b{name}" text DEFAULT $q${HOSTILE}$q$;'
        f'ALTER TABLE t ADD "c{name}" "e{name}", ADD CONSTRAINT "u{name}" UNIQUE ("{name}"),'
        f' ADD CONSTRAINT "f{name}" FOREIGN KEY ("{name}") REFERENCES "{name}" NOT VALID,'
        f' ADD CONSTRAINT "k{name}" CHECK ("{name}" > 0);'
        f'CREATE INDEX "i{name}" ON t ("b{name}") WHERE "{name}" > 1; CREATE SCHEMA "s{name}";'
        f'ALTER TABLE t SET SCHEMA "s{name}"; ALTER TABLE "s{name}".t RENAME TO "t{name}"',
    )
    assert_follows(
        source,
        target,
        f'ALTER TABLE "s{name}"."t{name}" DROP CONSTRAINT "k{name}", DROP "c{name}",'
        f' ALTER "{name}" TYPE bigint, ALTER "b{name}" SET NOT NULL, ALTER "b{name}" DROP DEFAULT;'
        f'DROP INDEX "s{name}"."i{name}"; ALTER TYPE "e{name}" RENAME VALUE $q${HOSTILE}$q$ TO \'y\'',
    )

    assert len(shapes(target)) == 2


def test_expression_changes(source: Database, target: Database):
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED,"
        " CHECK (g > 0)); CREATE INDEX i ON t (g); INSERT INTO t VALUES (1)"
    )
    clone(source, target)
    is_old = source.value("SHOW server_version_num").startswith("15")
    ddl = "ALTER TABLE t ALTER g SET EXPRESSION AS (id * 3)"
    if is_old:
        pytest.skip("this server cannot change an expression")

    (followed,) = assert_follows(source, target, ddl)

    assert followed.statements == [
        'ALTER TABLE "public"."t" ALTER COLUMN "g" SET EXPRESSION AS ((id * 3))'
    ]


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE t ALTER g TYPE numeric",
        "ALTER TABLE t ALTER g TYPE numeric(12, 3), ALTER h TYPE varchar(40)",
        'ALTER TABLE t ALTER h TYPE text COLLATE "C"',
        pytest.param(
            "ALTER TABLE t ALTER g TYPE text; ALTER TABLE t RENAME g TO gg", marks=pytest.mark.long
        ),
        pytest.param(
            "ALTER TABLE t ALTER g TYPE bigint; ALTER TABLE t ALTER g DROP EXPRESSION",
            marks=pytest.mark.long,
        ),
    ],
)
def test_type_of_a_generated_column_changes(ddl: str, source: Database, target: Database):
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED,"
        " h varchar(9) GENERATED ALWAYS AS ('h' || id::text) STORED, CONSTRAINT h_once UNIQUE (h),"
        " CONSTRAINT g_there CHECK (g IS NOT NULL)); CREATE INDEX i ON t (g); INSERT INTO t VALUES (1), (7)"
    )
    clone(source, target)

    (followed,) = assert_follows(source, target, ddl)

    assert not followed.notes
    assert not followed.needs_copy


@only_new
def test_virtual_columns_are_followed(source: Database, target: Database):
    source.execute("CREATE TABLE t (id int PRIMARY KEY, a int); INSERT INTO t VALUES (1, 2)")
    clone(source, target)

    assert_follows(source, target, "ALTER TABLE t ADD v int GENERATED ALWAYS AS (a * 2) VIRTUAL")
    assert_follows(source, target, "ALTER TABLE t ALTER v SET EXPRESSION AS (a * 3)")
    assert_follows(source, target, "ALTER TABLE t ADD CHECK (v > 0)")
    assert_follows(source, target, "ALTER TABLE t ALTER v TYPE numeric(9, 1)")

    assert shape_of(target).columns[2].generated == "v"


@only_15
def test_expression_changes_at_a_target_that_cannot_set_it(
    source: Database, target: Database, pg_new: Any, make_database: Any
):
    newer = make_database(pg_new, "source")
    newer.execute(
        "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED,"
        " CHECK (g > 0)); CREATE INDEX i ON t (g); INSERT INTO t VALUES (1)"
    )
    clone(newer, target)

    assert_follows(newer, target, "ALTER TABLE t ALTER g SET EXPRESSION AS (id * 3)")


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE t ADD x serial",
        "ALTER TABLE t ADD x int GENERATED ALWAYS AS IDENTITY",
        "ALTER TABLE t ADD x uuid DEFAULT gen_random_uuid() NOT NULL",
        "ALTER TABLE t DROP id; ALTER TABLE t ADD id bigserial PRIMARY KEY",
        "SET TimeZone = 'Asia/Tokyo'; ALTER TABLE t ALTER d TYPE timestamptz",
    ],
)
def test_values_that_the_source_made_up_are_to_be_copied(
    ddl: str, source: Database, target: Database
):
    source.execute(START)
    clone(source, target)

    (followed,) = assert_follows(source, target, ddl)

    assert followed.needs_copy
    assert not followed.notes


def test_time_zone_is_reported_by_whether_rows_were_written(source: Database, target: Database):
    source.execute(START)
    clone(source, target)

    ddl = "SET TimeZone = 'UTC'; ALTER TABLE t ALTER d TYPE timestamptz"
    (followed,) = assert_follows(source, target, ddl)

    assert not followed.needs_copy


@pytest.mark.parametrize(
    ("ddl", "notes"),
    [
        ("ALTER TABLE t ALTER b TYPE int USING length(b)", []),
        ("ALTER TABLE t ALTER b TYPE jsonb USING '{}'", []),
        ("ALTER TABLE t ALTER m DROP DEFAULT, ALTER m TYPE int USING 3", []),
        ("ALTER TABLE t ALTER b TYPE text USING b || '!'", []),
    ],
)
def test_values_of_using_are_to_be_copied(
    ddl: str, notes: list[str], source: Database, target: Database
):
    source.execute(START + "DROP INDEX by_lower; ALTER TABLE t DROP CONSTRAINT b_once")
    clone(source, target)

    (followed,) = assert_follows(source, target, ddl, has_using=True)

    assert followed.needs_copy
    assert followed.notes == notes


def change(source: Database, target: Database, ddl: str) -> tuple[TableShape, TableShape]:
    source.execute(START)
    clone(source, target)
    before = shape_of(source)
    source.execute(ddl)
    return before, shapes(source)[before.id]


def test_table_that_is_not_ours_keeps_its_indexes(source: Database, target: Database):
    before, after = change(
        source, target, "DROP INDEX by_c; CREATE INDEX n ON t (d); ALTER TABLE t ADD UNIQUE (s)"
    )

    assert follow_at(target, before, after, made_by_us=False).statements == []


def test_only_wanted_columns_are_followed(source: Database, target: Database):
    before, after = change(
        source,
        target,
        "ALTER TABLE t RENAME b TO bb; ALTER TABLE t ADD x int, ADD y int, DROP c, DROP d",
    )

    followed = follow_at(target, before, after, wanted=("id", "a", "b", "c", "x"))

    assert followed.column_names == {"bb": "b"}
    assert followed.statements == [
        'DROP INDEX "public"."by_lower"',
        'ALTER TABLE "public"."t" DROP COLUMN "c"',
        'ALTER TABLE "public"."t" ADD COLUMN "x" integer',
    ]


def test_additive_drops_and_narrows_nothing(source: Database, target: Database):
    before, after = change(
        source,
        target,
        "UPDATE t SET v = 'x'; ALTER TABLE t DROP CONSTRAINT to_p, DROP CONSTRAINT positive, DROP b,"
        " ADD x int DEFAULT 1 NOT NULL, ALTER v TYPE varchar(5), ALTER s TYPE bigint;"
        "ALTER TABLE t ALTER v SET NOT NULL, ALTER r SET DEFAULT 3;"
        "ALTER TABLE t RENAME d TO dd; DROP INDEX by_c; CREATE INDEX n ON t (dd); ALTER TABLE t ADD UNIQUE (s);"
        "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t DROP g, DROP id; ALTER TABLE t RENAME TO u",
    )

    target.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    followed = follow_at(target, before, after, policy="additive")

    assert followed.target == TableName("public", "u")
    assert followed.statements == [
        'ALTER TABLE "public"."t" RENAME TO "u"',
        'ALTER TABLE "public"."u" ALTER COLUMN "id" DROP NOT NULL',
        'ALTER TABLE "public"."u" RENAME COLUMN "d" TO "dd"',
        'ALTER TABLE "public"."u" ALTER COLUMN "s" TYPE bigint USING "s"::bigint',
        'ALTER TABLE "public"."u" ADD COLUMN "x" integer DEFAULT 1',
        'ALTER TABLE "public"."u" ALTER COLUMN "r" SET DEFAULT 3',
        'CREATE INDEX "n" ON "public"."u" USING btree (dd)',
    ]
    assert followed.notes == [
        "column v keeps its type character varying(10); at the source it is character varying(5)",
        "the primary key stays as it was",
    ]
    assert follow_at(target, before, after, policy="additive").statements == []


def test_ignore_runs_nothing_and_reports_what_columns_are_called(
    source: Database, target: Database
):
    before, middle = change(
        source,
        target,
        "ALTER TABLE t RENAME a TO aa; ALTER TABLE t ADD a int, DROP c; ALTER TABLE t RENAME TO u",
    )
    followed = follow_at(target, before, middle, policy="ignore")
    assert followed.target == T
    assert (followed.statements, followed.column_names) == ([], {"aa": "a"})
    assert followed.left_out == ("a",)

    source.execute("ALTER TABLE u RENAME aa TO aaa")
    after = shapes(source)[before.id]
    again = follow_at(target, middle, after, policy="ignore", names=followed.column_names)
    assert again.column_names == {"aaa": "a"}

    caught_up = follow_at(target, middle, after, policy="apply", names=followed.column_names)
    assert caught_up.statements == [
        'ALTER TABLE "public"."t" RENAME TO "u"',
        'ALTER TABLE "public"."u" RENAME COLUMN "a" TO "aaa"',
    ]


def test_stop_reports_what_apply_would_run_until_it_has_been(source: Database, target: Database):
    before, after = change(source, target, "ALTER TABLE t ADD x int DEFAULT 4, DROP v")

    with pytest.raises(SchemaChangeStops) as caught:
        follow_at(target, before, after, policy="stop")

    assert "column x added: integer DEFAULT 4" in caught.value.what
    assert 'ALTER TABLE "public"."t" DROP COLUMN "v"' in caught.value.do
    assert plain(shape_of(target)) == plain(before)
    target.execute("ALTER TABLE t ADD x int DEFAULT 4, DROP v")
    assert follow_at(target, before, after, policy="stop").statements == []


def test_column_that_a_view_needs_is_refused_with_the_statement(source: Database, target: Database):
    before, after = change(source, target, "ALTER TABLE t ADD x int; ALTER TABLE t DROP v")
    target.execute("CREATE VIEW w AS SELECT v FROM t")

    with target.connect(autocommit=False) as connection:
        connection.execute("SET LOCAL search_path = public, other")
        with pytest.raises(SchemaChangeRefused) as caught:
            follow(
                connection.cursor(),
                before,
                after,
                T,
                CONTEXT,
            )
        found = connection.execute("SHOW search_path").fetchone()

    assert found == ("public, other",), "the caller's transaction goes on as it was"
    assert caught.value.where == "public.t"
    assert "other objects depend on it" in caught.value.what
    assert "column v dropped" in caught.value.what
    assert "v character varying(10)" in caught.value.what
    assert caught.value.do.endswith('ALTER TABLE "public"."t" DROP COLUMN "v"')
    assert "x" not in {column.name for column in shape_of(target).columns}


def test_value_that_does_not_fit_is_not_shown(source: Database, target: Database):
    before, after = change(source, target, "ALTER TABLE t ALTER v TYPE int USING 1")
    target.execute("UPDATE t SET v = 'secret'")

    with pytest.raises(SchemaChangeRefused) as caught:
        follow_at(target, before, after)

    assert "secret" not in str(caught.value)
    assert "InvalidTextRepresentation (22P02)" in caught.value.what


def test_lock_that_is_not_had_is_no_refusal(source: Database, target: Database):
    before, after = change(source, target, "ALTER TABLE t ADD x int")

    with target.connect(autocommit=False) as reader, target.connect(autocommit=False) as writer:
        reader.execute("SELECT FROM t")
        writer.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            follow(
                writer.cursor(),
                before,
                after,
                T,
                CONTEXT,
            )


def test_what_the_target_cannot_make_is_noted(source: Database, target: Database):
    before, after = change(
        source,
        target,
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';"
        "ALTER TABLE t ADD x int; ALTER TABLE t ALTER x SET DEFAULT f(), ALTER a SET DEFAULT f();"
        "CREATE INDEX n ON t ((a + f())); UPDATE t SET x = 1; ALTER TABLE t ALTER x SET NOT NULL;"
        "CREATE TABLE q (id int PRIMARY KEY); ALTER TABLE t ADD CONSTRAINT to_q FOREIGN KEY (x) REFERENCES q NOT VALID",
    )

    followed = follow_at(target, before, after)

    assert [note.split(":")[0] for note in followed.notes] == [
        "column x goes without its default",
        "column x is not NOT NULL",
        "column a goes without its default",
        "index n",
        "foreign key to_q",
    ]
    found = {column.name: column for column in shape_of(target).columns}
    assert found["a"].default is None


HANDED_ON = {
    "step by step": (
        "ALTER TABLE t ALTER id DROP DEFAULT",
        "ALTER TABLE t RENAME id TO id_old; ALTER TABLE t RENAME new TO id",
        "ALTER SEQUENCE t_id_seq OWNED BY t.id",
        "ALTER TABLE t ALTER id SET DEFAULT nextval('t_id_seq')",
        "ALTER SEQUENCE t_id_seq AS bigint INCREMENT 2",
        "ALTER TABLE t DROP id_old",
    ),
    "at once": (
        (
            "ALTER SEQUENCE t_id_seq OWNED BY t.new; ALTER TABLE t ALTER id DROP DEFAULT,"
            " ALTER new SET DEFAULT nextval('t_id_seq')"
        ),
        "ALTER TABLE t DROP id",
    ),
    "with its column gone": (
        (
            "ALTER SEQUENCE t_id_seq OWNED BY t.new;"
            "ALTER TABLE t DROP id, ALTER new SET DEFAULT nextval('t_id_seq')"
        ),
    ),
}


@pytest.mark.parametrize("name", HANDED_ON)
def test_sequence_goes_from_one_column_to_another_and_keeps_its_name(
    name: str, source: Database, target: Database
):
    source.execute("CREATE TABLE t (id serial, new bigint); INSERT INTO t (new) VALUES (1), (2)")
    clone(source, target)
    target.execute(statements())

    before = shape_of(source)
    for step in HANDED_ON[name]:
        source.execute(step)
        after = shape_of(source)
        followed = follow_at(target, before, after, owner=("shop", "main"))
        assert (followed.notes, followed.needs_copy) == ([], False)
        before = after

    query = (
        "SELECT relname, seqtypid::regtype::text, seqincrement, pg_get_serial_sequence('t', attname), attname"
        " FROM pg_class c JOIN pg_sequence ON seqrelid = c.oid, pg_attribute"
        " WHERE attrelid = 't'::regclass AND atthasdef AND relnamespace = 'public'::regnamespace"
    )
    assert target.query(query) == source.query(query)
    assert plain(shape_of(target)) == plain(shape_of(source))


def test_table_that_is_missing_is_reported(source: Database, target: Database):
    before, after = change(source, target, "ALTER TABLE t ADD x int")
    target.execute("DROP TABLE t")

    with pytest.raises(TargetTableMissing):
        follow_at(target, before, after)


def test_replica_identity_becomes_the_targets_key(source: Database, target: Database):
    before, after = change(
        source,
        target,
        "ALTER TABLE t ALTER b SET NOT NULL; ALTER TABLE t REPLICA IDENTITY USING INDEX b_once",
    )

    follow_at(target, before, after)

    found = shape_of(target)
    assert found.primary_key is not None
    assert found.names_of(found.primary_key.columns) == ("b",)
    assert {"t_pkey", "b_once"} <= {each.name for each in found.constraints}
    assert follow_at(target, before, after).statements == []


def test_table_is_made_and_dropped_in_the_callers_transaction(source: Database, target: Database):
    source.execute(START)
    shape = shape_of(source)

    with target.connect(autocommit=False) as connection:
        created = create_from_shape(
            connection.cursor(), description_of(shape), structure_of(shape), T, with_indexes=True
        )
        connection.commit()
    made = plain(shape_of(target))
    with target.connect(autocommit=False) as connection:
        statements = drop_table(connection.cursor(), T, T, shape)
        connection.commit()

    assert (created.notes, created.awaits_names) == ([], False)
    assert made == {**plain(shape), "foreign keys": {}}
    assert statements == ['DROP TABLE IF EXISTS "public"."t"']
    assert shapes(target) == {}


def test_partitioned_table_is_copied_where_a_default_is_not_known(
    source: Database, target: Database
):
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t DEFAULT; INSERT INTO t VALUES (1)"
    )
    clone(source, target)

    (plain_column,) = assert_follows(source, target, "ALTER TABLE t ADD x int")
    (filled,) = assert_follows(source, target, "ALTER TABLE t ADD y int DEFAULT random()")

    assert (plain_column.needs_copy, filled.needs_copy) == (False, True)


def test_sequences_and_schemas_are_followed(target: Database):
    one = SequenceShape(
        id=1,
        schema_name="s",
        name="q",
        type="bigint",
        start=1,
        increment=1,
        minimum=1,
        maximum=99,
        cache=1,
        cycles=False,
    )
    other = one.model_copy(update={"name": "r", "schema_name": "u", "increment": 5})
    found = (
        "SELECT schemaname, sequencename, increment_by FROM pg_sequences"
        " WHERE schemaname <> 'penstock'"
    )
    owner = ("p", "one")

    with target.connect() as connection:
        make_objects(connection)
        cursor = connection.cursor()
        follow_sequence(cursor, None, one, policy="apply", owner=owner)
        assert target.query(found) == [("s", "q", 1)]
        follow_sequence(cursor, one, other, policy="apply", owner=owner)
        assert target.query(found) == [("u", "r", 5)]
        again = follow_sequence(cursor, one, other, policy="stop")
        kept = follow_sequence(cursor, other, None, policy="additive")
        assert (again.statements, kept.statements) == ([], [])
        assert drop_schema(cursor, owner, "u")[0].startswith("schema u is kept: DependentObjects")
        follow_sequence(cursor, other, None, policy="apply")
        assert drop_schema(cursor, owner, "u") == drop_schema(cursor, owner, "s") == []

    assert target.query("SELECT nspname FROM pg_namespace WHERE nspname IN ('s', 'u')") == []


@only_new
@pytest.mark.parametrize("names", ["f TO h", "f TO k; g TO f; k TO g", "f TO i"])
def test_foreign_keys_renamed_before_a_copy_are_there_once_after_it(
    source: Database, target: Database, names: str
) -> None:
    source.execute(
        "CREATE TABLE p (id int PRIMARY KEY);"
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int, CONSTRAINT f FOREIGN KEY (a) REFERENCES p,"
        " CONSTRAINT g FOREIGN KEY (b) REFERENCES p); CREATE INDEX i ON t (b)"
    )
    clone(source, target)
    before = shape_of(source)
    for each in names.split("; "):
        source.execute(f"ALTER TABLE t RENAME CONSTRAINT {each}")
    after = shape_of(source)

    with target.connect() as connection:
        drop_gone_foreign_keys(connection.cursor(), before, after, T, before_copy=True)
        assert add_foreign_keys(connection, T, structure_of(after), same) == []

    assert plain(shape_of(target)) == plain(after)
