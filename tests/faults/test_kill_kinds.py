"""kill -9 under load, for each kind of table; the truth is what the source's own triggers wrote down."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fix_history import ALWAYS, STILL, History
from fix_pipeline import assert_equal, status_of
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import Command
    from fix_postgres import Database, MakeDatabase, MakeServer

KINDS = ("clone", "append", "history")

_TABLES = """
CREATE TABLE audit (
    seq bigserial PRIMARY KEY, name text, xid xid, op text, old_id int, id int, v text
);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit (name, xid, op, old_id, id, v) VALUES (
        TG_TABLE_NAME, pg_current_xact_id()::xid, left(TG_OP, 1),
        CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'INSERT' THEN OLD.id END,
        CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'DELETE' THEN NEW.id END,
        CASE WHEN TG_LEVEL = 'ROW' AND TG_OP <> 'DELETE' THEN NEW.v END);
    RETURN NULL;
END $$;
CREATE TABLE clone (id int PRIMARY KEY, v text, big text);
CREATE TABLE append (id int PRIMARY KEY, v text, big text);
CREATE TABLE history (id int PRIMARY KEY, v text, big text);
ALTER TABLE history ALTER big SET STORAGE EXTERNAL;
"""
_TRIGGERS = """
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {0}
    FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER note_truncate AFTER TRUNCATE ON {0} FOR EACH STATEMENT EXECUTE FUNCTION note();
"""
_AUDIT = """
SELECT (extract(epoch FROM pg_xact_commit_timestamp(xid)) * 1000000)::bigint, op, old_id, id, v
FROM audit WHERE name = %s ORDER BY seq
"""
_HISTORY = """
SELECT id, v,
       CASE WHEN kvsz_start = '1900-01-01 00:00:00+00' THEN NULL
            ELSE (extract(epoch FROM kvsz_start) * 1000000)::bigint END,
       CASE WHEN kvsz_end = '9999-01-01 00:00:00+00' THEN NULL
            ELSE (extract(epoch FROM kvsz_end) * 1000000)::bigint END,
       kvsz_deleted
FROM history ORDER BY id, kvsz_start
"""


class Writers:
    """Two sessions that change the three tables much alike, and want the same rows."""

    def __init__(self, source: Database) -> None:
        self._source = source
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(seed,)) for seed in (1, 2)]
        self.transactions = 0

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Both have ended."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _write(self, seed: int) -> None:
        dice = random.Random(seed)
        number = 0
        with self._source.connect(autocommit=False) as connection:
            while not self._stop.is_set():
                number += 1
                try:
                    for statement in self._transaction(dice, seed, number):
                        for kind in KINDS:
                            connection.execute(statement.format(kind))
                    connection.commit()
                except psycopg.errors.Error:  # a key that the other has taken, or a deadlock
                    connection.rollback()
                self.transactions += 1
                self._stop.wait(0.01)

    def _transaction(self, dice: random.Random, seed: int, number: int) -> list[str]:
        one = dice.randint(1, 60)
        fresh = 1000 * number + seed
        insert = f"INSERT INTO {{}} VALUES ({one}, 'i{number}', repeat('x', 3000))"
        update = f"UPDATE {{}} SET v = 'u{number}' WHERE id = {one}"
        delete = f"DELETE FROM {{}} WHERE id = {one}"
        several = (
            f"INSERT INTO {{}} SELECT g, 's{number}', repeat('y', 200)"
            f" FROM generate_series({fresh}, {fresh + 60 * 2000}, 2000) g"
        )
        if number % 97 == 0:
            return ["TRUNCATE {}", insert]
        if number % 41 == 0:
            return [several, f"UPDATE {{}} SET v = 'again' WHERE v = 's{number}'"]
        return dice.choice(
            [
                [insert],
                [insert, update],
                [update],
                [update],
                [update, update + " AND v <> ''"],
                [delete],
                [delete, insert],
                [update, delete],
                [f"UPDATE {{}} SET id = {fresh}, v = 'k{number}' WHERE id = {one}"],
            ]
        )


def true_history(source: Database) -> History:
    """What the history must hold, by the triggers' account."""
    history = History()
    for at, op, old_id, key, v in source.query(_AUDIT, "history"):
        if op == "T":
            history.truncate(at)
        elif op == "D":
            history.end(old_id, at, deleted=True)
        elif op == "I":
            history.insert(key, at, (key, v))
        elif old_id == key:
            history.update(key, at, (key, v))
        else:
            history.end(old_id, at, deleted=False)
            history.come(key, at, (key, v))
    return history


def true_append(source: Database) -> dict[int, str]:
    """What the table must hold that keeps what is deleted."""
    kept: dict[int, str] = {}
    for _, op, old_id, key, v in source.query(_AUDIT, "append"):
        if op == "U":
            kept.pop(old_id, None)
        if op in ("I", "U"):
            kept[key] = v
    return kept


def rows_of_history(target: Database) -> list[tuple[Any, ...]]:
    """As the model has them."""
    return [
        (key, v, ALWAYS if start is None else start, STILL if end is None else end, deleted)
        for key, v, start, end, deleted in target.query(_HISTORY)
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    "faults",
    [
        ("deliver.between_steps:5", "deliver.before_commit:2", "deliver.after_commit:3"),
        ("stage.after_copy", "capture.torn_slice:4", "deliver.after_job:3"),
    ],
    ids=["merge", "stage"],
)
def test_kill_under_load_leaves_what_the_sources_triggers_wrote_down(
    faults: tuple[str, ...],
    make_server: MakeServer,
    make_database: MakeDatabase,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    server = make_server(settings={"track_commit_timestamp": "on"})
    source, target = make_database(server, "source"), make_database(server, "target")
    source.execute(_TABLES)
    for kind in ("append", "history"):
        source.execute(_TRIGGERS.format(kind))
    tables = {kind: {"kind": kind} for kind in KINDS}
    path = pipeline_file(source, target, tables=KINDS, sink={"tables": tables})
    assert penstock_command("init", str(path)).wait() == 0
    writers = Writers(source)
    writers.start()
    try:
        for fault in faults:
            command = penstock_command("run", str(path), env={"PENSTOCK_FAULT": fault})
            wait_until(lambda: command.is_struck, 90, what=f"{fault} to strike")  # noqa: B023
            command.kill()
    finally:
        writers.stop()
    again = penstock_command("run", str(path), "--until-caught-up")
    assert again.wait() == 0, again.stderr

    assert writers.transactions > 100
    assert_equal(source, target, "clone")
    assert dict(target.query("SELECT id, v FROM append")) == true_append(source)
    assert rows_of_history(target) == true_history(source).rows()
    still = "WHERE kvsz_end = '9999-01-01 00:00:00+00'"
    whole = "SELECT id, v, md5(big) FROM history {} ORDER BY id"
    assert target.query(whole.format(still)) == source.query(whole.format(""))
    found = status_of(path)["sinks"]["target"]["tables"]
    nothing = {"insert_exists": 0, "update_missing": 0, "delete_missing": 0}
    assert found["public.clone"]["conflicts"] == nothing
    assert found["public.history"]["conflicts"] == nothing
