"""What a person may say about NATS, whoever uses it. Knows no client: nothing here needs the extra."""

import enum
import re
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, BeforeValidator, SecretStr

from penstock.errors import BadValue
from penstock.options import TlsOptions, fault, wanted


class Storage(enum.Enum):
    """Where a stream has its messages."""

    FILE = "file"
    MEMORY = "memory"


def _read_servers(given: Any) -> list[str]:
    servers = [given] if isinstance(given, str) else given
    if not isinstance(servers, list) or not servers:
        raise wanted("nats://host:port, or a list of them")
    for each in servers:
        if not isinstance(each, str) or not re.match(r"(nats|tls|ws|wss)://[^/\s]+$", each):
            raise wanted("nats://host:port or tls://host:port")
        try:
            is_one = urllib.parse.urlsplit(each).hostname and urllib.parse.urlsplit(each).port != 0
        except ValueError:
            is_one = False
        if not is_one:
            raise wanted("nats://host:port or tls://host:port, with a port up to 65535")
        if "@" in each:
            raise fault(
                BadValue(
                    "a URL with a user in it, wanted nats://host:port",
                    do="write user: and password:, token: or credentials: beside it",
                )
            )
    if len({each.startswith("ws") for each in servers}) > 1:
        raise wanted("URLs of WebSockets (ws, wss) or others (nats, tls), not both")
    return servers


def _read_stream(given: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,200}", given):
        raise wanted("the name of a stream: letters, digits, '_' and '-'")
    return given


class Connecting(Protocol):
    """What a connection needs to know."""

    @property
    def url(self) -> Sequence[str]:
        """Servers of one cluster."""
        ...

    @property
    def timeout(self) -> float:
        """How long an answer is waited for, in seconds."""
        ...

    @property
    def credentials(self) -> Path | None:
        """A file."""
        ...

    @property
    def nkey(self) -> Path | None:
        """A file with a seed."""
        ...

    @property
    def user(self) -> str | None:
        """A user's name."""
        ...

    @property
    def password(self) -> SecretStr | None:
        """Its password."""
        ...

    @property
    def token(self) -> SecretStr | None:
        """A token."""
        ...

    @property
    def tls(self) -> TlsOptions | None:
        """Certificates."""
        ...


Servers = Annotated[list[str], BeforeValidator(_read_servers)]
"""URLs: a text, or a list of texts."""

StreamName = Annotated[str, AfterValidator(_read_stream)]
"""The name of one stream."""
