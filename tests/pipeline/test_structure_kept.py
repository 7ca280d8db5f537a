"""What the target lacks is noted until it is there, and check says where both sides differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fix_pipeline import INITIAL, wait_for_state
from fix_postgres import only_new
from fix_started import EVERYTHING
from fix_wait import wait_until
from penstock.run.check import find
from penstock.sinks.postgres.compare import review

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

pytestmark = only_new


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, use_timing: Callable[..., None]) -> None:
    use_timing(review_seconds=0.2, review_marks_seconds=0.2)
    monkeypatch.setattr(review, "SHARE", 1.0)


def differing(pipeline: RunningPipeline, severity: str = "warning") -> dict[str, str]:
    """What check says of tables, by their names."""
    return {
        each.place: each.what
        for each in find(pipeline.file)
        if each.code == "PEN-516" and each.severity == severity
    }


def notes(target: Database, table: str = "t") -> str:
    query = "SELECT coalesce(notes, '') FROM penstock.tables WHERE table_name = %s"
    return str(target.value(query, table))


def streams(pipeline: RunningPipeline, target: Database, *tables: str) -> None:
    """Wait until tables have everything, also what comes after their rows."""
    pipeline.catch_up()
    for table in tables:
        wait_for_state(target, table, "streaming")
    pipeline.catch_up()
    wait_until(
        lambda: not target.value("SELECT bool_or(foreign_keys_due) FROM penstock.tables"),
        what="foreign keys",
    )


def test_what_is_refused_while_following_is_noted_and_reported_by_check_until_it_is_made(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    # given: rows at the target that the source has not, so that it refuses what the source has
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int, w int)")
    source.execute("INSERT INTO t VALUES (1, 1, 1), (2, 2, 2)")
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    streams(pipeline, target, "t")
    assert differing(pipeline) == {}
    target.execute("INSERT INTO t VALUES (3, 2, NULL)")

    # when
    source.execute("CREATE UNIQUE INDEX t_v ON t (v)")
    source.execute("ALTER TABLE t ALTER w SET NOT NULL, ADD CONSTRAINT low CHECK (id < 3)")
    streams(pipeline, target, "t")

    # then
    for what in ("index t_v", "column w is not NOT NULL", "check constraint low"):
        assert what in notes(target)
        assert what in differing(pipeline)["public.t"]

    # when: a person makes them
    target.execute("DELETE FROM t WHERE id = 3; CREATE UNIQUE INDEX t_v ON t (v)")
    wait_until(lambda: "index t_v" not in notes(target), what="the note to go")
    assert "column w" in notes(target)
    target.execute("ALTER TABLE t ALTER w SET NOT NULL, ADD CONSTRAINT low CHECK (id < 3)")

    # then
    wait_until(lambda: notes(target) == "", what="the notes to go")
    assert differing(pipeline) == {}


@pytest.mark.long
def test_what_the_source_drops_is_noted_no_more(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    streams(pipeline, target, "t")
    target.execute("INSERT INTO t VALUES (1, 1), (2, 1)")
    source.execute("CREATE UNIQUE INDEX t_v ON t (v)")
    streams(pipeline, target, "t")
    assert "index t_v" in notes(target)

    source.execute("DROP INDEX t_v")

    streams(pipeline, target, "t")
    wait_until(lambda: notes(target) == "", what="the note to go")
    assert differing(pipeline) == {}


@pytest.mark.long
def test_notes_of_an_earlier_run_go_at_the_start(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    streams(pipeline, target, "t")
    target.execute("INSERT INTO t VALUES (1, 1), (2, 1)")
    source.execute("CREATE UNIQUE INDEX t_v ON t (v); CREATE INDEX t_w ON t (v, id)")
    streams(pipeline, target, "t")
    pipeline.stop()
    assert "index t_v" in notes(target)

    target.execute("DELETE FROM t; CREATE UNIQUE INDEX t_v ON t (v); DROP INDEX t_w")
    assert list(differing(pipeline)) == ["public.t"], "check works on a pipeline that is stopped"
    pipeline.start()

    wait_until(lambda: notes(target) == "index t_w is missing", what="the notes of now")


@pytest.mark.long
def test_a_key_made_without_its_rows_is_validated_when_they_are_equal(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    # given: a row at the target that has lost its parent
    source.execute(
        "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY, r int);"
        "INSERT INTO p SELECT generate_series(1, 3); INSERT INTO t VALUES (1, 1), (2, 2)"
    )
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    streams(pipeline, target, "p", "t")
    target.execute("DELETE FROM p WHERE id = 2")
    source.execute("ALTER TABLE t ADD CONSTRAINT to_p FOREIGN KEY (r) REFERENCES p")
    streams(pipeline, target, "p", "t")
    query = "SELECT convalidated FROM pg_constraint WHERE conname = 'to_p'"
    assert target.query(query) == [(False,)]
    assert "foreign key to_p" in notes(target)
    assert "foreign key to_p is not valid" in differing(pipeline)["public.t"]

    # when: the parent, and it alone, is copied again
    target.execute("UPDATE penstock.tables SET request = 'resync' WHERE table_name = 'p'")
    wait_until(lambda: target.value("SELECT count(*) FROM p") == 3, what="the copy")

    # then
    wait_until(lambda: target.query(query) == [(True,)], what="the key to be validated")
    wait_until(lambda: notes(target) == "", what="the note to go")
    assert differing(pipeline) == {}


NOT_NULL = """
CREATE FUNCTION made() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE COLLATION odd FROM "C";
CREATE SEQUENCE free;
CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL DEFAULT made(), b text NOT NULL DEFAULT upper('x'),
    c int NOT NULL DEFAULT nextval('free'), g int NOT NULL GENERATED ALWAYS AS (id + 1) STORED,
    d timestamptz NOT NULL DEFAULT now(), e public.citext NOT NULL DEFAULT 'x', f text COLLATE odd NOT NULL DEFAULT 'y');
CREATE INDEX t_g ON t (g);
INSERT INTO t (id) SELECT generate_series(1, 20);
"""


@pytest.mark.long
@pytest.mark.parametrize("expressions", ["builtin", "none", "all"])
@pytest.mark.parametrize("is_resynced", [False, True])
def test_not_null_is_kept_whatever_a_default_goes_without(
    source: Database, target: Database, make_pipeline: Make, expressions: str, is_resynced: bool
) -> None:
    source.execute("CREATE EXTENSION citext")
    source.execute(NOT_NULL)
    pipeline = make_pipeline(
        source, target, source_options=INITIAL, sink={"expressions": expressions}
    )
    streams(pipeline, target, "t")
    if is_resynced:
        source.execute(
            "ALTER TABLE t ADD h int NOT NULL DEFAULT made(), ADD k uuid NOT NULL DEFAULT gen_random_uuid(),"
            " ADD l public.citext NOT NULL DEFAULT 'z'"
        )
        streams(pipeline, target, "t")
        target.execute("UPDATE penstock.tables SET request = 'resync' WHERE table_name = 't'")
        wait_until(
            lambda: target.value("SELECT request IS NULL FROM penstock.tables"), what="the copy"
        )
        streams(pipeline, target, "t")

    there = "SELECT attname::text FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped {}"
    columns = {name for (name,) in target.query(there.format(""))}
    assert columns == {name for (name,) in source.query(there.format(""))} - (
        {"g"} if expressions == "none" else set()
    )
    assert target.query(there.format("AND NOT attnotnull")) == []
    reported = notes(target)
    assert "column a goes without its default" in reported
    assert "column e becomes text" in reported
    assert "column f goes without its collation" in reported
    if expressions == "none":
        assert "column g: its expression is not taken over" in reported
    found = differing(pipeline)["public.t"]
    assert "column e has type text" in found
    assert "column f has collation" in found
    assert "NOT NULL" not in found

    # when: a person makes what is missing
    target.execute('CREATE COLLATION odd FROM "C"')
    target.execute("ALTER TABLE t ALTER f TYPE text COLLATE odd")
    target.execute("CREATE EXTENSION citext; ALTER TABLE t ALTER e TYPE public.citext")
    wait_until(lambda: "column f" not in notes(target), what="the note on the collation to go")
    wait_until(
        lambda: "column e becomes text" not in notes(target), what="the note on the type to go"
    )


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "renamed": {"tables": {"public.child": {"target": "other.kid"}}},
    "schema": {"schema": "landed"},
    "columns": {"tables": {"public.child": {"columns": ["id", "p", "price", "m"]}}},
    "columns_renamed": {
        "tables": {"public.child": {"columns": {"id": "id", "p": "parent_id", "note": "remark"}}}
    },
    "append": {"tables": {"*.*": {"kind": "append"}}},
    "history": {"tables": {"*.*": {"kind": "history"}}},
    "source_id": {"source_id_column": "origin"},
    "source_id_history": {"source_id_column": "origin", "tables": {"*.*": {"kind": "history"}}},
    "no_expressions": {"expressions": "none"},
    "no_indexes": {"create_indexes": False},
    "additive": {"schema_changes": "additive"},
    "ignore": {"schema_changes": "ignore"},
}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_by_design_is_no_warning(
    source: Database, target: Database, make_pipeline: Make, kind: str
) -> None:
    source.execute(EVERYTHING)
    source.execute("INSERT INTO parent (code) VALUES ('a'); INSERT INTO child (p) VALUES (1)")
    pipeline = make_pipeline(source, target, source_options=INITIAL, sink=KINDS[kind])
    streams(pipeline, target, "parent", "child", "parted")

    assert differing(pipeline) == {}, "after the copy"
    lines = target.query("SELECT table_name, notes FROM penstock.tables WHERE notes IS NOT NULL")
    assert kind == "no_expressions" or lines == []

    source.execute(
        "ALTER TABLE child ADD new int NOT NULL DEFAULT 4, ADD other text, ALTER duo SET DEFAULT '(1,a)',"
        " DROP CONSTRAINT positive, ALTER at DROP DEFAULT, ALTER note SET DEFAULT 'q';"
        "CREATE INDEX child_other ON child (other);"
        "ALTER TABLE child ADD CONSTRAINT small CHECK (new < 10), ADD UNIQUE (new, id);"
        "ALTER TABLE parent ADD COLUMN up bigint REFERENCES parent;"
        "CREATE TABLE later (id int PRIMARY KEY, c int REFERENCES child, u text UNIQUE);"
    )
    if (
        kind != "ignore"
    ):  # there it would be reported: the target refuses rows that the source may get
        source.execute("ALTER TABLE child ALTER price DROP NOT NULL")
    if kind != "columns_renamed":
        source.execute(
            "ALTER TABLE child RENAME COLUMN m TO humour; ALTER TABLE child DROP COLUMN duo"
        )
    source.execute("INSERT INTO later VALUES (1, 1, 'u'); INSERT INTO child (p) VALUES (1)")
    streams(pipeline, target, "parent", "child", "parted", "later")

    assert differing(pipeline) == {}, "after changes"


@pytest.mark.parametrize(
    "awake_seconds", [60, pytest.param(0.1, marks=pytest.mark.long)], ids=["awake", "asleep"]
)
def test_what_somebody_drops_while_it_runs_is_noted_until_it_is_made_again(
    source: Database,
    target: Database,
    make_pipeline: Make,
    use_timing: Callable[..., None],
    awake_seconds: float,
) -> None:
    use_timing(copier_awake_seconds=awake_seconds)
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int CONSTRAINT low CHECK (v < 9))")
    source.execute("CREATE INDEX t_v ON t (v); CREATE TABLE other (id int PRIMARY KEY)")
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    streams(pipeline, target, "t", "other")
    assert notes(target) == ""

    target.execute("DROP INDEX t_v; ALTER TABLE t DROP CONSTRAINT low")
    wait_until(lambda: "index t_v" in notes(target), what="a note")

    assert "check constraint low" in notes(target)
    assert notes(target, "other") == ""

    target.execute("CREATE INDEX t_v ON t (v); ALTER TABLE t ADD CONSTRAINT low CHECK (v < 9)")
    wait_until(lambda: notes(target) == "", what="the notes to go")
