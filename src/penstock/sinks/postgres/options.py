"""What a person may say about a Postgres sink. Knows no server and no change."""

import enum
from collections.abc import Hashable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, model_validator

from penstock.errors import BadTableRule
from penstock.options import (
    DsnOption,
    Options,
    RuleOption,
    SinkOptions,
    fault,
    wanted,
)
from penstock.sinks.postgres.expressions.expressions import ExpressionRules
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


class Expressions(enum.Enum):
    """Which expressions of the source's are evaluated at the target."""

    BUILTIN = "builtin"
    NONE = "none"
    ALL = "all"


class Kind(enum.Enum):
    """What becomes of rows that change or go: they do so too, stay, or are kept with their time."""

    CLONE = "clone"
    APPEND = "append"
    HISTORY = "history"


def _identifier(given: str) -> str:
    # Postgres would cut a longer name without a word (NAMEDATALEN), and find another object. A
    # URL that slipped here is secret, and must not be printed as the name of something.
    if not 0 < len(given.encode()) < 64 or "://" in given:
        raise wanted("a name of 1 to 63 bytes")
    return given


def _read_columns(given: Any) -> Any:
    """A list says which columns are delivered, a mapping also what the target calls them."""
    if isinstance(given, list | tuple):
        # A list within the list cannot even be a key.
        if len(set(map(str, given))) < len(given) or not all(
            isinstance(name, Hashable) for name in given
        ):
            raise wanted("a list of at least one column, each one once")
        given = {name: name for name in given}
    if given is None:
        return None
    if not isinstance(given, Mapping) or not given:
        raise wanted("a list of at least one column, or a mapping of columns to the target's names")
    named = {name: name if called is None else called for name, called in given.items()}
    if len(set(map(str, named.values()))) < len(named):
        raise wanted("a mapping in which each column of the target is there once")
    return named


def _read_target(given: Any) -> TableRule | None:
    if given is None or isinstance(given, TableRule):
        return given
    if not isinstance(given, str) or "://" in given:
        raise wanted("a table: schema.table")
    try:
        rule = TableRule.parse(given)
    except BadTableRule as error:
        raise fault(error) from None
    if not rule.is_outright:
        raise wanted("one table: schema.table, without *")
    for part in (rule.schema or "", rule.name or ""):
        _identifier(part)
    if rule.schema == "penstock":
        raise wanted("a table that is not penstock's own")
    return rule


def _each_table_once(given: Any) -> Any:
    """`orders` and `public.orders` are two keys in YAML and one table; neither must win silently."""
    if not isinstance(given, Mapping):
        return {} if given is None else given
    seen: set[TableRule] = set()
    for key in given:
        try:
            rule = TableRule.parse(str(key))
        except BadTableRule:
            continue  # the key's own check reports it
        if rule in seen:
            raise fault(
                BadTableRule("the table is there twice", do="join the two entries"), str(key)
            )
        seen.add(rule)
    return given


Identifier = Annotated[str, AfterValidator(_identifier)]


Columns = Annotated[dict[Identifier, Identifier] | None, BeforeValidator(_read_columns)]
Target = Annotated[TableRule | None, PlainValidator(_read_target)]


class TableOptions(Options):
    """One entry of `tables:`."""

    kind: Kind = Kind.CLONE
    # Where the rows go; None: a table of the same name.
    target: Target = None
    # Which columns are delivered, and what the target calls them; None: all, by their own names.
    columns: Columns = None
    # Whether a table of the target's own, with rows, is meant; None: as the sink says.
    adopt: bool | None = None


class HistoryColumns(Options):
    """What the columns of a history are called that say when a row was valid."""

    # The names that Kuvasz-streamer gives them: its histories have the same three columns.
    start: Identifier = "kvsz_start"
    end: Identifier = "kvsz_end"
    deleted: Identifier = "kvsz_deleted"

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if len({self.start, self.end, self.deleted}) < 3:
            raise wanted("three different names")
        return self


class PostgresOptions(SinkOptions):
    """One Postgres to deliver to."""

    kind: Literal["postgres"] = "postgres"
    url: DsnOption
    # Not `schema`: pydantic's models have a method of that name.
    schema_name: Identifier = Field(default=SAME_SCHEMA, alias="schema")
    create_tables: bool = True
    create_indexes: bool = True
    schema_changes: SchemaChanges = SchemaChanges.APPLY
    # Defaults, checks, computed columns, indexes: which of their expressions are taken over.
    expressions: Expressions = Expressions.BUILTIN
    # Functions of the target that those may call beside Postgres's own.
    allow_functions: tuple[RuleOption, ...] = ()
    # Whether tables of the target's own, with rows, are meant.
    adopt: bool = False
    on_conflict: OnConflict = OnConflict.REPLACE
    # A column of every table that says which source a row is from; part of the key.
    source_id_column: Identifier | None = None
    history_columns: HistoryColumns = HistoryColumns()
    tables: Annotated[dict[RuleOption, TableOptions], BeforeValidator(_each_table_once)] = Field(
        default={}
    )

    @model_validator(mode="after")
    def _own_names_are_free(self) -> Self:
        """A column that penstock fills itself must not be one that a rule fills."""
        history = {
            self.history_columns.start,
            self.history_columns.end,
            self.history_columns.deleted,
        }
        sid = self.source_id_column
        if sid in history and any(rule.kind is Kind.HISTORY for rule in self.tables.values()):
            raise wanted("another name than that of a history's column", "source_id_column")
        for key, rule in self.tables.items():
            own = ({sid} if sid else set()) | (history if rule.kind is Kind.HISTORY else set())
            for name, called in (rule.columns or {}).items():
                if called in own:
                    raise wanted(
                        f"another name than {called}, which penstock fills itself",
                        *("tables", str(key), "columns", name),
                    )
        return self

    @property
    def expression_rules(self) -> ExpressionRules:
        """What is said of expressions, in one."""
        return ExpressionRules(self.expressions.value, self.allow_functions)

    @property
    def keeps_schemas(self) -> bool:
        """Whether tables are in schemas of the same names as at the source."""
        return self.schema_name == SAME_SCHEMA

    def rule_of(self, table: TableName) -> TableOptions:
        """What is said of a source table.

        An entry that names the table outright decides, then the first one that matches.
        """
        matching = [rule for rule in self.tables if rule.matches(table)]
        matching.sort(key=lambda rule: not rule.is_outright)
        return self.tables[matching[0]] if matching else TableOptions()
