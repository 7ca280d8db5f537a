"""Copies into files: published whole, once, before later changes, wherever it stops."""

from __future__ import annotations

import errno
import json
import os

import pytest

from fix_copies import (
    SNAPSHOT_LSN,
    catch_up,
    copied_rows,
    copies_in,
    copy,
    drive,
    file_copying,
    flow,
    order_of,
    wanted_reads,
)
from fix_event_sinks import (
    ORDERS,
    deliver,
    file_place,
    hidden,
    open_sink,
    rows_in,
    stdout_place,
    stdout_sink,
    visible,
    wanted_rows,
    write_transactions,
)
from penstock.errors import PositionMissing, PositionTaken, SinkError, SinkPrivilegeMissing
from penstock.lsn import Lsn
from penstock.sinks.copying import Copy
from penstock.sinks.documents.copying import relation_of
from penstock.sinks.documents.workspace import copying_of
from penstock.sinks.file.kind import FileKind
from penstock.sinks.sink import Batch
from penstock.sinks.stdout.kind import StdoutKind
from penstock.sinks.tables import TableState
from penstock.table import TableName

TABLE = ORDERS.table
OTHER = TableName("public", "other")
TIDY = [".copies", ".lock", ".position.json"]


@pytest.fixture
def copying(directory):
    copying = file_copying(directory)
    yield copying
    copying.close()


def pending(sink, *tables):
    """Open the sink and schedule copies of tables; the position."""
    position = open_sink(sink)
    sink.tables.schedule_copy(dict.fromkeys(tables or [TABLE], 0), position)
    return position


def test_table_is_copied_catches_up_and_streams(log, directory, sink_of, copying):
    sink = sink_of()
    position = pending(sink)
    assert sink.tables.detached[TABLE].state == TableState.PENDING
    assert list(copying.due()) == [TABLE]

    copy(copying, "c", 3)
    assert copying.due() == {}
    sink.refresh_tables(position)
    assert (sink.tables.detached[TABLE].state, sink.tables.detached[TABLE].delivered_lsn) == (
        TableState.CATCHING_UP,
        SNAPSHOT_LSN,
    )
    assert copying.due() == {}
    assert copies_in(directory) == ["lock", "state.json"]
    position = flow(sink, log, position)
    catch_up(sink, log, position)
    write_transactions(log, [5])
    flow(sink, log, position)
    sink.close()

    # Transactions 1 and 2 are before the snapshot, whose rows hold what they did.
    wanted = wanted_reads(3) + wanted_rows([3, 4, 5])
    assert rows_in(*visible(directory)) == wanted
    assert sink.tables.streaming == {TABLE}
    assert sink.change_count == 9
    assert hidden(directory) == TIDY


def test_nothing_is_visible_before_every_range_is_there(directory, sink_of, copying):
    sink = sink_of(rotate_bytes=1)
    position = pending(sink)
    assert copying.claim()
    snapshot = Copy("c", SNAPSHOT_LSN)
    order = order_of(2)
    writers, failures = copying.begin(snapshot, [order])
    into = writers[TABLE].begin(1)
    into.write(copied_rows(1))
    into.finish()

    assert failures == {}
    assert copying.arrived(snapshot)[TABLE].row_count == 4
    failed = copying.finish([order], snapshot)
    assert isinstance(failed[TABLE], SinkError)
    assert "1 ranges of documents are there, wanted 2" in str(failed[TABLE])
    sink.refresh_tables(position)
    assert sink.tables.detached[TABLE].state == TableState.COPYING
    copying.close()
    sink.close()

    assert visible(directory) == []
    assert copies_in(directory) == ["lock", "state.json"], "its parts are removed"
    assert list(file_copying(directory).due()) == [TABLE]


def test_range_that_is_written_twice_counts_once(directory, sink_of, copying):
    sink = sink_of()
    position = pending(sink)
    assert copying.claim()
    order, snapshot = order_of(1), Copy("c", SNAPSHOT_LSN)
    writers, _ = copying.begin(snapshot, [order])
    first, second, late = (writers[TABLE].begin(0) for _ in range(3))
    for into in (first, second, late):
        into.write(copied_rows(0))
    first.finish()
    second.finish()
    aborted = writers[TABLE].begin(0)
    aborted.write(copied_rows(0))
    aborted.abort()

    assert copying.finish([order], snapshot) == {}
    with pytest.raises(SinkPrivilegeMissing):
        late.finish()
    sink.refresh_tables(position)
    sink.close()

    assert rows_in(*visible(directory)) == wanted_reads(1)


@pytest.mark.parametrize("step_bytes", [1, 300, 1_000_000])
def test_copied_documents_are_cut_at_rotate_bytes(step_bytes, directory, sink_of, copying):
    sink = sink_of(rotate_bytes=step_bytes)
    position = pending(sink)
    copy(copying, "c", 3)

    sink.refresh_tables(position)
    sink.close()

    paths = visible(directory)
    assert rows_in(*paths) == wanted_reads(3), "names sort in the order of writing"
    longest = max(len(line) for path in paths for line in path.read_bytes().splitlines(True))
    assert all(path.stat().st_size < step_bytes + longest for path in paths)
    assert len(paths) == {1: 12, 300: 6, 1_000_000: 1}[step_bytes]


def test_long_copy_is_published_in_turns(log, directory, sink_of, copying, use_timing):
    use_timing(publish_seconds=0.0)
    sink = sink_of(rotate_bytes=300)
    position = pending(sink)
    copy(copying, "c", 3)

    turns = 0
    while sink.tables.detached[TABLE].state != TableState.CATCHING_UP:
        sink.refresh_tables(position)
        turns += 1
        if turns == 3:
            assert sink.tables.detached[TABLE].state == TableState.COPYING
            # Batches of other tables go on meanwhile.
            end = Lsn(position + 0x50)
            sink.commit(Batch(1, position, end, 0, frozenset({OTHER})), [])
            position = end
            assert copying.due() == {}, "a copy that is being published stays"
    sink.close()

    assert turns == 6
    assert rows_in(*visible(directory)) == wanted_reads(3)


def test_restart_in_the_middle_of_publishing_goes_on_from_there(
    directory, sink_of, copying, use_timing
):
    use_timing(publish_seconds=0.0)
    first = sink_of(rotate_bytes=300)
    position = pending(first)
    copy(copying, "c", 3)
    first.refresh_tables(position)
    first.refresh_tables(position)
    first.close()
    copying.close()

    second, again = sink_of(rotate_bytes=300), file_copying(directory)
    assert second.open().delivered_lsn == position
    assert again.due() == {}
    while second.tables.detached[TABLE].state == TableState.COPYING:
        second.refresh_tables(position)
    second.close()
    again.close()

    assert rows_in(*visible(directory)) == wanted_reads(3)


def test_batch_skips_tables_that_are_detached(log, directory, sink_of):
    sink = sink_of()
    position = pending(sink)

    end = flow(sink, log, position)
    sink.close()

    assert end > position
    assert visible(directory) == []
    assert sink.change_count == 0


def test_table_that_does_not_stand_where_its_changes_begin_is_refused(log, sink_of, copying):
    sink = sink_of()
    position = pending(sink)
    batch = Batch(1, position, Lsn(position + 8), 0, frozenset({TABLE}))

    with pytest.raises(PositionTaken, match="orders does not stand at"):
        sink.commit_detached({TABLE}, batch, [])


def test_failed_copy_is_reported_and_tried_again_later(directory, sink_of, copying):
    sink = sink_of()
    position = pending(sink)
    assert copying.claim()
    copying.begin(Copy("c", SNAPSHOT_LSN), [order_of(2)])

    copying.fail(TABLE, SinkError("no luck", "there"))
    sink.refresh_tables(position)

    detached = sink.tables.detached[TABLE]
    assert (detached.state, detached.needs_copy, detached.can_catch_up) == (
        TableState.FAILED,
        True,
        False,
    )
    assert "no luck" in detached.error
    assert copying.due() == {}, "not at once"
    state = directory / ".copies" / "state.json"
    reported = json.loads(state.read_text())
    assert reported["copies"][0]["attempts"] == 1
    reported["copies"][0]["retry_at"] -= 10
    state.write_text(json.dumps(reported))
    assert copying.due() == {}, "the log must be known to be kept first"
    sink.refresh_tables(position)
    assert sink.tables.detached[TABLE].state == TableState.PENDING
    assert list(copying.due()) == [TABLE]
    copy(copying, "d", 2)
    sink.refresh_tables(position)
    assert sink.tables.detached[TABLE].state == TableState.CATCHING_UP


def test_copy_of_a_table_that_was_scheduled_anew_meanwhile_is_not_taken(
    directory, sink_of, copying
):
    sink = sink_of()
    position = pending(sink)
    assert copying.claim()
    order, snapshot = order_of(1), Copy("c", SNAPSHOT_LSN)
    writers, _ = copying.begin(snapshot, [order])
    sink.tables.remove([TABLE])
    assert sink.tables.detached[TABLE].state == TableState.REMOVED
    assert copying.due() == {}
    sink.tables.schedule_copy({TABLE: 0}, position)
    into = writers[TABLE].begin(0)
    into.write(copied_rows(0))
    into.finish()

    assert copying.finish([order], snapshot) == {}
    sink.refresh_tables(position)

    assert sink.tables.detached[TABLE].state == TableState.PENDING
    assert list(copying.due()) == [TABLE]
    assert copies_in(directory) == ["lock", "state.json"]


def test_copy_that_was_whole_before_the_table_was_scheduled_anew_is_not_taken(
    directory, sink_of, copying
):
    sink = sink_of()
    position = pending(sink)
    copy(copying, "c", 2)
    sink.tables.schedule_copy({TABLE: 0}, position)

    sink.refresh_tables(position)
    sink.close()

    assert sink.tables.detached[TABLE].state == TableState.PENDING
    assert visible(directory) == []
    assert list(copying.due()) == [TABLE]
    assert copies_in(directory) == ["lock", "state.json"]


def test_table_is_copied_again_when_it_is_asked_for(log, directory, sink_of, copying):
    sink = sink_of()
    drive(sink, copying, log, 2)
    position = sink.open().delivered_lsn

    assert file_copying(directory).ask([TABLE, OTHER]) == [TABLE]
    sink.refresh_tables(position)

    assert (sink.tables.detached[TABLE].state, sink.tables.detached[TABLE].delivered_lsn) == (
        TableState.PENDING,
        position,
    )
    assert sink.tables.streaming == set()
    assert list(copying.due()) == [TABLE]
    copy(copying, "again", 1, position)
    sink.refresh_tables(position)
    sink.tables.attach([TABLE])
    sink.close()
    wanted = wanted_reads(2) + wanted_rows([3, 4]) + wanted_reads(1)
    assert rows_in(*visible(directory)) == wanted
    assert copying.due() == {}
    assert copies_in(directory) == ["lock", "state.json"]


def test_table_whose_parts_are_gone_is_copied_again(directory, sink_of, copying):
    sink = sink_of()
    position = pending(sink)
    copy(copying, "c", 3)
    (part,) = (directory / ".copies").glob("copied-*/part-1-*")
    part.unlink()

    sink.refresh_tables(position)
    assert sink.tables.detached[TABLE].state == TableState.PENDING
    copy(copying, "d", 3)
    sink.refresh_tables(position)

    assert sink.tables.detached[TABLE].state == TableState.CATCHING_UP


def test_one_copier_at_a_time(directory, sink_of, copying):
    pending(sink_of())
    assert copying.claim()
    other = file_copying(directory)

    assert not other.claim()
    copying.release()
    assert other.claim()
    other.close()


def test_task_that_does_not_see_the_directory_says_so(directory, sink_of, copying):
    pending(sink_of())
    assert copying.claim()
    writers, _ = copying.begin(Copy("c", SNAPSHOT_LSN), [order_of(1)])
    (made,) = (directory / ".copies").glob("copying-*")
    made.rmdir()

    with pytest.raises(SinkPrivilegeMissing, match="does not see the directory"):
        writers[TABLE].begin(0)


def test_damaged_state_of_copies_is_reported(directory, sink_of, copying):
    sink = sink_of()
    position = pending(sink)
    copy(copying, "c", 1)
    (directory / ".copies" / "state.json").write_text("{")

    with pytest.raises(PositionMissing, match="damaged"):
        sink.refresh_tables(position)


def test_position_of_an_earlier_version_knows_no_tables(log, directory, sink_of, copying):
    first = sink_of()
    end = deliver(first, log)
    first.close()
    path = directory / ".position.json"
    reported = json.loads(path.read_text())
    del reported["tables"], reported["extra"]["last_number"]
    path.write_text(json.dumps(reported))

    sink = sink_of()
    assert sink.open().delivered_lsn == end
    assert (sink.tables.streaming, sink.tables.detached) == (set(), {})
    sink.tables.schedule_copy({TABLE: 0}, end)
    copy(copying, "c", 1, end)
    sink.refresh_tables(end)
    sink.tables.attach([TABLE])
    sink.close()

    assert rows_in(*visible(directory)) == wanted_rows(range(1, 5)) + wanted_reads(1)


def test_teardown_leaves_nothing_of_copies(directory, sink_of, copying):
    sink = sink_of()
    pending(sink)
    copy(copying, "c", 1)
    copying.close()
    sink.close()

    assert FileKind().forget(file_place(directory)) == [f"position in {directory}"]
    assert hidden(directory) == []


@pytest.mark.parametrize(
    ("identity", "marked"),
    [("d", ["id"]), ("i", ["id"]), ("n", []), ("f", ["id", "note"])],
)
def test_copied_table_is_described_as_the_stream_does(identity, marked):
    relation = relation_of(order_of(1, identity=identity).shape)

    assert [column.name for column in relation.columns if column.in_identity] == marked
    assert relation.replica_identity == identity


def test_copy_is_printed_and_what_was_not_recorded_is_printed_again(tmp_path, monkeypatch):
    path = tmp_path / "state" / "sinks" / "screen.position.json"
    copying = copying_of(StdoutKind(), stdout_place(path))
    with (tmp_path / "printed").open("w+b", buffering=0) as printed:
        sink = stdout_sink(path, printed.fileno())
        position = pending(sink)
        copy(copying, "c", 2)
        with monkeypatch.context() as patch:

            def broken(kept):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

            patch.setattr(sink._position, "write", broken)
            with pytest.raises(SinkError, match="input/output error"):
                sink.refresh_tables(position)
        sink.open()
        sink.refresh_tables(position)

    assert rows_in(tmp_path / "printed") == wanted_reads(2) * 2
    assert sink.tables.detached[TABLE].state == TableState.CATCHING_UP
    copying.close()
