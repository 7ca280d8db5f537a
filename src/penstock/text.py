"""Text of others in penstock's lines: names, expressions, what servers say.

A new line in it would begin a line that penstock has not written, an escape sequence would have the
terminal show something else than is there.
"""

from __future__ import annotations

import re

# Control characters, line and paragraph separators, what turns the direction of writing, halves of
# characters.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""The text on one line, with what cannot be seen spelled as `\n`, `\x1b`, `\u202e`."""
    return _UNPRINTABLE.sub(_spelled, text)


def printable_lines(text: str) -> str:
    """The same for a text that may have several lines, such as an error with its advice."""
    return "\n".join(map(printable, text.split("\n")))


def _spelled(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def counted(count: int, noun: str) -> str:
    """`1 table`, `2,000 tables`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def size_text(count: int) -> str:
    """A number of bytes in the unit that a person would take."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
