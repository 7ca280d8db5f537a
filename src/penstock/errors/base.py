"""The root of the tree, and how an error is recognised in the text that Spark makes of it."""

from __future__ import annotations

import enum
import re
from typing import ClassVar

from penstock.text import printable


class Remedy(enum.Enum):
    """What fixes an error: waiting, a person, or nobody (a defect)."""

    TIME = "time"
    OPERATOR = "operator"
    NOBODY = "nobody"


class PenstockError(Exception):
    """Found beside wanted, where it happened, and what to do.

    Args are positional and all are strings, so that the error can be pickled.
    """

    code: ClassVar[str] = "PEN-900"
    remedy: ClassVar[Remedy] = Remedy.NOBODY
    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, where: str = "", do: str = "") -> None:
        # Sinks of other packages raise some, with a path or an exception in place of its text.
        self.what, self.where, self.do = str(what), str(where), str(do)
        super().__init__(self.what, self.where, self.do)

    def __str__(self) -> str:
        place = f" {printable(self.where)}:" if self.where else ""
        advice = f"\n  Do: {printable(self.do)}" if self.do else ""
        return f"{self.code}{place} {printable(self.what)}{advice}"


def _descendants(root: type[PenstockError]) -> list[type[PenstockError]]:
    return [root, *(each for child in root.__subclasses__() for each in _descendants(child))]


def error_classes() -> dict[str, type[PenstockError]]:
    """Every error class by its code; not those that another package derives from one."""
    return {cls.code: cls for cls in reversed(_descendants(PenstockError))}


_FLATTENED = re.compile(r"(PEN-\d{3}) (?:(.*?): )?(.*?)(?:\n\s*Do: ([^\n]*))?(?:\n|$)")


def recognise(text: str) -> PenstockError | None:
    """The PenstockError inside a text that Spark has flattened, or None."""
    match = _FLATTENED.search(text)
    if match is None:
        return None
    code, where, what, do = match.groups()
    cls = error_classes().get(code, PenstockError)
    return cls(what, where or "", do or "")
