"""Rows as COPY sends them become the values that the server meant, and documents like an insert's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_documents import LSN, Number, parse, parsed_lines
from penstock.changes.cells import gather
from penstock.changes.copyrows import parse_rows
from penstock.changes.documents import json_lines, read_documents
from penstock.errors import DecodeError
from penstock.testing import insert, table

ORDERS = table(16400, "orders", {"id": "int8", "note": "text"}, key=["id"])

# As Postgres's CopyAttributeOutText does it.
ESCAPES = {
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}

values = st.none() | st.text(st.sampled_from('\\\\\\N.nbt\t\n\r\b\f\v ż"a0'), max_size=8)


def sent(rows: list[list[str | None]]) -> bytes:
    """What the server sends."""

    def spell(value: str | None) -> str:
        return "\\N" if value is None else "".join(ESCAPES.get(char, char) for char in value)

    return "".join("\t".join(map(spell, row)) + "\n" for row in rows).encode()


def found(raw: bytes, width: int) -> list[list[str | None]]:
    rows = parse_rows(raw, width)
    columns = [gather(cells).to_pylist() for cells in rows.cells]
    return [
        [None if value is None else value.decode() for value in row]
        for row in zip(*columns, strict=True)
    ]


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(values, min_size=n, max_size=n))))
def test_every_value_is_what_was_meant(rows):
    width = len(rows[0]) if rows else 1

    assert found(sent(rows), width) == rows


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(values, min_size=n, max_size=n))))
def test_neighbouring_columns_are_given_as_they_came(rows):
    width = len(rows[0]) if rows else 1
    raw = sent(rows)
    parsed = parse_rows(raw, width)

    for first in range(width):
        for last in range(first, width):
            wanted = [
                b"\t".join(line.split(b"\t")[first : last + 1]) for line in raw.split(b"\n")[:-1]
            ]
            assert parsed.text_of(first, last).to_pylist() == wanted


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (rb"\N", None),
        (rb"\\N", "\\N"),
        (rb"\\.", "\\."),
        (rb"\\\\", "\\\\"),
        (rb"\\\t", "\\\t"),
        (rb"\t", "\t"),
        (b"", ""),
        (b"N", "N"),
    ],
)
def test_backslash_means_what_the_manual_says(raw, value):
    assert found(raw + b"\n", 1) == [[value]]
    assert found(b"x\t" + raw + b"\ty\n" + b"\\\\\t\t\n", 3) == [["x", value, "y"], ["\\", "", ""]]


def test_rows_without_columns_are_counted():
    rows = parse_rows(b"\n\n\n", 0)

    assert len(rows) == 3
    assert rows.cells == ()


@pytest.mark.parametrize(
    ("raw", "width"),
    [
        *((b"1\t2\n", 1), (b"1\n", 2), (b"1\t2\n3\n4\n", 2), (b"1\t2", 2)),
        *((b"1\t2\n3\t", 2), (b"1\n2\t", 2), (b"1\t2\n3", 2), (b"1\n", 3)),
    ],
)
def test_bytes_that_are_not_rows_of_that_width_are_refused(raw, width):
    with pytest.raises(DecodeError, match=f"rows of {width} columns"):
        parse_rows(raw, width)


def test_document_of_a_copied_row_is_that_of_its_insert_but_for_who_wrote_it():
    raw = sent([["7", 'a\t"\\'], ["8", None]])

    lines = bytes(
        json_lines(read_documents(ORDERS, parse_rows(raw, 2), LSN, 5, "shop", "1c2d"))
    ).splitlines()

    inserted = parsed_lines(ORDERS, insert(ORDERS, ["7", 'a\t"\\']), insert(ORDERS, ["8", None]))
    unlike = {"op": "read", "xid": None, "committed_at": None}
    for number, (line, other) in enumerate(zip(lines, inserted, strict=True), start=5):
        place = {"id": f"shop:0/16B3748:read:1c2d:16400:{number}", "ordinal": Number(str(number))}
        assert parse(line) == {**other, **unlike, **place}
        assert list(parse(line)) == list(other)


def test_no_rows_give_no_documents():
    assert len(read_documents(ORDERS, parse_rows(b"", 2), LSN, 0, "shop")) == 0
