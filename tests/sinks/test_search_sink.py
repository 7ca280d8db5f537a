"""What a search sink does beside the contract: values that were not sent, moves, repeats, refusals, logins, a server that balks."""

from __future__ import annotations

import base64
import pickle
import random
import subprocess
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from penstock import vault
from penstock.errors import (
    IndexReadOnly,
    PenstockError,
    SecondInstance,
    SinkError,
    SinkLoginRefused,
    SinkTooOld,
)
from penstock.lsn import Lsn
from penstock.sinks.kind import SinkPlace
from penstock.sinks.search.kind import SearchKind
from penstock.sinks.search.options import SearchOptions
from penstock.sinks.sink import Batch
from penstock.spark.jobs import Span, run_task
from penstock.testing import (
    UNCHANGED,
    delete,
    insert,
    read_log,
    relation,
    table,
    transaction,
    truncate,
    update,
    write_log,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from fix_search import SearchFront, SearchServer

T = table(16400, "t", {"id": "int8", "note": "text", "big": "text"}, key=["id"])
PLACES = table(16402, "places", {"id": "int8", "at": 600}, key=["id"])
START = Lsn(0x1000)
IDENTITY = {"system_identifier": "7", "slot": "penstock_shop_00000000"}


class Bench:
    """A sink, and a log that is written by hand and delivered in batches."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.index = f"t{uuid.uuid4().hex[:10]}"
        given = {"index": f"{self.index}-{{schema}}-{{table}}", **options}
        self.options = SearchOptions.model_validate(given)
        self._log = directory / "log"
        # A name of its own: what is in the index penstock may be another test's.
        self.place: SinkPlace[Any] = SinkPlace(
            self.index, self.options, "shop", "shop", ("shop",), directory / "state"
        )
        directory.mkdir(exist_ok=True)
        (directory / "vault").mkdir(exist_ok=True)
        self._vault = vault.Vault(directory / "vault")
        self.sink: Any = SearchKind().build(self.place, None)
        self.number = 0
        self.position = self.open()

    def open(self) -> Lsn:
        stored = self.sink.open()
        if stored is None:
            self.sink.begin(IDENTITY, START)
            return START
        return Lsn(stored.delivered_lsn)

    @property
    def alias(self) -> str:
        return f"{self.index}-public-t"

    def write(self, *rows: bytes) -> None:
        """Append a transaction."""
        self.number += 1
        messages = [relation(T), relation(PLACES)]
        lsn = START + 0x100 * self.number
        write_log(self._log, [*messages, *transaction(lsn, *rows, xid=self.number)], START)

    def run(
        self, task_count: int = 1, only: Sequence[int] | None = None
    ) -> tuple[Batch, list[Any]]:
        """The tasks of a batch of all that is not delivered; `only` some of them."""
        slices = read_log(self._log, self.position)
        tables = frozenset({T.table, PLACES.table})
        batch = Batch(1, self.position, slices[-1].head.end_lsn, 0, tables)
        with vault.using(self._vault):
            worker = pickle.loads(pickle.dumps(self.sink.worker(batch)))
        worker = worker.shared_among(task_count)
        span = Span(batch.after_lsn, batch.end_lsn)
        receipts = [
            run_task(worker, span, number, [[ref] for ref in slices])
            for number in (range(task_count) if only is None else only)
        ]
        return batch, receipts

    def deliver(self, task_count: int = 1) -> None:
        """One batch; again where the sink says that it passes with time."""
        for _ in range(3):
            try:
                self._deliver(task_count)
            except SinkError as error:
                if "comes again" not in str(error):
                    raise
                self.position = self.open()
            else:
                return
        raise AssertionError("a batch is never delivered")

    def _deliver(self, task_count: int) -> None:
        batch, receipts = self.run(task_count)
        self.sink.commit(batch, receipts)
        self.position = batch.end_lsn


@pytest.fixture
def bench(opensearch: SearchServer, tmp_path: Path):
    made = []

    def bench(**options: Any) -> Bench:
        made.append(Bench(tmp_path / str(len(made)), **{"url": opensearch.url, **options}))
        return made[-1]

    yield bench
    for each in made:
        each.sink.close()


def test_value_that_was_not_sent_is_that_of_the_document(bench, opensearch) -> None:
    one = bench()
    one.write(insert(T, ["1", "new", "B"]), insert(T, ["2", "new", None]))
    one.deliver()
    one.write(update(T, ["1", "later", UNCHANGED]))
    one.write(update(T, ["2", "x", "C"]), update(T, ["2", "y", UNCHANGED]))
    one.deliver()

    assert opensearch.rows(one.alias) == {
        "1": {"id": 1, "note": "later", "big": "B"},
        "2": {"id": 2, "note": "y", "big": "C"},
    }


def test_repeat_changes_nothing_and_no_value_is_lost_by_it(bench, opensearch) -> None:
    one = bench()
    one.write(insert(T, ["1", "new", "B"]))
    one.write(update(T, ["1", "second", UNCHANGED]))
    one.write(update(T, ["1", "third", "C"]), update(T, ["1", "fourth", UNCHANGED]))
    one.run()
    before = opensearch.rows(one.alias)
    for _ in range(2):
        one.run()  # nobody has stored the position: after a crash all of it comes again
    assert opensearch.rows(one.alias) == before
    one.deliver()
    assert opensearch.rows(one.alias) == {"1": {"id": 1, "note": "fourth", "big": "C"}}


@pytest.mark.parametrize("task_count", [1, 3])
def test_row_that_moves_takes_along_what_was_not_sent(bench, opensearch, task_count) -> None:
    one = bench()
    one.write(*(insert(T, [str(key), "new", f"B{key}"]) for key in range(10)))
    one.deliver(task_count)
    one.write(update(T, ["3", "x", "C"]))
    one.write(
        *(update(T, [str(key + 10), "moved", UNCHANGED], key=[str(key)]) for key in range(10))
    )
    one.write(insert(T, ["3", "another", "D"]))
    one.write(update(T, ["13", "twice", UNCHANGED]))
    one.deliver(task_count)

    bigs = {key: f"B{key - 10}" for key in range(10, 20)} | {13: "C"}
    assert opensearch.rows(one.alias) == {
        "3": {"id": 3, "note": "another", "big": "D"},
        **{
            str(key): {"id": key, "note": "twice" if key == 13 else "moved", "big": big}
            for key, big in bigs.items()
        },
    }


def test_truncate_takes_what_is_older_wherever_its_task_is(bench, opensearch) -> None:
    one = bench()
    one.write(*(insert(T, [str(key), "new", "B"]) for key in range(30)))
    one.write(truncate(T))
    one.write(*(insert(T, [str(key), "after", "B"]) for key in range(0, 30, 10)))
    # The task that has the TRUNCATE may be through before the others begin.
    batch, receipts = one.run(4)
    assert len(opensearch.hits(one.alias)) == 30
    one.sink.commit(batch, receipts)

    assert {each["note"] for each in opensearch.rows(one.alias).values()} == {"after"}
    assert sorted(opensearch.rows(one.alias)) == ["0", "10", "20"]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(one, marks=pytest.mark.long) for one in range(1, 8))]
)
def test_random_changes_in_random_batches_with_repeats(bench, opensearch, seed) -> None:
    dice = random.Random(seed)
    one = bench(bulk_bytes=dice.choice([300, 4_000_000]), concurrency=dice.choice([1, 3]))
    model: dict[int, list[str]] = {}
    for _ in range(12):
        for _ in range(dice.randint(1, 4)):
            one.write(*(_change(dice, model) for _ in range(dice.randint(1, 30))))
        count = dice.randint(1, 4)
        for _ in range(dice.choice([0, 0, 1, 2])):  # some tasks run, and then all of it comes again
            with suppress(SinkError):
                one.run(count, only=dice.sample(range(count), dice.randint(1, count)))
            one.position = one.open()
        one.deliver(count)
        if dice.random() < 0.5:
            assert_model(opensearch, one, model)
    assert_model(opensearch, one, model)


def assert_model(opensearch: SearchServer, one: Bench, model: dict[int, list[str]]) -> None:
    wanted = {str(key): {"id": key, "note": n, "big": b} for key, (n, b) in model.items()}
    assert opensearch.rows(one.alias) == wanted


def _change(dice: random.Random, model: dict[int, list[str]]) -> bytes:
    """A random change, which the model has as well."""
    throw, note, big = dice.random(), f"n{dice.random()}", f"b{dice.random()}"
    keys = sorted(model)
    free = dice.choice([key for key in range(40) if key not in model])
    if not keys or (throw < 0.4 and len(keys) < 35):
        model[free] = [note, big]
        return insert(T, [str(free), note, big])
    if throw < 0.41:
        model.clear()
        return truncate(T)
    key = dice.choice(keys)
    if throw < 0.55:
        del model[key]
        return delete(T, key=[str(key)])
    # That a key is free again within the same batch, and its old row moved without its values, is the one case that is
    # refused after a crash; a test of its own has it.
    if throw < 0.6:
        model[key + 1000] = [note, big]
        del model[key]
        return update(T, [str(key + 1000), note, big], key=[str(key)])
    is_sent = dice.random() < 0.4
    model[key] = [note, big if is_sent else model[key][1]]
    return update(T, [str(key), note, big if is_sent else UNCHANGED])


def test_move_without_values_from_a_key_that_is_overwritten_is_refused(bench, opensearch) -> None:
    one = bench(on_refused="park")
    one.write(insert(T, ["1", "new", "B"]))
    one.deliver()
    one.write(update(T, ["2", "moved", UNCHANGED], key=["1"]))
    one.write(insert(T, ["1", "another", "C"]))
    # As after a crash in which the write of key 1 came first: key 2 is nowhere, its value is lost.
    hit = opensearch.hits(one.alias)[0]
    body = {**hit["_source"], "note": "another", "big": "C", "_position": 99 << 40}
    path = f"/{one.alias}/_doc/1?version={99 << 40}&version_type=external_gte"
    opensearch.must("PUT", path, body)
    one.deliver()

    (entry,) = SearchKind().parked(one.place)
    assert "REPLICA IDENTITY FULL" in entry.reason
    assert "2" not in opensearch.rows(one.alias)


def test_document_that_the_server_refuses_stops_or_is_parked(bench, opensearch) -> None:
    for on_refused in ("stop", "park"):
        one = bench(point_as="geo", on_refused=on_refused)
        one.write(insert(PLACES, ["1", "(13.4,52.5)"]))
        one.write(insert(PLACES, ["2", "(13.4,5250)"]), insert(T, ["1", "n", "b"]))
        one.deliver()
        assert sorted(opensearch.rows(one.alias)) == ["1"]
        if on_refused == "stop":
            (stopped,) = one.sink.tables.detached.values()
            said = stopped.error
        else:
            assert sorted(opensearch.rows(f"{one.index}-public-places")) == ["1"]
            (entry,) = SearchKind().parked(one.place)
            said = entry.reason
        assert "field at of type geo_point" in said
        assert "5250" not in said


def test_index_that_takes_no_writes_is_waited_for(bench, opensearch) -> None:
    one = bench()
    one.write(insert(T, ["1", "new", "B"]))
    one.deliver()
    path = f"/{one.alias}/_settings"
    opensearch.must("PUT", path, {"index.blocks.read_only_allow_delete": True})
    one.write(update(T, ["1", "later", "B"]))
    with pytest.raises(IndexReadOnly, match="takes no writes"):
        one.deliver()
    opensearch.must("PUT", path, {"index.blocks.read_only_allow_delete": None})
    one.position = one.open()
    one.deliver()
    assert opensearch.rows(one.alias)["1"]["note"] == "later"


def test_second_process_is_found_out_when_it_stores_a_position(bench) -> None:
    one = bench()
    one.write(insert(T, ["1", "new", "B"]))
    other: Any = SearchKind().build(one.place, None)
    other.open()
    batch, receipts = one.run()
    one.sink.commit(batch, receipts)
    with pytest.raises(SecondInstance):
        other.commit(batch, receipts)
    other.close()


def test_busy_server_is_asked_again(bench, search_front, opensearch) -> None:
    front: SearchFront = search_front()
    answers = [429, 503, 429]

    def busy(method: str, path: str, size: int) -> int | None:
        return answers.pop() if "/_bulk" in path and answers else None

    one = bench(url=front.url)
    one.write(*(insert(T, [str(key), "new", "B"]) for key in range(20)))
    front.answer = busy
    one.deliver()
    assert len(opensearch.hits(one.alias)) == 20
    assert not answers


def test_request_that_is_too_large_is_halved_and_a_document_that_is_refused(
    bench, search_front, opensearch
) -> None:
    front: SearchFront = search_front()
    front.answer = lambda _method, path, size: 413 if "/_bulk" in path and size > 2000 else None
    one = bench(url=front.url, on_refused="park")
    one.write(*(insert(T, [str(key), "x" * 200, "B"]) for key in range(20)))
    one.write(insert(T, ["77", "x" * 3000, "B"]))
    one.deliver()
    assert len(opensearch.hits(one.alias)) == 20
    (entry,) = SearchKind().parked(one.place)
    assert "max_content_length" in entry.reason


def test_requests_are_sized_by_bytes(bench, search_front, opensearch) -> None:
    front: SearchFront = search_front()
    one = bench(url=front.url, bulk_bytes=5000, concurrency=3)
    one.write(*(insert(T, [str(key), "x" * 400, "B"]) for key in range(100)))
    one.deliver()
    sizes = [size for _, path, size in front.requests if "/_bulk" in path]
    assert len(sizes) >= 8
    assert max(sizes) <= 5000
    assert len(opensearch.hits(one.alias)) == 100


def _problem(place: SinkPlace[Any]) -> PenstockError:
    (found,) = SearchKind().check({"shop": place}, {})
    return found.error


def _place(tmp_path: Path, **options: Any) -> SinkPlace[Any]:
    given = SearchOptions.model_validate(options)
    return SinkPlace("find", given, "shop", "shop", ("shop",), tmp_path / "state")


@pytest.mark.parametrize(
    ("login", "wanted"),
    [
        ({"username": "u", "password": "p4ss"}, "Basic " + base64.b64encode(b"u:p4ss").decode()),
        ({"api_key": "k3y"}, "ApiKey k3y"),
    ],
)
def test_login(search_front: Callable[..., SearchFront], tmp_path, login, wanted) -> None:
    front = search_front(login=wanted)
    assert list(SearchKind().check({"shop": _place(tmp_path, url=front.url, **login)}, {})) == []
    error = _problem(_place(tmp_path, url=front.url, username="u", password="wr0ng"))
    assert isinstance(error, SinkLoginRefused)
    assert "wr0ng" not in str(error)


def test_certificate(search_front: Callable[..., SearchFront], tmp_path) -> None:
    both = tmp_path / "both.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1 -addext"
    subprocess.run(
        [*command.split(), "subjectAltName=IP:127.0.0.1", "-keyout", both, "-out", tmp_path / "ca"],
        check=True,
        capture_output=True,
    )
    both.write_text(both.read_text() + (tmp_path / "ca").read_text())
    front = search_front(certificate=both)
    error = _problem(_place(tmp_path, url=front.url))
    assert isinstance(error, SinkLoginRefused)
    assert "self-signed certificate" in str(error)
    for tls in ({"ca": str(tmp_path / "ca")}, {"verify": False}):
        place = _place(tmp_path, url=front.url, tls=tls)
        assert list(SearchKind().check({"shop": place}, {})) == []


def test_check_names_what_is_wrong(search_front: Callable[..., SearchFront], tmp_path) -> None:
    front = search_front()
    assert isinstance(_problem(_place(tmp_path, url="http://127.0.0.1:1")), SinkError)
    front.answer = lambda _method, path, _size: 403 if path == "/" else None
    assert "may not" in str(_problem(_place(tmp_path, url=front.url)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "penstock.sinks.search.parts._OLDEST",
            dict.fromkeys(("opensearch", "elasticsearch"), (99, 0)),
        )
        front.answer = lambda *_: None
        assert isinstance(_problem(_place(tmp_path, url=front.url)), SinkTooOld)


def test_index_that_is_not_ours_is_left_alone(bench, opensearch) -> None:
    one = bench()
    opensearch.must("PUT", f"/{one.alias}.mine", {"aliases": {one.alias: {}}})
    one.write(insert(T, ["1", "new", "B"]), insert(PLACES, ["1", "(1,2)"]))
    one.deliver()
    (stopped,) = one.sink.tables.detached.items()
    assert str(stopped[0]) == "public.t"
    assert "was not made by this sink" in stopped[1].error
    assert len(opensearch.hits(f"{one.index}-public-places")) == 1


@pytest.mark.long
def test_server_that_is_killed_and_comes_back(tmp_path, own_search, use_timing) -> None:
    one = Bench(tmp_path / "one", url=own_search.url)
    one.write(*(insert(T, [str(key), "new", "B"]) for key in range(100)))
    one.deliver()
    own_search.kill()
    one.write(*(update(T, [str(key), "later", UNCHANGED]) for key in range(100)))
    with pytest.raises(SinkError, match="no answer"):
        one.deliver()
    own_search.start()
    one.position = one.open()
    one.deliver(3)
    found = own_search.rows(one.alias).values()
    assert {(each["note"], each["big"]) for each in found} == {("later", "B")}
    assert len(found) == 100
    one.sink.close()
