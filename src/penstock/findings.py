"""What `penstock check` finds: an error that somebody would meet, reported beforehand.

Knows neither sources nor sinks: both find such things.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from penstock.errors import PenstockError

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """One fault: the error that `run` would end with, a warning, or what is meant to be so."""

    error: PenstockError
    severity: Severity = "error"

    @property
    def code(self) -> str:
        """The stable code, PEN-nnn."""
        return self.error.code

    @property
    def place(self) -> str:
        """Where: server and database, table, publication or slot."""
        return self.error.where

    @property
    def what(self) -> str:
        """What was found beside what was wanted."""
        return self.error.what

    @property
    def do(self) -> str:
        """The SQL or the setting that fixes it."""
        return self.error.do

    def of_source(self, source_id: str) -> Finding:
        """The finding, such that it says which of several sources it is about."""
        error = self.error
        return replace(self, error=type(error)(error.what, f"{source_id}/{error.where}", error.do))
