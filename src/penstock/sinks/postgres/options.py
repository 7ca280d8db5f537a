"""What a person may say about a Postgres sink. Knows no server and no change."""

import enum
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from penstock.errors import BadTableRule
from penstock.options import DsnOption, Options, RuleOption, fault, not_yet, wanted
from penstock.table import TableName, TableRule

SAME_SCHEMA = "same"


class OnConflict(enum.Enum):
    """What it means that an inserted row is already there."""

    REPLACE = "replace"
    KEEP = "keep"
    STOP = "stop"


class SchemaChanges(enum.Enum):
    """What the target does when a table of the source changes its shape."""

    APPLY = "apply"
    ADDITIVE = "additive"
    IGNORE = "ignore"
    STOP = "stop"


def _identifier(given: str) -> str:
    # Postgres would cut a longer name without a word (NAMEDATALEN), and find another object. A
    # URL that slipped here is secret, and must not be printed as the name of something.
    if not 0 < len(given.encode()) < 64 or "://" in given:
        raise wanted("a name of 1 to 63 bytes")
    return given


def _some_and_distinct(given: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if given is not None and (not given or len(set(given)) < len(given)):
        raise wanted("a list of at least one column, each one once")
    return given


def _each_table_once(given: Any) -> Any:
    """`orders` and `public.orders` are two keys in YAML and one table; neither must win silently."""
    if not isinstance(given, Mapping):
        return {} if given is None else given
    seen: set[TableRule] = set()
    for key in given:
        try:
            rule = TableRule.parse(str(key))
        except BadTableRule:
            continue  # the key's own check tells it
        if rule in seen:
            raise fault(
                BadTableRule("the table is there twice", do="join the two entries"), str(key)
            )
        seen.add(rule)
    return given


Identifier = Annotated[str, AfterValidator(_identifier)]


class TableOptions(Options):
    """One entry of `tables:`."""

    later: ClassVar = {"target": (None,)}

    kind: Annotated[Literal["clone"], not_yet("append", "history", now="clone")] = "clone"
    columns: Annotated[tuple[Identifier, ...] | None, AfterValidator(_some_and_distinct)] = None


class PostgresOptions(Options):
    """One Postgres to deliver to."""

    later: ClassVar = {"source_id_column": (None,)}

    kind: Literal["postgres"] = "postgres"
    url: DsnOption
    # Not `schema`: pydantic's models have a method of that name.
    schema_name: Identifier = Field(default=SAME_SCHEMA, alias="schema")
    create_tables: bool = True
    create_indexes: bool = True
    schema_changes: SchemaChanges = SchemaChanges.APPLY
    on_conflict: OnConflict = OnConflict.REPLACE
    tables: Annotated[dict[RuleOption, TableOptions], BeforeValidator(_each_table_once)] = Field(
        default={}
    )

    @property
    def keeps_schemas(self) -> bool:
        """Whether tables are in schemas of the same names as at the source."""
        return self.schema_name == SAME_SCHEMA

    def columns_of(self, table: TableName) -> tuple[str, ...] | None:
        """The columns to deliver of a source table; None means all.

        An entry that names the table outright decides, then the first one that matches.
        """
        matching = [rule for rule in self.tables if rule.matches(table)]
        matching.sort(key=lambda rule: not rule.is_outright)
        return self.tables[matching[0]].columns if matching else None
