"""What `penstock demo --sink NAME` delivers to. A module of this package is a name; its class `Demonstrated` is all of it."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, cast

from penstock.errors import BadValue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class Destination(ABC):
    """A destination of documents, embedded. Made without arguments; nothing is started until `start`.

    Its rows are what somebody who reads it has of the shop's tables: the proof holds them against the source's.
    """

    title: ClassVar[str]
    """What it is, in the first line of the demo."""

    reader: ClassVar[str]
    """Who reads it, in one word: the heading above its rows."""

    pipeline: ClassVar[str]
    """The pipeline file, which names `${SHOP_URL}` and `variables`."""

    exports: ClassVar[str]
    """The same variables as a person sets them, one `export` a line."""

    page: ClassVar[str]
    """The how-to to read next."""

    @abstractmethod
    def require(self) -> None:
        """Make sure that everything is there that `start` needs.

        Raises:
            PenstockError: says what is missing, and how to have it.
        """

    @abstractmethod
    def start(self, home: Path) -> str:
        """Start it; what was started, for people. Its files belong below `home`, which is removed in the end."""

    @property
    @abstractmethod
    def variables(self) -> Mapping[str, str]:
        """What the pipeline file wants from the environment."""

    @abstractmethod
    def row_counts(self) -> dict[str, int]:
        """How many rows it has of each table, so far; asked several times a second."""

    @abstractmethod
    def rows(self, table: str) -> list[str]:
        """The rows that it has of a table, as JSON objects; asked once everything has arrived, and again where some is still to be read."""

    @abstractmethod
    def prove(self) -> Sequence[str]:
        """What else holds, in a line each; asked after `rows`, of what was read last.

        Raises:
            SidesDiffer: something does not.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop it. Safe to repeat, and where it was not started."""


def names() -> list[str]:
    """What `--sink` takes."""
    return sorted(each.name for each in pkgutil.iter_modules(__path__))


def destination(name: str) -> Destination:
    """The destination of a name.

    Raises:
        BadValue: there is none.
    """
    if name not in names():
        raise BadValue(
            f"no demo of a sink {name!r}, wanted one of {', '.join(names())}",
            "--sink",
            "leave it out for Postgres to Postgres",
        )
    module = importlib.import_module(f"{__name__}.{name}")
    return cast("Destination", module.Demonstrated())
