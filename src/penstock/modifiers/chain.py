"""The rules that hold for a sink, put together: of each table a chain, in the order of the file.

A rule of `filter` may also keep a whole table from a sink (`excludes`), and a table that lacks rows can be
referred to by no foreign key (`modified_shape`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from penstock.errors import ModifierError, RuleUnfit
from penstock.modifiers.effects import lost_effects
from penstock.modifiers.modifier import KeepsRows, Revised
from penstock.modifiers.places import located
from penstock.table import TableName, filled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.changes.decode import TableChanges
    from penstock.changes.pgoutput import Relation
    from penstock.modifiers.effects import Effect
    from penstock.modifiers.modifier import TableModifier
    from penstock.modifiers.rule import Rule
    from penstock.schema.shape import ForeignKeyShape, TableShape


@runtime_checkable
class NeedsShape(Protocol):
    """A modifier of a table that has to know more of its columns than changes say: what a domain is made
    over, the labels of an enum."""

    def with_shape(self, shape: TableShape) -> TableModifier:
        """The same, for rows of this shape. Runs on the driver.

        Raises:
            ModifierError: the rule and the table do not fit; the table stops.
        """


@runtime_checkable
class LacksRows(Protocol):
    """A modifier that leaves rows of a table out."""

    lacks_rows: bool


@runtime_checkable
class Excludes(Protocol):
    """Options of a rule that keep whole tables from a sink."""

    def excludes(self, table: TableName) -> bool:
        """Whether the sink does not have the table."""


@dataclass(frozen=True)
class Link:
    """One rule's part of a chain, and where the rule stands."""

    modifier: TableModifier
    family: str
    place: str


@dataclass(frozen=True)
class TableChain:
    """All that is done to one table, in order. A modifier itself."""

    links: tuple[Link, ...]

    def modified_shape(self, shape: TableShape) -> TableShape:
        """The shape after the last rule."""
        for link in self.links:
            with _placed(link):
                shape = link.modifier.modified_shape(shape)
        return shape

    def modified_relation(self, relation: Relation) -> Relation:
        """The description after the last rule."""
        for link in self.links:
            with _placed(link):
                relation = link.modifier.modified_relation(relation)
        return relation

    def apply(self, changes: TableChanges) -> TableChanges:
        """The changes after the last rule."""
        for link in self.links:
            with _placed(link):
                changes = link.modifier.apply(changes)
        return changes

    def with_shape(self, shape: TableShape) -> TableChain:
        """Each rule knows the shape that the ones before it leave.

        Raises:
            ModifierError: a rule and the table do not fit.
        """
        links: list[Link] = []
        for link in self.links:
            with _placed(link):
                modifier = link.modifier
                if isinstance(modifier, NeedsShape):
                    modifier = modifier.with_shape(shape)
                links.append(Link(modifier, link.family, link.place))
                shape = modifier.modified_shape(shape)
        return TableChain(tuple(links))

    @property
    def keeps_rows(self) -> bool:
        """Whether the sink may have rows that the source has no more."""
        modifiers = [link.modifier for link in self.links]
        return any(isinstance(each, KeepsRows) and each.keeps_rows for each in modifiers)

    @property
    def lacks_rows(self) -> bool:
        """Whether the sink may not have all rows of the table."""
        modifiers = [link.modifier for link in self.links]
        return any(isinstance(each, LacksRows) and each.lacks_rows for each in modifiers)


class _placed:  # noqa: N801 - reads like a statement
    """Errors of a rule say where it stands in the file."""

    def __init__(self, link: Link) -> None:
        self._place = link.place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, ModifierError) and self._place:
            where = located(self._place, error.where)
            raise type(error)(error.what, where, error.do) from None


@dataclass(frozen=True)
class Chain:
    """The rules of one sink. Implements `penstock.modifiers.modifier.Modifiers`; picklable.

    `known` are tables whose chains have been made for their shape (`bound`).
    """

    rules: tuple[Rule, ...]
    known: Mapping[TableName, TableChain] = field(default_factory=dict)
    _made: dict[TableName, TableChain] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Chain, (self.rules, self.known)

    def concerns(self, table: TableName) -> bool:
        """Whether something is done to a table's rows."""
        return bool(self.of(table).links)

    def of(self, table: TableName) -> TableChain:
        """What is done to a table."""
        if table in self.known:
            return self.known[table]
        if table not in self._made:
            self._made[table] = self._make(table)
        return self._made[table]

    def _make(self, table: TableName) -> TableChain:
        links = [
            Link(modifier, rule.family, rule.place)
            for rule in self.rules
            if (modifier := rule.modifier_for(table)) is not None
        ]
        return TableChain(tuple(links))

    def excludes(self, table: TableName) -> bool:
        """Whether the sink is not to have the table at all."""
        return any(
            isinstance(rule.options, Excludes) and rule.options.excludes(table)
            for rule in self.rules
        )

    def lacks_rows(self, table: TableName) -> bool:
        """Whether the sink may not have every row of a table."""
        return self.excludes(table) or self.of(table).lacks_rows

    def digest_of(self, table: TableName) -> str:
        """What the rules say of a table, in short; "" where nothing."""
        concerned: list[str] = []
        for rule in self.rules:
            modifier = rule.modifier_for(table)
            if modifier or self._excluded(rule, table):
                revision = modifier.revision if isinstance(modifier, Revised) else ""
                concerned.append(f"{rule.digest}~{revision}" if revision else rule.digest)
        return "-".join(concerned)

    def _excluded(self, rule: Rule, table: TableName) -> bool:
        return isinstance(rule.options, Excludes) and rule.options.excludes(table)

    def describe(self, table: TableName) -> str:
        """The rules of a table in one line, in their order; "" where there are none."""
        if self.excludes(table):
            return "not delivered"
        said = []
        for rule in self.rules:
            target = getattr(rule.options, "target", None)
            goes = target is not None and rule.options.table.matches(table)  # type: ignore[attr-defined]
            if not rule.place:
                continue  # nobody has written it
            if goes or rule.modifier_for(table) is not None:
                where = f" to {filled(target, table)}" if goes and target is not None else ""
                said.append(f"{rule.family}{where} ({rule.place})")
        return " > ".join(said)

    def modified_shape(self, shape: TableShape) -> TableShape:
        """How the sink sees a table, also one whose rows nothing is done to.

        Raises:
            ModifierError: a rule and the table do not fit.
        """
        if keys := [each for each in shape.foreign_keys if not self._has_all_rows_of(each)]:
            kept = tuple(each for each in shape.foreign_keys if each not in keys)
            shape = shape.model_copy(update={"foreign_keys": kept})
        return self.of(shape.table).modified_shape(shape)

    def require_fit(self, shape: TableShape, before: TableShape | None = None) -> None:
        """See that every rule fits a table of this shape, and that none is lost by how it was altered.

        Raises:
            ModifierError: one does not, or is.
        """
        self.of(shape.table).with_shape(shape)
        if before is not None and not self.excludes(shape.table):
            self._require_kept(before, shape)

    def _require_kept(self, before: TableShape, after: TableShape) -> None:
        """What was masked must not come bare under another name, or as another type."""
        listed = self._lost(before, after)
        if not listed:
            return
        if before.table == after.table:
            raise RuleUnfit(
                f"a column was altered so that what rules did to it is not done any more: {listed}",
                str(before.table),
                f"add a rule to {before.table} that names the column as it is now; keep is one",
            )
        raise RuleUnfit(
            f"the table is called {after.table} from here on, and what rules did under the old name is not"
            f" done under the new one: {listed}",
            str(before.table),
            f"add rules for {after.table}; leave those for {before.table} until the table has passed this",
        )

    def require_kept_by_part(self, root: TableShape, part: TableShape) -> None:
        """See that nothing is lost of what rules did to a table's rows while it was a partition of another.

        Raises:
            RuleUnfit: something is.
        """
        if self.excludes(part.table):
            return
        # A partition may number its columns otherwise.
        ids = {column.name: column.id for column in part.columns}
        columns = tuple(
            column.model_copy(update={"id": ids[column.name]})
            for column in root.columns
            if column.name in ids
        )
        if listed := self._lost(root.model_copy(update={"columns": columns}), part):
            raise RuleUnfit(
                f"the table was a partition of {root.table} until it was detached, and what rules did to its rows"
                f" there is not done to them here: {listed}",
                str(part.table),
                f"add rules for {part.table}, or leave it out: source: {{tables: {{exclude: …}}}}",
            )

    def _lost(self, before: TableShape, after: TableShape) -> str:
        """What was done to a table and is not any more, in words."""
        done, seen = self._effects(after)
        names = {column.id: column.name for column in seen.columns}
        lost = [
            f"{each.family} of column {names[each.column]}" if each.column else each.family
            for each in lost_effects(self._effects(before)[0], done)
            if each.column == 0 or each.column in names
        ]
        return ", ".join(dict.fromkeys(lost))

    def done_to_columns(self, shape: TableShape) -> dict[int, list[object]]:
        """What is done to the values of columns, by their ids, in order; equal where the same is done."""
        found: dict[int, list[object]] = {}
        for each in self._effects(shape)[0]:
            if each.family == "transform" and each.hides and each.column:
                found.setdefault(each.column, []).append(each.what)
        return found

    def _effects(self, shape: TableShape) -> tuple[list[Effect], TableShape]:
        """What the rules do to a table, and how the sink sees it; a rule that does not fit it does nothing."""
        found: list[Effect] = []
        for rule in self.rules:
            found += rule.effects(shape)
            if (modifier := rule.modifier_for(shape.table)) is not None:
                with suppress(ModifierError):
                    shape = modifier.modified_shape(shape)
        return found, shape

    def _has_all_rows_of(self, key: ForeignKeyShape) -> bool:
        return not self.lacks_rows(TableName(key.referenced_schema, key.referenced_name))

    def bound(self, shapes: Mapping[TableName, TableShape]) -> Chain:
        """The same for rows of tables of these shapes; those that nothing is done to are left out.

        A table whose shape no rule fits raises when its rows come: then it stops, and no other.
        """
        known: dict[TableName, TableChain] = {}
        for table, shape in shapes.items():
            chain = self.of(table)
            try:
                known[table] = chain.with_shape(shape)
            except ModifierError as error:
                known[table] = TableChain((Link(Unfit(error), "", ""),))
        return self.with_known(known)

    def with_known(self, known: Mapping[TableName, TableChain]) -> Chain:
        """The same with chains that have been made already."""
        return Chain(self.rules, known)


@dataclass(frozen=True)
class Unfit:
    """Stands for the rules of a table that do not fit it: nothing of it passes."""

    error: ModifierError

    def modified_shape(self, shape: TableShape) -> TableShape:
        """Raises what is wrong."""
        del shape
        raise self.error

    def modified_relation(self, relation: Relation) -> Relation:
        """A TRUNCATE may pass."""
        return relation

    def apply(self, changes: TableChanges) -> TableChanges:
        """Raises what is wrong."""
        del changes
        raise self.error


def chain_for(rules: Sequence[Rule], sink: str) -> Chain | None:
    """The rules that hold for a sink; None where there are none."""
    own = tuple(rule for rule in rules if rule.is_for(sink))
    return Chain(own) if own else None
