"""Choose the tables to follow: rules against what the catalog lists. Changes nothing.

A table that would make the source's own UPDATEs fail is never chosen for updates, and a table that
was named outright is never left out in silence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from psycopg import sql

from penstock.errors import SourceError, SourcePrivilegeMissing, TableMissing, TableWithoutKey
from penstock.source.catalog import SourceTable, list_tables, other_relations
from penstock.source.connect import role_of
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import psycopg

    from penstock.table import TableRule, TableRules

    Connection = psycopg.Connection[Any]

_OR_INSERTS = "; or list it in insert_only"


@dataclass(frozen=True)
class LeftOut:
    """A table that the rules match and that is not followed, why, and what would change that."""

    table: TableName
    reason: str
    do: str
    error: type[SourceError] = TableWithoutKey
    is_temporary: bool = False  # nothing but time is needed

    def as_error(self) -> SourceError:
        """The same as an error, for who wants to show it as one."""
        return self.error(self.reason, str(self.table), self.do)


@dataclass(frozen=True)
class Choice:
    """What to publish, and what not.

    `updates` are followed for every operation, `inserts` for their inserts alone. Partitions stand
    in neither when an ancestor does. `swept_in` are partitions that the rules exclude and that
    arrive nevertheless, under the name of a root that they include.
    """

    updates: list[SourceTable] = field(default_factory=list)
    inserts: list[SourceTable] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    swept_in: list[SourceTable] = field(default_factory=list)


def judge_tables(
    tables: list[SourceTable],
    rules: TableRules,
    others: Mapping[TableName, str] | None = None,
) -> tuple[Choice, list[LeftOut]]:
    """The choice, and the tables named outright that cannot be followed, missing ones first."""
    choice = Choice()
    chosen = {table.oid for table in tables if _is_chosen(table.name, rules)}
    named = named_outright(tables, rules)
    unfit: list[LeftOut] = []
    for table in tables:
        if any(ancestor in chosen for ancestor in table.ancestors):
            if table.oid not in chosen:
                choice.swept_in.append(table)
        elif table.oid in chosen:
            reason = _put(table, rules, choice)
            if reason is not None:
                (unfit if table.oid in named else choice.left_out).append(reason)
    missing = _missing(tables, rules, others or {})
    return choice, [*missing, *unfit]


def read_choice(connection: Connection, rules: TableRules) -> tuple[Choice, list[LeftOut]]:
    """`judge_tables` of what the source has now."""
    tables = list_tables(connection)
    absent = absent_names(tables, rules)
    return judge_tables(tables, rules, other_relations(connection, absent))


def absent_names(tables: Iterable[SourceTable], rules: TableRules) -> list[TableName]:
    """The tables that are named outright, not excluded, and not there."""
    there = {table.name for table in tables}
    names = [_name(rule) for rule in (*rules.include, *rules.insert_only) if rule.is_outright]
    absent = dict.fromkeys(name for name in names if name not in there)
    return [name for name in absent if not rules.excludes(name)]


def as_errors(faults: list[LeftOut]) -> list[SourceError]:
    """One error for each kind, naming all its tables."""
    errors: list[SourceError] = []
    for kind in dict.fromkeys(fault.error for fault in faults):
        same = [fault for fault in faults if fault.error is kind]
        if len(same) == 1:
            errors.append(same[0].as_error())
            continue
        where = ", ".join(str(fault.table) for fault in same)
        what = "; ".join(f"{fault.table}: {fault.reason}" for fault in same)
        do = "; ".join(dict.fromkeys(fault.do.removesuffix(_OR_INSERTS) for fault in same))
        do += _OR_INSERTS if kind is TableWithoutKey else ""
        errors.append(kind(what, where, do))
    return errors


def raise_first(faults: list[LeftOut]) -> None:
    """Raise the first kind of fault, with every table that has it.

    Raises:
        SourceError: TableMissing, TableWithoutKey or SourcePrivilegeMissing.
    """
    if faults:
        raise as_errors(faults)[0]


def not_owned(connection: Connection, tables: Iterable[SourceTable]) -> list[LeftOut]:
    """Those that the role cannot add to a publication, since another role owns them."""
    role = role_of(connection)
    return [
        LeftOut(
            table.name,
            f"the role {role} does not own the table, so it cannot publish it",
            f"ALTER TABLE {sql.Identifier(*table.name).as_string(None)} OWNER TO {role};"
            f" or GRANT its owner TO {role}",
            SourcePrivilegeMissing,
        )
        for table in tables
        if not table.owned
    ]


def forbidding(choice: Choice, foreign: list[LeftOut], rules: TableRules) -> list[LeftOut]:
    """Of the tables that the role cannot add, those that must not be left out.

    That is a table named outright, and all of them when nothing else would be followed: a pipeline
    that follows nothing seems healthy for ever.
    """
    chosen = [*choice.updates, *choice.inserts]
    refused = {each.table for each in foreign}
    if foreign and all(table.name in refused for table in chosen):
        return foreign
    named = named_outright(chosen, rules)
    outright = {table.name for table in chosen if table.oid in named}
    return [each for each in foreign if each.table in outright]


def _put(table: SourceTable, rules: TableRules, choice: Choice) -> LeftOut | None:
    """Put the table where it belongs, or say why it belongs nowhere."""
    if table.persistence == "u":
        do = f"ALTER TABLE {sql.Identifier(*table.name).as_string(None)} SET LOGGED"
        return LeftOut(
            table.name, "is unlogged, so that no change of it is in the WAL", do, TableMissing
        )
    if not table.has_columns:
        return LeftOut(
            table.name,
            "has no columns but generated ones, so that its rows hold nothing to deliver",
            "ALTER TABLE ... ADD COLUMN, or exclude it; it is followed once it has a column and a key",
            TableMissing,
        )
    if rules.takes_inserts_only(table.name):
        choice.inserts.append(table)
    elif table.has_usable_key:
        choice.updates.append(table)
    else:
        reason = f"{table.flaw}; publishing it would make UPDATE and DELETE fail on the source"
        return LeftOut(table.name, reason, table.fix + _OR_INSERTS)
    return None


def _missing(
    tables: list[SourceTable], rules: TableRules, others: Mapping[TableName, str]
) -> list[LeftOut]:
    return [
        LeftOut(
            name,
            f"is {others[name]}, wanted a table" if name in others else "does not exist",
            "correct the name in tables or insert_only, or take it out",
            TableMissing,
        )
        for name in absent_names(tables, rules)
    ]


def named_outright(tables: Iterable[SourceTable], rules: TableRules) -> set[int]:
    """Tables named outright, with their ancestors: naming a partition asks for what carries it."""
    named: set[int] = set()
    for table in tables:
        inserts = any(rule.is_outright and rule.matches(table.name) for rule in rules.insert_only)
        if inserts or rules.names_outright(table.name):
            named.update((table.oid, *table.ancestors))
    return named


def _is_chosen(name: TableName, rules: TableRules) -> bool:
    """insert_only chooses as well: to list a table there is to want its inserts."""
    listed = rules.takes_inserts_only(name) and not rules.excludes(name)
    return listed or rules.chooses(name)


def _name(rule: TableRule) -> TableName:
    return TableName(rule.schema or "", rule.name or "")
