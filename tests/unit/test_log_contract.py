"""What every kind of log promises (`penstock.log.contract`), by its contract alone."""

from __future__ import annotations

import pickle
import uuid
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fix_wait import wait_until
from penstock import vault
from penstock.errors import LogError
from penstock.log import registry
from penstock.log.contract import LogOwner
from penstock.log.slice import SliceHead, SliceKind
from penstock.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.log.contract import Log, LogWriter, Slice, Spool


@pytest.fixture(params=["plain", "encrypted"])
def encryption(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, object]]:
    """What the options say of it. Keys go to tasks through a vault, as they do beside Spark."""
    with vault.using(vault.Vault(tmp_path)):
        yield {"encrypt": True, "key": "5e" * 32} if request.param == "encrypted" else {}


@pytest.fixture(params=sorted(registry.BUILT_IN))
def log(
    request: pytest.FixtureRequest, tmp_path: Path, no_sync: None, encryption: dict[str, object]
) -> Log:
    kind = registry.kind_of(request.param)
    given = dict(encryption)
    if request.param == "kafka":
        given["servers"] = request.getfixturevalue("kafka").servers
    elif request.param == "nats":
        given["url"] = request.getfixturevalue("nats_server").url
    # A pipeline of its own for each test: brokers are shared.
    owner = LogOwner(f"shop_{uuid.uuid4().hex[:12]}", "a", tmp_path)
    return kind.log_of(kind.options.model_validate(given), owner)


@pytest.fixture
def writer(log: Log) -> Iterator[LogWriter]:
    made = log.writer()
    made.open(Lsn(0))
    yield made
    made.close()


def append(
    to: LogWriter | Spool, kind: SliceKind, end_lsn: int, text: str = "", **meta: object
) -> None:
    data = text.encode()
    lengths = np.array([len(data)] if data else [], np.uint32)
    lsn = Lsn(end_lsn)
    to.append(SliceHead(kind, lsn, lsn, lsn, committed_at=end_lsn, meta=meta), data, lengths)


def read(log: Log, after: int = 0) -> list[Slice]:
    reader = log.reader(Lsn(after))
    try:
        return reader.read(1 << 60)
    finally:
        reader.close()


def texts(slices: list[Slice]) -> list[tuple[int, str]]:
    """Where each slice ends and what it holds, as a task elsewhere reads it."""
    given = pickle.loads(pickle.dumps(slices))
    return [(int(each.head.end_lsn), each.read()[0].decode()) for each in given]


def test_log_that_is_not_there_is_empty(log: Log):
    assert (log.end_lsn(), log.span().begin_lsn, log.span().end_lsn) == (0, 0, 0)
    assert read(log) == []
    assert log.place


def test_what_is_appended_is_durable_and_read_in_order_after_a_position(
    log: Log, writer: LogWriter
):
    for end in (8, 16, 24):
        append(writer, SliceKind.WHOLE, end, f"to {end}")
    writer.flush()

    assert (writer.durable_lsn, log.end_lsn()) == (24, 24)
    assert writer.last_commit is not None
    assert (writer.last_commit.commit_lsn, writer.last_commit.committed_at) == (24, 24)
    assert (log.span().begin_lsn, log.span().end_lsn) == (0, 24)
    assert texts(read(log)) == [(8, "to 8"), (16, "to 16"), (24, "to 24")]
    assert texts(read(log, 8)) == [(16, "to 16"), (24, "to 24")]
    assert texts(read(log, 15)) == [(16, "to 16"), (24, "to 24")]
    assert read(log, 24) == []


def test_reader_that_has_read_all_goes_on_with_what_comes(log: Log, writer: LogWriter):
    append(writer, SliceKind.WHOLE, 8, "first")
    writer.flush()
    reader = log.reader(Lsn(0))
    assert texts(reader.read(1 << 60)) == [(8, "first")]
    assert not reader.may_have_news()

    append(writer, SliceKind.WHOLE, 16, "second")
    writer.flush()

    wait_until(reader.may_have_news, what="the reader to hear of it")
    assert texts(reader.read(1 << 60)) == [(16, "second")]
    assert reader.read(1 << 60) == []
    reader.close()


def test_transaction_in_parts_is_read_once_it_is_whole(log: Log, writer: LogWriter):
    append(writer, SliceKind.PART, 0, "one", part=0)
    writer.flush()
    assert (read(log), writer.durable_lsn) == ([], 0)

    append(writer, SliceKind.LAST, 8, "two", part=1)
    writer.flush()

    assert texts(read(log)) == [(8, "one"), (8, "two")]


def test_streamed_transaction_is_read_once_it_is_committed(log: Log, writer: LogWriter):
    kept, dropped = writer.begin_spool(7, Lsn(0)), writer.begin_spool(8, Lsn(0))
    for spool in (kept, dropped):
        append(spool, SliceKind.PART, 0, "streamed")
    dropped.discard()
    append(writer, SliceKind.WHOLE, 8, "before")
    writer.flush()
    assert texts(read(log)) == [(8, "before")]

    kept.seal()
    append(writer, SliceKind.STREAMED, 16, spool=kept.name, parts=kept.part_count, aborted=[9])
    writer.flush()

    assert texts(read(log)) == [(8, "before"), (16, "streamed")]
    assert read(log, 8)[0].aborted_xids == (9,)


def test_writer_goes_on_where_the_one_before_ended(log: Log, writer: LogWriter):
    append(writer, SliceKind.WHOLE, 8, "one")
    append(writer, SliceKind.PART, 8, "cut short", part=0)
    writer.close()

    again = log.writer()
    again.open(Lsn(0))
    assert again.durable_lsn == 8
    append(again, SliceKind.WHOLE, 16, "two")
    again.close()

    assert texts(read(log)) == [(8, "one"), (16, "two")]


def test_log_that_ends_before_the_slot_begins_anew_there(log: Log, writer: LogWriter):
    append(writer, SliceKind.WHOLE, 8, "one")
    writer.close()

    again = log.writer()
    again.open(Lsn(100))
    append(again, SliceKind.WHOLE, 108, "two")
    again.close()

    assert texts(read(log, 100)) == [(108, "two")]


def test_what_is_discarded_is_gone_and_the_rest_is_read(log: Log, writer: LogWriter):
    append(writer, SliceKind.WHOLE, 8, "one" * 100)
    before = writer.size_bytes()
    assert writer.discard_before(Lsn(0)) == 0
    writer.end_segment()
    append(writer, SliceKind.WHOLE, 16, "two")
    writer.flush()

    assert writer.discard_before(Lsn(8)) > 0

    assert writer.size_bytes() < before
    assert (log.span().holds(Lsn(0)), log.span().holds(Lsn(8))) == (False, True)
    assert texts(read(log, 8)) == [(16, "two")]
    with pytest.raises(LogError):
        read(log, 0)


def test_locator_of_a_slice_that_was_discarded_says_so(log: Log, writer: LogWriter):
    append(writer, SliceKind.WHOLE, 8, "one" * 50_000)
    writer.end_segment()
    [found] = read(log)
    writer.discard_before(Lsn(8))

    with pytest.raises(LogError) as caught:
        found.read()
    assert caught.value.where == found.locator.where


def test_slice_that_would_go_back_is_refused(log: Log, writer: LogWriter):
    append(writer, SliceKind.WHOLE, 16, "one")

    with pytest.raises(LogError, match="is to follow one that ends at"):
        append(writer, SliceKind.WHOLE, 8, "two")
    assert writer.free_bytes() > 0


def test_slice_of_any_size_is_read_as_it_was_written(log: Log, writer: LogWriter):
    sizes = [0, 1, 32 * 1024 - 4, 32 * 1024, 999_996, 3_000_001]
    for number, size in enumerate(sizes, 1):
        append(writer, SliceKind.WHOLE, 8 * number, chr(64 + number) * size)
    writer.flush()

    assert texts(read(log)) == [
        (8 * number, chr(64 + number) * size) for number, size in enumerate(sizes, 1)
    ]


def test_head_of_any_size_is_read_as_it_was_written(log: Log, writer: LogWriter):
    """That of a slice with rows of thousands of tables."""
    tables = [f"a table with a long name {number}" for number in range(80_000)]
    append(writer, SliceKind.WHOLE, 8, "one", relations=tables)
    writer.flush()

    assert read(log)[0].head.meta["relations"] == tables
    assert texts(read(log)) == [(8, "one")]


def test_parts_that_lie_between_others_are_found_from_every_position(
    log: Log, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
):
    """Long enough to be searched: positions lie before, within and behind transactions in parts."""
    monkeypatch.setattr("penstock.log.broker.find._FEW", 16)
    wanted = []
    for number in range(1, 41):
        end = 10 * number
        if number % 3:
            append(writer, SliceKind.WHOLE, end, f"whole {end}")
            wanted.append((end, f"whole {end}"))
            continue
        for part in range(3):
            append(writer, SliceKind.PART, 0, f"part {part} of {end}", part=part)
            wanted.append((end, f"part {part} of {end}"))
        append(writer, SliceKind.LAST, end, f"last of {end}", part=3)
        wanted.append((end, f"last of {end}"))
    writer.flush()

    for after in (0, 5, 10, 200, 205, 210, 289, 290, 291, 385, 400):
        assert texts(read(log, after)) == [each for each in wanted if each[0] > after]


def test_spool_that_outlives_what_was_discarded_is_read(log: Log, writer: LogWriter):
    spool = writer.begin_spool(7, Lsn(0))
    append(spool, SliceKind.PART, 0, "streamed " * 10_000)
    append(writer, SliceKind.WHOLE, 8, "before " * 10_000)
    writer.end_segment()
    assert writer.discard_before(Lsn(8)) > 0

    spool.seal()
    append(writer, SliceKind.STREAMED, 16, spool=spool.name, parts=1, aborted=[])
    writer.flush()

    assert texts(read(log, 8)) == [(16, "streamed " * 10_000)]


def test_writer_that_is_opened_again_knows_how_much_there_is(log: Log, writer: LogWriter):
    append(writer, SliceKind.WHOLE, 8, "one" * 40_000)
    append(writer, SliceKind.WHOLE, 16, "two")
    size = writer.size_bytes()
    writer.close()

    again = log.writer()
    again.open(Lsn(0))

    assert 0.9 * size <= again.size_bytes() <= 1.1 * size
    assert again.last_commit is not None
    assert again.last_commit.commit_lsn == 16
    again.close()
