"""The keyed hash behind deterministic transformers is AES-CMAC, of many values at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers import algorithms
from cryptography.hazmat.primitives.cmac import CMAC
from hypothesis import given
from hypothesis import strategies as st

from fix_changes import examples
from penstock.modifiers.transform.cmac import LONGEST, cmac, digested
from penstock.modifiers.transform.draws import Draws, tags_of
from penstock.secret import Secret

KEY = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
MESSAGE = bytes.fromhex(
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
    "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
)


def tags(values, key=KEY):
    return [row.tobytes() for row in cmac(key, pa.array(values, pa.binary()))]


@pytest.mark.parametrize(
    ("length", "tag"),
    [
        (0, "bb1d6929e95937287fa37d129b756746"),
        (16, "070a16b46b4d4144f79bdd9dd04a287c"),
        (40, "dfa66747de9ae63030ca32611497c827"),
        (64, "51f0bebf7e3b9d92fc49741779363cfe"),
    ],
)
def test_vectors_of_rfc_4493(length, tag):
    assert tags([MESSAGE[:length]]) == [bytes.fromhex(tag)]


@examples
@given(st.lists(st.binary(max_size=LONGEST), max_size=20), st.binary(min_size=16, max_size=16))
def test_every_tag_is_the_librarys_own(values, key):
    def one(value):
        machine = CMAC(algorithms.AES(key))
        machine.update(value)
        return machine.finalize()

    assert tags(values, key) == [one(value) for value in values]


def test_tags_of_a_slice_of_an_array_are_those_of_its_values():
    values = pa.array([b"a", b"bb" * 20, b"", b"d"], pa.binary())

    assert np.array_equal(cmac(KEY, values)[1:3], cmac(KEY, values[1:3]))


def test_long_values_are_digested_and_others_are_not():
    values = pa.array([b"short", b"x" * (LONGEST + 1), b"y" * LONGEST], pa.binary())

    done, was_long = digested(values)

    assert was_long.tolist() == [False, True, False]
    assert [len(one.as_py()) for one in done] == [5, 32, LONGEST]


def test_draws_differ_by_salt_and_by_purpose_and_not_otherwise():
    values = pa.array([b"a", b"b", b"a", b"x" * 5000], pa.binary())
    one = tags_of(Secret("s"), "email", values)

    assert np.array_equal(one, tags_of(Secret("s"), "email", values))
    assert np.array_equal(one[0], one[2])
    assert len({row.tobytes() for row in one}) == 3
    for other in (tags_of(Secret("t"), "email", values), tags_of(Secret("s"), "hash", values)):
        assert not (one == other).any()


def test_bytes_of_a_row_do_not_depend_on_the_other_rows():
    values = pa.array([b"a", b"b", b"c"], pa.binary())
    counts = np.array([3, 40, 0])
    together = Draws.of(Secret("s"), "p", values, None).bytes_of(counts)

    alone = [
        Draws.of(Secret("s"), "p", values[n : n + 1], None).bytes_of(counts[n : n + 1])
        for n in range(3)
    ]

    assert together.tolist() == np.concatenate(alone).tolist()
    assert len(together) == 43


@examples
@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.lists(st.binary()))
def test_numbers_stay_between_their_limits(a, b, values):
    least, most = min(a, b), max(a, b)
    draws = Draws.of(Secret("s"), "p", pa.array(values, pa.binary()), None)

    assert all(least <= one <= most for one in draws.between(least, most).tolist())


def test_numbers_are_spread_over_their_range():
    values = pa.array([str(n).encode() for n in range(20_000)], pa.binary())
    draws = Draws.of(Secret("s"), "p", values, None)

    for numbers in (draws.below(10), draws.between(0, 9), draws.below(10, 7)):
        counts = np.bincount(numbers, minlength=10)
        assert counts.min() > 1800
        assert counts.max() < 2200
