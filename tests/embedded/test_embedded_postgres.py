"""EmbeddedPostgres against the real programs."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest

from fix_postgres import Database, create_database, drop_database
from fix_wait import wait_until
from penstock.embedded import binaries
from penstock.embedded.ports import free_port
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import EmbeddedServerFailed

if TYPE_CHECKING:
    from fix_postgres import MakeServer

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to change the user")


def test_server_takes_connections_with_logical_wal_on_each_version(server: EmbeddedPostgres):
    database = Database(server, "postgres")

    settings = {name: database.value(f"SHOW {name}") for name in ("wal_level", "server_encoding")}

    assert settings == {"wal_level": "logical", "server_encoding": "UTF8"}
    assert int(database.value("SHOW server_version_num")) // 10000 == server.version


@needs_root
def test_server_started_by_root_runs_as_another_user(server: EmbeddedPostgres):
    owner = pwd.getpwuid(server.data_dir.stat().st_uid).pw_name

    assert psutil.Process(server.pid).username() == owner
    assert owner in ("postgres", "nobody")


@needs_root
def test_programs_where_only_root_may_go_are_copied(tmp_path: Path):
    bin_dir = binaries.find_binaries().bin_dir
    hidden, package = tmp_path / "hidden", bin_dir.parents[1]
    for part in package.parent.glob(f"{package.name}*"):
        shutil.copytree(part, hidden / part.name, symlinks=True)
    hidden.chmod(0o700)

    with EmbeddedPostgres(bin_dir=hidden / bin_dir.relative_to(package.parent)) as server:
        assert Database(server, "postgres").value("SELECT 1") == 1
        assert not server.bin_dir.is_relative_to(hidden)


@needs_root
def test_nobody_runs_the_server_where_there_is_no_user_postgres(monkeypatch: pytest.MonkeyPatch):
    def only_nobody(name: str) -> pwd.struct_passwd:
        return {"nobody": nobody}[name]

    nobody = pwd.getpwnam("nobody")
    monkeypatch.setattr(pwd, "getpwnam", only_nobody)

    with EmbeddedPostgres() as server:
        assert psutil.Process(server.pid).username() == "nobody"


@needs_root
def test_temporary_directory_where_only_root_may_go_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tmp_path.chmod(0o700)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with EmbeddedPostgres() as server:
        assert not server.data_dir.is_relative_to(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", ["15", "new"])
def test_restart_keeps_data_and_port(make_server: MakeServer, version: str):
    server = make_server(version)
    database, port, pid = create_database(server, "kept"), server.port, server.pid
    database.execute("CREATE TABLE t AS SELECT 42 AS a")

    server.restart()

    assert database.query("SELECT a FROM t") == [(42,)]
    assert server.port == port
    assert server.pid != pid


@pytest.mark.parametrize("version", ["15", "new"])
def test_killed_server_recovers_what_was_committed(make_server: MakeServer, version: str):
    server = make_server(version)
    database = create_database(server, "kept")
    database.execute("CREATE TABLE t (a int)")
    database.execute("INSERT INTO t SELECT generate_series(1, 1000)")

    with database.connect(autocommit=False) as held:
        held.execute("INSERT INTO t VALUES (0)")
        server.kill()
        assert server.pid is None
        with pytest.raises(psycopg.OperationalError):
            held.execute("SELECT 1")
    server.start()

    assert database.value("SELECT count(*) FROM t") == 1000
    assert "was not properly shut down" in server.log_path.read_text()


def test_alter_system_overrides_settings_after_restart(make_server: MakeServer):
    server = make_server(settings={"work_mem": "1MB", "search_path": "it's, odd"})
    database = Database(server, "postgres")
    before = database.query("SELECT current_setting('work_mem'), current_setting('search_path')")

    database.execute("ALTER SYSTEM SET work_mem = '2MB'")
    server.restart()

    assert before == [("1MB", "it's, odd")]
    assert database.value("SHOW work_mem") == "2MB"


def test_leaving_removes_process_and_files():
    with EmbeddedPostgres() as server:
        pid, home = server.pid, server.data_dir.parent
        held = psycopg.connect(server.dsn())

    held.close()
    assert not psutil.pid_exists(pid)
    assert not home.exists()
    with pytest.raises(EmbeddedServerFailed, match="there is no server"):
        _ = server.data_dir


def test_two_servers_live_side_by_side():
    with EmbeddedPostgres() as one, EmbeddedPostgres() as other:
        assert one.port != other.port
        assert one.data_dir != other.data_dir


def test_port_taken_at_the_last_moment_is_left_alone(
    pg_new: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
):
    offered = iter([pg_new.port, free_port()])
    monkeypatch.setattr("penstock.embedded.postgres.free_port", lambda: next(offered))

    with EmbeddedPostgres() as server:
        assert server.port != pg_new.port


_HOLDER = """
import os, sys
from penstock.embedded.postgres import EmbeddedPostgres
server = EmbeddedPostgres()
server.start()
if (child := os.fork()) == 0:
    sys.exit()  # runs the atexit list of its parent, whose server must live
os.waitpid(child, 0)
print(server.pid, server.data_dir.parent, flush=True)
if server.pid is None:
    sys.exit("the child's end took the server away")
sys.stdin.read()
"""


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("end", ["exit", "kill -9"])
def test_server_does_not_outlive_the_process_that_made_it(end: str):
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        pid, home = holder.stdout.readline().split()
        assert psutil.pid_exists(int(pid))
        if end == "kill -9":
            holder.send_signal(signal.SIGKILL)
        holder.stdin.close()
        holder.wait(30)

    wait_until(lambda: not _runs(int(pid)), what="the server to end")
    wait_until(lambda: not Path(home).exists(), what="the server's files to go")


@pytest.mark.parametrize("version", ["15", "new"])
def test_password_mode_refuses_a_wrong_password(make_server: MakeServer, version: str):
    server = make_server(version, password="s3cret:/@ %")

    right = Database(server, "postgres").value("SELECT current_user")
    wrong = server.dsn().replace("s3cret", "guess")

    assert right == "postgres"
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)
    assert "s3cret" not in repr(server) + server.log_path.read_text()
    assert not list(server.data_dir.parent.glob("password*"))


def test_server_that_cannot_start_says_what_its_log_says():
    server = EmbeddedPostgres(settings={"wal_level": "sideways"})

    with pytest.raises(EmbeddedServerFailed, match="sideways") as caught, server:
        pass

    assert caught.value.code == "PEN-605"
    assert server.pid is None


def test_directory_without_postgres_is_named(tmp_path: Path):
    with pytest.raises(EmbeddedServerFailed, match=str(tmp_path)):
        EmbeddedPostgres(bin_dir=tmp_path)


def test_machine_without_any_postgres_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(binaries, "_candidates", list)

    with pytest.raises(EmbeddedServerFailed, match=r"penstock\[embedded\]"):
        EmbeddedPostgres()


def test_dropping_a_database_takes_leftovers_with_it(server: EmbeddedPostgres):
    database, admin = create_database(server, "leftovers"), Database(server, "postgres")
    database.execute(
        "CREATE ROLE leftover; CREATE TABLE t (a int); ALTER TABLE t OWNER TO leftover"
    )
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    database.execute("SELECT pg_create_logical_replication_slot('leftover', 'pgoutput')")
    with database.connect(autocommit=False) as preparing:
        preparing.execute("INSERT INTO t VALUES (1)")
        preparing.execute("PREPARE TRANSACTION 'held'")

    with database.connect():
        drop_database(database)

    assert admin.query("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'leftover'") == []
    assert admin.query("SELECT 1 FROM pg_roles WHERE rolname = 'leftover'") == []
    assert admin.query("SELECT 1 FROM pg_database WHERE datname = %s", database.name) == []
