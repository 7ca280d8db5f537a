"""Files of rules: penstock's own form, pgstream's transformations, pg_flo's rules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import PlainValidator, ValidationError, ValidationInfo

from penstock.document import read_document
from penstock.errors import BadTableRule, BadValue, PenstockError, PipelineFileError
from penstock.faults import first_fault
from penstock.modifiers.transform.rules import (
    Below,
    ColumnRule,
    Coverage,
    OnError,
    OnErrorOption,
    TableRules,
    read_columns,
    read_rule,
)
from penstock.options import Options, fault, wanted
from penstock.secret import SecretOption
from penstock.table import TableRule

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST_FILE = 256 * 1024
_MODES: dict[str, Coverage] = {"relaxed": "report", "strict": "strict"}
_FLO_ELSEWHERE = {
    "filter": "write it as a filter: entry of modifiers",
    "exclude_column": "write it as a route: entry with drop: [column]",
}


def read_rules_file(path: Path, context: Any) -> tuple[TableRules, ...]:
    """The rules of a file by tables: exact tables first, what holds for all others last.

    Raises:
        PydanticCustomError: a fault; its text names the file and the line.
    """
    try:
        text = _text_of(path)
        environ = (context or {}).get("environ", os.environ)
        document = read_document(text, str(path), environ)
        try:
            filled = _model_of(document.values).model_validate(document.values, context=context)
        except ValidationError as error:
            raise first_fault(error, document) from None
    except PenstockError as error:
        what = f"{error.where}: {error.what}"
        raise fault(type(error)(what, do=error.do), "rules_file") from None
    return tuple(sorted(filled.by_table(), key=lambda one: not one.table.is_outright))


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST_FILE + 1)
    except OSError as error:
        reason = error.strerror or "not a path"
        do = "give a file that this user may read"
        raise PipelineFileError(f"the file cannot be read: {reason}", str(path), do) from None
    if len(content) > _LONGEST_FILE:
        what = f"the file is longer than {_LONGEST_FILE} bytes"
        raise PipelineFileError(what, str(path), "give a file of rules")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PipelineFileError("the file is not UTF-8", str(path), "save it as UTF-8") from None


def _model_of(values: Mapping[str, Any]) -> type[_Own | _Pgstream | _PgstreamWhole | _Flo]:
    """Whose form it is, by the keys at its top."""
    if "transformations" in values:
        return _PgstreamWhole
    if "table_transformers" in values:
        return _Pgstream
    tables = values.get("tables")
    if isinstance(tables, Mapping) and any(isinstance(one, list) for one in tables.values()):
        return _Flo
    return _Own


def _read_table(given: Any) -> TableRule:
    try:
        return TableRule.parse(given)
    except BadTableRule as error:
        raise fault(error) from None


class _Own(Options):
    """penstock's own form."""

    coverage: Coverage = "report"
    on_error: OnErrorOption = OnError.STOP
    salt: SecretOption | None = None
    tables: Annotated[Any, PlainValidator(_own_tables)]

    def by_table(self) -> list[TableRules]:
        """What the file says."""
        listed: list[TableRules] = list(self.tables)
        return _with_rest(listed, self.coverage)


def _own_tables(given: Any, info: ValidationInfo) -> tuple[TableRules, ...]:
    if not isinstance(given, Mapping):
        raise wanted("a mapping from tables to their columns")
    above = info.data
    defaults = {"on_error": above.get("on_error", OnError.STOP), "salt": above.get("salt")}
    found = []
    for name, columns in given.items():
        with Below(name):
            coverage: Coverage = above.get("coverage", "report")
            path: tuple[str, ...] = ()
            if isinstance(columns, Mapping) and isinstance(columns.get("columns"), Mapping):
                coverage = columns.get("coverage", coverage)
                if coverage not in ("report", "strict", "off"):
                    raise fault(
                        BadValue("is no coverage", do="write strict, report or off"), "coverage"
                    )
                path = ("columns",)
            listed = columns["columns"] if path else columns
            rules = read_columns(listed, info.context, defaults, path)
            found.append(TableRules(_read_table(str(name)), rules, coverage))
    return tuple(found)


def _with_rest(listed: list[TableRules], coverage: Coverage) -> list[TableRules]:
    """And all other tables, where each column must have a rule, or those without one are reported."""
    rest = TableRule(None, None)
    if coverage == "off" or any(one.table == rest for one in listed):
        return listed
    return [*listed, TableRules(rest, (), coverage)]


class _Pgstream(Options):
    """pgstream's `transformations`."""

    later: ClassVar = {
        "infer_from_security_labels": (None, "false"),
        "dump_inferred_rules": (None, "false"),
    }

    validation_mode: str = "relaxed"
    on_error: OnErrorOption = OnError.NULL
    table_transformers: Annotated[Any, PlainValidator(_pgstream_tables)]

    def by_table(self) -> list[TableRules]:
        """What the file says."""
        # With table_level, tables that are not named are strict.
        is_by_table = self.validation_mode == "table_level"
        rest = "strict" if is_by_table else _coverage(self.validation_mode)
        return _with_rest(list(self.table_transformers), rest)


def _coverage(mode: Any) -> Coverage:
    found = _MODES.get(str(mode))
    if found is None:
        raise fault(
            BadValue(f"{mode!r} is no mode", do="write relaxed or strict"), "validation_mode"
        )
    return found


def _pgstream_tables(given: Any, info: ValidationInfo) -> tuple[TableRules, ...]:
    if not isinstance(given, list):
        raise wanted("a list of tables")
    defaults = {"on_error": info.data.get("on_error", OnError.NULL)}
    found = []
    for number, one in enumerate(given):
        with Below(number):
            if not isinstance(one, Mapping) or not isinstance(one.get("table"), str):
                raise wanted("a mapping with schema, table and column_transformers")
            schema, name = one.get("schema") or "public", one["table"]
            above = info.data.get("validation_mode", "relaxed")
            mode = one.get("validation_mode", "relaxed" if above == "table_level" else above)
            rules = read_columns(
                _renamed(one.get("column_transformers")),
                info.context,
                defaults,
                ("column_transformers",),
            )
            parts = [None if part == "*" else part for part in (schema, name)]
            found.append(TableRules(TableRule(*parts), rules, _coverage(mode)))
    return tuple(found)


def _renamed(columns: Any) -> Any:
    """Columns' rules with the keys that are called otherwise here."""
    if not isinstance(columns, Mapping):
        return columns
    renamed = {}
    for column, rule in columns.items():
        given: dict[str, Any] = dict(rule) if isinstance(rule, Mapping) else {"name": rule or ""}
        given["name"] = given.get("name") or "noop"
        if "allow_uniqueness_loss" in given:
            given["allow_collisions"] = given.pop("allow_uniqueness_loss")
        parameters = dict(given.get("parameters") or {})
        if "salt" in parameters:
            given["salt"] = parameters.pop("salt")
        given["parameters"] = parameters
        renamed[column] = given
    return renamed


class _PgstreamWhole(Options):
    """pgstream's file of rules."""

    transformations: _Pgstream

    def by_table(self) -> list[TableRules]:
        """What the file says."""
        return self.transformations.by_table()


class _Flo(Options):
    """pg_flo's rules."""

    tables: Annotated[Any, PlainValidator(_flo_tables)]

    def by_table(self) -> list[TableRules]:
        """What the file says; it knows no coverage, so what it leaves bare is reported."""
        return _with_rest(list(self.tables), "report")


def _flo_tables(given: Any, info: ValidationInfo) -> tuple[TableRules, ...]:
    found = []
    for name, listed in given.items():
        with Below(name):
            if not isinstance(listed, list):
                raise wanted("a list of rules")
            rules: list[ColumnRule] = []
            for number, one in enumerate(listed):
                with Below(number):
                    rules.append(_flo_rule(one, info.context, rules))
            found.append(TableRules(_read_table(str(name)), tuple(rules), "report", runs_all=True))
    return tuple(found)


def _flo_rule(given: Any, context: Any, before: list[ColumnRule]) -> ColumnRule:
    if not isinstance(given, Mapping) or not isinstance(given.get("column"), str):
        raise wanted("a mapping with type, column and parameters")
    kind = given.get("type")
    if kind != "transform":
        do = _FLO_ELSEWHERE.get(str(kind), "write type: transform")
        raise fault(BadValue(f"{kind!r} is no rule that changes values", do=do), "type")
    parameters = dict(given.get("parameters") or {})
    parameters.pop("allow_empty_deletes", None)
    rule = {"with": parameters.pop("type", ""), "parameters": parameters}
    if "operations" in given:
        rule["operations"] = given["operations"]
    read = read_rule(given["column"], rule, context)
    # It was dropped once, where another rule is for the column before it.
    is_later = any(one.fits(read.column) for one in before)
    # pg_flo leaves columns alone that are no text.
    return replace(read, is_lenient=True, revision=2 if is_later else read.revision)
