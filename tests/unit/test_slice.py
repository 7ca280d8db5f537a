"""One slice as bytes: what is written is read back, and what is damaged is refused."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_changes import examples
from penstock.errors import LogError, PenstockError
from penstock.log.slice import HEADER_BYTES, SliceHead, SliceKind, decode_head, encode_slice
from penstock.lsn import Lsn

lsns = st.integers(0, 2**64 - 1).map(Lsn)
heads = st.builds(
    SliceHead,
    kind=st.sampled_from(SliceKind),
    end_lsn=lsns,
    first_commit_lsn=lsns,
    last_commit_lsn=lsns,
    committed_at=st.integers(-(2**63), 2**63 - 1),
    xid=st.integers(0, 2**32 - 1),
    first_ordinal=st.integers(0, 2**64 - 1),
    carries_xids=st.booleans(),
    meta=st.dictionaries(
        st.text(max_size=5), st.lists(st.text(max_size=5), max_size=2), max_size=3
    ),
)
HEAD = SliceHead(SliceKind.WHOLE, Lsn(80), Lsn(8), Lsn(72), meta={"relations": [[1, "ö", '"']]})


def encode(head: SliceHead, *messages: bytes) -> bytes:
    return encode_slice(
        head, b"".join(messages), np.array([len(one) for one in messages], np.uint32)
    )


@settings(examples, max_examples=100)
@given(heads, st.lists(st.binary(max_size=9), max_size=4))
def test_head_reads_back_as_it_was_written(head, messages):
    raw = encode(head, *messages)

    found, head_bytes = decode_head(raw, "a place")

    data_bytes = sum(map(len, messages))
    assert found == replace(
        head, message_count=len(messages), data_bytes=data_bytes, body_crc=found.body_crc
    )
    assert raw[head_bytes + 4 * len(messages) :] == b"".join(messages)
    assert len(raw) == head_bytes + found.body_bytes


def test_head_that_is_not_wholly_there_is_waited_for():
    raw = encode(HEAD, b"message")
    _, head_bytes = decode_head(raw, "a place")

    assert all(decode_head(raw[:size], "a place") is None for size in range(head_bytes))
    assert decode_head(raw[:head_bytes], "a place") is not None


def test_every_damaged_bit_of_a_head_is_noticed():
    raw = encode(HEAD, b"message")
    _, head_bytes = decode_head(raw, "a place")
    for place in range(head_bytes):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[place] ^= 1 << bit
            # A length that grew makes the head seem unfinished; all else is named.
            with suppress(LogError):
                assert decode_head(bytes(damaged), "a place") is None


def test_slice_of_a_kind_that_a_later_version_writes_is_refused():
    class Later(int):
        pass

    raw = encode(replace(HEAD, kind=Later(77)), b"message")

    with pytest.raises(LogError, match="77"):
        decode_head(raw, "a place")


@settings(examples, max_examples=200)
@given(st.binary(max_size=HEADER_BYTES + 20), st.booleans())
def test_arbitrary_bytes_are_no_head(raw, marked):
    try:
        assert decode_head(b"PSL1" * marked + raw, "a place") is None
    except PenstockError:
        return
