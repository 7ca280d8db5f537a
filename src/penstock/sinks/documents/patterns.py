"""Names of places at a destination, made from the names of tables: `shop.{schema}.{table}`.

A destination takes few characters in such names, a Postgres identifier nearly all. What it does not take is escaped,
so that two tables never share a place that the pattern keeps apart. Knows no destination.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

FIELDS = ("schema", "table", "pipeline", "source")

_FIELD = re.compile(r"\{([^{}]*)\}")
_PLAIN = re.compile(r"[A-Za-z0-9_]*", re.ASCII)
_TOPIC = re.compile(r"[A-Za-z0-9._-]", re.ASCII)


def escaped(name: str) -> str:
    """A name in which only letters, digits, `_` and `-XX` stand: a byte in hexadecimal."""
    if _PLAIN.fullmatch(name):
        return name
    return "".join(
        chr(byte) if _PLAIN.fullmatch(chr(byte)) else f"-{byte:02x}"
        for byte in name.encode(errors="surrogateescape")
    )


def problem_of(pattern: str, literal: str) -> str | None:
    """What is wrong with a pattern, or None; `literal` is what may stand around its fields, a regex."""
    unknown = [each for each in _FIELD.findall(pattern) if each not in FIELDS]
    if unknown:
        return f"has {{{unknown[0]}}}, wanted {', '.join(f'{{{each}}}' for each in FIELDS)}"
    around = _FIELD.sub("", pattern)
    if not pattern or not re.fullmatch(literal, around):
        return f"{pattern!r} holds characters that no name may have there"
    return None


def replaced(name: str) -> str:
    """A name as Debezium spells it in a topic's: each character that no topic may have becomes `_`."""
    units = (len(each.encode("utf-16-le", "surrogatepass")) // 2 for each in name)
    return "".join(
        each if _TOPIC.fullmatch(each) else "_" * count
        for each, count in zip(name, units, strict=True)
    )


@dataclass(frozen=True)
class Pattern:
    """Says where documents of a table go."""

    text: str
    pipeline: str
    source: str
    spelled: Callable[[str], str] = escaped

    @property
    def fields(self) -> set[str]:
        """The fields that it has."""
        return set(_FIELD.findall(self.text))

    def of(self, schema: str, table: str) -> str:
        """The place of a table."""
        values = {
            "schema": schema,
            "table": table,
            "pipeline": self.pipeline,
            "source": self.source,
        }
        return _FIELD.sub(lambda field: self.spelled(values[field[1]]), self.text)


@dataclass(frozen=True)
class TablesOfBatch:
    """Which table each document of a batch belongs to: distinct names, and a number for each row."""

    names: list[tuple[str, str]]
    numbers: Any  # int32 of numpy

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> TablesOfBatch:
        """By the columns `schema` and `table`."""
        schemas = batch.column("schema").dictionary_encode()
        tables = batch.column("table").dictionary_encode()
        count = max(1, len(tables.dictionary))
        pairs = schemas.indices.to_numpy().astype(np.int64) * count + tables.indices.to_numpy()
        distinct, numbers = np.unique(pairs, return_inverse=True)
        names = [
            (
                schemas.dictionary[int(one) // count].as_py(),
                tables.dictionary[int(one) % count].as_py(),
            )
            for one in distinct
        ]
        return cls(names, numbers)

    def each(self, of: Callable[[str, str], Any]) -> list[Any]:
        """Something of its table for each row; asked once for a table."""
        made = [of(*name) for name in self.names]
        if len(made) == 1:
            return made * len(self.numbers)
        return [made[number] for number in self.numbers.tolist()]

    def rows(self, number: int) -> pa.Array:
        """Which rows are of a table, as a mask."""
        return pa.array(self.numbers == number)


def sizes_of(column: pa.Array) -> Any:
    """How many bytes each text of a column has; 0 where there is none."""
    return pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
