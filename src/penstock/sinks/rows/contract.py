"""What a row sink is: `RowSink`, made by a `RowKind`. Public as `penstock.sink`.

It is a sink of documents whose documents are rows (`format`), so that copies, positions, parking and order are those of
every such sink. On the driver the rows of a batch are typed, and reduced to their net effect per key, before the sink
is given them.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, final

from penstock.changes.documents import key_places
from penstock.changes.netbatch import arrow_schema, net_batches
from penstock.changes.rowrecords import runs_of
from penstock.changes.typed import Unfit
from penstock.errors import DestinationRefuses
from penstock.findings import Finding
from penstock.options import Options
from penstock.sinks.documents.contract import DocumentKind, DocumentSink, DocumentsRefused
from penstock.sinks.kind import SinkKind
from penstock.table import TableName, name_tables

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from penstock.changes.decode import TableChanges
    from penstock.changes.netbatch import NetBatch
    from penstock.changes.rowrecords import Run
    from penstock.errors import PenstockError
    from penstock.sinks.documents.format import DocumentFormat
    from penstock.sinks.kind import SinkPlace

OptionsT = TypeVar("OptionsT", bound=Options)


@dataclass(frozen=True)
class RowChanges:
    """What changes of one table come to: at most one row for each key, to be applied as one set.

    `key_columns` are the names of the columns that identify a row; none where the whole row does.
    """

    table: TableName
    key_columns: tuple[str, ...]
    net: NetBatch
    _run: Run = field(repr=False, compare=False)

    @cached_property
    def ids(self) -> pa.Array:
        """For each row what the sink refuses it by: `DocumentsRefused({ids[number].as_py(): reason})`.

        Found when it is asked for: a sink that refuses nothing does not pay for it."""
        return self._run.ids_of(self.net.keys, len(self.net))


@dataclass(frozen=True)
class TableEmptied:
    """A table has no rows here: it was truncated, or a copy of it begins. `id` is what the sink refuses it by; None of a copy."""

    table: TableName
    id: str | None = None


@dataclass(frozen=True)
class TableAltered:
    """A table has changed its columns, its key or its name, or is gone. `differences` as documents have them.

    Also one that is not here yet, or is about to be copied again."""

    table: TableName
    id: str
    differences: list[dict[str, Any]]

    @property
    def former(self) -> TableName:
        """What the table was called before: the same, where no other name is among the differences."""
        renamed = (each["before"] for each in self.differences if each.get("op") == "rename_table")
        before = next(renamed, None)
        return self.table if before is None else TableName.parse(before)


TableChange = RowChanges | TableEmptied | TableAltered


class RowSink(DocumentSink):
    """Where rows go. All of `DocumentSink` holds, but that `apply` is written instead of `deliver`.

    The driver delivers, and the destination stores the state with the rows: `delivered_by` and `stores_state` stay as they
    are. A batch that came again would find what later ones have made: the new row under the key that another has left,
    equal rows of a table without a key, a table under its next name.
    """

    shows_rows = True
    stores_state = True

    unfit: ClassVar[Unfit] = Unfit.REPORT
    """What becomes of values that an Arrow type cannot hold: their rows are refused, or columns that may have such
    values are strings."""

    _begun: Mapping[TableName, str] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """See that the class keeps what every row sink is."""
        super().__init_subclass__(**kwargs)
        if not cls.stores_state or cls.delivered_by != "driver":
            raise TypeError(
                f"{cls.__name__}: a row sink is called by the driver, and its destination stores the state"
                " together with the rows: stores_state = True, delivered_by = 'driver'"
            )

    @abstractmethod
    def apply(self, changes: Iterator[TableChange], state: str | None) -> None:
        """Apply changes, those of each table in their order, and store the state with them: both or neither.

        On return all of it is durable. After an exception nothing has happened, or `open` finds out what has. There may
        be no changes at all: then only the state is stored. Iterating may raise: let that pass.

        Args:
            changes: read once.
            state: opaque, some kilobytes.

        Raises:
            DocumentsRefused: the destination does not take some rows, by their `ids`.
        """

    @final
    def begin_copies(self, copies: Mapping[TableName, str]) -> None:
        """Remember which tables are to be emptied by the next `deliver`."""
        self._begun = copies

    @final
    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        """Have the rows of the documents applied."""
        begun, self._begun = self._begun, None
        self.apply(self._changes(begun or {}, documents), state)

    def _changes(
        self, begun: Mapping[TableName, str], documents: Iterator[pa.RecordBatch]
    ) -> Iterator[TableChange]:
        for table in begun:
            yield TableEmptied(table)
        # Once a value is found unfit nothing of this is applied: the rest is read for what else is, so that one more
        # attempt does, however many there are.
        unfit: dict[str, str] = {}
        for batch in documents:
            for run in runs_of(batch):
                if run.changes is not None:
                    for change in self._row_changes(run, run.changes):
                        unfit |= _unfit_in(change)
                        if not unfit:
                            yield change
                elif not unfit:
                    yield _other_change(run)
        if unfit:
            raise DocumentsRefused(unfit)

    def _row_changes(self, run: Run, changes: TableChanges) -> Iterator[RowChanges]:
        relation = changes.relation
        key = key_places(relation)
        names = tuple(relation.columns[place].name for place in key)
        schema = arrow_schema(relation, enums=run.enums, unfit=self.unfit)
        for net in net_batches(changes, key, schema):
            yield RowChanges(run.table, names, net, run)


def _unfit_in(change: RowChanges) -> dict[str, str]:
    """Rows with a value that its Arrow type cannot hold, and why."""
    return {
        change.ids[row].as_py(): f"column {column} has a value that its Arrow type has not"
        for column, rows in change.net.unfit.items()
        for row in rows.tolist()
    }


def _other_change(run: Run) -> TableEmptied | TableAltered:
    [record] = run.records.to_pylist()
    if record["op"] == "truncate":
        return TableEmptied(run.table, record["id"])
    return TableAltered(run.table, record["id"], json.loads(record["value"])["difference"])


class RowKind(DocumentKind[OptionsT], Generic[OptionsT]):
    """A kind of row sink: its name, its options, and how the sink is made."""

    keeps_sources_apart: ClassVar[bool] = False
    """Whether rows of several sources never meet at the destination: each knows its source, or each source has tables of
    its own there (`place.source_id`). A kind with an `of_source` of its own gives each a place of its own, and need not say it."""

    worker_modules: ClassVar[tuple[str, ...]] = (
        "penstock.sinks.documents.worker",
        "penstock.sinks.rows.format",
    )

    @final
    def needs_primary_key(self, options: OptionsT) -> bool:
        """It identifies rows also with replica identity full. Where there is none a row is known by all of it."""
        del options
        return True

    @abstractmethod
    def sink(self, place: SinkPlace[OptionsT]) -> RowSink:
        """The sink, unopened."""

    @final
    def format(self, place: SinkPlace[OptionsT]) -> DocumentFormat:
        """Rows."""
        from penstock.sinks.rows.format import RowFormat

        del place
        return RowFormat()

    def build(self, place: SinkPlace[OptionsT], describe: Any, shared: Any = None) -> Any:
        """The driver half around the sink.

        Raises:
            DestinationRefuses: rows of several sources would be mixed.
        """
        for error in self._mixed(place):
            raise error
        return super().build(place, describe, shared)

    def _mixed(self, place: SinkPlace[OptionsT]) -> Iterator[PenstockError]:
        """Rows of several sources that nothing tells from each other."""
        has_places = type(self).of_source is not SinkKind.of_source
        if not (place.is_alone or self.keeps_sources_apart or has_places):
            yield DestinationRefuses(
                f"several sources, and kind {self.name} does not keep their rows apart: of tables with one name a row of"
                " one source would take the place of another's",
                f"sink {place.name}",
                "give each source a pipeline with a destination of its own; or whoever wrote the sink has it keep sources"
                " apart, and says so (keeps_sources_apart)",
            )

    @final
    def clashes(
        self, place: SinkPlace[OptionsT], tables: Collection[TableName]
    ) -> Mapping[TableName, PenstockError]:
        """Tables that go to one: what empties it for one of them takes the rows of the others away."""
        by_target: dict[TableName, list[TableName]] = {}
        for table in sorted(tables):
            by_target.setdefault(place.routes.of(table) or table, []).append(table)
        return {
            table: DestinationRefuses(
                f"{name_tables(those)} would all be {target}, wanted a table for each: a copy of one"
                " takes the rows of the others away",
                f"sink {place.name}",
                "write {table} into target: of route:, or give each table another one",
            )
            for target, those in by_target.items()
            if len(those) > 1
            for table in those
        }

    def occupied(
        self, place: SinkPlace[OptionsT], tables: Sequence[TableName]
    ) -> Sequence[Finding]:
        """See `clashes`: nothing starts with them."""
        errors = {str(error): error for error in self.clashes(place, tables).values()}
        return [Finding(error) for error in errors.values()]

    def check(
        self, places: Mapping[str, SinkPlace[OptionsT]], chosen: Mapping[str, Any]
    ) -> Iterator[Finding]:
        """What the sink finds, sources that would be mixed, and tables that go to one."""
        for error in self._mixed(next(iter(places.values()))):
            yield Finding(error)
        yield from super().check(places, chosen)
        for source_id, tables in chosen.items():
            yield from self.occupied(places[source_id], tables.followed)
