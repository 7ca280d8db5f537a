"""Postgres's own logical replication between a pair of databases."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from psycopg import sql

from bench.failure import BenchFailed, last_lines
from bench.servers import one

if TYPE_CHECKING:
    from bench.servers import Pair

_DEADLINE_SECONDS = 30.0


class Native:
    """One subscription, as shipped: its apply worker commits with synchronous_commit off."""

    name = "native"
    synchronous_commit = "off"

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._subscription = sql.Identifier(f"sub_{pair.name}")

    def __enter__(self) -> Self:
        pair = self._pair
        pair.source.execute("CREATE PUBLICATION bench FOR TABLE orders")
        pair.target.execute(
            sql.SQL(
                "CREATE SUBSCRIPTION {} CONNECTION {} PUBLICATION bench"
                " WITH (copy_data = false, synchronous_commit = {})"
            ).format(
                self._subscription,
                sql.Literal(pair.source_dsn),
                sql.Literal(self.synchronous_commit),
            )
        )
        return self

    def __exit__(self, failure: object, *rest: object) -> None:
        if failure is None:
            self._pair.target.execute(sql.SQL("DROP SUBSCRIPTION {}").format(self._subscription))

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

    def check(self) -> None:
        """Raise when the apply worker has failed."""
        failed = one(
            self._pair.target,
            "SELECT s.apply_error_count FROM pg_stat_subscription_stats s"
            " JOIN pg_subscription p ON p.oid = s.subid AND p.subdbid ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())",
        )
        if failed:
            log = self._pair.servers.target.log_path.read_text(errors="replace")
            raise BenchFailed(f"native: the apply worker failed {failed} times", last_lines(log))

    def seconds(self) -> dict[str, float]:
        """It does not tell where its time goes."""
        return {}

    def log_written_at(self) -> float | None:
        """It has no log of its own."""
        return None


class NativeDurable(Native):
    """The same, with every commit of the apply worker flushed to disk before it counts."""

    name = "native, synchronous_commit on"
    synchronous_commit = "on"
