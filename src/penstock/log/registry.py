"""Kinds of logs by their names: penstock's own, and those of other packages.

A package offers a kind by an entry point of the group `penstock.logs`, which names a `LogKind`. penstock's
own are known without one, and no other package can have their names. Nothing is loaded before a
pipeline asks for it.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo

from penstock.errors import BadValue, NotThereYet
from penstock.log.contract import LogKind
from penstock.log.options import LogOptions
from penstock.options import fault, wanted

GROUP = "penstock.logs"
# As the entry points in pyproject.toml have it; there for an installation that is older than they are.
BUILT_IN = {"files": "penstock.log.files.kind:KIND"}
_DEFAULT = "files"
_LATER = ("kafka", "nats")


@cache
def kind_names() -> dict[str, str]:
    """Every kind that is installed, by its name: where its `LogKind` is, as `module:name`.

    Raises:
        BadValue: two packages offer the same name, or one offers a name of penstock's own.
    """
    return named_once(entry_points(group=GROUP))


def named_once(offered: Iterable[EntryPoint]) -> dict[str, str]:
    """The kinds that entry points name, beside penstock's own.

    Raises:
        BadValue: a name that is taken is offered for something else.
    """
    found = dict(BUILT_IN)
    for point in offered:
        taken = found.setdefault(point.name, point.value)
        if taken != point.value:
            whose = "penstock's own" if point.name in BUILT_IN else f"offered by {taken}"
            raise BadValue(
                f"{point.value} offers a kind of log that is called {point.name}, which is {whose}",
                f"entry points {GROUP}",
                f"uninstall the package of {point.value}, or have it choose another name",
            )
    return found


@cache
def kind_of(name: str) -> LogKind:
    """The kind of a name that `kind_names` has.

    Raises:
        BadValue: its package is broken.
    """
    place = kind_names()[name]
    module, _, attribute = place.partition(":")
    try:
        kind: LogKind = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise BadValue(
            f"the kind of log {name} cannot be loaded: {error}",
            f"entry point {place}",
            "install its package again, or write another log.kind",
        ) from error
    return kind


def default_options() -> LogOptions:
    """What a pipeline file means that says nothing of the log."""
    return kind_of(_DEFAULT).options.model_validate({})


def _read_options(given: Any, info: ValidationInfo) -> LogOptions:
    """What stands under `log:`, by the model of its kind; a fault in it keeps its path."""
    if isinstance(given, LogOptions):
        return given
    name = given.get("kind", _DEFAULT) if isinstance(given, Mapping) else _DEFAULT
    names = kind_names()
    if not isinstance(name, str) or name not in names:
        now = " or ".join(sorted(names))
        if name in _LATER:
            what = f"is {name}, which is not there yet in this version; wanted {now}"
            raise fault(NotThereYet(what, do=f"write {now}"), "kind")
        raise wanted(" or ".join(f"'{each}'" for each in sorted(names)), "kind")
    return kind_of(name).options.model_validate(given, context=info.context)


LogOption = Annotated[LogOptions, PlainValidator(_read_options)]
"""What a pipeline file says about its log, as the options of that kind."""
