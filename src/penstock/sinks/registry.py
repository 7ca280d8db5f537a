"""Kinds of sink by name: penstock's own and those of other packages, found the same way.

A package offers a kind as an entry point of the group `penstock.sinks`: its name is what `kind:` says in
the pipeline file, its value a `SinkKind`, or a class of one. Nothing of a kind is imported before
somebody asks for it, so that a broken package stands in nobody else's way.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

from penstock.errors import BadValue
from penstock.options import Options
from penstock.sinks.kind import SinkKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from importlib.metadata import EntryPoint

GROUP = "penstock.sinks"

# The same as in pyproject.toml: the metadata of an installation may be older than its code.
BUILT_IN = {
    "postgres": "penstock.sinks.postgres.kind:PostgresKind",
    "file": "penstock.sinks.file.kind:FileKind",
    "stdout": "penstock.sinks.stdout.kind:StdoutKind",
    "kafka": "penstock.sinks.kafka.kind:KafkaKind",
    "nats": "penstock.sinks.nats.kind:NatsKind",
}

_OWN_PACKAGE = "penstock"


def _installed() -> Iterable[EntryPoint]:
    return importlib.metadata.entry_points(group=GROUP)


class Registry:
    """The kinds that are there. May be asked from any thread."""

    def __init__(self, entry_points: Callable[[], Iterable[EntryPoint]] = _installed) -> None:
        self._entry_points = entry_points
        self._offers: dict[str, dict[str, EntryPoint]] | None = None
        self._kinds: dict[str, SinkKind[Any]] = {}

    @property
    def names(self) -> list[str]:
        """What `kind:` may say: penstock's own, then others by name."""
        return [*BUILT_IN, *sorted(self._others().keys() - BUILT_IN.keys())]

    def find(self, name: str) -> SinkKind[Any] | None:
        """The kind of a name, the same one each time; None when nobody offers it.

        Raises:
            BadValue: two packages offer it, or what is offered is none.
        """
        if name not in self._kinds:
            kind = self._load(name)
            if kind is None:
                return None
            self._kinds.setdefault(name, kind)
        return self._kinds[name]

    def _others(self) -> dict[str, dict[str, EntryPoint]]:
        """What other packages offer, by name and value."""
        if self._offers is None:
            offers: dict[str, dict[str, EntryPoint]] = {}
            for entry in self._entry_points():
                if _package(entry) != _OWN_PACKAGE:
                    offers.setdefault(entry.name, {})[entry.value] = entry
            self._offers = offers
        return self._offers

    def _load(self, name: str) -> SinkKind[Any] | None:
        offers = self._others().get(name, {})
        own = BUILT_IN.get(name)
        taking = [_package(entry) for value, entry in offers.items() if value != own]
        if own is not None and taking:
            raise BadValue(
                f"package {taking[0]} offers a kind of sink of this name, which is penstock's own",
                do=f"uninstall {taking[0]}, or have it name its kind differently",
            )
        if own is not None:
            return _own_kind(name)
        if len(taking) > 1:
            raise BadValue(
                f"packages {' and '.join(taking)} both offer a kind of sink of this name",
                do="uninstall one of them",
            )
        return next((_import(entry, _package(entry)) for entry in offers.values()), None)


def import_workers() -> None:
    """Import the executor halves of penstock's own kinds, for a process that is to be forked.

    Whatever other packages offer: tasks of a pipeline that uses none of it run in that process.
    """
    for name in BUILT_IN:
        for module in _own_kind(name).worker_modules:
            importlib.import_module(module)


def _own_kind(name: str) -> SinkKind[Any]:
    return _import(importlib.metadata.EntryPoint(name, BUILT_IN[name], GROUP), _OWN_PACKAGE)


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "unknown"


def _import(entry: EntryPoint, package: str) -> SinkKind[Any]:
    """The kind that an entry point stands for.

    Raises:
        BadValue: it cannot be imported, or is none.
    """
    try:
        found = entry.load()
        if isinstance(found, type) and issubclass(found, SinkKind):
            found = found()
    except Exception as error:
        raise BadValue(
            f"the kind of sink {entry.value} of package {package} cannot be imported:"
            f" {type(error).__name__}: {error}",
            do=f"install {package} anew, with all that it needs",
        ) from error
    if problem := _problem(found, entry.name):
        raise BadValue(
            f"{entry.value} of package {package} {problem}",
            do=f"report it to those who make {package}; another version of it may do",
        )
    kind: SinkKind[Any] = found
    return kind


def _problem(found: object, name: str) -> str | None:
    """What keeps an object from being the kind of that name."""
    if not isinstance(found, SinkKind):
        return "is no SinkKind"
    if getattr(found, "name", None) != name:
        return f"is not called {name}, as its entry point is"
    options = getattr(found, "options", None)
    if not (isinstance(options, type) and issubclass(options, Options)):
        return "has no options model"
    if "kind" not in options.keys():  # noqa: SIM118 - a method of the model, not of a dict
        return "has an options model without `kind`"
    return None


KINDS = Registry()
"""Those of this installation."""
