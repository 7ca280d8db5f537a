"""The log: what was appended is read, once, whole and in order, whatever happened in between."""

from __future__ import annotations

import threading

import pytest

from fix_changes import of_seed
from fix_log import SmallLog, random_log, texts
from penstock.errors import LogError, StateUnusable
from penstock.log.files import writer as writer_module
from penstock.log.files.reader import FilesReader
from penstock.log.files.segment import base_of, list_segments
from penstock.log.slice import SliceKind
from penstock.lsn import Lsn

WHOLE, PART, LAST, MARKER = SliceKind.WHOLE, SliceKind.PART, SliceKind.LAST, SliceKind.MARKER


def test_empty_log_begins_where_it_is_asked_to_and_stays_there(tmp_path):
    log = SmallLog(tmp_path, 0x16B3748)
    log.reopen()
    log.start_lsn = 0x999
    log.reopen()

    assert log.writer.durable_lsn == 0x16B3748
    assert [base_of(path) for path in list_segments(tmp_path)] == [0x16B3748]
    assert log.ends(0x16B3748) == []


def test_appended_slices_are_there_after_reopening(log):
    log.whole(8)
    log.append(MARKER, 12)
    log.reopen()
    log.whole(16)

    assert log.writer.durable_lsn == 16
    assert log.writer.torn_bytes == 0
    assert log.ends() == [8, 12, 16]
    assert texts(log.read()) == ["1", "2", "3"]


def test_slice_torn_at_any_byte_is_cut_off_and_what_follows_is_read(log):
    log.whole(8)
    [segment] = list_segments(log.directory)
    sound = segment.stat().st_size
    log.whole(16)
    whole = segment.read_bytes()

    for size in range(sound, len(whole)):
        segment.write_bytes(whole[:size])
        log.reopen()
        assert (log.writer.durable_lsn, log.writer.torn_bytes) == (8, size - sound)
        assert log.ends() == [8]
        log.whole(24)
        assert log.ends() == [8, 24]


def test_parts_are_handed_out_only_with_their_last(log):
    reader = log.reader()
    log.whole(8)
    log.append(PART, 8)
    log.append(PART, 8, part=1)

    assert texts(reader.read(1 << 30)) == ["1"]
    assert log.writer.durable_lsn == 8
    assert reader.read(1 << 30) == []

    log.append(LAST, 32, part=2)

    parts = reader.read(1)
    assert texts(parts) == ["2", "3", "4"]
    assert [(part.head.end_lsn, part.head.first_ordinal) for part in parts] == [
        (32, 0),
        (32, 5),
        (32, 10),
    ]
    assert log.writer.durable_lsn == 32
    reader.close()


def test_part_series_that_a_lost_connection_cut_short_is_forgotten(log):
    log.append(PART, 0)
    log.append(PART, 0, part=1)
    log.reopen()
    log.append(PART, 0)
    log.append(LAST, 32, part=1)
    log.append(PART, 32)
    log.append(PART, 32, part=1)
    log.reopen()
    log.whole(40)

    assert log.writer.durable_lsn == 40
    assert texts(log.read()) == ["3", "4", "7"]
    assert texts(log.read(32)) == ["7"]


def test_durable_position_does_not_move_with_parts(log):
    log.whole(8)
    log.append(PART, 8)
    log.reopen()

    assert log.writer.durable_lsn == 8


def test_slice_that_ends_before_the_last_one_is_refused(log):
    log.whole(16)
    with pytest.raises(LogError, match="to follow one that ends at 0/10"):
        log.append(SliceKind.MARKER, 8)
    log.whole(24)

    assert [ref.head.end_lsn for ref in log.read()] == [16, 24]


def test_segment_that_is_full_is_followed_by_another(log, segments_of):
    segments_of(300)
    for end in range(8, 200, 8):
        log.whole(end)

    bases = [base_of(path) for path in list_segments(log.directory)]
    assert len(bases) > 4
    assert all(path.stat().st_size >= 300 for path in list_segments(log.directory)[:-1])
    assert log.ends() == list(range(8, 200, 8))
    assert bases[1] in log.ends()


def test_segments_are_continued_after_reopening(log, segments_of):
    segments_of(300)
    for end in range(8, 200, 8):
        log.whole(end)
        log.reopen()

    assert log.ends() == list(range(8, 200, 8))


@pytest.mark.parametrize("seed", range(6))
def test_reader_resumes_after_any_position(log, segments_of, seed):
    segments_of(500)
    wanted = random_log(log, of_seed(seed), 30)

    for after in range(wanted[-1][0] + 3):
        assert texts(log.read(after)) == [
            text for end, found in wanted if end > after for text in found
        ]


@pytest.mark.parametrize("seed", range(4))
def test_reader_takes_about_as_much_as_asked_and_loses_nothing(log, segments_of, seed):
    segments_of(500)
    wanted = random_log(log, of_seed(seed), 30)
    reader = log.reader()

    batches = []
    while batch := reader.read(100):
        batches.append(batch)
    reader.close()

    assert [text for batch in batches for text in texts(batch)] == [
        text for _, found in wanted for text in found
    ]
    assert len(batches) > 5
    for batch in batches:
        assert sum(ref.head.data_bytes for ref in batch[:-1] if ref.head.kind is WHOLE) < 100


@pytest.mark.parametrize("seed", range(3))
def test_discarding_keeps_all_that_ends_after_the_position(log, segments_of, seed):
    segments_of(500)
    wanted = random_log(log, of_seed(seed), 40)
    size = log.writer.size_bytes()
    gone = 0

    for lsn in range(wanted[-1][0] + 3):
        gone += log.writer.discard_before(Lsn(lsn))
        segments = list_segments(log.directory)
        assert texts(log.read(lsn)) == [
            text for end, found in wanted if end > lsn for text in found
        ]
        # Nothing is kept that could go, and spools go with the segment that names them.
        assert len(segments) == 1 or base_of(segments[1]) > lsn
        spools = {path.name for path in log.directory.glob("*.spool")}
        named = {ref.locator.path.rsplit("/")[-1] for ref in log.read(base_of(segments[0]))}
        assert spools == {name for name in named if name.endswith(".spool")}
        log.reopen()

    assert gone > 3
    assert len(list_segments(log.directory)) == 1
    assert log.writer.size_bytes() < size / 3


def test_log_that_begins_after_the_position_is_refused(log, segments_of):
    segments_of(100)
    for end in (8, 16, 24):
        log.whole(end)
    log.writer.discard_before(Lsn(16))

    assert log.ends(16) == [24]
    with pytest.raises(LogError, match="begins at 0/10, wanted 0/F"):
        log.ends(15)


def test_reader_waits_for_a_log_that_is_not_there_yet(tmp_path):
    reader = FilesReader(tmp_path / "log", Lsn(0))
    assert reader.read(1 << 30) == []

    log = SmallLog(tmp_path / "log")
    assert reader.read(1 << 30) == []
    log.whole(8)

    assert texts(reader.read(1 << 30)) == ["1"]
    reader.close()


def test_reader_keeps_up_with_a_writer_that_writes_byte_by_byte(log, segments_of, monkeypatch):
    segments_of(400)
    write_all = writer_module.write_within_room

    def write_slowly(fd, data):
        for begin in range(0, len(data), 7):
            write_all(fd, data[begin : begin + 7])

    monkeypatch.setattr(writer_module, "write_within_room", write_slowly)
    wanted = []
    done = threading.Event()

    def write():
        wanted.extend(random_log(log, of_seed(11), 60))
        done.set()

    thread = threading.Thread(target=write)
    reader = log.reader()
    found = []
    thread.start()
    while not done.is_set():
        found += texts(reader.read(200))
    thread.join()
    found += texts(reader.read(1 << 30))
    reader.close()

    assert found == [text for _, of_one in wanted for text in of_one]


def test_two_readers_do_not_disturb_each_other(log):
    log.whole(8)
    first, second = (log.reader() for _ in range(2))
    assert texts(first.read(1 << 30)) == ["1"]
    log.whole(16)

    assert texts(second.read(1 << 30)) == ["1", "2"]
    assert texts(first.read(1 << 30)) == ["2"]
    first.close()
    second.close()


def test_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(StateUnusable, match="file/log"):
        SmallLog(tmp_path / "file" / "log")
