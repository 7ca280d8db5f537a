"""Values of rarer types as Postgres spells them, so that equal values are equal texts; and the length of an interval.

Each takes what a person writes, and raises ValueError where that is none.
"""

from __future__ import annotations

import ipaddress
import re
from decimal import Decimal

_WORDS = 8
_HOUR = 3_600_000_000  # microseconds
_DAY = 24 * _HOUR
# For Postgres a month has 30 days where intervals are compared, and a day 24 hours.
_UNITS = {
    "year": 360 * _DAY,
    "mon": 30 * _DAY,
    "month": 30 * _DAY,
    "week": 7 * _DAY,
    "day": _DAY,
    "hour": _HOUR,
    "min": _HOUR // 60,
    "minute": _HOUR // 60,
    "sec": _HOUR // 3600,
    "second": _HOUR // 3600,
}
_PART = re.compile(r"\s*([+-]?[0-9]{1,10})\s*([a-z]+?)s?(?=\s|[+-]|$)", re.IGNORECASE)
_CLOCK = re.compile(r"\s*([+-]?)([0-9]{1,10}):([0-5][0-9])(?::([0-5][0-9](?:\.[0-9]{1,6})?))?\s*")
_TIME = re.compile(
    r"([0-9]{2}):([0-5][0-9])(?::([0-5][0-9])(?:\.([0-9]{1,6}))?)?"
    r"\s*(?:[zZ]|([+-][0-9]{2})(?::([0-5][0-9])(?::([0-5][0-9]))?)?)"
)
_MAC = re.compile(r"[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1)*[0-9a-f]{2}|[0-9a-f]+")
_SHORT_MAC, _LONG_MAC = 12, 16
_LAST_HOUR, _LAST_ZONE = 24, 15


def network_address(text: str, name: str) -> str:
    """An inet or a cidr: network_out of Postgres's network.c."""
    given = text.strip()
    _, slash, bits = given.partition("/")
    if "%" in given or (slash and not re.fullmatch("0|[1-9][0-9]{0,2}", bits)):
        raise ValueError
    if name == "cidr":
        found = ipaddress.ip_network(given)
        return f"{_address(found.network_address)}/{found.prefixlen}"
    one = ipaddress.ip_interface(given)
    whole = one.network.prefixlen == one.max_prefixlen
    return _address(one.ip) + ("" if whole else f"/{one.network.prefixlen}")


def _address(given: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """pg_inet_net_ntop, which writes IPv4 within IPv6 with dots."""
    if given.version == 4:
        return str(given)
    words = [given.packed[at] << 8 | given.packed[at + 1] for at in range(0, 2 * _WORDS, 2)]
    # The first of the longest.
    length, begin = max((_zeros(words, at), -at) for at in range(_WORDS))
    begin = -begin
    if length < 2:
        return ":".join(f"{word:x}" for word in words)
    is_inner = begin == 0 and (length == 6 or (length == 5 and words[5] == 0xFFFF))
    tail = [f"{word:x}" for word in words[begin + length :]]
    if is_inner:
        tail[-2:] = [".".join(map(str, given.packed[12:]))]
    return ":".join(f"{word:x}" for word in words[:begin]) + "::" + ":".join(tail)


def _zeros(words: list[int], at: int) -> int:
    """How many there are from a place on."""
    return next((place for place in range(at, _WORDS) if words[place]), _WORDS) - at


def mac_address(text: str, name: str) -> str:
    """A macaddr or macaddr8."""
    given = text.strip().lower()
    digits = re.sub("[:-]", "", given)
    if not _MAC.fullmatch(given) or len(digits) not in (_SHORT_MAC, _LONG_MAC):
        raise ValueError
    if name == "macaddr8" and len(digits) == _SHORT_MAC:
        digits = f"{digits[:6]}fffe{digits[6:]}"
    if name == "macaddr" and len(digits) == _LONG_MAC:
        raise ValueError
    return ":".join(digits[at : at + 2] for at in range(0, len(digits), 2))


def time_with_zone(text: str) -> str:
    """A timetz: two are equal only if their zones are, too."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ValueError
    hour, minute, second, fraction, *offset = found.groups()
    shown = _time_of_day(hour, minute, second or "00", fraction or "")
    return shown + _offset(*(part or "00" for part in offset))


def _time_of_day(hour: str, minute: str, second: str, fraction: str) -> str:
    """Without zeros at the end of its fraction; 24:00:00 is the last."""
    after = fraction.rstrip("0")
    rest = f"{minute}:{second}{'.' + after if after else ''}"
    if int(hour) > _LAST_HOUR or (int(hour) == _LAST_HOUR and rest != "00:00"):
        raise ValueError
    return f"{hour}:{rest}"


def _offset(hour: str, minute: str, second: str) -> str:
    """Of a zone from UTC, without zeros at its end."""
    if abs(int(hour)) > _LAST_ZONE:
        raise ValueError
    parts = [minute, second]
    while parts and parts[-1] == "00":
        parts.pop()
    # An offset of nothing has no sign of its own.
    signed = "+00" if hour == "00" or (hour == "-00" and not parts) else hour
    return ":".join([signed, *parts])


def interval_length(text: str) -> Decimal:
    """Microseconds, as Postgres compares intervals; infinite ones at the ends."""
    given = text.strip()
    if given.lower() in ("infinity", "-infinity"):
        return Decimal(given)
    length, at = Decimal(0), 0
    while (part := _PART.match(given, at)) is not None:
        if part[2].lower() not in _UNITS:
            raise ValueError
        length += int(part[1]) * _UNITS[part[2].lower()]
        at = part.end()
    if given[at:].strip():
        clock = _CLOCK.fullmatch(given, at)
        if clock is None:
            raise ValueError
        seconds = Decimal(clock[4] or 0) * 1_000_000
        size = int(clock[2]) * _HOUR + int(clock[3]) * (_HOUR // 60) + int(seconds)
        length += -size if clock[1] == "-" else size
    elif at == 0:
        raise ValueError
    return length
