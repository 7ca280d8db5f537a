"""Files of rules: penstock's own form, pgstream's transformations, pg_flo's rules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from pydantic import Field, PlainValidator, ValidationError, ValidationInfo

from penstock.document import Document, read_document
from penstock.errors import BadTableRule, BadValue, PenstockError, PipelineFileError
from penstock.faults import first_fault
from penstock.modifiers.transform.draws import key_of
from penstock.modifiers.transform.rules import (
    RULE_KEYS,
    SALT,
    Below,
    ColumnRule,
    Coverage,
    OnError,
    OnErrorOption,
    RuleOptions,
    TableRules,
    placed,
    read_columns,
    read_rule,
)
from penstock.options import Options, fault, wanted
from penstock.secret import Secret, SecretOption
from penstock.table import TableRule

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST_FILE = 256 * 1024
_MODES: dict[str, Coverage] = {"relaxed": "report", "strict": "strict"}
_FLO_ELSEWHERE = {
    "filter": "write it as a filter: entry of modifiers",
    "exclude_column": "write it as a route: entry with drop: [column]",
}
_PGSTREAMS_COLUMNS = ("column_transformers",)
# What they take, so that it is no rule.
_OPTIONS_OF_TABLES: dict[str, tuple[Any, ...]] = {
    "coverage": ("strict", "report", "off"),
    "on_error": ("stop", "null", "keep", "fail", "pass-through", None),
}


class RulesFile(NamedTuple):
    """The rules of a file by tables: exact tables first, what holds for all others last.

    `fingerprint` is another one where a variable in it has another value; "" without variables. It says nothing
    else of the values.
    """

    tables: tuple[TableRules, ...]
    fingerprint: str


def read_rules_file(path: Path, context: Any) -> RulesFile:
    """Read a file of rules.

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
    tables = sorted(filled.by_table(), key=lambda one: not one.table.is_outright)
    return RulesFile(placed(tables, document), _fingerprint(document))


def _fingerprint(document: Document) -> str:
    """Of what came of variables; a salt has its own."""
    came = [
        (path, None if mark.text is None else document.value_at(path))
        for path, mark in sorted(document.marks.items(), key=lambda each: str(each[0]))
        if path[-1:] != (SALT,) and (_has_variable(mark.key) or _has_variable(mark.text or ""))
    ]
    return key_of(Secret(repr(came)), "fingerprint of a file").hex()[:8] if came else ""


def _has_variable(written: str) -> bool:
    return "${" in written.replace("$$", "")


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
        return _with_rest(listed, self.coverage, ("coverage",))


class _OwnTable(RuleOptions):
    """A table whose columns stand under `columns`; what is beside them goes for all of them."""

    coverage: Coverage = "report"
    columns: Any


def _own_tables(given: Any, info: ValidationInfo) -> tuple[TableRules, ...]:
    if not isinstance(given, Mapping):
        raise wanted("a mapping from tables to their columns")
    above = info.data
    of_file = {"on_error": above.get("on_error", OnError.STOP), "salt": above.get("salt")}
    found = []
    path: tuple[str, ...]
    for name, said in given.items():
        with Below(name):
            coverage: Coverage = above.get("coverage", "report")
            defaults, listed, path = of_file, said, ()
            if _has_columns_below(said):
                table = _OwnTable.model_validate(said, context=info.context)
                of_table = {key: getattr(table, key) for key in table.model_fields_set}
                coverage = of_table.get("coverage", coverage)
                defaults = {**of_file, **{k: of_table[k] for k in RULE_KEYS if k in of_table}}
                listed, path = table.columns, ("columns",)
            else:
                _refuse_options_among_columns(said)
            place = ("tables", name)
            rules = read_columns(listed, info.context, defaults, path, place)
            found.append(TableRules(_read_table(str(name)), rules, coverage, place))
    return tuple(found)


def _has_columns_below(said: Any) -> bool:
    """Whether `columns` holds the columns, and is not one: then it would be a rule."""
    listed = said.get("columns") if isinstance(said, Mapping) else None
    if not isinstance(listed, Mapping):
        return False
    return all(isinstance(listed.get(key, {}), Mapping) for key in ("with", "python"))


def _refuse_options_among_columns(said: Any) -> None:
    """Beside columns, what is meant for all of them would be read as one more column."""
    for key, values in _OPTIONS_OF_TABLES.items():
        if isinstance(said, Mapping) and key in said and said[key] in values:
            what = "stands among the columns"
            do = f"write {key} and columns: {{…}} beside it; of a column of that name, {key}: {{with: …}}"
            raise fault(BadValue(what, do=do), key)


def _with_rest(
    listed: list[TableRules], coverage: Coverage, path: tuple[str, ...] = ()
) -> list[TableRules]:
    """And all other tables, where each column must have a rule, or those without one are reported."""
    rest = TableRule(None, None)
    if coverage == "off" or any(one.table == rest for one in listed):
        return listed
    return [*listed, TableRules(rest, (), coverage, path)]


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
        return _with_rest(
            list(self.table_transformers), rest, ("transformations", "validation_mode")
        )


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
    above = info.data.get("validation_mode", "relaxed")
    of_table = "relaxed" if above == "table_level" else above
    found = []
    for number, one in enumerate(given):
        with Below(number):
            if not isinstance(one, Mapping) or not isinstance(one.get("table"), str):
                raise wanted("a mapping with schema, table and column_transformers")
            read = _PgstreamTable.model_validate(one, context=info.context)
            rules = read_columns(
                _renamed(read.column_transformers),
                info.context,
                defaults,
                _PGSTREAMS_COLUMNS,
                place := ("transformations", "table_transformers", number),
            )
            parts = [
                None if part == "*" else part for part in (read.schema_name or "public", read.table)
            ]
            mode = read.validation_mode or of_table
            found.append(TableRules(TableRule(*parts), rules, _coverage(mode), place))
    return tuple(found)


class _PgstreamTable(Options):
    """One of pgstream's tables."""

    schema_name: str | None = Field(default=None, alias="schema")
    table: str
    column_transformers: Any = None
    validation_mode: Any = None


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
            place = ("tables", name)
            for number, one in enumerate(listed):
                with Below(number):
                    read = _flo_rule(one, info.context, rules)
                    rules.append(replace(read, path=(*place, number)))
            found.append(
                TableRules(_read_table(str(name)), tuple(rules), "report", place, runs_all=True)
            )
    return tuple(found)


class _FloRule(Options):
    """One of pg_flo's rules."""

    type: Any = None
    column: str
    parameters: dict[str, Any] | None = None
    operations: Any = None
    allow_empty_deletes: Any = None  # of its filters; its transformations do not look at it


def _flo_rule(given: Any, context: Any, before: list[ColumnRule]) -> ColumnRule:
    if not isinstance(given, Mapping) or not isinstance(given.get("column"), str):
        raise wanted("a mapping with type, column and parameters")
    said = _FloRule.model_validate(given, context=context)
    if said.type != "transform":
        do = _FLO_ELSEWHERE.get(str(said.type), "write type: transform")
        raise fault(BadValue(f"{said.type!r} is no rule that changes values", do=do), "type")
    parameters = dict(said.parameters or {})
    parameters.pop("allow_empty_deletes", None)
    if not parameters.get("type"):
        what = "names no type, the transformer"
        raise fault(BadValue(what, do="write parameters: {type: mask}, or another"), "parameters")
    rule = {"with": parameters.pop("type"), "parameters": parameters}
    if said.operations is not None:
        rule["operations"] = said.operations
    read = read_rule(said.column, rule, context)
    # It was dropped once, where another rule is for the column before it.
    is_later = any(one.fits(read.column) for one in before)
    # pg_flo leaves columns alone that are no text.
    return replace(read, is_lenient=True, revision=2 if is_later else read.revision)
