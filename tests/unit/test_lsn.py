"""Positions in the WAL."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lsn import ZERO, Lsn


@pytest.mark.parametrize(
    ("text", "value"),
    [("0/0", 0), ("0/16B3748", 0x16B3748), ("16/B374D848", 0x16B374D848), ("f/a", 0xF0000000A)],
)
def test_lsn_reads_what_postgres_prints(text, value):
    assert Lsn.parse(text) == value


@given(st.integers(0, 2**64 - 1))
def test_lsn_prints_and_reads_back(value):
    assert Lsn.parse(str(Lsn(value))) == value


def test_low_half_is_printed_without_leading_zeros():
    assert str(Lsn(0x100000001)) == "1/1"
    assert f"{Lsn(0x16B374D848)}" == "16/B374D848"
    assert repr(Lsn(255)) == "Lsn('0/FF')"


def test_positions_compare_as_numbers_and_not_as_text():
    earlier, later = Lsn.parse("0/9A00028"), Lsn.parse("0/16B37480")

    assert earlier < later
    assert str(earlier) > str(later)
    assert earlier > ZERO


def test_difference_of_two_positions_is_a_number_of_bytes():
    distance = Lsn.parse("1/0") - Lsn.parse("0/FFFFFF00")

    assert distance == 256
    assert not isinstance(distance, Lsn)


def test_position_survives_a_trip_to_another_process():
    lsn = Lsn.parse("16/B374D848")

    copy = pickle.loads(pickle.dumps(lsn))

    assert copy == lsn
    assert str(copy) == "16/B374D848"


@pytest.mark.parametrize(
    "text",
    ["", "0", "/", "0/", "/0", "0/0/0", "g/0", "-1/0", "0/123456789", " 0/0", "0/0\n", "0x1/0"],
)
def test_text_that_is_no_position_is_refused(text):
    with pytest.raises(ValueError, match="not an LSN"):
        Lsn.parse(text)
