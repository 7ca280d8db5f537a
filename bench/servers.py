"""Two embedded servers, and a fresh pair of databases on them for every measurement."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg import sql

from bench.failure import BenchFailed
from penstock.embedded.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Connection = psycopg.Connection[Any]

_SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "min_wal_size": "3GB",
    # Neither a checkpoint nor a vacuum may fall into one figure and not into the other; both are
    # done by hand before the clock starts.
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
    # A capture that is held back answers no keepalive.
    "wal_sender_timeout": "0",
    # How soon the apply worker of a subscription comes back after ENABLE; 5 s as shipped.
    "wal_retrieve_retry_interval": "10ms",
    # As shipped there are 4 workers for all subscriptions: too few for two apply workers, the two
    # that synchronise tables, and parallel ones.
    "max_logical_replication_workers": "8",
    # For as many sources as are followed at once.
    "max_replication_slots": "80",
    "max_wal_senders": "80",
    "max_worker_processes": "16",
}
# Tables to be copied wait in a schema that nobody follows, and are moved into one that is followed.
COPIED_SCHEMA = "shop"
_WAITING_SCHEMA = "later"
_WAL_SEGMENTS = 130
_ORDERS = Path(__file__).with_name("orders.sql")


class Servers:
    """A source and a target, with fsync on."""

    def __init__(self, scale: float) -> None:
        self.source = EmbeddedPostgres(settings=_SETTINGS, fsync=True)
        self.target = EmbeddedPostgres(settings=_SETTINGS, fsync=True)
        self._wal_segments = max(4, round(_WAL_SEGMENTS * min(scale, 1.0)))
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for server in (self.source, self.target):
                stack.enter_context(server)
                with connect(server.dsn()) as connection:
                    make_wal(connection, self._wal_segments)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *reason: object) -> None:
        self._open.close()

    @property
    def version(self) -> str:
        """The server's own version, such as 18.1."""
        with connect(self.source.dsn()) as connection:
            return str(one(connection, "SHOW server_version")).split()[0]

    @contextmanager
    def pair(self, name: str) -> Iterator[Pair]:
        """A database of that name on each side, with the table; gone again afterwards."""
        for server in (self.source, self.target):
            with connect(server.dsn()) as connection:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        pair = Pair(self, name)
        try:
            yield pair
        finally:
            pair.close()
        # Not after an error: then the servers go, and all with them.
        for server in (self.source, self.target):
            with connect(server.dsn()) as connection:
                drop_database(connection, name)


class Pair:
    """One database on each side, with a connection of ours to both."""

    def __init__(self, servers: Servers, name: str) -> None:
        self.servers = servers
        self.name = name
        self.source_dsn = servers.source.dsn(name)
        self.target_dsn = servers.target.dsn(name)
        self.source = connect(self.source_dsn)
        self.target = connect(self.target_dsn)
        for connection in (self.source, self.target):
            make_orders(connection)

    def close(self) -> None:
        """Let go of both."""
        self.source.close()
        self.target.close()

    def preload(self, count: int) -> None:
        """Put the same rows into both, past any replication; then leave nothing to clean up."""
        for connection in (self.source, self.target):
            if count:
                connection.execute("INSERT INTO orders SELECT * FROM bench_rows(1, %s)", (count,))
            connection.execute("VACUUM ANALYZE orders")
        self.checkpoint()

    def checkpoint(self) -> None:
        """Write out what is dirty on both sides, so that nobody does while the clock runs."""
        for connection in (self.source, self.target):
            connection.execute("CHECKPOINT")

    def fill(self, table_count: int, row_count: int) -> None:
        """Make tables at the source alone, with so many rows each, where nobody follows them."""
        self.source.execute(
            "CALL bench_tables(%s, %s, %s)", (_WAITING_SCHEMA, table_count, row_count)
        )
        # The first to read a new row would pay for noting that it is committed.
        self.source.execute("VACUUM ANALYZE")
        self.checkpoint()

    def reveal(self) -> None:
        """Move the tables that wait into the schema that is followed: one statement, one commit."""
        self.source.execute(
            sql.SQL("ALTER SCHEMA {} RENAME TO {}").format(
                sql.Identifier(_WAITING_SCHEMA), sql.Identifier(COPIED_SCHEMA)
            )
        )

    def compare(self, columns: Sequence[str] = (), chosen: str = "") -> int:
        """The number of rows, the same on both sides and with the same content, in all columns or in some.

        Raises:
            BenchFailed: they differ.
        """
        return self._compare("public", "orders", columns, chosen)

    def compare_copies(self, columns: Sequence[str] = ()) -> int:
        """The number of rows in all tables that were copied; each is as `compare` says, with its key.

        Raises:
            BenchFailed: one differs, is missing or has no key.
        """
        source, target = _keys(self.source), _keys(self.target)
        if source != target:
            unlike = sorted(set(source.items()) ^ set(target.items()))
            raise BenchFailed(f"{self.name}: tables or keys differ, such as {unlike[0]}")
        return sum(self._compare(COPIED_SCHEMA, name, columns) for name in source)

    def _compare(self, schema: str, name: str, columns: Sequence[str], chosen: str = "") -> int:
        row = sql.SQL("ROW({})").format(sql.SQL(", ").join(map(sql.Identifier, columns)))
        query = sql.SQL(
            "SELECT count(*), sum(hashtextextended({}::text, 0)::numeric) FROM {} o"
        ).format(row if columns else sql.SQL("o"), sql.Identifier(schema, name))
        wanted = query + sql.SQL(f" WHERE {chosen}" if chosen else "")
        source = self.source.execute(wanted).fetchone()
        target = self.target.execute(query).fetchone()
        if source is None or source != target:
            raise BenchFailed(
                f"{self.name}, {schema}.{name}: the sides differ; source (rows, checksum) {source},"
                f" target {target}"
            )
        return int(source[0])


def make_orders(connection: Connection) -> None:
    """Make the table, and what writes to it."""
    connection.execute(_ORDERS.read_text(encoding="utf-8"))


def connect(dsn: str, application: str = "bench") -> Connection:
    """A connection of the benchmark's own."""
    return psycopg.connect(dsn, autocommit=True, application_name=application)


def one(connection: Connection, query: str, values: tuple[Any, ...] = ()) -> Any:
    """The first column of the first row."""
    row = connection.execute(query, values).fetchone()
    return None if row is None else row[0]


def _keys(connection: Connection) -> dict[str, str]:
    """The tables that are to be copied, and their primary keys as they are declared."""
    rows = connection.execute(
        "SELECT c.relname, coalesce(pg_get_constraintdef(o.oid), 'no key') FROM pg_class c"
        " LEFT JOIN pg_constraint o ON o.conrelid = c.oid AND o.contype = 'p'"
        " WHERE c.relnamespace = %s::regnamespace AND c.relkind = 'r' ORDER BY c.relname",
        (COPIED_SCHEMA,),
    )
    return dict(rows.fetchall())


def make_wal(connection: Connection, count: int) -> None:
    """Have WAL files ready to be used again, so that the first to run does not pay for making them."""
    for _ in range(count):
        connection.execute("SELECT pg_logical_emit_message(false, 'bench', 'x')")
        connection.execute("SELECT pg_switch_wal()")
    connection.execute("CHECKPOINT")


def drop_database(connection: Connection, name: str) -> None:
    """Remove a database and its slots, once nobody reads them."""
    deadline = time.monotonic() + 30
    while one(
        connection,
        "SELECT count(*) FROM pg_replication_slots WHERE database = %s AND active",
        (name,),
    ):
        if time.monotonic() > deadline:
            raise BenchFailed(f"{name}: its slot is still in use 30 s after the end")
        time.sleep(0.05)
    connection.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
        (name,),
    )
    connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
    connection.execute("CHECKPOINT")
