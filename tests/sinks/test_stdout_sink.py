"""Documents on standard output, at least once, and a position beside the log."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from fix_event_sinks import (
    START,
    batch_of,
    deliver,
    deliver_at_once,
    killed_at,
    open_sink,
    rows_in,
    run_tasks,
    stdout_sink,
    wanted_rows,
    write_transactions,
)
from penstock.errors import Remedy, SinkError
from penstock.lsn import Lsn
from penstock.sinks.documents import worker
from penstock.sinks.sink import Batch
from penstock.sinks.stdout.sink import ReaderGone
from penstock.testing import read_log


@pytest.fixture
def position(tmp_path):
    return tmp_path / "state" / "sinks" / "screen.position.json"


@pytest.fixture
def printed(tmp_path):
    """A file in place of standard output."""
    with (tmp_path / "printed").open("w+b", buffering=0) as file:
        yield file


@pytest.fixture
def sink(position, printed):
    return stdout_sink(position, printed.fileno())


def test_every_change_is_printed_as_one_line_in_order(log, sink, printed):
    deliver_at_once(sink, log, open_sink(sink), task_count=3)

    assert rows_in(Path(printed.name)) == wanted_rows(range(1, 5))
    assert sink.change_count == 12


def test_next_run_goes_on_from_the_position_in_the_state_directory(log, sink, position, printed):
    deliver(sink, log)
    sink.close()
    write_transactions(log, [5])

    again = stdout_sink(position, printed.fileno())
    deliver(again, log)

    assert rows_in(Path(printed.name)) == wanted_rows(range(1, 6))
    assert again.change_count == 15


def test_large_transaction_travels_through_a_file_and_not_through_the_driver(
    log, sink, position, printed, monkeypatch
):
    monkeypatch.setattr(worker, "INLINE_BYTES", 1000)
    after = open_sink(sink)
    slices = read_log(log, after)
    batch = batch_of(after, slices)

    (receipt,) = run_tasks(sink, batch, [slices])
    assert receipt.content.inline == b""
    sink.commit(batch, [receipt])

    assert rows_in(Path(printed.name)) == wanted_rows(range(1, 5))
    assert os.listdir(position.parent) == [position.name]


def test_part_that_a_predecessor_left_is_removed(sink, position):
    open_sink(sink)
    orphan = position.parent / ".screen.part-0-abc"
    orphan.write_bytes(b"x")

    sink.open()

    assert not orphan.exists()


def test_batch_without_changes_moves_the_position(sink, position, printed):
    open_sink(sink)

    sink.commit(Batch(1, START, Lsn(START + 64), 0, frozenset()), [])

    assert stdout_sink(position).open().delivered_lsn == START + 64
    assert rows_in(Path(printed.name)) == []


def test_reader_that_went_away_is_one_clear_error(log, position):
    read_end, write_end = os.pipe()
    os.close(read_end)
    sink = stdout_sink(position, write_end)

    with pytest.raises(ReaderGone, match="went away") as caught:
        deliver(sink, log)

    os.close(write_end)
    assert caught.value.remedy is Remedy.OPERATOR
    assert sink.open().delivered_lsn == START


def test_reader_that_stopped_reading_does_not_keep_penstock_from_stopping(log, position):
    write_transactions(log, [5], rows_each=2000)
    read_end, write_end = os.pipe()
    sink = stdout_sink(position, write_end)
    after = open_sink(sink)
    slices = read_log(log, after)
    batch = batch_of(after, slices)
    receipts = run_tasks(sink, batch, [slices])
    found = []

    def commit():
        try:
            sink.commit(batch, receipts)
        except SinkError as error:
            found.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    sink.interrupt()
    thread.join(5)

    assert not thread.is_alive()
    assert "cancelled" in str(found[0])
    os.close(read_end)
    os.close(write_end)


def test_kill_loses_nothing(log, position, sink, printed):
    killed_at("deliver.after_job:2", "stdout", str(log), str(position), stdout=printed)

    deliver(sink, log)

    assert rows_in(Path(printed.name)) == wanted_rows(range(1, 5))


def test_batch_that_was_printed_but_not_recorded_is_printed_again(log, sink, position, printed):
    before = open_sink(sink)
    first = position.read_bytes()
    deliver_at_once(sink, log, before, task_count=1)
    position.write_bytes(first)  # as if killed between the two

    deliver(sink, log)

    assert rows_in(Path(printed.name)) == wanted_rows(range(1, 5)) * 2
