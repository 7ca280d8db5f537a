"""Where rows of a source's tables go, and how: what the options say of each. Knows no server."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.sinks.postgres.options import Kind, SchemaChanges
from penstock.table import TableName, TableRule, filled, may_be_shared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.sinks.postgres.options import HistoryColumns, PostgresOptions, TableOptions


@dataclass(frozen=True)
class TableMapping:
    """Where one source table goes, and how.

    `columns` are those to deliver, by the source's names, None for all; `names` are what the target
    calls them where that is another name.
    """

    target: TableName
    kind: Kind
    columns: tuple[str, ...] | None
    names: Mapping[str, str]
    # A column that says which source a row is from, None where rows need not say it.
    source_id_column: str | None
    history: HistoryColumns | None
    # Rows of other sources or tables may be in the target.
    is_shared: bool
    # Rows of other tables may be in the target, and nothing distinguishes them from this one's.
    is_mixed: bool
    # Whether another source's table of the same place is none of a person's intention.
    refuses_others: bool
    # Where it goes was said outright: it stays there, whatever the source calls it later.
    keeps_place: bool
    # Names are said outright, or others deliver to the same columns: a rename is not followed.
    keeps_names: bool
    # The target's table is not the source's alone: dropped columns are others', or of the past.
    policy: SchemaChanges
    # Whether the target's table is one like the source's: same rows, so that its claims hold.
    is_like_source: bool


class TableMappings:
    """How the tables of one source are mapped in one sink; `sources` are all that the pipeline has."""

    def __init__(
        self, options: PostgresOptions, pipeline: str, source: str, sources: Sequence[str]
    ) -> None:
        self.options = options
        self.pipeline = pipeline
        self.source = source
        self.is_alone = len(sources) == 1
        self.sources = list(sources)
        targets = Counter(
            rule.target
            for rule in options.tables.values()
            if rule.target and "{table}" not in "".join(_name_of(rule.target))
        )
        wide = {
            rule.target
            for key, rule in options.tables.items()
            if rule.target and may_be_shared(key, _name_of(rule.target))
        }
        self._shared = {target for target, count in targets.items() if count > 1} | wide

    @property
    def owner(self) -> tuple[str, str]:
        """The pipeline and the source, as penstock's own tables at the target name them."""
        return self.pipeline, self.source

    @property
    def may_collide(self) -> bool:
        """Whether two tables could go to one at all.

        One that was renamed may have stayed where it was, and another one has its name by now.
        """
        options = self.options
        stays = (
            options.source_id_column is not None or options.schema_changes is SchemaChanges.IGNORE
        )
        rules = options.tables.values()
        return (
            stays
            or not self.is_alone
            or not options.keeps_schemas
            or any(rule.target for rule in rules)
        )

    def names_for(self, target: TableName) -> list[TableName]:
        """Source tables whose rules name the target outright."""
        wanted = TableRule(*target)
        return [
            TableName(key.schema, key.name)
            for key, rule in self.options.tables.items()
            if rule.target == wanted and key.schema is not None and key.name is not None
        ]

    @property
    def templates(self) -> list[str]:
        """Names that rules give to tables of several names, with the placeholders in them."""
        names = (rule.target.name for rule in self.options.tables.values() if rule.target)
        return sorted({name for name in names if name and "{" in name})

    def of(self, table: TableName, ruled_as: TableName | None = None) -> TableMapping:
        """How a table is mapped; `ruled_as` is what it was called when its rule was taken."""
        options = self.options
        rule = options.rule_of(ruled_as or table)
        is_shared = self._is_shared(rule)
        names = {name: called for name, called in (rule.columns or {}).items() if name != called}
        is_like_source = rule.kind is Kind.CLONE and not is_shared
        return TableMapping(
            target=self.target(table, ruled_as),
            kind=rule.kind,
            columns=tuple(rule.columns) if rule.columns is not None else None,
            names=names,
            source_id_column=options.source_id_column,
            history=options.history_columns if rule.kind is Kind.HISTORY else None,
            is_shared=is_shared,
            is_mixed=rule.target in self._shared
            or (is_shared and options.source_id_column is None),
            refuses_others=not self.is_alone and not self._is_ruled(rule),
            keeps_place=rule.target is not None or is_shared,
            keeps_names=is_shared or bool(names),
            policy=self._policy(is_like_source=is_like_source),
            is_like_source=is_like_source,
        )

    def _is_ruled(self, rule: TableOptions) -> bool:
        """What is said of a table is said of every source's; without a word one source has it alone."""
        return self.options.source_id_column is not None or rule.target is not None

    def _is_shared(self, rule: TableOptions) -> bool:
        # A column that identifies sources says that there are others, or were, or will be.
        if rule.target in self._shared or self.options.source_id_column is not None:
            return True
        return not self.is_alone and self._is_ruled(rule)

    def _policy(self, *, is_like_source: bool) -> SchemaChanges:
        policy = self.options.schema_changes
        if policy is SchemaChanges.APPLY and not is_like_source:
            return SchemaChanges.ADDITIVE
        return policy

    def adopts(self, table: TableName) -> bool:
        """Whether a table of the target's own is meant, with the rows that it has."""
        said = self.options.rule_of(table).adopt
        return self.options.adopt if said is None else said

    def ruled_as(self, before: TableName, after: TableName) -> TableName | None:
        """Whose rule holds for a table that is called differently from now on; None: its own.

        A history stays one, unless something is said of the new name itself.
        """
        options = self.options
        is_named = any(rule.is_outright and rule.matches(after) for rule in options.tables)
        if is_named or options.rule_of(before) == options.rule_of(after):
            return None
        return before

    def target(self, table: TableName, ruled_as: TableName | None = None) -> TableName:
        """Where a table goes."""
        rule = self.options.rule_of(ruled_as or table).target
        if rule is not None:
            return filled(_name_of(rule), table)
        if self.options.keeps_schemas:
            return table
        return TableName(self.options.schema_name, table.name)


def _name_of(target: TableRule) -> TableName:
    assert target.schema is not None, "a target is one table"
    assert target.name is not None, "as above"
    return TableName(target.schema, target.name)
