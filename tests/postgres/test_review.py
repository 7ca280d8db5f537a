"""Notes on what the target lacks: they come, and go when somebody has made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fix_follow import shape_of
from fix_postgres import only_new
from fix_started import OWNER, start
from penstock.lsn import Lsn
from penstock.sinks.postgres.compare.deviations import Deviation
from penstock.sinks.postgres.compare.notes import are_on_objects, renewed
from penstock.sinks.postgres.compare.review import Review
from penstock.sinks.postgres.copy.due_keys import make_due_keys
from penstock.sinks.postgres.mapping.table_mapping import TableMappings
from penstock.sinks.postgres.options import PostgresOptions
from penstock.sinks.postgres.state.shapes import ShapeStore
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_postgres import Database

CHILD = TableName("public", "child")


def table_mappings_of(target: Database, **options: Any) -> TableMappings:
    return TableMappings(PostgresOptions(url=target.url, **options), *OWNER, [OWNER[1]])


def poll(target: Database, review: Review | None = None) -> bool:
    """What a pipeline does when it starts, or with the same review later."""
    with target.connect() as connection:
        return (review or Review(table_mappings_of(target))).run(connection)


def make_keys(target: Database) -> None:
    with target.connect() as connection:
        make_due_keys(connection, table_mappings_of(target), ShapeStore(*OWNER), OWNER)


def notes(target: Database, table: str = "child") -> list[str]:
    query = "SELECT coalesce(notes, '') FROM penstock.tables WHERE table_name = %s"
    return str(target.value(query, table)).splitlines()


@only_new
def test_what_is_missing_is_noted_until_it_is_there(source: Database, target: Database) -> None:
    start(source, target)
    target.execute(
        "DROP INDEX child_at; ALTER TABLE child DROP CONSTRAINT positive, ALTER price DROP NOT NULL,"
        " ALTER at DROP DEFAULT; UPDATE penstock.tables SET notes = 'a partition came with rows'"
    )

    poll(target)

    assert notes(target) == [
        "a partition came with rows",
        "column price is not NOT NULL",
        "column at lacks its default now()",
        "check constraint positive is missing",
        "index child_at is missing",
    ]
    assert notes(target, "parent") == ["a partition came with rows"]

    review = Review(table_mappings_of(target))
    target.execute("CREATE INDEX other_name ON child (at DESC) WHERE note IS NOT NULL")
    poll(target, review)
    assert "index child_at is missing" not in notes(target)
    target.execute("ALTER TABLE child ALTER price SET NOT NULL")
    poll(target, review)
    assert notes(target)[1:] == [
        "column at lacks its default now()",
        "check constraint positive is missing",
    ]
    target.execute(
        "ALTER TABLE child ALTER at SET DEFAULT now(), ADD CONSTRAINT positive CHECK (price >= 0)"
    )
    poll(target, review)
    assert notes(target) == ["a partition came with rows"]


@only_new
def test_only_tables_that_were_altered_are_read_again(
    source: Database,
    target: Database,
    use_timing: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_timing(review_marks_seconds=0)
    start(source, target)
    target.execute(
        "UPDATE penstock.tables SET made_by_us = true,"
        " target_oid = format('%I.%I', schema_name, table_name)::regclass::oid::bigint"
    )
    review = Review(table_mappings_of(target))
    poll(target, review)
    read: list[TableName] = []
    original = Review._read

    def spy(self: Review, connection: Any, known: Any, tables: list[TableName]) -> Any:
        read.extend(tables)
        return original(self, connection, known, tables)

    monkeypatch.setattr(Review, "_read", spy)

    poll(target, review)
    target.execute("VACUUM ANALYZE child")
    poll(target, review)
    assert read == []

    target.execute("DROP INDEX child_at")
    poll(target, review)
    assert read == [CHILD]
    assert notes(target) == ["index child_at is missing"]

    target.execute("ALTER TABLE parent ADD own text")
    target.execute("CREATE INDEX child_at ON child (at DESC) WHERE note IS NOT NULL")
    poll(target, review)
    assert sorted(read) == [CHILD, CHILD, TableName("public", "parent")]
    assert notes(target) == []
    poll(target, review)
    assert len(read) == 3


@only_new
def test_what_the_source_has_dropped_is_noted_no_more(source: Database, target: Database) -> None:
    start(source, target)
    target.execute("DROP INDEX child_at")
    poll(target)
    assert notes(target) == ["index child_at is missing"]

    source.execute("DROP INDEX child_at")
    with target.connect() as connection:
        ShapeStore(*OWNER).keep(connection, CHILD, shape_of(source, CHILD), Lsn(2))
    poll(target)

    assert notes(target) == []


@only_new
def test_a_key_that_rows_did_not_hold_is_validated_once_they_do(
    source: Database, target: Database
) -> None:
    # given: a key that was made without its rows, one of which has no parent yet
    start(source, target)
    target.execute("ALTER TABLE child DROP CONSTRAINT child_p_fkey")
    target.execute("INSERT INTO child (id, p) VALUES (1, 7)")
    target.execute("UPDATE penstock.tables SET foreign_keys_due = true WHERE table_name = 'child'")
    make_keys(target)
    assert "foreign key child_p_fkey" in notes(target)[0]
    query = "SELECT convalidated FROM pg_constraint WHERE conname = 'child_p_fkey'"
    assert target.query(query) == [(False,)]
    review = Review(table_mappings_of(target))
    assert poll(target, review), "at the start it is tried again"
    make_keys(target)
    assert target.query(query) == [(False,)]
    assert len(notes(target)) == 1
    assert not poll(target, review), "not over and over"

    # when: the parent is copied again, and has the row
    target.execute(
        "INSERT INTO parent (id) OVERRIDING SYSTEM VALUE VALUES (7);"
        " UPDATE penstock.tables SET copied_at = now() WHERE table_name = 'parent'"
    )

    # then
    assert poll(target, review)
    make_keys(target)
    assert target.query(query) == [(True,)]
    assert notes(target) == []


@only_new
def test_who_delivers_is_not_waited_for(source: Database, target: Database) -> None:
    start(source, target)
    target.execute("DROP INDEX child_at")
    with target.connect(autocommit=False) as other:
        other.execute("SELECT FROM penstock.tables FOR UPDATE")
        poll(target)
        assert notes(target) == []
    poll(target)

    assert notes(target) == ["index child_at is missing"]


@only_new
def test_a_table_that_waits_for_its_copy_is_left_alone(source: Database, target: Database) -> None:
    start(source, target)
    target.execute("DROP INDEX child_at; UPDATE penstock.tables SET state = 'copying'")
    poll(target)

    assert notes(target) == []


def lack(subject: str, what: str = "is missing", aspect: str = "", reason: str = "") -> Deviation:
    return Deviation(subject, what, aspect, reason)


@pytest.mark.parametrize(
    ("before", "lacking", "after"),
    [
        (None, [], None),
        (None, [lack("index a")], "index a is missing"),
        (None, [lack("index a", reason="meant")], None),
        ("index a: why", [lack("index a")], "index a: why"),
        ("index a: why", [lack("index a", reason="meant")], "index a: why"),
        ("index a b: why\nindex a: why", [lack("index a b")], "index a b: why"),
        ("index gone: why", [], None),
        ("index a keeps its name: why", [], "index a keeps its name: why"),
        ("constraint c is not valid: why", [lack("check constraint c", "is not valid")], "constraint c is not valid: why"),
        ("constraint c is not valid: why", [], None),
        ("foreign keys are not made: role x", [lack("foreign key f")], "foreign keys are not made: role x"),
        ("foreign keys are not made: role x", [], None),
        ("a partition came", [], "a partition came"),
        ("column x is not NOT NULL: why\ncolumn x goes without its default", [lack("column x", "lacks", "default")],
         "column x goes without its default"),
        ("column x goes without its default", [lack("column x", "is not NOT NULL", "NOT NULL")], "column x is not NOT NULL"),
        ("column x: its expression is not taken over", [lack("column x")], "column x: its expression is not taken over"),
        ("column x becomes text: type t is not at the target", [lack("column x", "has", "type")],
         "column x becomes text: type t is not at the target"),
    ],
)  # fmt: skip
def test_each_line_goes_when_it_is_not_so_any_more(
    before: str | None, lacking: list[Deviation], after: str | None
) -> None:
    subjects = ["index a", "index a b", "check constraint c", "foreign key f", "column x"]

    assert renewed(before, subjects, lacking) == after


def test_which_notes_are_on_objects() -> None:
    assert are_on_objects("a partition came\nindex a: why")
    assert not are_on_objects("a partition came")
    assert not are_on_objects(None)
