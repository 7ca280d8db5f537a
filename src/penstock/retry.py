"""When to try again. Decided here alone, from the error's remedy."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import lru_cache

from penstock.errors import PenstockError, Remedy, error_classes
from penstock.timing import timing


@dataclass
class BackOff:
    """Waits that double up to a limit, with some jitter; a success starts over."""

    first_seconds: float = field(default_factory=lambda: timing().retry_first_seconds)
    limit_seconds: float = field(default_factory=lambda: timing().retry_last_seconds)
    attempt_count: int = 0

    def next_seconds(self) -> float:
        """How long to wait before the next attempt."""
        # Bounded before it is a float: there may be thousands of attempts.
        doubled = 2 ** min(self.attempt_count, 62)
        wait: float = min(self.first_seconds * doubled, self.limit_seconds)
        self.attempt_count += 1
        return wait * random.uniform(0.8, 1.2)  # noqa: S311

    def seconds_after(self, error: PenstockError) -> float:
        """The same, after an error; one that only a person can fix is not tried again so soon."""
        wait = self.next_seconds()
        return wait if is_temporary(error) else max(wait, timing().retry_person_seconds)

    def succeed(self) -> None:
        """The attempt worked."""
        self.attempt_count = 0


def slow_back_off() -> BackOff:
    """For what is expensive to try, or waits for something outside."""
    return BackOff(timing().slow_retry_first_seconds, timing().slow_retry_last_seconds)


def is_temporary(error: PenstockError) -> bool:
    """Whether it can pass with time, so that waiting helps."""
    return error.remedy is Remedy.TIME


def may_pass(text: str) -> bool:
    """The same of an error that was stored as text: of its code, with which it begins."""
    return _code_is_temporary(text.split(" ", 1)[0])


@lru_cache(maxsize=1024)
def _code_is_temporary(code: str) -> bool:
    cls = error_classes().get(code)
    return cls is not None and cls.remedy is Remedy.TIME
