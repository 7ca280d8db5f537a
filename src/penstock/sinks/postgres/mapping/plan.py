"""How one source table goes to the target: the picture that driver and executors share. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import TargetTableUnfit
from penstock.sinks.postgres.options import Kind, OnConflict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.sinks.sink import RefusedTable
    from penstock.table import TableName


@dataclass(frozen=True)
class TargetColumn:
    """A target column that a source column of the same name fills."""

    name: str
    # What a staging table declares: the column's type, domains resolved to their base, so that a
    # DELETE's row of NULLs passes and checks are made where the row is written.
    stage_type: str
    # Postgres refuses to UPDATE a GENERATED ALWAYS identity column.
    is_updatable: bool
    is_domain: bool = False
    # The operator that says whether two values are one: a type that an extension has brought has its
    # own, which no search_path of penstock's finds.
    equals: str = "="
    # Whether texts may be equal that are spelled differently: by a collation that is not
    # deterministic, or by a type like citext.
    is_loose: bool = False


@dataclass(frozen=True)
class FixedColumn:
    """A target column that has the same value in every row of this source: which source it is.

    Every match is with it, so that rows of other sources are never met.
    """

    name: str
    type: str  # as a cast spells it
    value: str
    equals: str = "="


@dataclass(frozen=True)
class HistoryPlan:
    """The columns of a history that say when a row was valid, and their types."""

    start: str
    start_type: str
    end: str
    end_type: str
    deleted: str


@dataclass(frozen=True)
class TablePlan:
    """One source table's way into the target."""

    source: TableName
    target: TableName
    columns: tuple[TargetColumn, ...]
    # Columns of the target that are not delivered to; they keep what people have put there.
    others: tuple[str, ...]
    # The source's primary key, for REPLICA IDENTITY FULL, where the changes do not have it.
    key: tuple[str, ...]
    # TRUNCATE is refused where another table's foreign key points here, whoever asks.
    is_referenced: bool = False
    # Parents before children, for a role that cannot switch foreign keys off.
    rank: int = 0
    # Source columns that the target calls differently.
    names: tuple[tuple[str, str], ...] = ()
    # Source columns to deliver, None for all: another's name may be what the target calls one of them.
    wanted: tuple[str, ...] | None = None
    is_new: bool = False  # made while it was planned
    # Another role can have it run something, by a trigger say: each transaction checks that again.
    is_watched: bool = False
    # Writing a row evaluates expressions: of a check, a computed column, an index. They may be the source's.
    evaluates: bool = False
    kind: Kind = Kind.CLONE
    fixed: tuple[FixedColumn, ...] = ()
    history: HistoryPlan | None = None
    # Rows of other tables are in the target, and nothing distinguishes them from this one's.
    is_mixed: bool = False
    # Rules leave rows of the table out: an UPDATE may bring one, a DELETE may have none to take away.
    lacks_rows: bool = False
    notes: tuple[str, ...] = ()  # what of it was left out when it was made

    def column(self, name: str) -> TargetColumn | None:
        """The target column for a source column, or None when it is not delivered or has no place."""
        if self.wanted is not None and name not in self.wanted:
            return None
        called = dict(self.names).get(name, name)
        return next((column for column in self.columns if column.name == called), None)

    def if_missing(self, conflict: OnConflict) -> OnConflict:
        """What a changed row means that is not at the target: no conflict where rules leave rows out."""
        return OnConflict.REPLACE if self.lacks_rows else conflict

    def equals(self, name: str) -> str:
        """The operator that compares values of a target column."""
        own: tuple[TargetColumn | FixedColumn, ...] = (*self.columns, *self.fixed)
        return next((each.equals for each in own if each.name == name), "=")

    def require(self, key: Iterable[str]) -> None:
        """See that the target has a place for what identifies rows of the source.

        Raises:
            TargetTableUnfit: it has not.
        """
        missing = [name for name in key if self.column(name) is None]
        if missing:
            raise TargetTableUnfit(
                f"the target lacks key columns {', '.join(missing)}",
                str(self.target),
                "add them to the target table, or to `columns:` of the sink",
            )


@dataclass(frozen=True)
class HistoryTimes:
    """The instants of a step of a history, in microseconds since 2000-01-01, and its staged types.

    A transaction may span several steps, all of one instant: then the step `follows` one that ended with
    the instant it begins with, and `is_followed` likewise.
    """

    first_at: int
    last_at: int
    types: tuple[str, str]
    follows: bool = False
    is_followed: bool = False


@dataclass(frozen=True)
class StagedStep:
    """One step of one table, staged: what the driver needs to merge it.

    The rows are `inline`, as COPY text, when they are few, else in the staging table `stage_table`.
    Staging columns are called c0, c1 … (in the order of `columns`), k0, k1 … (old key), op, g, n; and for
    a history f, a, u, d: first of its key, so from, until, ends deleted.
    """

    table: TableName
    kind: str  # "net": at most one row per key; "move"; "truncate"
    columns: tuple[TargetColumn, ...] = ()
    key: tuple[int, ...] = ()  # which of the columns identify a row; () when none do
    has_operations: bool = False  # else every row is an INSERT
    has_copies: bool = False
    unchanged: tuple[tuple[int, ...], ...] = ((),)  # per group g: columns that keep their value
    insert_count: int = 0
    update_count: int = 0
    delete_count: int = 0
    replace_count: int = 0  # rows that are another than the target's of that key, if it has one
    gone_count: int = 0  # rows that came and went, and are not missed where they are not
    inline: bytes | None = None
    stage_table: str | None = None
    restart_identity: bool = False
    times: HistoryTimes | None = None  # of a history

    @property
    def stage_columns(self) -> list[tuple[str, str]]:
        """Names and types of the staging table's columns."""
        declared: list[tuple[str, str]] = []
        if self.has_operations:
            declared.append(("op", '"char"'))
        if len(self.unchanged) > 1:
            declared.append(("g", "integer"))
        if self.has_copies:
            declared.append(("n", "bigint"))
        if self.times is not None:
            from_type, until_type = self.times.types
            declared += [("f", "boolean"), ("a", from_type), ("u", until_type), ("d", "boolean")]
        if self.kind == "move":
            declared += [
                (f"k{place}", self.columns[column].stage_type)
                for place, column in enumerate(self.key)
            ]
        declared += [(f"c{place}", column.stage_type) for place, column in enumerate(self.columns)]
        return declared


@dataclass(frozen=True)
class Staged:
    """What one task leaves for the driver: steps in the order they must be merged."""

    steps: tuple[StagedStep, ...]
    refused: tuple[RefusedTable, ...]
    change_counts: dict[TableName, int]  # as they came, before their net effect was taken
