"""Rules: which columns of which tables a transformer is for, and when. Read from a mapping of the file."""

from __future__ import annotations

import enum
import fnmatch
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from penstock.errors import BadValue
from penstock.modifiers.operations import ALL_OPERATIONS, Operations
from penstock.modifiers.transform.plain import Keep
from penstock.modifiers.transform.registry import TRANSFORMERS, find_transformer, name_of, renamed
from penstock.options import Options, fault, wanted
from penstock.secret import Secret, SecretOption

if TYPE_CHECKING:
    from penstock.document import Document, Path
    from penstock.modifiers.transform.transformer import Transformer
    from penstock.table import TableName, TableRule

SALT_VARIABLE = "PENSTOCK_SALT"
SALT = "salt"
_FAMILIES_OF_OPERATIONS = ("json", "hstore")


class OnError(enum.Enum):
    """What a value that cannot be transformed means."""

    STOP = "stop"
    NULL = "null"
    KEEP = "keep"


def _lower(given: Any) -> Any:
    if isinstance(given, str):
        return {"fail": "stop", "pass-through": "keep"}.get(given, given)
    return "null" if given is None else given


OnErrorOption = Annotated[OnError, BeforeValidator(_lower)]
Coverage = Literal["report", "strict", "off"]


class RuleOptions(Options):
    """What every rule takes, beside the parameters of its transformer."""

    operations: Operations = ALL_OPERATIONS
    on_error: OnErrorOption = OnError.STOP
    allow_collisions: bool = False
    when_missing: Literal["stop", "skip"] = "stop"
    salt: SecretOption | None = None


RULE_KEYS = tuple(RuleOptions.keys())


@dataclass(frozen=True)
class ColumnRule:
    """What is done to a column, or to all whose names fit. Picklable."""

    column: str
    transformer: Transformer
    options: RuleOptions
    salt: Secret | None
    is_lenient: bool = False  # of a file whose rules are for columns of fitting types only
    is_general: bool = False  # of a group for any table
    ignored: tuple[str, ...] = ()  # parameters of another system that mean nothing here
    revision: int = 1  # of what its text means: with another one it gives other results
    path: Path = field(default=(), compare=False)  # of keys, to it
    where: str = field(default="", compare=False)  # file and line

    @property
    def is_pattern(self) -> bool:
        """Whether it is for any column that fits."""
        return "*" in self.column

    @property
    def leaves_other_types(self) -> bool:
        """Whether a column of a type that the transformer does not take is left alone."""
        return self.is_pattern or self.is_lenient

    @property
    def keeps(self) -> bool:
        """Whether the value stays as it is."""
        return isinstance(self.transformer, Keep)

    @property
    def name(self) -> str:
        """The transformer's name."""
        return name_of(self.transformer)

    def fits(self, column: str) -> bool:
        """Whether it is for a column of that name.

        A pattern is whatever the case: `userEmail` that a mask misses is shown. What lets values pass does so as
        it is written.
        """
        if not self.is_pattern:
            return column == self.column
        written = self.column if self.keeps else self.column.casefold()
        pattern = fnmatch.translate(re.sub(r"([\[?])", r"[\1]", written))
        return re.match(pattern, column if self.keeps else column.casefold()) is not None


@dataclass(frozen=True)
class TableRules:
    """The rules for tables, and whether each of their columns must have one."""

    table: TableRule
    rules: tuple[ColumnRule, ...]
    coverage: Coverage = "off"
    path: Path = field(default=(), compare=False)
    where: str = field(default="", compare=False)
    runs_all: bool = (
        False  # of a column all its rules run, in their order; else the first that is for it
    )

    def concerns(self, table: TableName) -> bool:
        """Whether they are for that table."""
        return self.table.matches(table)


def placed(
    tables: Iterable[TableRules], document: Document, path: Path = ()
) -> tuple[TableRules, ...]:
    """The same, where each knows its line in a document, behind a path of keys."""

    def where(below: Path) -> str:
        return document.marks[document.find((*path, *below))].where

    return tuple(
        replace(
            group,
            where=where(group.path),
            rules=tuple(replace(rule, where=where(rule.path)) for rule in group.rules),
        )
        for group in tables
    )


def ordered(groups: Iterable[TableRules]) -> tuple[ColumnRule, ...]:
    """The rules of a table, those first that are looked at first: of each group the exact ones, then patterns;
    as they stand where all of them run.

    A rule for any table is not for those that lack its column.
    """
    rules: list[ColumnRule] = []
    for group in groups:
        own = group.rules if group.table.is_outright else map(_where_present, group.rules)
        rules += own if group.runs_all else sorted(own, key=lambda rule: rule.is_pattern)
    return tuple(rules)


def _where_present(rule: ColumnRule) -> ColumnRule:
    options = rule.options.model_copy(update={"when_missing": "skip"})
    return replace(rule, options=options, is_general=True)


def read_rule(
    column: str, given: Any, context: Any, defaults: Mapping[str, Any] | None = None
) -> ColumnRule:
    """One rule: `keep`, a transformer's name, or a mapping with `with:` and parameters.

    `defaults` are what applies to all rules of an entry or a file.

    Raises:
        PydanticCustomError: a fault, with the path to it.
        ValidationError: as above.
    """
    if isinstance(given, str):
        given = {"with": given}
    if not isinstance(given, Mapping):
        raise wanted("a transformer's name, or a mapping with one under `with`")
    key, name, parameters = _named(given)
    of_rule, parameters = _sorted_out(given, name, parameters)
    options = RuleOptions.model_validate({**(defaults or {}), **of_rule}, context=context)
    with Below(key):
        kind, alias = find_transformer(name)
    ignored = tuple(key for key in parameters if key in alias.ignored)
    known = {key: value for key, value in parameters.items() if key not in ignored}
    with Below(*(["parameters"] if given.get("parameters") else [])):
        filled = {**alias.defaults, **renamed(alias, known)}
        transformer = kind.model_validate(filled, context=context)
    salt = options.salt or _salt_of(context)
    revision = max(alias.revision(transformer), transformer.revision)
    rule = ColumnRule(column, transformer, options, salt, ignored=ignored, revision=revision)
    if transformer.draws and rule.salt is None:
        what = f"{rule.name} needs a salt, and there is none"
        do = f"set the variable {SALT_VARIABLE} to a long random text, or write salt: ${{NAME}}"
        raise fault(BadValue(what, do=do), key)
    return rule


def _sorted_out(
    given: Mapping[str, Any], name: str, parameters: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is the rule's own, and what its transformer's: either may stand where the other is wanted."""
    of_rule = {one: given[one] for one in RULE_KEYS if one in given}
    if SALT in parameters:
        if SALT in of_rule:
            what = "stands among the parameters and beside them"
            raise fault(BadValue(what, do="write it once"), SALT)
        of_rule[SALT] = parameters.pop(SALT)  # as pgstream has it
    if name in _FAMILIES_OF_OPERATIONS and _are_mappings(given.get("operations")):
        parameters = {**parameters, "operations": of_rule.pop("operations")}
    return of_rule, parameters


def read_columns(
    given: Any,
    context: Any,
    defaults: Mapping[str, Any],
    path: tuple[str | int, ...],
    above: Path = (),
) -> tuple[ColumnRule, ...]:
    """The rules of a mapping from columns to rules; each fault has its path, each rule that and what is above."""
    if not isinstance(given, Mapping) or not given:
        key = f"{path[-1]}: " if path else ""
        raise fault(BadValue("names no column", do=f"write {key}{{name: {{with: …}}}}"), *path)
    rules = []
    for column, rule in given.items():
        with Below(*path, column):
            read = read_rule(str(column), rule, context, defaults)
            rules.append(replace(read, path=(*above, *path, column)))
    return tuple(rules)


class Below:
    """Has faults that are raised inside know where that is."""

    def __init__(self, *path: str | int) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: object, __: object) -> None:
        if isinstance(error, PydanticCustomError):
            context = dict(error.context or {})
            context["below"] = (*self._path, *context.get("below", ()))
            raise PydanticCustomError(error.type, error.message_template, context) from None
        if isinstance(error, ValidationError):
            raise _moved(error, self._path) from None


def _moved(error: ValidationError, path: tuple[str | int, ...]) -> ValidationError:
    """The same faults, so much further down."""
    lines: list[InitErrorDetails] = []
    for one in error.errors(include_url=False, include_input=False):
        line = InitErrorDetails(type=_type_of(one), loc=(*path, *one["loc"]), input=None)
        if "ctx" in one and isinstance(line["type"], str):
            line["ctx"] = one["ctx"]
        lines.append(line)
    return ValidationError.from_exception_data(error.title, lines)


def _type_of(one: Any) -> Any:
    if one["type"] in ("fault", "wanted") or (one.get("ctx") and "below" in one["ctx"]):
        return PydanticCustomError(one["type"], one["msg"], one.get("ctx"))
    return one["type"]


def _named(given: Mapping[str, Any]) -> tuple[str, Any, dict[str, Any]]:
    """Where the transformer is named, its name, and its parameters."""
    own = {"with", "name", "python", "parameters", *RULE_KEYS}
    parameters = {key: value for key, value in given.items() if key not in own}
    named = [key for key in ("with", "name", "python") if key in given]
    if len(named) != 1:
        what = "a rule names one transformer" if not named else f"{' and '.join(named)} stand both"
        do = f"write with: and one of {', '.join(TRANSFORMERS)}"
        raise fault(BadValue(what, do=do), *named[1:2])
    below = given.get("parameters")
    if below is not None and not isinstance(below, Mapping):
        raise fault(BadValue("is no mapping", do="write parameters: {name: value}"), "parameters")
    parameters.update(below or {})
    if named[0] == "python":
        return "python", "python", {**parameters, "function": given["python"]}
    return named[0], given[named[0]], parameters


def _are_mappings(given: Any) -> bool:
    return isinstance(given, list) and any(isinstance(one, Mapping) for one in given)


def _salt_of(context: Any) -> Secret | None:
    given = (context or {}).get("environ", os.environ).get(SALT_VARIABLE, "")
    return Secret(given) if given.strip() else None
