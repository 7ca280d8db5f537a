"""A table is known by its oid, and called what the stream says where the sink stands: also one that was renamed,
dropped or made while nothing was delivered, with its copy due or under way. No Spark: shapes travel alone here."""

from __future__ import annotations

import random
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest

from fix_postgres import only_new
from penstock.errors import TargetTableUnfit
from penstock.log.files.kind import FilesLog
from penstock.lsn import Lsn
from penstock.run.ddl_transactions import DdlTransactionReader
from penstock.run.tables import TableKeeper
from penstock.schema.catalog import read_shapes
from penstock.schema.describe import structure_of
from penstock.schema.mark import CHANGE, Mark
from penstock.schema.shape import (
    FORMAT,
    ColumnShape,
    ConstraintShape,
    Gone,
    IndexShape,
    SchemaChange,
    TableShape,
    as_content,
)
from penstock.sinks.copying import Copy, CopyOrder, CopySuperseded, RangeThere
from penstock.sinks.ddl_transaction import Rows
from penstock.sinks.postgres.copy.copying import PostgresCopying
from penstock.sinks.postgres.ddl.displaced import stand_in
from penstock.sinks.postgres.ddl.structure import add_key
from penstock.sinks.postgres.evolve.following import follow_before_copy
from penstock.sinks.postgres.mapping.table_mapping import TableMappings
from penstock.sinks.postgres.options import PostgresOptions
from penstock.sinks.postgres.sink import PostgresSink
from penstock.sinks.sink import Batch
from penstock.state.directory import StateDirectory
from penstock.state.reports import CaptureReport, MembershipReport
from penstock.state.wire import FileWire
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fix_postgres import Database

pytestmark = only_new

PUBLICATION = "penstock_p"
A, B, C = 16401, 16402, 16403
STEP = 0x100


def public(name: str) -> TableName:
    return TableName("public", name)


def shape(
    oid: int,
    name: str,
    *,
    is_created_in_stream: bool = False,
    schema: str = "public",
    key: str | None = None,
    indexes: tuple[str, ...] = (),
) -> TableShape:
    """A table with a column and a key. Its indexes are distinguished by the order of their names."""
    return TableShape(
        id=oid,
        schema_name=schema,
        name=name,
        born_in=(PUBLICATION,) if is_created_in_stream else (),
        columns=(
            ColumnShape(id=1, name="id", type="integer", type_id=23, type_kind="b", not_null=True),
        ),
        constraints=(
            ConstraintShape(
                id=oid + 5000,
                name=key or f"k{oid}",
                kind="p",
                definition="PRIMARY KEY (id)",
                columns=(1,),
                used=(1,),
            ),
        ),
        indexes=tuple(
            IndexShape(
                id=oid + 10_000 * (place + 1),
                name=each,
                is_unique=False,
                definition=f"{kind} (id)",
                columns=(1,),
                used=(1,),
            )
            for place, (each, kind) in enumerate(zip(indexes, ("hash", "brin"), strict=False))
        ),
    )


@dataclass
class Scene:
    """A sink, and a stream of which only changes of tables are reported; it delivers when it is asked to."""

    state: StateDirectory
    sink: PostgresSink
    copying: PostgresCopying
    target: Database
    end: int = STEP
    stream: list[tuple[Lsn, Lsn, SchemaChange]] = field(default_factory=list)
    # What comes in one transaction with a change, by its position.
    together: dict[Lsn, tuple[Rows, SchemaChange]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ddl_transactions = DdlTransactionReader(
            self.state.past_shapes, lambda _: True, [PUBLICATION]
        )
        self.wire = FileWire(self.state)
        log = FilesLog(self.state.path / "log")
        self.keeper = TableKeeper(
            self.sink, log, self.wire, self.ddl_transactions, copies_first=True
        )
        self.position = Lsn(self.end)

    def report(self, *shapes: TableShape, dropped: tuple[int, ...] = ()) -> Lsn:
        """One transaction of the source."""
        commit_lsn, end_lsn = Lsn(self.end + STEP // 2), Lsn(self.end + STEP)
        gone = tuple(Gone(id=oid, schema_name="public", name="t") for oid in dropped)
        change = SchemaChange(format=FORMAT, tag="ALTER TABLE", tables=shapes, dropped_tables=gone)
        self.state.past_shapes.append([self._mark(commit_lsn, end_lsn, change)])
        self.stream.append((commit_lsn, end_lsn, change))
        self.end = int(end_lsn)
        return end_lsn

    def report_together(self, rows: Rows, first: SchemaChange, change: SchemaChange) -> None:
        """One transaction with rows and two changes."""
        commit_lsn, end_lsn = Lsn(self.end + STEP // 2), Lsn(self.end + STEP)
        marks = [self._mark(commit_lsn, end_lsn, each, n) for n, each in enumerate((first, change))]
        self.state.past_shapes.append(marks)
        self.stream.append((commit_lsn, end_lsn, change))
        self.together[commit_lsn] = rows, first
        self.end = int(end_lsn)

    def _mark(self, commit_lsn: Lsn, end_lsn: Lsn, change: SchemaChange, number: int = 0) -> Mark:
        return Mark(commit_lsn, end_lsn, 0, 0, number, number, CHANGE, as_content(change))

    def read_catalog(self, **published: int) -> None:
        """The catalog is read where the stream ends by now, and the sink hears of it."""
        self.read_catalog_of({public(name): oid for name, oid in published.items()})

    def read_catalog_of(
        self, published: dict[TableName, int], delayed: tuple[TableName, ...] = ()
    ) -> None:
        """The same, of tables of any schema; others have yet to be published."""
        lsn = Lsn(self.end)
        names = {str(name): oid for name, oid in published.items()}
        entries = {oid: (oid + 9000,) for oid in published.values()}
        self.wire.publish(CaptureReport(durable_lsn=lsn))
        self.wire.publish(
            MembershipReport(
                published=names,
                entries=entries,
                delayed=tuple(map(str, delayed)),
                lsn=lsn,
                since_lsn=lsn,
                at=time.time(),
            )
        )
        self.check()

    def check(self) -> None:
        self.keeper.poll(self.position, time.monotonic())

    def deliver(self, count: int = 1) -> None:
        """The sink follows some of what it has not yet got."""
        for _ in range(count):
            each = next(each for each in self.stream if each[1] > self.position)
            self.commit(each, self.position)
            self.position = each[1]

    def deliver_some(self, most: int) -> None:
        """The sink follows as much, if there is so much."""
        self.deliver(min(most, sum(end_lsn > self.position for _, end_lsn, _ in self.stream)))

    def commit(
        self,
        each: tuple[Lsn, Lsn, SchemaChange],
        after_lsn: Lsn,
        only: set[TableName] | None = None,
    ) -> dict[TableName, TableName]:
        """Tables that flow, or those that catch up, follow a transaction."""
        commit_lsn, end_lsn, change = each
        rows, first = self.together.get(commit_lsn, (None, None))
        changes = [change] if first is None else [first, change]
        parts: list[Any] = [] if rows is None else [rows]
        parts += [
            self.ddl_transactions._shape_change(
                self._mark(commit_lsn, end_lsn, one, number), one, {}
            )
            for number, one in enumerate(changes)
        ]
        tables = frozenset() if rows is None else rows.tables
        batch = Batch(1, after_lsn, end_lsn, 0, tables, copies_first=True)
        return self.sink.commit_shapes(batch, parts, cast("Any", None), only)

    def deliver_all(self) -> None:
        self.deliver(sum(end_lsn > self.position for _, end_lsn, _ in self.stream))

    def begin_copy(self, *shapes: TableShape) -> Copy:
        """A snapshot at the end of the stream, under which tables are as given."""
        copy = Copy(f"copy {self.end}", Lsn(self.end))
        orders = [self._order(each) for each in shapes]
        self.copying.begin(copy, orders)
        return copy

    def finish_copy(self, copy: Copy, *shapes: TableShape) -> None:
        assert self.copying.finish([self._order(each) for each in shapes], copy) == {}
        self.check()

    def _order(self, each: TableShape, range_count: int = 0) -> CopyOrder:
        return CopyOrder(each.table, each, structure_of(each), range_count)

    def states(self) -> dict[str, tuple[str, int]]:
        """How the tables stand, by name, with their oids."""
        rows = self.target.query(
            "SELECT table_name, state, source_oid::int FROM penstock.tables ORDER BY 1"
        )
        return {name: (state, oid) for name, state, oid in rows}

    def found(self, tables: list[TableName]) -> list[TableShape]:
        """Shapes of tables at the target."""
        with self.target.connect() as connection:
            return list(read_shapes(connection, tables).values())

    def oid(self, table: str) -> int:
        """That of a table of the target."""
        [[oid]] = self.target.query(f"SELECT '{table}'::regclass::oid::int")
        return int(oid)

    def keys(self) -> dict[str, str]:
        """What the primary keys of tables in schema other are called at the target."""
        query = "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE contype = 'p' AND connamespace = 'other'::regnamespace"
        return {table.removeprefix("other."): name for table, name in self.target.query(query)}

    def made(self) -> list[str]:
        """The tables that the target has."""
        query = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY 1"
        return [name for (name,) in self.target.query(query)]


@pytest.fixture
def scene(target: Database, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Its sink may have more options than where the target is."""
    state = StateDirectory(tmp_path / "state", "p")
    state.claim()
    state.past_shapes.open_for_writing()
    more = getattr(request, "param", {})
    options = PostgresOptions.model_validate({"kind": "postgres", "url": target.url, **more})
    table_mappings = TableMappings(options, "p", "s", ["s"])

    class Describe:
        """As the past shapes say."""

        def __call__(self, table: TableName, lsn: Lsn) -> Any:
            return self.shape(table, lsn)

        def shape(self, table: TableName, lsn: Lsn) -> TableShape | None:
            return state.past_shapes.shape_at(table, lsn)

        def name_of(self, oid: int, lsn: Lsn) -> TableName | None:
            return state.past_shapes.name_of(oid, lsn)

        def lacks_rows(self, table: TableName) -> bool:
            return False

    sink = PostgresSink("target", table_mappings, "p", Describe())
    copying = PostgresCopying(table_mappings, "p")
    sink.open()
    sink.begin({}, Lsn(STEP))
    sink.open()
    copying.open()
    yield Scene(state, sink, copying, target)
    copying.close()
    sink.close()
    state.past_shapes.close()


def test_table_that_was_renamed_while_nothing_was_delivered_is_scheduled_as_it_was(scene: Scene):
    scene.report(shape(A, "a"))
    scene.deliver()
    scene.report(shape(A, "b"))

    scene.read_catalog(b=A)
    assert scene.states() == {"a": ("pending", A)}

    scene.deliver()
    assert scene.states() == {"b": ("pending", A)}


def test_table_is_copied_once_its_name_is_the_same_at_both_ends(scene: Scene):
    scene.report(shape(A, "a"))
    scene.deliver()
    end_lsn = scene.report(shape(A, "b"))
    scene.read_catalog(b=A)
    assert scene.copying.due() == {public("a"): A}

    scene.copying.postpone(public("a"), end_lsn)
    scene.check()
    assert scene.copying.due() == {}
    assert not scene.keeper.is_settled
    assert not scene.keeper.holds_flow(scene.position), "or the stream would never come there"

    scene.deliver()
    assert scene.copying.due() == {public("b"): A}


def test_table_that_was_dropped_before_its_copy_leaves_nothing(scene: Scene):
    first = shape(A, "a")
    scene.report(first)
    scene.deliver()
    scene.read_catalog(a=A)
    scene.begin_copy(first)
    assert scene.made() == ["a"]

    scene.report(dropped=(A,))
    scene.read_catalog()
    scene.deliver()

    assert scene.states() == {}
    assert scene.made() == []


@pytest.mark.parametrize("is_there", [True, False], ids=["made", "made and dropped"])
def test_name_of_a_table_that_is_dropped_with_its_first_rows_is_free_for_others(
    scene: Scene, is_there: bool
):
    # A table that nobody has scheduled has rows, is dropped, and another one is made, all in one transaction.
    scene.report(shape(A, "t"))
    scene.deliver()
    rows = Rows(0, frozenset({public("t")}), {public("t"): A})
    dropped = SchemaChange(
        format=FORMAT,
        tag="DROP TABLE",
        dropped_tables=(Gone(id=A, schema_name="public", name="t"),),
    )
    made = SchemaChange(
        format=FORMAT, tag="CREATE TABLE", tables=(shape(B, "t", is_created_in_stream=True),)
    )
    scene.report_together(rows, dropped, made)
    end_lsn = Lsn(scene.end)
    if not is_there:
        scene.report(dropped=(B,))
        end_lsn = scene.report(shape(C, "t"))
    # Read before the sink has come there, as after a long stop.
    scene.read_catalog(t=B if is_there else C)
    scene.deliver()
    if public("t") in scene.copying.due():
        # The snapshot has another table under the name.
        scene.copying.postpone(public("t"), end_lsn)
    scene.deliver_all()
    scene.check()

    assert scene.states() == {"t": ("pending", B if is_there else C)}
    assert scene.copying.due() == {public("t"): B if is_there else C}


def test_tables_that_swapped_names_before_their_copies_wait_under_their_own(scene: Scene):
    scene.report(shape(A, "a"))
    scene.report(shape(B, "b"))
    scene.deliver_all()
    scene.read_catalog(a=A, b=B)
    scene.report(shape(A, "x"))
    scene.report(shape(B, "a"))
    scene.report(shape(A, "b"))

    scene.read_catalog(a=B, b=A)
    scene.deliver_all()
    scene.check()

    assert scene.states() == {"a": ("pending", B), "b": ("pending", A)}


def test_copy_under_way_begins_again_under_the_name_that_the_stream_gives_its_table(scene: Scene):
    first = shape(A, "a")
    scene.report(first)
    scene.deliver()
    scene.read_catalog(a=A)
    copy = scene.begin_copy(first)

    scene.report(shape(A, "b"))
    scene.report(shape(B, "a", is_created_in_stream=True))
    scene.deliver_all()

    assert scene.states() == {"a": ("streaming", B), "b": ("pending", A)}
    assert scene.made() == ["a"], "what was made for the copy is gone"
    superseded = scene.copying.finish([scene._order(first)], copy)
    assert list(superseded) == [public("a")]
    assert scene.states()["a"] == ("streaming", B)


def test_table_that_catches_up_under_an_old_name_makes_way_for_the_one_that_has_it(scene: Scene):
    first = shape(A, "a")
    scene.report(first)
    scene.deliver()
    scene.read_catalog(a=A)
    copy = scene.begin_copy(first)
    scene.finish_copy(copy, first)
    assert scene.states() == {"a": ("catching_up", A)}

    scene.report(shape(A, "b"))
    scene.report(shape(B, "a", is_created_in_stream=True))
    scene.deliver_all()

    assert scene.states() == {"a": ("streaming", B), "b": ("pending", A)}
    assert scene.made() == ["a", "b"]


def test_table_that_meets_another_of_its_name_while_it_catches_up_is_copied_again(scene: Scene):
    # A stands where it was called a; since then B has had its next name, and has it still.
    scene.report(shape(A, "a"))
    scene.report(shape(B, "b"))
    scene.deliver_all()
    scene.read_catalog(a=A, b=B)
    copy = scene.begin_copy(shape(A, "a"), shape(B, "b"))
    scene.finish_copy(copy, shape(A, "a"), shape(B, "b"))
    scene.sink.tables.attach([public("b")])
    behind = scene.position
    scene.report(shape(B, "x"))
    scene.report(shape(A, "b"))
    scene.report(shape(A, "c"))
    scene.report(shape(B, "b"))
    scene.deliver_all()
    assert scene.states() == {"a": ("catching_up", A), "b": ("streaming", B)}

    scene.commit(scene.stream[3], behind, {public("a")})
    scene.read_catalog(b=B, c=A)

    assert scene.states() == {"b": ("streaming", B), "c": ("pending", A)}


def test_table_that_is_to_be_copied_again_is_not_scheduled_twice(scene: Scene):
    # It stands under an older name, and its rows come before anybody has checked names.
    first = shape(A, "a")
    scene.report(first)
    scene.deliver()
    scene.read_catalog(a=A)
    scene.finish_copy(scene.begin_copy(first), first)
    scene.report(shape(A, "b"))
    scene.deliver()
    scene.sink.tables.schedule_copy({public("a"): A}, scene.position, is_new=False)

    assert scene.keeper.skipped(scene.position) == {public("b")}
    rows = Rows(0, frozenset({public("b")}), {public("b"): A})
    lsn = Lsn(scene.end + STEP)
    batch = Batch(1, scene.position, lsn, 0, rows.tables, copies_first=True)
    scene.sink.commit_shapes(batch, [rows], cast("Any", None))
    assert scene.states() == {"a": ("pending", A)}

    scene.position, scene.end = lsn, int(lsn)
    scene.report(shape(A, "c"))
    scene.deliver()
    assert scene.states() == {"c": ("pending", A)}


def test_table_that_is_dropped_while_it_catches_up_leaves_nothing(scene: Scene):
    first = shape(A, "a")
    scene.report(first)
    scene.deliver()
    scene.read_catalog(a=A)
    copy = scene.begin_copy(first)
    scene.finish_copy(copy, first)

    scene.report(dropped=(A,))
    scene.read_catalog()
    scene.deliver()
    scene.check()

    assert scene.states() == {}
    assert scene.made() == []


def test_table_made_while_the_catalog_was_read_is_not_let_go(scene: Scene):
    # Made after the poll began, and before the position that it is reported with.
    since = Lsn(scene.end)
    scene.report(shape(A, "a", is_created_in_stream=True))
    scene.deliver()
    lsn = Lsn(scene.end)
    scene.wire.publish(CaptureReport(durable_lsn=lsn))
    scene.wire.publish(MembershipReport(since_lsn=since, lsn=lsn, at=time.time()))

    scene.check()

    assert scene.states() == {"a": ("streaming", A)}


def test_stopped_table_that_was_renamed_since_is_copied_again_under_its_new_name(scene: Scene):
    first = shape(A, "a")
    scene.report(first)
    scene.deliver()
    scene.read_catalog(a=A)
    scene.finish_copy(scene.begin_copy(first), first)
    scene.target.execute("UPDATE penstock.tables SET state = 'failed', error = 'a row'")
    scene.report(shape(A, "b"))
    scene.deliver()
    assert scene.copying.ask([public("a")]) == [public("a")]

    scene.read_catalog(b=A)

    assert scene.states() == {"b": ("pending", A)}


def test_key_whose_name_another_table_has_yet_to_give_up_gets_it_then(scene: Scene):
    # B stands where its key is called x; since then it is y, and A came to its schema with an x.
    first = shape(B, "b", schema="other", key="x")
    scene.report(first)
    scene.deliver()
    scene.read_catalog_of({first.table: B})
    scene.finish_copy(scene.begin_copy(first), first)
    behind = scene.position
    scene.report(shape(A, "a", is_created_in_stream=True, key="x"))
    scene.report(shape(B, "b", schema="other", key="y"))
    scene.report(shape(A, "a", schema="other", key="x"))
    scene.deliver_all()

    assert scene.states() == {"a": ("streaming", A), "b": ("catching_up", B)}
    scene.copying.due()
    assert scene.copying.after_attach()
    assert scene.keys() == {"a": stand_in(scene.oid("other.a"), "x"), "b": "x"}
    scene.read_catalog_of({TableName("other", "a"): A, first.table: B})
    assert not scene.keeper.is_settled

    for each in scene.stream[1:]:
        scene.commit(each, behind, {first.table})
        behind = each[1]
    scene.sink.tables.attach([first.table])
    assert scene.copying.after_attach()
    scene.check()
    assert scene.keys() == {"a": "x", "b": "y"}
    assert scene.keeper.is_settled


def test_name_that_somebody_keeps_is_not_waited_for(scene: Scene):
    scene.target.execute(
        "CREATE SCHEMA other; CREATE TABLE other.theirs (id int CONSTRAINT x PRIMARY KEY)"
    )
    scene.report(shape(A, "a", is_created_in_stream=True, key="x"))
    scene.report(shape(A, "a", schema="other", key="x"))
    scene.deliver_all()
    scene.copying.due()
    scene.copying.after_attach()
    scene.read_catalog_of({TableName("other", "a"): A})

    assert scene.keys() == {"a": "x_1", "theirs": "x"}
    assert scene.keeper.is_settled


def test_table_that_is_yet_to_be_published_is_waited_for(scene: Scene):
    scene.read_catalog_of({}, delayed=(public("a"),))
    assert not scene.keeper.is_settled

    # It is published, and the log has yet to come to where that was seen.
    lsn = Lsn(scene.end + STEP)
    report = MembershipReport(published={"public.a": A}, lsn=lsn, since_lsn=lsn, at=time.time())
    scene.wire.publish(report)
    scene.check()
    assert (scene.states(), scene.keeper.is_settled) == ({}, False)

    scene.report(shape(A, "a"))
    scene.deliver()
    scene.read_catalog(a=A)
    assert (scene.states(), scene.keeper.is_settled) == ({"a": ("pending", A)}, False)


@pytest.mark.parametrize("scene", [{"source_id_column": "sid"}], indirect=True)
def test_dropped_table_whose_rows_the_target_keeps_stops_alone(scene: Scene):
    scene.report(shape(A, "a", is_created_in_stream=True))
    scene.report(shape(B, "b", is_created_in_stream=True))
    scene.deliver_all()
    scene.target.execute(
        "INSERT INTO a VALUES ('s', 1);"
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'kept' USING ERRCODE = 'foreign_key_violation'; END $$;"
        "CREATE TRIGGER keep BEFORE DELETE ON a FOR EACH ROW EXECUTE FUNCTION keep();"
        "ALTER TABLE a ENABLE ALWAYS TRIGGER keep"
    )

    scene.report(dropped=(A,))
    scene.report(shape(B, "c"))
    scene.deliver_all()

    assert scene.states() == {"a": ("failed", A), "c": ("streaming", B)}
    [[error]] = scene.target.query("SELECT error FROM penstock.tables WHERE table_name = 'a'")
    assert error.startswith("PEN-5")
    assert "refuses to delete its rows: ForeignKeyViolation" in error
    assert scene.target.value("SELECT count(*) FROM a") == 1


def test_copy_of_a_renamed_table_leaves_the_one_alone_that_has_its_old_name(scene: Scene):
    first = shape(A, "a")
    scene.report(first)
    scene.deliver()
    scene.read_catalog(a=A)
    scene.finish_copy(scene.begin_copy(first), first)
    scene.sink.tables.schedule_copy({public("a"): A}, scene.position, is_new=False)
    now = shape(A, "b", indexes=("i",))
    scene.report(now)
    scene.report(shape(B, "a", is_created_in_stream=True))
    scene.deliver_all()

    scene.finish_copy(scene.begin_copy(now), now)

    found = {each.name: objects_in(each) for each in scene.found([public("a"), public("b")])}
    assert found == {"a": objects_in(shape(B, "a")), "b": objects_in(now)}


def test_nothing_is_made_of_a_table_that_got_a_name_while_its_copy_was_finished(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    first = shape(A, "a", indexes=("i",))
    scene.report(first)
    scene.deliver()
    scene.read_catalog(a=A)
    copy = scene.begin_copy(first)

    def rename_first(*args: Any, **options: Any) -> None:
        scene.report(shape(A, "b", indexes=("i",)))
        scene.report(shape(B, "a", is_created_in_stream=True))
        scene.deliver_all()
        add_key(*args, **options)

    monkeypatch.setattr("penstock.sinks.postgres.copy.copying.add_key", rename_first)
    superseded = scene.copying.finish([scene._order(first)], copy)

    assert [*map(type, superseded.values())] == [CopySuperseded]
    assert [objects_in(each) for each in scene.found([public("a")])] == [objects_in(shape(B, "a"))]


def test_copy_that_failed_amid_others_is_tried_once_more_when_those_are_there(scene: Scene):
    first, second = shape(A, "a"), shape(B, "b")
    scene.report(first)
    scene.report(second)
    scene.deliver_all()
    scene.read_catalog(a=A, b=B)
    copy = scene.begin_copy(first, second)
    in_the_way = TargetTableUnfit("another table is in the way", "public.a", "nothing")
    scene.copying.fail(public("a"), in_the_way, copy)
    scene.check()
    assert scene.states() == {"a": ("failed", A), "b": ("copying", B)}
    scene.finish_copy(copy, second)
    scene.sink.tables.attach([public("b")])
    assert not scene.keeper.is_settled

    scene.check()
    assert scene.states() == {"a": ("pending", A), "b": ("streaming", B)}
    assert not scene.keeper.is_settled

    copy = scene.begin_copy(first)
    scene.check()
    scene.copying.fail(public("a"), in_the_way, copy)
    scene.copying.due()
    scene.copying.after_attach()
    scene.check()
    assert scene.states() == {"a": ("failed", A), "b": ("streaming", B)}
    assert scene.keeper.is_settled


def test_keys_of_a_table_are_due_once_it_streams_though_another_has_failed(scene: Scene):
    first, second = shape(A, "a"), shape(B, "b")
    scene.report(first)
    scene.report(second)
    scene.deliver_all()
    scene.read_catalog(a=A, b=B)
    copy = scene.begin_copy(first, second)
    scene.copying.fail(public("a"), TargetTableUnfit("it does not fit", "public.a", "x"), copy)
    scene.finish_copy(copy, second)

    scene.sink.tables.attach([public("b")])

    assert scene.sink.tables.objects_due
    scene.copying.due()
    scene.copying.after_attach()
    scene.check()
    assert not scene.sink.tables.objects_due


def test_table_keeps_its_name_while_room_is_made_for_its_copy(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    first = shape(A, "a")
    scene.report(first)
    scene.deliver()
    scene.read_catalog(a=A)
    scene.finish_copy(scene.begin_copy(first), first)
    scene.sink.tables.schedule_copy({public("a"): A}, scene.position, is_new=False)
    seen: list[bool] = []

    def read_first(*args: Any) -> Any:
        with scene.target.connect() as connection:
            connection.execute("SET lock_timeout = '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                connection.execute("UPDATE penstock.tables SET table_name = 'b'")
            # Who asks for something need not wait for it.
            connection.execute("UPDATE penstock.tables SET request = NULL")
        seen.append(True)
        return follow_before_copy(*args)

    monkeypatch.setattr("penstock.sinks.postgres.copy.copying.follow_before_copy", read_first)
    scene.report()
    copy = scene.begin_copy(first)

    assert seen == [True]
    scene.finish_copy(copy, first)
    assert scene.states() == {"a": ("catching_up", A)}


class RandomSource:
    """Tables that are made, renamed and dropped at random. Each holds one row: its oid.

    `with_objects`: they move to another schema and back as well, and have keys and indexes whose names others
    have had before.
    """

    def __init__(self, scene: Scene, seed: int, *, with_objects: bool = False) -> None:
        self.scene = scene
        self.choice = random.Random(seed)
        self.shapes: dict[int, TableShape] = {}
        self.next_oid = A
        self.rounds: list[tuple[Copy, list[CopyOrder]]] = []
        self.kinds = ["make", "rename", "rename", "rename", "drop", "swap"]
        if with_objects:
            self.kinds = ["make", "rename", "swap", "drop", "move", "move", "key", "key", "key"]
            self.kinds += ["index", "index", "unindex", "index swap"]
        self.with_objects = with_objects

    def change(self) -> None:
        """One transaction, of one statement or two."""
        kind = self.choice.choice(self.kinds)
        if kind == "make":
            self._make()
        elif self.shapes:
            oid = self.choice.choice(list(self.shapes))
            if kind == "drop" and len(self.shapes) > 2:
                del self.shapes[oid]
                self.scene.report(dropped=(oid,))
            elif kind == "swap" and len(self.shapes) > 1:
                self._swap(oid)
            elif kind in ("rename", "move"):
                self._rename(oid, kind)
            elif kind != "drop":
                self._change_objects(oid, kind)

    def free(self, schema: str, names: str) -> list[str]:
        """Those of some names that nothing has in a schema."""
        taken = {
            name
            for each in self.shapes.values()
            if each.schema_name == schema
            for name in names_in(each)
        }
        return [name for name in names if name not in taken]

    def report(self, oid: int, **changed: Any) -> None:
        """A table has this shape from now on."""
        self.shapes[oid] = self.shapes[oid].model_copy(update={"born_in": (), **changed})
        self.scene.report(self.shapes[oid])

    def _make(self) -> None:
        names, keys = self.free("public", "abcdef"), self.free("public", "uvwxyz")
        oid = self.next_oid
        if names and (keys or not self.with_objects):
            key = self.choice.choice(keys) if self.with_objects else None
            is_created_in_stream = self.choice.random() < 0.7
            name = self.choice.choice(names)
            self.shapes[oid] = shape(oid, name, is_created_in_stream=is_created_in_stream, key=key)
            self.scene.report(self.shapes[oid])
            self.next_oid += 1

    def _rename(self, oid: int, kind: str) -> None:
        now = self.shapes[oid]
        if kind == "move":
            schema = "other" if now.schema_name == "public" else "public"
            if set(self.free(schema, "abcdefuvwxyz")) >= names_in(now):
                self.report(oid, schema_name=schema)
        elif free := self.free(now.schema_name, "abcdef"):
            self.report(oid, name=self.choice.choice(free))

    def _swap(self, oid: int) -> None:
        now = self.shapes[oid]
        others = [
            number
            for number, each in self.shapes.items()
            if number != oid and each.schema_name == now.schema_name
        ]
        free = self.free(now.schema_name, "abcdef")
        if others and free:
            other = self.choice.choice(others)
            name = self.shapes[other].name
            self.report(oid, name=free[0])
            self.report(other, name=now.name)
            self.report(oid, name=name)

    def _change_objects(self, oid: int, kind: str) -> None:
        now = self.shapes[oid]
        free = self.free(now.schema_name, "uvwxyz")
        if kind == "key" and free:
            [key] = now.constraints
            renamed = key.model_copy(update={"name": self.choice.choice(free)})
            self.report(oid, constraints=(renamed,))
        elif kind == "index" and free and len(now.indexes) < 2:
            names = (*(each.name for each in now.indexes), self.choice.choice(free))
            self.report(oid, indexes=shape(oid, "t", indexes=names).indexes)
        elif kind == "unindex" and now.indexes:
            self.report(oid, indexes=now.indexes[:-1])
        elif kind == "index swap" and len(now.indexes) == 2:
            first, second = now.indexes
            self.report(
                oid,
                indexes=(
                    first.model_copy(update={"name": second.name}),
                    second.model_copy(update={"name": first.name}),
                ),
            )

    def read_catalog(self) -> None:
        self.scene.read_catalog_of({each.table: oid for oid, each in self.shapes.items()})

    def begin_round(self) -> None:
        """As a round does: what is called otherwise under the snapshot waits, the rest is begun."""
        scene, due = self.scene, self.scene.copying.due()
        oids = {each.table: oid for oid, each in self.shapes.items()}
        copy = Copy(f"copy {scene.end} {self.choice.random()}", Lsn(scene.end))
        orders = []
        for name, oid in due.items():
            if oids.get(name) != oid:
                scene.copying.postpone(name, copy.lsn)
            else:
                orders.append(scene._order(self.shapes[oid], 1))
        writers, failures = scene.copying.begin(copy, orders)
        assert failures == {}
        for name, writer in writers.items():
            try:
                into = writer.begin(0)
                into.write([copy_row(oids[name], is_binary=writer.is_binary)])
                into.finish()
            except (RangeThere, CopySuperseded):
                continue
        self.rounds.append((copy, [each for each in orders if each.table in writers]))

    def end_round(self) -> None:
        """The round is finished, or was killed."""
        if self.rounds:
            copy, orders = self.rounds.pop(0)
            if self.choice.random() < 0.8:
                failures = self.scene.copying.finish(orders, copy)
                assert not [e for e in failures.values() if not isinstance(e, CopySuperseded)]

    def catch_up(self, most: int = 100) -> None:
        """As a flow does, for some of the way."""
        scene = self.scene
        scene.check()
        while group := scene.keeper.next_group(scene.position, time.monotonic()):
            position = min(scene.sink.tables.detached[name].delivered_lsn for name in group)
            for each in [each for each in scene.stream if each[1] > position]:
                if each[1] > scene.position or not most or not group:
                    break
                most -= 1
                names = scene.commit(each, position, group)
                position = each[1]
                detached = scene.sink.tables.detached
                group = {
                    names[name]
                    for name in group
                    if name in names
                    and names[name] in detached
                    and detached[names[name]].delivered_lsn == position
                }
            if not most:
                return
            if group:
                scene.sink.tables.attach(group)
            scene.check()

    def settle(self) -> None:
        """No more changes: everything comes to its end."""
        for _ in range(40):
            self.scene.deliver_all()
            self.read_catalog()
            self.catch_up()
            if self.scene.keeper.is_settled and not self.scene.copying.due():
                return
            self.scene.copying.after_attach()
            self.begin_round()
            while self.rounds:
                self.end_round()
            self.scene.report()  # a mark
        raise AssertionError(f"it never ends: {self.scene.states()}, wanted {self.shapes}")


def objects_in(each: TableShape) -> dict[str, str]:
    """What a table has, and what it is."""
    return {part.name: part.definition for part in (*each.constraints, *each.indexes)}


def names_in(each: TableShape) -> set[str]:
    """The names that a table has taken in its schema."""
    return {each.name, *objects_in(each)}


def copy_row(oid: int, *, is_binary: bool) -> bytes:
    """A row of COPY with one integer."""
    if is_binary:
        header, end = b"PGCOPY\n\xff\r\n\0" + bytes(8), struct.pack("!h", -1)
        return header + struct.pack("!hii", 1, 4, oid) + end
    return b"%d\n" % oid


SEEDS = [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 40))]


def live(source: RandomSource, count: int = 80) -> None:
    """Changes, copies and deliveries in any order, and then whatever is left to be done."""
    scene = source.scene
    for _ in range(4):
        source.change()
    steps = [
        source.change,
        source.change,
        source.change,
        source.read_catalog,
        source.begin_round,
        source.end_round,
        lambda: scene.deliver_some(source.choice.randrange(4)),
        lambda: scene.deliver_some(source.choice.randrange(4)),
        lambda: source.catch_up(source.choice.randrange(1, 4)),
    ]
    for _ in range(count):
        source.choice.choice(steps)()
    source.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_tables_end_under_their_names_whatever_happens_to_them_in_which_order(
    scene: Scene, seed: int
):
    source = RandomSource(scene, seed)

    live(source)

    wanted = {each.name: ("streaming", oid) for oid, each in source.shapes.items()}
    assert scene.states() == wanted
    assert scene.made() == sorted(wanted)
    for name, (_, oid) in wanted.items():
        found = scene.target.query(f"SELECT id FROM {name}")
        assert found in ([(oid,)], []), "created in the stream, it has no row here"


@pytest.mark.parametrize("seed", SEEDS)
def test_keys_and_indexes_end_under_their_names_whatever_others_were_called_meanwhile(
    scene: Scene, seed: int
):
    source = RandomSource(scene, seed, with_objects=True)

    live(source, 160)

    tables = [each.table for each in source.shapes.values()]
    found = {each.table: objects_in(each) for each in scene.found(tables)}
    assert found == {each.table: objects_in(each) for each in source.shapes.values()}
    rows = scene.target.query("SELECT state, names_due, notes FROM penstock.tables")
    assert set(rows) <= {("streaming", False, None)}
