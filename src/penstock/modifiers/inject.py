"""`inject:`: what documents say beside the row: ids that stay when names change, what identifies a row, its version.

The ids are those of the source's catalog: the oid of a table, the number of a column within it. Sinks of tables take no
notice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.changes.basetypes import spelled_type
from penstock.changes.pgoutput import Injected
from penstock.errors import RuleUnfit
from penstock.findings import Finding
from penstock.modifiers.effects import Effect
from penstock.modifiers.lost import lost_table
from penstock.options import Options, RuleOption
from penstock.table import TableRule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from penstock.changes.decode import TableChanges
    from penstock.changes.pgoutput import Relation
    from penstock.modifiers.modifier import TableModifier
    from penstock.schema.shape import TableShape
    from penstock.table import TableName


class InjectOptions(Options):
    """One rule."""

    table: RuleOption = TableRule(None, None)
    identity: bool = True
    version: bool = True
    column_ids: bool = True


class PrimaryKeyOptions(InjectOptions):
    """The rule of formats whose records have the primary key as their key; documents say nothing of it.

    pgoutput does not name the primary key where the replica identity is FULL.
    """

    identity: bool = False
    version: bool = False
    column_ids: bool = False


class RowOptions(InjectOptions):
    """The rule of sinks that show a row under what identifies it.

    A deferrable key does not: while one UPDATE counts keys up, two rows have the same, and one would take the other away.
    """


OPTIONS = InjectOptions


def modifier_for(options: InjectOptions, table: TableName) -> TableModifier | None:
    """What documents of a table say."""
    return Injection(options) if options.table.matches(table) else None


def effects(options: InjectOptions, shape: TableShape) -> Iterator[Effect]:
    """What documents say beside the row."""
    if options.table.matches(shape.table):
        what = (options.identity, options.version, options.column_ids)
        yield Effect("inject", 0, what, options.table.is_outright)


def findings(options: InjectOptions, shapes: Mapping[TableName, TableShape]) -> Iterator[Finding]:
    """Tables whose rows nothing identifies: sinks of documents do not get them."""
    if not options.identity:
        return
    for table, shape in shapes.items():
        if options.table.matches(table) and not _identity(shape, options):
            lacks = "no primary key"
            if shape.primary_key is not None:
                lacks = "a primary key that is deferrable"  # two rows may have the same for a while
            error = RuleUnfit(
                f"{lacks}, and no column that is unique and not null: nothing identifies its"
                " rows, and sinks of documents are given none",
                str(table),
                "add a primary key, or leave the table out of inject",
            )
            yield Finding(error, "warning")


def lost(options: InjectOptions, shapes: Collection[TableShape]) -> Iterator[Finding]:
    """A table that is not followed."""
    yield from lost_table(options.table, shapes)


def _identity(shape: TableShape, options: InjectOptions) -> tuple[int, ...]:
    return identity_of(shape, deferrable=not isinstance(options, RowOptions))


def identity_of(shape: TableShape, *, deferrable: bool = True) -> tuple[int, ...]:
    """The columns that identify a row: the primary key's in the table's order, else the first that is unique
    and not null, else none. `deferrable`: also keys that are."""
    primary = shape.primary_key
    if primary is not None and (deferrable or not primary.is_deferrable):
        return tuple(sorted(primary.columns))
    unique = {
        each.columns
        for each in shape.constraints
        if each.kind == "u" and (deferrable or not each.is_deferrable)
    }
    unique |= {
        each.columns
        for each in shape.indexes
        if each.is_unique and each.is_valid and " WHERE " not in each.definition
    }
    for column in shape.columns:
        if column.not_null and (column.id,) in unique:
            return (column.id,)
    return ()


@dataclass(frozen=True)
class Injection:
    """The rule for one table; with the shape of its rows."""

    options: InjectOptions
    shape: TableShape | None = None

    def with_shape(self, shape: TableShape) -> Injection:
        """Know the ids."""
        return Injection(self.options, shape)

    def modified_shape(self, shape: TableShape) -> TableShape:
        """As it is."""
        return shape

    def modified_relation(self, relation: Relation) -> Relation:
        """With the ids of its columns, the names of their types, and what documents are to say."""
        if self.shape is None:
            return relation
        ids = {column.name: column.id for column in self.shape.columns if column.id > 0}
        types = {each.id: each.name for each in self.shape.types if not each.is_array}
        return replace(
            relation,
            columns=tuple(
                replace(
                    column,
                    id=ids.get(column.name, 0),
                    type_name=types.get(column.type_oid, ""),
                )
                for column in relation.columns
            ),
            injected=self._injected(self.shape, relation.injected),
        )

    def _injected(self, shape: TableShape, before: Injected | None) -> Injected:
        options = self.options
        if isinstance(options, PrimaryKeyOptions):
            key = shape.primary_key.columns if shape.primary_key is not None else ()
            said = before or Injected(shape.id, in_documents=False, enums=_enums(shape))
            return replace(said, primary_key=tuple(sorted(key)), domains=tuple(_domains(shape)))
        return Injected(
            table_id=shape.id,
            identity=_identity(shape, options) if options.identity else None,
            has_version=options.version,
            has_column_ids=options.column_ids,
            enums=_enums(shape),
        )

    def apply(self, changes: TableChanges) -> TableChanges:
        """The same rows."""
        return replace(changes, relation=self.modified_relation(changes.relation))


def _domains(shape: TableShape) -> Iterator[tuple[int, int, int]]:
    """The types of columns that are domains, with oid and modifier of the type below, where formats write that in a way
    of its own."""
    types = {each.id: each for each in shape.types if each.kind == "domain" and not each.is_array}
    for oid in sorted({each.type_id for each in shape.columns} & set(types)):
        domain = types[oid]
        while below := next((types[part] for part in domain.parts if part in types), None):
            domain = below
        if (found := spelled_type(domain.base)) is not None:
            yield oid, *found


def _enums(shape: TableShape) -> tuple[int, ...]:
    """The types of columns that are enums: for who is given rows typed."""
    return tuple(sorted({each.type_id for each in shape.columns if each.type_kind == "e"}))
