"""Reach the source, and say in penstock's words why it could not be reached or refused.

Knows SQLSTATEs and libpq's sentences; knows nothing of slots' positions, publications or tables.
A message is fixed text plus the server's own first line, and that line is dropped when it could
hold a secret or a row value.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import error_from_result

from penstock.dsn import LIFT_TIME_LIMITS, Dsn, connect
from penstock.errors import DecodingFailed, PenstockError, SourceError, SourceLoginRefused
from penstock.source.refusals import NO_STATE, REFUSALS, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    Connection = psycopg.Connection[Any]

# Classes of SQLSTATE whose primary message names objects of the server, never values of rows.
_CLASSES_WITHOUT_VALUES = ("08", "25", "28", "3D", "42", "53", "54", "55", "57", "58")

# Waiting fixes these: connection lost, transaction rolled back by the server, resources, locks,
# operator intervention, input/output errors, internal errors.
_CLASSES_THAT_PASS = ("08", "25", "40", "53", "55", "57", "58", "XX")


# Rows are read by the names of tables. Who owns one may put a view in its place, which would run his functions as
# us. Minor versions before August 2024 do not know the setting: see `ordinary`.
_TABLES_ALONE = (
    "SELECT pg_catalog.set_config(name, 'view, foreign-table', false) FROM"
    " (VALUES ('restrict_nonsystem_relation_kind')) AS s(name)"
    " WHERE pg_catalog.current_setting(name, true) IS NOT NULL"
)
# A database that is about to be left is set read-only for its writers. We only keep our books.
_SETTINGS = f"SET default_transaction_read_only = off; {_TABLES_ALONE}"
# A range is read in seconds. A table under ALTER is waited for only a while, others would queue
# behind us; nothing above ACCESS SHARE is ever asked for.
_SETTINGS_TO_COPY = f"SET lock_timeout = '10s'; {LIFT_TIME_LIMITS}; {_TABLES_ALONE}"


def connect_source(dsn: Dsn, application: str = "penstock") -> Connection:
    """An SQL connection to the source, autocommit on.

    Raises:
        SourceError: or the subclass that says why; a wrong host within about 10 s.
    """
    with source_errors(dsn):
        return connect(dsn, application, settings=_SETTINGS)


def connect_to_copy(dsn: Dsn) -> Connection:
    """An SQL connection that reads the rows of a table, for as long as that takes.

    Raises:
        SourceError: or the subclass that says why.
    """
    with source_errors(dsn):
        return connect(dsn, "penstock copy", settings=_SETTINGS_TO_COPY)


def connect_replication(dsn: Dsn, application: str, *, unlimited: bool = False) -> Connection:
    """A replication connection to the source's database; `unlimited` in time where it is idle, too.

    Raises:
        psycopg.Error: as libpq and the server say.
    """
    return connect(
        dsn, application, replication=True, settings=LIFT_TIME_LIMITS if unlimited else ""
    )


@contextmanager
def source_errors(where: Dsn | Connection, slot: str = "") -> Iterator[None]:
    """Turn psycopg's errors into penstock's. `from None`: psycopg's own text may hold values."""
    try:
        yield
    except psycopg.Error as error:
        raise classify_source_error(error, where, slot) from None


def classify_source_error(
    error: Exception, where: Dsn | Connection, slot: str = ""
) -> PenstockError:
    """The penstock error that a failure at the source means. Never raises, never shows a secret.

    `where` is what was being talked to; `slot` is named in the place when the failure is about it.
    """
    if isinstance(error, PenstockError):
        return error
    place = f"{place_of(where)} slot {slot}" if slot else place_of(where)
    if isinstance(error, OSError):
        why = error.strerror or "input/output error"
        return SourceError(f"connection lost: {why}", place, _WAIT)
    if not isinstance(error, psycopg.Error):
        return PenstockError(f"unexpected {type(error).__name__}", place, _DEFECT)
    text = _whole_text(error)
    rule = next((rule for rule in REFUSALS if _fits(rule, error, text)), None)
    if rule is not None:
        said = _said(error, text, where, rule.text)
        return rule.error(_join(rule.what, said), place, rule.do.format(role=role_of(where)))
    return _unnamed(error, text, where, place)


def result_error(result: pq.abc.PGresult | None) -> psycopg.Error:
    """The error that libpq gives as a result. One without SQLSTATE is libpq's own: no connection."""
    error = error_from_result(result) if result is not None else None
    if error is None or error.sqlstate is None:
        return psycopg.OperationalError(str(error or "no answer"))
    return error


_WAIT = "check that the server is up, and host, port and network; a running pipeline tries again by itself"
_SERVER_LOG = (
    "nothing at first: a running pipeline tries again by itself; if it stays, the server's log says what failed"
    " (docs/reference/errors.md has the known cases)"
)
_DEFECT = "report this with the log: penstock did not expect it"

# Names given by people: a host called pgbouncer.internal that refuses connections is no pooler yet.
_NAMES = re.compile(r"\"[^\"\n]*\"|(?<=host )'[^'\n]*'")


def _unnamed(error: psycopg.Error, text: str, where: Dsn | Connection, place: str) -> PenstockError:
    said = _said(error, text, where, None)
    if error.sqlstate is None:
        needs_password = error.pgconn is not None and error.pgconn.needs_password
        if needs_password:  # in whatever language the server speaks
            return SourceLoginRefused("the server wants a password", place, "put one into the url")
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return SourceError(_join("no connection", said), place, _WAIT)
        return PenstockError(f"unexpected {type(error).__name__}", place, _DEFECT)
    if error.sqlstate == "XX000":
        return DecodingFailed(_join("the server failed inside (XX000)", said), place, _SERVER_LOG)
    if error.sqlstate.startswith(_CLASSES_THAT_PASS):
        return SourceError(_join(f"the server gave up ({error.sqlstate})", said), place, _WAIT)
    kind = f"the server refused a statement ({error.sqlstate} {type(error).__name__})"
    return PenstockError(_join(kind, said), place, _DEFECT)


def _fits(rule: Refusal, error: psycopg.Error, text: str) -> bool:
    if rule.states is not None and (error.sqlstate or NO_STATE) not in rule.states:
        return False
    if rule.states is None:
        if error.sqlstate is not None and not _is_about_connecting(error):
            return False
        text = _NAMES.sub('""', text)
    return rule.text is None or re.search(rule.text, text, re.IGNORECASE) is not None


def _is_about_connecting(error: psycopg.Error) -> bool:
    """Poolers invent SQLSTATEs: 08P01 and 0A000 for what they do not pass on."""
    return (error.sqlstate or "").startswith(("08", "0A", "28"))


def _whole_text(error: psycopg.Error) -> str:
    detail = error.diag.message_detail or ""
    return f"{error}\n{detail}"


def _said(error: psycopg.Error, text: str, where: Dsn | Connection, pattern: str | None) -> str:
    """The one line of the server or of libpq that says most, or "" where it might say too much."""
    if error.sqlstate is not None and not error.sqlstate.startswith(_CLASSES_WITHOUT_VALUES):
        return ""
    lines = [error.diag.message_primary or "", *text.splitlines()]
    lines = [line.strip() for line in lines if line.strip()]
    fitting = [line for line in lines if pattern and re.search(pattern, line, re.IGNORECASE)]
    line = (fitting or lines or [""])[0]
    # libpq: connection to server at "h", port 1 failed: FATAL:  why. The place is said already.
    line = re.sub(r"^.* failed: (?:[A-Z]+: +)?", "", line)
    secret = _secret(where)
    return "" if secret and secret in line else line


def _join(what: str, said: str) -> str:
    return f"{what}: {said}" if said else what


def place_of(where: Dsn | Connection) -> str:
    """host:port/database, as every error about the source names it."""
    if isinstance(where, Dsn):
        return str(where)
    try:
        host, port, database = where.info.host, where.info.port, where.info.dbname
    except psycopg.Error:  # libpq reports nothing about a connection that is closed
        return "source"
    else:
        return f"{host or 'localhost'}:{port}/{database}"


def role_of(where: Dsn | Connection) -> str:
    """The role that logged in, quoted as in SQL."""
    try:
        name = where.user if isinstance(where, Dsn) else where.info.user
    except psycopg.Error:
        name = ""
    return sql.Identifier(name or "the_role").as_string(None)


def _secret(where: Dsn | Connection) -> str:
    if isinstance(where, Dsn):
        return str(conninfo_to_dict(where.conninfo).get("password") or "")
    try:
        secret = where.info.password
    except psycopg.Error:
        secret = ""
    return secret
