"""A signal that reaches every process of a pipeline stops it as cleanly as one to its parent."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from fix_pipeline import assert_equal, row_count
from fix_postgres import only_new
from fix_processes import described, is_running, jvms_of, kill, tree_of
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fix_pipeline import Command, RunningPipeline
    from fix_postgres import Database

pytestmark = only_new

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


class Load:
    """Commits rows until stopped: some batch is always on its way."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        first = 1000
        with self._database.connect() as connection:
            while not self._stop.wait(0.02):
                connection.execute(
                    "INSERT INTO t SELECT g, repeat('v', 50) FROM generate_series(%s::int, %s::int) g",
                    (first, first + 199),
                )
                first += 200


def at_all(command: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """As systemd does with KillMode=control-group, and whoever searches all processes of a user."""
    for pid in reversed(tree_of(command.pid)):
        kill(pid, number)


def at_group(command: subprocess.Popen[bytes], number: signal.Signals) -> None:
    os.killpg(command.pid, number)


@contextmanager
def explained(command: Command, below: list[int], directory: Path) -> Iterator[None]:
    """Print what there is to see of a command and its processes, where a block fails."""
    began = time.monotonic()
    try:
        yield
    except BaseException:
        now = {*below, *tree_of(command.process.pid)}
        print(f"after {time.monotonic() - began:.1f} s, exit code {command.process.poll()}")
        print(f"stderr:\n{command.stderr}\nprocesses:\n{described(sorted(now))}")
        for log in directory.rglob("spark.log"):
            print(f"the end of {log}:\n{log.read_text(errors='replace')[-8000:]}")
        raise


def begun(source: Database, target: Database, path: Path, begin: Callable[..., Command]) -> Command:
    command = begin("run", str(path), is_group=True)
    wait_until(lambda: row_count(target, "t") >= 10, 90, what="rows to arrive")
    assert jvms_of(command.process.pid)
    return command


@pytest.mark.parametrize(
    ("send", "number"),
    [
        pytest.param(at_all, signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(at_all, signal.SIGINT, marks=pytest.mark.long),
        pytest.param(at_all, signal.SIGHUP, marks=pytest.mark.long),
        pytest.param(at_group, signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(at_group, signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_signal_to_every_process_stops_as_cleanly_as_one_to_the_parent(
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
    send: Callable[[subprocess.Popen[bytes], signal.Signals], None],
    number: signal.Signals,
) -> None:
    source.execute(TABLE)
    source.execute("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 10) g")
    path = pipeline_file(source, target, source_options={"snapshot": "initial"})
    command = begun(source, target, path, penstock_command)

    with Load(source):
        wait_until(lambda: row_count(target, "t") > 1000, 60, what="batches to arrive")
        below = tree_of(command.process.pid)
        began = time.monotonic()
        send(command.process, number)
        code = command.wait(30)
        took = time.monotonic() - began

    assert code == 0, command.stderr
    assert took < 10
    assert_clean(command.stderr)
    wait_until(lambda: not [each for each in below if is_running(each)], 10, what="all to end")
    again = penstock_command("run", str(path), "--until-caught-up")
    assert again.wait() == 0, again.stderr
    assert_equal(source, target, "t")


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.3, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0])
def test_signal_to_every_process_while_it_starts_is_clean(
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
    seconds: float,
) -> None:
    source.execute(TABLE)
    path = pipeline_file(source, target)
    assert penstock_command("init", str(path)).wait() == 0
    command = penstock_command("run", str(path), is_group=True)
    # Wherever in its start that is: importing, connecting, launching the JVM.
    time.sleep(seconds)
    below = tree_of(command.process.pid)
    began = time.monotonic()
    at_all(command.process, signal.SIGTERM)
    with explained(command, below, path.parent):
        code = command.wait(30)
        took = time.monotonic() - began

        # Before Python has come to its first line, nobody can handle a signal.
        assert code == 0 or (code == -signal.SIGTERM and not command.stderr), command.stderr
        assert took < 10
        assert_clean(command.stderr)
        wait_until(lambda: not [each for each in below if is_running(each)], 10, what="all to end")


@pytest.mark.long
def test_ctrl_c_in_a_terminal_stops_cleanly(
    source: Database, target: Database, pipeline_file: Callable[..., Path]
) -> None:
    source.execute(TABLE)
    source.execute("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 10) g")
    path = pipeline_file(source, target, source_options={"snapshot": "initial"})
    with in_terminal("run", str(path)) as (pid, terminal, said):
        wait_until(lambda: row_count(target, "t") == 10, 90, what="rows to arrive")
        below = tree_of(pid)
        with Load(source):
            wait_until(lambda: row_count(target, "t") > 1000, 60, what="batches to arrive")
            os.write(terminal, b"\x03")
            _, status = os.waitpid(pid, 0)

    text = b"".join(said).decode()
    assert os.waitstatus_to_exitcode(status) == 0, text
    assert_clean(text)
    wait_until(lambda: not [each for each in below if is_running(each)], 10, what="all to end")


@pytest.mark.long
def test_ctrl_c_that_also_ends_the_reader_of_stdout_is_clean(
    source: Database, pipeline_file: Callable[..., Path], tmp_path: Path
) -> None:
    source.execute(TABLE)
    path = pipeline_file(source, None, sink={"kind": "stdout"})
    # The shell waits for its child to end, whatever it is sent itself.
    script = '(trap : INT; "$0" -m penstock run "$1" 2> stderr; echo $? > code) | cat > stdout'
    shell = subprocess.Popen(
        ["/bin/sh", "-c", script, sys.executable, str(path)], cwd=tmp_path, start_new_session=True
    )
    try:
        wait_until(lambda: source.query("SELECT FROM pg_replication_slots"), 60, what="a slot")
        with Load(source):
            wait_until(lambda: (tmp_path / "stdout").stat().st_size, 60, what="documents")
            os.killpg(shell.pid, signal.SIGINT)
            wait_until((tmp_path / "code").exists, 20, what="the command to end")
    finally:
        at_all(shell, signal.SIGKILL)
        shell.wait()

    text = (tmp_path / "stderr").read_text()
    assert (tmp_path / "code").read_text() == "0\n", text
    assert "Traceback" not in text


@pytest.mark.long
def test_killed_parent_leaves_no_process_behind(
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    source.execute(TABLE)
    source.execute("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 10) g")
    path = pipeline_file(source, target, source_options={"snapshot": "initial"})
    command = begun(source, target, path, penstock_command)
    below = tree_of(command.process.pid)

    command.kill()

    assert len(below) >= 4, "a JVM, a capture, a worker daemon"
    wait_until(lambda: not [each for each in below if is_running(each)], 20, what="all to end")


def assert_clean(text: str) -> None:
    for word in ("Traceback", "py4j", "Exception", "Error", "PEN-6"):
        assert word.lower() not in text.lower(), text


class in_terminal:  # noqa: N801 - used as a function
    """A command whose terminal this test holds."""

    def __init__(self, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "penstock", *arguments]
        self._said: list[bytes] = []

    def __enter__(self) -> tuple[int, int, list[bytes]]:
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.execv(self._command[0], self._command)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self._pid, self._terminal, self._said

    def __exit__(self, *_: object) -> None:
        kill(self._pid)
        self._reader.join()
        os.close(self._terminal)

    def _read(self) -> None:
        for block in iter(self._block, b""):
            self._said.append(block)

    def _block(self) -> bytes:
        try:
            return os.read(self._terminal, 65536)
        except OSError:  # the other end is closed
            return b""


def test_batch_that_takes_too_long_to_commit_is_cancelled_and_delivered_by_the_next_run(
    source: Database, target: Database, make_pipeline: Callable[..., RunningPipeline]
) -> None:
    source.execute(TABLE)
    pipeline = make_pipeline(source, target)
    source.execute("INSERT INTO t VALUES (1, 'a')")
    pipeline.catch_up()
    with target.connect(autocommit=False) as other:
        other.execute("LOCK TABLE t")
        source.execute("INSERT INTO t VALUES (2, 'b')")
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"
        wait_until(lambda: other.execute(waiting).fetchall(), what="the batch to wait for the lock")

        pipeline.stop()

    assert pipeline.failures == []
    pipeline.start()
    pipeline.catch_up()
    assert_equal(source, target, "t")


def test_closed_sink_has_not_caught_up(
    source: Database, target: Database, make_pipeline: Callable[..., RunningPipeline]
) -> None:
    # It has forgotten its tables, and with them those that are still to be copied.
    source.execute(TABLE)
    source.execute("INSERT INTO t VALUES (1, 'a')")
    pipeline = make_pipeline(source, target)
    pipeline.catch_up()
    (flow,) = pipeline.deliveries
    lsn = flow.delivered_lsn
    assert flow.has_caught_up(lsn)
    pipeline.stop()
    assert not flow.has_caught_up(lsn)
