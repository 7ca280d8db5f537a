"""Rows that a Postgres target refuses under `on_refused: park`: nothing overtakes them, nothing is lost.

Both halves of the sink in one process, with changes made by hand.
"""

from __future__ import annotations

import json
import pickle
import random
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from typer.testing import CliRunner

from fix_postgres import only_new
from penstock import vault
from penstock.cli.main import app
from penstock.config import read_pipeline
from penstock.lsn import Lsn
from penstock.run.status import read_status
from penstock.schema.shape import ColumnShape, ConstraintShape, TableShape
from penstock.sinks.ddl_transaction import Rows
from penstock.sinks.kind import SinkPlace
from penstock.sinks.postgres import worker as worker_module
from penstock.sinks.postgres.kind import PostgresKind
from penstock.sinks.postgres.options import PostgresOptions
from penstock.sinks.sink import Batch
from penstock.spark.jobs import Span, run_task
from penstock.testing import (
    UNCHANGED,
    delete,
    insert,
    read_log,
    relation,
    table,
    transaction,
    truncate,
    update,
    write_log,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fix_postgres import Database

pytestmark = only_new

T = table(16400, "t", {"id": "int4", "n": "int4", "big": "text"}, key=["id"])
OTHER = table(16401, "other", {"id": "int4", "n": "int4", "big": "text"}, key=["id"])
FULL = table(16402, "loose", {"id": "int4", "n": "int4", "big": "text"}, identity="f")
TABLES = {each.table: each for each in (T, OTHER, FULL)}
START = Lsn(0x1000)
STEP = 0x100
SMALL = "n < 1000"  # what the target's constraint wants

PIPELINE = """\
name: shop
state: state
source: {{url: "{url}", tables: [t, other]}}
sinks:
  dw: {{kind: postgres, url: "{url}", on_refused: park}}
"""


class Describe:
    """The source, as it is."""

    def __call__(self, name: Any, lsn: Lsn) -> TableShape | None:
        found = TABLES.get(name)
        if found is None:
            return None
        types = {"id": "integer", "n": "integer", "big": "text"}
        columns = tuple(
            ColumnShape(
                id=number,
                name=each.name,
                type=types[each.name],
                type_id=each.type_oid,
                type_kind="b",
                not_null=False,
            )
            for number, each in enumerate(found.columns, 1)
        )
        key = ConstraintShape(
            id=2, name="pkey", kind="p", definition="PRIMARY KEY (id)", columns=(1,), used=(1,)
        )
        return TableShape(
            id=found.oid,
            schema_name=found.table.schema,
            name=found.table.name,
            replica_identity=found.replica_identity,
            columns=columns,
            constraints=() if found is FULL else (key,),
        )

    def shape(self, name: Any, lsn: Lsn) -> None:
        return None

    def name_of(self, oid: int, lsn: Lsn) -> None:
        return None

    def lacks_rows(self, name: Any) -> bool:
        return False


@pytest.fixture(autouse=True)
def own_vault(tmp_path: Path) -> Iterator[None]:
    """Connection strings can be pickled, as while Spark runs."""
    (tmp_path / "vault").mkdir()
    with vault.using(vault.Vault(tmp_path / "vault")):
        yield


class Rig:
    """A target with a constraint, a log, and a sink between them."""

    def __init__(self, target: Database, directory: Path, **options: Any) -> None:
        self.target = target
        self.directory = directory
        self.written = 0
        (directory / "shop.yml").write_text(PIPELINE.format(url=target.url))
        given = {"kind": "postgres", "url": target.url, "on_refused": "park", **options}
        self.place = SinkPlace(
            "dw",
            PostgresOptions.model_validate(given),
            "shop",
            "shop",
            ("shop",),
            directory / "state",
        )
        self.sink = PostgresKind().build(self.place, Describe())  # type: ignore[arg-type]
        for name, key in (("t", "PRIMARY KEY"), ("other", "PRIMARY KEY"), ("loose", "")):
            target.execute(
                f"CREATE TABLE {name} (id int {key}, n int CONSTRAINT small CHECK ({SMALL}), big text)"
            )

    def open(self) -> Lsn:
        """As a run does; where the sink stands."""
        stored = self.sink.open()
        if stored is None:
            self.sink.begin({"slot": "x"}, START)
            self.sink.open()
            return START
        return stored.delivered_lsn

    def write(self, *rows: bytes) -> None:
        """One transaction into the log."""
        self.written += 1
        messages = [relation(each) for each in (T, OTHER, FULL)]
        lsn = Lsn(START + STEP * self.written)
        write_log(self.directory / "log", [*messages, *transaction(lsn, *rows)], START)

    def deliver(self, at_once: int = 1) -> None:
        """What the sink lacks, so many transactions in a batch."""
        position = self.open()
        slices = read_log(self.directory / "log", position)
        for begin in range(0, len(slices), at_once):
            some = slices[begin : begin + at_once]
            batch = Batch(1, position, some[-1].head.end_lsn, 0, frozenset(TABLES))
            worker = pickle.loads(pickle.dumps(self.sink.worker(batch)))
            span = Span(batch.after_lsn, batch.end_lsn)
            receipt = run_task(worker, span, 0, [[ref] for ref in some])
            self.sink.commit(batch, [pickle.loads(pickle.dumps(receipt))])
            position = batch.end_lsn

    def command(self, *words: str) -> str:
        done = CliRunner().invoke(app, ["parked", str(self.directory / "shop.yml"), *words])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.output

    def listed(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.command("list", "--json", *words))
        return found

    def retry(self, *words: str) -> None:
        """Ask, and have it done."""
        self.command("retry", *words)
        self.sink.refresh_tables(self.open())

    def accept(self) -> None:
        """The target takes everything from now on."""
        for name in ("t", "other", "loose"):
            self.target.execute(f"ALTER TABLE {name} DROP CONSTRAINT IF EXISTS small")

    def rows(self, name: str = "t") -> list[tuple[Any, ...]]:
        return self.target.query(f"SELECT id, n, big FROM {name} ORDER BY id")


@pytest.fixture
def rig(target: Database, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(target, tmp_path)
    yield made
    made.sink.close()


def row(key: int, n: int, big: str = "x") -> list[Any]:
    return [str(key), str(n), big]


@pytest.mark.parametrize("inline_bytes", [1 << 20, 0], ids=["inline", "staged"])
def test_refused_row_is_parked_and_the_rest_of_its_batch_is_delivered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    monkeypatch.setattr(worker_module, "INLINE_BYTES", inline_bytes)
    rig.write(*(insert(T, row(key, 5000 if key == 7 else key)) for key in range(20)))
    rig.write(insert(OTHER, row(1, 1)))

    rig.deliver(at_once=2)

    assert [key for key, _, _ in rig.rows()] == [key for key in range(20) if key != 7]
    assert rig.rows("other") == [(1, 1, "x")]
    assert not rig.sink.tables.detached
    [entry] = rig.listed("--values")
    assert entry["table"] == "public.t"
    assert entry["op"] == "insert"
    assert entry["key"] == {"id": "7"}
    assert "constraint small" in entry["reason"]
    assert entry["values"] == {"id": "7", "n": "5000", "big": "x"}
    assert "5000" not in rig.command("list")


def test_later_changes_of_a_parked_key_wait_behind_it_and_retry_keeps_their_order(rig: Rig) -> None:
    rig.write(insert(T, row(1, 1)), insert(T, row(2, 2)))
    rig.write(update(T, row(1, 5000)))
    rig.write(update(T, row(1, 7)), update(T, row(2, 22)))
    rig.write(update(T, ["1", "8", UNCHANGED]))
    rig.deliver()

    assert rig.rows() == [(1, 1, "x"), (2, 22, "x")]
    assert [each["reason"] is None for each in rig.listed()] == [False, True, True]

    rig.retry()
    assert len(rig.listed()) == 3, "the constraint is still there"
    assert rig.rows() == [(1, 1, "x"), (2, 22, "x")]
    rig.accept()
    rig.retry()

    assert rig.listed() == []
    assert rig.rows() == [(1, 8, "x"), (2, 22, "x")]


def test_retry_takes_along_what_is_parked_behind_it_after_the_request(rig: Rig) -> None:
    rig.write(insert(T, row(1, 5000)), insert(T, row(2, 5000)))
    rig.deliver()
    rig.accept()
    first = next(each["id"] for each in rig.listed() if each["key"] == {"id": "1"})

    rig.command("retry", "--id", first)
    rig.write(update(T, row(1, 6000)))
    rig.write(update(T, ["3", "7", UNCHANGED], key=["1"]))  # holds both keys
    rig.write(update(T, row(3, 8)))
    rig.deliver()
    assert len(rig.listed()) == 5
    rig.sink.refresh_tables(rig.open())

    assert [each["key"] for each in rig.listed()] == [{"id": "2"}]
    assert rig.rows() == [(3, 8, "x")]


def test_changes_of_a_key_wait_for_both_keys(rig: Rig) -> None:
    rig.write(insert(T, row(1, 1, "one")), insert(T, row(2, 2, "two")), insert(T, row(3, 3)))
    rig.write(update(T, row(1, 5000, "uno")))
    rig.write(update(T, ["9", "9", UNCHANGED], key=["1"]))  # a move: its text lives at key 1
    rig.write(insert(T, row(1, 11, "new")))
    rig.write(update(T, ["8", "8", UNCHANGED], key=["9"]))
    rig.write(update(T, row(3, 33)))
    rig.deliver()

    assert rig.rows() == [(1, 1, "one"), (2, 2, "two"), (3, 33, "x")]
    assert len(rig.listed()) == 4
    rig.accept()
    rig.retry()

    assert rig.listed() == []
    assert rig.rows() == [(1, 11, "new"), (2, 2, "two"), (3, 33, "x"), (8, 8, "uno")]


def test_truncate_takes_away_what_is_parked(rig: Rig) -> None:
    rig.write(insert(T, row(1, 5000)))
    rig.write(truncate(T))
    rig.write(insert(T, row(1, 1)))

    rig.deliver(at_once=3)

    assert rig.listed() == []
    assert rig.rows() == [(1, 1, "x")]


@pytest.mark.parametrize("point", ["deliver.before_commit", "deliver.after_commit"])
def test_kill_loses_and_doubles_nothing(rig: Rig, point: str) -> None:
    rig.write(insert(T, row(1, 5000)), insert(T, row(2, 2)))
    rig.open()

    class Killed(Exception):
        pass

    def die(name: str) -> None:
        if name == point:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.sinks.postgres.sink.fault_point", die)
        with pytest.raises(Killed):
            rig.deliver()
    rig.deliver()

    assert rig.rows() == [(2, 2, "x")]
    assert len(rig.listed()) == 1


def test_retry_that_is_killed_is_done_by_the_next_run(rig: Rig) -> None:
    rig.write(insert(T, row(1, 5000)), insert(T, row(2, 6000)))
    rig.deliver(at_once=2)
    rig.accept()
    rig.command("retry")

    def die(name: str) -> None:
        raise psycopg.OperationalError(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.sinks.postgres.merge.unpark.fault_point", die)
        with pytest.raises(Exception, match=r"."):
            rig.sink.refresh_tables(rig.open())
    assert rig.rows() == []
    assert len(rig.listed()) == 2
    rig.sink.refresh_tables(rig.open())

    assert rig.rows() == [(1, 5000, "x"), (2, 6000, "x")]
    assert rig.listed() == []


def test_some_are_retried_and_others_dropped(rig: Rig) -> None:
    rig.write(*(insert(T, row(key, 5000)) for key in (1, 2, 3)))
    rig.deliver()
    rig.accept()
    first, second, _ = (each["id"] for each in rig.listed())

    rig.retry("--id", second)
    assert rig.rows() == [(2, 5000, "x")]
    rig.sink.close()
    assert rig.command("drop", "--id", first) == "sink dw: 1 change: dropped\n"
    rig.retry()

    assert rig.rows() == [(2, 5000, "x"), (3, 5000, "x")]
    assert rig.listed() == []
    assert rig.command("retry") == "nothing is parked\n"


def test_copy_again_drops_what_is_parked(rig: Rig) -> None:
    rig.write(insert(T, row(1, 5000)))
    rig.deliver()

    rig.sink.tables.schedule_copy({T.table: T.oid}, Lsn(START + STEP), is_new=False)

    assert rig.listed() == []


def test_table_with_parked_rows_does_not_follow_a_change_of_shapes(rig: Rig) -> None:
    rig.write(insert(T, row(1, 5000)))
    rig.deliver()

    found = rig.sink._parked_in([Rows(0, frozenset({T.table, OTHER.table}))])

    assert {str(name): error.code for name, error in found.items()} == {"public.t": "PEN-510"}


def test_table_without_a_key_stops_and_says_why(rig: Rig) -> None:
    rig.write(insert(FULL, row(1, 5000)))
    rig.write(insert(T, row(1, 1)))

    rig.deliver()

    assert list(rig.sink.tables.detached) == [FULL.table]
    error = rig.sink.tables.detached[FULL.table].error
    assert "PEN-506" in error
    assert "on_refused: park parks rows of clones with a key alone" in error
    assert rig.rows() == [(1, 1, "x")]
    assert rig.listed() == []


def test_stop_parks_nothing(target: Database, tmp_path: Path) -> None:
    rig = Rig(target, tmp_path, on_refused="stop")
    rig.write(insert(T, row(1, 5000)))

    rig.deliver()

    assert list(rig.sink.tables.detached) == [T.table]
    assert rig.listed() == []
    rig.sink.close()


def test_status_counts_them(rig: Rig) -> None:
    rig.write(insert(T, row(1, 5000)), insert(T, row(2, 5000)))
    rig.deliver()

    assert read_status(read_pipeline(rig.directory / "shop.yml")).sinks["dw"].parked == 2


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 12))]
)
def test_whatever_is_parked_both_sides_are_equal_once_it_went_through(
    rig: Rig, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "INLINE_BYTES", 300 if seed % 2 else 1 << 20)
    dice = random.Random(seed)
    source: dict[int, tuple[int, str]] = {}
    for number in range(40):
        rows = [_change(dice, source, number * 10 + each) for each in range(dice.randint(1, 5))]
        rig.write(*(each for each in rows if each is not None))
        if dice.random() < 0.3:
            rig.deliver(dice.randint(1, 6))
        if dice.random() < 0.1:
            rig.retry()
    rig.deliver(dice.randint(1, 6))
    rig.accept()
    rig.retry()

    assert rig.listed() == []
    assert rig.rows() == [(key, *values) for key, values in sorted(source.items())]
    assert not rig.sink.tables.detached


def _change(dice: random.Random, source: dict[int, tuple[int, str]], number: int) -> bytes | None:
    """One change of the source, and what it has then. A tenth of the rows is refused."""
    n = number if dice.random() < 0.9 else 1000 + number
    key = dice.randrange(8)
    if dice.random() < 0.02:
        source.clear()
        return truncate(T)
    if key not in source:
        source[key] = (n, f"big {number}")
        return insert(T, row(key, *source[key]))
    choice = dice.random()
    if choice < 0.2:
        del source[key]
        return delete(T, key=[str(key)])
    kept = dice.random() < 0.5
    big = source[key][1] if kept else f"big {number}"
    sent = UNCHANGED if kept else big
    other = dice.randrange(8)
    if choice < 0.5 and other not in source:
        del source[key]
        source[other] = (n, big)
        return update(T, [str(other), str(n), sent], key=[str(key)])
    source[key] = (n, big)
    return update(T, [str(key), str(n), sent])
