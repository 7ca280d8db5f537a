"""Many sessions at once change tables and rows at random, undo some of it and write what is streamed, while
processes and connections are killed: at the end both sides are the same, in rows and in structure.

PENSTOCK_SOAK_SECONDS says how long on each version.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest

from fix_chaos import BEFORE, KEYLESS, Chaos, quoted
from fix_pipeline import INITIAL, status_of
from fix_postgres import Database, create_database
from fix_wait import wait_until
from penstock.schema.catalog import read_shapes
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import Command
    from fix_postgres import MakeServer

SECONDS = float(os.environ.get("PENSTOCK_SOAK_SECONDS", "300"))
SETTINGS = {
    # Transactions are streamed from the first rows on.
    "logical_decoding_work_mem": "64kB",
    "max_connections": "60",
    "max_prepared_transactions": "20",
}
SHARED_SESSIONS, OWN_SESSIONS = 3, 3
LARGE_ROWS = 1500
MOST_ROWS = 20_000

OWN = """
CREATE SCHEMA own{n};
CREATE TABLE own{n}.t0 (id int PRIMARY KEY, a int, b text);
CREATE TABLE own{n}.t1 (id int PRIMARY KEY, a int REFERENCES own{n}.t0, c date DEFAULT current_date)
"""
USER_TABLES = """
SELECT nspname, relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE relkind = 'r' AND nspname NOT IN ('penstock', 'information_schema') AND nspname !~ '^pg_'
ORDER BY 1, 2
"""


@dataclass
class Session:
    """One of the many: a thread with a connection of its own."""

    number: int
    database: Database
    schemas: tuple[str, ...]
    is_alone: bool  # nobody else touches its tables
    stop: threading.Event
    done: list[str] = field(default_factory=list)
    refusals: dict[str, int] = field(default_factory=dict)
    commits: int = 0
    failure: BaseException | None = None

    def run(self) -> None:
        """Transactions until asked to stop; a connection that is cut off is made anew."""
        choice = random.Random(self.number)
        try:
            with self.database.connect() as connection:
                connection.execute("SET lock_timeout = '3s'; SET deadlock_timeout = '200ms'")
                chaos = Chaos(
                    self.number,
                    connection,
                    self.schemas,
                    first_number=100 + 30_000 * self.number,
                    large_rows=LARGE_ROWS,
                    has_types=not self.is_alone,
                )
                while not self.stop.wait(choice.random() * 0.4):
                    self._transact(connection, chaos, choice)
        except BaseException as failure:  # noqa: BLE001 - asserted on by the test
            self.failure = failure

    def _transact(
        self, connection: psycopg.Connection[Any], chaos: Chaos, choice: random.Random
    ) -> None:
        connection.execute("BEGIN")
        try:
            for _ in range(choice.choice([1, 2, 4, 7])):
                self._step(connection, chaos, choice, depth=0)
            self._end(connection, choice)
        except psycopg.Error as error:
            self._note(error)
            if not connection.closed:
                connection.execute("ROLLBACK")

    def _end(self, connection: psycopg.Connection[Any], choice: random.Random) -> None:
        draw = choice.random()
        if draw < 0.1:
            connection.execute("ROLLBACK")
        elif draw < 0.15:
            name = f"soak {self.number} {self.commits}"
            connection.execute(f"PREPARE TRANSACTION '{name}'")
            connection.execute(f"COMMIT PREPARED '{name}'")
            self.commits += 1
        else:
            connection.execute("COMMIT")
            self.commits += 1

    def _step(
        self,
        connection: psycopg.Connection[Any],
        chaos: Chaos,
        choice: random.Random,
        depth: int,
    ) -> None:
        """A statement in a savepoint, or some within one; undone now and then."""
        name = f"s{depth}"
        connection.execute(f"SAVEPOINT {name}")
        undone = choice.random() < 0.2
        try:
            if depth < 2 and choice.random() < 0.3:
                for _ in range(choice.choice([2, 3])):
                    self._step(connection, chaos, choice, depth + 1)
            else:
                statement = chaos.statement()
                connection.execute(statement)
                self.done.append(statement)
                keyless = connection.execute(KEYLESS, (chaos.schemas,)).fetchone()
                undone = undone or keyless != (0,)
        except psycopg.Error as error:
            self._note(error)
            undone = True
        connection.execute(f"ROLLBACK TO {name}" if undone else f"RELEASE {name}")

    def _note(self, error: psycopg.Error) -> None:
        state = error.sqlstate or "-"
        self.refusals[state] = self.refusals.get(state, 0) + 1


def everything(database: Database) -> dict[tuple[str, str], Any]:
    """Every table of a person: columns, constraints, indexes, keys, and a digest of its rows."""
    with database.connect() as connection:
        tables = [TableName(*each) for each in connection.execute(USER_TABLES).fetchall()]
        connection.execute("SET search_path = ''")
        shapes = read_shapes(connection, tables)
        found = {}
        for table in tables:
            place = ".".join(map(quoted, table))
            shape = shapes[table]
            found[tuple(table)] = {
                "columns": {
                    c.name: (c.type, c.not_null, c.default, c.identity, c.expression)
                    for c in shape.columns
                },
                "constraints": {c.name: c.definition for c in shape.constraints},
                "foreign_keys": {
                    k.name: (k.referenced_schema, k.referenced_name, k.on_delete)
                    for k in shape.foreign_keys
                },
                "indexes": {i.name: i.definition for i in shape.indexes},
                "rows": connection.execute(
                    "SELECT count(*), md5(string_agg(md5(to_jsonb(t)::text), '' ORDER BY md5(to_jsonb(t)::text)))"
                    f" FROM {place} t"
                ).fetchone(),
            }
    return found


class Killer:
    """Kills what a pipeline consists of, one thing after the other."""

    def __init__(self, begin: Callable[[], Command], source: Database, target: Database) -> None:
        self._begin = begin
        self._source = source
        self._target = target
        self.command = begin()
        self.done: list[str] = []

    def strike(self, choice: random.Random) -> None:
        """One blow; whatever has ended by it is started again."""
        blows = [
            self._kill_all,
            self._kill_capture,
            self._kill_worker,
            self._kill_java,
            self._cut_source,
            self._cut_target,
            self._terminate,
        ]
        blow = choice.choice(blows)
        self.done.append(blow.__name__)
        blow()
        if self.command.process.poll() is not None:
            self.command = self._begin()

    def _children(self, word: str) -> list[psutil.Process]:
        def is_it(process: psutil.Process) -> bool:
            try:
                return word in " ".join(process.cmdline())
            except psutil.Error:
                return False

        try:
            tree = psutil.Process(self.command.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [process for process in tree if is_it(process)]

    def _kill(self, word: str) -> None:
        for process in self._children(word)[:1]:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue

    def _kill_all(self) -> None:
        self.command.kill()

    def _kill_capture(self) -> None:
        self._kill("capture_process")

    def _kill_worker(self) -> None:
        self._kill("worker_daemon")

    def _kill_java(self) -> None:
        self._kill("org.apache.spark")

    def _terminate(self) -> None:
        self.command.process.send_signal(signal.SIGTERM)
        self.command.process.wait(60)

    def _cut_source(self) -> None:
        self._source.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'penstock%' AND pid <> pg_backend_pid()"
        )

    def _cut_target(self) -> None:
        self._target.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'penstock%' AND pid <> pg_backend_pid()"
        )


def _bound_rows(database: Database) -> None:
    """Keep tables small enough to be compared: the soak is about statements, not about bytes."""
    with database.connect() as connection:
        connection.execute("SET lock_timeout = '1s'")
        for schema, table in connection.execute(USER_TABLES).fetchall():
            place = ".".join(map(quoted, (schema, table)))
            try:
                [count] = connection.execute(f"SELECT count(*) FROM {place}").fetchone() or [0]
                if count > MOST_ROWS:
                    connection.execute(f"DELETE FROM {place} WHERE id % 10 <> 0")
            except psycopg.Error:
                continue  # it is being altered, or gone; the next round sees it


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 2400)
@pytest.mark.parametrize("version", ["15", "new"])
def test_sides_are_equal_after_a_soak_of_changes_and_kills(
    version: str,
    make_server: MakeServer,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    source = create_database(make_server(version, SETTINGS), "source")
    target = create_database(make_server(version, SETTINGS), "target")
    source.execute(BEFORE)
    for number in range(OWN_SESSIONS):
        source.execute(OWN.format(n=number))
    path = pipeline_file(source, target, source_options=INITIAL)
    stop = threading.Event()
    sessions = [
        Session(n, source, ("public", "other"), False, stop) for n in range(SHARED_SESSIONS)
    ]
    sessions += [
        Session(SHARED_SESSIONS + n, source, (f"own{n}",), True, stop) for n in range(OWN_SESSIONS)
    ]
    killer = Killer(lambda: penstock_command("run", str(path)), source, target)
    threads = [
        threading.Thread(target=each.run, name=f"session {each.number}") for each in sessions
    ]
    for thread in threads:
        thread.start()

    choice = random.Random(SECONDS)
    ends_at = time.monotonic() + SECONDS
    try:
        while time.monotonic() < ends_at:
            # The blows are counted in what the sessions have done, so that a slow machine gets as many.
            mark = sum(each.commits for each in sessions) + choice.randrange(50, 250)
            wait_until(
                lambda: (
                    sum(each.commits for each in sessions) >= mark  # noqa: B023
                    or time.monotonic() > ends_at
                    or any(each.failure for each in sessions)
                ),
                120,
                what="the sessions to go on",
            )
            _bound_rows(source)
            killer.strike(choice)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if killer.command.process.poll() is None:
        killer.command.kill()
    last = penstock_command("run", str(path), "--until-caught-up")
    # Sessions go on while the pipeline starts anew: on a busy machine most of it is still to be delivered.
    code = last.wait(1800)

    story = {
        "blows": killer.done,
        "commits": [each.commits for each in sessions],
        "refusals": [each.refusals for each in sessions],
    }
    print(json.dumps(story))
    assert [each.failure for each in sessions] == [None] * len(sessions)
    for each in sessions:
        if each.is_alone:
            # Nobody else has its tables: whoever waits or fails here waits for penstock.
            assert not {"40P01", "55P03", "40001", "XX000"} & set(each.refusals), each.refusals
    assert code == 0, last.stderr[-3000:]
    found, wanted = everything(target), everything(source)
    assert list(found) == list(wanted)
    differing = {
        (table, part): (found[table][part], each[part])
        for table, each in wanted.items()
        for part in each
        if found[table][part] != each[part]
    }
    assert differing == {}, f"found and wanted: {differing}"
    status = status_of(path)
    tables = status["sinks"]["target"]["tables"]
    assert {name: one for name, one in tables.items() if one["error"]} == {}
