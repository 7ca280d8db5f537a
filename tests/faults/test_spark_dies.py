"""The JVM of Spark is killed under a running pipeline: Spark is started anew, and nothing is lost."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.core import rdd

from fix_pipeline import assert_equal, row_count, slowly, status_of
from fix_postgres import only_new
from fix_processes import is_running, jvms_of, kill, tree_of
from fix_wait import wait_until
from penstock.errors import SparkGone
from penstock.spark.jobs import run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import Command
    from fix_postgres import Database
    from penstock.spark.session import Spark

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def insert(source: Database, first: int, count: int) -> None:
    source.execute(
        f"INSERT INTO t SELECT g, repeat('v', 100) FROM generate_series({first}, {first + count - 1}) g"
    )


def jvm_of(command: Command) -> int:
    """The JVM of a command, once there is one."""
    return wait_until(lambda: jvms_of(command.process.pid), 60, what="a JVM")[0]


@only_new
def test_killed_jvm_is_started_anew_and_nothing_is_lost(
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    source.execute(TABLE)
    insert(source, 1, 10)
    path = pipeline_file(source, target, source_options={"snapshot": "initial"})
    command = penstock_command("run", str(path))
    wait_until(lambda: row_count(target, "t") == 10, 90, what="the copy")

    # Under load: a batch is on its way, of several staging tables.
    insert(source, 11, 60_000)
    wait_until(lambda: status_of(path)["sources"], what="status")
    jvm = jvm_of(command)
    below = tree_of(jvm)
    kill(jvm)
    insert(source, 100_001, 500)

    wait_until(lambda: row_count(target, "t") == 60_510, 90, what="all rows to arrive")
    assert jvm_of(command) != jvm
    assert not [each for each in below if is_running(each)]
    assert command.terminate() == 0, command.stderr
    assert "PEN-607" in command.stderr
    assert "Traceback" not in command.stderr
    assert "py4j" not in command.stderr.lower()
    assert_equal(source, target, "t")


@only_new
@pytest.mark.long
def test_jvm_killed_while_idle_is_started_anew(
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    source.execute(TABLE)
    insert(source, 1, 10)
    path = pipeline_file(source, target, source_options={"snapshot": "initial"})
    command = penstock_command("run", str(path))
    wait_until(lambda: row_count(target, "t") == 10, 90, what="the copy")

    jvm = jvm_of(command)
    kill(jvm)
    wait_until(lambda: set(jvms_of(command.process.pid)) - {jvm}, 60, what="another JVM")
    insert(source, 11, 500)

    wait_until(lambda: row_count(target, "t") == 510, 90, what="all rows to arrive")
    assert command.terminate() == 0, command.stderr
    assert "Traceback" not in command.stderr


@only_new
@pytest.mark.long
def test_jvm_killed_during_a_copy_does_not_end_the_copy(
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    source.execute(TABLE)
    insert(source, 1, 30_000)
    source.execute("CREATE TABLE u AS SELECT * FROM t; ALTER TABLE u ADD PRIMARY KEY (id)")
    path = pipeline_file(source, target, source_options=slowly(3000))
    command = penstock_command("run", str(path))
    wait_until(lambda: "copying 2 tables" in command.stderr, 90, what="the copy to begin")
    jvm = jvm_of(command)
    # In the middle: tasks have begun to read.
    wait_until(
        lambda: source.value(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'penstock copy'"
        ),
        30,
        what="a task that copies",
    )
    kill(jvm)
    insert(source, 100_001, 500)

    again = penstock_command("snapshot", str(path))  # waits for the copies
    assert again.wait() == 0, again.stderr
    wait_until(lambda: row_count(target, "t") == 30_500, 90, what="all rows to arrive")
    assert command.terminate() == 0, command.stderr
    assert "Traceback" not in command.stderr
    assert_equal(source, target, "t", "u")


@only_new
@pytest.mark.long
def test_jvm_killed_while_it_starts_is_started_anew(
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    source.execute(TABLE)
    insert(source, 1, 10)
    path = pipeline_file(source, target, source_options={"snapshot": "initial"})
    command = penstock_command("run", str(path), "--until-caught-up")

    kill(jvm_of(command))

    assert command.wait() == 0, command.stderr
    assert "PEN-607" in command.stderr
    assert "Traceback" not in command.stderr
    assert_equal(source, target, "t")


@only_new
@pytest.mark.long
def test_jvm_that_dies_again_and_again_ends_the_run(
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    source.execute(TABLE)
    insert(source, 1, 10)
    path = pipeline_file(source, target, source_options={"snapshot": "initial"})
    command = penstock_command("run", str(path))
    wait_until(lambda: row_count(target, "t") == 10, 90, what="the copy")

    deadline = time.monotonic() + 240
    killed = 0
    while command.process.poll() is None and time.monotonic() < deadline:
        for jvm in jvms_of(command.process.pid):
            kill(jvm)
            killed += 1
        time.sleep(0.05)
    insert(source, 11, 100)

    assert command.wait(1) == 1, command.stderr
    assert "PEN-608" in command.stderr
    assert killed >= 3, "it was given more than one chance"
    assert "Traceback" not in command.stderr
    again = penstock_command("run", str(path), "--until-caught-up")
    assert again.wait() == 0, again.stderr
    assert_equal(source, target, "t")


def test_results_that_break_off_are_not_taken_for_all(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = rdd._load_from_socket

    def break_off(info: Any, serializer: Any) -> Any:
        """As a JVM that is killed while it serves results: the stream ends, and nothing says so."""
        return itertools.islice(load(info, serializer), 2)

    assert run_tasks(spark, list, [1, 2, 3, 4]) == [1, 2, 3, 4]
    with monkeypatch.context() as patch:
        patch.setattr(rdd, "_load_from_socket", break_off)
        with pytest.raises(SparkGone, match="2 of 4 tasks"):
            run_tasks(spark, list, [1, 2, 3, 4])
    assert run_tasks(spark, list, [1, 2, 3, 4]) == [1, 2, 3, 4]


_LOSE_AND_START_AGAIN = """
import os, signal, sys
from pathlib import Path
from penstock.errors import SparkGone
from penstock.spark.jobs import run_tasks
from penstock.spark.options import SparkOptions
from penstock.spark.session import Spark

def ways(running):
    yield lambda: running().jvm.kill()
    yield lambda: running().context._jsc.sc().stop()
    yield lambda: running().context._jvm.java.lang.Runtime.getRuntime().halt(3)

spark = Spark("test", SparkOptions(master="local[2]"), Path(sys.argv[1]))
spark.start()
for lose in ways(spark.running):
    home = spark.running().home.path
    assert run_tasks(spark, list, [1, 2, 3]) == [1, 2, 3]
    try:
        lose()
    except Exception:
        pass  # py4j's: there is no answer
    try:
        run_tasks(spark, list, [1, 2, 3])
        print("a job ran on")
    except SparkGone as gone:
        print(gone.what)
    assert spark.take_loss() is not None and not spark.is_up
    spark.start()
    assert not home.exists()
assert run_tasks(spark, list, [1, 2, 3]) == [1, 2, 3]
spark.stop()
print(sum("/userFiles-" in entry for entry in sys.path))
"""


@pytest.mark.long
def test_spark_is_lost_in_any_way_and_started_again_in_the_same_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOSE_AND_START_AGAIN, str(tmp_path / "spark.log")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "the JVM that Spark runs in was killed by signal 9",
        "the JVM that Spark runs in takes no jobs any more",
        "the JVM that Spark runs in ended with exit code 3",
        "0",
    ]
