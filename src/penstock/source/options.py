"""What a person may say about a source. Knows no server and no file."""

import enum
from typing import Annotated, Any, Self

from pydantic import Field, PlainValidator, model_validator

from penstock.errors import BadTableRule
from penstock.options import DsnOption, Options, RuleOption, Seconds, fault, wanted
from penstock.table import TableRules


class Acknowledge(enum.Enum):
    """What is acknowledged to the slot: the position of the slowest sink, or of the log."""

    DELIVERED = "delivered"
    LOGGED = "logged"


class TableChoice(Options):
    """`tables:`, a list of what to include or both lists."""

    include: tuple[RuleOption, ...] = ()
    exclude: tuple[RuleOption, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _read_list(cls, given: Any) -> Any:
        if isinstance(given, str):
            raise wanted('a list such as ["public.*"]')
        return {"include": given} if isinstance(given, list | tuple) else given

    @model_validator(mode="after")
    def _choose_something(self) -> Self:
        if not self.include and not self.exclude:
            raise fault(
                BadTableRule(
                    "no table is named, wanted at least one to include or exclude",
                    do='write tables: ["public.*"], or name the tables one by one',
                )
            )
        return self


class SnapshotMode(enum.Enum):
    """Whether tables are copied before they are followed."""

    INITIAL = "initial"
    NEVER = "never"


def _read_count(given: Any) -> int:
    # Text as well: a variable from the environment is.
    if not isinstance(given, bool) and str(given).isdecimal() and 0 < int(given) < 1 << 31:
        return int(given)
    raise wanted("a whole number of at least 1")


Count = Annotated[int, PlainValidator(_read_count)]


class SnapshotOptions(Options):
    """`snapshot:`, how tables are copied before they are followed."""

    mode: SnapshotMode = SnapshotMode.INITIAL
    parallel: Count | None = None  # None: as many as Spark runs at once
    max_rows_per_second: Count | None = None
    url: DsnOption | None = None  # a standby to copy from; None: the source itself

    @model_validator(mode="before")
    @classmethod
    def _read_mode(cls, given: Any) -> Any:
        return {"mode": given} if isinstance(given, str) else given

    @property
    def copies_first(self) -> bool:
        """Whether a table that is new is copied first."""
        return self.mode is SnapshotMode.INITIAL


class Tracking(enum.Enum):
    """How changes of a table's shape are noticed: by the source's triggers, by the stream, not."""

    TRIGGERS = "triggers"
    RELATION = "relation"
    OFF = "off"


class SchemaOptions(Options):
    """`schema:`, how changes of a table's shape are noticed."""

    tracking: Tracking = Tracking.TRIGGERS


class SourceOptions(Options):
    """One Postgres to follow, and which of its tables."""

    url: DsnOption
    chosen: TableChoice = Field(default={}, alias="tables", validate_default=True)
    insert_only: tuple[RuleOption, ...] = ()
    snapshot: SnapshotOptions = SnapshotOptions()
    schema_options: SchemaOptions = Field(default=SchemaOptions(), alias="schema")
    acknowledge: Acknowledge = Acknowledge.DELIVERED
    heartbeat_seconds: Seconds = 10.0

    @property
    def tables(self) -> TableRules:
        """Which tables are followed, and which of them for their inserts alone."""
        return TableRules(self.chosen.include, self.chosen.exclude, self.insert_only)
