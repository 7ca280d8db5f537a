"""Messages become slices: every transaction once, whole, in order, each slice readable alone."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest

from fix_changes import logical_message, of_seed, plain
from fix_server import Server, expected_changes, make_script
from penstock import testing
from penstock.changes.decode import Transaction, decode
from penstock.errors import DecodeError, DiskFull
from penstock.log import background
from penstock.log.background import BackgroundWriter
from penstock.log.files.reader import FilesReader
from penstock.log.files.writer import FilesWriter
from penstock.log.slice import SliceKind
from penstock.lsn import Lsn
from penstock.source import assemble
from penstock.source.assemble import Assembler
from penstock.table import TableName
from penstock.testing import delete, insert, relation, table, transaction

ORDERS = table(16400, "orders", {"id": "int8", "note": "text"}, key=["id"])
BOOKS = table(16300, "books", {"id": "int8"}, key=["id"])
ROW = insert(ORDERS, ["1", "a"])


@pytest.fixture
def writer(tmp_path, no_sync):
    made = FilesWriter(tmp_path)
    made.open(Lsn(0))
    yield made
    made.close()


@pytest.fixture
def slices_of(monkeypatch):
    """Make slices end after so many bytes or messages."""

    def limit(size, messages=100_000):
        monkeypatch.setattr(assemble, "SLICE_BYTES", size)
        monkeypatch.setattr(assemble, "SLICE_MESSAGES", messages)

    return limit


def feed(assembler, *messages):
    for message in messages:
        assembler.add(memoryview(message))


def read(writer, after=0):
    reader = FilesReader(writer.directory, Lsn(after))
    try:
        return reader.read(1 << 60)
    finally:
        reader.close()


def changes_of(ref, after_lsn=0):
    """What one slice holds, decoded alone."""
    data, lengths = ref.read()
    head, part = ref.head, None
    if head.kind in (SliceKind.PART, SliceKind.LAST):
        part = Transaction(
            head.first_commit_lsn,
            head.committed_at,
            head.xid,
            head.first_ordinal,
            head.carries_xids,
            ref.aborted_xids,
        )
    found = plain(decode(data, lengths, part, after_lsn))
    named = {TableName(schema, name) for _, schema, name in head.meta.get("relations", ())}
    assert {one.table for one in found} <= named, "the driver prepares the tables that are named"
    if not ref.aborted_xids:
        assert {one.table for one in found} == named
    return sorted(found, key=lambda one: (one.commit_lsn, one.ordinal, one.table))


def all_changes(writer, after=0):
    return [one for ref in read(writer, after) for one in changes_of(ref, after)]


# Random scripts, as a server would send them.


@pytest.mark.parametrize("seed", range(30))
def test_every_transaction_comes_out_once_whole_and_in_order(writer, slices_of, seed):
    dice = of_seed(seed)
    script = make_script(dice)
    slices_of(dice.choice([1, 60, 300, 1000, 10**6]), dice.choice([1, 3, 10, 100_000]))
    assembler = Assembler(writer)

    for message in Server(script).stream():
        feed(assembler, message)
        if dice.random() < 0.1:
            assembler.seal()
    assembler.seal()

    assert all_changes(writer) == expected_changes(script)
    assert assembler.received_lsn == writer.durable_lsn == script.end_lsn
    assert assembler.transaction_count == len(script.committed)
    named = {ref.locator.path.rsplit("/")[-1] for ref in read(writer)}
    assert {path.name for path in writer.directory.glob("*.spool")} <= named


@pytest.mark.parametrize("seed", range(25))
def test_lost_connections_lose_and_repeat_nothing(writer, slices_of, seed):
    dice = of_seed(1000 + seed)
    script = make_script(dice)
    slices_of(dice.choice([1, 60, 300, 1000]), dice.choice([1, 3, 10]))
    connections = 0

    while writer.durable_lsn < script.end_lsn:
        connections += 1
        assembler = Assembler(writer)
        patience = dice.randint(1, 60) if connections < 20 else 10**9
        for message in Server(script, after_lsn=writer.durable_lsn).stream():
            feed(assembler, message)
            if dice.random() < 0.2:
                assembler.seal()
            patience -= 1
            if patience == 0:
                break
        else:
            assembler.seal()
        assembler.discard()
        if dice.random() < 0.3:
            writer.close()
            writer.open(Lsn(0))

    assert all_changes(writer) == expected_changes(script)
    after = dice.choice(script.committed).end_lsn
    assert all_changes(writer, after) == [
        one for one in expected_changes(script) if one.commit_lsn >= after
    ]


# Cases with a name.


def test_slice_repeats_the_relation_message_its_rows_need(writer):
    assembler = Assembler(writer)
    feed(assembler, relation(ORDERS), relation(BOOKS), *transaction(8, ROW))
    assembler.seal()
    feed(assembler, *transaction(24, ROW))
    assembler.seal()

    first, second = read(writer)

    assert [one.commit_lsn for one in changes_of(second)] == [24]
    assert second.head.meta == {"relations": [[16400, "public", "orders"]], "rows": 1}
    assert (second.head.first_commit_lsn, second.head.last_commit_lsn) == (24, 24)
    assert first.head.end_lsn == 16


def test_table_renamed_within_a_slice_is_named_both_ways(writer):
    renamed = replace(ORDERS, table=TableName("public", "orders_old"))
    assembler = Assembler(writer)
    feed(assembler, relation(ORDERS), *transaction(8, ROW))
    assembler.seal()
    feed(assembler, *transaction(24, ROW), *transaction(40, relation(renamed), ROW))
    assembler.seal()

    [_, ref] = read(writer)

    assert [name for _, _, name in ref.head.meta["relations"]] == ["orders", "orders_old"]
    assert [one.table.name for one in changes_of(ref)] == ["orders", "orders_old"]


def test_relation_that_a_streamed_transaction_reported_is_known_after_its_commit(writer):
    assembler = Assembler(writer)
    feed(
        assembler,
        testing.stream_start(5),
        relation(ORDERS, xid=5),
        insert(ORDERS, ["1", "a"], xid=5),
        testing.stream_stop(),
        testing.stream_commit(5, 8),
        *transaction(24, ROW),
    )
    assembler.seal()

    assert [one.commit_lsn for one in all_changes(writer)] == [8, 24]


def test_relation_reported_earlier_in_a_stream_does_not_replace_a_later_one(writer):
    """ALTER PUBLICATION and ALTER SCHEMA do not wait for transactions that are under way."""
    wider = table(16400, "orders", {"id": "int8", "note": "text", "more": "text"}, key=["id"])
    late = insert(wider, ["2", "b", "c"])
    assembler = Assembler(writer)
    feed(
        assembler,
        testing.stream_start(5),
        relation(ORDERS, xid=5),
        insert(ORDERS, ["1", "a"], xid=5),
        testing.stream_stop(),
        *transaction(8, relation(wider), late),
        testing.stream_commit(5, 24),
        *transaction(40, late),
    )
    assembler.seal()

    assert [(one.commit_lsn, len(one.after)) for one in all_changes(writer)] == [
        (8, 3),
        (24, 2),
        (40, 3),
    ]


def test_rolled_back_transactions_vanish_with_their_spools(writer, slices_of):
    slices_of(1)
    assembler = Assembler(writer)
    feed(
        assembler,
        testing.stream_start(5),
        relation(ORDERS, xid=5),
        insert(ORDERS, ["1", "a"], xid=5),
        testing.stream_stop(),
        testing.stream_abort(5),
        testing.stream_abort(6),
        relation(ORDERS),
        *transaction(8, ROW),
    )

    assert [one.commit_lsn for one in all_changes(writer)] == [8]
    assert list(writer.directory.glob("*.spool")) == []


def test_open_streamed_transactions_are_removed_when_the_connection_is_lost(writer, slices_of):
    slices_of(1)
    assembler = Assembler(writer)
    for xid in (5, 6):
        row = insert(ORDERS, ["1", "a"], xid=xid)
        feed(
            assembler,
            testing.stream_start(xid),
            relation(ORDERS, xid=xid),
            row,
            testing.stream_stop(),
        )
    assert len(list(writer.directory.glob("*.spool"))) == 2

    assembler.discard()

    assert list(writer.directory.glob("*.spool")) == []


def test_mark_moves_the_position_of_an_idle_source(writer):
    assembler = Assembler(writer)
    feed(assembler, relation(ORDERS), *transaction(8, ROW))
    assembler.mark(Lsn(100))
    assembler.mark(Lsn(100))
    assembler.mark(Lsn(50))

    assert [(ref.head.kind, ref.head.end_lsn) for ref in read(writer)] == [
        (SliceKind.WHOLE, 16),
        (SliceKind.MARKER, 100),
    ]
    assert assembler.received_lsn == writer.durable_lsn == 100


def test_mark_from_within_a_transaction_that_is_not_on_disk_yet_does_not_follow_its_commit(
    writer, slices_of, monkeypatch
):
    """A server answers a heartbeat between two rows, with the position before the commit."""
    slices_of(1000)
    may_write = threading.Event()
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (may_write.wait(10), sync(fd)))
    monkeypatch.setattr(background, "_SMALL_BYTES", 1)
    log = BackgroundWriter(writer)
    assembler = Assembler(log)
    feed(assembler, relation(ORDERS), testing.begin(8), insert(ORDERS, ["1", "x" * 2000]))
    feed(assembler, testing.commit(8))
    assert writer.durable_lsn == 0
    assembler.mark(Lsn(8))
    may_write.set()
    log.flush()
    log.close()

    assert [ref.head.kind for ref in read(writer)] == [SliceKind.PART, SliceKind.LAST]
    assert assembler.received_lsn == writer.durable_lsn == 16
    assert [one.commit_lsn for one in all_changes(writer)] == [8]


def test_transaction_that_is_open_does_not_move_the_position(writer, slices_of):
    slices_of(1)
    assembler = Assembler(writer)
    feed(assembler, relation(ORDERS), *transaction(8, ROW))
    feed(assembler, testing.begin(100), ROW, ROW)

    assert assembler.in_transaction
    assert assembler.received_lsn == writer.durable_lsn == 16
    assert [one.commit_lsn for one in all_changes(writer)] == [8]


def test_message_outside_any_transaction_is_its_own_position(writer):
    assembler = Assembler(writer)
    feed(assembler, relation(ORDERS), *transaction(8, ROW))
    assembler.seal()
    feed(assembler, logical_message(b"note", 50, transactional=False))
    assert not assembler.in_transaction
    assert assembler.has_whole
    assembler.seal()

    [_, ref] = read(writer)
    assert writer.durable_lsn == ref.head.end_lsn == 50
    assert (ref.head.first_commit_lsn, ref.head.committed_at) == (0, 0)
    assert ref.read()[0] == logical_message(b"note", 50, transactional=False)


@pytest.mark.parametrize("streamed", [False, True])
def test_large_messages_inside_a_transaction_do_not_pile_up_in_memory(writer, slices_of, streamed):
    slices_of(1000)
    assembler = Assembler(writer)
    xid = 5 if streamed else None
    note = logical_message(b"x" * 400, xid=xid)
    begin, end = testing.begin(8), testing.commit(8)
    if streamed:
        begin, end = testing.stream_start(5), testing.stream_stop()
    feed(assembler, begin)

    most = 0
    for _ in range(20):
        feed(assembler, note)
        most = max(most, len(assembler._current.data))
    feed(assembler, relation(ORDERS, xid=xid), insert(ORDERS, ["1", "a"], xid=xid), end)
    if streamed:
        feed(assembler, testing.stream_commit(5, 8))

    assert most < 2000
    refs = read(writer)
    assert b"".join(ref.read()[0] for ref in refs).count(b"x" * 400) == 20
    assert [(one.commit_lsn, one.ordinal) for one in all_changes(writer)] == [(8, 0)]


@pytest.mark.parametrize("kind", ["whole", "part", "streamed"])
def test_full_disk_loses_nothing_that_a_new_connection_does_not_bring(
    writer, slices_of, monkeypatch, kind
):
    slices_of(60)
    rows = {"whole": 1, "part": 9, "streamed": 9}[kind]
    if kind == "streamed":
        messages = [
            testing.stream_start(5),
            relation(ORDERS, xid=5),
            *[insert(ORDERS, ["1", "a"], xid=5)] * rows,
            testing.stream_stop(),
            testing.stream_commit(5, 8),
        ]
    else:
        messages = [relation(ORDERS), *transaction(8, *[ROW] * rows)]

    for fails_at in range(100):
        assembler = Assembler(writer)
        with monkeypatch.context() as patch:
            _fail_at(patch, fails_at)
            try:
                feed(assembler, *messages)
                assembler.seal()
            except DiskFull:
                assert all_changes(writer) == []
                assert writer.durable_lsn == 0
            else:
                break
            finally:
                assembler.discard()
        if fails_at % 2:
            writer.close()
            writer.open(Lsn(0))

    assert fails_at > 1
    assert len(all_changes(writer)) == rows


def _fail_at(patch, number):
    """The n-th write of the log finds no space, after some of its bytes."""
    real = os.write
    count = iter(range(10**6))

    def write(fd, data):
        if next(count) == number:
            real(fd, data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        return real(fd, data)

    patch.setattr("os.write", write)


@pytest.mark.parametrize(
    ("messages", "reported"),
    [
        ([testing.begin(8), testing.begin(8)], "inside another"),
        ([testing.commit(8)], "without its Begin"),
        ([testing.stream_commit(5, 8)], "never started"),
        (transaction(8, ROW), "before its Relation"),
        ([relation(ORDERS), *transaction(8, delete(BOOKS, key=["1"]))], "before its Relation"),
        (transaction(8, ROW, relation(ORDERS)), "before its Relation"),
        (transaction(8, testing.truncate(ORDERS)), "before its Relation"),
        (transaction(8, b"I\0\0"), "before it names its table"),
        ([relation(ORDERS)[:7], *transaction(8, ROW)], "Relation"),
        ([b"B"], "too short"),
        ([b"Z"], "does not have"),
        ([relation(ORDERS), *[ROW] * 5], "no transaction"),
    ],
)
def test_streams_that_no_server_sends_are_refused_before_they_are_logged(
    writer, slices_of, messages, reported
):
    slices_of(80)
    assembler = Assembler(writer)

    with pytest.raises(DecodeError, match=reported):  # noqa: PT012
        feed(assembler, *messages)
        assembler.seal()
    assert read(writer) == []
