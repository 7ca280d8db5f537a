"""Where penstock's HTTP server listens and whom it believes: options of the pipeline file.

Opens no socket. What is served there is for `penstock.server` to say.
"""

import ipaddress
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainValidator

from penstock.errors import BadValue, Exposed
from penstock.options import wanted

DEFAULT_PORT = 8750
SHORTEST_TOKEN = 16

_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.%]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")
_WANTED = f"host:port, such as 127.0.0.1:{DEFAULT_PORT} or [::1]:{DEFAULT_PORT}"


@dataclass(frozen=True)
class Address:
    """A host and a port; port 0 takes one that is free."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """The address that a text means.

        Raises:
            ValueError: it means none.
        """
        match = _ADDRESS.fullmatch(text.strip())
        if match is None:
            raise ValueError(text)
        host, port = match[1] or match[2], int(match[3] or DEFAULT_PORT)
        if port > 65535 or (match[1] and not _is_ip(host)):
            raise ValueError(text)
        # A port alone: systems read digits as an address of four bytes, 0.0.34.46 here.
        if host.isdigit():
            raise ValueError(text)
        return cls(host, port)

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine can reach it."""
        if self.host == "localhost":
            return True
        return _is_ip(self.host) and ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Token(str):
    """A secret that a request must carry. Not shown by accident."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Token(…)"


@dataclass(frozen=True)
class ServerOptions:
    """The keys `listen`, `token`, `cert` and `key` of the file. `listen` None: no server."""

    listen: Address | None = None
    token: Token | None = None
    cert: Path | None = None
    key: Path | None = None

    def at(self, listen: str | None) -> "ServerOptions":
        """The same, listening where the command line says; None leaves it to the file.

        Raises:
            BadValue: that is no address, or one that needs a token.
        """
        if listen is None:
            return self
        try:
            address = Address.parse(listen)
        except ValueError:
            what = f"{listen!r} is no address, wanted {_WANTED}"
            raise BadValue(what, "--listen", "write host:port") from None
        changed = replace(self, listen=address)
        if (missing := changed.fault()) is not None:
            raise BadValue(missing.what, "--listen", missing.do)
        return changed

    def fault(self) -> BadValue | None:
        """What is missing for this address, or does not fit."""
        if (self.cert is None) != (self.key is None):
            have, lack = ("cert", "key") if self.key is None else ("key", "cert")
            return BadValue(f"{have} without {lack}, wanted both or neither", do=f"write {lack}:")
        if self.listen is not None and not self.listen.is_loopback and self.token is None:
            return BadValue(
                f"{self.listen} can be reached from other machines, wanted a token beside it",
                do="write token: ${PENSTOCK_TOKEN}, or listen: 127.0.0.1:8750",
            )
        if self._is_short and self.listen is not None and not self.listen.is_loopback:
            return BadValue(
                f"a short token, and {self.listen} can be reached from other machines, wanted at least"
                f" {SHORTEST_TOKEN} characters",
                do="make one with: openssl rand -hex 16",
            )
        return None

    def weakness(self) -> Exposed | None:
        """What is no fault, as nobody but this machine can reach the server, and should be otherwise."""
        if not self._is_short:
            return None
        return Exposed(
            f"the token is shorter than {SHORTEST_TOKEN} characters: other users of this machine may guess it",
            "token",
            "make one with: openssl rand -hex 16",
        )

    @property
    def _is_short(self) -> bool:
        return self.token is not None and len(self.token) < SHORTEST_TOKEN


def _read_address(given: Any) -> Address:
    if isinstance(given, Address):
        return given
    try:
        return Address.parse(given) if isinstance(given, str) else _none()
    except ValueError:
        raise wanted(_WANTED) from None


def _none() -> Address:
    raise ValueError


def _read_token(given: Any) -> Token:
    # Never quoted in an error: whatever stands there is secret.
    if not isinstance(given, str) or not given.isprintable() or not given.isascii():
        raise wanted("a token of printable ASCII characters")
    if not given or given != given.strip():
        raise wanted(f"a token of at least {SHORTEST_TOKEN} characters, without blanks around it")
    return Token(given)


AddressOption = Annotated[Address, PlainValidator(_read_address)]
TokenOption = Annotated[Token, PlainValidator(_read_token)]
