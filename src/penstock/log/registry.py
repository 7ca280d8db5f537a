"""Kinds of logs by name: entry points of the group `penstock.logs`, each a `LogKind`."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo

from penstock.errors import BadValue
from penstock.log.contract import LogKind
from penstock.log.options import LogOptions
from penstock.options import fault, wanted
from penstock.registry import Registry, find_problem

GROUP = "penstock.logs"
# The same as in pyproject.toml.
BUILT_IN = {
    "files": "penstock.log.files.kind:KIND",
    "kafka": "penstock.log.kafka.kind:KIND",
    "nats": "penstock.log.nats.kind:KIND",
}
_DEFAULT = "files"


def _find_problem(found: Any, name: str) -> str | None:
    if not callable(getattr(found, "log_of", None)):
        return "is no LogKind"
    return find_problem(found, name, LogOptions)


KINDS: Registry[LogKind] = Registry(GROUP, "log", BUILT_IN, _find_problem)
"""Those of this installation."""


def kind_of(name: str) -> LogKind:
    """The kind of a log whose options were read.

    Raises:
        BadValue: its package is broken, or gone since then.
    """
    kind = KINDS.find(name)
    if kind is None:
        raise BadValue(f"no kind of log is called {name}", do=f"write {' or '.join(KINDS.names)}")
    return kind


def default_options() -> LogOptions:
    """What a pipeline file means that says nothing of the log."""
    return kind_of(_DEFAULT).options.model_validate({})


def _read_options(given: Any, info: ValidationInfo) -> LogOptions:
    """What stands under `log:`, by the model of its kind; a fault in it keeps its path."""
    if isinstance(given, LogOptions):
        return given
    name = given.get("kind", _DEFAULT) if isinstance(given, Mapping) else _DEFAULT
    try:
        kind = KINDS.find(name) if isinstance(name, str) else None
    except BadValue as error:
        raise fault(error, "kind") from None
    if kind is None:
        raise wanted(" or ".join(f"'{each}'" for each in KINDS.names), "kind")
    return kind.options.model_validate(given, context=info.context)


LogOption = Annotated[LogOptions, PlainValidator(_read_options)]
"""What a pipeline file says about its log, as the options of that kind."""
