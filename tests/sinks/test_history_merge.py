"""Staged versions become the history that the changes make one by one, however they are cut."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from fix_changes import of_seed
from fix_history import ALWAYS, STILL, Changes
from fix_postgres import only_new
from penstock import testing
from penstock.sinks.postgres import worker as worker_module
from penstock.sinks.postgres.mapping.plan import FixedColumn, HistoryPlan, TablePlan, TargetColumn
from penstock.sinks.postgres.merge.careful import merge_table
from penstock.sinks.postgres.merge.conflicts import NONE, Conflicts
from penstock.sinks.postgres.merge.quick import merge_steps
from penstock.sinks.postgres.merge.receipts import staged_steps
from penstock.sinks.postgres.merge.stages import Stages
from penstock.sinks.postgres.options import Kind, OnConflict
from penstock.sinks.postgres.worker import PostgresWorker
from penstock.table import TableName
from penstock.testing import UNCHANGED, delete, insert, relation, table, transaction, update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fix_postgres import Database
    from penstock.changes.pgoutput import Relation

T = table(16400, "t", {"id": "int4", "n": "int4", "big": "text"}, key=["id"])
T_FULL = table(16400, "t", {"id": "int4", "n": "int4", "big": "text"}, identity="f")

TIMES = "timestamp with time zone"
BASE = 800_000_000_000_000
_UNIX_OF_2000 = 946_684_800_000_000

_ROWS = """
SELECT id::text, n::text, big,
       CASE WHEN kvsz_start = '1900-01-01 00:00:00+00' THEN NULL
            ELSE (extract(epoch FROM kvsz_start) * 1000000)::bigint END,
       CASE WHEN kvsz_end = '9999-01-01 00:00:00+00' THEN NULL
            ELSE (extract(epoch FROM kvsz_end) * 1000000)::bigint END,
       kvsz_deleted
FROM t WHERE {where} ORDER BY t.id, kvsz_start, kvsz_end, n, big
"""


class Target:
    """A history table, and the two halves of the sink that fill it."""

    def __init__(self, database: Database, *, with_sid: bool, has_key: bool = True) -> None:
        self.database = database
        sid = "sid text, " if with_sid else ""
        in_key = "sid, " if with_sid else ""
        database.execute(
            f"CREATE TABLE t ({sid}id int, n int, big text, kvsz_start timestamptz NOT NULL,"
            " kvsz_end timestamptz NOT NULL, kvsz_deleted boolean NOT NULL)"
        )
        if has_key:
            # Both must hold at every moment, whichever of them a table has.
            database.execute(f"ALTER TABLE t ADD PRIMARY KEY ({in_key}id, kvsz_end)")
            database.execute(f"ALTER TABLE t ADD UNIQUE ({in_key}id, kvsz_start)")
        database.execute("CREATE SCHEMA penstock")
        self.where = "sid = 'eu'" if with_sid else "true"
        self.plan = TablePlan(
            source=TableName("public", "t"),
            target=TableName("public", "t"),
            columns=(
                TargetColumn("id", "integer", True),
                TargetColumn("n", "integer", True),
                TargetColumn("big", "text", True),
            ),
            others=(),
            key=("id",) if has_key else (),
            kind=Kind.HISTORY,
            fixed=(FixedColumn("sid", "text", "eu"),) if with_sid else (),
            history=HistoryPlan("kvsz_start", TIMES, "kvsz_end", TIMES, "kvsz_deleted"),
        )
        self.connection = database.connect()
        self.stages = Stages()

    def deliver(
        self,
        described: Relation,
        slices: list[list[bytes]],
        *,
        conflict: OnConflict = OnConflict.REPLACE,
        is_careful: bool = False,
    ) -> Any:
        """One batch; what was odd in it, or the error."""
        worker = PostgresWorker(
            self.database.dsn, "stage_test_", {self.plan.source: self.plan}, frozenset()
        )
        task = worker.begin(0)
        for messages in slices:
            task.take(testing.changes([relation(described), *messages]))
        receipt = task.finish()
        assert not receipt.content.refused
        steps = staged_steps([receipt])
        assert not self.stages.prepare(self.connection, steps)
        with self.connection.transaction(), self.connection.cursor() as cursor:
            if is_careful:
                found: Any = merge_table(
                    cursor, self.plan, steps, self.stages, conflict, replica_role=True
                )
            else:
                by_table = merge_steps(
                    cursor,
                    steps,
                    lambda _: self.plan,
                    self.stages,
                    conflict,
                    replica_role=True,
                )
                found = by_table.get(self.plan.source, NONE)
        self.stages.drop_staged(self.connection, steps)
        return found

    def rows(self) -> list[tuple[Any, ...]]:
        """As the model has them."""
        return [
            (
                *values,
                ALWAYS if start is None else start - _UNIX_OF_2000,
                STILL if end is None else end - _UNIX_OF_2000,
                deleted,
            )
            for *values, start, end, deleted in self.database.query(_ROWS.format(where=self.where))
        ]


@pytest.fixture
def history(target: Database) -> Iterator[Callable[..., Target]]:
    """Makes the table at the target."""
    made: list[Target] = []

    def make(**options: Any) -> Target:
        made.append(Target(target, **options))
        return made[-1]

    yield make
    for each in made:
        each.connection.close()
    for connection in worker_module._connections.values():
        connection.close()
    worker_module._connections.clear()


def at(seconds: int, *rows: bytes) -> list[bytes]:
    """One transaction that commits some seconds after a moment."""
    return transaction(0x1000 + seconds * 16, *rows, committed_at=BASE + seconds * 1_000_000)


def reported(made: Target) -> list[tuple[Any, ...]]:
    """The rows, with seconds for instants."""
    return [
        (*values, *((x - BASE) // 1_000_000 if isinstance(x, int) else x for x in times), deleted)
        for *values, start, end, deleted in made.rows()
        for times in [(start, end)]
    ]


@pytest.mark.parametrize("identity", ["key", "full"])
@only_new
def test_history_is_the_same_however_the_changes_are_cut(
    target: Database,
    history: Callable[..., Target],
    identity: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described = T if identity == "key" else T_FULL
    made = history(with_sid=True)
    target.execute(
        "INSERT INTO t VALUES ('us', 1, 1, 'theirs', '1900-01-01 00:00:00+00',"
        " '9999-01-01 00:00:00+00', false)"
    )
    for seed in range(40):
        dice = of_seed(seed)
        monkeypatch.setattr(worker_module, "INLINE_BYTES", dice.choice([0, 200, 1 << 20]))
        changes = Changes(dice, described)
        for _ in range(dice.randint(1, 12)):
            changes.transact(6)
        target.execute("DELETE FROM t WHERE sid = 'eu'")

        odd = NONE
        for batch in changes.batches():
            odd += made.deliver(described, batch, is_careful=dice.random() < 0.5)

        assert made.rows() == changes.history.rows(), f"seed {seed}"
        assert odd == NONE, f"seed {seed}"
    assert target.query("SELECT n, kvsz_deleted FROM t WHERE sid = 'us'") == [(1, False)]


@only_new
def test_rows_that_are_there_or_missing_are_made_right_and_counted(
    history: Callable[..., Target],
) -> None:
    made = history(with_sid=False)
    made.deliver(T, [at(1, insert(T, ["1", "10", "a"]))])

    odd = made.deliver(
        T,
        [
            at(5, insert(T, ["1", "11", "b"]), update(T, ["2", "20", "c"]))
            + at(6, delete(T, key=["3"]), insert(T, ["4", "4", "d"]), delete(T, key=["4"]))
            + at(7, update(T, ["6", "60", "e"], key=["5"]))
        ],
    )

    assert odd == Conflicts(insert_exists=1, update_missing=2, delete_missing=1)
    assert reported(made) == [
        ("1", "10", "a", ALWAYS, 5, False),
        ("1", "11", "b", 5, STILL, False),
        ("2", "20", "c", 5, STILL, False),
        ("6", "60", "e", 7, STILL, False),
    ]


@only_new
def test_rows_that_are_there_or_missing_are_skipped_when_asked(
    history: Callable[..., Target],
) -> None:
    made = history(with_sid=False)
    made.deliver(T, [at(1, *(insert(T, [str(number), "0", "kept"]) for number in range(1, 6)))])

    odd = made.deliver(
        T,
        [
            at(5, *(insert(T, [str(number), "1", "no"]) for number in range(1, 6)))
            + at(6, update(T, ["2", "2", "yes"]), delete(T, key=["3"]))
            + at(6, update(T, ["40", "4", "moved"], key=["4"]))
            + at(7, delete(T, key=["5"]), update(T, ["7", "7", "no"]))
            + at(8, insert(T, ["5", "5", "again"]), update(T, ["7", "8", UNCHANGED]))
        ],
        conflict=OnConflict.KEEP,
    )

    assert odd == Conflicts(insert_exists=5, update_missing=2)
    assert reported(made) == [
        ("1", "0", "kept", ALWAYS, STILL, False),
        ("2", "0", "kept", ALWAYS, 6, False),
        ("2", "2", "yes", 6, STILL, False),
        ("3", "0", "kept", ALWAYS, 6, True),
        ("4", "0", "kept", ALWAYS, 6, False),
        ("5", "0", "kept", ALWAYS, 7, True),
        ("5", "5", "again", 8, STILL, False),
        ("40", "4", "moved", 6, STILL, False),
    ]


@only_new
def test_rows_that_are_there_or_missing_stop_the_table_when_asked(
    history: Callable[..., Target],
) -> None:
    made = history(with_sid=False)
    made.deliver(T, [at(1, insert(T, ["1", "0", "kept"]))])
    before = made.rows()

    for conflict, change, key in (
        (OnConflict.STOP, insert(T, ["1", "1", "no"]), "id=1"),
        (OnConflict.STOP, update(T, ["2", "1", "no"]), "id=2"),
        (OnConflict.REPLACE, update(T, ["3", "1", UNCHANGED]), "id=3"),
        (OnConflict.REPLACE, update(T, ["5", "1", UNCHANGED], key=["4"]), "id=4"),
    ):
        error = made.deliver(T, [at(5, change)], conflict=conflict, is_careful=True)
        assert f"key ({key})" in str(error)

    assert made.rows() == before


@pytest.mark.parametrize("cut", [False, True], ids=["at once", "one by one"])
@only_new
def test_clock_that_was_set_back_makes_no_row_overlap_another(
    history: Callable[..., Target], cut: bool
) -> None:
    made = history(with_sid=False)
    made.deliver(T, [at(1, insert(T, ["1", "0", "a"]), insert(T, ["2", "0", "a"]))])
    made.deliver(T, [at(9, update(T, ["1", "1", "b"]), update(T, ["2", "1", "b"]))])

    transactions = [
        at(5, update(T, ["1", "2", "c"]), delete(T, key=["2"])),
        at(6, update(T, ["1", "3", UNCHANGED])),
        at(7, insert(T, ["2", "4", "d"])),
        at(20, update(T, ["1", "5", "e"])),
    ]
    batches = [[each] for each in transactions] if cut else [[list(chain(*transactions))]]
    odd = [made.deliver(T, batch) for batch in batches]

    assert not any(odd)
    assert reported(made) == [
        ("1", "0", "a", ALWAYS, 9, False),
        ("1", "3", "c", 9, 20, False),
        ("1", "5", "e", 20, STILL, False),
        ("2", "0", "a", ALWAYS, 9, False),
        ("2", "4", "d", 9, STILL, False),
    ]


@only_new
def test_equal_rows_without_a_key_end_one_each(history: Callable[..., Target]) -> None:
    made = history(with_sid=True, has_key=False)
    for seed in range(25):
        dice = of_seed(seed)
        rows: list[tuple[Any, ...]] = []
        ended = batches = 0
        made.database.execute("DELETE FROM t")
        batch: list[list[bytes]] = []
        for second in range(1, 12):
            messages: list[bytes] = []
            for _ in range(dice.randint(1, 4)):
                new = (dice.choice(["1", "2", None]), "0", dice.choice(["x", None]))
                way = dice.choice("IIUD") if rows else "I"
                if way == "I":
                    messages.append(insert(T_FULL, new))
                    rows.append(new)
                    continue
                old = rows.pop(dice.randrange(len(rows)))
                ended += 1
                if way == "D":
                    messages.append(delete(T_FULL, before=old))
                else:
                    messages.append(update(T_FULL, new, before=old))
                    rows.append(new)
            batch.append(at(second, *messages))
            if dice.random() < 0.4:
                assert made.deliver(T_FULL, batch) == NONE
                batch, batches = [], batches + 1
        if batch:
            assert made.deliver(T_FULL, batch) == NONE

        found = made.rows()
        still = Counter(row[:3] for row in found if row[4] == STILL)
        assert still == Counter(rows), f"seed {seed}"
        assert all(row[3] == ALWAYS or row[4] == STILL or row[3] < row[4] for row in found)
        assert len(found) - still.total() <= ended


@only_new
def test_missing_whole_row_is_counted(history: Callable[..., Target]) -> None:
    made = history(with_sid=False, has_key=False)

    odd = made.deliver(
        T_FULL,
        [
            at(
                1,
                delete(T_FULL, before=["1", None, None]),
                update(T_FULL, ["3", "3", "c"], before=["2", "2", None]),
            )
        ],
    )

    assert odd == Conflicts(update_missing=1, delete_missing=1)
    assert reported(made) == [("3", "3", "c", 1, STILL, False)]
