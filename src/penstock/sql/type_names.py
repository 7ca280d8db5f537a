"""What Postgres calls its own types, with their modifiers: `format_type`, for who has no server to ask."""

from __future__ import annotations

from psycopg import adapters

_BPCHAR, _VARCHAR, _BIT, _VARBIT, _NUMERIC, _INTERVAL = 1042, 1043, 1560, 1562, 1700, 1186
_TIMES = {1083: "time", 1114: "timestamp", 1184: "timestamp", 1266: "time"}
_HEADER = 4  # what the modifiers of texts and numerics are too large by

# The fields that an interval is confined to, by the bits of its modifier.
_FIELDS = {
    0x0004: " year",
    0x0002: " month",
    0x0008: " day",
    0x0400: " hour",
    0x0800: " minute",
    0x1000: " second",
    0x0006: " year to month",
    0x0408: " day to hour",
    0x0C08: " day to minute",
    0x1C08: " day to second",
    0x0C00: " hour to minute",
    0x1C00: " hour to second",
    0x1800: " minute to second",
}
_FULL_PRECISION = 0xFFFF


def type_name(oid: int, modifier: int) -> str:
    """The name of a type as a table declares it; empty for one that is not Postgres's own."""
    known = adapters.types.get(oid)
    if known is None:
        return ""
    if known.oid != oid:  # of an array the type of its elements is known, by both
        element = type_name(known.oid, modifier)
        return f"{element}[]" if element else ""
    if modifier < 0:
        return {_BPCHAR: "bpchar", _BIT: '"bit"'}.get(oid, known.regtype)
    if oid in _TIMES:
        return known.regtype.replace(_TIMES[oid], f"{_TIMES[oid]}({modifier})", 1)
    return known.regtype + _suffix(oid, modifier)


def _suffix(oid: int, modifier: int) -> str:
    if oid in (_BPCHAR, _VARCHAR):
        return f"({modifier - _HEADER})"
    if oid in (_BIT, _VARBIT):
        return f"({modifier})"
    if oid == _NUMERIC:
        scale = (((modifier - _HEADER) & 0x7FF) ^ 1024) - 1024
        return f"({((modifier - _HEADER) >> 16) & 0xFFFF},{scale})"
    if oid == _INTERVAL:
        precision = modifier & 0xFFFF
        digits = "" if precision == _FULL_PRECISION else f"({precision})"
        return f"{_FIELDS.get((modifier >> 16) & 0x7FFF, '')}{digits}"
    return ""
