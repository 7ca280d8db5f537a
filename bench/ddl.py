"""What users' DDL costs with penstock's event triggers: `python -m bench.ddl`, beside `python -m bench`.

Two databases of one server with the same tables, one of them followed. Each statement runs in both in
turn, so that whatever else the machine does meets both. fsync is on.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.servers import connect, make_wal, one
from penstock.dsn import Dsn
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.source.connect import connect_source
from penstock.source.options import Tracking
from penstock.source.subscription import ensure_subscription
from penstock.table import TableRule, TableRules

if TYPE_CHECKING:
    from bench.servers import Connection

_SETTINGS = {"wal_level": "logical", "autovacuum": "off", "checkpoint_timeout": "1h"}
_WAL_SEGMENTS = 20
_DATABASES = ("without", "with")

# Each refers to the one before it, and the first of ten is referred to by all of them.
_TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE FUNCTION make_tables(number int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    FOR n IN 0 .. number - 1 LOOP
        EXECUTE format('CREATE TABLE t%s (id bigserial PRIMARY KEY, first_id bigint, before_id bigint,'
            ' name text NOT NULL, status text DEFAULT ''new'', total numeric(12, 2) CHECK (total >= 0),'
            ' note varchar(200), meta jsonb, created_at timestamptz DEFAULT now(), kind mood,'
            ' flag boolean, amount int)', n);
        EXECUTE format('CREATE INDEX ON t%s (name)', n);
        EXECUTE format('CREATE UNIQUE INDEX ON t%s (lower(name), created_at)', n);
        EXECUTE format('ALTER TABLE t%s ADD FOREIGN KEY (first_id) REFERENCES t%s', n, n / 10 * 10);
        EXECUTE format('ALTER TABLE t%s ADD FOREIGN KEY (before_id) REFERENCES t%s', n, greatest(n - 1, 0));
    END LOOP;
END $$;
SELECT make_tables({tables});
CREATE TABLE plain (id int PRIMARY KEY, t text);
CREATE SEQUENCE counter;
"""

# {n} is a number of its own for each repetition, {t} of one of ten tables. The statements of a group follow each other, and leave
# things as they were.
_GROUPS = (
    ("ALTER TABLE plain ADD COLUMN c int", "ALTER TABLE plain DROP COLUMN c"),
    ("ALTER TABLE t{t} ADD COLUMN c{n} int", "ALTER TABLE t{t} DROP COLUMN c{n}"),
    ("ALTER TABLE t{t} ADD COLUMN c{n} text DEFAULT 'x'", "ALTER TABLE t{t} DROP COLUMN c{n}"),
    ("ALTER TABLE t{t} ALTER amount TYPE bigint", "ALTER TABLE t{t} ALTER amount TYPE int"),
    ("ALTER TABLE t{t} ALTER amount SET DEFAULT 1", "ALTER TABLE t{t} ALTER amount DROP DEFAULT"),
    ("ALTER TABLE t{t} ALTER amount SET NOT NULL", "ALTER TABLE t{t} ALTER amount DROP NOT NULL"),
    ("ALTER TABLE t{t} RENAME amount TO amounts", "ALTER TABLE t{t} RENAME amounts TO amount"),
    ("ALTER TABLE t{t} RENAME TO t{t}a", "ALTER TABLE t{t}a RENAME TO t{t}"),
    (
        "ALTER TABLE t{t} ADD CONSTRAINT fk FOREIGN KEY (amount) REFERENCES plain",
        "ALTER TABLE t{t} DROP CONSTRAINT fk",
    ),
    ("CREATE TABLE n{n} (id int PRIMARY KEY, t text)", "DROP TABLE n{n}"),
    (
        "CREATE TABLE n{n} (id serial PRIMARY KEY, t text DEFAULT 'x', m mood, other bigint REFERENCES t{t})",
        "DROP TABLE n{n}",
    ),
    ("CREATE INDEX i ON t{t} (amount)", "DROP INDEX i"),
    ("COMMENT ON TABLE t{t} IS '{n}'",),
    ("COMMENT ON COLUMN t{t}.name IS '{n}'",),
    ("GRANT SELECT ON t{t} TO pg_monitor", "REVOKE SELECT ON t{t} FROM pg_monitor"),
    ("CREATE VIEW v AS SELECT id, name FROM t{t}", "DROP VIEW v"),
    (
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "DROP FUNCTION f()",
    ),
    ("CREATE TYPE y AS ENUM ('a')", "ALTER TYPE y ADD VALUE 'b'", "DROP TYPE y"),
    ("ALTER SEQUENCE counter INCREMENT {n}",),
    ("CREATE TEMP TABLE tmp (id int)", "DROP TABLE tmp"),
)
_FIRST = (
    "ALTER TABLE plain ADD COLUMN c int",
    "ALTER TABLE t{t} ADD COLUMN c{n} int",
    "CREATE TABLE n{n} (id int PRIMARY KEY, t text)",
    "DROP TABLE n{n}",
    "CREATE INDEX i{n} ON t{t} (amount)",
    "COMMENT ON TABLE t{t} IS '{n}'",
)


@dataclass
class Times:
    """Of one statement, in each database: milliseconds by the clock, and of the backend's CPU."""

    wall: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _DATABASES})
    cpu: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _DATABASES})

    def add(self, name: str, wall: float, cpu: float) -> None:
        """One more."""
        self.wall[name].append(wall)
        self.cpu[name].append(cpu)

    def cells(self) -> list[str]:
        """Medians of both, and how many times as much it is."""
        found: list[str] = []
        for times in (self.wall, self.cpu):
            without, tracked = (statistics.median(times[name]) for name in _DATABASES)
            found += [f"{without:.2f}", f"{tracked:.2f}", f"{tracked / without:.1f}"]
        return found


def main() -> int:
    """Measure, and print a table."""
    arguments = _arguments()
    with EmbeddedPostgres(bin_dir=arguments.bin_dir, settings=_SETTINGS, fsync=True) as server:
        with connect(server.dsn()) as connection:
            make_wal(connection, _WAL_SEGMENTS)
            version = str(one(connection, "SHOW server_version")).split()[0]
        for name in _DATABASES:
            _make(server, name, arguments.tables)
        print(
            f"Postgres {version}, {arguments.tables} tables, median of {arguments.repeat}, ms\n\n"
            "| statement | without | with triggers | ratio | CPU without | with | ratio |\n"
            "|---|---|---|---|---|---|---|"
        )
        wanted = arguments.only
        measured = _warm(server, arguments.repeat, wanted)
        measured |= _first(server, max(5, arguments.repeat // 5), wanted)
        for statement, times in measured.items():
            print(
                f"| `{statement.replace('{n}', '').replace('{t}', '')}` | "
                + " | ".join(times.cells())
                + " |"
            )
    return 0


def _make(server: EmbeddedPostgres, name: str, tables: int) -> None:
    with connect(server.dsn()) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')  # of _DATABASES
    with connect(server.dsn(name)) as connection:
        connection.execute(_TABLES.replace("{tables}", str(tables)))
    if name == "with":
        rules = TableRules((TableRule.parse("*.*"),), (), ())
        with connect_source(Dsn.parse(server.dsn(name))) as source:
            ensure_subscription(source, "bench", rules, Tracking.TRIGGERS)
    with connect(server.dsn(name)) as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def _warm(server: EmbeddedPostgres, repeat: int, wanted: str) -> dict[str, Times]:
    """Within one session of each database, whose first statements do not count."""
    measured: dict[str, Times] = {}
    with connect(server.dsn("without")) as without, connect(server.dsn("with")) as tracked:
        sessions = dict(zip(_DATABASES, (without, tracked), strict=True))
        for group in _GROUPS:
            if not any(wanted in statement for statement in group):
                continue
            for number in range(-3, repeat):
                for name in _in_turn(number):
                    for statement in group:
                        wall, cpu = _run(sessions[name], statement, number + 10)
                        if number >= 0:
                            measured.setdefault(statement, Times()).add(name, wall, cpu)
    return measured


def _first(server: EmbeddedPostgres, repeat: int, wanted: str) -> dict[str, Times]:
    """The first DDL of a session that has read a table before."""
    measured: dict[str, Times] = {}
    numbers = itertools.count(100_000)
    for statement in _FIRST:
        if wanted not in statement:
            continue
        times = measured.setdefault(f"first of a session: {statement}", Times())
        for number in range(repeat):
            unique = next(numbers)
            for name in _in_turn(number):
                with connect(server.dsn(name)) as session:
                    if statement.startswith("DROP TABLE"):
                        with connect(server.dsn(name)) as other:
                            other.execute(f"CREATE TABLE n{unique} (id int PRIMARY KEY)")
                    session.execute("SELECT count(*) FROM plain")
                    times.add(name, *_run(session, statement, unique))
                    session.execute("ALTER TABLE plain DROP COLUMN IF EXISTS c")
    return measured


def _in_turn(number: int) -> tuple[str, ...]:
    return _DATABASES if number % 2 == 0 else _DATABASES[::-1]


def _run(session: Connection, statement: str, number: int) -> tuple[float, float]:
    text = statement.replace("{n}", str(number)).replace("{t}", str(number % 10)).encode()
    before = _cpu_ms(session)
    began = time.perf_counter()
    session.execute(text)
    wall = (time.perf_counter() - began) * 1000
    return wall, _cpu_ms(session) - before


def _cpu_ms(session: Connection) -> float:
    """What the session's backend has used so far, by the kernel's account in nanoseconds."""
    account = Path(f"/proc/{session.info.backend_pid}/schedstat").read_text(encoding="ascii")
    return int(account.split()[0]) / 1e6


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.ddl", description=__doc__)
    parser.add_argument("--tables", type=int, default=10, help="how many there are (default 10)")
    parser.add_argument("--repeat", type=int, default=100, help="each statement (default 100)")
    parser.add_argument("--only", default="", help="statements that contain this text")
    parser.add_argument("--bin-dir", type=Path, help="of another Postgres than the embedded one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
