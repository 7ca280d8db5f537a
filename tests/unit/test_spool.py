"""Streamed transactions lie in spools until they commit, and vanish when they do not."""

from __future__ import annotations

import pytest

from fix_log import texts
from penstock.errors import LogError
from penstock.log.files.segment import expand
from penstock.log.files.spool import FileSpool
from penstock.log.slice import SliceKind
from penstock.lsn import Lsn


def test_streamed_transaction_is_read_as_parts_that_know_their_commit(log):
    log.whole(8)
    log.streamed(16, parts=3, aborted=(5, 6))
    log.whole(24)

    refs = log.read()

    assert texts(refs) == ["1", "16/0", "16/1", "16/2", "2"]
    parts = refs[1:4]
    assert [part.head.kind for part in parts] == [SliceKind.PART, SliceKind.PART, SliceKind.LAST]
    assert [part.head.first_ordinal for part in parts] == [0, 1, 2]
    assert {part.head.end_lsn for part in parts} == {16}
    assert {part.aborted_xids for part in parts} == {(5, 6)}
    assert {(part.head.committed_at, part.head.xid) for part in parts} == {(77, 16)}
    assert all(part.head.carries_xids for part in parts)


def test_spool_without_its_commit_is_not_read_and_is_removed_on_reopening(log):
    committed = log.streamed(8)
    open_one = FileSpool(log.directory, 9, Lsn(8))
    assert log.ends() == [8, 8]

    log.reopen()

    assert not open_one.path.exists()
    assert committed.path.exists()
    assert log.ends() == [8, 8]


def test_spool_whose_commit_was_torn_off_is_removed(log):
    log.whole(8)
    spool = log.streamed(16)
    segment = next(log.directory.glob("*.segment"))
    segment.write_bytes(segment.read_bytes()[:-1])

    log.reopen()

    assert log.writer.durable_lsn == 8
    assert not spool.path.exists()


def test_spools_of_all_segments_are_kept_on_reopening(log, segments_of):
    segments_of(100)
    spools = [log.streamed(end) for end in (8, 16, 24)]

    log.reopen()

    assert all(spool.path.exists() for spool in spools)
    assert texts(log.read()) == ["8/0", "8/1", "16/0", "16/1", "24/0", "24/1"]


@pytest.mark.parametrize("damage", ["missing", "cut short", "cut at a border", "changed head"])
def test_damaged_spool_is_named(log, damage):
    spool = log.streamed(8)
    first = log.read()[0]
    raw = spool.path.read_bytes()
    if damage == "missing":
        spool.path.unlink()
    elif damage == "cut short":
        spool.path.write_bytes(raw[:-1])
    elif damage == "cut at a border":
        spool.path.write_bytes(raw[: first.end_offset])
    else:
        spool.path.write_bytes(b"x" + raw[1:])

    with pytest.raises(LogError, match=spool.path.name):
        log.read()


def test_transaction_that_was_delivered_needs_its_spool_no_more(log):
    spool = log.streamed(8)
    log.whole(16)
    spool.path.unlink()

    assert log.ends(8) == [16]


def test_discarded_spool_leaves_no_file(log):
    spool = FileSpool(log.directory, 9, Lsn(8))
    spool.discard()

    assert list(log.directory.glob("*.spool")) == []


def test_slices_that_were_not_streamed_expand_to_themselves(log):
    log.whole(8)
    [ref] = log.read()

    assert expand(ref) == [ref]
