"""What can be said of a receiver before anything is sent to it."""

from __future__ import annotations

import urllib.parse
from typing import TYPE_CHECKING

from penstock.errors import BadValue

if TYPE_CHECKING:
    from penstock.sinks.webhook.addresses import AddressRule


def problem_with(url: str, addresses: AddressRule) -> BadValue | None:
    """Why no request would be sent to a URL; None where one would. Asks the name server.

    Who sends asks again, of the address that a connection is made to.
    """
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        refused = addresses.refused_of(host, port)
    except (OSError, UnicodeError):
        return BadValue(f"the name {host} cannot be resolved", "url", "correct the URL")
    if refused is None:
        return None
    return BadValue(
        f"{host} is at {refused}, which is private, loopback, link-local or reserved",
        "url",
        f"if that is meant, write allow: [{refused}] to the sink in the pipeline file",
    )
