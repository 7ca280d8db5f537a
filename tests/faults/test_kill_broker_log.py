"""Several processes deliver from one log on a broker, and are ended half way, asked to or not: nothing is lost or doubled."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fix_pipeline import INITIAL, assert_equal, pipeline_document, row_count
from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import Command
    from fix_postgres import Database, MakeDatabase
    from penstock.embedded.postgres import EmbeddedPostgres

pytestmark = [only_new, pytest.mark.long]

SUM = "SELECT md5(coalesce(string_agg(t::text, ',' ORDER BY id), '')) FROM {} t"


class Processes:
    """`capture` and one `deliver --sink` for each sink, each with a state directory of its own."""

    def __init__(
        self, begin: Callable[..., Command], document: dict[str, Any], directory: Path
    ) -> None:
        self._begin = begin
        self._paths = {}
        for role in ("capture", *document["sinks"]):
            self._paths[role] = directory / f"{role}.yml"
            own = {**document, "state": str(directory / role)}
            self._paths[role].write_text(yaml.safe_dump(own))
        self.running: dict[str, Command] = {}

    def start(self, role: str) -> None:
        arguments = ("capture",) if role == "capture" else ("deliver", "--sink", role)
        verb, *rest = arguments
        self.running[role] = self._begin(verb, str(self._paths[role]), *rest)

    def start_all(self) -> None:
        for role in self._paths:
            self.start(role)

    def end_all(self) -> None:
        for command in self.running.values():
            assert command.terminate() == 0, command.stderr


def document_of(
    source: Database, targets: dict[str, Database], directory: Path, log: dict[str, Any]
) -> dict[str, Any]:
    document = pipeline_document(source, None, directory, source_options=INITIAL)
    sinks = {name: {"kind": "postgres", "url": each.url} for name, each in targets.items()}
    spark = {"master": "local[1]", "conf": {"spark.driver.memory": "512m"}}
    name = f"p{uuid.uuid4().hex[:8]}"
    return {**document, "name": name, "sinks": sinks, "log": log, "spark": spark}


@pytest.fixture
def targets(pg_new: EmbeddedPostgres, make_database: MakeDatabase) -> dict[str, Database]:
    return {name: make_database(pg_new, name) for name in ("one", "two")}


@pytest.mark.timeout(900)
def test_random_kills_of_two_processes_that_deliver_from_one_log(
    source: Database,
    targets: dict[str, Database],
    broker_log: dict[str, Any],
    penstock_command: Callable[..., Command],
    tmp_path: Path,
) -> None:
    source.execute("CREATE TABLE a (id bigserial PRIMARY KEY, n int)")
    processes = Processes(
        penstock_command, document_of(source, targets, tmp_path, broker_log), tmp_path
    )
    processes.start_all()
    dice = random.Random(uuid.uuid4().hex)

    def write() -> None:
        source.execute("INSERT INTO a (n) SELECT g FROM generate_series(1, 50) g")
        source.execute(
            "UPDATE a SET n = n + 1 WHERE id % 7 = 3 AND id > (SELECT max(id) FROM a) - 500"
        )
        source.execute("DELETE FROM a WHERE id % 11 = 0 AND id > (SELECT max(id) FROM a) - 500")

    for role in [*targets, "capture", dice.choice([*targets]), dice.choice([*targets])]:
        some = dice.choice([*targets.values()])
        before, wanted = row_count(some, "a"), dice.randint(1, 400)

        def has_come(
            some: Database = some, wanted: int = before + wanted, role: str = role
        ) -> bool:
            write()
            command = processes.running[role]
            assert command.process.poll() is None, command.stderr
            return row_count(some, "a") > wanted

        wait_until(has_come, 180, "changes to arrive", 0.1)
        processes.running[role].kill()
        write()
        processes.start(role)

    write()
    wanted = source.value(SUM.format("a"))
    for name, target in targets.items():
        wait_until(
            lambda target=target: (
                row_count(target, "a") and target.value(SUM.format("a")) == wanted
            ),
            180,
            f"sink {name} to have everything",
        )
        assert_equal(source, target, "a")
    processes.end_all()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("broker_log", ["nats"], indirect=True)
def test_groups_that_are_stopped_half_way_over_one_log_have_everything_in_the_end(
    source: Database,
    targets: dict[str, Database],
    broker_log: dict[str, Any],
    penstock_command: Callable[..., Command],
    tmp_path: Path,
) -> None:
    """pg_flo's e2e_resume_test and e2e_order_test: four tables of 5,000 rows and SIGTERM half way; a parent with its
    child in one transaction, with a foreign key that the target has as well."""
    groups = [f"group_{number}" for number in range(1, 5)]
    for each in groups:
        source.execute(f"CREATE TABLE {each} (id int PRIMARY KEY, v text)")
    source.execute("CREATE TABLE parent (id int PRIMARY KEY, version int)")
    source.execute(
        "CREATE TABLE child (id int PRIMARY KEY, parent_id int REFERENCES parent, version int)"
    )
    processes = Processes(
        penstock_command, document_of(source, targets, tmp_path, broker_log), tmp_path
    )
    processes.start_all()

    def write(begin: int, end: int) -> None:
        for number in range(begin, end):
            with source.connect(autocommit=False) as connection:
                for each in groups:
                    connection.execute(
                        f"INSERT INTO {each} SELECT g, md5(g::text) FROM generate_series(%s::int, %s::int) g",
                        (number * 50 + 1, number * 50 + 50),
                    )
                connection.execute("INSERT INTO parent VALUES (%s, 1)", (number,))
                connection.execute("INSERT INTO child VALUES (%s, %s, 1)", (number, number))
                connection.execute("UPDATE parent SET version = 2 WHERE id = %s", (number,))
                connection.execute("UPDATE child SET version = 2 WHERE id = %s", (number,))

    write(0, 50)
    for target in targets.values():
        wait_until(
            lambda target=target: row_count(target, "group_4") > 500, 180, "half of it to arrive"
        )
    for name in targets:
        assert processes.running[name].terminate() == 0, processes.running[name].stderr
    write(50, 100)
    for name in targets:
        processes.start(name)

    for name, target in targets.items():
        wait_until(
            lambda target=target: row_count(target, "child") == 100,
            180,
            f"sink {name} to have everything",
        )
        for each in groups:
            assert row_count(target, each) == 5000
            assert target.value(SUM.format(each)) == source.value(SUM.format(each))
        assert_equal(source, target, "parent", "child")
        assert target.value("SELECT count(*) FROM pg_constraint WHERE contype = 'f'") >= 1
    processes.end_all()
