"""Several sources into each sink: all flow, and one that is down keeps the others from nothing."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import yaml

from fix_command import run_penstock
from fix_pipeline import status_of
from fix_postgres import Database, create_database
from fix_wait import wait_until
from penstock.timing import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import Command
    from fix_postgres import MakeDatabase, MakeServer
    from penstock.embedded.postgres import EmbeddedPostgres

    Run = Callable[..., Command]


class Fleet:
    """Sources, each with a table in a schema of its own, and a pipeline file over them."""

    def __init__(self, directory: Path, target: Database) -> None:
        self.path = directory / "many.yml"
        self.state = directory / "many-state"
        self.target = target
        self.sources: dict[str, Database] = {}
        self.urls: dict[str, str] = {}
        self.sinks: dict[str, Any] = {"target": {"kind": "postgres", "url": target.url}}

    def add(self, source_id: str, database: Database, url: str | None = None) -> Fleet:
        """One more source; its table is made, with one row."""
        self.sources[source_id] = database
        self.urls[source_id] = url or database.url
        database.execute(
            f"CREATE SCHEMA {source_id};"
            f"CREATE TABLE {source_id}.t (id int PRIMARY KEY, v text);"
            f"INSERT INTO {source_id}.t VALUES (0, '{source_id}')"
        )
        return self

    def write(self) -> Path:
        """The pipeline file."""
        document = {
            "name": "many",
            "state": str(self.state),
            "sources": {
                source_id: {"url": url, "tables": [f"{source_id}.*"]}
                for source_id, url in self.urls.items()
            },
            "sinks": self.sinks,
            "spark": {"master": "local[2]"},
        }
        self.path.write_text(yaml.safe_dump(document))
        return self.path

    def insert(self, source_id: str, number: int) -> None:
        """A row at a source."""
        self.sources[source_id].execute(
            f"INSERT INTO {source_id}.t VALUES (%s, %s)", number, source_id
        )

    def has(self, source_id: str, number: int) -> bool:
        """Whether a row is at the target."""
        if not self.target.value("SELECT to_regclass(%s) IS NOT NULL", f"{source_id}.t"):
            return False
        query = f"SELECT count(*) FROM {source_id}.t WHERE id = %s AND v = %s"
        return bool(self.target.value(query, number, source_id))

    def await_row(self, source_id: str, number: int, run: Command | None = None) -> None:
        """Wait for a row at the target."""
        wait_until(
            lambda: self.has(source_id, number) or (run and run.process.poll() is not None),
            90,
            f"row {number} of {source_id}",
        )
        assert self.has(source_id, number), run and run.stderr

    def error_of(self, source_id: str) -> str:
        """What `status` says of a source."""
        return status_of(self.path)["sources"][source_id]["error"] or ""


@pytest.fixture
def fleet(tmp_path: Path, pg_new: EmbeddedPostgres, make_database: MakeDatabase) -> Fleet:
    """A target, and no source yet."""
    return Fleet(tmp_path, make_database(pg_new, "target"))


@pytest.fixture
def three(fleet: Fleet, pg_new: EmbeddedPostgres, make_database: MakeDatabase) -> Fleet:
    """Three sources on one server."""
    for source_id in ("eu", "us", "ap"):
        fleet.add(source_id, make_database(pg_new, source_id))
    fleet.write()
    return fleet


def capture_pids(run: Command) -> list[int]:
    """The children that capture."""
    children = psutil.Process(run.process.pid).children()
    return [each.pid for each in children if "capture_process" in " ".join(each.cmdline())]


def test_all_sources_flow_over_few_connections_and_survive_kills_of_capture(
    three: Fleet, penstock_command: Run
) -> None:
    # Copiers that have nothing to do let go after ten seconds; here they are waited for.
    brief = f"{os.environ[VARIABLE]} copier_awake_seconds=1"
    run = penstock_command("run", str(three.path), env={VARIABLE: brief})
    for source_id in three.sources:
        three.await_row(source_id, 0, run)  # copied
        three.insert(source_id, 1)
    for source_id in three.sources:
        three.await_row(source_id, 1, run)

    pids = capture_pids(run)
    assert len(pids) == min(3, os.cpu_count() or 1)
    names = (
        "SELECT application_name FROM pg_stat_activity WHERE datname = %s"
        " AND application_name IN ('penstock deliver', 'penstock plan', 'penstock copies') ORDER BY 1"
    )
    wait_until(
        lambda: (
            [name for (name,) in three.target.query(names, three.target.name)]
            == ["penstock deliver", "penstock plan"]
        ),
        60,
        "copiers to let go",
    )
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for source_id in three.sources:
        three.insert(source_id, 2)
    for source_id in three.sources:
        three.await_row(source_id, 2, run)
    assert "was killed by signal 9" in run.stderr

    wait_until(lambda: status_of(three.path)["phase"] == "streaming", 60, "all to stream")
    found = status_of(three.path)
    sink = found["sinks"]["target"]
    assert set(found["sources"]) == set(sink["sources"]) == {"eu", "us", "ap"}
    assert set(sink["tables"]) == {"eu/eu.t", "us/us.t", "ap/ap.t"}
    assert sink["delivered_lsn"] is None
    assert sink["changes_delivered"] == sum(
        each["changes_delivered"] for each in sink["sources"].values()
    )
    assert all(each["delivered_lsn"] for each in sink["sources"].values())

    assert run.terminate() == 0
    torn = run_penstock("teardown", str(three.path))
    assert torn.returncode == 0, torn.stderr
    assert not three.state.exists()
    for database in (*three.sources.values(), three.target):
        assert database.query("SELECT 1 FROM pg_namespace WHERE nspname = 'penstock'") == []
        assert database.query("SELECT 1 FROM pg_publication") == []
        slots = "SELECT 1 FROM pg_replication_slots WHERE database = %s"
        assert database.query(slots, database.name) == []


@pytest.mark.long
def test_until_caught_up_waits_for_every_source(three: Fleet) -> None:
    first = run_penstock("run", str(three.path), "--until-caught-up")
    for source_id in three.sources:
        three.insert(source_id, 1)
    second = run_penstock("run", str(three.path), "--until-caught-up")

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert all(three.has(source_id, number) for source_id in three.sources for number in (0, 1))
    assert (three.state / "eu" / "log").is_dir()
    assert not (three.state / "log").exists()
    assert status_of(three.path)["phase"] == "stopped"


@pytest.mark.long
def test_source_that_is_down_at_first_and_again_later_keeps_no_other_waiting(
    fleet: Fleet,
    pg_new: EmbeddedPostgres,
    make_database: MakeDatabase,
    make_server: MakeServer,
    penstock_command: Run,
) -> None:
    shaky = make_server()
    fleet.add("steady", make_database(pg_new, "steady"))
    fleet.add("shaky", create_database(shaky, "shaky"))
    fleet.write()
    shaky.stop()

    run = penstock_command("run", str(fleet.path))
    fleet.await_row("steady", 0, run)
    assert "PEN-201" in fleet.error_of("shaky")
    assert fleet.error_of("steady") == ""
    shaky.start()
    fleet.await_row("shaky", 0, run)
    shaky.kill()
    fleet.insert("steady", 1)
    fleet.await_row("steady", 1, run)
    wait_until(lambda: "PEN-201" in fleet.error_of("shaky"), 60, "the error to be reported")
    shaky.start()
    fleet.insert("shaky", 1)
    fleet.await_row("shaky", 1, run)

    wait_until(lambda: status_of(fleet.path)["phase"] == "streaming", 60, "all to stream")
    assert run.terminate() == 0


@pytest.mark.long
def test_target_that_was_away_is_gone_on_with_from_all_sources(
    tmp_path: Path,
    pg_new: EmbeddedPostgres,
    make_database: MakeDatabase,
    make_server: MakeServer,
    penstock_command: Run,
) -> None:
    server = make_server()
    fleet = Fleet(tmp_path, create_database(server, "target"))
    for source_id in ("eu", "us"):
        fleet.add(source_id, make_database(pg_new, source_id))
    fleet.write()
    run = penstock_command("run", str(fleet.path))
    for source_id in fleet.sources:
        fleet.await_row(source_id, 0, run)

    server.kill()
    for source_id in fleet.sources:
        fleet.insert(source_id, 1)
    wait_until(lambda: "PEN-501" in run.stderr, 60, "the target to be missed")
    server.start()

    for source_id in fleet.sources:
        fleet.await_row(source_id, 1, run)
    progress = "SELECT source FROM penstock.progress WHERE pipeline = 'many' ORDER BY 1"
    assert fleet.target.query(progress) == [("eu",), ("us",)]
    assert run.terminate() == 0


@pytest.mark.long
def test_wrong_password_of_one_source_is_reported_and_fixed_without_a_restart(
    fleet: Fleet,
    pg_new: EmbeddedPostgres,
    make_database: MakeDatabase,
    make_server: MakeServer,
    penstock_command: Run,
) -> None:
    guarded = create_database(make_server(password="right"), "guarded")
    fleet.add("steady", make_database(pg_new, "steady"))
    fleet.add("guarded", guarded, guarded.url.replace(":right@", ":wrong@"))
    fleet.write()

    ended = run_penstock("run", str(fleet.path), "--until-caught-up")
    assert ended.returncode == 1
    assert "PEN-202" in ended.stderr.splitlines()[-2]
    assert fleet.has("steady", 0)

    run = penstock_command("run", str(fleet.path))
    fleet.insert("steady", 1)
    fleet.await_row("steady", 1, run)
    assert "PEN-202" in fleet.error_of("guarded")
    guarded.execute("ALTER ROLE postgres PASSWORD 'wrong'")
    fleet.await_row("guarded", 0, run)

    assert run.terminate() == 0
    assert "right" not in run.stderr.replace("right half", "")


@pytest.mark.long
def test_two_sources_that_are_one_database_are_refused(
    fleet: Fleet, pg_new: EmbeddedPostgres, make_database: MakeDatabase, penstock_command: Run
) -> None:
    database = make_database(pg_new, "both")
    fleet.add("first", database)
    fleet.add("second", database, database.url.replace("127.0.0.1", "localhost"))
    fleet.write()

    found = run_penstock("check", str(fleet.path), "--json")
    run = penstock_command("run", str(fleet.path))
    fleet.await_row("first", 0, run)

    assert found.returncode == 1
    [twice] = [each for each in json.loads(found.stdout) if each["severity"] == "error"]
    assert twice["code"] == "PEN-222"
    assert "PEN-222" in fleet.error_of("second")
    assert fleet.error_of("first") == ""
    assert not fleet.has("second", 0)
    assert run.terminate() == 0


def test_run_ends_with_the_first_error_when_no_source_can_be_started(
    fleet: Fleet, pg_new: EmbeddedPostgres
) -> None:
    for source_id in ("one", "two"):
        fleet.urls[source_id] = pg_new.dsn(f"no_{source_id}")
    fleet.write()

    done = run_penstock("run", str(fleet.path))

    assert done.returncode == 1
    assert "PEN-203" in done.stderr.splitlines()[-2]
    assert "no_one" in done.stderr.splitlines()[-2]
    assert not fleet.state.exists()


@pytest.mark.long
def test_tables_are_asked_for_at_the_sources_that_have_them(three: Fleet) -> None:
    assert run_penstock("run", str(three.path), "--until-caught-up").returncode == 0
    three.target.execute("DELETE FROM us.t; DELETE FROM eu.t")

    listed = run_penstock("tables", str(three.path), "list", "--source", "eu", "--json")
    asked = run_penstock("tables", str(three.path), "resync", "us.t")
    copied = run_penstock("snapshot", str(three.path), "--source", "eu", "--table", "eu.t")
    missing = run_penstock("tables", str(three.path), "resync", "no.such")
    unknown = run_penstock("tables", str(three.path), "list", "--source", "nowhere")

    assert list(json.loads(listed.stdout)["target"]) == ["eu.t"]
    assert asked.stdout.startswith("us/us.t: copied again")
    assert copied.stdout == "eu/eu.t: copied and caught up\n", copied.stderr
    assert three.has("eu", 0)
    assert "PEN-212" in missing.stderr
    assert "'nowhere'" in unknown.stderr


@pytest.mark.long
def test_documents_of_each_source_have_a_directory_of_their_own(
    three: Fleet, tmp_path: Path
) -> None:
    three.sinks = {"lines": {"kind": "file", "path": str(tmp_path / "lines")}}
    three.write()

    done = run_penstock("run", str(three.path), "--until-caught-up")

    assert done.returncode == 0, done.stderr
    for source_id in three.sources:
        files = (tmp_path / "lines" / source_id).glob("*.jsonl*")
        documents = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        assert {each["source"] for each in documents} == {source_id}
        assert [each["after"]["id"] for each in documents if each["op"] == "read"] == [0]
