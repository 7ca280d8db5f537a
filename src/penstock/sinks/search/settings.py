"""Settings of indexes: how many fields they may have, and for how long they remember deletes. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.sinks.search.options import SearchOptions

FIELD_LIMIT = "index.mapping.total_fields.limit"
GC_DELETES = "index.gc_deletes"
LEAST_FIELDS = 2000
_SERVERS_GC_DELETES = "60s"
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def settings_of(
    properties: Mapping[str, Any], options: SearchOptions, *, is_copy: bool
) -> dict[str, Any]:
    """What an index is made with; of a copy, one that nobody searches yet."""
    found: dict[str, Any] = {
        FIELD_LIMIT: field_limit(properties),
        GC_DELETES: time_text(options.gc_deletes),
    }
    if options.shards is not None:
        found["index.number_of_shards"] = options.shards
    if options.replicas is not None:
        found["index.number_of_replicas"] = options.replicas
    if has_knn(properties):
        found["index.knn"] = True
    if is_copy:
        found["index.refresh_interval"] = "-1"
    return found


def has_knn(properties: Mapping[str, Any]) -> bool:
    """Whether an index with these fields has to have k-NN."""
    return any(each.get("type") == "knn_vector" for each in properties.values())


def field_count(properties: Mapping[str, Any]) -> int:
    """How many fields the server counts, or a few more: those inside of others are fields, too."""
    # A flat_object brings two that nobody has asked for.
    hidden = sum(2 for each in properties.values() if each.get("type") == "flat_object")
    return (
        len(properties) + hidden + sum(len(each.get("fields", ())) for each in properties.values())
    )


def field_limit(properties: Mapping[str, Any]) -> int:
    """How many fields an index is allowed that has these: room for those that are added later."""
    return max(LEAST_FIELDS, 2 * field_count(properties))


def time_text(seconds: float) -> str:
    """A time as the server reads it."""
    return f"{round(seconds * 1000)}ms"


def remembers(settings: Mapping[str, str]) -> float:
    """For how many seconds an index with these settings remembers deletes; 0 where nobody can say."""
    found = _TIME.fullmatch(settings.get(GC_DELETES, _SERVERS_GC_DELETES))
    return 0.0 if found is None else float(found[1]) * _UNITS[found[2]]
