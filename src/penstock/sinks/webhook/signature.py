"""Signatures as Standard Webhooks 1.0 says: HMAC-SHA256 over id, time and the very bytes that are sent.

A secret is `whsec_` and 24 to 64 bytes as base64. While one is being replaced both sign, so that a receiver may take
either.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

from penstock.errors import BadValue

if TYPE_CHECKING:
    from collections.abc import Sequence

PREFIX = "whsec_"
_LEAST_BYTES, _MOST_BYTES = 24, 64


def new_secret() -> str:
    """A secret that nobody knows yet."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def key_of(secret: str) -> bytes:
    """The bytes that a secret stands for.

    Raises:
        BadValue: it is none; what was given is not repeated.
    """
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not _LEAST_BYTES <= len(key) <= _MOST_BYTES:
        raise BadValue(
            f"no secret, wanted {PREFIX} and {_LEAST_BYTES} to {_MOST_BYTES} bytes as base64",
            "secret",
            "make one: echo whsec_$(openssl rand -base64 32)",
        )
    return key


def signatures(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature for each key."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return " ".join(
        "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys
    )
