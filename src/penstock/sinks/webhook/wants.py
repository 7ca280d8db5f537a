"""What one receiver wants, as deliveries use it; made from what is stored, or from the pipeline file."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.sinks.webhook.formats import Format
from penstock.sinks.webhook.signature import key_of
from penstock.table import TableRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.sinks.webhook.filters import Filter
    from penstock.sinks.webhook.options import NamedReceiver, Receiver, WebhookOptions
    from penstock.sinks.webhook.rows import Kept
    from penstock.table import TableName


@dataclass(frozen=True)
class Want:
    """A receiver, which documents it wants, and in which form."""

    url: str = field(repr=False)
    tables: tuple[TableRule, ...]
    operations: frozenset[str]
    format: Format
    batch_size: int
    secrets: tuple[tuple[str, float | None], ...] = field(repr=False)
    filter: Filter | None = None

    @classmethod
    def of(cls, kept: Kept, fixed: Mapping[str, NamedReceiver]) -> Want:
        """A subscription's. Secrets of those that the file names are in the file alone."""
        wanted, secrets = kept.wanted, kept.secrets
        named = fixed.get(kept.id)
        if named is not None and named.secret:
            secrets = tuple((secret, None) for secret in named.secrets)
        return cls(
            url=wanted["url"],
            tables=tuple(TableRule.parse(text) for text in wanted["tables"]),
            operations=frozenset(wanted["operations"]),
            format=Format(wanted["format"]),
            batch_size=int(wanted["batch_size"]),
            secrets=secrets,
            filter=_filter_of(wanted.get("filter")),
        )

    def chooses(self, table: TableName, op: str) -> bool:
        """Whether documents of a table and an operation are wanted; empty lists want all."""
        if self.operations and op not in self.operations:
            return False
        return not self.tables or any(rule.matches(table) for rule in self.tables)

    @property
    def keys(self) -> list[bytes]:
        """What signs, at this moment."""
        now = time.time()
        return [key for key, until in self._all_keys if until is None or until > now]

    @cached_property
    def _all_keys(self) -> list[tuple[bytes, float | None]]:
        return [(key_of(secret), until) for secret, until in self.secrets]


def _filter_of(text: str | None) -> Filter | None:
    if text is None:
        return None
    from penstock.sinks.webhook.filters import Filter

    return Filter(text)


def as_stored(wanted: Receiver) -> dict[str, Any]:
    """What is stored of it: all but the secret."""
    return {
        "url": wanted.url,
        "tables": [str(rule) for rule in wanted.tables],
        "operations": list(wanted.operations),
        "format": wanted.format.value,
        "batch_size": wanted.batch_size,
        "filter": None if wanted.filter is None else wanted.filter.text,
    }


def fixed_of(options: WebhookOptions) -> dict[str, NamedReceiver]:
    """Those that the file names, by their ids; where it says none, by one that stays the same while the URL does."""
    found = {each.id: each for each in options.urls if each.id is not None}
    for each in options.urls:
        if each.id is not None:
            continue
        name = made_id(each.url)
        number = 1
        while (made := name if number == 1 else f"{name}_{number}") in found:
            number += 1
        found[made] = each
    return found


def made_id(url: str) -> str:
    """What an entry of the file is called that says no id; a number is added to it for further ones of the URL."""
    return f"file_{hashlib.sha256(url.encode()).hexdigest()[:12]}"
