"""The suite that every document sink passes: penstock's own, and those that other people write.

    class TestMySink(SinkContract):
        def kind(self): return MyKind()
        def options(self, directory): return MyOptions(path=directory / "mine")
        def delivered(self, options): return [json.loads(line) for line in …]

pytest collects the tests below with the subclass. A sink that can refuse a document says how
(`refuse`), one that need not be alone says so (`is_exclusive`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.errors import PenstockError, SecondInstance
from penstock.lsn import Lsn
from penstock.sinks.documents.parked import Parked, ParkedRequest
from penstock.sinks.kind import SinkPlace
from penstock.testing.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator

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

        assert self._ids(options) == ids

    def test_batch_of_several_tasks_keeps_the_order_of_each_key(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(9)

        scene.deliver_at_once()
        scene.sink.close()

        found = self.delivered(options)
        assert sorted(one["id"] for one in found) == sorted(ids)
        by_key: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for one in found:
            key = one["table"], str(one["key"])
            by_key.setdefault(key, []).append((Lsn.parse(one["commit_lsn"]), one["ordinal"]))
        assert all(places == sorted(places) for places in by_key.values())

    def test_next_run_goes_on_where_the_last_one_ended(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(2)
        scene.deliver()
        scene.sink.close()
        ids += scene.write(2)

        scene.sink = scene.another()
        scene.deliver()
        scene.sink.close()

        assert self._ids(options) == ids

    def test_batch_that_is_repeated_is_refused_and_changes_nothing(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(2)
        scene.deliver()

        refused = False
        try:
            scene.commit_again()
        except PenstockError:
            refused = True
        scene.sink.close()

        assert refused, "a batch that begins elsewhere than at the position was delivered"
        self._assert_all(options, ids, "repeated")

    def test_kill_between_any_two_steps_loses_nothing(self, tmp_path: Path) -> None:
        for point, passing in self._kills():
            directory = tmp_path / f"{point}-{passing}"
            directory.mkdir()
            scene, options = self._scene(directory)
            ids = scene.write(4)

            scene.killed_at(point, passing, scene.deliver)
            scene.sink = scene.another()
            scene.deliver()
            scene.sink.close()

            self._assert_all(options, ids, f"{point}:{passing}")

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

        assert refused, "two processes could deliver to one place"

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

        assert self._ids(options) == ids

    def test_cancelled_batch_comes_whole_the_next_time(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(2)
        scene.open()
        scene.sink.close()

        scene.sink.interrupt()
        scene.deliver()
        scene.sink.close()

        self._assert_all(options, ids, "cancelled")

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
        assert orders == reads + after
        assert audit == [one for number, one in enumerate(ids) if number in is_audit]

    def test_refused_document_stops_its_table_alone(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(4)
        if not self.refuse(options, 2):
            return
        scene.deliver()
        found = self._ids(options)
        stopped = scene.sink.apart
        assert [one for one in found if one in ids[2::4]] == ids[2::4], "the other table went on"
        assert [str(name) for name in stopped] == ["public.orders"]
        assert "PEN-506" in next(iter(stopped.values())).error

        self.accept(options)
        scene.catch_up()
        scene.sink.close()

        self._assert_all(options, ids, "stopped", ordered=False)
        assert not scene.sink.apart

    def test_refused_document_is_parked_with_what_must_not_overtake_it(
        self, tmp_path: Path
    ) -> None:
        scene, options = self._scene(tmp_path, on_refused="park")
        ids = scene.write(4)
        if not self.refuse(options, 2):
            return
        scene.deliver()
        of_key_2 = [ids[4], ids[5], ids[7], ids[11]]  # insert, two updates, and the delete
        parked = self._parked(scene)
        assert [each.id for each in parked.read()] == of_key_2
        assert self._ids(options) == [one for one in ids if one not in of_key_2]

        self.accept(options)
        parked.ask(_RETRY)
        scene.sink.refresh_tables(scene.open())
        scene.sink.close()

        assert parked.read() == []
        self._assert_all(options, ids, "parked", ordered=False)

    def test_parked_document_that_is_refused_again_stays(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path, on_refused="park")
        scene.write(2)
        if not self.refuse(options, 2):
            return
        scene.deliver()
        parked = self._parked(scene)
        before = [each.id for each in parked.read()]

        parked.ask(_RETRY)
        scene.sink.refresh_tables(scene.open())
        scene.sink.close()

        assert [each.id for each in parked.read()] == before
        assert before

    def test_check_changes_nothing_and_finds_nothing(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(1)
        scene.deliver()
        scene.sink.close()

        assert [str(each.error) for each in self.kind().check({"shop": scene.place}, {})] == []
        assert self._ids(options) == ids

    def test_teardown_leaves_documents_and_nothing_else(self, tmp_path: Path) -> None:
        scene, options = self._scene(tmp_path)
        ids = scene.write(2)
        scene.deliver()
        scene.sink.close()

        self.kind().forget(scene.place)

        assert self._ids(options) == ids
        other = scene.another()
        assert other.open() is None, "a position was left"
        other.close()
        assert self.kind().forget(scene.place) == self.kind().forget(scene.place)

    # --- how -----------------------------------------------------------------------------------

    def _scene(self, directory: Path, **options: Any) -> tuple[Scene, Options]:
        given = self.options(directory)
        if options:
            given = type(given).model_validate(
                {**given.model_dump(mode="python"), **options}, strict=False
            )
        return Scene(self.kind(), given, directory), given

    def _ids(self, options: Options) -> list[str]:
        return [one["id"] for one in self.delivered(options)]

    def _assert_all(
        self, options: Options, ids: list[str], when: str, *, ordered: bool = True
    ) -> None:
        """Every document is there; one may be there twice only where the sink stores no state."""
        found = self._ids(options)
        first = list(dict.fromkeys(found))
        assert (first if ordered else sorted(first)) == (ids if ordered else sorted(ids)), when
        if self._stores_state(options):
            assert len(found) == len(first), f"{when}: a document came twice"

    def _stores_state(self, options: Options) -> bool:
        place = SinkPlace("under_test", options, "shop", "shop", ("shop",), Path())
        sink = self.kind().sink(place)
        return sink.stores_state and sink.delivered_by == "driver"

    def _parked(self, scene: Scene) -> Parked:
        return Parked(self.kind().workspace(scene.place).parked)

    def _kills(self) -> Iterator[tuple[str, int]]:
        for point in _POINTS:
            for passing in (1, 2, 4):
                yield point, passing
