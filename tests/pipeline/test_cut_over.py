"""A target that takes the source's place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fix_command import run_penstock
from fix_pipeline import ALWAYS_COPIED, INITIAL, assert_equal, status_of
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import Command, RunningPipeline
    from fix_postgres import Database


def test_target_takes_inserts_where_the_source_stopped(
    source: Database,
    target: Database,
    make_pipeline: Callable[..., RunningPipeline],
    pipeline_file: Callable[..., Path],
) -> None:
    source.execute(
        "CREATE TABLE always (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text);"
        "CREATE TABLE old (id bigserial PRIMARY KEY, n smallserial, v text)"
    )
    pipeline = make_pipeline(source, target)
    for table in ("always", "old"):
        source.execute(f"INSERT INTO {table} (v) SELECT 'v' FROM generate_series(1, 20)")
    pipeline.catch_up()
    source.execute(
        "UPDATE always SET v = 'w' WHERE id < 5; UPDATE always SET id = DEFAULT WHERE id = 7"
    )
    source.execute(
        "UPDATE old SET n = 100, id = id + 1000 WHERE id > 15; DELETE FROM old WHERE id = 1"
    )
    source.execute("TRUNCATE always RESTART IDENTITY; INSERT INTO always (v) VALUES ('anew')")
    pipeline.catch_up()
    assert_equal(source, target, "always", "old")

    path = pipeline_file(source, target)
    done = run_penstock("sync-sequences", path)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "target: public.always_id_seq of public.always stands at 1",
        "target: public.old_id_seq of public.old stands at 20",
        "target: public.old_n_seq of public.old stands at 20",
    ]
    assert target.query("INSERT INTO always DEFAULT VALUES RETURNING id") == [(2,)]
    assert target.query("INSERT INTO old DEFAULT VALUES RETURNING id, n") == [(21, 21)]


@pytest.mark.long
def test_stopped_pipeline_that_has_everything_has_no_lag(
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    source.execute(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 9)"
    )
    source.execute("CREATE TABLE other (id int)")
    path = pipeline_file(source, target, tables=("public.t",), source_options=INITIAL)
    assert penstock_command("run", str(path), "--until-caught-up").wait() == 0

    # WAL that is nothing to this pipeline: another table's rows, another database's, a checkpoint.
    source.execute("INSERT INTO other SELECT generate_series(1, 5000)")
    target.execute("CREATE TABLE more (id int); INSERT INTO more SELECT generate_series(1, 5000)")
    source.execute("CHECKPOINT")
    idle = status_of(path)
    source.execute("ALTER TABLE t ADD v int")
    behind = status_of(path)

    assert idle["sources"]["test"]["slot_has_changes"] is False
    assert (idle["sinks"]["target"]["lag_bytes"], idle["sinks"]["target"]["lag_seconds"]) == (0, 0)
    assert behind["sources"]["test"]["slot_has_changes"] is True
    assert behind["sinks"]["target"]["lag_bytes"] > 0


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(ALWAYS_COPIED, id="initial"),
        pytest.param({"snapshot": "never"}, id="never"),
    ],
)
def test_table_that_is_locked_while_it_is_to_be_published_is_waited_for(
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
    options: dict[str, Any],
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE big (id int PRIMARY KEY)")
    source.execute("INSERT INTO big SELECT generate_series(1, 9)")
    path = pipeline_file(source, target, source_options=options)

    def is_caught_up() -> bool:
        """The rest is there: nothing but the lock keeps the command."""
        status = status_of(path)
        return (
            "public.big" in status["sources"]["test"]["left_out"]
            and status["sinks"]["target"]["tables"].get("public.t", {}).get("state") == "streaming"
        )

    with source.connect(autocommit=False) as holder:
        # As VACUUM and CREATE INDEX CONCURRENTLY hold it.
        holder.execute("LOCK TABLE big IN SHARE UPDATE EXCLUSIVE MODE")
        command = penstock_command("run", str(path), "--until-caught-up")
        wait_until(lambda: command.process.poll() is not None or is_caught_up(), 120)
    assert command.wait() == 0

    query = "SELECT count(*) FROM pg_publication_tables WHERE tablename = 'big'"
    assert source.value(query) == 1
    if options is ALWAYS_COPIED:
        assert_equal(source, target, "t", "big")
