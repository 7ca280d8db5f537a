"""COPY text, all rows at once, equals COPY text made one value at a time."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_changes import examples
from penstock.changes import copyrows
from penstock.sinks.postgres.merge.copy_text import copy_text

pieces = st.sampled_from(
    [b"", b"\\", b"\t", b"\n", b"\r", b"\\N", b"\\.", b"x", "żó".encode(), b"\b\f\v"]
)
values = st.none() | st.lists(pieces, max_size=4).map(b"".join)


def reference(rows):
    """https://www.postgresql.org/docs/current/sql-copy.html, "Text Format"."""
    special = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
    lines = []
    for row in rows:
        fields = [
            "\\N" if value is None else "".join(special.get(c, c) for c in value.decode())
            for value in row
        ]
        lines.append("\t".join(fields) + "\n")
    return "".join(lines).encode()


def arrays(rows, width):
    return [pa.array([row[place] for row in rows], pa.binary()) for place in range(width)]


@settings(examples, max_examples=150)
@given(st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[values] * width), min_size=1)))
def test_rows_become_lines_as_the_manual_says(rows):
    assert bytes(copy_text(arrays(rows, len(rows[0])))) == reference(rows)


@settings(examples, max_examples=30)
@given(st.lists(st.tuples(values, values), min_size=1, max_size=5))
def test_lines_that_may_outgrow_small_offsets_are_the_same(rows):
    limit, copyrows._LARGEST_JOINED = copyrows._LARGEST_JOINED, 0
    try:
        assert bytes(copy_text(arrays(rows, 2))) == reference(rows)
    finally:
        copyrows._LARGEST_JOINED = limit


def test_no_rows_are_no_text():
    assert bytes(copy_text(arrays([], 2))) == b""


def test_column_of_nulls_alone_becomes_marks():
    assert bytes(copy_text(arrays([(None,), (None,)], 1))) == b"\\N\n\\N\n"


def test_part_of_a_larger_array_is_written_without_the_rest():
    whole = pa.array([b"a\t", b"b", None, b"d\\"], pa.binary())

    assert bytes(copy_text([whole.slice(1, 2)])) == b"b\n\\N\n"
    assert bytes(copy_text([whole.slice(3, 1)])) == b"d\\\\\n"


@pytest.mark.parametrize("character", ["x", "\\", "\n", "ż"])
def test_value_of_a_megabyte_is_written_whole(character):
    value = (character * (1 << 20)).encode()

    assert bytes(copy_text(arrays([(b"1", value), (b"2", None)], 2))) == reference(
        [(b"1", value), (b"2", None)]
    )
