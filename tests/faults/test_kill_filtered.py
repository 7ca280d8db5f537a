"""kill -9 under load while rows move in and out of filters: the target is what a SELECT of the rules gives."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import Command
    from fix_postgres import Database

pytestmark = only_new

RULES: list[dict[str, Any]] = [
    {"filter": {"table": "orders", "where": {"column": "total", "operator": "gte", "value": 50}}},
    {"filter": {"table": "whole", "where": "total % 2 = 0 AND note <> 'x'"}},
]
WANTED = {
    "orders": "SELECT * FROM orders WHERE total >= 50 ORDER BY id",
    "whole": "SELECT * FROM whole WHERE total % 2 = 0 AND note <> 'x' ORDER BY id",
}


class Mover:
    """Moves rows in and out of both filters, by all operations, until it is stopped."""

    def __init__(self, source: Database) -> None:
        self._source = source
        self._stop = threading.Event()
        self.moves = 0
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        dice = random.Random(7)
        with self._source.connect(autocommit=False) as connection:
            while not self._stop.is_set():
                table = dice.choice(["orders", "whole"])
                key, total = dice.randrange(200), dice.randrange(100)
                connection.execute(
                    dice.choice(
                        [
                            (
                                f"INSERT INTO {table} VALUES ({key}, {total}, 'n')"
                                f" ON CONFLICT (id) DO UPDATE SET total = {total}, note = 'm'"
                            ),
                            f"UPDATE {table} SET total = {total} WHERE id = {key}",
                            f"UPDATE {table} SET total = {total} WHERE id % 10 = {key % 10}",
                            (
                                f"UPDATE {table} SET id = id + 1000 WHERE id = {key}"
                                f" AND NOT EXISTS (SELECT FROM {table} WHERE id = {key + 1000})"
                            ),
                            f"DELETE FROM {table} WHERE id = {key}",
                        ]
                    )
                )
                if self.moves % 3:
                    connection.commit()
                self.moves += 1
                self._stop.wait(0.003)
            connection.commit()

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        self.thread.join()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_kill_at_random_moments_leaves_the_rows_that_the_rules_choose(
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    for table in WANTED:
        source.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, total int, note text);"
            f"INSERT INTO {table} SELECT n, n, 'n' FROM generate_series(0, 199, 3) n"
        )
    source.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
    path = pipeline_file(
        source, target, tables=("public.*",), source_options={"snapshot": "initial"}
    )
    written = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**written, "modifiers": RULES}))
    mover = Mover(source)
    mover.thread.start()
    try:
        for number in range(5):
            command = penstock_command("run", str(path))
            mark = mover.moves
            wait_until(
                lambda: mover.moves > mark + 700 + 137 * number,  # noqa: B023
                120,
                what="the writer to come further",
            )
            command.kill()
    finally:
        mover.stop()

    again = penstock_command("run", str(path), "--until-caught-up")
    assert again.wait() == 0, again.stderr

    for table, query in WANTED.items():
        found = target.query(f"SELECT * FROM {table} ORDER BY id")
        assert found == source.query(query), table
        assert found
