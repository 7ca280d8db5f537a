"""One entry of `modifiers:`: its family, its options, and which sinks it is for.

A family is a module that has `OPTIONS`, the model of what a person may say, and four functions:
`modifier_for(options, table)`, what the rule does to a table, None where nothing,
`effects(options, shape)`, the same in parts that can be compared,
`findings(options, shapes)`, what there is to say of it beside the tables of a source, and
`lost(options, shapes)`, what it names that no source has. What every rule may say,
`sinks`, is read here. Knows no file and no line: `config.py` does.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Self, runtime_checkable

from pydantic import PlainValidator, model_validator

from penstock.errors import BadValue, NotThereYet
from penstock.options import Options, fault, wanted

if TYPE_CHECKING:
    from pydantic_core.core_schema import ValidationInfo

    from penstock.document import Document, Path
    from penstock.findings import Finding
    from penstock.modifiers.effects import Effect
    from penstock.modifiers.modifier import TableModifier
    from penstock.schema.shape import TableShape
    from penstock.table import TableName

FAMILIES = {
    "filter": "penstock.modifiers.filter",
    "transform": "penstock.modifiers.transform",
    "inject": "penstock.modifiers.inject",
    "route": "penstock.modifiers.route",
}


class Family(Protocol):
    """What the module of a family has."""

    OPTIONS: type[Options]

    def modifier_for(self, options: Any, table: TableName) -> TableModifier | None:
        """What a rule does to a table; None where it is not concerned."""

    def effects(self, options: Any, shape: TableShape) -> Iterator[Effect]:
        """What a rule does to a table of this shape. Raises nothing: the rule may not fit it."""

    def findings(self, options: Any, shapes: Mapping[TableName, TableShape]) -> Iterator[Finding]:
        """What is wrong with a rule, given the tables as they are."""

    def lost(self, options: Any, shapes: Collection[TableShape]) -> Iterator[Finding]:
        """What a rule names that is not there, given the tables of all sources."""


def family_of(name: str) -> Family:
    """The module of a family, imported when it is first asked for."""
    module: Any = importlib.import_module(FAMILIES[name])
    return module  # type: ignore[no-any-return]


@runtime_checkable
class HasPlaces(Protocol):
    """Options of a rule whose parts know where they stand."""

    def placed(self, document: Document, path: Path) -> Options:
        """The same, as they stand in a document behind a path of keys."""


@dataclass(frozen=True)
class Rule:
    """One entry of the list. Picklable: it travels to the executors."""

    family: str
    options: Options
    sinks: frozenset[str] | None = None  # None: all
    place: str = ""  # file and line, for errors
    digest: str = ""  # another one: the rule says something else

    def is_for(self, sink: str) -> bool:
        """Whether the rule holds for what goes to a sink."""
        return self.sinks is None or sink in self.sinks

    def modifier_for(self, table: TableName) -> TableModifier | None:
        """What the rule does to a table."""
        return family_of(self.family).modifier_for(self.options, table)

    def effects(self, shape: TableShape) -> Iterator[Effect]:
        """What the rule does to a table of this shape, in parts."""
        yield from family_of(self.family).effects(self.options, shape)

    def findings(self, shapes: Mapping[TableName, TableShape]) -> Iterator[Finding]:
        """What is wrong with it, given the tables as they are."""
        yield from family_of(self.family).findings(self.options, shapes)

    def lost(self, shapes: Collection[TableShape]) -> Iterator[Finding]:
        """What it names that is not there, given the tables of all sources."""
        yield from family_of(self.family).lost(self.options, shapes)


def _read_rule(family: str, given: Any, info: ValidationInfo) -> Rule:
    if not isinstance(given, Mapping):
        raise wanted("a mapping")
    if find_spec(FAMILIES[family]) is None:
        what = f"is {family}, which is not there yet in this version"
        raise fault(NotThereYet(what, do="take the rule out"))
    sinks = _read_sinks(given.get("sinks"))
    rest = {key: value for key, value in given.items() if key != "sinks"}
    options = family_of(family).OPTIONS.model_validate(rest, context=info.context)
    return Rule(family, options, sinks)


def _read_sinks(given: Any) -> frozenset[str] | None:
    if given is None:
        return None
    named = [given] if isinstance(given, str) else given
    if not isinstance(named, Sequence) or not named or not all(isinstance(n, str) for n in named):
        raise wanted("a list of at least one sink", "sinks")
    return frozenset(named)


class RuleEntry(Options):
    """One entry of `modifiers:` as the file has it: a mapping with one key."""

    filter: Annotated[Rule | None, PlainValidator(partial(_read_rule, "filter"))] = None
    transform: Annotated[Rule | None, PlainValidator(partial(_read_rule, "transform"))] = None
    inject: Annotated[Rule | None, PlainValidator(partial(_read_rule, "inject"))] = None
    route: Annotated[Rule | None, PlainValidator(partial(_read_rule, "route"))] = None

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        given = [name for name in FAMILIES if getattr(self, name) is not None]
        if len(given) != 1:
            families = ", ".join(FAMILIES)
            found = " and ".join(given) or "nothing"
            raise fault(
                BadValue(f"is {found}, wanted one of {families}", do="write an entry for each"),
                *given[1:2],
            )
        return self

    @property
    def rule(self) -> Rule:
        """The one rule."""
        found: list[Rule | None] = [getattr(self, name) for name in FAMILIES]
        return next(rule for rule in found if rule is not None)
