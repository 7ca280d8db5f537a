"""The options of one `transform:` entry of the pipeline file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from penstock.errors import BadValue, UnknownKey
from penstock.modifiers.transform.draws import key_of
from penstock.modifiers.transform.rules import (
    RULE_KEYS,
    Below,
    ColumnRule,
    Coverage,
    TableRules,
    placed,
    read_columns,
    read_rule,
)
from penstock.modifiers.transform.rulesfile import read_rules_file
from penstock.options import LocalPath, Options, RuleOption, fault, nearest, wanted
from penstock.sql.text import read_expression
from penstock.table import TableRule

if TYPE_CHECKING:
    from penstock.document import Document, Path

_WAYS = ("column", "columns", "rules_file", "set")


class TransformOptions(Options):
    """One entry: one column, several, a file of rules, or columns by SQL."""

    table: RuleOption = TableRule(None, None)
    column: str | None = None
    columns: tuple[str, ...] = ()
    coverage: Coverage = "off"
    rules_file: LocalPath | None = None
    set: dict[str, str] = Field(default_factory=dict)
    allow_collisions: bool = False  # of `set`; each rule of the others has its own

    _tables: tuple[TableRules, ...] = PrivateAttr(())
    _of_variables: str = PrivateAttr("")

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, given: Any, handler: Any, info: ValidationInfo) -> Self:
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise wanted("a mapping with a column, columns, a rules_file or set")
        way = _way_of(given)
        filled: Self = handler({key: given[key] for key in cls.model_fields if key in given})
        if way == "rules_file":
            assert filled.rules_file is not None
            filled._tables, filled._of_variables = read_rules_file(filled.rules_file, info.context)
        elif way != "set":
            filled._tables = (
                TableRules(
                    filled.table, _rules_of(given, way, info.context), filled.coverage, ("table",)
                ),
            )
        else:
            _require_expressions(filled.set)
        return filled

    @model_validator(mode="before")
    @classmethod
    def _names_alone(cls, given: Any) -> Any:
        """Of `columns` the names are kept here; what is said of each is read beside."""
        if isinstance(given, Mapping) and isinstance(given.get("columns"), Mapping):
            return {**given, "columns": tuple(given["columns"])}
        return given

    @property
    def fingerprint(self) -> str:
        """Another one: a salt, or a variable of the rules file, is another one, and so are the results.

        It says nothing else of them.
        """
        salts = {
            rule.salt for group in self._tables for rule in group.rules if rule.salt is not None
        }
        found = sorted(key_of(salt, "fingerprint").hex()[:8] for salt in salts)
        return "-".join([*found, self._of_variables] if self._of_variables else found)

    def placed(self, document: Document, path: Path) -> Self:
        """The same; each rule knows its line. Those of a file of their own know it already."""
        if self.rules_file is not None:
            return self
        copied: Self = self.model_copy()
        copied._tables = placed(self._tables, document, path)
        return copied

    @property
    def tables(self) -> tuple[TableRules, ...]:
        """The rules by tables, the more exact ones first; none of `set`."""
        return self._tables


def _require_expressions(given: Mapping[str, str]) -> None:
    if not given:
        raise fault(BadValue("sets no column", do='write set: {column: "SQL"}'), "set")
    for column, text in given.items():
        with Below("set", column):
            read_expression(text)


def _way_of(given: Mapping[str, Any]) -> str:
    """Which of the four kinds of entry it is; each key must belong to it."""
    ways = [way for way in _WAYS if way in given]
    if len(ways) != 1:
        what = f"has {' and '.join(ways)}" if ways else f"has none of {', '.join(_WAYS)}"
        do = "write one entry for each" if ways else "write column: NAME and with: TRANSFORMER"
        raise fault(BadValue(f"{what}, wanted one of them", do=do), *ways[1:2])
    allowed = {
        "column": None,  # what else is there belongs to the transformer
        "columns": ["table", "columns", "coverage", *RULE_KEYS],
        "rules_file": ["rules_file"],
        "set": ["table", "set", "allow_collisions"],
    }[ways[0]]
    for key in given:
        if allowed is not None and key not in allowed:
            what = f"is not a known key beside {ways[0]}, wanted one of {', '.join(allowed)}"
            raise fault(UnknownKey(what, do=nearest(str(key), allowed)), str(key))
    return ways[0]


def _rules_of(given: Mapping[str, Any], way: str, context: Any) -> tuple[ColumnRule, ...]:
    if way == "columns":
        defaults = {key: given[key] for key in RULE_KEYS if key in given}
        return read_columns(given["columns"], context, defaults, ("columns",))
    if "coverage" in given:
        do = "write columns: {…} with coverage: strict"
        raise fault(BadValue("stands beside column, wanted columns", do=do), "coverage")
    column = given["column"]
    if not isinstance(column, str) or not column.strip():
        what = "is no name of a column"
        raise fault(BadValue(what, do='write a name, or a pattern such as "*email*"'), "column")
    rest = {key: value for key, value in given.items() if key not in ("table", "column")}
    return (replace(read_rule(column, rest, context), path=("column",)),)
