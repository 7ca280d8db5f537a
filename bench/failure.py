"""What ends a benchmark: something did not arrive, arrived differently, or died."""

from __future__ import annotations


class BenchFailed(Exception):
    """The figures would mean nothing; `tail` is what the part at fault last printed."""

    def __init__(self, what: str, tail: str = "") -> None:
        super().__init__(what)
        self.tail = tail


def last_lines(text: str, count: int = 30) -> str:
    """The end of a log."""
    return "\n".join(text.strip().splitlines()[-count:])
