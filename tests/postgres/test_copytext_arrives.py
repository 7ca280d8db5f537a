"""Values written as COPY text arrive in a real Postgres as they left."""

from __future__ import annotations

import itertools

import pyarrow as pa

from fix_postgres import only_new
from penstock.sinks.postgres.merge.copy_text import copy_text

pytestmark = only_new

NASTY = [
    *("", " ", "\\", "\\\\", "\t", "\n", "\r", "\r\n", "\\N", "\\.", ".", "NULL", "\\t", "\\x41"),
    *("\\N\n", "\n\\.\n", "a\tb", "\\\t", "\t\\", "\b\f\v", "\x01\x1f\x7f", '"', "'", ","),
    *("żółć", "日本語", "🙂", "\u2028", "\ufeff", "x" * (1 << 20), "\\\n\t" * (1 << 18)),
    None,
]


def test_nasty_values_arrive_as_they_left(target):
    rows = [
        *((a, b) for a, b in itertools.product(NASTY[:25], NASTY[:25])),
        *((one, one) for one in NASTY),
    ]
    columns = [
        [None if v is None else v.encode() for v in column] for column in zip(*rows, strict=True)
    ]
    numbers = [str(number).encode() for number in range(len(rows))]
    text = copy_text([pa.array(one, pa.binary()) for one in (numbers, *columns)])

    target.execute("CREATE TABLE t (n int, a text, b text)")
    with target.connect() as connection, connection.cursor() as cursor:
        with cursor.copy("COPY t FROM STDIN") as copy:
            copy.write(text)
        found = cursor.execute("SELECT a, b FROM t ORDER BY n").fetchall()

    assert found == rows
