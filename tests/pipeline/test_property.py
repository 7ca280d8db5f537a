"""Random SQL on random tables, with stops in between: both sides are equal whenever they are compared.

Every choice comes from the seed. A failure names it; `sql.txt` in the test's directory has the SQL.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fix_pipeline import rows
from fix_postgres import only_15, only_new

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

# SQL for a value that differs from row to row (`g`) and from statement to statement (`{n}`).
VALUES = {
    "int": "abs(hashtext(g || '-{n}')) % 50",
    "bigint": "g + {n} * 1000000",
    "text": "nullif(left(md5(g || '-{n}'), abs(hashtext(g || '{n}')) % 9), '')",
    "numeric": "(abs(hashtext(g || '-{n}')) % 40)::numeric(9,1) * 1.0",
    "jsonb": "jsonb_build_object('k', g, 'n', {n}, 'odd', E'\\\\\\t\\n')",
    "timestamptz": "'2000-01-01 00:00+00'::timestamptz + g * interval '1 hour 1 microsecond' - {n} * interval '1 day'",
    "bytea": "decode(md5(g || '-{n}'), 'hex')",
    "int[]": "ARRAY[g, NULL, {n}]",
    # Stored out of line, and so not sent again when it does not change.
    "big": "repeat(md5(g || '-{n}'), 80)",
}
# Equal values of `numeric` may be spelled in many ways: 1.0, 1.00.
KEY_VALUES = {
    "int": "g",
    "bigint": "g::bigint << 33",
    "text": "'k' || g",
    "numeric": "g::numeric(20,{s})",
    "uuid": "md5('k' || g)::uuid",
}
IDENTITIES = ("primary", "primary", "composite", "full", "full with key", "index")


@dataclass
class Table:
    """A random table; `keys` are the columns that identify its rows, if any do."""

    name: str
    identity: str
    keys: list[str]
    types: dict[str, str]
    next_key: int = 1

    @property
    def others(self) -> list[str]:
        return [name for name in self.types if name not in self.keys]


@dataclass
class Writer:
    """Writes at random, in transactions that may overlap."""

    dice: random.Random
    tables: list[Table]
    log: Any
    number: int = 0
    sizes: tuple[int, ...] = (1, 1, 2, 7, 60, 300)
    done: list[str] = field(default_factory=list)

    def transaction(self, *connections: psycopg.Connection[Any]) -> None:
        """One transaction on each connection, statement by statement in turn."""
        for _ in range(self.dice.choice((1, 1, 2, 4, 9))):
            self._part(self.dice.choice(connections))
        for connection in connections:
            self._say(connection, self.dice.choice(("COMMIT",) * 9 + ("ROLLBACK",)))

    def _part(self, connection: psycopg.Connection[Any]) -> None:
        self.number += 1
        point = f"p{self.number}"
        self._say(connection, f"SAVEPOINT {point}")
        for _ in range(self.dice.choice((1, 1, 3))):
            if not self._say(connection, self._statement()):
                self._say(connection, f"ROLLBACK TO {point}")
                return
        if self.dice.random() < 0.15:
            self._say(connection, f"ROLLBACK TO {point}")

    def _say(self, connection: psycopg.Connection[Any], statement: str) -> bool:
        self.log.write(f"/* {connection.info.backend_pid} */ {statement};\n")
        try:
            connection.execute(statement)
        except (psycopg.errors.IntegrityError, psycopg.errors.LockNotAvailable):
            return False
        return True

    def _statement(self) -> str:
        self.number += 1
        table = self.dice.choice(self.tables)
        kind = self.dice.choices(
            (self._insert, self._update, self._change_key, self._delete, self._truncate),
            (40, 30, 12, 15, 1),
        )[0]
        return kind(table)

    def _insert(self, table: Table) -> str:
        size = self.dice.choice(self.sizes)
        first = table.next_key if self.dice.random() < 0.7 else self.dice.randint(1, table.next_key)
        table.next_key = max(table.next_key, first + size)
        ending = "ON CONFLICT DO NOTHING" if table.keys else ""
        cells = ", ".join(self._value(table, name, fresh=True) for name in table.types)
        return f"INSERT INTO {table.name} SELECT {cells} FROM generate_series({first}, {first + size - 1}) g {ending}"

    def _value(self, table: Table, name: str, *, fresh: bool = False) -> str:
        kind = table.types[name]
        if name in table.keys:
            return KEY_VALUES[kind].format(s=self.dice.randint(0, 3))
        if self.dice.random() < (0.1 if fresh else 0.2):
            return "NULL"
        # Few different rows where rows are identified by their content alone.
        number = self.dice.randint(0, 2) if not table.keys else self.number
        return VALUES[kind].format(n=number)

    def _where(self, table: Table) -> str:
        modulus = self.dice.choice((1, 2, 5, 40, 400))
        return f"abs(hashtext({table.name}::text || {self.number})) % {modulus} = 0"

    def _update(self, table: Table) -> str:
        names = self.dice.sample(table.others, self.dice.randint(0, len(table.others)))
        sets = [f"{name} = {self._value(table, name)}" for name in names]
        sets = sets or [f"{name} = {name}" for name in list(table.types)[:1]]
        # g: something that differs from row to row.
        numbered = (
            f"(SELECT ctid AS place, row_number() OVER (ORDER BY ctid) AS g FROM {table.name}) x"
        )
        return f"UPDATE {table.name} SET {', '.join(sets)} FROM {numbered} WHERE ctid = x.place AND {self._where(table)}"

    def _change_key(self, table: Table) -> str:
        if not table.keys:
            return self._update(table)
        name = self.dice.choice(table.keys)
        kind = table.types[name]
        changed = {
            "text": f"left({name}, 3) || '{self.number}'",
            "uuid": f"md5({name}::text || {self.number})::uuid",
            "numeric": f"({name} + {self.dice.randint(0, 3)})::numeric(20,{self.dice.randint(0, 3)})",
        }.get(kind, f"{name} + {self.dice.choice((1, -1, 1000))}")
        more = "".join(
            f", {other} = {other}"
            for other in self.dice.sample(table.others, min(1, len(table.others)))
        )
        return f"UPDATE {table.name} SET {name} = {changed}{more} WHERE {self._where(table)}"

    def _delete(self, table: Table) -> str:
        return f"DELETE FROM {table.name} WHERE {self._where(table)}"

    def _truncate(self, _table: Table) -> str:
        names = self.dice.sample([table.name for table in self.tables], self.dice.randint(1, 2))
        return f"TRUNCATE {', '.join(names)}"


def make_tables(dice: random.Random) -> list[Table]:
    tables = []
    for number in range(dice.randint(2, 4)):
        identity = dice.choice(IDENTITIES)
        keys = {"composite": 2, "full": 0}.get(identity, 1)
        types = {f"k{place}": dice.choice(list(KEY_VALUES)) for place in range(keys)}
        for place in range(dice.randint(0 if keys else 1, 6 - keys)):
            types[f"c{place}"] = dice.choice([*VALUES, "big"])
        names = list(types)
        dice.shuffle(names)
        table = Table(
            f"t{number}", identity, [n for n in types if n[0] == "k"], {n: types[n] for n in names}
        )
        tables.append(table)
    return tables


def ddl(table: Table) -> list[str]:
    kinds = {name: "text" if kind == "big" else kind for name, kind in table.types.items()}
    key = ", ".join(table.keys)
    declared = [
        f"{name} {kind}{' NOT NULL' * (name in table.keys)}" for name, kind in kinds.items()
    ]
    if table.identity in ("primary", "composite", "full with key"):
        declared.append(f"PRIMARY KEY ({key})")
    made = [f"CREATE TABLE {table.name} ({', '.join(declared)})"]
    if table.identity.startswith("full"):
        made.append(f"ALTER TABLE {table.name} REPLICA IDENTITY FULL")
    elif table.identity == "index":
        made.append(f"CREATE UNIQUE INDEX {table.name}_i ON {table.name} ({key})")
        made.append(f"ALTER TABLE {table.name} REPLICA IDENTITY USING INDEX {table.name}_i")
    made += [
        f"ALTER TABLE {table.name} ALTER {name} SET STORAGE EXTERNAL"
        for name, kind in table.types.items()
        if kind == "big"
    ]
    return made


def play(
    source: Database,
    target: Database,
    make_pipeline: Make,
    directory: Path,
    seed: int,
    round_count: int,
    sizes: tuple[int, ...] = Writer.sizes,
    patience_seconds: float = 150,
) -> None:
    dice = random.Random(seed)
    tables = make_tables(dice)
    # Most transactions are then sent before they commit.
    work = dice.choice(("64kB", "64MB"))
    source.execute(f"ALTER DATABASE \"{source.name}\" SET logical_decoding_work_mem = '{work}'")
    with (directory / "sql.txt").open("w") as log:
        for table in tables:
            for statement in ddl(table):
                log.write(f"{statement};\n")
                source.execute(statement)
        pipeline = make_pipeline(source, target)
        writer = Writer(dice, tables, log, sizes=sizes)
        with source.connect(autocommit=False) as one, source.connect(autocommit=False) as other:
            for connection in (one, other):
                connection.execute("SET lock_timeout = '30ms'")
                connection.commit()
            for number in range(round_count):
                if stopped := dice.random() < 0.5:
                    stop_at = dice.randint(0, 12)
                    start_at = dice.randint(stop_at, 12)
                for turn in range(13):
                    if stopped and turn == stop_at:
                        pipeline.stop()
                        if dice.random() < 0.3:
                            shutil.rmtree(pipeline.file.state)
                    writer.transaction(one, other) if dice.random() < 0.3 else writer.transaction(
                        one
                    )
                    if stopped and turn == start_at:
                        pipeline.start()
                log.flush()
                pipeline.catch_up(patience_seconds)
                assert not pipeline.deliveries[0].stopped_tables, f"seed {seed}, round {number}"
                for table in tables:
                    there, here = rows(target, table.name), rows(source, table.name)
                    assert there == here, f"seed {seed}, round {number}: {table} differs"


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3, 4))]
)
@only_new
def test_random_work_on_random_tables_ends_equal(
    source: Database, target: Database, make_pipeline: Make, tmp_path: Path, seed: int
) -> None:
    play(source, target, make_pipeline, tmp_path, seed, round_count=5)


@pytest.mark.parametrize("seed", range(101, 103))
@only_15
def test_random_work_on_random_tables_ends_equal_on_15(
    source: Database, target: Database, make_pipeline: Make, tmp_path: Path, seed: int
) -> None:
    play(source, target, make_pipeline, tmp_path, seed, round_count=4)


@only_new
def test_random_work_ends_equal_when_every_change_is_streamed_before_its_commit(
    source: Database, target: Database, make_pipeline: Make, tmp_path: Path
) -> None:
    source.execute(
        f'ALTER DATABASE "{source.name}" SET debug_logical_replication_streaming = immediate'
    )
    sizes = (1, 2, 7, 40)
    play(source, target, make_pipeline, tmp_path, seed=201, round_count=3, sizes=sizes)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1001, 1021))
def test_much_random_work_on_random_tables_ends_equal(
    source: Database, target: Database, make_pipeline: Make, tmp_path: Path, seed: int
) -> None:
    sizes = (*Writer.sizes, 900, 5000)
    # Half a gigabyte of WAL in a round of some seeds, on a machine that does other things as well.
    play(
        source,
        target,
        make_pipeline,
        tmp_path,
        seed,
        round_count=6,
        sizes=sizes,
        patience_seconds=600,
    )
