"""Dsn: how to reach a Postgres. Prints itself without the password."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.errors import BadUrl

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

_VALUE_SETTINGS = (
    "-c datestyle=ISO,MDY -c intervalstyle=postgres -c extra_float_digits=1 "
    "-c bytea_output=hex -c timezone=UTC -c lc_monetary=C"
)


@dataclass(frozen=True)
class Dsn:
    """A libpq connection string that never shows its password."""

    _conninfo: str = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Dsn:
        """Read a URL or a libpq keyword string.

        Raises:
            BadUrl: libpq cannot read it, or it names no host or database.
        """
        scheme = text.split("://", 1)[0] if "://" in text else None
        if scheme is not None and scheme not in ("postgres", "postgresql"):
            raise BadUrl(
                f"the URL starts with {scheme!r}, wanted postgresql://",
                do="write postgresql://user:password@host:5432/database",
            )
        try:
            parts = conninfo_to_dict(text)
        except psycopg.ProgrammingError as error:
            raise BadUrl(
                f"libpq cannot read the connection string: {_without_secrets(str(error), text)}",
                do="write postgresql://user:password@host:5432/database; percent-encode odd characters",
            ) from None
        if not parts.get("dbname"):
            raise BadUrl(
                "the connection string names no database",
                do="write postgresql://user:password@host:5432/database",
            )
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

    def for_values(self, application: str, **options: str) -> str:
        """Conninfo of a connection that reads or writes values in their text form.

        The text of a date, a float or a money depends on these settings; one spelling everywhere
        is what lets values travel as text.
        """
        own = str(conninfo_to_dict(self._conninfo).get("options") or "")
        return self.with_options(
            application_name=application,
            client_encoding="UTF8",
            options=f"{own} {_VALUE_SETTINGS}".strip(),
            **options,
        )

    @property
    def database(self) -> str:
        """The database's name."""
        return str(conninfo_to_dict(self._conninfo)["dbname"])

    @property
    def user(self) -> str:
        """The role, as far as the string names it."""
        return str(conninfo_to_dict(self._conninfo).get("user") or "")

    def __str__(self) -> str:
        parts = conninfo_to_dict(self._conninfo)
        host = parts.get("host") or parts.get("hostaddr") or "localhost"
        return f"{host}:{parts.get('port') or 5432}/{parts['dbname']}"

    def __repr__(self) -> str:
        return f"Dsn({self})"


def _without_secrets(message: str, text: str) -> str:
    """libpq's complaint, cut where it would quote the string it was given."""
    head = message.split(":", 1)[0].split('"', 1)[0].strip()
    return head if head and head not in text else "it is not a valid connection string"


def connect(dsn: Dsn, application: str, *, autocommit: bool = True) -> psycopg.Connection[Any]:
    """An ordinary SQL connection with the settings penstock relies on."""
    return psycopg.connect(dsn.for_values(application), autocommit=autocommit)
