"""Another user of this machine gets at nothing: no password, no row, no port, no socket."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fix_pipeline import pipeline_document, row_count
from fix_postgres import only_new
from fix_processes import command_line, jvms_of, tree_of
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fix_pipeline import Command
    from fix_postgres import Database
    from penstock.spark.session import Spark

AT_SOURCE, AT_TARGET, OF_SPARK = "s0urc3c4n4ry", "t4rg3tc4n4ry", "sp4rkc4n4ry"
CANARIES = [text.encode() for text in (AT_SOURCE, AT_TARGET, OF_SPARK)]

# What another user tries; it prints what it got at.
_INTRUDER = """
import json, os, socket, sys
roots, pids = json.loads(sys.argv[1])
got = []
def attempt(what, do):
    try:
        do()
        got.append(what)
    except OSError:
        pass
for root in roots:
    attempt(f"list {root}", lambda: os.listdir(root))
    for path, directories, files in os.walk(root):
        for name in files:
            place = os.path.join(path, name)
            attempt(f"read {place}", lambda: open(place, "rb").close())
            attempt(f"connect {place}", lambda: socket.socket(socket.AF_UNIX).connect(place))
for pid in pids:
    attempt(f"environ of {pid}", lambda: open(f"/proc/{pid}/environ", "rb").read())
print(json.dumps(got))
"""


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can enter, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="penstock-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def intrude(roots: list[Path], pids: list[int]) -> list[str]:
    """What another user gets at."""
    wanted = json.dumps([[str(root) for root in roots], pids])
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-c", _INTRUDER, wanted],
        user="nobody",
        group="nogroup",
        extra_groups=[],
        cwd="/",
        capture_output=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    return json.loads(done.stdout)


def with_password(url: str, password: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}password={password}"


def files_below(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def holding_secrets(roots: list[Path]) -> list[Path]:
    """Files that hold a password."""
    found = []
    for root in roots:
        for path in files_below(root):
            content = path.read_bytes()
            if any(canary in content for canary in CANARIES):
                found.append(path)
    return found


@only_new
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_gets_at_nothing_while_the_pipeline_runs(
    source: Database,
    target: Database,
    penstock_command: Callable[..., Command],
    open_directory: Path,
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 10) g")
    path = write_pipeline(source, target, open_directory)
    command = penstock_command("run", str(path))
    wait_until(lambda: row_count(target, "t") == 10, 90, what="the copy")
    # Enough for a task to connect to the target itself.
    source.execute("INSERT INTO t SELECT g, repeat('v', 100) FROM generate_series(11, 20000) g")
    wait_until(lambda: row_count(target, "t") == 20_000, 60, what="the stream")

    pids = tree_of(command.process.pid)
    [jvm] = jvms_of(command.process.pid)
    home = home_of(jvm)
    kept = holding_secrets([open_directory / "test-state", home])
    got = intrude([open_directory, open_directory / "test-state", home], pids)

    for pid in pids:
        shown = "\0".join(command_line(pid)).encode()
        assert not [each for each in CANARIES if each in shown]
    assert kept == [home / "connections.json"]
    assert stat.S_IMODE(kept[0].stat().st_mode) == 0o600
    assert got == [f"list {open_directory}"]
    assert not readable_by_others(open_directory / "test-state")
    assert command.terminate() == 0, command.stderr
    assert not home.exists()
    assert not [each for each in CANARIES if each in command.stderr.encode()]


@only_new
@pytest.mark.long
def test_killed_parent_leaves_no_password_behind(
    source: Database,
    target: Database,
    penstock_command: Callable[..., Command],
    open_directory: Path,
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 10) g")
    path = write_pipeline(source, target, open_directory)
    command = penstock_command("run", str(path))
    wait_until(lambda: row_count(target, "t") == 10, 90, what="the copy")
    [jvm] = jvms_of(command.process.pid)
    home = home_of(jvm)
    assert holding_secrets([home])

    command.kill()

    wait_until(lambda: not Path(f"/proc/{jvm}").exists(), 20, what="the JVM to end")
    assert not holding_secrets([open_directory / "test-state", home])
    assert penstock_command("run", str(path), "--until-caught-up").wait() == 0
    assert not home.exists()


def write_pipeline(source: Database, target: Database, directory: Path) -> Path:
    document = pipeline_document(
        with_password(source.url, AT_SOURCE), with_password(target.url, AT_TARGET), directory
    )
    document["source"]["snapshot"] = "initial"
    document["spark"] = {"conf": {"spark.hadoop.fs.s3a.secret.key": OF_SPARK}}
    path = directory / "test.yml"
    path.write_text(yaml.safe_dump(document))
    path.chmod(0o600)
    return path


def home_of(jvm: int) -> Path:
    """The directory of a start of Spark, as the JVM's command line names it."""
    words = command_line(jvm)
    return Path(words[words.index("--properties-file") + 1]).parent


def readable_by_others(root: Path) -> list[Path]:
    return [path for path in (root, *root.rglob("*")) if path.lstat().st_mode & 0o077]


def listening_ports(pid: int) -> list[int]:
    """The TCP ports on which a process listens."""
    sockets = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(str(fd.readlink()))
        except OSError:
            continue  # closed meanwhile
    ports = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports


def ask_for_blocks(port: int) -> int | None:
    """Ask as an executor does for a broadcast; the type of the answer, None when there is none."""

    def text(given: str) -> bytes:
        return struct.pack(">i", len(given)) + given.encode()

    body = b"\0" + text("app") + text("driver") + struct.pack(">i", 1) + text("broadcast_0_piece0")
    request = b"\3" + struct.pack(">qi", 1, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(struct.pack(">q", len(request) + 8) + request)
        try:
            answer = connection.recv(9)
        except (TimeoutError, ConnectionResetError):
            return None
    return answer[8] if len(answer) == 9 else None


RPC_RESPONSE = 4


def test_ports_of_spark_give_nothing_to_who_has_no_secret(spark: Spark) -> None:
    ports = listening_ports(spark.running().jvm.process.pid)

    answers = [ask_for_blocks(port) for port in ports]

    assert len(ports) >= 2, "one for orders, one for blocks, one for the driver's own calls"
    assert RPC_RESPONSE not in answers


def test_work_that_is_sent_to_tasks_holds_no_password(spark: Spark) -> None:
    from pyspark import cloudpickle

    from penstock.dsn import Dsn
    from penstock.sinks.postgres.copy.copy_in import PostgresRangeWriter
    from penstock.sinks.postgres.worker import PostgresWorker
    from penstock.snapshot.task import CopyWork
    from penstock.spark.jobs import run_tasks
    from penstock.table import TableName

    spark.running()
    dsn = Dsn.parse(f"postgresql://ana:{AT_TARGET}@db1/shop")
    table = TableName("public", "t")
    writer = PostgresRangeWriter(
        dsn, ("shop", "shop"), table, "copy", table, ("id",), (), ("id",), is_binary=True
    )
    work: list[Any] = [
        PostgresWorker(dsn, "stage_", {}, frozenset()),
        CopyWork(dsn, "snapshot", {table: writer}, {}),
    ]

    sent = cloudpickle.dumps(work)
    found = run_tasks(spark, lambda _: [each.dsn.conninfo for each in work], [1])

    assert AT_TARGET.encode() not in sent
    assert found == [dsn.conninfo, dsn.conninfo]
