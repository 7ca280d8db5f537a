"""Columns of text, made and joined by Arrow, all rows at once. Pure; knows no change and no table."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.pgoutput import EPOCH_2000_UNIX_MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.changes.cells import Index, Mask

# Arrow counts the bytes of a binary array in 31 bits, those of a large one in 63.
LARGEST_BYTES = 2**31 - 1

_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)

Part: TypeAlias = "bytes | pa.Array"
"""A piece of every row's text: the same in all of them, or a column."""


def raw_bytes(values: pa.Array) -> memoryview:
    """The bytes of all values of a binary array, one after another."""
    _, offsets, data = values.buffers()
    if data is None or len(values) == 0:
        return memoryview(b"")
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    places = np.frombuffer(offsets, width)[values.offset : values.offset + len(values) + 1]
    return memoryview(data)[int(places[0]) : int(places[-1])]


def join(parts: Sequence[Part], count: int, null: bytes = b"null") -> pa.Array:
    """Constants and columns, row by row; nulls become `null`. At least one part is a column."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    size = sum(
        len(part) * count
        if isinstance(part, bytes)
        else len(raw_bytes(part)) + len(null) * part.null_count
        for part in merged
    )
    kind = pa.binary() if size <= LARGEST_BYTES else pa.large_binary()
    return pc.binary_join_element_wise(
        *(pa.scalar(part, kind) if isinstance(part, bytes) else part.cast(kind) for part in merged),
        pa.scalar(b"", kind),
        null_handling="replace",
        null_replacement=null,
    )


def comma_list(items: Sequence[tuple[pa.Array, Mask]]) -> pa.Array:
    """Of each row the items whose mask holds, with commas between. At least one item."""
    kept = [pc.if_else(pa.array(mask), item, pa.scalar(None, item.type)) for item, mask in items]
    size = sum(len(raw_bytes(item)) + len(item) for item in kept)
    kind = pa.binary() if size <= LARGEST_BYTES else pa.large_binary()
    # The empty string in front: Arrow (26.0) drops rows whose every item is null. The comma after it
    # goes by a replacement: binary_slice without an end fails (apache/arrow#51222).
    listed = pc.binary_join_element_wise(
        pa.scalar(b"", kind),
        *(item.cast(kind) for item in kept),
        pa.scalar(b",", kind),
        null_handling="skip",
    )
    return pc.binary_replace_slice(listed, start=0, stop=1, replacement=b"")


def concatenate(texts: Sequence[pa.Array]) -> pa.Array:
    """The rows of all, one after another."""
    size = sum(len(raw_bytes(text)) for text in texts)
    kind = pa.binary() if size <= LARGEST_BYTES else pa.large_binary()
    return pa.concat_arrays([text.cast(kind) for text in texts])


def digits(numbers: Index) -> pa.Array:
    """Whole numbers, decimal."""
    return pa.array(numbers).cast(pa.string()).cast(pa.binary())


def utc_times(committed_at: Index) -> pa.Array:
    """Microseconds since 2000-01-01 as ISO 8601, UTC."""
    since_1970 = pa.array(committed_at + EPOCH_2000_UNIX_MICROSECONDS).view(pa.timestamp("us"))
    text = since_1970.cast(pa.string()).cast(pa.binary())
    text = pc.replace_substring(text, pattern=b" ", replacement=b"T", max_replacements=1)
    return join([text, b"+00:00"], len(text))


def lsn_texts(lsn: npt.NDArray[np.uint64]) -> pa.Array:
    """As Lsn prints them: two hexadecimal numbers around a slash, without leading zeros."""
    shifts = np.arange(60, -4, -4, dtype=np.uint64)
    nibbles = ((lsn[:, None] >> shifts) & np.uint64(15)).astype(np.intp)
    shown = np.ones((len(lsn), 17), np.bool_)
    text = np.full((len(lsn), 17), ord("/"), np.uint8)
    for begin, to in ((0, 0), (8, 9)):
        half = nibbles[:, begin : begin + 8]
        text[:, to : to + 8] = _HEX[half]
        # The last digit stands even when it is zero.
        shown[:, to : to + 7] = np.logical_or.accumulate(half[:, :7] != 0, axis=1)
    offsets = np.zeros(len(lsn) + 1, np.int32)
    np.cumsum(shown.sum(axis=1), out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(lsn), [None, pa.py_buffer(offsets), pa.py_buffer(text[shown])]
    )
