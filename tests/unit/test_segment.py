"""Segment files: walking them, cutting a torn end, refusing damage elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from fix_changes import of_seed
from penstock.errors import LogError, PenstockError
from penstock.log.files.segment import (
    FileSlice,
    base_of,
    cut_torn_end,
    list_segments,
    segment_name,
    walk,
)
from penstock.log.slice import MAGIC, SliceHead, SliceKind, encode_slice
from penstock.lsn import Lsn


def slice_of(end_lsn: int, *messages: bytes, **meta: object) -> bytes:
    head = SliceHead(SliceKind.WHOLE, Lsn(end_lsn), Lsn(end_lsn - 8), Lsn(end_lsn - 8), meta=meta)
    lengths = np.array([len(message) for message in messages], np.uint32)
    return encode_slice(head, b"".join(messages), lengths)


SLICES = [slice_of(end, b"first" * end, b"second") for end in (8, 16, 24)]


@pytest.fixture
def segment(tmp_path, no_sync):
    path = tmp_path / segment_name(Lsn(0))
    path.write_bytes(b"".join(SLICES))
    return path


def test_walk_finds_every_slice_with_its_messages(segment):
    refs = list(walk(segment))

    assert [ref.head.end_lsn for ref in refs] == [8, 16, 24]
    data, lengths = refs[1].read()
    assert (data, lengths.tolist()) == (b"first" * 16 + b"second", [80, 6])
    assert [ref.head.end_lsn for ref in walk(segment, refs[1].locator.offset)] == [16, 24]


def test_slice_with_more_meta_than_one_read_fetches_is_found(tmp_path):
    path = tmp_path / segment_name(Lsn(0))
    path.write_bytes(slice_of(8, b"message", relations=["name"] * 10_000) + SLICES[1])

    assert [ref.head.end_lsn for ref in walk(path)] == [8, 16]


def test_segments_sort_by_position(tmp_path):
    for base in (2**40, 9, 0, 2**63):
        (tmp_path / segment_name(Lsn(base))).touch()

    assert [base_of(path) for path in list_segments(tmp_path)] == [0, 9, 2**40, 2**63]


def test_torn_end_is_cut_off_wherever_it_tore(segment):
    sound = SLICES[0] + SLICES[1]
    for kept in range(len(SLICES[2])):
        segment.write_bytes(sound + SLICES[2][:kept])

        assert cut_torn_end(segment) == kept
        assert segment.read_bytes() == sound
        assert cut_torn_end(segment) == 0


def test_torn_end_of_zeros_or_garbage_is_cut_off(segment):
    """After a power cut a file may be longer than what was written to it."""
    dice = of_seed(1)
    for tail in (
        bytes(5),
        bytes(5000),
        dice.randbytes(100),
        SLICES[2][:80] + bytes(300),
        MAGIC * 50,
    ):
        segment.write_bytes(SLICES[0] + tail)

        assert cut_torn_end(segment) == len(tail)
        assert segment.read_bytes() == SLICES[0]


def test_damage_before_a_sound_slice_is_named_and_nothing_is_cut(segment):
    whole = segment.read_bytes()
    for place in range(len(SLICES[0]) + len(SLICES[1])):
        for damage in (0xFF, 0x01):
            raw = bytearray(whole)
            raw[place] ^= damage
            segment.write_bytes(raw)

            with pytest.raises(LogError) as caught:
                cut_torn_end(segment)
            begin = 0 if place < len(SLICES[0]) else len(SLICES[0])
            assert caught.value.where == f"{segment.name} at byte {begin}"
            assert segment.read_bytes() == raw


def test_damaged_last_slice_is_cut_off_as_torn(segment):
    """It cannot be distinguished from a torn one, and the slot still holds what no sink has."""
    whole = segment.read_bytes()
    sound = whole[: -len(SLICES[2])]
    for place in range(len(sound), len(whole)):
        raw = bytearray(whole)
        raw[place] ^= 0x40
        segment.write_bytes(raw)

        assert cut_torn_end(segment) == len(SLICES[2])
        assert segment.read_bytes() == sound


def test_text_that_looks_like_our_mark_is_no_slice_and_costs_no_time(tmp_path):
    path = tmp_path / segment_name(Lsn(0))
    torn = slice_of(16, (MAGIC + b"\1\1\1\1\1") * 100_000)[:-1]
    path.write_bytes(SLICES[0] + torn)

    assert cut_torn_end(path) == len(torn)


def test_read_of_a_changed_body_is_refused(segment):
    first = next(walk(segment))
    for place in range(first.locator.body_offset, first.end_offset):
        raw = bytearray(b"".join(SLICES))
        raw[place] ^= 4
        segment.write_bytes(raw)

        with pytest.raises(LogError, match="checksum") as caught:
            first.read()
        assert caught.value.where == first.locator.where


def test_read_of_a_body_that_is_cut_short_or_gone_is_refused(segment):
    last = list(walk(segment))[-1]
    segment.write_bytes(segment.read_bytes()[:-1])
    with pytest.raises(LogError, match="wanted"):
        last.read()

    segment.unlink()
    with pytest.raises(LogError, match="No such file"):
        last.read()


def test_walk_of_a_cut_short_segment_says_so(segment):
    segment.write_bytes(segment.read_bytes()[:-1])

    with pytest.raises(LogError, match="cut short"):
        list(walk(segment))


def test_damaged_files_are_refused_or_read(tmp_path):
    """Bits, lengths and borders: nothing but a PenstockError may come out."""
    path = tmp_path / segment_name(Lsn(0))
    dice = of_seed(7)
    for _ in range(400):
        raw = bytearray(b"".join(SLICES))
        for _ in range(dice.randint(1, 3)):
            place = dice.randrange(len(raw))
            way = dice.randrange(4)
            if way == 0:
                raw[place] = dice.randrange(256)
            elif way == 1:
                del raw[place : place + dice.randint(1, 50)]
            elif way == 2:
                raw[place:place] = dice.randbytes(dice.randint(1, 50))
            else:
                del raw[place:]
            raw = raw or bytearray(b"\0")
        path.write_bytes(raw)
        for use in (_read_all, cut_torn_end):
            try:
                use(path)
            except PenstockError:
                assert path.read_bytes() == raw


def _read_all(path) -> list[FileSlice]:
    refs = list(walk(path))
    for ref in refs:
        data, lengths = ref.read()
        assert len(data) == int(lengths.sum())
    return refs
