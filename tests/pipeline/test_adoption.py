"""Tables of the target's own: used where a person says so, and never dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from fix_pipeline import INITIAL, assert_equal, rows, table_error, wait_for_state
from fix_postgres import only_new
from fix_wait import wait_until
from penstock.cli.main import app
from penstock.errors import TargetTableOccupied

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

pytestmark = only_new


def test_tables_of_the_targets_own_are_neither_overwritten_nor_dropped(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    for name in ("fresh", "taken", "meant", "empty"):
        source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        source.execute(f"INSERT INTO {name} VALUES (1, 'source')")
    for name in ("taken", "meant", "empty", "later"):
        target.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    for name in ("taken", "meant", "later"):
        target.execute(f"INSERT INTO {name} VALUES (1, 'own'), (2, 'own')")
    make_pipeline(
        source, target, source_options=INITIAL, sink={"tables": {"meant": {"adopt": True}}}
    )
    own = [("(1,own)",), ("(2,own)",)]

    for name in ("fresh", "meant", "empty"):
        wait_for_state(target, name, "streaming")
    assert_equal(source, target, "fresh", "empty")
    assert rows(target, "meant") == [("(1,source)",), ("(2,own)",)]
    wait_for_state(target, "taken", "failed")
    assert "PEN-513" in table_error(target, "taken")
    assert "adopt: true" in table_error(target, "taken")

    source.execute("CREATE TABLE later (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO later VALUES (1, 'source'); TRUNCATE later")
    wait_for_state(target, "later", "failed")
    assert "PEN-513" in table_error(target, "later")

    source.execute("DROP TABLE fresh; DROP TABLE meant; DROP TABLE taken; DROP TABLE empty")
    wait_until(lambda: not target.query("SELECT FROM pg_tables WHERE tablename = 'fresh'"))
    assert rows(target, "taken") == rows(target, "later") == own
    assert rows(target, "meant") == [("(1,source)",), ("(2,own)",)]
    assert rows(target, "empty") == [("(1,source)",)]
    [(state, notes)] = target.query(
        "SELECT state, notes FROM penstock.tables WHERE table_name = 'meant'"
    )
    assert state == "removed"
    assert "is kept, which penstock has not made" in notes


@pytest.mark.long
def test_a_table_that_somebody_has_put_in_place_of_penstocks_own_is_not_dropped(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    wait_for_state(target, "t", "streaming")
    target.execute("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (7)")

    source.execute("DROP TABLE t")
    pipeline.catch_up()

    assert rows(target, "t") == [("(7)",)]


@pytest.mark.long
def test_where_every_place_is_taken_nothing_is_begun(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    target.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (7)")

    with pytest.raises(TargetTableOccupied):
        make_pipeline(source, target, source_options=INITIAL)

    assert not source.query("SELECT FROM pg_replication_slots WHERE database = %s", source.name)
    make_pipeline(source, target, source_options=INITIAL, sink={"adopt": True})
    wait_for_state(target, "t", "streaming")


def test_check_names_what_is_taken_and_what_is_left_out(
    source: Database, target: Database, tmp_path: Path
) -> None:
    source.execute(
        "CREATE FUNCTION own(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';"
        "CREATE TABLE taken (id int PRIMARY KEY); CREATE TABLE meant (id int PRIMARY KEY);"
        "CREATE TABLE empty (id int PRIMARY KEY, at timestamptz DEFAULT now(), CHECK (id > 0));"
        "CREATE TABLE odd (id int PRIMARY KEY, a int DEFAULT own(1), b int CHECK (pg_sleep(b) IS NULL));"
        "CREATE INDEX by_own ON odd (own(a)); CREATE TABLE seen (id int PRIMARY KEY)"
    )
    target.execute(
        "CREATE FUNCTION own(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';"
        "CREATE TABLE taken (id int); INSERT INTO taken VALUES (1);"
        "CREATE TABLE meant (id int); INSERT INTO meant VALUES (1); CREATE TABLE empty (id int);"
        "CREATE SEQUENCE calls; CREATE VIEW seen AS SELECT nextval('calls')::int AS id"
    )
    path = tmp_path / "p.yml"
    path.write_text(
        f"name: p\nsource: {{url: '{source.url}', tables: ['*.*']}}\n"
        f"sinks: {{t: {{kind: postgres, url: '{target.url}', tables: {{meant: {{adopt: true}}}}}}}}\n"
    )

    reported = CliRunner().invoke(app, ["check", str(path)])

    findings = [line for line in reported.output.splitlines() if "PEN-51" in line]
    assert "PEN-507 public.seen: public.seen is no table at the target" in reported.output
    assert target.value("SELECT is_called FROM calls") is False, "a view is not read"
    assert reported.exit_code == 0, reported.output
    [taken] = [line for line in findings if "PEN-513" in line]
    [odd] = [line for line in findings if "PEN-512" in line]
    assert "public.taken" in taken
    for what in ("default of a", "index by_own", "check constraint odd_b_check", "pg_sleep"):
        assert what in odd


@pytest.mark.long
def test_a_table_of_the_targets_own_is_not_altered_while_it_waits(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    for name in ("taken", "other"):
        source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    target.execute("CREATE TABLE taken (id int PRIMARY KEY, v text); INSERT INTO taken VALUES (1)")
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    wait_for_state(target, "taken", "failed")

    source.execute("ALTER TABLE taken DROP v, ADD w int; INSERT INTO other VALUES (1)")
    pipeline.catch_up()
    target.execute("UPDATE penstock.tables SET retry_at = now() WHERE table_name = 'taken'")
    wait_until(
        lambda: target.query(
            "SELECT FROM penstock.tables WHERE table_name = 'taken' AND attempts > 1"
        ),
        what="another attempt",
    )

    assert rows(target, "taken") == [("(1,)",)]


def test_what_the_owner_of_a_table_has_it_run_later_is_not_run(
    source: Database, target: Database, make_pipeline: Make
) -> None:
    for name in ("copied", "streamed", "other", "looked"):
        source.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)")
    source.execute("INSERT INTO copied VALUES (1, 1)")
    target.execute(
        f"CREATE ROLE mallory; GRANT CREATE ON DATABASE {target.name} TO mallory;"
        "GRANT CREATE ON SCHEMA public TO mallory; CREATE TABLE called (who text);"
        "GRANT ALL ON called TO mallory; SET ROLE mallory; CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO public.called VALUES (current_user); RETURN NEW; END $$;"
        "CREATE TABLE copied (id int PRIMARY KEY, v int); CREATE TABLE streamed (id int PRIMARY KEY, v int);"
        "CREATE FUNCTION look() RETURNS int LANGUAGE sql AS"
        " $$ INSERT INTO public.called VALUES (current_user) RETURNING 1 $$;"
        "CREATE VIEW looked AS SELECT public.look() AS id, 1 AS v"
    )
    pipeline = make_pipeline(source, target, source_options=INITIAL)
    wait_for_state(target, "copied", "streaming")
    assert_equal(source, target, "copied")
    wait_for_state(target, "looked", "failed")
    assert "is no table" in table_error(target, "looked")
    source.execute("INSERT INTO streamed VALUES (1, 1)")
    pipeline.catch_up()
    assert_equal(source, target, "streamed")

    for name in ("copied", "streamed"):
        target.execute(
            f"SET ROLE mallory; CREATE TRIGGER spy BEFORE INSERT ON {name} FOR EACH ROW"
            f" EXECUTE FUNCTION spy(); ALTER TABLE {name} ENABLE ALWAYS TRIGGER spy"
        )
    source.execute("INSERT INTO copied VALUES (2, 2)")
    source.execute("INSERT INTO streamed VALUES (2, 2); INSERT INTO other VALUES (2, 2)")
    pipeline.catch_up()

    assert rows(target, "called") == []
    assert_equal(source, target, "other")
    for name in ("copied", "streamed"):
        wait_for_state(target, name, "failed")
        assert "PEN-514" in table_error(target, name)
