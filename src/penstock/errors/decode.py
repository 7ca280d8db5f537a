"""PEN-4xx: bytes that are not what the protocol says."""

from __future__ import annotations

from penstock.errors.base import PenstockError, Remedy


class DecodeError(PenstockError):
    """Bytes that are not a pgoutput message where one must be."""

    code = "PEN-401"


class SchemaUnreadable(DecodeError):
    """A document that describes how tables changed does not parse."""

    code = "PEN-402"
    remedy = Remedy.OPERATOR
