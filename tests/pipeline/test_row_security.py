"""Row-level security, at either end: no row is left out without a word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from test_conflicts import wait_for_fix, wait_for_stop
from test_target_changes import as_writer

from fix_command import run_penstock
from fix_pipeline import ALWAYS_COPIED, assert_equal, table_error, table_state, wait_for_state
from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

pytestmark = only_new

_HIDE = "ALTER TABLE {0} ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON {0} USING (id < 2)"


def _check(path: Path) -> tuple[int, str]:
    done = run_penstock("check", path)
    return done.returncode, done.stderr


def test_table_whose_policies_hold_for_the_sinks_role_stops_and_is_found_by_check(
    source: Database, target: Database, make_pipeline: Make, pipeline_file: Callable[..., Path]
) -> None:
    tables = ("hidden", "later", "forced", "good")
    for table in tables:
        source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
        source.execute(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        target.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
        target.execute(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    url = as_writer(target)
    target.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO writer")
    target.execute(_HIDE.format("hidden"))
    target.execute("ALTER TABLE forced OWNER TO writer; " + _HIDE.format("forced"))
    path = pipeline_file(source, url)

    # Of the owner policies are not enforced.
    code, reported = _check(path)
    assert code == 1
    assert "PEN-507 public.hidden: row-level security is on for public.hidden" in reported
    assert "public.forced" not in reported
    target.execute("ALTER TABLE forced FORCE ROW LEVEL SECURITY")
    assert "PEN-507 public.forced" in _check(path)[1]

    pipeline = make_pipeline(source, url)
    for table in tables:
        source.execute(f"DELETE FROM {table} WHERE id = 2; UPDATE {table} SET v = 'x' WHERE id = 3")
    assert "row-level security" in wait_for_stop(pipeline, "public.hidden")
    assert "row-level security" in wait_for_stop(pipeline, "public.forced")
    pipeline.catch_up()
    assert_equal(source, target, "later", "good")
    target.execute(_HIDE.format("later"))
    source.execute("DELETE FROM later WHERE id = 3; DELETE FROM good WHERE id = 3")
    assert "row-level security" in wait_for_stop(pipeline, "public.later")
    pipeline.catch_up()
    assert_equal(source, target, "good")
    assert target.value("SELECT sum(delete_missing + update_missing) FROM penstock.tables") == 0

    target.execute("ALTER ROLE writer BYPASSRLS")
    wait_for_fix(pipeline)
    assert_equal(source, target, *tables)


@pytest.mark.long
def test_copy_of_a_table_whose_policies_hold_for_the_sources_role_is_refused(
    source: Database, target: Database, make_pipeline: Make, pipeline_file: Callable[..., Path]
) -> None:
    source.execute("CREATE ROLE reader LOGIN REPLICATION")
    source.execute(f'GRANT CREATE ON DATABASE "{source.name}" TO reader')
    for table in ("hidden", "good"):
        source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
        source.execute(f"INSERT INTO {table} VALUES (1), (2), (3)")
        source.execute(f"ALTER TABLE {table} OWNER TO reader")
    source.execute(_HIDE.format("hidden") + "; ALTER TABLE hidden FORCE ROW LEVEL SECURITY")
    url = source.server.dsn(source.name, user="reader")
    options: dict[str, Any] = {"source_options": ALWAYS_COPIED}

    reported = _check(pipeline_file(url, target, **options))[1]
    assert "warning: PEN-205 public.hidden: row-level security holds" in reported
    make_pipeline(url, target, **options)
    wait_for_state(target, "good", "streaming")
    wait_until(lambda: table_error(target, "hidden"), what="the copy to be refused")

    assert "row-level security" in table_error(target, "hidden")
    assert table_state(target, "hidden") != "streaming"
    assert_equal(source, target, "good")
    source.execute("ALTER ROLE reader BYPASSRLS")
    wait_for_state(target, "hidden", "streaming")
    assert_equal(source, target, "hidden")
