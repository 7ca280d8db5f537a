"""What a search sink does beside the contract: values that were not sent, moves, repeats, refusals, logins, a server that balks."""

from __future__ import annotations

import base64
import ipaddress
import json
import pickle
import random
import socket
import subprocess
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from penstock import vault
from penstock.changes.copyrows import parse_rows
from penstock.changes.envelope import RECORDS, Origin
from penstock.changes.pgoutput import Column
from penstock.errors import (
    ClusterUnavailable,
    DestinationRefuses,
    IndexReadOnly,
    PenstockError,
    RecordSchemaRefused,
    SecondInstance,
    SinkError,
    SinkLoginRefused,
    SinkPrivilegeMissing,
    SinkTooOld,
)
from penstock.lsn import Lsn
from penstock.retry import is_temporary
from penstock.schema.difference import Difference
from penstock.schema.mark import Mark
from penstock.schema.shape import SchemaChange
from penstock.sinks.ddl_transaction import Rows, ShapeChange, TableDifference
from penstock.sinks.describe import WholeSchema
from penstock.sinks.documents.format import CopiedAt
from penstock.sinks.kind import SinkPlace
from penstock.sinks.search import merge, store
from penstock.sinks.search.indexes import Unfit, Wanted
from penstock.sinks.search.kind import SearchKind
from penstock.sinks.search.mapping import Mapper
from penstock.sinks.search.names import aliases_of, index_of, stem_of
from penstock.sinks.search.options import SearchOptions
from penstock.sinks.search.parts import parts_of
from penstock.sinks.search.sink import SearchSink
from penstock.sinks.search.store import Store
from penstock.sinks.sink import Batch
from penstock.spark.jobs import Span, run_task
from penstock.table import TableName
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
SPOTS = table(16403, "spots", {"id": "int8", "at": 600, "big": "text"}, key=["id"])
TEXTS = table(16404, "texts", {"id": "text", "note": "text"}, key=["id"])
# A numeric[] that is long enough for TOAST.
NUMBERS = table(16405, "numbers", {"id": "int8", "n": "int4", "many": 1231}, key=["id"])
TABLES = (T, PLACES, SPOTS, TEXTS, NUMBERS)
# What T is called once it was renamed, and who has its name then.
U = table(16400, "u", {"id": "int8", "note": "text", "big": "text"}, key=["id"])
OTHER = table(16410, "t", {"id": "int8", "note": "text", "big": "text"}, key=["id"])
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
        messages = [relation(each) for each in TABLES]
        lsn = START + 0x100 * self.number
        write_log(self._log, [*messages, *transaction(lsn, *rows, xid=self.number)], START)

    def run(
        self, task_count: int = 1, only: Sequence[int] | None = None
    ) -> tuple[Batch, list[Any]]:
        """The tasks of a batch of all that is not delivered; `only` some of them."""
        slices = read_log(self._log, self.position)
        tables = frozenset(each.table for each in TABLES)
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

    def deliver_ddl(self, *parts: list[bytes] | Change) -> None:
        """A transaction in which rows, each list with what describes its tables, and changes of tables alternate."""
        self.number += 1
        lsn = Lsn(START + 0x100 * self.number)
        after, end = self.position, Lsn(lsn + 8)
        slices: dict[int, Any] = {}
        made: list[Rows | ShapeChange] = []
        for number, part in enumerate(parts):
            if isinstance(part, Change):
                made.append(part.at(lsn, end, 100 * number, number))
                continue
            log = self._log.with_name(f"ddl{self.number}.{number}")
            if not log.exists():
                write_log(log, [*part[:1], *transaction(lsn, *part[1:])], START)
            slices[number] = read_log(log, START)
            made.append(Rows(number, frozenset({T.table, U.table})))

        def run_job(worker: Any, some: Sequence[Rows]) -> list[Any]:
            with vault.using(self._vault):
                sent = pickle.loads(pickle.dumps(worker)).shared_among(1)
            (part,) = some
            return [run_task(sent, Span(after, end), 0, [slices[part.number]])]

        batch = Batch(1, after, end, 0, frozenset({T.table, U.table}))
        try:
            self.sink.commit_shapes(batch, made, run_job)
        except BaseException:
            self.number -= 1  # it comes again
            raise
        self.position = end


@dataclass(frozen=True)
class Change:
    """What a statement changes of one table, as its difference says."""

    op: str
    table: TableName  # after it
    before: TableName | None = None

    def at(self, lsn: Lsn, end_lsn: Lsn, ordinal: int, number: int) -> ShapeChange:
        was = None if self.before is None else str(self.before)
        difference = Difference(self.op, "table", *self.table, "", was, str(self.table))
        return ShapeChange(
            Mark(lsn, end_lsn, 0, 1, ordinal, number, "change", ""),
            SchemaChange(format=1),
            followed=(TableDifference(self.table, (difference,)),),
            renamed={} if self.before is None else {self.before: self.table},
            dropped=frozenset({self.table} if self.op == "drop_table" else ()),
            created_in_stream=frozenset({self.table} if self.op == "create_table" else ()),
        )


@pytest.fixture
def bench(search_server: SearchServer, tmp_path: Path):
    made = []

    def bench(**options: Any) -> Bench:
        made.append(Bench(tmp_path / str(len(made)), **{"url": search_server.url, **options}))
        return made[-1]

    yield bench
    for each in made:
        each.sink.close()


def test_value_that_was_not_sent_is_that_of_the_document(bench, search_server) -> None:
    one = bench()
    one.write(insert(T, ["1", "new", "B"]), insert(T, ["2", "new", None]))
    one.deliver()
    one.write(update(T, ["1", "later", UNCHANGED]))
    one.write(update(T, ["2", "x", "C"]), update(T, ["2", "y", UNCHANGED]))
    one.deliver()

    assert search_server.rows(one.alias) == {
        "1": {"id": 1, "note": "later", "big": "B"},
        "2": {"id": 2, "note": "y", "big": "C"},
    }


def test_numbers_that_were_not_sent_are_found_digit_for_digit(bench, search_server) -> None:
    one = bench()
    long = "1" + "0" * 400
    one.write(insert(NUMBERS, ["1", "0", f"{{0.00000010,{long},-0}}"]))
    one.deliver()
    one.write(update(NUMBERS, ["1", "1", UNCHANGED]))
    one.deliver()

    index = f"{one.index}-public-numbers"
    assert search_server.rows(index)["1"]["n"] == 1
    for digits in ("0.00000010", long, "-0"):
        query = {"query": {"term": {"many": digits}}}
        found = search_server.must("POST", f"/{index}/_search", query)["hits"]["hits"]
        assert [each["_id"] for each in found] == ["1"], digits


def test_long_documents_are_read_a_few_at_a_time(
    bench, search_front, search_server, monkeypatch
) -> None:
    monkeypatch.setattr(merge, "READ_BYTES", 20_000)
    front: SearchFront = search_front()
    one = bench(url=front.url)
    bigs = {str(key): f"B{key}" * 500 for key in range(200)}
    one.write(*(insert(T, [key, "new", big]) for key, big in bigs.items()))
    one.deliver()
    before = len(front.requests)
    one.write(*(update(T, [key, "later", UNCHANGED]) for key in bigs))
    one.deliver()

    asked = [(path.rpartition("/")[2], size) for _, path, size in front.requests[before:]]
    kinds = [kind.partition("?")[0] for kind, _ in asked]
    assert max(size for kind, size in asked if kind == "_mget") < 20 * len(' "199",')
    last = len(kinds) - kinds[::-1].index("_mget")
    assert "_bulk" in kinds[kinds.index("_mget") : last], "what was read is written before more is"
    found = search_server.rows(one.alias)
    assert {key: (row["note"], row["big"]) for key, row in found.items()} == {
        key: ("later", big) for key, big in bigs.items()
    }


def test_repeat_changes_nothing_and_no_value_is_lost_by_it(bench, search_server) -> None:
    one = bench()
    one.write(insert(T, ["1", "new", "B"]))
    one.write(update(T, ["1", "second", UNCHANGED]))
    one.write(update(T, ["1", "third", "C"]), update(T, ["1", "fourth", UNCHANGED]))
    one.run()
    before = search_server.rows(one.alias)
    for _ in range(2):
        one.run()  # nobody has stored the position: after a crash all of it comes again
    assert search_server.rows(one.alias) == before
    one.deliver()
    assert search_server.rows(one.alias) == {"1": {"id": 1, "note": "fourth", "big": "C"}}


@pytest.mark.parametrize("task_count", [1, 3])
def test_row_that_moves_takes_along_what_was_not_sent(bench, search_server, task_count) -> None:
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
    assert search_server.rows(one.alias) == {
        "3": {"id": 3, "note": "another", "big": "D"},
        **{
            str(key): {"id": key, "note": "twice" if key == 13 else "moved", "big": big}
            for key, big in bigs.items()
        },
    }


def test_truncate_takes_what_is_older_wherever_its_task_is(bench, search_server) -> None:
    one = bench()
    one.write(*(insert(T, [str(key), "new", "B"]) for key in range(30)))
    one.write(truncate(T))
    one.write(*(insert(T, [str(key), "after", "B"]) for key in range(0, 30, 10)))
    # The task that has the TRUNCATE may be through before the others begin.
    batch, receipts = one.run(4)
    assert len(search_server.hits(one.alias)) == 30
    one.sink.commit(batch, receipts)

    assert {each["note"] for each in search_server.rows(one.alias).values()} == {"after"}
    assert sorted(search_server.rows(one.alias)) == ["0", "10", "20"]


def test_row_that_moved_and_moves_again_by_a_repeat_keeps_its_values(bench, search_server) -> None:
    one = bench()
    one.write(insert(T, ["1", "new", "B"]), insert(T, ["5", "new", "E"]))
    one.deliver()
    one.write(update(T, ["2", "moved", UNCHANGED], key=["1"]))
    one.write(update(T, ["6", "moved", UNCHANGED], key=["5"]), insert(T, ["5", "other", "F"]))
    for _ in range(3):
        one.run()  # nobody has stored the position
    one.deliver()
    assert search_server.rows(one.alias) == {
        "2": {"id": 2, "note": "moved", "big": "B"},
        "5": {"id": 5, "note": "other", "big": "F"},
        "6": {"id": 6, "note": "moved", "big": "E"},
    }


# More changes than a transaction has versions of their own.
_MANY = 6000


def test_keys_that_move_in_a_long_transaction_lose_no_document(bench, search_server) -> None:
    one = bench()
    one.write(*(insert(T, [str(key), "new", "B"]) for key in range(1, _MANY + 1)))
    one.deliver()
    one.write(
        *(update(T, [str(key - 1), "moved", "B"], key=[str(key)]) for key in range(1, _MANY + 1))
    )
    for order in ((0, 1), (1, 0)):  # tasks run at the same time: either may be through first
        batch, receipts = one.run(2, only=order)
        assert set(search_server.rows(one.alias)) == set(map(str, range(_MANY)))
    one.sink.commit(batch, receipts)


def test_truncate_in_a_long_transaction(bench, search_server) -> None:
    one = bench()
    one.write(
        *(insert(T, [str(key), "before", "B"]) for key in range(_MANY)),
        truncate(T),
        *(insert(T, [str(key), "after", "B"]) for key in range(0, _MANY, 1000)),
        insert(T, ["9999", "after", "B"]),
    )
    one.deliver(2)
    found = search_server.rows(one.alias)
    assert {each["note"] for each in found.values()} == {"after"}
    assert len(found) == 7


def test_truncate_takes_no_answer_of_some_shards(bench, search_front) -> None:
    front: SearchFront = search_front()
    one = bench(url=front.url)
    one.write(insert(T, ["1", "new", "B"]), truncate(T))
    one.deliver()
    (asked, *_) = (path for _, path, _ in front.requests if "/_search" in path)
    assert "allow_partial_search_results=false" in asked


def test_document_whose_values_nobody_has_is_refused(bench, search_server) -> None:
    one = bench(on_refused="park")
    one.write(insert(T, ["1", "new", "B"]))
    one.deliver()
    one.write(
        # As of a row that a filter has let through only now.
        update(T, ["7", "first", UNCHANGED]),
        update(T, ["7", "second", UNCHANGED]),
        # What comes later makes others whole, or takes them away.
        update(T, ["8", "first", UNCHANGED]),
        update(T, ["8", "second", "C"]),
        update(T, ["9", "first", UNCHANGED]),
        delete(T, key=["9"]),
    )
    one.deliver()
    assert search_server.rows(one.alias) == {
        "1": {"id": 1, "note": "new", "big": "B"},
        "8": {"id": 8, "note": "second", "big": "C"},
    }
    entries = SearchKind().parked(one.place)
    assert [(each.key, "REPLICA IDENTITY FULL" in each.reason) for each in entries] == [
        ('{"id":7}', True),
        ('{"id":7}', True),
    ]


def test_repeat_of_changes_of_a_row_that_is_deleted_since_refuses_nothing(bench, search_server):
    one = bench(on_refused="park")
    one.write(insert(T, ["1", "new", "B"]), insert(T, ["2", "new", "B"]))
    one.deliver()
    one.write(update(T, ["1", "later", UNCHANGED]))
    one.write(update(T, ["3", "moved", UNCHANGED], key=["2"]))
    one.write(delete(T, key=["1"]), delete(T, key=["3"]))
    one.run()  # and nobody has stored the position
    one.deliver()
    assert search_server.rows(one.alias) == {}
    assert SearchKind().parked(one.place) == []


def test_document_that_cannot_be_read_is_not_taken_for_one_that_is_gone(
    bench, search_front, search_server
) -> None:
    front: SearchFront = search_front()
    one = bench(url=front.url, on_refused="park")
    one.write(insert(T, ["1", "new", "B"]))
    one.deliver()
    failure = {"type": "no_shard_available_action_exception", "reason": "No shard available"}
    answer = {"docs": [{"_index": f"{one.alias}.1", "_id": "1", "error": failure}]}
    front.content = lambda path: answer if "_mget" in path else None
    one.write(update(T, ["1", "later", UNCHANGED]))
    with pytest.raises(ClusterUnavailable) as caught:
        one.run()
    assert is_temporary(caught.value)
    assert search_server.rows(one.alias)["1"]["note"] == "new"

    # One that is read from a copy of its shard that lags behind is refused, not deleted.
    answer["docs"] = [{"_index": f"{one.alias}.1", "_id": "1", "found": False}]
    one.deliver()
    (entry,) = SearchKind().parked(one.place)
    assert "were not sent" in entry.reason
    assert search_server.rows(one.alias)["1"]["note"] == "new"


def test_row_that_moved_and_is_refused_finds_its_values_when_it_is_tried_again(
    bench, search_server
) -> None:
    one = bench(point_as="geo", on_refused="park")
    one.write(insert(SPOTS, ["1", "(13.4,52.5)", "B"]))
    one.deliver()
    one.write(update(SPOTS, ["2", "(13.4,5250)", UNCHANGED], key=["1"]))
    one.write(insert(SPOTS, ["1", "(1,2)", "C"]))
    one.deliver()
    index = f"{one.index}-public-spots"
    assert search_server.rows(index)["1"]["big"] == "B"
    assert len(SearchKind().parked(one.place)) == 3
    path = f"/{index}/_mapping"
    # The server is more lenient from now on.
    search_server.must(
        "PUT", path, {"properties": {"at": {"type": "geo_point", "ignore_malformed": True}}}
    )
    SearchKind().ask_parked(one.place, "retry", [e.id for e in SearchKind().parked(one.place)])
    one.sink.refresh_tables(one.position)
    assert SearchKind().parked(one.place) == []
    assert {key: row["big"] for key, row in search_server.rows(index).items()} == {
        "1": "C",
        "2": "B",
    }


def test_empty_key(bench, search_server) -> None:
    one = bench()
    one.write(insert(TEXTS, ["", "empty"]), insert(TEXTS, ["a", "n"]), insert(TEXTS, ["b", "n"]))
    one.deliver()
    index = f"{one.index}-public-texts"
    assert {each["id"]: each["note"] for each in search_server.rows(index).values()} == {
        "": "empty",
        "a": "n",
        "b": "n",
    }
    one.write(delete(TEXTS, key=[""]), delete(TEXTS, key=["a"]))
    one.deliver()
    assert list(search_server.rows(index)) == ["b"]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(one, marks=pytest.mark.long) for one in range(1, 8))]
)
def test_random_changes_in_random_batches_with_repeats(bench, search_server, seed) -> None:
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
            assert_model(search_server, one, model)
    assert_model(search_server, one, model)


def assert_model(search_server: SearchServer, one: Bench, model: dict[int, list[str]]) -> None:
    wanted = {str(key): {"id": key, "note": n, "big": b} for key, (n, b) in model.items()}
    assert search_server.rows(one.alias) == wanted


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


def test_move_without_values_from_a_key_that_is_overwritten_is_refused(
    bench, search_server
) -> None:
    one = bench(on_refused="park")
    one.write(insert(T, ["1", "new", "B"]))
    one.deliver()
    one.write(update(T, ["2", "moved", UNCHANGED], key=["1"]))
    one.write(insert(T, ["1", "another", "C"]))
    # As after a crash in which the write of key 1 came first: key 2 is nowhere, its value is lost.
    hit = search_server.hits(one.alias)[0]
    body = {**hit["_source"], "note": "another", "big": "C", "_position": 99 << 40}
    path = f"/{one.alias}/_doc/1?version={99 << 40}&version_type=external_gte"
    search_server.must("PUT", path, body)
    one.deliver()

    (entry,) = SearchKind().parked(one.place)
    assert "REPLICA IDENTITY FULL" in entry.reason
    assert "2" not in search_server.rows(one.alias)


def test_document_that_the_server_refuses_stops_or_is_parked(bench, search_server) -> None:
    for on_refused in ("stop", "park"):
        one = bench(point_as="geo", on_refused=on_refused)
        one.write(insert(PLACES, ["1", "(13.4,52.5)"]))
        one.write(insert(PLACES, ["2", "(13.4,5250)"]), insert(T, ["1", "n", "b"]))
        one.deliver()
        assert sorted(search_server.rows(one.alias)) == ["1"]
        if on_refused == "stop":
            (stopped,) = one.sink.tables.detached.values()
            said = stopped.error
        else:
            assert sorted(search_server.rows(f"{one.index}-public-places")) == ["1"]
            (entry,) = SearchKind().parked(one.place)
            said = entry.reason
        # Elasticsearch says it of the document alone.
        is_named = search_server.version.engine == "opensearch"
        assert ("field at of type geo_point" if is_named else "mapper_parsing_exception") in said
        assert "5250" not in said


def test_index_that_takes_no_writes_is_waited_for(bench, search_server) -> None:
    one = bench()
    one.write(insert(T, ["1", "new", "B"]))
    one.deliver()
    path = f"/{one.alias}/_settings"
    search_server.must("PUT", path, {"index.blocks.read_only_allow_delete": True})
    one.write(update(T, ["1", "later", "B"]))
    with pytest.raises(IndexReadOnly, match="takes no writes"):
        one.deliver()
    search_server.must("PUT", path, {"index.blocks.read_only_allow_delete": None})
    one.position = one.open()
    one.deliver()
    assert search_server.rows(one.alias)["1"]["note"] == "later"


def test_index_that_is_closed_is_waited_for(bench, search_server) -> None:
    one = bench(on_refused="park")
    one.write(insert(T, ["1", "new", "B"]))
    one.deliver()
    search_server.must("POST", f"/{one.alias}.1/_close")
    for rows in ([update(T, ["1", "later", "B"])], [update(T, ["1", "last", UNCHANGED])]):
        one.write(*rows)
        with pytest.raises(IndexReadOnly, match="it is closed"):
            one.deliver()
        one.position = one.open()
    search_server.must("POST", f"/{one.alias}.1/_open")
    one.deliver()
    assert search_server.rows(one.alias) == {"1": {"id": 1, "note": "last", "big": "B"}}
    assert SearchKind().parked(one.place) == []


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


def _assert_refused(tmp_path: Path, server: SearchServer, why: str) -> None:
    sink = SearchKind().sink(_place(tmp_path, url=server.url))
    with pytest.raises(DestinationRefuses, match=why):
        sink.open()
    sink.close()


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_position_that_somebody_removes_is_stored_anew(bench, search_server, is_made_anew) -> None:
    one = bench()
    one.write(insert(T, ["1", "new", "B"]))
    one.deliver()
    search_server.must("DELETE", "/penstock")

    one.write(insert(T, ["2", "new", "B"]), insert(PLACES, ["1", "(1,2)"]))
    if is_made_anew:  # by a task that has made an index
        one.sink._sink._parts.store.keep_index(16499, "some")
    one.deliver()
    delivered = one.position

    assert one.open() == delivered
    mapping = search_server.must("GET", "/penstock/_mapping")["penstock"]["mappings"]
    assert mapping["dynamic"] == "strict"
    assert len(search_server.hits(one.alias)) == 2
    # The schema log goes on, too.
    search_server.must("DELETE", "/penstock")
    for columns in (["id"], ["id", "note"]):
        content = {"format": 1, "tables": [{"name": "t", "columns": columns}]}
        one.sink._sink.keep_schemas(
            [WholeSchema("public", content, None)], Lsn(0x9000 + len(columns))
        )
    own = {"query": {"term": {"schema_name": "public"}}}
    search_server.must("POST", "/penstock/_refresh")
    hits = search_server.must("POST", "/penstock/_search", own)["hits"]["hits"]
    assert sorted(each["_source"]["version"] for each in hits) == [1, 2]


def test_index_of_somebody_else_that_is_called_penstock_is_left_alone(
    search_server, tmp_path
) -> None:
    search_server.call("DELETE", "/penstock")
    theirs = {"mappings": {"properties": {"built": {"type": "long"}}}}
    search_server.must("PUT", "/penstock", theirs)
    try:
        _assert_refused(tmp_path, search_server, "index penstock was not made by penstock")
        assert search_server.must("GET", "/penstock/_mapping")["penstock"]["mappings"][
            "properties"
        ].keys() == {"built"}
    finally:
        search_server.must("DELETE", "/penstock")


def test_cluster_that_has_no_room_for_shards_is_named(bench, search_server, tmp_path) -> None:
    one = bench()
    limit = {"transient": {"cluster.max_shards_per_node": 1}}
    search_server.must("PUT", "/_cluster/settings", limit)
    try:
        one.write(insert(T, ["1", "new", "B"]))
        one.deliver()
        error = str(one.sink._keeper.stored.tables[T.table].error)
        assert "raise cluster.max_shards_per_node" in error
        search_server.call("DELETE", "/penstock")
        _assert_refused(tmp_path, search_server, "making index penstock: .*validation_exc")
    finally:
        limit["transient"]["cluster.max_shards_per_node"] = None  # type: ignore[assignment]
        search_server.must("PUT", "/_cluster/settings", limit)


def test_busy_server_is_asked_again(bench, search_front, search_server) -> None:
    front: SearchFront = search_front()
    answers = [429, 503, 429]

    def busy(method: str, path: str, size: int) -> int | None:
        return answers.pop() if "/_bulk" in path and answers else None

    one = bench(url=front.url)
    one.write(*(insert(T, [str(key), "new", "B"]) for key in range(20)))
    front.answer = busy
    one.deliver()
    assert len(search_server.hits(one.alias)) == 20
    assert not answers


def test_request_that_is_too_large_is_halved_and_a_document_that_is_refused(
    bench, search_front, search_server
) -> None:
    front: SearchFront = search_front()
    front.answer = lambda _method, path, size: 413 if "/_bulk" in path and size > 2000 else None
    one = bench(url=front.url, on_refused="park")
    one.write(*(insert(T, [str(key), "x" * 200, "B"]) for key in range(20)))
    one.write(insert(T, ["77", "x" * 3000, "B"]))
    one.deliver()
    assert len(search_server.hits(one.alias)) == 20
    (entry,) = SearchKind().parked(one.place)
    assert "max_content_length" in entry.reason


def test_requests_are_sized_by_bytes(bench, search_front, search_server) -> None:
    front: SearchFront = search_front()
    one = bench(url=front.url, bulk_bytes=5000, concurrency=3)
    one.write(*(insert(T, [str(key), "x" * 400, "B"]) for key in range(100)))
    one.deliver()
    sizes = [size for _, path, size in front.requests if "/_bulk" in path]
    assert len(sizes) >= 8
    assert max(sizes) <= 5000
    assert len(search_server.hits(one.alias)) == 100


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


def test_certificate_that_has_expired(search_front: Callable[..., SearchFront], tmp_path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now - timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate = made.public_bytes(Encoding.PEM)
    (tmp_path / "ca").write_bytes(certificate)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "both.pem").write_bytes(private + certificate)
    front = search_front(certificate=tmp_path / "both.pem")

    place = _place(tmp_path, url=front.url, tls={"ca": str(tmp_path / "ca")})
    error = _problem(place)
    assert (type(error), error.code) == (SinkLoginRefused, "PEN-502")
    assert "certificate has expired" in str(error)
    with pytest.raises(SinkLoginRefused, match="renew it"):
        SearchKind().sink(place).open()


@pytest.fixture
def red_cluster(search_server: SearchServer):
    """The server with an index whose shard is nowhere, since no node may have it; its name."""
    index = f"red{uuid.uuid4().hex[:10]}"
    settings = {"routing.allocation.require.nowhere": "yes", "number_of_replicas": 0}
    path = f"/{index}?wait_for_active_shards=0"
    search_server.must("PUT", path, {"settings": {"index": settings}})
    yield index
    search_server.must("DELETE", f"/{index}")


def test_cluster_that_is_red_is_named(search_server: SearchServer, red_cluster, tmp_path) -> None:
    error = _problem(_place(tmp_path, url=search_server.url))
    assert (type(error), error.code) == (ClusterUnavailable, "PEN-523")
    assert "the cluster is red" in str(error)


def test_shards_that_are_away_are_waited_for(bench, search_server, red_cluster) -> None:
    path = f"/{red_cluster}/_doc/1"
    with parts_of(bench().place) as parts:
        with pytest.raises(ClusterUnavailable, match="shards are not there") as caught:
            parts.client.ask("GET", path)
        assert is_temporary(caught.value)
        settings = {"index.routing.allocation.require.nowhere": None}
        search_server.must("PUT", f"/{red_cluster}/_settings", settings)
        search_server.must("GET", f"/_cluster/health/{red_cluster}?wait_for_status=yellow")
        assert parts.client.ask("GET", path, None, 404).status == 404


def test_vectors_want_a_server_that_has_them(bench, search_server, search_front) -> None:
    wish = Wanted(
        Mapper.of(bench().options).properties(_with_vector(), "opensearch"), "public.t", 16400
    )
    one = bench()
    with parts_of(one.place) as parts:
        error = parts.indexes.ensure({one.alias: wish})[one.alias]
    assert (type(error), error.code) == (RecordSchemaRefused, "PEN-520")
    assert "with at as vectors" in str(error)
    assert "vector_as: text" in str(error)

    front: SearchFront = search_front()
    other = bench(url=front.url)
    made = f"/{other.alias}.1"
    front.content = lambda path: {"acknowledged": True} if path == made else None
    with parts_of(other.place) as parts:
        assert parts.indexes.ensure({other.alias: wish}) == {}
    body = front.puts[made]
    assert body["settings"]["index.knn"] is True
    assert body["mappings"]["properties"]["at"] == {"type": "knn_vector", "dimension": 3}


def test_vector_that_is_added_needs_an_index_of_its_own(bench, search_server) -> None:
    one = bench()
    one.write(insert(T, ["1", "new", "B"]))
    one.deliver()
    mapper = Mapper.of(one.options)
    wish = Wanted(mapper.properties(_with_vector(), "opensearch"), "public.t", 16400)
    with parts_of(one.place) as parts:
        error = parts.indexes.ensure({one.alias: wish})[one.alias]
    assert isinstance(error, Unfit), "whether an index has k-NN is said when it is made"
    assert "at" in error.fields


def _with_vector() -> Any:
    at = Column("at", 71000, 3, in_identity=False, id=4, type_name="vector")
    return replace(T, columns=(*T.columns, at))


def test_check_names_what_is_wrong(search_front: Callable[..., SearchFront], tmp_path) -> None:
    front = search_front()
    assert isinstance(_problem(_place(tmp_path, url="http://127.0.0.1:1")), SinkError)
    front.answer = lambda _method, path, _size: 403 if path == "/" else None
    assert "may not" in str(_problem(_place(tmp_path, url=front.url)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "penstock.sinks.search.parts._OLDEST",
            dict.fromkeys(("search_server", "elasticsearch"), (99, 0)),
        )
        front.answer = lambda *_: None
        assert isinstance(_problem(_place(tmp_path, url=front.url)), SinkTooOld)


def test_server_without_tls_is_named(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        error = _problem(_place(tmp_path, url=url))
        thread.join(10)
    assert "WRONG_VERSION_NUMBER" in str(error)


def test_index_that_is_not_ours_is_left_alone(bench, search_server) -> None:
    one = bench()
    search_server.must("PUT", f"/{one.alias}.mine", {"aliases": {one.alias: {}}})
    one.write(insert(T, ["1", "new", "B"]), insert(PLACES, ["1", "(1,2)"]))
    one.deliver()
    (stopped,) = one.sink.tables.detached.items()
    assert str(stopped[0]) == "public.t"
    assert "was not made by this sink" in stopped[1].error
    assert len(search_server.hits(f"{one.index}-public-places")) == 1


@pytest.mark.parametrize("what", ["alias", "index"])
def test_copy_takes_no_name_from_others(bench, search_server, what) -> None:
    one = bench()
    theirs = f"{one.alias}.theirs" if what == "alias" else one.alias
    body = {"aliases": {one.alias: {}}} if what == "alias" else None
    search_server.must("PUT", f"/{theirs}", body)
    rows = parse_rows(b"1\tcopied\tB\n", 3)
    at = CopiedAt(int(START), 0, "c1")
    with vault.using(one._vault), pytest.raises(RecordSchemaRefused) as caught:
        SearchKind().format(one.place).copied(T, rows, Origin("shop", ""), at)
    assert f"index {theirs} was not made by this sink" in str(caught.value)
    with parts_of(one.place) as parts:
        wish = Wanted({"id": {"type": "long"}}, "public.t", 16400)
        parts.indexes.create(f"{one.alias}.c1", wish, is_copy=True)
        with pytest.raises(RecordSchemaRefused):  # theirs came while it was copied
            parts.indexes.switch(one.alias, f"{one.alias}.c1")
    assert list(search_server.must("GET", f"/{one.alias}/_alias")) == [theirs]

    # Of rows that come without a copy the table stops, and no other.
    one.write(insert(T, ["1", "new", "B"]), insert(PLACES, ["1", "(1,2)"]))
    one.deliver()
    (stopped,) = one.sink.tables.detached.values()
    assert "was not made by this sink" in stopped.error
    assert len(search_server.hits(f"{one.index}-public-places")) == 1


def test_changes_of_tables_take_no_name_from_another_sink(bench, search_server) -> None:
    one = bench()
    one.write(insert(T, ["1", "one's", "B"]))
    one.deliver()
    # As two pipelines on one cluster that both have a table of the name.
    other = bench(index=one.options.index)
    other.write(insert(PLACES, ["1", "(1,2)"]))
    other.deliver()
    other.deliver_ddl(CREATE)
    other.deliver_ddl(Change("drop_table", T.table))
    other.deliver_ddl(Change("rename_table", T.table, PLACES.table))

    one.write(insert(T, ["2", "later", "C"]))
    one.deliver()
    assert one.sink.tables.detached == {}
    assert sorted(search_server.rows(one.alias)) == ["1", "2"]
    assert len(search_server.hits(f"{one.index}-public-places")) == 1


def test_copy_leaves_the_index_of_a_table_that_had_the_name_before(bench, search_server) -> None:
    one = bench()
    with parts_of(one.place) as parts:
        indexes = parts.indexes
    alias, renamed = one.alias, f"{one.alias}_old"
    first = Wanted({}, "public.t", 100)
    indexes.create(f"{alias}.c1", first, is_copy=True)
    indexes.switch(alias, f"{alias}.c1")
    # ALTER TABLE t RENAME TO t_old; CREATE TABLE t
    indexes.move(renamed, alias)
    indexes.vacate(alias)
    second = Wanted({}, "public.t", 200)
    assert indexes.ensure({alias: second}) == {}
    for copy in ("c2", "c3"):
        indexes.create(f"{alias}.{copy}", second, is_copy=True)
    assert indexes.switch(alias, f"{alias}.c3") == [f"{alias}.1"]

    assert indexes.behind([alias, renamed]) == {alias: f"{alias}.c3", renamed: f"{alias}.c1"}
    assert search_server.indexes(f"{alias}.*") == [f"{alias}.{each}" for each in ("1", "c1", "c3")]


RENAME = Change("rename_table", U.table, T.table)
CREATE = Change("create_table", T.table)


def test_truncate_before_a_rename_empties_the_table_that_was_renamed(bench, search_server) -> None:
    one = bench()
    one.write(insert(T, ["1", "old", "B"]))
    one.deliver()
    new_rows = [relation(OTHER), insert(OTHER, ["2", "other", "C"])]
    one.deliver_ddl([relation(T), truncate(T)], RENAME, CREATE, new_rows)
    assert search_server.rows(f"{one.index}-public-u") == {}
    assert list(search_server.rows(one.alias)) == ["2"]


@pytest.mark.parametrize("change", [RENAME, Change("drop_table", T.table)])
def test_transaction_with_a_change_of_a_table_comes_again(
    bench, search_server, monkeypatch, change
) -> None:
    one = bench(dropped_tables="delete")
    one.write(insert(T, ["1", "old", "B"]))
    one.deliver()
    parts = [relation(T), update(T, ["1", "later", UNCHANGED])], change

    def fail(self: Store, state: str) -> None:
        raise SinkError("as if it were killed", "here", "nothing")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", fail)
        with pytest.raises(SinkError, match="killed"):
            one.deliver_ddl(*parts)
    one.position = one.open()
    one.deliver_ddl(*parts)

    assert one.sink.tables.detached == {}
    rows = {"1": {"id": 1, "note": "later", "big": "B"}} if change is RENAME else {}
    assert search_server.rows(f"{one.index}-public-u") == rows
    assert search_server.call("GET", f"/_alias/{one.alias}")[0] == 404
    assert len(search_server.indexes(f"{one.index}-*")) == len(rows)


@pytest.mark.parametrize("change", [RENAME, Change("drop_table", T.table)])
@pytest.mark.parametrize("is_done", [False, True])
def test_killed_before_or_after_a_change_of_a_table_is_kept(
    bench, search_server, monkeypatch, change, is_done
) -> None:
    one = bench(dropped_tables="delete")
    one.write(insert(T, ["1", "old", "B"]), insert(T, ["2", "other", "C"]))
    one.deliver()
    parts = [relation(T), update(T, ["1", "later", UNCHANGED])], change
    log = Store.log

    def fail(self: Store, change: dict[str, Any], **how: bool) -> None:
        if how["is_done"] == is_done:
            raise SinkError("as if it were killed", "here", "nothing")
        log(self, change, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "log", fail)
        with pytest.raises(SinkError, match="killed"):
            one.deliver_ddl(*parts)
    one.position = one.open()
    one.deliver_ddl(*parts)

    assert one.sink.tables.detached == {}
    later = {"id": 1, "note": "later", "big": "B"}
    rows = {"1": later, "2": {"id": 2, "note": "other", "big": "C"}} if change is RENAME else {}
    assert search_server.rows(f"{one.index}-public-u") == rows
    assert search_server.call("GET", f"/_alias/{one.alias}")[0] == 404
    assert len(search_server.indexes(f"{one.index}-*")) == bool(rows)


@pytest.mark.parametrize("what", ["index", "alias"])
def test_index_that_somebody_removed_is_not_made_anew_without_its_rows(
    bench, search_server, what
) -> None:
    one = bench()
    one.write(insert(T, ["1", "old", "B"]))
    one.write(insert(TEXTS, ["1", "old"]))
    one.deliver(2)
    (index,) = search_server.indexes(f"{one.alias}.*")
    removed = f"/{index}" if what == "index" else f"/{index}/_alias/{one.alias}"
    search_server.must("DELETE", removed)

    one.write(insert(T, ["2", "new", "C"]))
    one.write(insert(TEXTS, ["2", "new"]))
    one.deliver(2)
    assert sorted(search_server.rows(f"{one.index}-public-texts")) == ["1", "2"]
    assert search_server.call("GET", f"/_alias/{one.alias}")[0] == 404
    (stopped,) = one.sink.tables.detached
    assert stopped == T.table
    text = str(one.sink._keeper.stored.tables[T.table].error)
    assert text.startswith("PEN-525")
    assert "penstock tables PIPELINE.yml resync public.t" in text

    # What the text says, to go on without the older rows.
    note = text.partition("DELETE ")[2].partition(" ")[0]
    search_server.must("DELETE", note)
    with parts_of(one.place) as parts:
        wanted = Wanted({"id": {"type": "long"}}, "public.t", 16400)
        assert parts.indexes.ensure({one.alias: wanted}) == {}


def test_two_sinks_on_one_server_follow_a_change_each(bench, search_server) -> None:
    both = bench(), bench()
    for one in both:
        one.write(insert(T, ["1", "old", "B"]))
        one.deliver()
        one.deliver_ddl(RENAME)
    for one in both:
        assert list(search_server.rows(f"{one.index}-public-u")) == ["1"]
        one.sink.close()

    def logged() -> int:
        search_server.must("POST", "/penstock/_refresh")
        terms = {"terms": {"sink": [one.index for one in both]}}
        return search_server.must("POST", "/penstock/_count", {"query": terms})["count"]

    assert logged() == 6  # position, index and change of each
    assert SearchKind().forget(both[0].place) != []
    assert logged() == 3


def test_version_of_a_schema_is_kept_once(bench, search_server) -> None:
    one = bench()
    other = bench()

    def keep(lsn: int, columns: list[str], version: int | None = None) -> None:
        content = {"format": 1, "tables": [{"name": "t", "columns": columns}]}
        one.sink._sink.keep_schemas([WholeSchema("public", content, version)], Lsn(lsn))

    def kept() -> list[tuple[int, list[str]]]:
        search_server.must("POST", "/penstock/_refresh")
        terms = [{"term": {"sink": one.index}}, {"term": {"schema_name": "public"}}]
        query = {"query": {"bool": {"filter": terms}}, "sort": ["version"]}
        hits = search_server.must("POST", "/penstock/_search", query)["hits"]["hits"]
        found = [each["_source"] for each in hits]
        return [(e["version"], json.loads(e["schema"])["tables"][0]["columns"]) for e in found]

    keep(0x1000, ["id"])
    keep(0x1100, ["id"])
    assert kept() == [(1, ["id"])], "nothing has changed"
    for _ in range(2):
        keep(0x1200, ["id", "a"])
        assert kept()[1:] == [(2, ["id", "a"])], "the same transaction comes again"
    keep(0x1100, ["id"])
    assert len(kept()) == 2, "a run that begins before what is kept does not take it back"
    keep(0x1300, ["id", "b"], version=7)
    keep(0x1400, ["id", "b"], version=7)
    keep(0x1400, ["b"], version=7)
    assert kept()[2:] == [(7, ["b"])], "the source counts, and rules may change what the sink has"
    keep(0x1500, ["b"], version=8)
    keep(0x1600, ["c"])
    assert [version for version, _ in kept()] == [1, 2, 7, 8, 9]
    other.sink._sink.keep_schemas([WholeSchema("public", {"tables": []}, None)], Lsn(0x1000))
    assert len(kept()) == 5
    assert SearchKind().forget(one.place) != []
    assert kept() == []


def test_changes_of_tables_as_they_were_kept_before_are_no_versions_of_a_schema(
    bench, search_server
) -> None:
    one = bench()
    owner = {"pipeline": "shop", "source": "shop", "sink": one.index}
    for number, version in enumerate((None, 3)):
        earlier = {
            **owner,
            "id": f"0/1010:{number}",
            "version": version,
            "schema_name": "public",
            "table_name": "t",
            "schema": json.dumps([{"op": "add_column"}]),
            "created_at": "2026-11-18T20:00:00.000Z",
            "acked": True,
        }
        path = f"/penstock/_doc/shop.shop.{one.index}:0%2F1010:{number}?refresh=true"
        search_server.must("PUT", path, earlier)
    content = {"format": 1, "tables": [{"name": "t", "columns": ["id"]}]}

    one.sink._sink.keep_schemas([WholeSchema("public", content, None)], Lsn(0x1000))
    one.sink._sink.keep_schemas([WholeSchema("public", {"tables": []}, None)], Lsn(0x1100))

    search_server.must("POST", "/penstock/_refresh")
    terms = [{"term": {"sink": one.index}}, {"term": {"acked": True}}]
    found = search_server.must("POST", "/penstock/_search", {"query": {"bool": {"filter": terms}}})
    kept = [each["_source"] for each in found["hits"]["hits"]]
    versions = {each["version"]: each["state"] for each in kept if "state" in each}
    assert versions == {1: str(Lsn(0x1000)), 2: str(Lsn(0x1100))}


def test_old_versions_of_a_schema_go(bench, search_server, monkeypatch) -> None:
    monkeypatch.setattr(store, "KEPT_SCHEMAS", 2)
    one = bench()
    for number in range(4):
        schema = WholeSchema("public", {"tables": [number]}, None)
        one.sink._sink.keep_schemas([schema], Lsn(0x1000 + number))
    search_server.must("POST", "/penstock/_refresh")
    terms = [{"term": {"sink": one.index}}, {"exists": {"field": "schema"}}]
    query = {"query": {"bool": {"filter": terms}}, "sort": ["version"]}
    hits = search_server.must("POST", "/penstock/_search", query)["hits"]["hits"]
    assert [each["_source"]["version"] for each in hits] == [3, 4]


def _refuse_key(one: Bench, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """Have documents of a key refused by the sink, as a server does for what their fields hold."""

    def refused(_sink: SearchSink, batch: Any) -> dict[str, str]:
        rows = batch.select(["id", "key"]).to_pylist()
        return {row["id"]: "not wanted" for row in rows if row["key"] == key}

    monkeypatch.setattr(SearchSink, "refused", refused)


def _retry_all(one: Bench) -> None:
    SearchKind().ask_parked(one.place, "retry", [e.id for e in SearchKind().parked(one.place)])
    one.sink.refresh_tables(one.position)


def test_parked_document_follows_its_table_to_another_name(
    bench, search_server, monkeypatch
) -> None:
    one = bench(on_refused="park")
    with monkeypatch.context() as patch:
        _refuse_key(one, patch, '{"id":2}')
        one.write(insert(T, ["1", "new", "B"]), insert(T, ["2", "new", "B"]))
        one.deliver()
    one.deliver_ddl([relation(T), insert(T, ["3", "new", "B"])], RENAME)
    one.deliver_ddl([relation(U), update(U, ["2", "later", "C"])])
    assert [(str(e.table), e.key) for e in SearchKind().parked(one.place)] == [
        ("public.u", '{"id":2}')
    ] * 2
    _retry_all(one)
    assert SearchKind().parked(one.place) == []
    found = search_server.rows(f"{one.index}-public-u")
    assert {key: row["note"] for key, row in found.items()} == {
        "1": "new",
        "2": "later",
        "3": "new",
    }


def test_parked_document_whose_index_is_gone_stays_and_delays_nobody(
    bench, search_server, monkeypatch
) -> None:
    one = bench(on_refused="park")
    with monkeypatch.context() as patch:
        _refuse_key(one, patch, '{"id":2}')
        one.write(insert(T, ["2", "new", "B"]), update(T, ["2", "later", UNCHANGED]))
        one.write(delete(T, key=["2"]))
        one.deliver()
    (index,) = search_server.indexes(f"{one.alias}.*")
    search_server.must("DELETE", f"/{index}")
    _retry_all(one)
    entries = SearchKind().parked(one.place)
    assert ["is gone" in (each.reason or "") for each in entries] == [True] * 3
    assert search_server.indexes(f"{one.index}-*") == []


def test_copy_of_a_table_that_was_renamed_meanwhile_takes_the_old_name_away(
    bench, search_server
) -> None:
    one = bench()
    one.write(insert(T, ["1", "old", "B"]))
    one.deliver()
    renamed = f"{one.index}-public-u"
    (before,) = search_server.indexes(f"{one.alias}.*")
    with parts_of(one.place) as parts:
        wanted = Wanted({"id": {"type": "long"}, "_position": {"type": "long"}}, "public.u", 16400)
        parts.indexes.create(f"{renamed}.c1", wanted, is_copy=True)
        assert parts.indexes.switch(renamed, f"{renamed}.c1") == [before]
        assert parts.indexes.switch(renamed, f"{renamed}.c1") == []
    assert search_server.call("GET", f"/_alias/{one.alias}")[0] == 404
    assert list(search_server.must("GET", f"/_alias/{renamed}")) == [f"{renamed}.c1"]


def test_index_that_a_killed_process_had_to_remove_is_removed_by_the_next(
    bench, search_server
) -> None:
    one = bench()
    one.write(insert(T, ["1", "old", "B"]))
    one.deliver()
    renamed = f"{one.index}-public-u"
    (before,) = search_server.indexes(f"{one.alias}.*")
    with parts_of(one.place) as parts:
        wanted = Wanted({"id": {"type": "long"}, "_position": {"type": "long"}}, "public.u", 16400)
        parts.indexes.create(f"{renamed}.c1", wanted, is_copy=True)
        parts.store.keep_retired([before])  # and killed before the alias is switched
        one.open()
        assert (parts.store.retired(), search_server.indexes(f"{one.alias}.*")) == ([], [before])

        parts.indexes.switch(renamed, f"{renamed}.c1")
        assert parts.store.retired() == [before]
        one.open()
        assert parts.store.retired() == []

    assert search_server.indexes(f"{one.index}-*") == [f"{renamed}.c1"]


def test_copied_document_that_was_parked_finds_its_index_after_a_rename(
    bench, search_server
) -> None:
    one = bench()
    renamed = f"{one.index}-public-u"
    with parts_of(one.place) as parts:
        wanted = Wanted({"id": {"type": "long"}, "_position": {"type": "long"}}, "public.t", 16400)
        parts.indexes.create(f"{one.alias}.c1", wanted, is_copy=True)
        parts.indexes.switch(one.alias, f"{one.alias}.c1")
        parts.indexes.move(renamed, one.alias)
    row = {
        **dict.fromkeys(RECORDS.names),
        "id": "shop:0/1100:read:c1:16400:0",
        "key": '{"id":1}',
        "record_key": b"1",
        "value": b'{"id":1,"_position":557056}',
        "schema": "public",
        "table": "u",
        "op": "read",
        "commit_lsn": 0x1100,
        "ordinal": 0,
    }
    sink = SearchKind().sink(one.place)
    sink.open()
    sink.deliver(iter([pa.RecordBatch.from_pylist([row], RECORDS)]), None)
    sink.close()
    assert search_server.rows(renamed) == {"1": {"id": 1}}


def test_user_that_may_not_write_is_not_taken_for_a_bad_document(bench, search_front) -> None:
    front: SearchFront = search_front()
    one = bench(url=front.url, on_refused="park")
    for status, error in ((403, SinkPrivilegeMissing), (401, SinkLoginRefused)):
        front.content = lambda path, status=status: (  # type: ignore[misc]
            {"items": [{"index": {"status": status, "error": {"type": "security_exception"}}}]}
            if "/_bulk" in path
            else None
        )
        one.write(insert(T, [str(status), "new", "B"]))
        with pytest.raises(error):
            one.run()
        one.position = one.open()
    front.content = lambda _: None
    one.deliver()
    assert SearchKind().parked(one.place) == []


def test_write_that_has_a_whole_request_refused_is_refused_alone(
    bench, search_front, search_server
) -> None:
    front: SearchFront = search_front()
    front.answer = lambda _method, path, size: 400 if "/_bulk" in path and size > 2000 else None
    one = bench(url=front.url, on_refused="park")
    one.write(*(insert(T, [str(key), "x" * 200, "B"]) for key in range(20)))
    one.write(insert(T, ["77", "x" * 3000, "B"]))
    one.deliver()
    assert len(search_server.hits(one.alias)) == 20
    (entry,) = SearchKind().parked(one.place)
    assert "refuses the request" in entry.reason


def test_names_of_many_tables_are_asked_for_in_short_requests(bench) -> None:
    one = bench()
    with parts_of(one.place) as parts:
        indexes = parts.indexes
    names = [f"{one.index}-{number}-{'n' * 150}" for number in range(60)]
    assert indexes.ensure({names[-1]: Wanted({}, "public.t", 1)}) == {}
    assert indexes.behind(names) == {names[-1]: f"{names[-1]}.1"}


@pytest.mark.parametrize("index", ["{pipeline}-{schema}-{table}", "{pipeline}-{schema}"])
def test_names_that_are_too_long_for_the_server_end_in_a_digest(
    bench, search_server, index
) -> None:
    one = bench(index=index)
    place = replace(one.place, pipeline=f"t{uuid.uuid4().hex[:8]}")
    properties = {"id": {"type": "long"}, "_position": {"type": "long"}}
    for number, length in enumerate((20, 33, 42, 62), 1):
        made = TableName("ż" * 31 + "s", "ß" * (length // 2) + "t" * (length % 2))
        with parts_of(place) as parts:
            alias = parts.alias(made)
            wish = Wanted(properties, str(made), number)
            assert parts.indexes.ensure({alias: wish}) == {}
            first = parts.indexes.behind([alias])[alias]
            for copy_id in (uuid.uuid4().hex, uuid.uuid4().hex):
                copy = index_of(alias, copy_id)
                assert parts.indexes.create(copy, wish, is_copy=True)
                assert parts.indexes.of_copy(alias, copy_id) == copy
                assert parts.indexes.switch(alias, copy) == [first]
                first = copy
            assert parts.indexes.behind([alias]) == {alias: copy}
            parts.indexes.switch(alias, copy)
            assert len(search_server.indexes(f"{stem_of(alias)}.*")) == 1, "what was before is gone"
            found = search_server.must("GET", f"/{copy}/_alias")[copy]["aliases"]
            assert set(found) == set(aliases_of(alias, index))


def _settings(server: SearchServer, index: str) -> dict[str, str]:
    found = server.must("GET", f"/{index}/_settings?flat_settings=true")
    return dict(next(iter(found.values()))["settings"])


def test_deletes_are_remembered_for_an_hour_also_by_indexes_of_an_earlier_penstock(
    bench, search_server
) -> None:
    one = bench()
    one.write(insert(T, ["1", "new", "B"]), insert(PLACES, ["1", "(1,2)"]))
    one.deliver()
    places = f"{one.index}-public-places"
    assert _settings(search_server, one.alias)["index.gc_deletes"] == "3600000ms"
    search_server.must("PUT", f"/{one.alias}/_settings", {"index.gc_deletes": None})
    search_server.must("PUT", f"/{places}/_settings", {"index.gc_deletes": "2h"})

    one.open()
    assert _settings(search_server, one.alias)["index.gc_deletes"] == "3600000ms"
    assert _settings(search_server, places)["index.gc_deletes"] == "2h", "a user's own"

    # What cannot be set is no obstacle.
    search_server.must("PUT", f"/{one.alias}/_settings", {"index.gc_deletes": None})
    search_server.must("DELETE", f"/{places}.1")
    search_server.must("PUT", f"/{one.alias}/_settings", {"index.blocks.read_only": True})
    one.open()
    search_server.must("PUT", f"/{one.alias}/_settings", {"index.blocks.read_only": None})
    assert "index.gc_deletes" not in _settings(search_server, one.alias)


@pytest.mark.parametrize("fields", ["names", "ids"])
def test_table_of_a_thousand_columns_has_room_for_its_fields(bench, search_server, fields) -> None:
    one = bench(fields=fields)
    mapper = Mapper.of(one.options)

    def described(count: int) -> Any:
        columns = {f"c{number}": "text" for number in range(count)}
        found = table(16400, "t", {"id": "int8", **columns}, key=["id"])
        numbered = [replace(each, id=place + 1) for place, each in enumerate(found.columns)]
        return replace(found, columns=tuple(numbered))

    for count in (1000, 1100, 1599):
        properties = mapper.properties(described(count), search_server.version.engine)
        with parts_of(one.place) as parts:
            assert parts.indexes.ensure({one.alias: Wanted(properties, "public.t", 16400)}) == {}
    mapping = search_server.must("GET", f"/{one.alias}/_mapping")[f"{one.alias}.1"]["mappings"]
    assert len(mapping["properties"]) >= 1600


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
