"""`route:`: other names for a table and its columns, and columns that are not delivered.

Columns are this modifier's. Where the table goes is the sink's to do (`routes_of`): all else goes by the name that the
source has for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from penstock.errors import BadTableRule, BadValue, ModifierError, RuleUnfit
from penstock.findings import Finding
from penstock.modifiers.effects import Effect
from penstock.modifiers.lost import lost_columns, lost_table
from penstock.modifiers.operations import ALL_OPERATIONS, Operation, Operations, letters_of
from penstock.options import Options, RuleOption, fault, wanted
from penstock.table import Route, Routes, TableName, TableRule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from penstock.changes.decode import TableChanges
    from penstock.changes.pgoutput import Relation
    from penstock.modifiers.modifier import TableModifier
    from penstock.modifiers.rule import Rule
    from penstock.schema.shape import ConstraintShape, IndexShape, TableShape

_PLACEHOLDER = re.compile(r"\{\w*\}")
_LONGEST_NAME = 63  # bytes; Postgres would cut the rest off without a word


def _read_target(given: Any) -> TableName | None:
    if given is None or isinstance(given, TableName):
        return given
    if not isinstance(given, str) or "://" in given:
        raise wanted("a table: schema.table, with {schema} and {table} where they are to stand")
    try:
        rule = TableRule.parse(given)
    except BadTableRule as error:
        raise fault(error) from None
    if rule.schema is None or rule.name is None:
        raise wanted("one table: schema.table; {schema} and {table} stand for the table's own")
    for found in _PLACEHOLDER.findall(rule.schema + rule.name):
        if found not in ("{schema}", "{table}"):
            raise wanted(f"{{schema}} and {{table}}, and not {found}")
    return TableName(rule.schema, rule.name)


def _read_columns(given: Any) -> Any:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(
        isinstance(each, str) and 0 < len(each.encode()) <= _LONGEST_NAME
        for pair in given.items()
        for each in pair
    ):
        raise wanted("a mapping of columns to what they are to be called, 1 to 63 bytes")
    if len(set(given.values())) < len(given):
        raise wanted("a mapping in which each new name is there once")
    return given


class RouteOptions(Options):
    """One rule."""

    table: RuleOption
    target: Annotated[TableName | None, PlainValidator(_read_target)] = None
    columns: Annotated[dict[str, str], BeforeValidator(_read_columns)] = Field(default={})
    drop: tuple[str, ...] = ()
    # Changes of other operations are not delivered.
    operations: Operations = Field(default=ALL_OPERATIONS)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if both := sorted(set(self.drop) & set(self.columns)):
            what = f"column {both[0]} stands under columns, too"
            raise fault(BadValue(what, do="take it out of one of the two"), "drop")
        if not (self.target or self.columns or self.drop or self.operations != ALL_OPERATIONS):
            raise wanted("a route with target:, columns:, drop: or operations:")
        return self


OPTIONS = RouteOptions


def modifier_for(options: RouteOptions, table: TableName) -> TableModifier | None:
    """What a route does to the columns of a table, and which of its changes pass."""
    if not options.table.matches(table):
        return None
    if not (options.columns or options.drop or options.operations != ALL_OPERATIONS):
        return None
    return Renamed(
        tuple(options.columns.items()),
        options.drop,
        options.operations,
        is_strict=options.table.is_outright,
    )


def effects(options: RouteOptions, shape: TableShape) -> Iterator[Effect]:
    """Columns that are not delivered; names of columns and operations."""
    if not options.table.matches(shape.table):
        return
    is_own = options.table.is_outright
    for column in shape.columns:
        if column.name in options.drop:
            yield Effect("route", column.id, "drop", is_own)
    says_more = bool(options.columns) or options.operations != ALL_OPERATIONS
    yield Effect("route", 0, (options.columns, options.operations), is_own, hides=says_more)


def findings(options: RouteOptions, shapes: Mapping[TableName, TableShape]) -> Iterator[Finding]:
    """Columns that are not there, names that are taken."""
    for table, shape in shapes.items():
        modifier = modifier_for(options, table)
        if modifier is None:
            continue
        try:
            modifier.modified_shape(shape)
        except ModifierError as error:
            yield Finding(error)


def lost(options: RouteOptions, shapes: Collection[TableShape]) -> Iterator[Finding]:
    """A table that is not followed; columns that none of the tables has."""
    yield from lost_table(options.table, shapes)
    if not options.table.is_outright:
        yield from lost_columns(options.table, (*options.columns, *options.drop), shapes)


def routes_of(rules: Sequence[Rule], sink: str) -> Routes:
    """Where the tables of a sink go."""
    return Routes(
        tuple(
            Route(
                rule.options.table,
                rule.options.target,
                names_columns=bool(rule.options.columns or rule.options.drop),
            )
            for rule in rules
            if isinstance(rule.options, RouteOptions) and rule.is_for(sink)
        )
    )


@dataclass(frozen=True)
class Renamed:
    """Columns under other names, or not at all.

    `is_strict`: the rule names the table, so that a column which is not there is an error; a rule with `*` is for
    those tables that have it.
    """

    names: tuple[tuple[str, str], ...]
    dropped: tuple[str, ...]
    operations: frozenset[Operation]
    is_strict: bool

    @property
    def lacks_rows(self) -> bool:
        """Whether some changes of rows are not delivered."""
        return Operation.INSERT not in self.operations

    @property
    def keeps_rows(self) -> bool:
        """Whether rows stay that are deleted at the source."""
        return Operation.DELETE not in self.operations

    def modified_shape(self, shape: TableShape) -> TableShape:
        """What speaks of a column by a name that is not its own any more goes, but for keys."""
        own = [column.name for column in shape.columns]
        self._check(own, shape.table)
        self._check_key(shape)
        names = dict(self.names)
        gone = {column.id for column in shape.columns if column.name in self.dropped}
        moved = {column.id for column in shape.columns if column.name in names}
        columns = tuple(
            column.model_copy(update={"name": names.get(column.name, column.name)})
            for column in shape.columns
            if column.id not in gone and not (column.generated and moved | gone)
        )
        renamed = shape.model_copy(update={"columns": columns})
        touched = gone | moved
        return renamed.model_copy(
            update={
                "constraints": tuple(
                    kept
                    for each in shape.constraints
                    if (kept := _constraint(each, renamed, gone, touched)) is not None
                ),
                "foreign_keys": tuple(
                    each for each in shape.foreign_keys if not touched & set(each.columns)
                ),
                "indexes": tuple(
                    index
                    for each in shape.indexes
                    if (index := _index(each, renamed, touched)) is not None
                ),
            }
        )

    def modified_relation(self, relation: Relation) -> Relation:
        """The columns that are left, under their names."""
        self._check([column.name for column in relation.columns], relation.table)
        names = dict(self.names)
        return replace(
            relation,
            columns=tuple(
                replace(column, name=names.get(column.name, column.name))
                for column in relation.columns
                if column.name not in self.dropped
            ),
        )

    def apply(self, changes: TableChanges) -> TableChanges:
        """The columns that are left, of the operations that pass."""
        relation = self.modified_relation(changes.relation)
        kept = [
            place
            for place, column in enumerate(changes.relation.columns)
            if column.name not in self.dropped
        ]
        changes = replace(
            changes,
            relation=relation,
            after=tuple(changes.after[place] for place in kept),
            before=tuple(changes.before[place] for place in kept),
        )
        passes = np.isin(changes.operation, letters_of(self.operations))
        return changes if bool(passes.all()) else changes.take(np.flatnonzero(passes))

    def _check(self, own: Sequence[str], table: TableName) -> None:
        if self.is_strict:
            for name in (*dict(self.names), *self.dropped):
                if name not in own:
                    raise RuleUnfit(
                        f"column {name} is not there, wanted one of {', '.join(own)}",
                        str(table),
                        "fix the rule",
                    )
        names = dict(self.names)
        called = [names.get(name, name) for name in own if name not in self.dropped]
        if not called:
            raise RuleUnfit("no column is left", str(table), "keep at least one column")
        for name in called:
            if called.count(name) > 1:
                raise RuleUnfit(
                    f"two columns would be called {name}", str(table), "choose another name"
                )

    def _check_key(self, shape: TableShape) -> None:
        for name in shape.key_columns:
            if name in self.dropped:
                raise RuleUnfit(
                    f"column {name} is part of the key, by which rows are found",
                    str(shape.table),
                    "keep it, or call it differently",
                )


def _constraint(
    constraint: ConstraintShape, renamed: TableShape, gone: set[int], touched: set[int]
) -> ConstraintShape | None:
    """A constraint as it is with other names: a key can be written anew, an expression cannot."""
    used = set(constraint.used) | set(constraint.columns)
    if not used & touched:
        return constraint
    is_plain = used == set(constraint.columns) and constraint.definition.startswith(
        ("PRIMARY KEY (", "UNIQUE (")
    )
    if used & gone or not is_plain or constraint.has_period or constraint.is_deferrable:
        return None
    listed = _listed(renamed, constraint.columns)
    word = "PRIMARY KEY" if constraint.kind == "p" else "UNIQUE"
    return constraint.model_copy(update={"definition": f"{word} ({listed})"})


def _index(index: IndexShape, renamed: TableShape, touched: set[int]) -> IndexShape | None:
    """Gone where it speaks of other names; but for the one that rows are found by."""
    if not touched & set(index.used):
        return index
    if index.id != renamed.identity_index_id or set(index.used) != set(index.columns):
        return None
    definition = f"btree ({_listed(renamed, index.columns)})"
    return index.model_copy(update={"definition": definition})


def _listed(shape: TableShape, numbers: tuple[int, ...]) -> str:
    return ", ".join('"' + name.replace('"', '""') + '"' for name in shape.names_of(numbers))
