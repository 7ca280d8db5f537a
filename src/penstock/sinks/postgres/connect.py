"""Reach the target, and say in penstock's words why it could not be reached or refuses."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from penstock.dsn import LIFT_TIME_LIMITS, Dsn, connect
from penstock.errors import (
    PenstockError,
    SinkError,
    SinkLoginRefused,
    SinkPrivilegeMissing,
    SinkTooOld,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    Connection = psycopg.Connection[Any]

OLDEST_VERSION = 140000

# What one table may suffer without harm to the rest: its rows, constraints, columns and privileges,
# an index that cannot hold a value, a publication that wants a replica identity.
_CLASSES_OF_ONE_TABLE = ("21", "22", "23", "2F", "42", "44", "54", "0A", "P0")
_STATES_OF_ONE_TABLE = ("55000",)
_CLASSES_OF_THE_SERVER = ("08", "57", "53", "40", "55", "58")

# A connection that was not made has no SQLSTATE; libpq's and the server's words must do.
_LOGIN_REFUSED = re.compile(
    r"authentication failed|no pg_hba\.conf entry|pg_hba\.conf rejects|no password supplied"
    r'|role ".*" does not exist|not permitted to log in|authentication method'
    r"|permission denied for database|does not support SSL|certificate|SSL error"
)
_NO_DATABASE = re.compile(r'database ".*" does not exist')

# What the system says of a host or a port. libpq's whole line names the place again, and may hold more.
_SYSTEMS_WORDS = re.compile(
    r"connection refused|could not translate host name|name or service not known|no route to host"
    r"|network is unreachable|timeout expired|timed out|no such file or directory"
    r"|server closed the connection|temporary failure in name resolution|not known",
    re.IGNORECASE,
)

_WAIT = "check that the target is up and reachable; a running pipeline tries again by itself"


def connect_target(dsn: Dsn, application: str, *, autocommit: bool = True) -> Connection:
    """An SQL connection to the target.

    Raises:
        SinkError: or the kind that says why.
    """
    with target_errors(dsn):
        return connect(dsn, application, autocommit=autocommit, settings=LIFT_TIME_LIMITS)


@contextmanager
def target_errors(dsn: Dsn) -> Iterator[None]:
    """Turn psycopg's errors into penstock's. `from None`: psycopg's own text may hold values."""
    try:
        yield
    except psycopg.Error as error:
        raise classify_target_error(error, dsn) from None


def classify_target_error(error: psycopg.Error, dsn: Dsn) -> PenstockError:
    """The penstock error that a failure at the target means; contains no value of any row."""
    where, state = str(dsn), error.sqlstate
    refused = _login_refused(error, dsn)
    if refused is not None:
        return refused
    if state == "42501":
        return SinkPrivilegeMissing(
            f"permission denied: {error.diag.message_primary}",
            where,
            "GRANT the role what it lacks; see docs/howto/configure-postgres.md",
        )
    if state == "25006":
        return SinkError("the target is read-only, as a standby is", where, _WAIT)
    if state is None or _is_of_the_moment(error) or state[:2] in _CLASSES_OF_THE_SERVER:
        said = _SYSTEMS_WORDS.search(str(error)) if state is None else None
        why = said[0].lower() if said is not None else state or type(error).__name__
        return SinkError(f"no answer from the target ({why})", where, _WAIT)
    diag = error.diag
    about = ".".join(filter(None, (diag.schema_name, diag.table_name, diag.constraint_name)))
    return PenstockError(
        f"the target refused a statement of penstock: SQLSTATE {state} {type(error).__name__}"
        + (f" ({about})" if about else ""),
        where,
        "report this: it is a defect of penstock",
    )


def _login_refused(error: psycopg.Error, dsn: Dsn) -> SinkLoginRefused | None:
    """Where the server lets nobody in; libpq has no state for that while it connects, only words."""
    state, text = error.sqlstate, str(error)
    if state in ("28P01", "28000") or (state is None and _LOGIN_REFUSED.search(text)):
        return SinkLoginRefused(
            f"the target refuses the login of role {dsn.user or '(default)'}",
            str(dsn),
            "check user and password in the sink's url, and pg_hba.conf of the target",
        )
    if state == "3D000" or (state is None and _NO_DATABASE.search(text)):
        return SinkLoginRefused(
            f"the target has no database {dsn.database}",
            str(dsn),
            f"CREATE DATABASE {dsn.database}",
        )
    return None


def _is_of_the_moment(error: psycopg.Error) -> bool:
    """Whether what the statement reads was altered or dropped by somebody else as it ran.

    The server has no code of its own for that. A function may raise the same one, and does so again.
    """
    return error.sqlstate == "XX000" and error.diag.source_function != "exec_stmt_raise"


def is_about_table(error: psycopg.Error) -> bool:
    """Whether one table is to blame, and not the connection or the server.

    By SQLSTATE: psycopg calls an index row that is too long an OperationalError, for one.
    """
    state = error.sqlstate or ""
    return state[:2] in _CLASSES_OF_ONE_TABLE or state in _STATES_OF_ONE_TABLE


def set_replica_role(connection: Connection) -> bool:
    """Switch triggers and foreign keys off for this session, where the role may.

    Triggers have fired and keys were checked at the source.
    """
    try:
        with connection.transaction():
            connection.execute("SET session_replication_role = replica")
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


@contextmanager
def in_replica_role(connection: Connection) -> Iterator[bool]:
    """The same for a part of an open transaction, and whether the role may.

    Not for the session: what makes tables there is to fire the target's own event triggers.
    """
    is_off = set_replica_role(connection)
    yield is_off
    if is_off:
        connection.execute("RESET session_replication_role")


def require_version(connection: psycopg.Connection[Any], dsn: Dsn) -> None:
    """See that the target is new enough.

    Raises:
        SinkTooOld: it is not.
    """
    version = connection.info.server_version
    if version < OLDEST_VERSION:
        raise SinkTooOld(
            f"the target is Postgres {version // 10000}, wanted 14 or later",
            str(dsn),
            "upgrade the target",
        )
