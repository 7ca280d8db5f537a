"""A table is known by its oid, and called what the stream says where the sink stands: also one that was renamed,
dropped or made while nothing was delivered, with its copy due or under way. No Spark: shapes travel alone here."""

from __future__ import annotations

import random
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from fix_postgres import only_new
from penstock.lsn import Lsn
from penstock.run.passages import PassageReader
from penstock.run.state import StateDirectory
from penstock.run.tables import TableKeeper
from penstock.schema.describe import description_of, structure_of
from penstock.schema.mark import CHANGE, Mark
from penstock.schema.shape import (
    FORMAT,
    ColumnShape,
    ConstraintShape,
    Gone,
    SchemaChange,
    TableShape,
    as_content,
)
from penstock.sinks.copying import Copy, CopyOrder, CopySuperseded, RangeThere
from penstock.sinks.passage import Rows
from penstock.sinks.postgres.copying import PostgresCopying
from penstock.sinks.postgres.landing import Landings
from penstock.sinks.postgres.options import PostgresOptions
from penstock.sinks.postgres.sink import PostgresSink
from penstock.sinks.sink import Batch
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


def shape(oid: int, name: str, *, is_born: bool = False) -> TableShape:
    return TableShape(
        id=oid,
        schema_name="public",
        name=name,
        born_in=(PUBLICATION,) if is_born else (),
        columns=(
            ColumnShape(id=1, name="id", type="integer", type_id=23, type_kind="b", not_null=True),
        ),
        constraints=(
            ConstraintShape(
                id=oid + 5000, name=f"k{oid}", kind="p", definition="PRIMARY KEY (id)", columns=(1,)
            ),
        ),
    )


@dataclass
class Scene:
    """A sink, and a stream of which only changes of tables are told; it delivers when it is told to."""

    state: StateDirectory
    sink: PostgresSink
    copying: PostgresCopying
    target: Database
    end: int = STEP
    stream: list[tuple[Lsn, Lsn, SchemaChange]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.passages = PassageReader(self.state.history, lambda _: True, [PUBLICATION])
        self.keeper = TableKeeper(self.sink, self.state, self.passages, copies_first=True)
        self.position = Lsn(self.end)

    def tell(self, *shapes: TableShape, dropped: tuple[int, ...] = ()) -> Lsn:
        """One transaction of the source."""
        commit_lsn, end_lsn = Lsn(self.end + STEP // 2), Lsn(self.end + STEP)
        gone = tuple(Gone(id=oid, schema_name="public", name="t") for oid in dropped)
        change = SchemaChange(format=FORMAT, tag="ALTER TABLE", tables=shapes, dropped_tables=gone)
        self.state.history.append([self._mark(commit_lsn, end_lsn, change)])
        self.stream.append((commit_lsn, end_lsn, change))
        self.end = int(end_lsn)
        return end_lsn

    def _mark(self, commit_lsn: Lsn, end_lsn: Lsn, change: SchemaChange) -> Mark:
        return Mark(commit_lsn, end_lsn, 0, 0, 0, 0, CHANGE, as_content(change))

    def look(self, **published: int) -> None:
        """The catalog is read where the stream ends by now, and the sink hears of it."""
        lsn = str(Lsn(self.end))
        names = {f"public.{name}": oid for name, oid in published.items()}
        entries = {str(oid): [oid + 9000] for oid in published.values()}
        self.state.write_report("capture", {"durable_lsn": lsn})
        self.state.write_report(
            "tables",
            {
                "published": names,
                "entries": entries,
                "lsn": lsn,
                "since_lsn": lsn,
                "at": time.time(),
            },
        )
        self.check()

    def check(self) -> None:
        self.keeper.look(self.position, time.monotonic())

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
        part = self.passages._shape_change(self._mark(commit_lsn, end_lsn, change), change, {})
        batch = Batch(1, after_lsn, end_lsn, 0, frozenset(), copies_first=True)
        return self.sink.commit_shapes(batch, [part], cast("Any", None), only)

    def deliver_all(self) -> None:
        self.deliver(sum(end_lsn > self.position for _, end_lsn, _ in self.stream))

    def begin_copy(self, *shapes: TableShape) -> Copy:
        """A snapshot at the end of the stream, under which tables look so."""
        copy = Copy(f"copy {self.end}", Lsn(self.end))
        orders = [self._order(each) for each in shapes]
        self.copying.begin(copy, orders)
        return copy

    def finish_copy(self, copy: Copy, *shapes: TableShape) -> None:
        assert self.copying.finish([self._order(each) for each in shapes], copy) == {}
        self.check()

    def _order(self, each: TableShape, range_count: int = 0) -> CopyOrder:
        return CopyOrder(each.table, description_of(each), structure_of(each), range_count, each)

    def states(self) -> dict[str, tuple[str, int]]:
        """How the tables stand, by name, with their oids."""
        rows = self.target.query(
            "SELECT table_name, state, source_oid::int FROM penstock.tables ORDER BY 1"
        )
        return {name: (state, oid) for name, state, oid in rows}

    def made(self) -> list[str]:
        """The tables that the target has."""
        query = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY 1"
        return [name for (name,) in self.target.query(query)]


@pytest.fixture
def scene(target: Database, tmp_path: Path) -> Iterator[Scene]:
    state = StateDirectory(tmp_path / "state", "p")
    state.claim()
    state.history.open_for_writing()
    options = PostgresOptions.model_validate({"kind": "postgres", "url": target.url})
    landings = Landings(options, "p", "s", ["s"])

    class Describe:
        """As the history says."""

        def __call__(self, table: TableName, lsn: Lsn) -> Any:
            found = self.shape(table, lsn)
            return None if found is None else description_of(found)

        def shape(self, table: TableName, lsn: Lsn) -> TableShape | None:
            return state.history.shape_at(table, lsn)

        def name_of(self, oid: int, lsn: Lsn) -> TableName | None:
            return state.history.name_of(oid, lsn)

    sink = PostgresSink("target", landings, "p", Describe())
    copying = PostgresCopying(landings, "p")
    sink.open()
    sink.begin({}, Lsn(STEP))
    sink.open()
    copying.open()
    yield Scene(state, sink, copying, target)
    copying.close()
    sink.close()
    state.history.close()


def test_table_that_was_renamed_while_nothing_was_delivered_is_enrolled_as_it_was(scene: Scene):
    scene.tell(shape(A, "a"))
    scene.deliver()
    scene.tell(shape(A, "b"))

    scene.look(b=A)
    assert scene.states() == {"a": ("pending", A)}

    scene.deliver()
    assert scene.states() == {"b": ("pending", A)}


def test_table_is_copied_once_its_name_is_the_same_at_both_ends(scene: Scene):
    scene.tell(shape(A, "a"))
    scene.deliver()
    end_lsn = scene.tell(shape(A, "b"))
    scene.look(b=A)
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
    scene.tell(first)
    scene.deliver()
    scene.look(a=A)
    scene.begin_copy(first)
    assert scene.made() == ["a"]

    scene.tell(dropped=(A,))
    scene.look()
    scene.deliver()

    assert scene.states() == {}
    assert scene.made() == []


def test_tables_that_swapped_names_before_their_copies_wait_under_their_own(scene: Scene):
    scene.tell(shape(A, "a"))
    scene.tell(shape(B, "b"))
    scene.deliver_all()
    scene.look(a=A, b=B)
    scene.tell(shape(A, "x"))
    scene.tell(shape(B, "a"))
    scene.tell(shape(A, "b"))

    scene.look(a=B, b=A)
    scene.deliver_all()
    scene.check()

    assert scene.states() == {"a": ("pending", B), "b": ("pending", A)}


def test_copy_under_way_begins_again_under_the_name_that_the_stream_gives_its_table(scene: Scene):
    first = shape(A, "a")
    scene.tell(first)
    scene.deliver()
    scene.look(a=A)
    copy = scene.begin_copy(first)

    scene.tell(shape(A, "b"))
    scene.tell(shape(B, "a", is_born=True))
    scene.deliver_all()

    assert scene.states() == {"a": ("streaming", B), "b": ("pending", A)}
    assert scene.made() == ["a"], "what was made for the copy is gone"
    superseded = scene.copying.finish([scene._order(first)], copy)
    assert list(superseded) == [public("a")]
    assert scene.states()["a"] == ("streaming", B)


def test_table_that_catches_up_under_an_old_name_makes_way_for_the_one_that_has_it(scene: Scene):
    first = shape(A, "a")
    scene.tell(first)
    scene.deliver()
    scene.look(a=A)
    copy = scene.begin_copy(first)
    scene.finish_copy(copy, first)
    assert scene.states() == {"a": ("catching_up", A)}

    scene.tell(shape(A, "b"))
    scene.tell(shape(B, "a", is_born=True))
    scene.deliver_all()

    assert scene.states() == {"a": ("streaming", B), "b": ("pending", A)}
    assert scene.made() == ["a", "b"]


def test_table_that_meets_another_of_its_name_while_it_catches_up_is_copied_again(scene: Scene):
    # A stands where it was called a; since then B has had its next name, and has it still.
    scene.tell(shape(A, "a"))
    scene.tell(shape(B, "b"))
    scene.deliver_all()
    scene.look(a=A, b=B)
    copy = scene.begin_copy(shape(A, "a"), shape(B, "b"))
    scene.finish_copy(copy, shape(A, "a"), shape(B, "b"))
    scene.sink.join([public("b")])
    behind = scene.position
    scene.tell(shape(B, "x"))
    scene.tell(shape(A, "b"))
    scene.tell(shape(A, "c"))
    scene.tell(shape(B, "b"))
    scene.deliver_all()
    assert scene.states() == {"a": ("catching_up", A), "b": ("streaming", B)}

    scene.commit(scene.stream[3], behind, {public("a")})
    scene.look(b=B, c=A)

    assert scene.states() == {"b": ("streaming", B), "c": ("pending", A)}


def test_table_that_is_to_be_copied_again_is_not_enrolled_twice(scene: Scene):
    # It stands under an older name, and its rows come before anybody has looked at names.
    first = shape(A, "a")
    scene.tell(first)
    scene.deliver()
    scene.look(a=A)
    scene.finish_copy(scene.begin_copy(first), first)
    scene.tell(shape(A, "b"))
    scene.deliver()
    scene.sink.enrol({public("a"): A}, scene.position, is_new=False)

    assert scene.keeper.aside(scene.position) == {public("b")}
    rows = Rows(0, frozenset({public("b")}), {public("b"): A})
    lsn = Lsn(scene.end + STEP)
    batch = Batch(1, scene.position, lsn, 0, rows.tables, copies_first=True)
    scene.sink.commit_shapes(batch, [rows], cast("Any", None))
    assert scene.states() == {"a": ("pending", A)}

    scene.position, scene.end = lsn, int(lsn)
    scene.tell(shape(A, "c"))
    scene.deliver()
    assert scene.states() == {"c": ("pending", A)}


def test_table_that_is_dropped_while_it_catches_up_leaves_nothing(scene: Scene):
    first = shape(A, "a")
    scene.tell(first)
    scene.deliver()
    scene.look(a=A)
    copy = scene.begin_copy(first)
    scene.finish_copy(copy, first)

    scene.tell(dropped=(A,))
    scene.look()
    scene.deliver()
    scene.check()

    assert scene.states() == {}
    assert scene.made() == []


def test_table_made_while_the_catalog_was_read_is_not_let_go(scene: Scene):
    # Made after the look began, and before the position that it is reported with.
    since = str(Lsn(scene.end))
    scene.tell(shape(A, "a", is_born=True))
    scene.deliver()
    lsn = str(Lsn(scene.end))
    scene.state.write_report("capture", {"durable_lsn": lsn})
    report = {"published": {}, "entries": {}, "since_lsn": since, "lsn": lsn, "at": time.time()}
    scene.state.write_report("tables", report)

    scene.check()

    assert scene.states() == {"a": ("streaming", A)}


def test_stopped_table_that_was_renamed_since_is_copied_again_under_its_new_name(scene: Scene):
    first = shape(A, "a")
    scene.tell(first)
    scene.deliver()
    scene.look(a=A)
    scene.finish_copy(scene.begin_copy(first), first)
    scene.target.execute("UPDATE penstock.tables SET state = 'failed', error = 'a row'")
    scene.tell(shape(A, "b"))
    scene.deliver()
    assert scene.copying.ask([public("a")]) == [public("a")]

    scene.look(b=A)

    assert scene.states() == {"b": ("pending", A)}


class RandomSource:
    """Tables that are made, renamed and dropped at random. Each holds one row: its oid."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene
        self.choice = random.Random(seed)
        self.names: dict[int, str] = {}
        self.next_oid = A
        self.rounds: list[tuple[Copy, list[CopyOrder]]] = []

    def change(self) -> None:
        """One transaction, of one statement or two."""
        free = [name for name in "abcdef" if name not in self.names.values()]
        kind = self.choice.choice(["make", "rename", "rename", "rename", "drop", "swap"])
        if kind == "make" and free:
            self.names[self.next_oid] = name = self.choice.choice(free)
            is_born = self.choice.random() < 0.7
            self.scene.tell(shape(self.next_oid, name, is_born=is_born))
            self.next_oid += 1
        elif kind == "rename" and self.names and free:
            oid = self.choice.choice(list(self.names))
            self._rename(oid, self.choice.choice(free))
        elif kind == "drop" and len(self.names) > 2:
            oid = self.choice.choice(list(self.names))
            del self.names[oid]
            self.scene.tell(dropped=(oid,))
        elif kind == "swap" and len(self.names) > 1 and free:
            one, other = self.choice.sample(list(self.names), 2)
            first, second = self.names[one], self.names[other]
            self._rename(one, free[0])
            self._rename(other, first)
            self._rename(one, second)

    def _rename(self, oid: int, name: str) -> None:
        self.names[oid] = name
        self.scene.tell(shape(oid, name))

    def look(self) -> None:
        self.scene.look(**{name: oid for oid, name in self.names.items()})

    def begin_round(self) -> None:
        """As a round does: what is called otherwise under the snapshot waits, the rest is begun."""
        scene, due = self.scene, self.scene.copying.due()
        oids = {public(name): oid for oid, name in self.names.items()}
        copy = Copy(f"copy {scene.end} {self.choice.random()}", Lsn(scene.end))
        orders = []
        for name, oid in due.items():
            if oids.get(name) != oid:
                scene.copying.postpone(name, copy.lsn)
            else:
                orders.append(scene._order(shape(oid, name.name), 1))
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
            position = min(scene.sink.apart[name].delivered_lsn for name in group)
            for each in [each for each in scene.stream if each[1] > position]:
                if each[1] > scene.position or not most or not group:
                    break
                most -= 1
                names = scene.commit(each, position, group)
                position = each[1]
                apart = scene.sink.apart
                group = {
                    names[name]
                    for name in group
                    if name in names
                    and names[name] in apart
                    and apart[names[name]].delivered_lsn == position
                }
            if not most:
                return
            if group:
                scene.sink.join(group)
            scene.check()

    def settle(self) -> None:
        """No more changes: everything comes to its end."""
        for _ in range(40):
            self.scene.deliver_all()
            self.look()
            self.catch_up()
            if self.scene.keeper.is_settled and not self.scene.copying.due():
                return
            self.scene.copying.after_join()
            self.begin_round()
            while self.rounds:
                self.end_round()
            self.scene.tell()  # a mark
        raise AssertionError(f"it never ends: {self.scene.states()}, wanted {self.names}")


def copy_row(oid: int, *, is_binary: bool) -> bytes:
    """A row of COPY with one integer."""
    if is_binary:
        header, end = b"PGCOPY\n\xff\r\n\0" + bytes(8), struct.pack("!h", -1)
        return header + struct.pack("!hii", 1, 4, oid) + end
    return b"%d\n" % oid


@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 40))]
)
def test_tables_end_under_their_names_whatever_happens_to_them_in_which_order(
    scene: Scene, seed: int
):
    source = RandomSource(scene, seed)
    for _ in range(4):
        source.change()
    steps = [
        source.change,
        source.change,
        source.change,
        source.look,
        source.begin_round,
        source.end_round,
        lambda: scene.deliver_some(source.choice.randrange(4)),
        lambda: scene.deliver_some(source.choice.randrange(4)),
        lambda: source.catch_up(source.choice.randrange(1, 4)),
    ]
    for _ in range(80):
        source.choice.choice(steps)()

    source.settle()

    wanted = {name: ("streaming", oid) for oid, name in source.names.items()}
    assert scene.states() == wanted
    assert scene.made() == sorted(wanted)
    for name, (_, oid) in wanted.items():
        found = scene.target.query(f"SELECT id FROM {name}")
        assert found in ([(oid,)], []), "born in the stream, it has no row here"
