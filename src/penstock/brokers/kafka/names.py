"""Names of topics: what Kafka takes, and which two it does not take beside one another. Knows no client."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_LONGEST = 249


def too_long(topic: str) -> str | None:
    """What is wrong with a name that is too long; None where it is not."""
    if len(topic) <= _LONGEST:
        return None
    return f"the name of topic {topic} has {len(topic)} characters, Kafka takes {_LONGEST}"


def colliding(wanted: Iterable[str], known: Collection[str]) -> dict[str, str]:
    """Topics that are not there and cannot be beside another one, which is there or wanted as well; by topic, that one.

    Metrics of a broker have `_` for each dot, so that it refuses a name which differs from another one in these alone.
    """
    found, seen = {}, {each.replace(".", "_"): each for each in sorted(known)}
    for topic in sorted(set(wanted) - set(known)):
        other = seen.setdefault(topic.replace(".", "_"), topic)
        if other != topic:
            found[topic] = other
    return found
