"""The suite that every document sink passes: penstock's own, and those that other people write.

    class TestMySink(SinkContract):
        def kind(self): return MyKind()
        def options(self, directory): return MyOptions(path=directory / "mine")
        def delivered(self, options): return [json.loads(line) for line in …]

pytest collects the tests below with the subclass. A sink that can refuse a document says how
(`refuse`), one that need not be alone says so (`is_exclusive`). What fails says which promise of
`penstock.sink.DocumentSink` was broken: outside penstock pytest does not explain an assertion by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from unittest import SkipTest

from penstock.errors import PenstockError, SecondInstance
from penstock.lsn import Lsn
from penstock.sinks.documents.parked import Parked, ParkedRequest
from penstock.testing.scene import Scene, rows_left

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from penstock.sink import DocumentKind, Options

_RETRY = ParkedRequest("retry")
_POINTS = (
    "deliver.after_job",
    "documents.before_deliver",
    "documents.inside_deliver",
    "documents.after_deliver",
    "deliver.after_commit",
)


class SinkContract:
    """Subclass it in a test module, under a name that pytest collects."""

    is_exclusive: ClassVar[bool] = True
    """Whether a second process that delivers to the same place is refused by `open`."""

    shows_rows: ClassVar[bool] = False
    """Whether the destination shows rows as they are now: of each the last document, and none of one that was deleted."""

    kills_after: ClassVar[Sequence[int]] = (1, 2, 4)
    """At which of its passages of a fault point the sink's process is killed, in runs of their own."""

    def kind(self) -> DocumentKind[Any]:
        """The kind under test."""
        raise NotImplementedError("say which kind is tested")

    def options(self, directory: Path) -> Options:
        """Options with which the sink delivers to a place of this test's own; `directory` is empty.

        `on_refused` as it is by default.
        """
        raise NotImplementedError("say where the sink delivers to")

    def delivered(self, options: Options) -> list[dict[str, Any]]:
        """The documents that the destination shows, parsed, in the order in which they came.

        Of a destination that keeps no order: by commit_lsn and ordinal, as the documents say.
        """
        raise NotImplementedError("say how documents are read")

    def refuse(self, options: Options, key: int) -> bool:
        """Have the destination refuse documents of public.orders with this id, from now on.

        False where it refuses nothing, as the default says.
        """
        del options, key
        return False

    def accept(self, options: Options) -> None:
        """Have the destination refuse nothing any more."""
        del options

    # --- what holds for every sink -------------------------------------------------------------

    def test_every_document_arrives_once_and_in_order(self, tmp_path: Path) -> None:
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

        found = self.delivered(options)
        _assert_same(
            sorted(one["id"] for one in found),
            sorted(self._shown(ids)),
            "after one batch of many transactions",
        )
        by_key: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for one in found:
            key = one["table"], str(one["key"])
            by_key.setdefault(key, []).append((Lsn.parse(one["commit_lsn"]), one["ordinal"]))
        mixed_up = [key for key, places in by_key.items() if places != sorted(places)]
        assert not mixed_up, f"documents of a key are not in the source's order: {mixed_up}"

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

    def test_copied_rows_come_before_the_changes_of_their_table(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(4)
        reads = scene.copy(range(100, 106), Lsn(0x1208))  # as of the second transaction
        scene.deliver()
        scene.catch_up()
        scene.sink.close()

        found = self.delivered(options)
        orders = [one["id"] for one in found if one["table"] == "orders"]
        audit = [one["id"] for one in found if one["table"] == "audit"]
        is_audit = set(range(2, len(ids), 4))
        after = [one for number, one in enumerate(ids) if number >= 8 and number not in is_audit]
        if self.shows_rows:
            after = [one for one in self._shown(ids) if one in after]
        _assert_same(orders, reads + after, "of a table that was copied, rows before changes")
        of_audit = [one for number, one in enumerate(ids) if number in is_audit]
        _assert_same(audit, of_audit, "of a table that streams while another is copied")

    def test_refused_document_stops_its_table_alone(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(4)
        if not self.refuse(options, 2):
            raise SkipTest("this destination refuses nothing")
        scene.deliver()
        found = self._ids(options)
        stopped = scene.sink.tables.detached
        went_on = [one for one in found if one in ids[2::4]]
        _assert_same(went_on, ids[2::4], "of the table of which nothing is refused")
        assert [str(name) for name in stopped] == ["public.orders"], (
            "`deliver` took a document that the destination was to refuse, or `refuse` does not"
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

    def test_refused_document_is_parked_with_what_must_not_overtake_it(
        self, tmp_path: Path
    ) -> None:
        scene, options = self._scene(tmp_path, on_refused="park")
        ids = scene.write(4)
        if not self.refuse(options, 2):
            raise SkipTest("this destination refuses nothing")
        scene.deliver()
        of_key_2 = [ids[4], ids[5], ids[7], ids[11]]  # insert, two updates, and the delete
        parked = self._parked(scene)
        _assert_same([each.id for each in parked.read()], of_key_2, "among what is parked")
        left = [one for one in self._shown(ids) if one not in of_key_2]
        _assert_same(self._ids(options), left, "beside what is parked")

        self.accept(options)
        parked.ask(_RETRY)
        scene.sink.refresh_tables(scene.open())
        scene.sink.close()

        _assert_same([each.id for each in parked.read()], [], "among what is parked, after a retry")
        self._assert_all(scene, ids, "after a retry of what was parked", ordered=False)

    def test_parked_document_that_is_refused_again_stays(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path, on_refused="park")
        scene.write(2)
        if not self.refuse(options, 2):
            raise SkipTest("this destination refuses nothing")
        scene.deliver()
        parked = self._parked(scene)
        before = [each.id for each in parked.read()]

        parked.ask(_RETRY)
        scene.sink.refresh_tables(scene.open())
        scene.sink.close()

        assert before, "nothing was parked: `deliver` took a document that was to be refused"
        after = [each.id for each in parked.read()]
        _assert_same(after, before, "among what is parked, after a retry that was refused again")

    def test_copy_takes_the_place_of_what_is_parked_of_its_table(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path, on_refused="park")
        scene.write(2)
        if not self.refuse(options, 2):
            return
        scene.deliver()
        assert self._parked(scene).read(), "`deliver` took a document that was to be refused"

        self.accept(options)
        reads = scene.copy(range(100, 106), Lsn(0x1208))  # as of the second transaction
        scene.sink.close()

        left = [each.id for each in self._parked(scene).read()]
        _assert_same(left, [], "among what is parked, after its table was copied")
        found = self.delivered(options)
        copied = [one["id"] for one in found if one["id"] in reads]
        _assert_same(copied, reads, "of a copy of a table of which something was parked")

    def test_check_changes_nothing_and_finds_nothing(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(1)
        scene.deliver()
        scene.sink.close()

        found = [str(each.error) for each in self.kind().check({"shop": scene.place}, {})]
        assert not found, f"`check` finds faults with a destination that works: {found}"
        self._assert_order(options, ids, "after `check`")

    def test_teardown_leaves_documents_and_nothing_else(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(2)
        scene.deliver()
        scene.sink.close()

        self.kind().forget(scene.place)

        self._assert_order(options, ids, "after `forget`, which leaves documents alone")
        other = scene.another()
        is_left = other.open() is not None
        other.close()
        assert not is_left, "`open` still returns a state after `forget`"
        self.kind().forget(scene.place)
        again = self.kind().forget(scene.place)
        assert again == [], f"`forget` of what was forgotten says that it removed {again}"

    # --- how -----------------------------------------------------------------------------------

    def _scene(self, directory: Path, **options: Any) -> tuple[Scene, Options]:
        given = self.options(directory)
        if options:
            given = type(given).model_validate(
                {**given.model_dump(mode="python"), **options}, strict=False
            )
        return Scene(self.kind(), given, directory), given

    def _shown(self, ids: list[str]) -> list[str]:
        return rows_left(ids) if self.shows_rows else ids

    def _ids(self, options: Options) -> list[str]:
        return [one["id"] for one in self.delivered(options)]

    def _assert_order(self, options: Options, wanted: list[str], when: str) -> None:
        _assert_same(self._ids(options), self._shown(wanted), when)

    def _assert_all(
        self, scene: Scene, wanted: list[str], when: str, *, ordered: bool = True
    ) -> None:
        """Every document is there; one may be there twice only where the sink stores no state."""
        found = self._ids(scene.place.options)
        wanted = self._shown(wanted)
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

    def _parked(self, scene: Scene) -> Parked:
        return Parked(self.kind().workspace(scene.place).parked)

    def _kills(self) -> Iterator[tuple[str, int]]:
        for point in _POINTS:
            for passing in self.kills_after:
                yield point, passing


def _assert_same(found: list[str], wanted: list[str], when: str) -> None:
    """Say which documents are not as they should be, by their ids."""
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
    raise AssertionError(f"documents {when}: {'; '.join(says)}")
