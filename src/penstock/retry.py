"""When to try again. Decided here alone, from the error's remedy."""

from __future__ import annotations

import random
from dataclasses import dataclass

from penstock.errors import PenstockError, Remedy

_PERSON_SECONDS = 10.0


@dataclass
class BackOff:
    """Waits that double up to a limit, with some jitter; a success starts over."""

    first_seconds: float = 0.2
    limit_seconds: float = 15.0
    attempt_count: int = 0

    def next_seconds(self) -> float:
        """How long to wait before the next attempt."""
        wait: float = min(self.first_seconds * 2**self.attempt_count, self.limit_seconds)
        self.attempt_count += 1
        return wait * random.uniform(0.8, 1.2)  # noqa: S311

    def seconds_after(self, error: PenstockError) -> float:
        """The same, after an error; one that only a person can fix is not tried again so soon."""
        wait = self.next_seconds()
        return wait if is_temporary(error) else max(wait, _PERSON_SECONDS)

    def succeed(self) -> None:
        """The attempt worked."""
        self.attempt_count = 0


def is_temporary(error: PenstockError) -> bool:
    """Whether it can pass with time, so that waiting helps."""
    return error.remedy is Remedy.TIME
