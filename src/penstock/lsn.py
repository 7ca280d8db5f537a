"""Lsn: a position in the WAL. Parse, print, compare, subtract. Text only at the edge."""

from __future__ import annotations

import re

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Lsn(int):
    """A byte position in one cluster's WAL; prints as Postgres does, `16/B374D848`.

    Compare as integers: as text `0/16B37480` sorts before `0/9A00028`, as positions it comes after.
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """The position that Postgres prints as `text`.

        Raises:
            ValueError: the text is not two hexadecimal numbers around a slash.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"not an LSN: {text!r}, wanted hexadecimal like 16/B374D848")
        return cls((int(match[1], 16) << 32) | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn('{self}')"


ZERO = Lsn(0)
