"""Connections to the NATS that a log is on: those of the driver, and those of tasks elsewhere."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.brokers.errors import OF_LOG
from penstock.brokers.nats.client import Connection
from penstock.log.nats.options import NatsLogOptions
from penstock.vault import seal, unseal

if TYPE_CHECKING:
    from collections.abc import Callable

# How to reach the servers, and who we are there.
_FIELDS = ("url", "timeout", "credentials", "nkey", "user", "password", "token", "tls")


@dataclass(frozen=True)
class Settings:
    """How to reach the servers, as JSON. Picklable; where it holds secrets, they go through the vault."""

    text: str

    @classmethod
    def of(cls, options: NatsLogOptions) -> Settings:
        """As the pipeline file says."""
        plain: dict[str, Any] = {}
        for key in _FIELDS:
            value = getattr(options, key)
            if value is None:
                continue
            secret = getattr(value, "get_secret_value", None)
            if secret is not None:
                value = secret()
            elif hasattr(value, "model_dump"):
                value = {k: str(v) for k, v in value.model_dump().items() if v is not None}
            plain[key] = value if isinstance(value, list | dict | float) else str(value)
        return cls(json.dumps(plain, sort_keys=True))

    @property
    def options(self) -> NatsLogOptions:
        """The same as options."""
        return NatsLogOptions.model_validate(json.loads(self.text))

    def __repr__(self) -> str:
        return "Settings(…)"

    def __reduce__(self) -> tuple[Callable[..., Settings], tuple[Any, ...]]:
        if not {"user", "password", "token"} & json.loads(self.text).keys():
            return Settings, (self.text,)
        return _unsealed, seal(self.text)


def _unsealed(path: str, name: str) -> Settings:
    return Settings(unseal(path, name))


_connections: dict[tuple[Settings, int], Connection] = {}
_lock = threading.Lock()


def connection_of(settings: Settings, place: str) -> Connection:
    """The connection of this process for these settings, opened anew where it was lost.

    Raises:
        LogUnreachable: the servers are away.
    """
    key = settings, os.getpid()
    with _lock:
        found = _connections.get(key)
        if found is not None and found.is_open:
            return found
        if found is not None:
            found.close()
        connection = Connection(settings.options, place, OF_LOG)
        connection.open()
        _connections[key] = connection
        return connection
