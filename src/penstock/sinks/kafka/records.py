"""Documents -> what `produce` takes: topic, value, key and headers, by columns. Pure; knows no broker.

A record's key is, by `key:`,

    schema        `<schema>`
    table         `<schema>.<table>`
    primary_key   `<schema>.<table>:<value>,<value>`; of a table without a key, `<schema>.<table>`

and of a change of a table's shape always `<schema>`. In names `\\`, `.` and `:` stand behind a backslash, in
values `\\` and `,`.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.textcolumns import lsn_texts
from penstock.sinks.documents.patterns import Pattern, TablesOfBatch, sizes_of
from penstock.sinks.kafka.options import RecordKey

if TYPE_CHECKING:
    from collections.abc import Iterator

Header = tuple[str, str | bytes]
# With the number of its table, by which a record without a key gets a partition.
Row = tuple[str, bytes | None, str | bytes | None, list[Header], int]

_DELETE: Header = ("op", "delete")

# Of one to four columns whose values need no escape; the rest is done row by row.
_NAME = r'"(?:[^"\\]|\\.)*"'
_VALUE = r'"?([^"\\,{}\[\]]*)"?'
_SIMPLE_KEYS = [
    (
        r"^\{" + ",".join([f"{_NAME}:{_VALUE}"] * count) + r"\}$",
        ",".join(f"\\{number}" for number in range(1, count + 1)),
    )
    for count in (1, 2, 3, 4)
]

# What a record weighs beside its key and its value: framing, and headers whose size hardly varies.
RECORD_OVERHEAD_BYTES = 256


@dataclass(frozen=True)
class Layout:
    """How documents of one sink become records."""

    topics: Pattern
    key: RecordKey
    content_type: str
    tombstones: bool

    def rows(self, batch: pa.RecordBatch, tables: TablesOfBatch) -> Iterator[Row]:
        """The records of a batch, in its order; behind a delete its tombstone, where they are wanted."""
        heads, numbers = self._heads(batch)
        keys: list[Any] = (
            batch.column("record_key").to_pylist()
            if "record_key" in batch.schema.names
            else record_keys(batch, tables, self.key)
        )
        columns = zip(
            tables.each(self.topics.of),
            batch.column("value").cast(pa.large_binary()).to_pylist(),
            keys,
            batch.column("id").to_pylist(),
            numbers,
            # Kafka would scatter those without a key over all partitions.
            tables.each(_table_number) if None in keys else [0] * len(keys),
            batch.column("key").is_valid().to_pylist() if self.tombstones else [False] * len(keys),
            strict=True,
        )
        # One after another: headers of a whole batch at once are work for the garbage collector.
        for topic, value, key, one, number, table_number, is_of_row in columns:
            head = heads[number]
            headers: list[Header] = [("id", one), *head]
            yield topic, value, key, headers, table_number
            # A key that is the table's alone would be forgotten with all its rows.
            if self.tombstones and head[0] == _DELETE and is_of_row and key is not None:
                yield topic, None, key, headers, table_number

    def _heads(self, batch: pa.RecordBatch) -> tuple[list[tuple[Header, ...]], list[int]]:
        """Headers that many records have in common, all but the id; and for each record which."""
        ops = batch.column("op").dictionary_encode()
        lsns, of_lsn = np.unique(batch.column("commit_lsn").to_numpy(), return_inverse=True)
        pairs = of_lsn * len(ops.dictionary) + ops.indices.to_numpy()
        distinct, numbers = np.unique(pairs, return_inverse=True)
        texts, names = lsn_texts(lsns).to_pylist(), ops.dictionary.to_pylist()
        rest = (("source", self.topics.source), ("content-type", self.content_type))
        heads: list[tuple[Header, ...]] = [
            (("op", names[op]), ("commit_lsn", texts[lsn]), *rest)
            for lsn, op in (divmod(pair, len(names)) for pair in distinct.tolist())
        ]
        return heads, numbers.tolist()

    def sizes(self, batch: pa.RecordBatch) -> Any:
        """About how many bytes each record has, never fewer than it will."""
        key = 2 * sizes_of(batch.column("key"))
        if "record_key" in batch.schema.names:
            key = sizes_of(batch.column("record_key"))
        names = sizes_of(batch.column("schema")) + sizes_of(batch.column("table"))
        return sizes_of(batch.column("value")) + key + 2 * names + RECORD_OVERHEAD_BYTES


def _table_number(schema: str, table: str) -> int:
    """The same for a table in every process."""
    return zlib.crc32(f"{schema}\0{table}".encode())


def record_keys(batch: pa.RecordBatch, tables: TablesOfBatch, key: RecordKey) -> list[str]:
    """The key of each record."""
    if key is RecordKey.SCHEMA:
        return tables.each(lambda schema, _table: schema)
    names = tables.each(lambda schema, table: f"{_escaped_name(schema)}.{_escaped_name(table)}")
    if key is RecordKey.PRIMARY_KEY:
        values = _key_values(batch.column("key"))
        names = [
            name if value is None else f"{name}:{value}"
            for name, value in zip(names, values, strict=True)
        ]
    changes = np.flatnonzero(pc.equal(batch.column("op"), "schema").to_numpy(zero_copy_only=False))
    for place in changes.tolist():
        names[place] = tables.names[tables.numbers[place]][0]
    return names


def _key_values(keys: pa.Array) -> list[str | None]:
    """The values of key objects, with commas between."""
    if (numbers := _single_numbers(keys)) is not None:
        return numbers
    done = keys
    for pattern, replacement in _SIMPLE_KEYS:
        done = pc.replace_substring_regex(done, pattern=pattern, replacement=replacement)
        left = pc.starts_with(done, "{")
        if not pc.any(left).as_py():
            return done.to_pylist()  # type: ignore[no-any-return]
    return [
        _joined_values(each) if each is not None and each.startswith("{") else each
        for each in done.to_pylist()
    ]


def _single_numbers(keys: pa.Array) -> list[str | None] | None:
    """The same where all are of one column that holds numbers, as most are; None where they are not."""
    first = next((each for each in keys[:1].to_pylist() if each is not None), "")
    name, colon, _ = first.partition('":')
    prefix = name + colon
    if not colon or not pc.all(pc.starts_with(keys, prefix)).as_py():
        return None
    values = pc.utf8_slice_codeunits(keys, len(prefix), -1)
    if not pc.all(pc.utf8_is_digit(values)).as_py():
        return None
    return values.to_pylist()  # type: ignore[no-any-return]


def _joined_values(key: str) -> str:
    digits = json.loads(key, parse_int=str, parse_float=str)
    values = json.loads(
        key, parse_int=_int_or_text
    )  # of json itself: nobody has kept its digits before
    texts = (
        digits[name] if isinstance(digits[name], str) else json.dumps(value, separators=(",", ":"))
        for name, value in values.items()
    )
    joined = ",".join(text.replace("\\", "\\\\").replace(",", "\\,") for text in texts)
    # Bytes that are not UTF-8 are lone surrogates in a document; see jsonvalues.
    return joined.encode(errors="backslashreplace").decode()


def _int_or_text(digits: str) -> int | str:
    # Python takes no more digits for an int, by default.
    return int(digits) if len(digits) < 4000 else digits


def _escaped_name(name: str) -> str:
    for special in ("\\", ".", ":"):
        name = name.replace(special, f"\\{special}")
    return name
