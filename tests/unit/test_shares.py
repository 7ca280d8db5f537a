"""Changes are shared out by key: each belongs to one share, all of a key to the same one, whatever the operation."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fix_changes import StreamMaker, of_seed
from penstock.changes.documents import documents
from penstock.changes.envelope import Origin
from penstock.changes.pgoutput import Injected
from penstock.changes.shares import Share, share_of_piece
from penstock.lsn import Lsn
from penstock.sink import SinkPlace
from penstock.sinks.documents.position import KeptPosition
from penstock.sinks.kafka.formats import DebeziumFormat
from penstock.sinks.kafka.kind import KafkaKind
from penstock.sinks.kafka.options import KafkaOptions
from penstock.sinks.sink import Batch
from penstock.testing import (
    UNCHANGED,
    changes,
    delete,
    insert,
    relation,
    table,
    transaction,
    truncate,
    update,
)

ORDERS = table(16400, "orders", {"id": "int8", "note": "text"}, key=["id"])
PAIRS = table(16401, "pairs", {"a": "text", "b": "text", "n": "int8"}, key=["a", "b"])
KEYLESS = table(16402, "lines", {"note": "text"}, identity="d")


def shares(pieces, count, shared_by="key"):
    """The documents of each share: id, and what must stay together."""
    found = []
    for number in range(count):
        own = [share_of_piece(piece, number, count, shared_by) for piece in pieces]
        batch = documents([piece for piece in own if piece is not None], "shop")
        rows = batch.select(["id", "schema", "table", "key"]).to_pylist()
        found.append([(row["id"], (row["schema"], row["table"], row["key"])) for row in rows])
    return found


def pieces_of(*rows, tables=(ORDERS,)):
    return changes([*(relation(each) for each in tables), *transaction(0x1000, *rows)])


@pytest.mark.parametrize("seed", range(30))
def test_every_change_is_in_one_share_and_a_key_in_one_alone(seed):
    pieces = changes(list(StreamMaker(of_seed(seed)).transactions(5, 20)))
    count = 1 + seed % 5

    found = shares(pieces, count)

    everything = documents(pieces, "shop").column("id").to_pylist()
    assert sorted(one for share in found for one, _ in share) == sorted(everything)
    keys = [{key for _, key in share} for share in found]
    assert sum(map(len, keys)) == len(set().union(*keys))


def test_row_that_is_changed_and_deleted_stays_in_its_share():
    rows = [
        step
        for key in map(str, range(200))
        for step in (
            insert(ORDERS, [key, "new"]),
            update(ORDERS, [key, UNCHANGED]),
            delete(ORDERS, key=[key]),
        )
    ]

    found = shares(pieces_of(*rows), 4)

    assert [len(share) % 3 for share in found] == [0, 0, 0, 0]
    assert min(map(len, found)) > 80, "the shares are of very different size"


def test_keys_of_two_columns_do_not_all_lie_in_one_share():
    rows = [insert(PAIRS, [f"customer-{n:030d}", "eu", "1"]) for n in range(100)]

    found = shares(pieces_of(*rows, tables=(PAIRS,)), 2)

    assert min(map(len, found)) > 25


@pytest.mark.parametrize("shared_by", ["table", "schema"])
def test_table_or_schema_stays_together(shared_by):
    rows = [insert(ORDERS, [str(n), "x"]) for n in range(20)]

    found = shares(pieces_of(*rows), 3, shared_by)

    assert sorted(map(len, found)) == [0, 0, 20]


def test_table_without_a_key_and_a_truncate_are_in_the_share_of_the_table():
    rows = [insert(KEYLESS, ["a"]), insert(KEYLESS, ["b"]), truncate(KEYLESS)]

    found = shares(pieces_of(*rows, tables=(KEYLESS,)), 3)

    assert sorted(map(len, found)) == [0, 0, 3]


@pytest.mark.parametrize("identity", ["d", "f"])
@pytest.mark.parametrize("seed", range(10))
def test_row_that_moves_is_deleted_in_the_share_of_its_old_key_and_made_in_that_of_the_new(
    seed, identity
):
    dice = random.Random(seed)
    described = table(
        16400, "orders", {"id": "int8", "note": "text"}, key=["id"], identity=identity
    )
    known = {column.name: number for number, column in enumerate(described.columns, 1)}
    rows = []
    for number in range(100):
        old, new = f"{dice.randrange(20)}", f"{dice.randrange(20)}"
        before = {"before": [old, "x"]} if identity == "f" else {"key": [old]}
        rows += [
            insert(described, [old, f"{number}"]),
            update(described, [new, "y"], **before),
            delete(described, **{**before, **({"before": [new, "y"]} if identity == "f" else {})})
            if dice.random() < 0.3
            else update(
                described, [new, "z"], **({"before": [new, "y"]} if identity == "f" else {})
            ),
        ]
    pieces = [
        replace(
            piece,
            relation=replace(
                piece.relation,
                columns=tuple(replace(one, id=known[one.name]) for one in piece.relation.columns),
                injected=Injected(16400, primary_key=(1,), in_documents=False),
            ),
        )
        for piece in pieces_of(*rows, tables=(described,))
    ]
    form, origin = DebeziumFormat(), Origin("shop", "shop")

    found = [
        form.documents_of_share(pieces, origin, Share(number, 3, "key")).to_pylist()
        for number in range(3)
    ]

    everything = form.documents(pieces, origin).to_pylist()
    order = {each["id"]: place for place, each in enumerate(everything)}
    assert sorted(order) == sorted(each["id"] for share in found for each in share)
    for share in found:
        places = [order[each["id"]] for each in share]
        assert places == sorted(places)
    keys = [{each["record_key"] for each in share} for share in found]
    assert sum(map(len, keys)) == len(set().union(*keys)), "a key is in two shares"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, "key"),
        ({"on_refused": "park"}, "table"),  # a TRUNCATE must wait for what another task parks
        ({"on_refused": "park", "format": "debezium"}, "table"),
        ({"on_refused": "park", "key": "schema"}, "schema"),
    ],
)
def test_what_is_parked_of_a_table_is_known_to_who_delivers_what_must_wait_for_it(
    options, wanted, tmp_path
):
    given = KafkaOptions(servers="b:1", delivery="at_least_once", **options)
    place = SinkPlace("bus", given, "shop", "shop", ("shop",), tmp_path)
    driver = KafkaKind().build(place, None)
    driver._keeper.keep(KeptPosition(Lsn(0x1000), {}), "")

    worker = driver.worker(Batch(1, Lsn(0x1000), Lsn(0x2000), 0, frozenset()))

    assert worker.shared_by == wanted
