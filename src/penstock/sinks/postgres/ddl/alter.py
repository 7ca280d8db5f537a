"""Let a table of the target follow what has become of the source's.

All of it runs inside the caller's transaction, on its cursor, and leaves nothing behind where it
fails. Nothing is done that the target has already: a person may have been quicker. No text of the
source is run but what its catalog spells; names are quoted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from psycopg import sql

from penstock.errors import SchemaChangeStops, TargetTableMissing
from penstock.schema.catalog import read_shapes
from penstock.schema.difference import compare_tables
from penstock.schema.difference_text import describe_differences
from penstock.schema.match import is_same_type
from penstock.sinks.postgres.ddl.alter_claims import (
    Claims,
    ColumnRules,
    claim_columns,
    own_names,
    refuse_own,
)
from penstock.sinks.postgres.ddl.alter_columns import ColumnChanges
from penstock.sinks.postgres.ddl.alter_pieces import (
    PieceChanges,
    drop_foreign_keys,
    make_foreign_keys,
)
from penstock.sinks.postgres.ddl.alter_steps import (
    Displaced,
    Outcome,
    Step,
    alter_table,
    describe_columns,
    refusal,
    run_steps,
)
from penstock.sinks.postgres.ddl.create import (
    create_table,
    require_spelled,
    without_search_path,
)
from penstock.sinks.postgres.ddl.displaced import (
    name_alike,
    rename_object,
    stand_in,
    table_oid,
    taken_names,
)
from penstock.sinks.postgres.ddl.free_sequences import plan_sequences
from penstock.sinks.postgres.ddl.schemas import schema_steps
from penstock.sinks.postgres.ddl.structure import TAKEN, key_piece, pieces_of, screen_pieces
from penstock.sinks.postgres.ddl.user_types import TypePlan, TypeRules, needed_types, plan_types
from penstock.sinks.postgres.expressions.expressions import BUILTIN, ExpressionRules
from penstock.sinks.postgres.mapping.kept_names import KeptNames
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    import psycopg

    from penstock.schema.description import TableDescription, TableStructure
    from penstock.schema.shape import ConstraintShape, IndexShape, TableShape
    from penstock.sinks.postgres.mapping.table_mapping import TableMapping

    Connection = psycopg.Connection[Any]
    Cursor = psycopg.Cursor[Any]

_log = logging.getLogger(__name__)

__all__ = [
    "AlterContext",
    "Followed",
    "Policy",
    "create_from_shape",
    "drop_gone_foreign_keys",
    "drop_table",
    "follow",
    "make_new_foreign_keys",
    "refusal",
]

Policy = Literal["apply", "additive", "ignore", "stop"]
_Part = TypeVar("_Part", "ConstraintShape", "IndexShape")


@dataclass(frozen=True)
class Others:
    """Other sources' rows are in the table. `ours` is the condition for ours, as `t`; None: there is none."""

    ours: sql.Composable | None = None


@dataclass(frozen=True)
class Followed:
    """What was done. `target` is where the table is now.

    `column_names` is what the target calls columns of the source where that is not their name;
    `left_out` are columns of the source whose name at the target is another column's. With
    `needs_copy` rows hold what cannot be known here: the table is to be copied.
    """

    target: TableName
    statements: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    needs_copy: bool = False
    column_names: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    awaits_names: bool = False  # of indexes and constraints that others have

    def kept_names(self, place: TableName, ruled_as: TableName | None) -> KeptNames:
        """Names that were not followed; `place` is where the table would be."""
        # A column whose name at the target is another one's has no place there.
        columns = {**self.column_names, **dict.fromkeys(self.left_out, "")}
        moved = self.target if self.target != place else None
        return KeptNames(moved, tuple(sorted(columns.items())), ruled_as)


@dataclass(frozen=True)
class AlterContext:
    """What the sink's options, its records and the occasion say of one table that follows.

    `place` says where a source table goes, `wanted` which columns the sink takes (None: all),
    `names` what the target calls columns where that is not their name. `has_using`:
    the source has computed values of a changed column itself. `before_copy`: its rows are about to be
    replaced, so what is claimed of rows is left for later. `moved` is where the table belongs
    afterwards, if not where `place` says; with `keeps_names` columns keep their names here. With
    `others`, other sources deliver to the table too; `table_mapping` says which columns are penstock's own,
    `rules` which expressions are taken over, and `owner`, pipeline and source, whose records say which types
    penstock has made. `losing` says which tables of the target lose what the source's lose (None: all), where
    they share a type.
    """

    place: Callable[[TableName], TableName]
    policy: Policy
    wanted: tuple[str, ...] | None
    made_by_us: bool
    with_indexes: bool
    with_foreign_keys: bool
    has_using: bool = False
    before_copy: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    moved: TableName | None = None
    keeps_names: bool = False
    others: Others | None = None
    table_mapping: TableMapping | None = None
    rules: ExpressionRules = BUILTIN
    owner: tuple[str, str] | None = None
    losing: Callable[[], Collection[TableName]] | None = None

    @property
    def is_additive(self) -> bool:
        """Nothing is taken away at the target."""
        return self.policy == "additive"

    @property
    def column_rules(self) -> ColumnRules:
        """What of this concerns columns."""
        return ColumnRules(
            self.wanted,
            self.names,
            own_names(self.table_mapping),
            with_renames=self.policy != "ignore" and not self.keeps_names,
            with_drops=self.policy in ("apply", "stop"),
        )

    def target_of(self, after: TableShape, target: TableName) -> TableName:
        """Where the table that is at `target` belongs once it has followed."""
        if self.policy == "ignore":
            return target
        return self.moved or self.place(after.table)


def follow(
    cursor: Cursor,
    before: TableShape,
    after: TableShape,
    target: TableName,
    context: AlterContext,
) -> Followed:
    """Do to the target's table what was done to the source's, as far as the policy goes.

    Repeated, it does nothing more.

    Raises:
        TargetTableUnfit: a column would be called as one of penstock's own.
        SchemaChangeRefused: the target refuses a statement that nothing can stand for.
        SchemaChangeStops: the policy is to stop, and there is something to do.
        TargetTableMissing: there is no such table at the target.
        psycopg.Error: others are in the way, or the server went away.
    """
    connection = cursor.connection
    require_spelled(after.table, after.columns)
    with connection.transaction(), without_search_path(connection):
        moved = context.target_of(after, target)
        found = _find(connection, after, target, moved)
        claims = claim_columns(before, after, found, context.column_rules)
        if context.policy == "ignore":
            return _ignored(target, claims, has_using=context.has_using)
        refuse_own(claims, after.table)
        table = _Table(connection, before, after, found, moved, claims, context)
        steps = [*table.steps()]
        differences = compare_tables(before, after)
        if context.policy == "stop" and any(not step.is_record for step in steps):
            raise _stops(connection, after, found, describe_differences(differences), steps)
        parts = {each.part for each in differences} | {str(each.before) for each in differences}
        described = (
            f"source: {describe_differences(differences)}; target:"
            f" {found.table} ({describe_columns(found, parts) or 'none of these columns'})"
        )
        outcome = run_steps(connection, steps, after.table, described, context.rules)
    return Followed(
        target=moved,
        statements=outcome.statements,
        notes=[*table.notes, *outcome.notes],
        needs_copy=table.needs_copy,
        column_names=claims.column_names,
        left_out=tuple(claims.left_out),
        awaits_names=outcome.awaits_names or table.awaits_names,
    )


def _find(
    connection: Connection, after: TableShape, target: TableName, moved: TableName
) -> TableShape:
    """The target's table: where it was, or where it is to be, if a person was quicker."""
    there = read_shapes(connection, [target, moved], str(target))
    found = there.get(target) or there.get(moved)
    if found is None:
        raise TargetTableMissing(
            f"the target has no table {target}, whose shape is to follow the source's",
            str(after.table),
            f"penstock tables PIPELINE.yml resync {after.table} makes it again and copies its rows",
        )
    return found


def _ignored(target: TableName, claims: Claims, *, has_using: bool) -> Followed:
    notes = ["values that the source has computed anew are not copied"] if has_using else []
    # A column is new at the source and its name is at the target, of one that is gone.
    left_out = (*claims.left_out, *claims.of_source(sorted(claims.reused)))
    return Followed(target, notes=notes, column_names=claims.column_names, left_out=left_out)


def _stops(
    connection: Connection, after: TableShape, found: TableShape, described: str, steps: list[Step]
) -> SchemaChangeStops:
    statements = "; ".join(
        step.statement.as_string(connection) for step in steps if not step.is_record
    )
    return SchemaChangeStops(
        f"the table's shape changed at the source, and schema_changes is stop: {described}",
        str(after.table),
        f"alter {found.table} at the target; this is what apply would run: {statements}",
    )


@dataclass
class _Table:
    """One table on its way from one shape to the other."""

    connection: Connection
    before: TableShape
    after: TableShape
    found: TableShape
    moved: TableName
    claims: Claims
    context: AlterContext
    needs_copy: bool = False
    awaits_names: bool = False
    notes: list[str] = field(default_factory=list)

    def steps(self) -> Iterator[Step]:
        """What is free comes before what takes its place, columns before what is made of them."""
        context = self.context
        make_way = [*self._make_way()] if context.made_by_us else []
        types = self._types()
        columns = self._column_changes(types)
        pieces = self._piece_changes(columns)
        with_foreign_keys = (
            context.with_foreign_keys and context.made_by_us and not context.is_additive
        )
        pictures = (self.before, self.after, self.found, self.moved)
        yield from types.steps
        yield from self._sequences()
        yield from make_way
        yield from self._move()
        if with_foreign_keys:
            yield from drop_foreign_keys(*pictures)
        yield from pieces.drops()
        yield from columns.drops()
        yield from columns.renames()
        yield from pieces.renames()
        yield from columns.types()
        if context.others is not None:
            yield from columns.shared_additions(context.others.ours)
        else:
            yield from columns.additions()
        yield from columns.attributes()
        if not context.before_copy:
            yield from pieces.additions()
        if with_foreign_keys:
            yield from make_foreign_keys(*pictures, context.place)
        # A column that was dropped was kept; the source's rows do not have what it holds any more.
        is_reused = context.is_additive and context.others is None and bool(self.claims.met)
        self.needs_copy = columns.needs_copy or is_reused
        self.notes += [*types.notes, *columns.notes, *pieces.notes]

    def _column_changes(self, types: TypePlan) -> ColumnChanges:
        claims, context = self.claims, self.context
        at_target = {each.after.name for each in claims.kept} | {c.name for c in claims.added}
        return ColumnChanges(
            self.connection,
            self.before,
            self.after,
            self.found,
            self.moved,
            claims,
            context.is_additive,
            context.has_using,
            is_partial=len(at_target) < len(self.after.columns),
            replaced=types.replaced,
            before_copy=context.before_copy,
        )

    def _piece_changes(self, columns: ColumnChanges) -> PieceChanges:
        context = self.context
        lost = {each.found.name for each in columns.remade}
        if not context.is_additive:
            lost |= {column.name for column in self.claims.dropped}
        return PieceChanges(
            self.before,
            self.after,
            self.found,
            self.moved,
            self.claims,
            lost,
            context.is_additive,
            context.made_by_us and context.with_indexes,
        )

    def _types(self) -> TypePlan:
        """Types of columns that the target has, or is to have."""
        added = {column.type_id for column in self.claims.added}
        kept = {each.after.type_id for each in self.claims.kept}
        changed = {
            each.after.type_id
            for each in self.claims.kept
            if not is_same_type(each.before, each.after)
        }
        types = needed_types(self.after.types, added | kept)
        needed = {each.id for each in needed_types(self.after.types, added | changed)}
        return plan_types(
            self.connection,
            self.context.owner,
            self.after.table,
            types,
            self.before.types,
            needed=needed,
            rules=TypeRules(
                may_take_away=not self.context.is_additive,
                sets_defaults=self.context.policy != "stop",
                losing=self._losing(),
            ),
        )

    def _losing(self) -> Callable[[], Collection[TableName]] | None:
        """Tables of the target that lose what the source's lose: this one, and others by what the sink says."""
        losing, own = self.context.losing, self.found.table
        return None if losing is None else lambda: {own, *losing()}

    def _sequences(self) -> Iterator[Step]:
        """Those that defaults name from now on."""
        known = {each.id for each in self.before.sequences}
        new = [each for each in self.after.sequences if each.id not in known]
        if self.context.others is None:
            yield from plan_sequences(self.connection, self.context.owner, new, self.found.table)

    def _make_way(self) -> Iterator[Step]:
        """What goes to another schema with the table must not be called as something is there."""
        found, schema = self.found, self.moved.schema
        if found.schema_name == schema:
            return
        named = [each.name for each in found.indexes]
        named += [each.name for each in found.constraints if each.kind != "c"]
        known = {each.name for each in self.before.indexes}
        known |= {each.name for each in self.before.constraints}
        others: dict[str, str] = {}
        for name in sorted(taken_names(self.connection, schema, named)):
            if name in known:
                others[name] = stand_in(found.id, name)
                self.awaits_names = True
            else:  # it is the target's own, or has got another name before
                others[name] = name_alike(self.connection, {found.schema_name, schema}, name)
            yield Step(rename_object(found.table, name, others[name], has_index=True))

        def called(parts: tuple[_Part, ...]) -> tuple[_Part, ...]:
            return tuple(
                each.model_copy(update={"name": others.get(each.name, each.name)})
                if getattr(each, "kind", "") != "c"
                else each
                for each in parts
            )

        self.found = found.model_copy(
            update={"indexes": called(found.indexes), "constraints": called(found.constraints)}
        )

    def _move(self) -> Iterator[Step]:
        found, moved = self.found.table, self.moved
        if found.schema != moved.schema:
            yield from schema_steps(self.connection, self.context.owner, moved.schema)
            if (
                taken_names(self.connection, moved.schema, [found.name])
                and found.name != moved.name
            ):
                # By way of a name that nobody has in either of them.
                between = stand_in(self.found.id, moved.name)
                yield Step(alter_table(found, "RENAME TO {}", between))
                found = TableName(found.schema, between)
            yield Step(alter_table(found, "SET SCHEMA {}", moved.schema))
        if found.name != moved.name:
            yield Step(alter_table(TableName(moved.schema, found.name), "RENAME TO {}", moved.name))


def create_from_shape(
    cursor: Cursor,
    description: TableDescription,
    structure: TableStructure,
    target: TableName,
    *,
    with_indexes: bool,
    rules: ExpressionRules = BUILTIN,
) -> Outcome:
    """Create an empty table with its key; a note for each thing left undone.

    Raises:
        SchemaChangeRefused: the target refuses the key.
        psycopg.Error: it refuses the table.
    """
    connection = cursor.connection
    columns = {each.name for each in description.columns}
    with connection.transaction():
        notes = create_table(connection, description, target, None, with_key=False, rules=rules)
        _log.info("created %s like the source's %s", target, description.name)
        with without_search_path(connection):
            steps: list[Step] = []
            oid = table_oid(connection, target)
            key = key_piece(target, structure, columns)
            if key is not None:
                steps.append(
                    Step(
                        key.named,
                        instead=(Step(key.unnamed),),
                        when=TAKEN,
                        displaced=Displaced.of(key, oid),
                    )
                )
            pieces, left_out = screen_pieces(
                connection, rules, target, pieces_of(target, structure, columns)
            )
            for piece in pieces if with_indexes else ():
                undone = f"{piece.word} {piece.name}"
                steps.append(
                    Step(
                        piece.named,
                        undone,
                        (Step(piece.unnamed, undone),),
                        when=TAKEN,
                        displaced=Displaced.of(piece, oid),
                    )
                )
            made = run_steps(connection, steps, description.name, f"{target} is new")
            made.notes[:0] = [*notes, *(left_out if with_indexes else ())]
            return made


def drop_gone_foreign_keys(
    cursor: Cursor,
    before: TableShape,
    after: TableShape | None,
    target: TableName,
    *,
    before_copy: bool = False,
) -> list[str]:
    """Drop the foreign keys that the source's table has no more; the statements that were run.

    All of them, where the table itself is gone. `before_copy`: also those that have another name by now.

    Raises:
        SchemaChangeRefused: the target refuses.
        psycopg.Error: others are in the way, or the server went away.
    """
    connection = cursor.connection
    with connection.transaction(), without_search_path(connection):
        found = read_shapes(connection, [target], str(target)).get(target)
        if found is None:
            return []
        steps = drop_foreign_keys(before, after, found, target, before_copy=before_copy)
        described = describe_differences(compare_tables(before, after))
        return run_steps(connection, steps, before.table, described).statements


def make_new_foreign_keys(
    cursor: Cursor,
    before: TableShape,
    after: TableShape,
    target: TableName,
    place: Callable[[TableName], TableName],
) -> list[str]:
    """Make the foreign keys that are new or changed; a line for each that could not be made.

    Raises:
        psycopg.Error: others are in the way, or the server went away.
    """
    if not after.foreign_keys:
        return []  # most tables have none, and to read the target's is the dearest part
    connection = cursor.connection
    with connection.transaction(), without_search_path(connection):
        found = read_shapes(connection, [target], str(target)).get(target)
        if found is None:
            return []
        steps = make_foreign_keys(before, after, found, target, place)
        described = describe_differences(compare_tables(before, after))
        return run_steps(connection, steps, after.table, described).notes


def drop_table(
    cursor: Cursor, source: TableName, target: TableName, before: TableShape | None
) -> list[str]:
    """Drop the target's table, where there is one; the statements that were run.

    What the table leads to is none of its concern; what leads to it refuses.

    Raises:
        SchemaChangeRefused: the target refuses, since a view depends on it, say.
        psycopg.Error: others are in the way, or the server went away.
    """
    drop = sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(*target))
    described = f"source: table {before.table if before is not None else source} dropped"
    return run_steps(cursor.connection, [Step(drop)], source, described).statements
