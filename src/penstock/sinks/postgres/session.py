"""The connections to one target that the deliveries of all sources share: one delivers, one plans.

A target is not asked for two connections per source, of which there may be hundreds. Each source
still has its own claim, which lives and ends with the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import SinkError
from penstock.sinks.postgres.connect import (
    connect_target,
    require_version,
    set_replica_role,
    target_errors,
)
from penstock.sinks.postgres.expressions.time_limit import note_cancelled
from penstock.sinks.postgres.merge.stages import Stages

if TYPE_CHECKING:
    import psycopg

    from penstock.dsn import Dsn

    Connection = psycopg.Connection[Any]


class TargetSession:
    """One target, as one delivering loop knows it.

    Whoever opens it closes it; the last one to do so lets go of the target. Over the delivering
    connection one source speaks at a time, and none while the commit of another is under way.
    """

    def __init__(self, dsn: Dsn) -> None:
        self._dsn = dsn
        self._delivering: Connection | None = None
        self._planning: Connection | None = None
        self._users: set[object] = set()
        self.number = 0  # of the connection: a claim that was made over another one is lost
        self.stages = Stages()  # in temporary tables, which the connection has
        self.replica_role = False
        self.predecessor: int | None = None  # the backend of the connection before this one
        self._backend: int | None = None

    def open(self, user: object) -> Connection:
        """The delivering connection, made anew if there is none that lives.

        Raises:
            SinkError: the target cannot be reached, or is too old.
        """
        self._users.add(user)
        if self._delivering is None or self._delivering.closed:
            self._let_go()
            connection = connect_target(self._dsn, "penstock deliver")
            try:
                with target_errors(self._dsn):
                    require_version(connection, self._dsn)
                    self.replica_role = set_replica_role(connection)
            except BaseException:
                connection.close()
                raise
            self._delivering = connection
            self.number += 1
            self.predecessor, self._backend = self._backend, connection.info.backend_pid
        return self._delivering

    def connection(self, number: int) -> Connection:
        """The delivering connection, as long as it is the one of this number.

        Raises:
            SinkError: it is not.
        """
        if self._delivering is None or number != self.number:
            raise SinkError("not connected", str(self._dsn), "nothing, penstock tries again")
        return self._delivering

    def planning(self) -> Connection:
        """The other connection: a commit may be under way over the first.

        Raises:
            SinkError: the target cannot be reached.
        """
        if self._planning is None or self._planning.closed:
            self._planning = connect_target(self._dsn, "penstock plan")
        return self._planning

    def interrupt(self) -> None:
        """Have the target give up the statement that runs; its transaction is rolled back."""
        if self._delivering is not None:
            note_cancelled(self._delivering)
            self._delivering.cancel_safe(timeout=2.0)

    def close(self, user: object) -> None:
        """One user less."""
        self._users.discard(user)
        if not self._users:
            self._let_go()

    def _let_go(self) -> None:
        self.stages = Stages()
        for connection in (self._planning, self._delivering):
            if connection is not None:
                connection.close()
        self._planning = self._delivering = None
