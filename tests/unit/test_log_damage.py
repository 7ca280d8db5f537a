"""A damaged log is named with its place; nothing is skipped, invented or cut that was sound."""

from __future__ import annotations

import pytest

from fix_changes import of_seed
from fix_log import random_log, texts
from penstock.errors import LogError
from penstock.log.files.segment import list_segments
from penstock.log.slice import SliceKind

PART, LAST = SliceKind.PART, SliceKind.LAST


def test_damage_in_the_middle_is_named_and_nothing_is_cut(log):
    log.whole(8)
    log.whole(16)
    [segment] = list_segments(log.directory)
    raw = bytearray(segment.read_bytes())
    raw[len(raw) // 2 - 10] ^= 1
    segment.write_bytes(raw)

    with pytest.raises(LogError, match="at byte 0") as caught:
        log.reopen()
    assert "delete the log directory" in caught.value.do
    assert segment.read_bytes() == raw


def test_last_part_without_all_the_parts_before_it_is_refused(log):
    log.append(PART, 0)
    log.append(LAST, 32, part=2)

    assert log.ends(32) == []
    with pytest.raises(LogError, match="1 parts before, wanted 2"):
        log.read()


def test_missing_segment_is_named(log, segments_of):
    segments_of(100)
    for end in (8, 16, 24, 32):
        log.whole(end)
    list_segments(log.directory)[1].unlink()

    assert log.ends(16) == [24, 32]
    with pytest.raises(LogError, match=r"0000000000000000\.segment.*ends at 0/8"):
        log.ends()


def test_segment_that_lost_whole_slices_at_its_end_is_named(log, segments_of):
    segments_of(300)
    for end in range(8, 80, 8):
        log.whole(end)
    first = list_segments(log.directory)[0]
    size = log.read()[0].end_offset
    first.write_bytes(first.read_bytes()[:size])

    with pytest.raises(LogError, match=r"0000000000000000\.segment.*ends at 0/8"):
        log.ends()


def test_older_segment_that_is_cut_short_is_named_on_reading_and_on_opening(log, segments_of):
    segments_of(100)
    for end in (8, 16, 24):
        log.whole(end)
    first = list_segments(log.directory)[0]
    first.write_bytes(first.read_bytes()[:-1])

    with pytest.raises(LogError, match=r"0000000000000000\.segment"):
        log.ends()
    with pytest.raises(LogError, match=r"0000000000000000\.segment.*cut short"):
        log.reopen()


def test_damaged_head_in_the_newest_segment_is_named_and_not_waited_for(log):
    for end in (8, 16, 24):
        log.whole(end)
    [segment] = list_segments(log.directory)
    raw = bytearray(segment.read_bytes())
    raw[log.read()[1].locator.offset] ^= 1
    segment.write_bytes(raw)

    reader = log.reader()
    with pytest.raises(LogError, match="no slice begins here"):
        reader.read(1 << 30)
    reader.close()


def test_garbage_after_a_power_cut_is_waited_on_until_the_writer_cuts_it_off(log):
    log.whole(8)
    [segment] = list_segments(log.directory)
    with segment.open("ab") as file:
        file.write(bytes(1000))
    reader = log.reader()

    assert texts(reader.read(1 << 30)) == ["1"]
    assert reader.read(1 << 30) == []

    log.reopen()
    log.whole(16)

    assert texts(reader.read(1 << 30)) == ["2"]
    reader.close()


def test_damage_anywhere_never_makes_a_reader_skip_or_invent(log, segments_of):
    segments_of(400)
    dice = of_seed(5)
    wanted = [text for _, found in random_log(log, dice, 20) for text in found]
    files = sorted(log.directory.iterdir())
    refused = 0
    for _ in range(150):
        path = dice.choice(files)
        sound = path.read_bytes()
        if not sound:
            continue
        raw = bytearray(sound)
        place = dice.randrange(len(raw))
        way = dice.randrange(3)
        if way == 0:
            raw[place] ^= 1 << dice.randrange(8)
        elif way == 1:
            del raw[place : place + dice.randint(1, 300)]
        else:
            raw[place:place] = dice.randbytes(dice.randint(1, 30))
        path.write_bytes(raw)
        try:
            found = texts(log.read())
            assert found == wanted[: len(found)]
        except LogError:
            refused += 1
        path.write_bytes(sound)

    assert refused > 100
    assert texts(log.read()) == wanted


def test_reader_that_is_ahead_of_a_log_cut_behind_it_says_so(log):
    """It read a slice that the disk then lost; it must not go on in the middle of another."""
    log.whole(8)
    [segment] = list_segments(log.directory)
    size = segment.stat().st_size
    log.whole(16)
    reader = log.reader()
    assert texts(reader.read(1 << 30)) == ["1", "2"]

    segment.write_bytes(segment.read_bytes()[: size + 1])
    log.reopen()

    with pytest.raises(LogError, match="lost in a crash"):
        reader.read(1 << 30)
    reader.close()
