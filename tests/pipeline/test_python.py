"""penstock.run, status and check as a notebook calls them: in a process, and on a session, of somebody else's."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from fix_command import run_penstock
from fix_pipeline import INITIAL, assert_equal, row_count, rows
from fix_postgres import create_database, only_new
from fix_processes import jvms_of, tree_of
from fix_wait import wait_until
from penstock.embedded.java import java_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fix_postgres import Database, MakeServer

pytestmark = only_new

# Runs one cell after the other in its main thread, as a notebook's kernel does.
_KERNEL = """
import json, sys
names = {}
for line in sys.stdin:
    names["answer"] = None
    try:
        exec(json.loads(line), names)
        told = {"answer": names["answer"]}
    except BaseException as error:
        told = {"raised": type(error).__name__, "text": str(error), "code": getattr(error, "code", None)}
    print(json.dumps(told), flush=True)
"""

_BEGIN = """
import json, logging, os, signal, sys, threading
import penstock

def surroundings():
    '''What a library must leave as it found it.'''
    handlers = [repr(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    os.umask(mask := os.umask(0))
    root, own = logging.getLogger(), logging.getLogger("penstock")
    levels = [repr(root.handlers), root.level, repr(own.handlers), own.level]
    return json.dumps([handlers, mask, levels, dict(os.environ)])
"""

_MAKE_SESSION = """
from pyspark.sql import SparkSession
session = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
)
"""


class Notebook:
    """A Python process that runs cells."""

    def __init__(self, stderr: Path) -> None:
        self._stderr = stderr
        with stderr.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _KERNEL],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                # Where a session's tasks find penstock is its owner's affair.
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java_home())},
            )
        self.run(_BEGIN)

    @property
    def stderr(self) -> str:
        """What was printed there so far."""
        return self._stderr.read_text()

    def begin(self, cell: str) -> None:
        """Have a cell run; `end` waits for it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(cell) + "\n")
        self.process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """Wait for the cell; its `answer`, or what it has raised."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the notebook has died: {self.stderr[-2000:]}"
        return json.loads(line)

    def run(self, cell: str) -> Any:
        """Run a cell that raises nothing; what it has put into `answer`."""
        self.begin(cell)
        reported = self.end()
        assert "raised" not in reported, f"{reported}\n{self.stderr[-2000:]}"
        return reported["answer"]

    def fail(self, cell: str) -> dict[str, Any]:
        """Run a cell that raises; what."""
        self.begin(cell)
        reported = self.end()
        assert "raised" in reported, reported
        return reported

    def interrupt(self) -> None:
        """As the button that stops a cell."""
        self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with a SparkSession of its own, `session`."""
    opened = Notebook(tmp_path_factory.mktemp("notebook") / "stderr.txt")
    opened.run(_MAKE_SESSION)
    yield opened
    opened.close()


@pytest.fixture
def plain_notebook(tmp_path: Path) -> Iterator[Notebook]:
    """A notebook without any Spark."""
    opened = Notebook(tmp_path / "notebook-stderr.txt")
    yield opened
    opened.close()


def _fill(source: Database, count: int = 200) -> None:
    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text);"
        f"INSERT INTO orders SELECT n, 'note ' || n FROM generate_series(1, {count}) n"
    )


def _readable_by_others(directory: Path) -> list[str]:
    """What others may read, or enter, of the files below a directory, and the directory."""
    paths = [directory, *directory.rglob("*")]
    return [str(each) for each in paths if stat.S_IMODE(each.lstat().st_mode) & 0o077]


def test_session_of_the_caller_runs_the_pipeline_and_is_alive_afterwards(
    notebook: Notebook, source: Database, target: Database, pipeline_file: Callable[..., Path]
) -> None:
    _fill(source)
    path = pipeline_file(source, target, source_options=INITIAL)
    before = notebook.run("answer = surroundings()")

    notebook.run(f"penstock.run({str(path)!r}, spark=session, until_caught_up=True)")
    source.execute(
        "UPDATE orders SET note = 'new' WHERE id < 50; DELETE FROM orders WHERE id > 150"
    )
    notebook.run(f"penstock.run(penstock.read_pipeline({str(path)!r}), session, True)")

    assert len(rows(target, "orders")) == 150
    assert_equal(source, target, "orders")
    assert notebook.run("answer = session.range(10).count()") == 10
    assert notebook.run("answer = surroundings()") == before
    assert _readable_by_others(path.parent / "test-state") == []


def test_event_stops_a_run_from_another_thread(
    notebook: Notebook, source: Database, target: Database, pipeline_file: Callable[..., Path]
) -> None:
    _fill(source)
    path = pipeline_file(source, target, source_options=INITIAL)
    notebook.run(
        "stop = threading.Event()\n"
        f"job = threading.Thread(target=penstock.run, args=({str(path)!r}, session), kwargs=dict(stop=stop))\n"
        "job.start()"
    )
    wait_until(lambda: row_count(target, "orders") == 200, 60, "the copy")

    second = notebook.fail(f"penstock.run({str(path)!r}, spark=session)")
    answer = notebook.run(
        "stop.set(); job.join(30); answer = [job.is_alive(), session.range(7).count()]"
    )

    assert second["code"] == "PEN-601"
    assert answer == [False, 7]
    assert penstock.status(path).phase == "stopped"


def test_password_reaches_tasks_of_the_callers_session_by_a_file_of_the_run_alone(
    notebook: Notebook, source: Database, target: Database, pipeline_file: Callable[..., Path]
) -> None:
    _fill(source)
    secret = "hunter2-canary"
    joined = "&" if "?" in target.url else "?"
    path = pipeline_file(source, f"{target.url}{joined}password={secret}", source_options=INITIAL)
    notebook.run(
        "stop = threading.Event()\n"
        f"job = threading.Thread(target=penstock.run, args=({str(path)!r}, session), kwargs=dict(stop=stop))\n"
        "job.start()"
    )
    wait_until(lambda: row_count(target, "orders") == 200, 60, "the copy")

    kept = Path(notebook.run("from penstock import vault; answer = str(vault._in_use.path)"))
    held, readable = kept.read_text(), _readable_by_others(kept.parent)
    notebook.run("stop.set(); job.join(30)")

    assert secret in held
    assert readable == []
    assert not kept.parent.exists()
    conf = notebook.run("answer = [list(each) for each in session.sparkContext.getConf().getAll()]")
    assert secret not in str(conf)
    assert secret not in notebook.stderr


def test_interrupt_stops_a_run_and_returns(
    notebook: Notebook, source: Database, target: Database, pipeline_file: Callable[..., Path]
) -> None:
    _fill(source)
    path = pipeline_file(source, target, source_options=INITIAL)
    notebook.begin(f"penstock.run({str(path)!r}, spark=session)")
    wait_until(lambda: row_count(target, "orders") == 200, 60, "the copy")

    notebook.interrupt()

    assert notebook.end() == {"answer": None}
    assert notebook.run("answer = session.range(7).count()") == 7
    assert penstock.status(path).phase == "stopped"


@pytest.mark.long
def test_interrupt_of_a_run_that_has_yet_to_catch_up_is_raised(
    notebook: Notebook, source: Database, target: Database, pipeline_file: Callable[..., Path]
) -> None:
    _fill(source)
    path = pipeline_file(source, target, source_options=INITIAL)
    call = f"penstock.run({str(path)!r}, spark=session, until_caught_up=True)"
    notebook.run(call)
    source.execute("DELETE FROM orders")
    waits = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock'"
    )

    with target.connect(autocommit=False) as connection:
        connection.execute("LOCK TABLE orders")
        notebook.begin(call)
        wait_until(lambda: target.query(waits), 60, "the merge to wait")
        notebook.interrupt()
        reported = notebook.end()

    assert reported["raised"] == "KeyboardInterrupt"
    assert len(rows(target, "orders")) == 200
    assert notebook.run("answer = session.range(7).count()") == 7


def test_wrong_password_is_an_error_of_penstock(
    notebook: Notebook,
    make_server: MakeServer,
    target: Database,
    pipeline_file: Callable[..., Path],
) -> None:
    guarded = create_database(make_server(password="right"), "guarded")
    path = pipeline_file(guarded.url.replace("right", "wrong"), target)

    reported = notebook.fail(f"penstock.run({str(path)!r}, spark=session)")
    is_ours = notebook.run(
        f"try:\n    penstock.run({str(path)!r}, spark=session)\n"
        "except penstock.PenstockError as error:\n    answer = error.do"
    )

    assert reported["code"].startswith("PEN-2")
    assert "wrong" not in reported["text"]
    assert is_ours
    [finding] = [each for each in penstock.check(path) if each.code == reported["code"]]
    assert finding.severity == "error"


def test_session_that_cannot_be_used_is_refused_before_the_first_batch(
    notebook: Notebook, source: Database, target: Database, pipeline_file: Callable[..., Path]
) -> None:
    _fill(source)
    path = pipeline_file(source, target, source_options=INITIAL)

    none = notebook.fail(f"penstock.run({str(path)!r}, spark='local[2]')")
    forgotten = notebook.fail(f"penstock.run({str(path)!r})")
    notebook.run(
        "python, session.sparkContext.pythonExec = session.sparkContext.pythonExec, 'false'"
    )
    unfit = notebook.fail(f"penstock.run({str(path)!r}, spark=session)")
    notebook.run("session.sparkContext.pythonExec = python")

    assert "wanted a SparkSession" in none["text"]
    assert "has a SparkSession, and can have but one" in forgotten["text"]
    assert "tasks cannot use penstock" in unfit["text"]
    assert notebook.run("answer = session.range(7).count()") == 7


@pytest.mark.long
def test_run_without_a_session_starts_its_own_and_ends_it(
    plain_notebook: Notebook, source: Database, target: Database, pipeline_file: Callable[..., Path]
) -> None:
    _fill(source)
    path = pipeline_file(source, target, source_options=INITIAL)
    before = plain_notebook.run("answer = surroundings()")

    plain_notebook.run(f"penstock.run({str(path)!r}, until_caught_up=True)")

    assert_equal(source, target, "orders")
    assert len(rows(target, "orders")) == 200
    assert plain_notebook.run("answer = surroundings()") == before
    assert tree_of(plain_notebook.process.pid) == [plain_notebook.process.pid]
    # A session that is made later is the caller's; a run that loses it ends.
    plain_notebook.run(_MAKE_SESSION)
    source.execute("INSERT INTO orders VALUES (1000, 'last')")
    plain_notebook.begin(f"penstock.run({str(path)!r}, spark=session)")
    wait_until(lambda: row_count(target, "orders") == 201, 60, "the last row")
    for pid in jvms_of(plain_notebook.process.pid):
        os.kill(pid, signal.SIGKILL)
    reported = plain_notebook.end()
    assert reported["code"] == "PEN-607"
    assert "penstock.run again" in reported["text"]


def test_status_and_check_are_what_the_commands_show(
    source: Database, target: Database, pipeline_file: Callable[..., Path]
) -> None:
    _fill(source)
    path = pipeline_file(source, target, tables=("public.orders", "public.nothing"))

    status = penstock.status(str(path))
    findings = penstock.check(penstock.read_pipeline(path))
    shown = json.loads(run_penstock("status", path, "--json").stdout)

    assert isinstance(status, penstock.PipelineStatus)
    of_each = {"sources": {}, "asked_at": None}  # what two polls may see differently
    assert status.as_dict() | of_each == shown | of_each
    assert status.phase == "stopped"
    done = run_penstock("check", path, "--json")
    listed = [(each["code"], each["what"]) for each in json.loads(done.stdout)]
    assert all(isinstance(each, penstock.Finding) for each in findings)
    assert [(each.code, each.what) for each in findings] == listed
