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
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import SkipTest

from penstock.errors import PenstockError, SecondInstance
from penstock.lsn import Lsn
from penstock.options import OnRefused
from penstock.retry import is_temporary
from penstock.sinks.documents.contract import DocumentKind
from penstock.testing.failing import CALLS, FAILS, SECRET, FailingKind
from penstock.testing.scene import (
    ALTERED_TRIPS,
    FILLED_TRIPS,
    LOOSE,
    ORDERS,
    PURCHASES,
    START,
    TRIPS,
    Scene,
    altered_trips,
    filled_trips,
    renamed,
    retyped,
    rows_left,
    table_of,
    written_rows,
)
from penstock.testing.stories import EMPTIED, EVERYTHING, MOVED
from penstock.testing.stream import UNCHANGED, delete, insert, truncate, update

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
    """At which of its passages of a fault point the sink's process is killed, in runs of their own. Four transactions are
    delivered; the first of these numbers must come."""

    fault_points: ClassVar[Sequence[str]] = ()
    """Between which steps the sink's process is killed; none stands for those that every such sink passes."""

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
    def _assert_delivered(
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
        for point, passing in self._kills(tmp_path):
            directory = tmp_path / f"{point}-{passing}"
            directory.mkdir()
            scene, _ = self._scene(directory)
            ids = scene.write(4)

            was_killed = scene.killed_at(point, passing, scene.deliver)
            assert was_killed or passing != self.kills_after[0], (
                f"{point} is not passed {passing} times: nothing was killed there. Name in fault_points what the sink"
                " passes, and in kills_after how often"
            )
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
        for fails in FAILS:
            scene = self._failing_scene(tmp_path, fails)
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
            self._assert_delivered(scene, EVERYTHING, ids)

    def test_sink_goes_on_after_errors_of_its_other_calls(self, tmp_path: Path) -> None:
        """Out of `open` once the destination is claimed, `idle`, and `close`."""
        for call in CALLS:
            scene = self._failing_scene(tmp_path, call)
            ids: list[str] = []
            errors: list[PenstockError] = []

            for _ in range(2):
                ids += scene.write(1)
                try:
                    scene.deliver()
                    scene.sink.idle()
                except PenstockError as error:
                    errors.append(error)
                scene.sink.close()
            scene.deliver()
            scene.sink.close()

            final = [str(error) for error in errors if not is_temporary(error)]
            assert not final, f"after an error of `{call}` another one ends the run: {final}"
            # Of `close` none is wanted: what was delivered is durable. But `open` may call it.
            assert len(errors) == 1 or call == "close", (
                f"`{call}` raised once, and {len(errors)} errors came"
            )
            self._assert_all(scene, ids, f"after an error of `{call}`")

    def test_check_that_raises_is_a_finding(self, tmp_path: Path) -> None:
        scene = self._failing_scene(tmp_path, "check_tables")
        ids = scene.write(1)

        first, again = (
            [str(each.error) for each in self._failing.check({"shop": scene.place}, {})]
            for _ in range(2)
        )
        scene.deliver()
        scene.sink.close()

        assert len(first) == 1, f"an exception of `check` gives these findings: {first}"
        assert SECRET not in first[0], f"the text of an exception is shown: {first[0]}"
        assert not again, f"`check` finds faults after one that raised: {again}"
        self._assert_all(scene, ids, "after a `check` that raised")

    def test_forget_that_raises_can_be_repeated(self, tmp_path: Path) -> None:
        scene = self._failing_scene(tmp_path, "forget")
        ids = scene.write(2)
        scene.deliver()
        scene.sink.close()

        said = ""
        try:
            self._failing.forget(scene.place)
        except PenstockError as error:
            said = str(error)
        self._failing.forget(scene.place)

        assert said, "an exception of `forget` did not come as an error of penstock's"
        assert SECRET not in said, f"the text of an exception is shown: {said}"
        other = scene.another()
        is_left = other.open() is not None
        other.close()
        assert not is_left, "`open` still returns a state after a `forget` that was repeated"
        self._assert_all(scene, ids, "after a `forget` that was repeated")

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
            self._assert_delivered(scene, story, ids, ordered=False)

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

    def test_two_pipelines_at_one_destination_leave_each_other_alone(self, tmp_path: Path) -> None:
        self._assert_independent(
            tmp_path, ("shop", "shop", ("shop",)), ("other", "other", ("other",))
        )

    def test_two_sources_at_one_destination_leave_each_other_alone(self, tmp_path: Path) -> None:
        ids = ("shop", "other")
        self._assert_independent(tmp_path, ("shop", "shop", ids), ("shop", "other", ids))

    def _assert_independent(
        self, tmp_path: Path, first: tuple[str, str, Any], second: tuple[str, str, Any]
    ) -> None:
        """Each has a state of its own; or the second is refused, and changes nothing."""
        kind, options = self.kind(), self.options(tmp_path)
        (tmp_path / "second").mkdir()

        def scene_of(directory: Path, owner: tuple[str, str, Any]) -> Scene:
            _, source_id, ids = owner
            own = options if len(ids) == 1 else kind.of_source(options, source_id)
            return Scene(kind, own, directory, *owner)

        try:
            scene = scene_of(tmp_path, first)
        except PenstockError:
            return  # several sources are refused
        ids = scene.write(1)
        scene.deliver()
        position: Lsn | None = None
        other: Scene | None = None
        try:
            other = scene_of(tmp_path / "second", second)
            position = other.open()
        except PenstockError:
            pass  # it is refused: nothing is mixed
        ids += scene.write(1)
        scene.deliver()
        if other is not None:
            _assert_position(other, position, "after the other delivered")
            other.sink.close()
        scene.sink.close()
        if other is not None:
            with suppress(PenstockError):
                kind.forget(other.place)
        delivered = scene.open()
        scene.sink.close()
        assert delivered > START, "`forget` of one took the state of the other with it"
        self._assert_order(scene.place.options, ids, "of one of two at a destination")
        if other is not None and position is not None:
            other.open()
            other.sink.close()
            kind.forget(scene.place)
            _assert_position(other, position, "after `forget` of the other")
            other.sink.close()

    # --- how -----------------------------------------------------------------------------------

    def _scene(
        self, directory: Path, on_refused: OnRefused = OnRefused.STOP
    ) -> tuple[Scene, Options]:
        options = self.options(directory).model_copy(update={"on_refused": on_refused})
        return Scene(self.kind(), options, directory), options

    def _failing_scene(self, tmp_path: Path, fails: str) -> Scene:
        """A scene of a sink that fails once."""
        kind = self.kind()
        if not isinstance(kind, DocumentKind):
            raise SkipTest("a sink with two halves of its own has errors of its own")
        directory = tmp_path / fails
        directory.mkdir()
        self._failing = FailingKind(kind, fails, directory / "failed")
        return Scene(self._failing, self.options(directory), directory)

    def _assert_order(self, options: Options, ids: list[str], when: str) -> None:
        _assert_same(self._found(options), self._shown(ids), when)

    def _retry(self, scene: Scene) -> None:
        kind, place = self.kind(), scene.place
        if parked := [each.id for each in kind.parked(place)]:
            kind.ask_parked(place, "retry", parked)
        scene.sink.refresh_tables(scene.open())

    def _points(self, directory: Path) -> Sequence[str]:
        """What every sink of documents passes."""
        by_tasks = ("deliver.after_job", "documents.after_deliver", "deliver.after_commit")
        place = self._scene(directory)[0].place
        kind = self.kind()
        assert isinstance(kind, DocumentKind), (
            "only of sinks of documents penstock knows their steps"
        )
        if kind.sink(place).delivered_by == "tasks":
            return by_tasks
        return ("documents.before_deliver", "documents.inside_deliver", *by_tasks)

    def _kills(self, directory: Path) -> Iterator[tuple[str, int]]:
        points = self.fault_points
        if not points:
            (directory / "asked").mkdir()
            points = self._points(directory / "asked")
        for point in points:
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

    def _assert_delivered(
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

    takes_keyless_tables: ClassVar[bool] = True
    """Whether the destination can hold a table in which equal rows are there more than once."""

    is_altered_by_hand: ClassVar[bool] = False
    """Whether changes of tables reach the sink otherwise than as `TableAltered`; then scenes of them are skipped."""

    @abstractmethod
    def rows(self, options: Options, table: str) -> list[tuple[int, str]]:
        """The rows that the destination has of a table of the schema public, its columns id and note, in any order.

        One that is there twice is given twice. None where there is no such table, yet or any more. The tables are `orders`
        and `audit`; `loose`, without a key; `trips`, whose `note` is called otherwise at first; and `purchases`, as
        `orders` is called later.
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

    def _assert_delivered(
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

    # --- what becomes of a row -----------------------------------------------------------------

    def test_truncate_takes_what_was_before_it(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        scene.add(ORDERS, insert(ORDERS, ["1", "a"]), insert(ORDERS, ["2", "b"]))
        scene.deliver()

        scene.add(ORDERS, insert(ORDERS, ["3", "c"]), truncate(ORDERS), insert(ORDERS, ["4", "d"]))
        scene.deliver()
        scene.sink.close()

        self._assert_rows(options, "orders", [(4, "d")], "after a TRUNCATE, and a row behind it")

    def test_row_that_gets_another_key_keeps_its_values(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        scene.add(ORDERS, *(insert(ORDERS, [key, f"row {key}"]) for key in "12345"))
        scene.deliver()

        scene.add(
            ORDERS,
            update(ORDERS, ["6", "sent"], key=["1"]),
            # Their notes are large, and are not sent again.
            update(ORDERS, ["7", UNCHANGED], key=["2"]),
            update(ORDERS, ["2", UNCHANGED], key=["3"]),
            insert(ORDERS, ["1", "another"]),
        )
        scene.add(ORDERS, update(ORDERS, ["3", UNCHANGED], key=["4"]))
        scene.deliver_at_once()
        scene.sink.close()

        wanted = [
            (1, "another"),
            (2, "row 3"),
            (3, "row 4"),
            (5, "row 5"),
            (6, "sent"),
            (7, "row 2"),
        ]
        self._assert_rows(options, "orders", wanted, "after rows got other keys (`move`)")

    def test_value_that_is_not_sent_stays(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        scene.add(ORDERS, insert(ORDERS, ["1", "large"]), insert(ORDERS, ["2", "b"]))
        scene.deliver()

        scene.add(ORDERS, update(ORDERS, ["1", UNCHANGED]), update(ORDERS, ["2", "c"]))
        scene.deliver()
        scene.sink.close()

        wanted = [(1, "large"), (2, "c")]
        self._assert_rows(
            options, "orders", wanted, "after an update without a value (`unchanged`)"
        )

    def test_row_that_takes_the_place_of_another_is_that_row(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        scene.add(ORDERS, insert(ORDERS, ["1", "a"]), insert(ORDERS, ["2", "b"]))
        scene.deliver()

        scene.add(
            ORDERS,
            delete(ORDERS, key=["1"]),
            insert(ORDERS, ["1", "another"]),
            insert(ORDERS, ["3", "c"]),
            delete(ORDERS, key=["3"]),
        )
        scene.deliver()
        scene.sink.close()

        wanted = [(1, "another"), (2, "b")]
        when = "after one row took the place of another (`replace`), and one came and went (`gone`)"
        self._assert_rows(options, "orders", wanted, when)

    def test_rows_of_a_table_without_a_key_are_counted(self, tmp_path: Path) -> None:
        self._require_keyless()
        scene, options = self._scene(tmp_path)
        scene.add(LOOSE, *(insert(LOOSE, row) for row in (["1", "a"], ["1", "a"], ["1", "a"])))
        scene.add(LOOSE, insert(LOOSE, ["2", "b"]), insert(LOOSE, ["2", "b"]))
        scene.deliver()

        scene.add(
            LOOSE,
            delete(LOOSE, before=["1", "a"]),
            update(LOOSE, ["3", "c"], before=["2", "b"]),
            delete(LOOSE, before=["1", "a"]),
        )
        scene.deliver()
        scene.sink.close()

        wanted = [(1, "a"), (2, "b"), (3, "c")]
        self._assert_rows(options, "loose", wanted, "of a table without a key")

    # --- the state -----------------------------------------------------------------------------

    def test_kill_once_rows_are_there_doubles_nothing(self, tmp_path: Path) -> None:
        """What comes again would find the row under the key that another has left, and equal rows."""
        scene, options = self._scene(tmp_path)
        scene.add(ORDERS, insert(ORDERS, ["1", "large"]))
        scene.deliver()
        scene.add(
            ORDERS, update(ORDERS, ["2", UNCHANGED], key=["1"]), insert(ORDERS, ["1", "another"])
        )
        if self.takes_keyless_tables:
            scene.add(LOOSE, insert(LOOSE, ["1", "a"]), insert(LOOSE, ["1", "a"]))

        scene.sink.close()
        was_killed = scene.killed_at("deliver.after_commit", 1, scene.deliver_at_once)
        scene.sink = scene.another()
        scene.deliver()
        scene.sink.close()

        assert was_killed, "the process was not killed"
        when = "after a kill between the rows and what penstock itself knows of them"
        self._assert_rows(options, "orders", [(1, "another"), (2, "large")], when)
        if self.takes_keyless_tables:
            self._assert_rows(options, "loose", [(1, "a"), (1, "a")], when)

    def test_state_is_where_the_rows_are(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(2)
        scene.deliver()
        scene.sink.close()

        scene.lose_the_state_directory()
        scene.sink = scene.another()
        is_known = scene.sink.open() is not None
        scene.sink.close()

        assert is_known, (
            "`open` knows no state once the state directory is gone: it is not stored with the rows"
        )
        self._assert_order(options, ids, "after the state directory was lost")

    # --- changes of tables ---------------------------------------------------------------------

    def test_columns_follow_changes_of_their_table(self, tmp_path: Path) -> None:
        self._require_altered()
        scene, options = self._scene(tmp_path)
        scene.add(TRIPS, insert(TRIPS, ["1", "first"]))

        scene.alter(
            (TRIPS, [insert(TRIPS, ["2", "second"])]),
            altered_trips(),
            (ALTERED_TRIPS, [insert(ALTERED_TRIPS, ["3", "third", "sea"])]),
        )
        scene.sink.close()

        wanted = [(1, "first"), (2, "second"), (3, "third")]
        when = "after a column got another name, and another one was added (`TableAltered`)"
        self._assert_rows(options, "trips", wanted, when)

    def test_rows_follow_their_table_to_another_name(self, tmp_path: Path) -> None:
        self._require_altered()
        scene, options = self._scene(tmp_path)
        ids = scene.write(2)

        scene.alter(*self._renaming())
        scene.sink.close()

        self._assert_renamed(options, ids)

    def test_table_of_which_something_is_parked_stops_before_it_is_renamed(
        self, tmp_path: Path
    ) -> None:
        self._require_altered()
        scene, options = self._scene(tmp_path, OnRefused.PARK)
        ids = scene.write(2)
        if not self.refuse(options, 2):
            raise SkipTest("this destination refuses nothing")

        scene.alter(*self._renaming())

        self._assert_parked(scene, [ids[4]], "after its table was renamed")
        stopped = [str(name) for name in scene.sink.tables.detached]
        assert stopped == ["public.orders"], f"tables that stopped: {stopped}"
        self._assert_rows(options, "orders", [(1, "sent")], "of a table that waits to be renamed")
        self._assert_rows(options, "purchases", [], "of a table that waits to be renamed")

        self.accept(options)
        self._retry(scene)
        scene.catch_up()
        scene.sink.close()

        self._assert_parked(scene, [], "after a retry")
        self._assert_renamed(options, ids)
        assert not scene.sink.tables.detached, "the table did not go on once nothing was parked"

    def test_table_that_waits_for_a_copy_is_renamed_as_well(self, tmp_path: Path) -> None:
        self._require_altered()
        scene, options = self._scene(tmp_path)
        scene.write(2)
        scene.deliver()
        scene.sink.tables.schedule_copy({ORDERS.table: ORDERS.oid}, scene.open())

        scene.alter(*self._renaming())
        scene.sink.close()

        self._assert_rows(options, "orders", [], "of a table that was renamed before its copy")

    def test_table_whose_rows_change_without_being_sent_is_copied_again(
        self, tmp_path: Path
    ) -> None:
        """A column with a default, and another type of one: the source sends no row for either."""
        self._require_altered()
        scene, options = self._scene(tmp_path)
        scene.write(2)
        scene.deliver()
        tables = {ORDERS.table: ORDERS.oid, TRIPS.table: TRIPS.oid}
        scene.sink.tables.schedule_copy(tables, scene.open())
        scene.copy_scheduled(ORDERS, [[b"1\tbefore\n"]], _COPIED_AT, "a")
        scene.copy_scheduled(TRIPS, [[b"1\ta\n"]], _COPIED_AT, "b")
        scene.catch_up()

        end = scene.alter(
            filled_trips(),
            (FILLED_TRIPS, [insert(FILLED_TRIPS, ["2", "b", "second"])]),
            retyped(ORDERS, "note"),
        )
        waits = sorted(str(name) for name in scene.sink.tables.detached)
        scene.write(1)
        filled = [b"1\ta\tfirst\n", b"2\tb\tsecond\n"]
        copied = [b"%d\tcopied\n" % key for key in _COPIED]
        scene.copy_scheduled(FILLED_TRIPS, [filled], end, "c")
        scene.copy_scheduled(ORDERS, [copied], end, "d")
        scene.deliver()
        scene.catch_up()
        scene.sink.close()

        assert waits == ["public.orders", "public.trips"], f"tables that wait for a copy: {waits}"
        when = "of a table that was copied again after a change that sends no rows"
        self._assert_rows(options, "trips", [(1, "first"), (2, "second")], when)
        wanted = [(4, "sent"), *((key, "copied") for key in _COPIED)]
        self._assert_rows(options, "orders", wanted, when)

    def _renaming(self) -> Sequence[Any]:
        """A row of orders changes, they are called purchases, one more comes, and the row of key 2 changes again."""
        return (
            (ORDERS, [update(ORDERS, ["1", "early"])]),
            renamed(ORDERS, PURCHASES),
            (PURCHASES, [insert(PURCHASES, ["7", "g"]), update(PURCHASES, ["2", "late"])]),
        )

    def _assert_renamed(self, options: Options, ids: Sequence[str]) -> None:
        rows = written_rows(len(ids), "orders") | {1: "early", 2: "late", 7: "g"}
        when = "after their table was renamed"
        self._assert_rows(options, "purchases", sorted(rows.items()), when)
        self._assert_rows(options, "orders", [], when)

    def _require_keyless(self) -> None:
        if not self.takes_keyless_tables:
            raise SkipTest("this destination takes no table without a key")

    def _require_altered(self) -> None:
        if self.is_altered_by_hand:
            raise SkipTest("this sink follows changes of tables by a way of its own")

    def _assert_rows(
        self, options: Options, table: str, wanted: Sequence[tuple[int, str]], when: str
    ) -> None:
        found = [_row(table, *row) for row in sorted(self.rows(options, table))]
        _assert_same(found, [_row(table, *row) for row in wanted], when)


def _assert_position(scene: Scene, wanted: Lsn | None, when: str) -> None:
    """The state of a pipeline and source is its own, where it has one."""
    if wanted is None:
        return
    stored = scene.sink.open()
    found = None if stored is None else stored.delivered_lsn
    assert found == wanted, (
        f"`open` of another pipeline or source knows {found}, wanted {wanted}, {when}:"
        " key the state by place.pipeline and place.source_id"
    )


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
        what = "in another order" if sorted(found) == sorted(wanted) else "not as often"
        says = [f"{what}: found {', '.join(found)}; wanted {', '.join(wanted)}"]
    raise AssertionError(f"changes {when}: {'; '.join(says)}")
