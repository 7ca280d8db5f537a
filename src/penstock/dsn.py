"""Dsn: how to reach a Postgres. Prints itself without the password, and is pickled without it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.errors import BadUrl
from penstock.vault import seal, unseal

if TYPE_CHECKING:
    from collections.abc import Callable

# A dead peer is noticed within about a minute even where no data flows, whatever the kernel's
# defaults: without these a black-holed connection hangs for two hours.
_KEEPALIVE = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "45000",
}

# What every session of penstock's is set to, at both ends. They come with the connection, so that
# neither what a role or a database is set to wins, nor PGOPTIONS, nor RESET ALL.
_SESSION_SETTINGS = {
    # Nobody's function, operator or type of the same name is found in place of Postgres's own. Last,
    # pg_temp is not searched first.
    "search_path": "pg_catalog,pg_temp",
    "standard_conforming_strings": "on",
    # A policy would leave rows out without a word; off, it makes the statement fail instead.
    "row_security": "off",
    # It would compile penstock's large queries for longer than they run.
    "jit": "off",
    # The text of a date, a float or a money depends on these; one spelling everywhere is what lets
    # values travel as text. So does the text of an expression.
    "datestyle": "ISO,MDY",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "timezone": "UTC",
    "lc_monetary": "C",
    "xmloption": "content",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
}
_AS_OPTIONS = " ".join(f"-c {name}={value}" for name, value in _SESSION_SETTINGS.items())
# A pooler may leave the options out. Nothing of this is found by the search_path.
_AS_STATEMENT = "SELECT " + ", ".join(
    f"pg_catalog.set_config('{name}', '{value}', false)"
    for name, value in _SESSION_SETTINGS.items()
)


# Only at the start: a password of a keyword string may hold "://".
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True)
class Dsn:
    """A libpq connection string that never shows its password."""

    _conninfo: str = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Dsn:
        """Read a URL or a libpq keyword string.

        Raises:
            BadUrl: libpq cannot read it, or it names neither a database nor a service.
        """
        text = text.strip()
        scheme = _SCHEME.match(text)
        if scheme is not None and scheme[1] not in ("postgres", "postgresql"):
            raise BadUrl(
                f"the URL starts with {scheme[1]!r}, wanted postgresql://",
                do="write postgresql://user:password@host:5432/database",
            )
        try:
            parts = conninfo_to_dict(text)
        except (psycopg.ProgrammingError, UnicodeError) as error:
            raise BadUrl(
                f"libpq cannot read the connection string: {_without_secrets(str(error), text)}",
                do="write postgresql://user:password@host:5432/database; percent-encode odd characters",
            ) from None
        # A service may name the database, in a file that libpq reads when it connects.
        if not parts.get("dbname") and not parts.get("service"):
            raise BadUrl(
                "the connection string names no database",
                do="write postgresql://user:password@host:5432/database",
            )
        _refuse_misread(parts, text)
        return cls(make_conninfo("", **parts))

    @property
    def conninfo(self) -> str:
        """What psycopg connects with, password included. For `connect` only, never for print."""
        return self._conninfo

    def with_options(self, **options: str) -> str:
        """Conninfo with keep-alives and the given parameters, those of the user winning."""
        given = conninfo_to_dict(self._conninfo)
        merged: dict[str, Any] = {**_KEEPALIVE, **given, **options}
        return make_conninfo("", **merged)

    def for_session(self, application: str, **options: str) -> str:
        """Conninfo of a session as penstock has them; whoever connects uses `connect`."""
        own = str(conninfo_to_dict(self._conninfo).get("options") or "")
        return self.with_options(
            application_name=application,
            client_encoding="UTF8",
            options=f"{own} {_AS_OPTIONS}".strip(),
            **options,
        )

    @property
    def database(self) -> str:
        """The database's name; that of the service, where only it knows."""
        parts = conninfo_to_dict(self._conninfo)
        return str(parts.get("dbname") or parts["service"])

    @property
    def has_password(self) -> bool:
        """Whether the string itself holds a password."""
        return bool(conninfo_to_dict(self._conninfo).get("password"))

    @property
    def user(self) -> str:
        """The role, as far as the string names it."""
        return str(conninfo_to_dict(self._conninfo).get("user") or "")

    def __str__(self) -> str:
        parts = conninfo_to_dict(self._conninfo)
        host = parts.get("host") or parts.get("hostaddr")
        if parts.get("service") and not (host and parts.get("dbname")):
            return f"service {parts['service']}"
        return f"{host or 'localhost'}:{parts.get('port') or 5432}/{parts['dbname']}"

    def __repr__(self) -> str:
        return f"Dsn({self})"

    def __reduce__(self) -> tuple[Callable[[str, str], Dsn], tuple[str, str]]:
        """Where tasks find the text: what Spark sends them must not hold it."""
        return _unsealed, seal(self._conninfo)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self


def _unsealed(path: str, name: str) -> Dsn:
    return Dsn(unseal(path, name))


def _refuse_misread(parts: dict[str, Any], text: str) -> None:
    """Stop where libpq took a part of the password for the host, the port or the database.

    It reads `u:p@ss@host` as host `ss@host` and `u:p/ss@host` as port `p`. Such a string cannot
    connect, and `str(dsn)` would print that part of the password.
    """
    ports = str(parts.get("port") or "").split(",")
    if not all(not port or (_PORT.fullmatch(port) and 0 < int(port) < 65536) for port in ports):
        raise BadUrl(
            "the port is not a number from 1 to 65535",
            do="fix the port; in user and password write %2F for /, %40 for @, %3A for :",
        )
    host = str(parts.get("host") or "").removeprefix("@")  # @name: abstract socket namespace
    database = str(parts.get("dbname") or "")
    encoded = "%40" in text or not _SCHEME.match(text)
    if "@" in host or "://" in database or ("@" in database and not encoded):
        raise BadUrl(
            "the host or the database holds an @ or a URL",
            do="in user and password write %40 for @, %2F for /, %3A for :",
        )


# What libpq says before it quotes the string, where those words alone say nothing.
_CUT_SHORT = {
    "missing": "it is neither a URL nor a list of keyword=value",
    "unexpected spaces found in": "it holds spaces",
    "end of string reached when looking for matching": "the [ of an address is not closed",
}


def _without_secrets(message: str, text: str) -> str:
    """libpq's complaint, cut where it would quote the string it was given."""
    head = message.split(":", 1)[0].split('"', 1)[0].strip()
    if head in _CUT_SHORT:
        return _CUT_SHORT[head]
    return head if head and head not in text else "it is not a valid connection string"


# What an administrator allows others is too little for a COPY or a merge of many rows.
LIFT_TIME_LIMITS = (
    "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE name IN"
    " ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout')"
)


def connect(
    dsn: Dsn,
    application: str,
    *,
    autocommit: bool = True,
    replication: bool = False,
    settings: str = "",
) -> psycopg.Connection[Any]:
    """A connection with the settings penstock relies on. Every one is made here.

    Args:
        dsn: where to.
        application: as pg_stat_activity shows it.
        autocommit: of the connection given back.
        replication: have a walsender answer, of the database.
        settings: statements that set more, of one end; their transaction is over.

    Raises:
        psycopg.Error: as libpq and the server say.
    """
    options = {"replication": "database"} if replication else {}
    connection = psycopg.connect(dsn.for_session(application, **options), autocommit=True)
    try:
        connection.execute(f"{_AS_STATEMENT}; {settings}".encode())
        connection.autocommit = autocommit
    except BaseException:
        connection.close()
        raise
    return connection
