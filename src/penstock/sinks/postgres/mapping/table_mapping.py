"""Where rows of a source's tables land, and how: what the options say of each. Knows no server."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.sinks.postgres.options import Kind, SchemaChanges
from penstock.table import TableName, TableRule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.sinks.postgres.options import HistoryColumns, PostgresOptions


@dataclass(frozen=True)
class Landing:
    """How one source table lands.

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
    # Rows of other tables may be in the target, and nothing tells them from this one's.
    is_mixed: bool
    # Whether another source's table of the same place is none of a person's intention.
    refuses_others: bool
    # Where it lands was said outright: it stays there, whatever the source calls it later.
    keeps_place: bool
    # Names are said outright, or others deliver to the same columns: a rename is not followed.
    keeps_names: bool
    # The target's table is not the source's alone: dropped columns are others', or history.
    policy: SchemaChanges
    # Whether the target's table is one like the source's: same rows, so that its claims hold.
    is_like_source: bool


class Landings:
    """How the tables of one source land in one sink; `sources` are all that the pipeline has."""

    def __init__(
        self, options: PostgresOptions, pipeline: str, source: str, sources: Sequence[str]
    ) -> None:
        self.options = options
        self.pipeline = pipeline
        self.source = source
        self.is_alone = len(sources) == 1
        self.sources = list(sources)
        targets = Counter(rule.target for rule in options.tables.values() if rule.target)
        wide = {
            rule.target
            for key, rule in options.tables.items()
            if rule.target and not key.is_outright
        }
        self._shared = {target for target, count in targets.items() if count > 1} | wide

    @property
    def owner(self) -> tuple[str, str]:
        """The pipeline and the source, as penstock's own tables at the target name them."""
        return self.pipeline, self.source

    @property
    def may_collide(self) -> bool:
        """Whether two tables could land in one at all.

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

    def of(self, table: TableName, ruled_as: TableName | None = None) -> Landing:
        """How a table lands; `ruled_as` is what it was called when its rule was taken."""
        options = self.options
        rule = options.rule_of(ruled_as or table)
        sid = options.source_id_column
        # What is said of a table is said of every source's; without a word one source has it alone.
        is_told = sid is not None or rule.target is not None
        # A column that tells sources apart says that there are others, or were, or will be.
        is_shared = rule.target in self._shared or sid is not None
        is_shared = is_shared or (not self.is_alone and is_told)
        columns = rule.columns
        names = {name: called for name, called in (columns or {}).items() if name != called}
        keeps = rule.kind is not Kind.CLONE or is_shared
        policy = options.schema_changes
        return Landing(
            target=self.target(table, ruled_as),
            kind=rule.kind,
            columns=tuple(columns) if columns is not None else None,
            names=names,
            source_id_column=sid,
            history=options.history_columns if rule.kind is Kind.HISTORY else None,
            is_shared=is_shared,
            is_mixed=rule.target in self._shared or (is_shared and sid is None),
            refuses_others=not self.is_alone and not is_told,
            keeps_place=rule.target is not None or is_shared,
            keeps_names=is_shared or bool(names),
            policy=SchemaChanges.ADDITIVE if keeps and policy is SchemaChanges.APPLY else policy,
            is_like_source=not keeps,
        )

    def adopts(self, table: TableName) -> bool:
        """Whether a table of the target's own is meant, with the rows that it has."""
        said = self.options.rule_of(table).adopt
        return self.options.adopt if said is None else said

    def ruled_as(self, before: TableName, after: TableName) -> TableName | None:
        """Whose rule holds for a table that is called differently from now on; None: its own.

        A history stays one, unless something is said of the new name itself.
        """
        options = self.options
        is_told = any(rule.is_outright and rule.matches(after) for rule in options.tables)
        if is_told or options.rule_of(before) == options.rule_of(after):
            return None
        return before

    def target(self, table: TableName, ruled_as: TableName | None = None) -> TableName:
        """Where a table lands."""
        rule = self.options.rule_of(ruled_as or table).target
        if rule is not None:
            assert rule.schema is not None
            assert rule.name is not None
            return TableName(rule.schema, rule.name)
        if self.options.keeps_schemas:
            return table
        return TableName(self.options.schema_name, table.name)
