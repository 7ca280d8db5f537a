"""Kinds of something by name: penstock's own and those of other packages, found the same way.

A package offers a kind as an entry point: its name is what `kind:` says in the pipeline file. Nothing of a
kind is imported before somebody asks for it, so that a broken package stands in nobody else's way. A name of
penstock's own cannot be taken over.
"""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.errors import BadValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from importlib.metadata import EntryPoint

    # What keeps an object from being the kind of a name; None where it is one.
    FindProblem = Callable[[Any, str], str | None]

_OWN_PACKAGE = "penstock"

Kind = TypeVar("Kind")


class Registry(Generic[Kind]):
    """The kinds that are there. May be asked from any thread.

    `built_in` repeats the entry points of pyproject.toml: the metadata of an installation may be older than
    its code. A class that is offered is called without arguments.
    """

    def __init__(
        self,
        group: str,
        what: str,
        built_in: Mapping[str, str],
        find_problem: FindProblem,
        entry_points: Callable[[], Iterable[EntryPoint]] | None = None,
    ) -> None:
        self._group = group
        self._what = what
        self._built_in = built_in
        self._find_problem = find_problem
        self._entry_points = entry_points or (
            lambda: importlib.metadata.entry_points(group=self._group)
        )
        self._offers: dict[str, dict[str, EntryPoint]] | None = None
        self._kinds: dict[str, Kind] = {}

    @property
    def names(self) -> list[str]:
        """What `kind:` may say: penstock's own, then others by name."""
        return [*self._built_in, *sorted(self._others().keys() - self._built_in.keys())]

    def find(self, name: str) -> Kind | None:
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

    def own(self, name: str) -> Kind:
        """The kind of one of penstock's own names, whatever other packages offer."""
        entry = importlib.metadata.EntryPoint(name, self._built_in[name], self._group)
        return self._import(entry, _OWN_PACKAGE)

    def _others(self) -> dict[str, dict[str, EntryPoint]]:
        """What other packages offer, by name and value."""
        if self._offers is None:
            offers: dict[str, dict[str, EntryPoint]] = {}
            for entry in self._entry_points():
                if _package(entry) != _OWN_PACKAGE:
                    offers.setdefault(entry.name, {})[entry.value] = entry
            self._offers = offers
        return self._offers

    def _load(self, name: str) -> Kind | None:
        own = self._built_in.get(name)
        offers = [entry for value, entry in self._others().get(name, {}).items() if value != own]
        packages = [_package(entry) for entry in offers]
        if own is not None and offers:
            raise BadValue(
                f"package {packages[0]} offers a kind of {self._what} of this name,"
                " which is penstock's own",
                do=f"uninstall {packages[0]}, or have it name its kind differently",
            )
        if own is not None:
            return self.own(name)
        if len(offers) > 1:
            raise BadValue(
                f"packages {' and '.join(packages)} both offer a kind of {self._what} of this name",
                do="uninstall one of them",
            )
        return self._import(offers[0], packages[0]) if offers else None

    def _import(self, entry: EntryPoint, package: str) -> Kind:
        """The kind that an entry point stands for.

        Raises:
            BadValue: it cannot be imported, or is none.
        """
        try:
            found = entry.load()
            if isinstance(found, type):
                found = found()
        except Exception as error:
            raise BadValue(
                f"the kind of {self._what} {entry.value} of package {package} cannot be imported:"
                f" {type(error).__name__}: {error}",
                do=f"install {package} anew, with all that it needs",
            ) from error
        if problem := self._find_problem(found, entry.name):
            raise BadValue(
                f"{entry.value} of package {package} {problem}",
                do=f"report it to those who make {package}; another version of it may do",
            )
        kind: Kind = found
        return kind


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "unknown"


def find_problem(found: object, name: str, options: type) -> str | None:
    """What keeps an object from being the kind of a name with such options, whatever it is a kind of."""
    if getattr(found, "name", None) != name:
        return f"is not called {name}, as its entry point is"
    model = getattr(found, "options", None)
    if not (isinstance(model, type) and issubclass(model, options)):
        return "has no options model"
    return None
