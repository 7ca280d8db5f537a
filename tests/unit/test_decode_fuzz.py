"""Whatever the bytes are: changes or a PenstockError, never a crash, never bytes of another row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_changes import StreamMaker, dice, examples, of_seed, plain
from penstock.changes.cells import gather
from penstock.changes.compact import compact
from penstock.changes.decode import TableChanges, Transaction, decode
from penstock.changes.pgoutput import (
    KNOWN_KINDS,
    NULL,
    TEXT,
    parse_begin,
    parse_commit,
    parse_relation,
    parse_stream_abort,
    parse_stream_commit,
    parse_stream_start,
    parse_truncate,
    relation_oid,
)
from penstock.changes.pgoutput import UNCHANGED as UNCHANGED_KIND
from penstock.errors import PenstockError
from penstock.testing import joined

PARSERS = [
    parse_begin,
    parse_commit,
    parse_relation,
    parse_stream_abort,
    parse_stream_commit,
    parse_stream_start,
    parse_truncate,
    relation_oid,
]
PARTS = [
    None,
    Transaction(8, 0, 7, 3, carries_xids=False),
    Transaction(8, 0, 7, 3, carries_xids=True),
    Transaction(8, 0, 7, 3, carries_xids=True, aborted_xids=(7, 2**32 - 1)),
]


def survive(data, lengths, part):
    """Decode and use what comes out; True when something did."""
    try:
        pieces = decode(data, lengths, part)
    except PenstockError:
        return False
    ends = np.cumsum(lengths)
    starts = ends - lengths
    for piece in pieces:
        if isinstance(piece, TableChanges):
            _require_cells_inside_one_message(piece, starts, ends)
            for key in ([], [0], list(range(len(piece.after)))):
                _compact(piece, key)
    plain(pieces)
    return True


def _require_cells_inside_one_message(piece, starts, ends):
    message = np.full(len(piece), -1)
    for cells in (*piece.after, *piece.before):
        known = np.isin(cells.kind, (TEXT, NULL, UNCHANGED_KIND))
        found = np.searchsorted(starts, cells.start, side="right") - 1
        # An empty value may be the last thing in its message.
        found = np.where((starts[found] == cells.start) & (cells.length == 0), found - 1, found)
        assert ((cells.start >= starts[found]) & (cells.start + cells.length <= ends[found]))[
            known
        ].all()
        assert ((message == found) | (message == -1))[known].all(), "a row is of one message"
        message = np.where(known, found, message)


def _compact(piece, key):
    if key and key[-1] >= len(piece.after):
        return
    try:
        steps = compact(piece, key)
    except PenstockError:
        return
    for step in steps:
        for cells in (*step.columns, *step.old_key):
            assert len(gather(cells)) == len(step)


@settings(examples, max_examples=150)
@given(st.binary(max_size=80), dice)
def test_arbitrary_bytes_are_refused_or_decoded(data, dice):
    lengths = []
    while sum(lengths) < len(data):
        lengths.append(dice.randint(1, min(30, len(data) - sum(lengths))))
    raw = bytearray(data)
    if dice.random() < 0.9:  # else hardly any message is of a known kind
        for start in np.cumsum([0, *lengths[:-1]])[: len(lengths)]:
            raw[start] = dice.choice(sorted(KNOWN_KINDS))

    survive(bytes(raw), np.array(lengths, np.int64), dice.choice(PARTS))


@settings(examples, max_examples=80)
@given(st.binary(max_size=40), st.lists(st.integers(-(2**31), 2**33), max_size=6))
def test_lengths_that_do_not_fit_are_refused(data, lengths):
    if sum(lengths) != len(data) or min(lengths, default=1) < 1:
        with pytest.raises(PenstockError):
            decode(data, np.array(lengths, np.int64))


def mutate(dice, messages):
    """Damage a stream in one of the ways that wires, disks and defects do."""
    messages = [bytearray(message) for message in messages]
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(messages))
        message = messages[at]
        place = dice.randrange(len(message) + 1)
        way = dice.randrange(7)
        if way == 0 and place < len(message):
            message[place] ^= 1 << dice.randrange(8)
        elif way == 1:
            del message[place:]
        elif way == 2:
            message[place:place] = dice.randbytes(dice.randint(1, 5))
        elif way == 3:
            del message[place : place + dice.randint(1, 5)]
        elif way == 4 and len(messages) > 1:
            del messages[at]
        elif way == 5:
            messages[dice.randrange(len(messages))] = bytearray(message)
        elif way == 6 and place < len(message):
            message[place] = dice.choice(b"\x00\x01\x7f\x80\xffnutNKOIUDTRB")
    return [bytes(message) for message in messages]


@pytest.mark.parametrize("part", PARTS)
def test_damaged_slices_are_refused_or_decoded(part):
    dice = of_seed(20260101)
    decoded = 0
    for _ in range(100):
        maker = StreamMaker(dice)
        if part is None:
            messages = list(maker.transactions(2, 4))
        else:
            messages = list(maker.rows(6, [7, 8] if part.carries_xids else []))
        for _ in range(4):
            data, lengths = joined([message for message in mutate(dice, messages) if message])
            decoded += survive(data, lengths, part)
            survive(*_with_other_lengths(dice, data, lengths), part)

    assert decoded > 20, "some damage must get past the first check, or nothing was tried"


def _with_other_lengths(dice, data, lengths):
    """The same bytes, with borders moved: the sum may or may not be right."""
    lengths = lengths.copy()
    if len(lengths) > 1:
        shift = dice.randint(-9, 9)
        at = dice.randrange(len(lengths) - 1)
        lengths[at] += shift
        if dice.random() < 0.8:
            lengths[at + 1] -= shift
    return data, lengths


@settings(examples, max_examples=200)
@given(st.binary(max_size=60), st.sampled_from(PARSERS), st.booleans())
def test_single_messages_of_arbitrary_bytes_are_refused_or_read(data, parse, carries_xid):
    carried = {"carries_xid": carries_xid} if parse in (parse_relation, parse_truncate) else {}
    try:
        parse(data, **carried)
    except PenstockError:
        return


@pytest.mark.parametrize("parse", [parse_relation, parse_truncate])
def test_damaged_relation_and_truncate_messages_are_refused_or_read(parse):
    dice = of_seed(3)
    kind = {parse_relation: b"R", parse_truncate: b"T"}[parse]
    tried = 0
    while tried < 500:
        messages = [m for m in StreamMaker(dice).transactions(1, 6) if m[:1] == kind]
        if not messages:
            continue
        tried += 1
        for message in mutate(dice, messages):
            try:
                parse(message)
            except PenstockError:
                continue
