"""Kinds of sink by name: entry points of the group `penstock.sinks`, each a `SinkKind` or a class of one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock.options import Options
from penstock.registry import Registry, find_problem
from penstock.sinks.kind import SinkKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from importlib.metadata import EntryPoint

GROUP = "penstock.sinks"

# The same as in pyproject.toml.
BUILT_IN = {
    "postgres": "penstock.sinks.postgres.kind:PostgresKind",
    "file": "penstock.sinks.file.kind:FileKind",
    "stdout": "penstock.sinks.stdout.kind:StdoutKind",
    "kafka": "penstock.sinks.kafka.kind:KafkaKind",
    "nats": "penstock.sinks.nats.kind:NatsKind",
    "webhook": "penstock.sinks.webhook.kind:WebhookKind",
    "search": "penstock.sinks.search.kind:SearchKind",
}


def sink_kinds(
    entry_points: Callable[[], Iterable[EntryPoint]] | None = None,
) -> Registry[SinkKind[Any]]:
    """The kinds that are installed, or that these entry points offer beside penstock's own."""
    return Registry(GROUP, "sink", BUILT_IN, _find_problem, entry_points)


def import_workers() -> None:
    """Import the executor halves of penstock's own kinds, for a process that is to be forked.

    Whatever other packages offer: tasks of a pipeline that uses none of it run in that process.
    """
    for name in BUILT_IN:
        for module in KINDS.own(name).worker_modules:
            importlib.import_module(module)


def _find_problem(found: Any, name: str) -> str | None:
    if not isinstance(found, SinkKind):
        return "is no SinkKind"
    if problem := find_problem(found, name, Options):
        return problem
    if "kind" not in found.options.keys():  # noqa: SIM118 - a method of the model, not of a dict
        return "has an options model without `kind`"
    return None


KINDS = sink_kinds()
"""Those of this installation."""
