"""Bad input on the command line: one clear error, what to do, no password, and nothing changed."""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml

from fix_command import run_penstock
from fix_pipeline import pipeline_document
from fix_postgres import create_database, only_15, only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fix_pipeline import Command, RunningPipeline
    from fix_postgres import Database, MakeServer
    from fix_proxy import Proxy

    Make = Callable[..., RunningPipeline]
    Begin = Callable[..., Command]

CANARY = "hunter2-canary"
_ERROR = re.compile(r"^(error: )?PEN-\d{3} .+: .+$", re.MULTILINE)


def penstock(
    directory: Path, *arguments: str, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """A command as a user runs it; variables of the machine that name passwords are left out."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return run_penstock(*arguments, cwd=directory, env=env, timeout=timeout)


def require_error(done: subprocess.CompletedProcess[str], *codes: str, exit_code: int = 1) -> str:
    """The one error, which ends stderr; its text. `check` reports every one that there is."""
    said = done.stdout + done.stderr
    assert done.returncode == exit_code, said
    assert "Traceback" not in said
    assert CANARY not in said
    found = [match[0] for match in _ERROR.finditer(done.stderr)]
    assert len(found) == 1 or "check" in done.args, done.stderr
    lines = done.stderr.rstrip("\n").splitlines()
    assert lines[-2] == found[-1], done.stderr
    assert lines[-1].startswith("  Do: ")
    reported = [error for error in found if re.match(rf"(error: )?({'|'.join(codes)}) ", error)]
    assert reported, f"wanted {codes}, found {done.stderr}"
    return reported[0]


def picture(database: Database) -> Any:
    """Everything that penstock could have made or moved in a database."""
    return (
        database.query(
            "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots ORDER BY 1"
        ),
        database.query("SELECT pubname, oid, obj_description(oid) FROM pg_publication ORDER BY 1"),
        database.query("SELECT prpubid, prrelid FROM pg_publication_rel ORDER BY 1, 2"),
        database.query("SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' ORDER BY 1"),
        database.query(
            "SELECT oid::regclass::text FROM pg_class WHERE oid >= 16384 AND relkind = 'r' ORDER BY 1"
        ),
    )


def files(directory: Path) -> dict[str, bytes | None]:
    """Every file and directory below, with its content."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
        if "stderr-" not in path.name
    }


@contextmanager
def nothing_changes(directory: Path, *databases: Database) -> Iterator[None]:
    before = [picture(database) for database in databases], files(directory)
    yield
    assert [picture(database) for database in databases] == before[0]
    assert files(directory) == before[1]


def write(directory: Path, source: Any, target: Any, **options: Any) -> str:
    document = pipeline_document(source, target, directory, **options)
    path = directory / "pipeline.yml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


class Impostor:
    """A proxy that changes what passes: `out` the client's first message, `back` what it gets."""

    def __init__(
        self,
        port: int,
        out: Callable[[bytes], bytes] = bytes,
        back: Callable[[bytes], bytes] = bytes,
        refuses: tuple[bytes, bytes] | None = None,
    ) -> None:
        self._upstream, self._out, self._back, self._refuses = port, out, back, refuses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def url(self, database: Database) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database.name}?sslmode=disable&gssencmode=disable"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            client,
            socket.create_connection(("127.0.0.1", self._upstream)) as server,
            suppress(OSError),
        ):
            first = client.recv(65536)
            if self._refuses and self._refuses[0] in first:
                fields = b"SFATAL\0C08P01\0M" + self._refuses[1] + b"\0\0"
                client.sendall(b"E" + struct.pack(">I", len(fields) + 4) + fields)
                return
            if len(first) != 16:  # a request to cancel goes through as it is
                body = self._out(first[4:])
                first = struct.pack(">I", len(body) + 4) + body
            server.sendall(first)
            threading.Thread(target=self._pump, args=(client, server, bytes), daemon=True).start()
            self._pump(server, client, self._back)

    def _pump(
        self, reader: socket.socket, writer: socket.socket, change: Callable[[bytes], bytes]
    ) -> None:
        with suppress(OSError):
            while data := reader.recv(65536):
                writer.sendall(change(data))
            writer.shutdown(socket.SHUT_WR)


# The file.

BAD_FILES = {
    "yaml that does not parse": ("name: [shop\n", "PEN-101"),
    "no mapping": ("- a\n- b\n", "PEN-1.."),
    "unknown key": ("name: a\nsource: {url: x}\nsnik: {}\n", "PEN-102"),
    "kind of later work": (
        "name: a\nsource: {url: 'postgresql://h/d', tables: ['*.*']}\nsinks: {s: {kind: delta}}\n",
        "PEN-105",
    ),
    "typo in the scheme": (
        f"name: a\nsource: {{url: 'postgre://u:{CANARY}@h/d', tables: ['*.*']}}\nsinks: {{s: {{kind: stdout}}}}\n",
        "PEN-106",
    ),
    "raw @ in the password": (
        f"name: a\nsource: {{url: 'postgresql://u:{CANARY}@x@h/d', tables: ['*.*']}}\nsinks: {{s: {{kind: stdout}}}}\n",
        "PEN-106",
    ),
    "missing variable": (
        "name: a\nsource: {url: '${NOT_SET_ANYWHERE}', tables: ['*.*']}\nsinks: {s: {kind: stdout}}\n",
        "PEN-104",
    ),
    "three parts": (
        "name: a\nsource: {url: 'postgresql://h/d', tables: [a.b.c]}\nsinks: {s: {kind: stdout}}\n",
        "PEN-107",
    ),
    "both lists empty": (
        "name: a\nsource: {url: 'postgresql://h/d', tables: {}}\nsinks: {s: {kind: stdout}}\n",
        "PEN-10[37]",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file_is_reported_with_its_line(tmp_path: Path, case: str) -> None:
    text, code = BAD_FILES[case]
    (tmp_path / "pipeline.yml").write_text(text)

    with nothing_changes(tmp_path):
        done = penstock(tmp_path, "run", "pipeline.yml")

    error = require_error(done, code, exit_code=2)
    assert re.search(r" pipeline\.yml(:\d+)?\b", error)


def test_bad_command_line_is_reported(tmp_path: Path) -> None:
    bad = f"postgresql://u:{CANARY}@h:port/d"

    with nothing_changes(tmp_path):
        require_error(penstock(tmp_path, "run", "nowhere.yml"), "PEN-101", exit_code=2)
        require_error(penstock(tmp_path, "run"), "PEN-103", exit_code=2)
        require_error(penstock(tmp_path, "rnu"), "PEN-103", exit_code=2)
        require_error(penstock(tmp_path, "run", "--sauce", bad), "PEN-103", exit_code=2)
        done = penstock(tmp_path, "run", "--source", bad, "--target", "postgresql://h/d")
        require_error(done, "PEN-106", exit_code=2)


# The servers.


@pytest.mark.long
@only_new
def test_servers_that_cannot_be_used_are_reported_and_left_alone(
    source: Database, target: Database, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE keyless (id int)")
    source.execute(f"CREATE ROLE reader LOGIN PASSWORD '{CANARY}'")
    target.execute("CREATE SCHEMA penstock; CREATE ROLE other LOGIN")
    source.execute(f'GRANT CREATE ON DATABASE "{source.name}" TO reader')
    port = urlsplit(source.url).port
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed_port = listener.getsockname()[1]
    here = f"127.0.0.1:{port}"
    canary = f"postgres:{CANARY}"
    cases: list[tuple[Any, Any, str, dict[str, Any]]] = [
        (f"postgresql://{canary}@no-such-host.invalid/x", target, "PEN-201", {}),
        (f"postgresql://{canary}@127.0.0.1:{closed_port}/x", target, "PEN-201", {}),
        (f"postgresql://nobody:{CANARY}@{here}/{source.name}", target, "PEN-202", {}),
        (f"postgresql://{canary}@{here}/no_such_db", target, "PEN-203", {}),
        (f"postgresql://reader:{CANARY}@{here}/{source.name}", target, "PEN-205", {}),
        (source, target, "PEN-211", {"tables": ("t", "keyless")}),
        (source, target, "PEN-212", {"tables": ("t", "no_such_table")}),
        (source, f"postgresql://{canary}@127.0.0.1:{closed_port}/x", "PEN-501", {}),
        (source, f"postgresql://nobody:{CANARY}@{here}/{target.name}", "PEN-502", {}),
        (source, f"postgresql://{canary}@{here}/no_such_db", "PEN-502", {}),
        (source, f"postgresql://other:{CANARY}@{here}/{target.name}", "PEN-503", {}),
    ]

    for from_, to, code, options in cases:
        path = write(tmp_path, from_, to, **options)
        with nothing_changes(tmp_path, source, target):
            for command in ("run", "check"):
                require_error(penstock(tmp_path, command, path), code)


@pytest.mark.long
@only_new
def test_server_settings_that_do_not_do_are_reported(
    target: Database, make_server: MakeServer, tmp_path: Path
) -> None:
    server = make_server(settings={"wal_level": "replica"}, password=CANARY)
    source = create_database(server, "source")
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    path = write(tmp_path, source, target)
    with nothing_changes(tmp_path, source, target):
        for command in ("run", "init", "check"):
            require_error(penstock(tmp_path, command, path), "PEN-204")
    path = write(tmp_path, source.url.replace(CANARY, f"not-{CANARY}"), target)
    with nothing_changes(tmp_path, source, target):
        for command in ("run", "check"):
            require_error(penstock(tmp_path, command, path), "PEN-202")
    path = write(tmp_path, target, source.url.replace(CANARY, f"not-{CANARY}"))
    with nothing_changes(tmp_path, source, target):
        for command in ("run", "check"):
            require_error(penstock(tmp_path, command, path), "PEN-502")
    server.close()

    server = make_server(settings={"max_replication_slots": "1"}, password=CANARY)
    source = create_database(server, "source")
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source.execute("SELECT pg_create_physical_replication_slot('taken')")
    path = write(tmp_path, source, target)
    with nothing_changes(tmp_path, source, target):
        for command in ("run", "init", "check"):
            require_error(penstock(tmp_path, command, path), "PEN-206")


@only_15
def test_old_target_is_reported(source: Database, target: Database, tmp_path: Path) -> None:
    old = Impostor(
        target.server.port,
        back=lambda data: data.replace(b"server_version\x0015", b"server_version\x0013"),
    )

    with closing(old):
        path = write(tmp_path, source, old.url(target))
        with nothing_changes(tmp_path, source, target):
            for command in ("run", "init", "check"):
                assert "13" in require_error(penstock(tmp_path, command, path), "PEN-504")


@pytest.mark.parametrize("command", ["check", "init", "run"])
@only_15
def test_old_source_is_reported(
    source: Database, target: Database, tmp_path: Path, command: str
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    old = Impostor(
        source.server.port,
        back=lambda data: data.replace(b"server_version\x0015", b"server_version\x0013"),
    )

    with closing(old):
        path = write(tmp_path, old.url(source), target)
        with nothing_changes(tmp_path, source, target):
            require_error(penstock(tmp_path, command, path), "PEN-216")


# A pooler refuses a replication connection, or takes it for an ordinary one.
POOLERS = {
    "refuses": b"unsupported startup parameter: replication",
    "ignores": None,
}


def pooler_before(database: Database, refusal: bytes | None) -> Impostor:
    return Impostor(
        database.server.port,
        out=lambda first: first.replace(b"replication\0database\0", b""),
        refuses=(b"replication\0database\0", refusal) if refusal else None,
    )


@pytest.mark.parametrize("kind", POOLERS)
@pytest.mark.parametrize("command", ["check", "init", "run"])
@only_15
def test_pooler_is_reported_before_anything_is_made(
    source: Database, target: Database, tmp_path: Path, kind: str, command: str
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")

    with closing(pooler_before(source, POOLERS[kind])) as pooler:
        path = write(tmp_path, pooler.url(source), target)
        with nothing_changes(tmp_path, source, target):
            require_error(penstock(tmp_path, command, path, timeout=40), "PEN-213")


# The state directory.


@pytest.mark.long
@only_new
def test_state_directory_that_cannot_be_used_is_reported(
    source: Database, target: Database, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    (tmp_path / "file").write_text("a file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("not penstock's")
    done = penstock(tmp_path, "init", write(tmp_path, source, target, name="first"))
    assert done.returncode == 0, done.stderr
    places = {
        "file": "PEN-304",
        "file/below": "PEN-304",
        "/proc/penstock/state": "PEN-304",
        "full": "PEN-305",
        "first-state": "PEN-305",
    }

    for place, code in places.items():
        document = {**pipeline_document(source, target, tmp_path), "state": place}
        (tmp_path / "pipeline.yml").write_text(yaml.safe_dump(document))
        with nothing_changes(tmp_path, source, target):
            require_error(penstock(tmp_path, "run", "pipeline.yml"), code)


@only_new
def test_error_leaves_no_state_directory_behind(target: Database, tmp_path: Path) -> None:
    document = pipeline_document("postgresql://127.0.0.1:1/x", target, tmp_path)
    del document["state"]
    (tmp_path / "pipeline.yml").write_text(yaml.safe_dump(document))

    with nothing_changes(tmp_path, target):
        require_error(penstock(tmp_path, "run", "pipeline.yml"), "PEN-201")


# What happens between two runs.


@pytest.fixture
def ran_once(source: Database, target: Database, make_pipeline: Make, tmp_path: Path) -> str:
    """A pipeline that has delivered something and was stopped; its file."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    pipeline = make_pipeline(source, target)
    source.execute("INSERT INTO t VALUES (1)")
    pipeline.catch_up()
    pipeline.stop()
    return write(tmp_path, source, target)


def behind_our_back(source: Database, target: Database, what: str) -> None:
    # The server takes a moment to notice that capture has hung up.
    free = "SELECT slot_name FROM pg_replication_slots WHERE database = %s AND NOT active"
    ((slot,),) = wait_until(lambda: source.query(free, source.name), what="the slot to be free")
    if what in ("dropped", "recreated", "all dropped"):
        source.execute("SELECT pg_drop_replication_slot(%s)", slot)
    source.execute("INSERT INTO t SELECT generate_series(2, 100)")
    if what == "recreated":
        source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    elif what == "advanced":
        source.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", slot)
    elif what in ("publication dropped", "all dropped"):
        source.execute("DROP PUBLICATION penstock_test, penstock_test_inserts")
    elif what == "publication narrowed":
        source.execute("ALTER PUBLICATION penstock_test SET (publish = 'insert')")
    elif what == "position lost":
        target.execute("DROP SCHEMA penstock CASCADE")


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("dropped", "PEN-207"),
        ("recreated", "PEN-208"),
        ("advanced", "PEN-208"),
        ("publication dropped", "PEN-210"),
        ("publication narrowed", "PEN-210"),
        ("all dropped", "PEN-210"),
        ("position lost", "PEN-508"),
    ],
)
@only_new
def test_slot_and_position_that_changed_behind_our_back_stop_it(
    source: Database, target: Database, ran_once: str, tmp_path: Path, what: str, code: str
) -> None:
    behind_our_back(source, target, what)

    with nothing_changes(tmp_path, source, target):
        require_error(penstock(tmp_path, "init", ran_once), code)

    assert target.query("SELECT id FROM t") == [(1,)]


@pytest.mark.long
@only_new
def test_run_stops_as_well_when_the_slot_was_advanced(
    source: Database, target: Database, ran_once: str, tmp_path: Path
) -> None:
    behind_our_back(source, target, "advanced")
    before = picture(source)

    done = penstock(tmp_path, "run", ran_once)

    require_error(done, "PEN-208")
    assert picture(source) == before
    assert target.query("SELECT id FROM t") == [(1,)]


@pytest.mark.long
@only_15
def test_another_cluster_behind_the_same_address_is_refused_and_left_alone(
    source: Database,
    target: Database,
    proxy: Proxy,
    pg_new: Any,
    make_pipeline: Make,
    tmp_path: Path,
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    url = proxy.url(source)
    pipeline = make_pipeline(url, target)
    pipeline.catch_up()
    pipeline.stop()
    other = type(source)(pg_new, source.name)
    type(source)(pg_new, "postgres").execute(f'CREATE DATABASE "{source.name}"')
    other.execute("CREATE TABLE t (id int PRIMARY KEY)")
    proxy.server = ("127.0.0.1", pg_new.port)
    path = write(tmp_path, url, target)

    try:
        with nothing_changes(tmp_path, other, target):
            require_error(penstock(tmp_path, "init", path), "PEN-209")
    finally:
        from fix_postgres import drop_database

        drop_database(other)


@pytest.mark.long
@only_new
def test_second_instance_is_refused_here_and_from_another_machine(
    source: Database, target: Database, tmp_path: Path, penstock_command: Begin
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    path = write(tmp_path, source, target)
    first = penstock_command("run", path)
    active = "SELECT FROM pg_replication_slots WHERE database = %s AND active"
    wait_until(lambda: source.query(active, source.name), 60, what="the first instance to follow")
    source.execute("INSERT INTO t VALUES (1)")
    wait_until(lambda: _has_row(target), 60, what="the first instance to deliver")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    assert "pid" in require_error(penstock(tmp_path, "run", path), "PEN-601")
    other = write(elsewhere, source, target)
    require_error(penstock(elsewhere, "init", other), "PEN-601")
    require_error(penstock(tmp_path, "teardown", path), "PEN-601")
    source.execute("INSERT INTO t VALUES (2)")
    wait_until(lambda: target.query("SELECT FROM t WHERE id = 2"), what="the first one to go on")

    assert first.process.poll() is None
    assert first.terminate() == 0
    assert "PEN-" not in first.stderr


def _has_row(target: Database) -> bool:
    try:
        return bool(target.query("SELECT FROM t"))
    except psycopg.errors.UndefinedTable:
        return False
