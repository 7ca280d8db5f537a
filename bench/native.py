"""Postgres's own logical replication between a pair of databases."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from psycopg import sql

from bench.failure import BenchFailed, last_lines
from bench.servers import COPIED_SCHEMA, one

if TYPE_CHECKING:
    from bench.servers import Pair

_DEADLINE_SECONDS = 30.0


class Native:
    """One subscription, as shipped: its apply worker commits with synchronous_commit off."""

    name = "native"
    synchronous_commit = "off"

    def __init__(self, pair: Pair, *, copies: bool = False) -> None:
        del copies  # a subscription of its own, made when the copy begins
        self._pair = pair
        self._subscription = sql.Identifier(f"sub_{pair.name}")
        self._copy_name = f"copy_{pair.name}"
        self._subscriptions: list[sql.Identifier] = []

    def __enter__(self) -> Self:
        self._pair.source.execute("CREATE PUBLICATION bench FOR TABLE orders")
        self._subscribe(self._subscription, "bench", copy_data=False)
        return self

    def __exit__(self, failure: object, *rest: object) -> None:
        if failure is None:
            for name in self._subscriptions:
                self._pair.target.execute(sql.SQL("DROP SUBSCRIPTION {}").format(name))

    def _subscribe(self, name: sql.Identifier, publication: str, *, copy_data: bool) -> None:
        self._pair.target.execute(
            sql.SQL(
                "CREATE SUBSCRIPTION {} CONNECTION {} PUBLICATION {}"
                " WITH (copy_data = {}, synchronous_commit = {})"
            ).format(
                name,
                sql.Literal(self._pair.source_dsn),
                sql.Identifier(publication),
                sql.Literal(copy_data),
                sql.Literal(self.synchronous_commit),
            )
        )
        self._subscriptions.append(name)

    @property
    def pid(self) -> int | None:
        """No process outside the servers."""
        return None

    def hold(self) -> None:
        """Have the worker gone, and the slot left to itself."""
        self._alter("DISABLE")
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while one(
            self._pair.source,
            "SELECT active FROM pg_replication_slots WHERE database = current_database()",
        ):
            if time.monotonic() > deadline:
                raise BenchFailed("native: the slot is still in use 30 s after DISABLE")
            time.sleep(0.01)

    def release(self) -> None:
        """Let it go on."""
        self._alter("ENABLE")

    def _alter(self, what: str) -> None:
        self._pair.target.execute(
            sql.SQL("ALTER SUBSCRIPTION {} " + what).format(self._subscription)
        )

    def make_room(self, table_count: int) -> None:
        """It creates no tables: the target has them, with their keys, before it begins."""
        pair = self._pair
        pair.reveal()
        pair.source.execute(
            sql.SQL("CREATE PUBLICATION bench_copy FOR TABLES IN SCHEMA {}").format(
                sql.Identifier(COPIED_SCHEMA)
            )
        )
        pair.target.execute("CALL bench_tables(%s, %s, 0)", (COPIED_SCHEMA, table_count))

    def begin_copy(self) -> None:
        """A subscription that begins with a copy."""
        self._subscribe(sql.Identifier(self._copy_name), "bench_copy", copy_data=True)

    def streaming_tables(self) -> int:
        """How many tables are copied and follow: synchronised, or ready."""
        return int(
            one(
                self._pair.target,
                "SELECT count(*) FROM pg_subscription_rel r JOIN pg_subscription s"
                " ON s.oid = r.srsubid WHERE s.subname = %s AND r.srsubstate IN ('s', 'r')",
                (self._copy_name,),
            )
        )

    def copy_moments(self) -> None:
        """It does not report what it did when."""

    def check(self) -> None:
        """Raise when a worker has failed."""
        failed = one(
            self._pair.target,
            "SELECT sum(s.apply_error_count + s.sync_error_count) FROM pg_stat_subscription_stats s"
            " JOIN pg_subscription p ON p.oid = s.subid AND p.subdbid ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())",
        )
        if failed:
            log = self._pair.servers.target.log_path.read_text(errors="replace")
            raise BenchFailed(f"native: its workers failed {failed} times", last_lines(log))

    def seconds(self) -> dict[str, float]:
        """It does not report where its time goes."""
        return {}

    def log_written_at(self) -> float | None:
        """It has no log of its own."""
        return None


class NativeDurable(Native):
    """The same, with every commit of the apply worker flushed to disk before it counts."""

    name = "native, synchronous_commit on"
    synchronous_commit = "on"
