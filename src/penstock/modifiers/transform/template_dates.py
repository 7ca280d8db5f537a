"""Moments in templates, by Go's layouts: 2006-01-02 15:04:05. In UTC where a text says no zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from penstock.modifiers.transform.template_values import shown

_TOKEN = re.compile(
    r"2006|January|Monday|Jan|Mon|MST|Z07:00|Z0700|-07:00|-0700|-07|01|02|03|04|05|06|15|_2|PM|pm"
    r"|[.,]0+(?![0-9])|[.,]9+(?![0-9])|[12345]"
)
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_ZONE = "[+-][0-9]{2}"
_PATTERNS = {
    "2006": "(?P<year>[0-9]{4})",
    "06": "(?P<short_year>[0-9]{2})",
    "January": f"(?P<long_month>{'|'.join(_MONTHS)})",
    "Jan": f"(?P<short_month>{'|'.join(each[:3] for each in _MONTHS)})",
    "01": "(?P<month>[0-9]{2})",
    "1": "(?P<month>[0-9]{1,2})",
    "02": "(?P<day>[0-9]{2})",
    "2": "(?P<day>[0-9]{1,2})",
    "_2": " ?(?P<day>[0-9]{1,2})",
    "15": "(?P<hour>[0-9]{2})",
    "03": "(?P<half_hour>[0-9]{2})",
    "3": "(?P<half_hour>[0-9]{1,2})",
    "04": "(?P<minute>[0-9]{2})",
    "4": "(?P<minute>[0-9]{1,2})",
    "05": r"(?P<second>[0-9]{2})(?:[.,](?P<rest>[0-9]{1,9}))?",
    "5": r"(?P<second>[0-9]{1,2})(?:[.,](?P<rest>[0-9]{1,9}))?",
    "PM": "(?P<half>AM|PM)",
    "pm": "(?P<half>am|pm)",
    "Monday": f"(?:{'|'.join(_DAYS)})",
    "Mon": f"(?:{'|'.join(each[:3] for each in _DAYS)})",
    "MST": "(?:UTC|GMT)",
    "Z07:00": f"(?:Z|(?P<zone>{_ZONE}:[0-9]{{2}}))",
    "Z0700": f"(?:Z|(?P<zone>{_ZONE}[0-9]{{2}}))",
    "-07:00": f"(?P<zone>{_ZONE}:[0-9]{{2}})",
    "-0700": f"(?P<zone>{_ZONE}[0-9]{{2}})",
    "-07": f"(?P<zone>{_ZONE})",
}
_OF_THE_PAST = 69  # two digits of a year from which on they are of the 20th century


def to_date(layout: Any, text: Any) -> datetime:
    """The moment that a text is, read by a layout."""
    given, pattern, at = shown(layout), "", 0
    for match in _TOKEN.finditer(given):
        pattern += re.escape(given[at : match.start()])
        # A fraction is read behind seconds, whether the layout has one or not.
        pattern += _PATTERNS.get(match[0], "")
        at = match.end()
    try:
        found = re.fullmatch(pattern + re.escape(given[at:]), shown(text))
    except re.error:
        raise ValueError("toDate: the layout names a part twice") from None
    if found is None:
        raise ValueError("toDate: the text is not written by the layout")
    try:
        return _moment(found.groupdict())
    except (ValueError, OverflowError):
        raise ValueError("toDate: there is no such moment") from None


def _moment(parts: dict[str, str | None]) -> datetime:
    def number(name: str, otherwise: int) -> int:
        return int(parts.get(name) or otherwise)

    year = number("year", 1)
    if parts.get("short_year"):
        year = number("short_year", 0)
        year += 1900 if year >= _OF_THE_PAST else 2000
    month = number("month", 1)
    if name := parts.get("long_month") or parts.get("short_month"):
        month = [each[:3] for each in _MONTHS].index(name[:3]) + 1
    hour = number("hour", 0)
    if parts.get("half_hour"):
        hour = number("half_hour", 0)
        if parts.get("half"):
            hour = hour % 12 + (12 if str(parts["half"]).lower() == "pm" else 0)
    micros = int((parts.get("rest") or "0").ljust(6, "0")[:6])
    zone = (parts.get("zone") or "+0000").replace(":", "").ljust(5, "0")
    offset = timedelta(hours=int(zone[:3]), minutes=int(zone[0] + zone[3:]))
    tzinfo = timezone(offset) if offset else UTC
    return datetime(
        year,
        month,
        number("day", 1),
        hour,
        number("minute", 0),
        number("second", 0),
        micros,
        tzinfo=tzinfo,
    )


def date(layout: Any, moment: Any) -> str:
    """A moment, written by a layout, in UTC."""
    if not isinstance(moment, datetime):
        raise ValueError("date: a moment is wanted, such as toDate gives")  # noqa: TRY004
    at = moment.astimezone(UTC)
    hour = at.hour % 12 or 12
    half = "PM" if at.hour >= 12 else "AM"
    written = {
        "2006": f"{at.year:04d}",
        "06": f"{at.year % 100:02d}",
        "January": _MONTHS[at.month - 1],
        "Jan": _MONTHS[at.month - 1][:3],
        "01": f"{at.month:02d}",
        "1": str(at.month),
        "02": f"{at.day:02d}",
        "2": str(at.day),
        "_2": f"{at.day:2d}",
        "15": f"{at.hour:02d}",
        "03": f"{hour:02d}",
        "3": str(hour),
        "04": f"{at.minute:02d}",
        "4": str(at.minute),
        "05": f"{at.second:02d}",
        "5": str(at.second),
        "PM": half,
        "pm": half.lower(),
        "Monday": _DAYS[at.weekday()],
        "Mon": _DAYS[at.weekday()][:3],
        "MST": "UTC",
        "Z07:00": "Z",
        "Z0700": "Z",
        "-07:00": "+00:00",
        "-0700": "+0000",
        "-07": "+00",
    }

    def one(match: re.Match[str]) -> str:
        token = match[0]
        if token[0] not in ".,":
            return written[token]
        digits = f"{at.microsecond:06d}".ljust(len(token) - 1, "0")[: len(token) - 1]
        if token[1] == "9":
            digits = digits.rstrip("0")
        return token[0] + digits if digits else ""

    return _TOKEN.sub(one, shown(layout))


def unix_epoch(moment: Any) -> str:
    """Seconds since 1970."""
    if not isinstance(moment, datetime):
        raise ValueError("unixEpoch: a moment is wanted, such as toDate gives")  # noqa: TRY004
    return str((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1))
