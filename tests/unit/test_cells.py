"""Columns own their buffers: computed ones take part in all that decoded ones do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_changes import StreamMaker, dice, examples, plain_rows
from penstock.changes.cells import ABSENT, Cells, concatenate, gather
from penstock.changes.compact import compact
from penstock.changes.decode import TableChanges
from penstock.changes.documents import documents
from penstock.changes.history import versions
from penstock.changes.pgoutput import UNCHANGED
from penstock.errors import DecodeError
from penstock.testing import changes

texts = st.lists(st.none() | st.binary(max_size=5), max_size=8)


@settings(examples)
@given(texts, st.sampled_from([pa.binary(), pa.large_binary()]), st.integers(0, 3))
def test_column_of_an_arrow_array_gives_the_array_back(values, kind, cut):
    """Slices, too: their offsets do not begin at 0."""
    cells = Cells.from_arrow(pa.array(values, kind)[cut:])

    assert gather(cells).to_pylist() == values[cut:]
    assert cells.is_null.tolist() == [value is None for value in values[cut:]]


def test_column_of_strings_has_their_utf_8():
    assert gather(Cells.from_arrow(pa.array(["żółć", None, ""]))).to_pylist() == [
        "żółć".encode(),
        None,
        b"",
    ]


def test_marks_of_a_computed_column_count_more_than_what_the_array_has_there():
    values = pa.array([b"a", b"b", None, b"d"])

    cells = Cells.from_arrow(
        values,
        unchanged=np.array([False, True, False, False]),
        absent=np.array([False, False, True, False]),
    )

    assert cells.kind.tolist() == [ord("t"), UNCHANGED, ABSENT, ord("t")]
    assert gather(cells).to_pylist() == [b"a", None, None, b"d"]
    assert gather(cells.take(np.array([3, 1, 0]))).to_pylist() == [b"d", None, b"a"]


def test_bytes_behind_a_null_are_not_part_of_the_column():
    offsets = np.array([0, 1, 3, 4], np.int32)
    validity = pa.py_buffer(bytes([0b101]))
    values = pa.Array.from_buffers(
        pa.binary(), 3, [validity, pa.py_buffer(offsets), pa.py_buffer(b"axxb")]
    )

    assert gather(Cells.from_arrow(values)).to_pylist() == [b"a", None, b"b"]


def test_column_above_two_gibibytes_is_refused():
    untouched = pa.py_buffer(np.zeros(2**31, np.uint8))  # takes no memory until it is read
    offsets = pa.py_buffer(np.array([0, 2**31], np.int64))
    values = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, untouched])

    with pytest.raises(DecodeError, match="2147483648 bytes"):
        Cells.from_arrow(values)


@settings(examples)
@given(st.lists(st.tuples(*(3 * [st.none() | st.binary(max_size=3)]), st.booleans()), max_size=8))
def test_columns_of_different_buffers_are_joined_as_those_of_one(rows):
    first, second = (
        Cells.from_arrow(pa.array([row[k] for row in rows], pa.binary())) for k in (0, 1)
    )
    mask = np.array([row[3] for row in rows], bool)

    assert gather(first.where(mask, second)).to_pylist() == [
        row[0] if row[3] else row[1] for row in rows
    ]
    assert gather(concatenate(first, second)).to_pylist() == [row[0] for row in rows] + [
        row[1] for row in rows
    ]


def own_buffers(piece: TableChanges) -> TableChanges:
    """The same changes, each column of them in a buffer of its own."""
    return replace(
        piece,
        after=tuple(map(_computed, piece.after)),
        before=tuple(map(_computed, piece.before)),
    )


def _computed(cells: Cells) -> Cells:
    return Cells.from_arrow(
        gather(cells), unchanged=cells.is_unchanged, absent=cells.kind == ABSENT
    )


@settings(examples, max_examples=150)
@given(dice)
def test_computed_columns_have_the_net_effect_versions_and_documents_of_decoded_ones(dice):
    maker = StreamMaker(dice)
    for piece in changes(list(maker.transactions(dice.randint(1, 3), 8))):
        if not isinstance(piece, TableChanges):
            continue
        computed = own_buffers(piece)
        key = [place for place, column in enumerate(piece.relation.columns) if column.in_identity]

        assert documents([computed], "shop").equals(documents([piece], "shop"))
        for net in (compact, versions):
            assert _reported(net, computed, key) == _reported(net, piece, key)


def _reported(net, piece, key):
    try:
        steps = net(piece, key)
    except DecodeError as error:
        return str(error)
    return [
        (
            step.operation.tolist(),
            plain_rows(step.columns, len(step)),
            plain_rows(step.old_key, len(step)),
            step.unchanged_group.tolist(),
            step.unchanged_columns,
        )
        for step in steps
    ]
