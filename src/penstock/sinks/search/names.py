"""What things are called at a search server: indexes, fields, documents. Pure.

alias       what people search: `index:` of the sink, filled in
            Without {table} in it that is an alias of all tables of a schema, and `<it>.<table>` that of each.
            What would be too long for the server ends in a digest.
index       `<alias>.<generation>`: another one for each copy of the table; of a long alias its beginning and a digest
field       the column's name; `.` and a leading `_` are escaped by `%` and two digits, which means something else there
_id         the values of the key, with commas between; in each `\\` and `,` behind a backslash where there are several
            Above 512 bytes, where it is empty, or looks like one: `sha256:` and the digest.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.textcolumns import join

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.table import TableName

MOST_ID_BYTES = 512
# Of the name of an index, or alias, at a server; and of what stands before a point and the id of a copy.
_MOST_BYTES = 255
_MOST_STEM = 215
POSITION = "_position"
ORDINAL = "_ordinal"
TABLE = "_table"
UNCHANGED = "_unchanged"
MOVED = "_moved"

_FIELD = re.compile(r"\{([^{}]*)\}")
_PLAIN = re.compile(r"[a-z0-9_]*", re.ASCII)
_HASHED = b"sha256:"


@dataclass(frozen=True)
class Names:
    """The aliases of one sink's tables."""

    pattern: str
    pipeline: str
    source: str

    def alias(self, table: TableName) -> str:
        """What the documents of a table are searched as."""
        values = {
            "schema": table.schema,
            "table": table.name,
            "pipeline": self.pipeline,
            "source": self.source,
        }
        pattern = f"{self.pattern}.{{table}}" if is_shared(self.pattern) else self.pattern
        name = _FIELD.sub(lambda field: _escaped(values[field[1]]), pattern)
        # A field may bring what no index begins with; nothing else has a point there.
        name = name if name[0] not in "-_" else f"0.{name}"
        if not is_shared(self.pattern) or len(name) <= _MOST_BYTES:
            return _fitted(name, _MOST_BYTES)
        # All tables of the schema have the same first part. None could be longer than what is kept as it is.
        schema, _, own = name.rpartition(".")
        if len(schema) > _MOST_BYTES - 2:
            schema = _fitted(schema, _MOST_STEM)
        return f"{schema}.{_fitted(own, _MOST_BYTES - 1 - len(schema))}"


def is_shared(pattern: str) -> bool:
    """Whether all tables of a schema are searched as one."""
    return "{table}" not in pattern


def aliases_of(alias: str, pattern: str) -> tuple[str, ...]:
    """What an index is found under: the alias of its table, and that of all tables of the schema."""
    # What stands for a table has no point in it.
    return (alias, alias.rpartition(".")[0]) if is_shared(pattern) else (alias,)


def index_of(alias: str, generation: str) -> str:
    """The index of one generation."""
    return f"{stem_of(alias)}.{generation}"


def stem_of(alias: str) -> str:
    """What the names of all indexes begin with that are made for an alias."""
    return _fitted(alias, _MOST_STEM)


def _fitted(name: str, most_bytes: int) -> str:
    """A name that is too long with its end replaced by a digest of all of it."""
    if len(name) <= most_bytes:
        return name
    end = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: most_bytes - 17]}-{end}"


def _escaped(name: str) -> str:
    """In which only small letters, digits, `_` and `-XX` stand: a byte in hexadecimal."""
    if _PLAIN.fullmatch(name):
        return name
    return "".join(
        chr(byte) if _PLAIN.fullmatch(chr(byte)) else f"-{byte:02x}"
        for byte in name.encode(errors="surrogateescape")
    )


def field_name(column: str) -> str:
    """The field of a column, by its name."""
    name = column.replace("%", "%25").replace(".", "%2e")
    return f"%5f{name[1:]}" if name.startswith("_") else name


def document_ids(values: Sequence[pa.Array]) -> pa.Array:
    """What identifies documents, by the columns of the key: binary arrays of text."""
    if len(values) == 1:
        ids = values[0]
    else:
        parts: list[bytes | pa.Array] = []
        for column in values:
            parts += [b"," if parts else b"", _behind_backslashes(column)]
        ids = join(parts, len(values[0]))
    size = pc.binary_length(ids)
    is_unfit = pc.or_(pc.greater(size, MOST_ID_BYTES), pc.equal(size, 0))
    is_special = pc.or_(is_unfit, pc.starts_with(ids, pattern=_HASHED))
    if not pc.any(is_special).as_py():
        return ids.cast(pa.large_binary())
    return pa.array(
        [
            digest(each) if special else each
            for each, special in zip(ids.to_pylist(), is_special.to_pylist(), strict=True)
        ],
        pa.large_binary(),
    )


def digest(identity: bytes) -> bytes:
    """What stands for an id that no document can have."""
    return _HASHED + hashlib.sha256(identity).hexdigest().encode()


def _behind_backslashes(column: pa.Array) -> pa.Array:
    escaped = pc.replace_substring(column, pattern=b"\\", replacement=b"\\\\")
    return pc.replace_substring(escaped, pattern=b",", replacement=b"\\,")
