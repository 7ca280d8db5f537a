"""A slice's messages as one run of bytes: where each begins and ends, and numbers at many places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.errors import DecodeError

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.changes.cells import Index

_LARGEST = 2**31 - 1


class Messages:
    """A slice's messages, and how to read numbers at many places at once."""

    def __init__(self, data: bytes, lengths: Index) -> None:
        if len(data) > _LARGEST:
            raise DecodeError(f"a slice of {len(data)} bytes, wanted at most {_LARGEST}")
        ends = np.cumsum(lengths, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        if total != len(data) or bool((lengths < 1).any()):
            raise DecodeError(f"messages of {total} bytes in a slice of {len(data)}")
        # A few zero bytes behind the end, so that a number read there stays inside the buffer; the
        # check against the message's end comes right after.
        self.raw = data + bytes(16)
        self.data = pa.py_buffer(
            self.raw
        )  # one object: columns are of one buffer if it is the same
        self.bytes = np.frombuffer(self.raw, np.uint8)
        self.starts = ends - lengths
        self.ends = ends
        self.kinds = self.bytes[self.starts]

    def _numbers(self, layout: str, width: int, places: Index) -> npt.NDArray[np.generic]:
        view: npt.NDArray[np.generic] = np.ndarray(
            (len(self.raw) - width + 1,), layout, self.raw, strides=(1,)
        )
        return view[places]

    def u16(self, places: Index) -> Index:
        return self._numbers(">u2", 2, places).astype(np.int64)

    def u32(self, places: Index) -> Index:
        return self._numbers(">u4", 4, places).astype(np.int64)

    def u64(self, places: Index) -> npt.NDArray[np.uint64]:
        return self._numbers(">u8", 8, places).astype(np.uint64)

    def i64(self, places: Index) -> Index:
        return self._numbers(">i8", 8, places).astype(np.int64)

    def one(self, index: int) -> bytes:
        return self.raw[self.starts[index] : self.ends[index]]

    def require(self, message: Index, smallest: int, name: str) -> None:
        if bool((self.ends[message] - self.starts[message] < smallest).any()):
            raise DecodeError(f"a {name} message is shorter than {smallest} bytes")
