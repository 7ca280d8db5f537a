"""What a person may say under `filter:`: which tables a sink has, and which of their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, model_validator

from penstock.errors import BadValue
from penstock.modifiers.filter.where import Where, read_where
from penstock.modifiers.operations import ALL_OPERATIONS, Operations
from penstock.options import Options, RuleOption, fault, wanted
from penstock.sql.text import SqlText, read_expression

if TYPE_CHECKING:
    from penstock.table import TableName


class TableChoice(Options):
    """`tables:` of a filter: those that a sink has, or those that it has not.

    What weighs more: exclude, then an include that names the table outright, then schema_only, then an
    include with a `*`.
    """

    include: tuple[RuleOption, ...] = ()
    exclude: tuple[RuleOption, ...] = ()
    # The table and its changes of shape arrive, its rows do not.
    schema_only: tuple[RuleOption, ...] = ()

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Self:
        if self.include and self.exclude:
            what = "stands beside include, wanted one of the two"
            raise fault(BadValue(what, do="take one of them out"), "exclude")
        if not (self.include or self.exclude or self.schema_only):
            raise wanted("include, exclude or schema_only, with at least one table")
        return self

    def excludes(self, table: TableName) -> bool:
        """Whether the sink does not have the table."""
        if any(rule.matches(table) for rule in self.exclude):
            return True
        if not self.include or self.has_no_rows_of(table):
            return False
        return not any(rule.matches(table) for rule in self.include)

    def has_no_rows_of(self, table: TableName) -> bool:
        """Whether only the table's shape arrives."""
        if any(rule.matches(table) for rule in self.exclude):
            return False
        outright = any(rule.is_outright and rule.matches(table) for rule in self.include)
        return not outright and any(rule.matches(table) for rule in self.schema_only)


def _read_condition(given: Any) -> Where | SqlText | None:
    if given is None:
        return None
    if isinstance(given, str):
        return read_expression(given)
    return read_where(given)


class FilterOptions(Options):
    """One rule: of tables as a whole (`tables`), or of the rows of some (`table`)."""

    tables: TableChoice | None = None
    table: RuleOption | None = None
    rows: Literal["none"] | None = None
    where: Annotated[Any, PlainValidator(_read_condition)] = None
    operations: Operations = Field(default=ALL_OPERATIONS)

    @model_validator(mode="after")
    def _of_tables_or_of_rows(self) -> Self:
        if self.tables is not None:
            for key in ("table", "rows", "where"):
                if getattr(self, key) is not None:
                    what = "stands beside tables, wanted a rule of its own"
                    raise fault(BadValue(what, do="write two rules"), key)
            return self
        if self.table is None:
            raise wanted("a filter with table: and where:, or with tables:")
        if (self.rows is None) == (self.where is None):
            raise wanted("a filter with one of where: and rows: none")
        return self

    @property
    def has_idle_operations(self) -> bool:
        """Whether `operations` says something that has no effect. No error: files that say it have run."""
        return self.where is None and self.operations != ALL_OPERATIONS

    def excludes(self, table: TableName) -> bool:
        """Whether the sink does not have the table at all."""
        return self.tables is not None and self.tables.excludes(table)
