"""A transaction of the source that changes the shape of tables, as sinks are given it: piece by piece.

Rows and changes of shape alternate, in the source's order; a sink delivers all of it as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.errors import PenstockError
    from penstock.schema.difference import Difference
    from penstock.schema.mark import Mark
    from penstock.schema.shape import SchemaChange
    from penstock.sinks.sink import Receipt, Worker
    from penstock.table import TableName


@dataclass(frozen=True)
class Rows:
    """Rows between two changes of shape; `RunJob` has a worker take them."""

    number: int  # which part of the transaction they are
    tables: frozenset[TableName]
    oids: Mapping[TableName, int] = field(default_factory=dict)  # of these tables at the source


@dataclass(frozen=True)
class TableDifference:
    """What has changed of one table; `table` is its name after it, or its last one."""

    table: TableName
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class ShapeChange:
    """What one statement of the source has changed."""

    mark: Mark
    change: SchemaChange
    versions: dict[str, int] = field(default_factory=dict)  # by schema, where they are numbered
    followed: tuple[TableDifference, ...] = ()  # of tables that the pipeline follows
    renamed: dict[TableName, TableName] = field(default_factory=dict)
    dropped: frozenset[TableName] = frozenset()
    # Tables that are in the stream since before their first row: there is nothing to copy.
    created_in_stream: frozenset[TableName] = frozenset()
    # Tables, by their names before it, that no modifier fits any more: they stop.
    refused: Mapping[TableName, PenstockError] = field(default_factory=dict)

    def name_after(self, table: TableName) -> TableName:
        """What a table is called after it, or was when it was dropped."""
        return self.renamed.get(table, table)

    def left_of(self, tables: Iterable[TableName]) -> set[TableName]:
        """What those of some tables are called after it that it does not drop."""
        return {self.name_after(table) for table in tables if table not in self.dropped}

    def may_compute(self, differences: Sequence[Difference]) -> bool:
        """Whether rows of a table that has these differences may hold values that the statement computed: `TYPE … USING …`."""
        # Others, such as Relation messages, do not say so.
        is_reported = self.change.tag == "ALTER TABLE" and not self.change.has_using
        return not is_reported and any(each.op == "column_type" for each in differences)


Part = Rows | ShapeChange
DdlTransaction = Sequence[Part]
# Has a worker take rows of one part, or of several that follow one another.
RunJob = Callable[["Worker", Sequence[Rows]], "list[Receipt]"]


def refused_in(ddl_transaction: DdlTransaction) -> dict[TableName, PenstockError]:
    """Tables that no modifier fits after a change in it, by their names before that."""
    parts = [part for part in ddl_transaction if isinstance(part, ShapeChange)]
    return {table: error for part in parts for table, error in part.refused.items()}


def changed_in(ddl_transaction: DdlTransaction) -> set[TableName]:
    """Every table that a statement in it changes, under all its names."""
    found: set[TableName] = set()
    for part in ddl_transaction:
        if not isinstance(part, Rows):
            found |= {each.table for each in part.followed if each.differences} | part.dropped
            found |= set(part.renamed) | set(part.renamed.values())
    return found


def created_in(ddl_transaction: DdlTransaction) -> set[TableName]:
    """Tables that are in the stream since before their first row, and came with it."""
    parts = [part for part in ddl_transaction if not isinstance(part, Rows)]
    return {table for part in parts for table in part.created_in_stream}


def named_in(ddl_transaction: DdlTransaction) -> set[TableName]:
    """Names that tables get in it."""
    parts = [part for part in ddl_transaction if not isinstance(part, Rows)]
    return created_in(ddl_transaction).union(*(part.renamed.values() for part in parts))


def names_through(ddl_transaction: DdlTransaction) -> dict[TableName, TableName | None]:
    """Tables that are renamed or dropped in it, by what they were called before: their names after it, None of one that is
    gone. Not those that came with it."""
    found: dict[TableName, TableName | None] = {}
    created: set[TableName] = set()
    for part in ddl_transaction:
        if isinstance(part, Rows):
            continue
        began_as = {now: before for before, now in found.items() if now is not None}
        renamed = {table: name for table, name in part.renamed.items() if table not in created}
        gone = part.dropped - created
        found |= {began_as.get(table, table): None for table in gone}
        found |= {began_as.get(table, table): name for table, name in renamed.items()}
        created = part.left_of(created) | part.created_in_stream
    return found


def renamed_together(ddl_transaction: DdlTransaction) -> dict[TableName, frozenset[TableName]]:
    """Names that are one table's, or that tables exchange: by each of them, all that belong together."""
    found: dict[TableName, frozenset[TableName]] = {}
    for part in ddl_transaction:
        if not isinstance(part, Rows):
            for old, new in part.renamed.items():
                group = found.get(old, frozenset({old})) | found.get(new, frozenset({new}))
                found |= dict.fromkeys(group, group)
    return found


def entangled_in(
    ddl_transaction: DdlTransaction, known: Collection[TableName], *, knows_all: bool
) -> set[TableName]:
    """Names in it that do not say which table is meant, and all that tables exchange with those.

    One table has such a name before another one, or a table came with the transaction and got another name there; so
    did one that is not among the `known` ones, if these are all that there were.
    """
    names = _Names(knows_all)
    for table in known:
        names.add(table)
    for part in ddl_transaction:
        if isinstance(part, ShapeChange):
            names.follow(part)
    together = renamed_together(ddl_transaction)
    return {name for table in names.unclear() for name in together.get(table, (table,))}


class _Names:
    """Who has had which name so far in a transaction; tables are numbers here, in the order in which they are met."""

    def __init__(self, knows_all: bool) -> None:
        self._knows_all = knows_all
        self._numbers = count()
        self._called: dict[TableName, int] = {}  # as of now
        self._owners: defaultdict[TableName, set[int]] = defaultdict(set)
        self._came: set[int] = set()  # with the transaction
        self._taken_by_new: set[TableName] = set()

    def add(self, table: TableName) -> None:
        """A table that nobody has met."""
        self._called[table] = number = next(self._numbers)
        self._owners[table].add(number)

    def follow(self, part: ShapeChange) -> None:
        """Tables come, are renamed and go."""
        for table in {*part.created_in_stream, *part.renamed, *part.dropped} - self._called.keys():
            self.add(table)
            if self._knows_all or table in part.created_in_stream:
                self._came.add(self._called[table])
        moved = {new: self._called.pop(old) for old, new in part.renamed.items()}
        for table, number in moved.items():
            self._owners[table].add(number)
            if number in self._came:
                self._taken_by_new.add(table)
        self._called |= moved
        for table in part.dropped:
            self._called.pop(table, None)

    def unclear(self) -> set[TableName]:
        """Names that several tables have had, or that one got which came with the transaction."""
        shared = {table for table, numbers in self._owners.items() if len(numbers) > 1}
        return self._taken_by_new | shared


def tables_of(ddl_transaction: DdlTransaction) -> set[TableName]:
    """Every table that has rows in it, or that it changes, under all its names."""
    found: set[TableName] = set()
    for part in ddl_transaction:
        if isinstance(part, Rows):
            found |= part.tables
        else:
            found |= {each.table for each in part.followed} | part.dropped | set(part.refused)
            found |= set(part.renamed) | set(part.renamed.values())
    return found


def changed_schemas(ddl_transaction: DdlTransaction) -> dict[str, int | None]:
    """The schemas in which it changes tables that are followed; with their versions, where these are counted."""
    found: dict[str, int | None] = {}
    for part in ddl_transaction:
        if isinstance(part, ShapeChange):
            renamed = {*part.renamed, *part.renamed.values()}
            tables = {each.table for each in part.followed} | part.dropped | renamed
            found |= dict.fromkeys({table.schema for table in tables} - found.keys())
            found |= part.versions
    return found
