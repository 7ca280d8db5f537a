"""The suite that every sink passes: penstock's own, and those that other people write.

    class TestMySink(SinkContract):
        def kind(self): return MyKind()
        def options(self, directory): return MyOptions(path=directory / "mine")
        def delivered(self, options): return [json.loads(line) for line in …]

pytest collects the tests of `SinkScenes` with the subclass. `SinkContract` reads documents at the destination, and
`RowSinkContract` rows as they are now. A sink that can refuse something says how (`refuse`), one that need not be alone
says so (`is_exclusive`). What fails says which promise was broken: outside penstock pytest does not explain an assertion
by itself.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import SkipTest

from penstock.errors import PenstockError, SecondInstance
from penstock.lsn import Lsn
from penstock.options import OnRefused
from penstock.retry import is_temporary
from penstock.sink import DocumentKind
from penstock.testing.failing import FAILS, FailingKind
from penstock.testing.scene import Scene, rows_left, table_of, written_rows
from penstock.testing.stories import EMPTIED, EVERYTHING, MOVED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock.sink import Options
    from penstock.sinks.kind import SinkKind
    from penstock.testing.stories import Story

_COPIED = range(100, 106)
_COPIED_AT = Lsn(0x1208)  # the end of the second transaction


class SinkScenes(ABC):
    """What a sink goes through. How the destination is read is said by the two classes below."""

    is_exclusive: ClassVar[bool] = True
    """Whether a second process that delivers to the same place is refused by `open`."""

    kills_after: ClassVar[Sequence[int]] = (1, 2, 4)
    """At which of its passages of a fault point the sink's process is killed, in runs of their own."""

    fault_points: ClassVar[Sequence[str]] = (
        "deliver.after_job",
        "documents.before_deliver",
        "documents.inside_deliver",
        "documents.after_deliver",
        "deliver.after_commit",
    )
    """Between which steps the sink's process is killed."""

    @abstractmethod
    def kind(self) -> SinkKind[Any]:
        """The kind under test."""

    @abstractmethod
    def options(self, directory: Path) -> Options:
        """Options with which the sink delivers to a place of this test's own; `directory` is empty.

        `on_refused` as it is by default.
        """

    def refuse(self, options: Options, key: int) -> bool:
        """Have the destination refuse what public.orders has under this id, from now on.

        False where it refuses nothing, as the default says.
        """
        del options, key
        return False

    def accept(self, options: Options) -> None:
        """Have the destination refuse nothing any more."""
        del options

    # What the destination shows, and should show. What stands for a change in these lists is the subclass's choice;
    # `ids` are those of `Scene.write`, from its first transaction on.

    @abstractmethod
    def _found(self, options: Options) -> list[str]:
        """What the destination shows; in an order where it has one."""

    @abstractmethod
    def _shown(self, ids: Sequence[str], table: str | None = None) -> list[str]:
        """What it shows once these changes are there: of all tables, or of one."""

    @abstractmethod
    def _copied(self, reads: Sequence[str], ids: Sequence[str]) -> list[str]:
        """What it shows of `orders` once rows are copied, and the changes since then are there."""

    @abstractmethod
    def _assert_all(self, scene: Scene, ids: list[str], when: str, *, ordered: bool = True) -> None:
        """All of it is there, and nothing twice that must not be."""

    @abstractmethod
    def _assert_told(
        self, scene: Scene, story: Story, ids: Sequence[str], *, ordered: bool = True
    ) -> None:
        """What a story comes to is there, and nothing twice that must not be."""

    @abstractmethod
    def _assert_parked(self, scene: Scene, ids: Sequence[str], when: str) -> None:
        """These changes are parked, all of one key, and no others."""

    def _assert_waiting(self, scene: Scene, ids: Sequence[str], when: str) -> None:  # noqa: B027 - rows
        """Where each change is delivered: these changes are parked, and no others."""

    def _assert_order_per_key(self, options: Options) -> None:  # noqa: B027 - rows show none
        """Where the destination shows changes: those of a key are in the source's order."""

    # --- the scenes ----------------------------------------------------------------------------

    def test_every_change_arrives_once_and_in_order(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(5)

        scene.deliver()
        scene.sink.close()

        self._assert_order(options, ids, "after a batch for each transaction")

    def test_batch_of_several_tasks_keeps_the_order_of_each_key(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(9)

        scene.deliver_at_once()
        scene.sink.close()

        _assert_same(
            sorted(self._found(options)),
            sorted(self._shown(ids)),
            "after one batch of many transactions",
        )
        self._assert_order_per_key(options)

    def test_next_run_goes_on_where_the_last_one_ended(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(2)
        scene.deliver()
        scene.sink.close()
        ids += scene.write(2)

        scene.sink = scene.another()
        scene.deliver()
        scene.sink.close()

        self._assert_order(options, ids, "after a second run, which goes on where `open` says")

    def test_batch_that_is_repeated_is_refused_and_changes_nothing(self, tmp_path: Path) -> None:
        scene, _ = self._scene(tmp_path)
        ids = scene.write(2)
        scene.deliver()

        refused = False
        try:
            scene.commit_again()
        except PenstockError:
            refused = True
        scene.sink.close()

        assert refused, "a batch that begins elsewhere than at the position was delivered"
        self._assert_all(scene, ids, "after a batch that came again")

    def test_kill_between_any_two_steps_loses_nothing(self, tmp_path: Path) -> None:
        for point, passing in self._kills():
            directory = tmp_path / f"{point}-{passing}"
            directory.mkdir()
            scene, _ = self._scene(directory)
            ids = scene.write(4)

            scene.killed_at(point, passing, scene.deliver)
            scene.sink = scene.another()
            scene.deliver()
            scene.sink.close()

            self._assert_all(scene, ids, f"after a kill at {point}, the {passing}. time")

    def test_second_instance_is_refused(self, tmp_path: Path) -> None:
        scene, _ = self._scene(tmp_path)
        scene.open()
        other = scene.another()

        refused = not self.is_exclusive
        try:
            other.open()
        except SecondInstance:
            refused = True
        finally:
            other.close()
            scene.sink.close()

        assert refused, (
            "`open` let in a second instance while the first was open: claim the destination and raise"
            " SecondInstance, or set is_exclusive = False where two may deliver"
        )

    def test_sink_that_was_closed_in_the_middle_can_be_opened_again(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(1)
        for _ in range(3):
            scene.open()
            scene.sink.close()
            scene.sink.close()

        scene.deliver()
        scene.open()  # without a close, as after an error
        scene.sink.close()

        self._assert_order(options, ids, "after the sink was opened and closed several times")

    def test_cancelled_batch_comes_whole_the_next_time(self, tmp_path: Path) -> None:
        scene, _ = self._scene(tmp_path)
        ids = scene.write(2)
        scene.open()
        scene.sink.close()

        scene.sink.interrupt()
        scene.deliver()
        scene.sink.close()

        self._assert_all(scene, ids, "after `interrupt`, and `open` again")

    def test_sink_goes_on_after_every_error_that_passes_with_time(self, tmp_path: Path) -> None:
        kind = self.kind()
        if not isinstance(kind, DocumentKind):
            raise SkipTest("a sink with two halves of its own has errors of its own")
        for fails in FAILS:
            directory = tmp_path / fails
            directory.mkdir()
            options = self.options(directory)
            failing = FailingKind(kind, fails, directory / "failed")
            scene = Scene(failing, options, directory)
            ids = scene.write_rows(*EVERYTHING.transactions)

            errors: list[PenstockError] = []
            for _ in EVERYTHING.transactions:
                try:
                    scene.deliver()
                except PenstockError as error:
                    errors.append(error)
            scene.deliver()
            scene.sink.close()

            final = [str(error) for error in errors if not is_temporary(error)]
            assert not final, f"an error that passes with time ends the run: {final}"
            assert len(errors) == len(EVERYTHING.transactions), (
                f"of {len(EVERYTHING.transactions)} errors that came {fails} `deliver` the sink has"
                f" passed on {len(errors)}"
            )
            self._assert_told(scene, EVERYTHING, ids)

    def test_copied_rows_come_before_the_changes_of_their_table(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(4)
        reads = scene.copy(_COPIED, _COPIED_AT)
        scene.deliver()
        scene.catch_up()
        scene.sink.close()

        found = self._found(options)
        audit = self._shown(ids, "audit")
        orders = [one for one in found if one not in audit]
        _assert_same(orders, self._copied(reads, ids), "of a table that was copied")
        _assert_same(
            [one for one in found if one in audit],
            audit,
            "of a table that streams while another is copied",
        )

    def test_what_is_refused_stops_its_table_alone(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(4)
        if not self.refuse(options, 2):
            raise SkipTest("this destination refuses nothing")
        scene.deliver()
        stopped = scene.sink.tables.detached
        audit = self._shown(ids, "audit")
        went_on = [one for one in self._found(options) if one in audit]
        _assert_same(went_on, audit, "of the table of which nothing is refused")
        assert [str(name) for name in stopped] == ["public.orders"], (
            "the sink delivered what the destination was to refuse, or `refuse` does not"
            f" make it so; tables that stopped: {[str(name) for name in stopped]}"
        )
        error = next(iter(stopped.values())).error
        assert "PEN-506" in error, f"the table stopped, but with: {error}"

        self.accept(options)
        scene.catch_up()
        scene.sink.close()

        self._assert_all(scene, ids, "once nothing is refused any more", ordered=False)
        assert not scene.sink.tables.detached, (
            "the table did not go on once nothing was refused any more"
        )

    def test_what_is_refused_is_parked_with_what_must_not_overtake_it(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path, OnRefused.PARK)
        ids = scene.write(4)
        if not self.refuse(options, 2):
            raise SkipTest("this destination refuses nothing")
        scene.deliver()
        of_key_2 = [ids[4], ids[5], ids[7], ids[11]]  # insert, two updates, and the delete
        self._assert_parked(scene, of_key_2, "after a refusal")
        left = [one for one in self._shown(ids) if one not in of_key_2]
        _assert_same(self._found(options), left, "beside what is parked")

        self.accept(options)
        self._retry(scene)
        scene.sink.close()

        self._assert_parked(scene, [], "after a retry")
        self._assert_all(scene, ids, "after a retry of what was parked", ordered=False)

    def test_nothing_overtakes_what_is_parked_by_another_task(self, tmp_path: Path) -> None:
        for number, story in enumerate((MOVED, MOVED, EMPTIED, EMPTIED)):
            directory = tmp_path / str(number)
            directory.mkdir()
            scene, options = self._scene(directory, OnRefused.PARK)
            if not self.refuse(options, 2):
                raise SkipTest("this destination refuses nothing")
            # The row that is refused comes in a batch before the rest, or in the same.
            first = 2 * (number % 2)
            ids = scene.write_rows(*story.transactions[:first])
            if first:
                scene.deliver()
            ids += scene.write_rows(*story.transactions[first:])

            scene.deliver_at_once()

            when = f"when {story.name}, {'a batch later' if first else 'in one batch'}"
            self._assert_waiting(scene, [ids[place] for place in story.waiting], when)
            self.accept(options)
            self._retry(scene)
            scene.sink.close()
            self._assert_parked(scene, [], f"after a retry, {when}")
            self._assert_told(scene, story, ids, ordered=False)

    def test_what_is_parked_and_refused_again_stays(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path, OnRefused.PARK)
        scene.write(2)
        if not self.refuse(options, 2):
            raise SkipTest("this destination refuses nothing")
        scene.deliver()
        before = [each.id for each in self.kind().parked(scene.place)]

        self._retry(scene)
        scene.sink.close()

        assert before, "nothing was parked: the sink delivered what was to be refused"
        after = [each.id for each in self.kind().parked(scene.place)]
        _assert_same(after, before, "among what is parked, after a retry that was refused again")

    def test_copy_takes_the_place_of_what_is_parked_of_its_table(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path, OnRefused.PARK)
        ids = scene.write(2)
        if not self.refuse(options, 2):
            raise SkipTest("this destination refuses nothing")
        scene.deliver()
        assert self.kind().parked(scene.place), "the sink delivered what was to be refused"

        self.accept(options)
        reads = scene.copy(_COPIED, _COPIED_AT)
        scene.sink.close()

        self._assert_parked(scene, [], "after its table was copied")
        wanted = self._copied(reads, ids)
        copied = [one for one in self._found(options) if one in wanted]
        _assert_same(copied, wanted, "of a copy of a table of which something was parked")

    def test_check_changes_nothing_and_finds_nothing(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(1)
        scene.deliver()
        scene.sink.close()

        found = [str(each.error) for each in self.kind().check({"shop": scene.place}, {})]
        assert not found, f"`check` finds faults with a destination that works: {found}"
        self._assert_order(options, ids, "after `check`")

    def test_teardown_leaves_what_was_delivered_and_nothing_else(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(2)
        scene.deliver()
        scene.sink.close()

        self.kind().forget(scene.place)

        self._assert_order(options, ids, "after `forget`, which leaves what was delivered")
        other = scene.another()
        is_left = other.open() is not None
        other.close()
        assert not is_left, "`open` still returns a state after `forget`"
        self.kind().forget(scene.place)
        again = self.kind().forget(scene.place)
        assert again == [], f"`forget` of what was forgotten says that it removed {again}"

    # --- how -----------------------------------------------------------------------------------

    def _scene(
        self, directory: Path, on_refused: OnRefused = OnRefused.STOP
    ) -> tuple[Scene, Options]:
        options = self.options(directory).model_copy(update={"on_refused": on_refused})
        return Scene(self.kind(), options, directory), options

    def _assert_order(self, options: Options, ids: list[str], when: str) -> None:
        _assert_same(self._found(options), self._shown(ids), when)

    def _retry(self, scene: Scene) -> None:
        kind, place = self.kind(), scene.place
        if parked := [each.id for each in kind.parked(place)]:
            kind.ask_parked(place, "retry", parked)
        scene.sink.refresh_tables(scene.open())

    def _kills(self) -> Iterator[tuple[str, int]]:
        for point in self.fault_points:
            for passing in self.kills_after:
                yield point, passing


class SinkContract(SinkScenes):
    """For sinks of documents. Subclass it in a test module, under a name that pytest collects."""

    shows_rows: ClassVar[bool] = False
    """Whether the destination shows rows as they are now: of each the last document, and none of one that was deleted."""

    @abstractmethod
    def kind(self) -> DocumentKind[Any]:
        """The kind under test."""

    @abstractmethod
    def delivered(self, options: Options) -> list[dict[str, Any]]:
        """The documents that the destination shows, parsed, in the order in which they came.

        Of a destination that keeps no order: by commit_lsn and ordinal, as the documents say.
        """

    def _found(self, options: Options) -> list[str]:
        return [one["id"] for one in self.delivered(options)]

    def _shown(self, ids: Sequence[str], table: str | None = None) -> list[str]:
        places = sorted(rows_left(len(ids)).values()) if self.shows_rows else range(len(ids))
        return [ids[place] for place in places if table in (None, table_of(place))]

    def _copied(self, reads: Sequence[str], ids: Sequence[str]) -> list[str]:
        """Documents of rows before those of changes."""
        since = set(ids[8:])
        return [*reads, *(one for one in self._shown(ids, "orders") if one in since)]

    def _assert_order_per_key(self, options: Options) -> None:
        by_key: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for one in self.delivered(options):
            key = one["table"], str(one["key"])
            by_key.setdefault(key, []).append((Lsn.parse(one["commit_lsn"]), one["ordinal"]))
        mixed_up = [key for key, places in by_key.items() if places != sorted(places)]
        assert not mixed_up, f"documents of a key are not in the source's order: {mixed_up}"

    def _assert_all(self, scene: Scene, ids: list[str], when: str, *, ordered: bool = True) -> None:
        self._assert_ids(scene, self._shown(ids), when, ordered=ordered)

    def _assert_told(
        self, scene: Scene, story: Story, ids: Sequence[str], *, ordered: bool = True
    ) -> None:
        places = sorted(place for _, place in story.rows.values())
        wanted = [ids[place] for place in places] if self.shows_rows else list(ids)
        self._assert_ids(scene, wanted, f"of {story.name}", ordered=ordered)

    def _assert_waiting(self, scene: Scene, ids: Sequence[str], when: str) -> None:
        if not self.shows_rows:  # there a TRUNCATE takes away what it has overtaken
            self._assert_parked(scene, ids, when)

    def _assert_ids(self, scene: Scene, wanted: list[str], when: str, *, ordered: bool) -> None:
        """Every document is there; one may be there twice only where the sink stores no state."""
        found = self._found(scene.place.options)
        first = list(dict.fromkeys(found))
        _assert_same(
            first if ordered else sorted(first), wanted if ordered else sorted(wanted), when
        )
        sink = self.kind().sink(scene.place)
        if sink.stores_state and sink.delivered_by == "driver":
            twice = sorted({one for one in found if found.count(one) > 1})
            assert not twice, (
                f"{when}: documents came twice although the sink has stores_state: {twice};"
                " documents and state must be stored together, or `open` must undo the documents"
            )

    def _assert_parked(self, scene: Scene, ids: Sequence[str], when: str) -> None:
        parked = [each.id for each in self.kind().parked(scene.place)]
        _assert_same(parked, list(ids), f"among what is parked, {when}")


class RowSinkContract(SinkScenes):
    """For sinks of rows: what counts is which rows a table has. Subclass it as `SinkContract`."""

    @abstractmethod
    def rows(self, options: Options, table: str) -> list[tuple[int, str]]:
        """The rows that the destination has of public.orders or public.audit, id and note, in any order.

        One that is there twice is given twice. None where there is no such table yet.
        """

    def _found(self, options: Options) -> list[str]:
        return [
            _row(table, *row)
            for table in ("orders", "audit")
            for row in sorted(self.rows(options, table))
        ]

    def _shown(self, ids: Sequence[str], table: str | None = None) -> list[str]:
        tables = ("orders", "audit") if table is None else (table,)
        return [
            _row(each, *row)
            for each in tables
            for row in sorted(written_rows(len(ids), each).items())
        ]

    def _copied(self, reads: Sequence[str], ids: Sequence[str]) -> list[str]:
        """The rows of the copy, and those that came since; none from before it."""
        del reads
        before = written_rows(8, "orders")
        rows = {
            key: note for key, note in written_rows(len(ids), "orders").items() if key not in before
        } | dict.fromkeys(_COPIED, "copied")
        return [_row("orders", *row) for row in sorted(rows.items())]

    def _assert_all(self, scene: Scene, ids: list[str], when: str, *, ordered: bool = True) -> None:
        del ordered  # rows have none
        self._assert_order(scene.place.options, ids, when)

    def _assert_told(
        self, scene: Scene, story: Story, ids: Sequence[str], *, ordered: bool = True
    ) -> None:
        del ids, ordered
        wanted = [_row("orders", key, note) for key, (note, _) in sorted(story.rows.items())]
        _assert_same(self._found(scene.place.options), wanted, f"of {story.name}")

    def _assert_parked(self, scene: Scene, ids: Sequence[str], when: str) -> None:
        """How many changes are parked is the sink's affair: it may keep their net effect."""
        parked = self.kind().parked(scene.place)
        found = {f"{each.table} {json.loads(each.key or 'null')}" for each in parked}
        wanted = {f"public.orders {{'id': {key}}}" for key in ("2", "'2'")} if ids else set()
        assert found <= wanted, f"rows are parked, {when}: {sorted(found)}"
        assert bool(found) == bool(ids), f"nothing is parked, {when}: the sink delivered it"

    def test_copy_takes_the_place_of_rows_that_were_there(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(2)
        scene.deliver()

        reads = scene.copy(_COPIED, _COPIED_AT)
        scene.sink.close()

        wanted = [*self._copied(reads, ids), *self._shown(ids, "audit")]
        _assert_same(self._found(options), wanted, "after a table with rows was copied")


def _row(table: str, key: int, note: str) -> str:
    return f"{table} {key} {note}"


def _assert_same(found: list[str], wanted: list[str], when: str) -> None:
    """Say what is not as it should be: documents by their ids, rows by what they hold."""
    if found == wanted:
        return
    missing = [one for one in wanted if one not in found]
    unwanted = [one for one in found if one not in wanted]
    twice = sorted({one for one in found if found.count(one) > 1})
    says = [
        f"{what}: {', '.join(ids)}"
        for what, ids in (("missing", missing), ("not wanted", unwanted), ("twice", twice))
        if ids
    ]
    if not says:
        says = [f"in another order: found {', '.join(found)}; wanted {', '.join(wanted)}"]
    raise AssertionError(f"changes {when}: {'; '.join(says)}")
