"""Documents in files: nothing lost, nothing doubled, whole batches only, wherever it stops."""

from __future__ import annotations

import os

import pytest

from fix_event_sinks import (
    START,
    deliver,
    deliver_at_once,
    file_place,
    file_sink,
    hidden,
    killed_at,
    open_sink,
    rows_in,
    visible,
    wanted_rows,
    write_transactions,
)
from fix_wait import wait_until
from penstock.errors import (
    PositionMissing,
    SinkPrivilegeMissing,
)
from penstock.lsn import Lsn
from penstock.sinks.file.kind import FileKind
from penstock.sinks.sink import Batch


def test_every_change_becomes_one_line_and_close_makes_it_visible(log, directory, sink_of):
    sink = sink_of()

    end = deliver(sink, log)

    assert visible(directory) == []
    assert sink.change_count == 12
    sink.close()
    (path,) = visible(directory)
    assert path.name == f"changes-{START:016X}-{end:016X}.jsonl"
    assert rows_in(path) == wanted_rows(range(1, 5))
    assert hidden(directory) == [".lock", ".position.json"]


def test_parts_are_joined_in_the_order_of_their_tasks(log, directory, sink_of):
    sink = sink_of()

    deliver_at_once(sink, log, open_sink(sink), task_count=3)

    sink.close()
    assert rows_in(*visible(directory)) == wanted_rows(range(1, 5))


def test_next_run_goes_on_from_the_position_in_the_directory(log, directory, sink_of):
    first = sink_of()
    position = deliver(first, log)
    first.close()
    write_transactions(log, range(5, 8))

    second = sink_of()
    assert second.open().delivered_lsn == position
    assert second.change_count == 12
    deliver(second, log)
    second.close()

    assert rows_in(*visible(directory)) == wanted_rows(range(1, 8))
    assert second.change_count == 21


def test_full_file_is_finished_and_another_begins(log, directory, sink_of):
    sink = sink_of(rotate_bytes=1000)

    deliver(sink, log)

    finished = visible(directory)
    assert [path.stat().st_size >= 1000 for path in finished] == [True, True]
    assert rows_in(*finished) == wanted_rows(range(1, 5))
    names = [path.stem.split("-")[1:] for path in finished]
    assert names[0][1] == names[1][0], "each begins where the one before ends"


def test_old_file_is_finished_without_another_batch(log, directory, sink_of):
    sink = sink_of(rotate_seconds=0.05)
    deliver(sink, log)

    def becomes_visible():
        sink.idle()
        return hidden(directory) == [".lock", ".position.json"]

    wait_until(becomes_visible, 5)
    assert rows_in(*visible(directory)) == wanted_rows(range(1, 5))


def test_idle_leaves_a_young_file_alone(log, directory, sink_of):
    sink = sink_of()
    deliver(sink, log)

    sink.idle()

    assert visible(directory) == []


def test_age_of_a_file_outlives_the_process(log, directory, sink_of):
    first = sink_of()
    deliver(first, log)
    first._sink._forget()
    os.close(first._sink._lock)
    first._sink._lock = None

    second = sink_of(rotate_seconds=1e-6)
    second.open()
    second.idle()

    assert rows_in(*visible(directory)) == wanted_rows(range(1, 5))


def test_batch_without_changes_moves_the_position(sink_of, directory):
    sink = sink_of()
    open_sink(sink)

    sink.commit(Batch(1, START, Lsn(START + 64), 0, frozenset()), [])
    sink.close()

    again = sink_of()
    assert again.open().delivered_lsn == START + 64
    assert visible(directory) == []


@pytest.mark.parametrize(
    "fault", ["deliver.after_job:3", "file.after_append:3", "file.after_position:1"]
)
def test_kill_at_any_point_loses_nothing_and_doubles_nothing(fault, log, directory, sink_of):
    killed_at(fault, "file", str(log), str(directory), "1000")

    seen = rows_in(*visible(directory))
    assert seen == wanted_rows(range(1, 5))[: len(seen)]
    assert len(seen) % 3 == 0, "only whole batches are visible"

    sink = sink_of(rotate_bytes=1000)
    deliver(sink, log)
    sink.close()

    assert rows_in(*visible(directory)) == wanted_rows(range(1, 5))
    assert sink.change_count == 12
    assert hidden(directory) == [".lock", ".position.json"]


def test_what_was_never_recorded_is_cut_off(log, directory, sink_of):
    first = sink_of()
    position = deliver(first, log)
    (growing,) = directory.glob(".changes-*")
    with growing.open("ab") as file:
        file.write(b'{"op":"ins')
    (directory / ".part-0-torn").write_bytes(b"x")
    (directory / f".changes-{position:016X}.open").write_bytes(b"never recorded")

    assert first.open().delivered_lsn == position
    first.close()

    assert rows_in(*visible(directory)) == wanted_rows(range(1, 5))
    assert hidden(directory) == [".lock", ".position.json"]


def test_finished_file_taken_away_by_its_reader_is_not_missed(log, directory, sink_of):
    first = sink_of(rotate_bytes=1)
    deliver(first, log)
    for path in visible(directory):
        path.unlink()
    write_transactions(log, [5])

    deliver(first, log)

    assert rows_in(*visible(directory)) == wanted_rows([5])


def test_documents_removed_before_they_were_visible_are_reported(log, directory, sink_of):
    sink = sink_of()
    deliver(sink, log)
    (growing,) = directory.glob(".changes-*")
    growing.unlink()

    with pytest.raises(PositionMissing, match="0 bytes of documents, wanted"):
        sink.open()


def test_file_that_is_there_already_is_not_overwritten(log, directory, sink_of):
    sink = sink_of()
    end = deliver(sink, log)
    taken = directory / f"changes-{START:016X}-{end:016X}.jsonl"
    taken.write_text("of a person\n")
    sink.close()

    with pytest.raises(SinkPrivilegeMissing, match="already there"):
        sink.open()

    taken.unlink()
    sink.open()
    assert rows_in(*visible(directory)) == wanted_rows(range(1, 5))


def test_teardown_leaves_nothing_but_documents(log, directory, sink_of):
    sink = sink_of()
    deliver(sink, log)
    sink._sink._forget()
    sink.close()

    assert FileKind().forget(file_place(directory)) == [f"position in {directory}"]
    assert hidden(directory) == []
    assert rows_in(*visible(directory)) == wanted_rows(range(1, 5))
    assert FileKind().forget(file_place(directory)) == []


@pytest.mark.parametrize("mode", [0o640, 0o644, 0o600])
def test_documents_have_the_mode_of_the_sink_and_all_else_is_for_its_user(log, tmp_path, mode):
    directory = tmp_path / "new" / "out"
    sink = file_sink(directory, mode=mode)

    # The CLI's; a worker's is the same.
    before = os.umask(0o077)
    try:
        deliver(sink, log)
        sink.close()
    finally:
        os.umask(before)

    (document,) = visible(directory)
    assert document.stat().st_mode & 0o777 == mode
    wanted = mode | (mode & 0o444) >> 2
    assert {path.stat().st_mode & 0o777 for path in (directory, directory.parent)} == {wanted}
    others = [directory / name for name in hidden(directory)]
    assert {path.stat().st_mode & 0o777 for path in others} == {0o600}
