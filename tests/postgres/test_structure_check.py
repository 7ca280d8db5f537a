"""What `check` says of tables at both ends, once a pipeline was started; without a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fix_follow import shapes
from fix_postgres import only_new
from fix_started import EVERYTHING, OWNER, start
from penstock.sinks.postgres.compare.check import Said, compare_structures, other_tables
from penstock.sinks.postgres.compare.left_out import expressions_left_out
from penstock.sinks.postgres.mapping.table_mapping import TableMappings
from penstock.sinks.postgres.options import PostgresOptions
from penstock.table import TableName

if TYPE_CHECKING:
    from fix_postgres import Database

pytestmark = only_new


def said(source: Database, target: Database, **options: Any) -> list[Said]:
    table_mappings = TableMappings(PostgresOptions(url=target.url, **options), *OWNER, [OWNER[1]])
    now = list(shapes(source).values())
    return compare_structures(table_mappings, now, expressions_left_out(table_mappings, now))


def texts(found: list[Said], *, is_meant: bool = False) -> list[str]:
    return [each.error.what for each in found if each.is_meant == is_meant]


def test_tables_that_are_equal_have_no_difference(source: Database, target: Database) -> None:
    start(source, target)

    found = said(source, target)

    assert found == []


def test_everything_that_differs_is_named_at_once(source: Database, target: Database) -> None:
    start(source, target)
    target.execute(
        "ALTER TABLE child ALTER price DROP NOT NULL, ALTER at DROP DEFAULT, DROP CONSTRAINT positive,"
        " DROP CONSTRAINT child_p_fkey; DROP INDEX child_at; DROP TABLE parted"
    )

    found = {each.error.where: each.error.what for each in said(source, target)}

    assert found == {
        "public.child": "differs from the source: column price is not NOT NULL; column at lacks its default now();"
        " check constraint positive is missing; index child_at is missing; foreign key child_p_fkey is missing",
        "public.parted": "differs from the source: table public.parted is missing",
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("statement", "wanted"),
    [
        ("DROP TABLE child", "table public.child is missing"),
        ("ALTER TABLE child DROP COLUMN at", "column at is missing"),
        ("ALTER TABLE child ALTER note TYPE varchar(9)", "column note has type character varying(9), wanted text"),
        ("ALTER TABLE child ALTER price DROP NOT NULL", "column price is not NOT NULL"),
        ("ALTER TABLE child ALTER note SET NOT NULL", "column note is NOT NULL, and not so at the source"),
        ("ALTER TABLE child ALTER at DROP DEFAULT", "column at lacks its default now()"),
        ("ALTER TABLE child ALTER at SET DEFAULT 'epoch'", "column at has default"),
        ("ALTER TABLE child ALTER duo SET DEFAULT '(1,x)'", "column duo has default"),
        ("ALTER TABLE child ALTER twice DROP EXPRESSION", "column twice lacks its expression (id * 2)"),
        ("ALTER TABLE parent ALTER id DROP IDENTITY", "column id is no identity column"),
        ("ALTER TABLE child ALTER id DROP DEFAULT", "column id counts with no sequence of its own"),
        ("ALTER SEQUENCE child_id_seq INCREMENT 7", "column id has a sequence that counts differently"),
        ('ALTER TABLE child ALTER note TYPE text COLLATE "POSIX"', "column note has collation pg_catalog.\"POSIX\""),
        ("ALTER TABLE parted DROP CONSTRAINT parted_pkey", "primary key parted_pkey is missing"),
        ("ALTER TABLE child DROP CONSTRAINT child_pkey, ADD PRIMARY KEY (p, id)", "primary key child_pkey has the columns (p, id), wanted (id)"),
        ("ALTER TABLE child DROP CONSTRAINT child_p_note_key", "unique constraint child_p_note_key is missing"),
        ("ALTER TABLE child DROP CONSTRAINT positive", "check constraint positive is missing"),
        ("ALTER TABLE child DROP CONSTRAINT positive, ADD CONSTRAINT positive CHECK (price >= 0) NOT VALID", "check constraint positive is not valid"),
        ("ALTER TABLE child DROP CONSTRAINT positive, ADD CONSTRAINT positive CHECK (price >= 1)", "check constraint positive is CHECK"),
        ("ALTER TABLE child ADD CONSTRAINT more CHECK (id < 9)", "constraint more is not the source's"),
        ("ALTER TABLE child DROP CONSTRAINT child_p_fkey", "foreign key child_p_fkey is missing"),
        ("ALTER TABLE child DROP CONSTRAINT child_p_fkey, ADD CONSTRAINT child_p_fkey FOREIGN KEY (p) REFERENCES parent ON DELETE CASCADE NOT VALID", "foreign key child_p_fkey is not valid"),
        ("ALTER TABLE child DROP CONSTRAINT child_p_fkey, ADD CONSTRAINT child_p_fkey FOREIGN KEY (p) REFERENCES parent", "foreign key child_p_fkey is another one at the source"),
        ("ALTER TABLE child ADD FOREIGN KEY (id) REFERENCES parent", "foreign key child_id_fkey is not the source's"),
        ("DROP INDEX child_at", "index child_at is missing"),
        ("DROP INDEX child_at; CREATE INDEX child_at ON child (at)", "index child_at is INDEX btree (at), wanted INDEX btree (at DESC)"),
        ("DROP INDEX parted_at", "index parted_at is missing"),
        ("DROP INDEX child_lower", "index child_lower is missing"),
        ("CREATE UNIQUE INDEX own ON child (id, p)", "index own is not the source's"),
        ("ALTER SEQUENCE tickets INCREMENT 9", "sequence public.tickets counts differently"),
        ("ALTER TYPE pair ADD ATTRIBUTE c int", "type public.pair is made otherwise at the source"),
        ("ALTER TABLE child ADD own int NOT NULL", "column own is not the source's, and must have a value"),
    ],
)  # fmt: skip
def test_each_thing_that_differs_is_named(
    source: Database, target: Database, statement: str, wanted: str
) -> None:
    start(source, target)
    target.execute(statement)

    found = texts(said(source, target))

    assert len(found) == 1, found
    assert found[0].startswith("differs from the source: ")
    assert wanted in found[0]


def test_what_a_type_goes_without_is_named(source: Database, target: Database) -> None:
    start(
        source,
        target,
        'CREATE COLLATION own FROM "C"; CREATE DOMAIN d AS text COLLATE own DEFAULT 1 NOT NULL;'
        'CREATE TYPE words AS RANGE (SUBTYPE = text, COLLATION = "C", MULTIRANGE_TYPE_NAME = many);'
        "CREATE TYPE spoken AS (a text COLLATE own);"
        "CREATE TABLE t (id int PRIMARY KEY, d d, w words, s spoken)",
    )

    [found] = texts(said(source, target))

    assert found.removeprefix("differs from the source: ").split("; ") == [
        "type public.d has collation default, wanted public.own",
        "type public.d lacks NOT NULL",
        "type public.d lacks its default 1",
        "type public.spoken has attribute a with collation default, wanted public.own",
    ]
    target.execute("ALTER DOMAIN d SET DEFAULT 1; ALTER DOMAIN d SET NOT NULL")
    [found] = texts(said(source, target))
    assert "NOT NULL" not in found
    assert "lacks its default" not in found


def test_what_the_target_lacks_of_an_enum_is_named(source: Database, target: Database) -> None:
    start(source, target)
    source.execute("ALTER TYPE mood ADD VALUE 'angry'")

    found = texts(said(source, target))

    assert len(found) == 1
    assert "type public.mood lacks the labels angry" in found[0]
    assert "may be on its way" in found[0], "the source has changed since"


def test_what_is_the_targets_own_and_refuses_no_row_is_said_with_its_reason(
    source: Database, target: Database
) -> None:
    start(source, target)
    target.execute("CREATE INDEX own ON child (p); ALTER TABLE child ADD loaded_at timestamptz")

    found = said(source, target)

    assert texts(found) == []
    [reported] = texts(found, is_meant=True)
    assert "the target's own, which refuses no row" in reported
    assert "index own" in reported
    assert "column loaded_at" in reported


def test_another_name_of_an_index_is_no_difference(source: Database, target: Database) -> None:
    start(source, target)
    target.execute("ALTER INDEX child_at RENAME TO called_otherwise")

    assert said(source, target) == []


def test_a_change_that_has_not_arrived_is_said_to_be_on_its_way(
    source: Database, target: Database
) -> None:
    start(source, target)
    source.execute("CREATE INDEX new ON child (duo)")
    source.execute("CREATE TABLE fresh (id int PRIMARY KEY)")

    found = said(source, target)

    [reported] = texts(found)
    assert "index new is missing" in reported
    assert "may be on its way" in reported
    [reported] = texts(found, is_meant=True)
    assert "not at the target yet" in reported


def test_expressions_that_are_left_out_are_not_reported_twice(
    source: Database, target: Database
) -> None:
    start(source, target)
    target.execute(
        "ALTER TABLE child ALTER at DROP DEFAULT, ALTER m DROP DEFAULT,"
        " ALTER ticket DROP DEFAULT, DROP CONSTRAINT positive, DROP CONSTRAINT later, DROP COLUMN twice;"
        " DROP INDEX child_at, child_lower"
    )

    found = said(source, target, expressions="none")

    assert texts(found) == []


@pytest.mark.parametrize("policy", ["additive", "ignore"])
def test_what_a_policy_leaves_out_is_meant_to_be_so(
    source: Database, target: Database, policy: str
) -> None:
    start(source, target)
    target.execute("ALTER TABLE child ALTER price DROP NOT NULL, DROP CONSTRAINT child_p_fkey")

    found = said(source, target, schema_changes=policy)

    assert texts(found) == []
    assert f"since schema_changes is {policy}" in texts(found, is_meant=True)[0]


def test_a_table_of_the_targets_own_is_held_to_its_columns_alone(
    source: Database, target: Database
) -> None:
    start(source, target)
    target.execute("UPDATE penstock.tables SET made_by_us = false")
    target.execute(
        "ALTER TABLE child DROP CONSTRAINT positive, ALTER price DROP NOT NULL, DROP COLUMN duo;"
        " DROP INDEX child_at; ALTER TABLE parent ALTER code TYPE varchar(3)"
    )

    found = said(source, target)

    assert sorted(texts(found)) == [
        "differs from the source: column code has type character varying(3), wanted text",
        "differs from the source: column duo is missing",
    ]
    assert all("not penstock's own" in each for each in texts(found, is_meant=True))


def test_without_indexes_none_are_missed(source: Database, target: Database) -> None:
    start(source, target)
    target.execute("DROP INDEX child_at; ALTER TABLE child DROP CONSTRAINT child_p_fkey")

    assert said(source, target, create_indexes=False) == []


def test_before_the_first_start_nothing_is_compared(source: Database, target: Database) -> None:
    source.execute(EVERYTHING)

    assert said(source, target) == []


def test_tables_that_are_being_copied_are_not_compared(source: Database, target: Database) -> None:
    start(source, target)
    target.execute("DROP INDEX child_at; UPDATE penstock.tables SET state = 'copying'")

    found = said(source, target)

    assert texts(found) == []
    assert "being copied" in texts(found, is_meant=True)[0]


def test_tables_that_nothing_lands_in_are_named_in_one_line(
    source: Database, target: Database
) -> None:
    start(source, target)
    target.execute("CREATE TABLE mine (id int); CREATE SCHEMA aside; CREATE TABLE aside.x (id int)")
    places = [TableName("public", name) for name in ("parent", "child", "parted", "spelled")]

    [found] = other_tables(PostgresOptions(url=target.url), OWNER[0], places)

    assert found.is_meant
    assert found.error.where == "public.mine"


def test_as_many_statements_for_many_tables_as_for_few(
    source: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = (
        "CREATE TABLE t{0} (id int PRIMARY KEY, v int DEFAULT 1); CREATE INDEX t{0}_v ON t{0} (v);"
    )
    start(source, target, "".join(tables.format(number) for number in range(20)))
    target.execute("DROP INDEX t0_v, t5_v, t9_v")
    now = sorted(shapes(source).values(), key=lambda shape: shape.id)
    table_mappings = TableMappings(PostgresOptions(url=target.url), *OWNER, [OWNER[1]])
    statements: list[object] = []
    execute = psycopg.Cursor.execute

    def counted(self: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        statements.append(query)
        return execute(self, query, *args, **kwargs)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    assert len(compare_structures(table_mappings, now[:1], [])) == 1
    few = len(statements)
    statements.clear()
    assert len(compare_structures(table_mappings, now, [])) == 3

    assert len(statements) == few


def test_a_table_that_was_made_for_its_first_rows_goes_without_indexes(
    source: Database, target: Database
) -> None:
    start(source, target)
    target.execute("DROP INDEX child_at; ALTER TABLE child ALTER price DROP NOT NULL")
    target.execute("UPDATE penstock.tables SET copied_at = NULL")
    table_mappings = TableMappings(PostgresOptions(url=target.url), *OWNER, [OWNER[1]])
    now = list(shapes(source).values())

    found = compare_structures(table_mappings, now, [], copies_first=False)

    assert texts(found) == ["differs from the source: column price is not NOT NULL"]
    assert "made when its first rows came" in texts(found, is_meant=True)[0]
