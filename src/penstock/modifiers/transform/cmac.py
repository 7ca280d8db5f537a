"""AES-CMAC (RFC 4493) of many values at once: the keyed hash behind every deterministic transformer.

AES is the library's; what is done here is only to lay the n-th blocks of all values side by side, so that one
call encrypts them all. A call for each value (hashlib, hmac) takes a microsecond or more, this a tenth.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import CryptoMissing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

Tags = npt.NDArray[np.uint64]
"""Of each value 128 bits, as two numbers."""

_BLOCK = 16
# Longer values are digested first: the rounds of one long value cannot be shared with others.
LONGEST = 16 * _BLOCK
_ROWS = 1 << 16  # at once: what fits a core's cache

# Row n keeps the first n bytes of a block, as two numbers; and puts 0x80 behind them.
_KEEP = np.where(np.arange(_BLOCK) < np.arange(_BLOCK + 1)[:, None], 0xFF, 0).astype(np.uint8)
_PAD = np.where(np.arange(_BLOCK) == np.arange(_BLOCK + 1)[:, None], 0x80, 0).astype(np.uint8)
_KEEP64, _PAD64 = _KEEP.view(np.uint64), _PAD.view(np.uint64)


@functools.lru_cache(maxsize=64)
def _cipher(key: bytes) -> CipherContext:
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError:
        raise CryptoMissing(
            "transformers that draw values need the package cryptography, which is not installed",
            "modifiers",
            "pip install 'penstock[crypto]', also where Spark's executors run",
        ) from None
    # Block by block is what CMAC and the counter below are made of; nothing is encrypted in this mode.
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305


def encrypt(key: bytes, blocks: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Each block of 128 bits through AES; of the same shape."""
    if blocks.size == 0:
        return blocks
    done = _cipher(key).update(np.ascontiguousarray(blocks).data.cast("B"))
    return np.frombuffer(done, np.uint64).reshape(blocks.shape)


def cmac(key: bytes, values: pa.Array) -> Tags:
    """The tags of binary values, none of which is null, each at most LONGEST bytes long."""
    starts, lengths, data = _places(values)
    # Reading a whole block may go beyond the last value.
    padded = np.concatenate((data, np.zeros(LONGEST, np.uint8)))
    tags = np.empty((len(values), 2), np.uint64)
    depth = np.maximum((lengths + _BLOCK - 1) // _BLOCK, 1)
    for count in np.unique(depth).tolist():
        rows = np.flatnonzero(depth == count)
        for begin in range(0, len(rows), _ROWS):
            some = rows[begin : begin + _ROWS]
            tags[some] = _tags_of(key, padded, starts[some], lengths[some], count)
    return tags


def _tags_of(
    key: bytes,
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    count: int,
) -> Tags:
    """The tags of values that are all `count` blocks long."""
    width = count * _BLOCK
    windows = np.ndarray((len(data) - width + 1,), f"V{width}", data.data, strides=(1,))
    blocks = windows[starts].view(np.uint64).reshape(len(starts), count, 2)
    filled = lengths - (width - _BLOCK)
    last = (blocks[:, -1] & _KEEP64[filled]) ^ _PAD64[filled]
    whole, part = _subkeys(key)
    last ^= np.where((filled == _BLOCK)[:, None], whole, part)
    state = np.zeros((len(starts), 2), np.uint64)
    for number in range(count - 1):
        state = encrypt(key, state ^ blocks[:, number])
    return encrypt(key, state ^ last)


@functools.lru_cache(maxsize=64)
def _subkeys(key: bytes) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    first = _doubled(encrypt(key, np.zeros(2, np.uint64)).tobytes())
    second = _doubled(first)
    return np.frombuffer(first, np.uint64), np.frombuffer(second, np.uint64)


def _doubled(block: bytes) -> bytes:
    """Times x in GF(2^128)."""
    number = int.from_bytes(block, "big") << 1
    if number >> 128:
        number ^= (1 << 128) | 0x87
    return number.to_bytes(_BLOCK, "big")


def digested(values: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """The values, those above LONGEST as their SHA-256, and which these are."""
    _, lengths, _ = _places(values)
    long = lengths > LONGEST
    if not bool(long.any()):
        return values, long
    # One call for each of the long ones: they are few, or their bytes take longer than the call.
    digests = [
        hashlib.sha256(one.as_buffer()).digest()
        for one in values.filter(pa.array(long)).cast(pa.binary())
    ]
    order = np.where(long, np.cumsum(long) - 1 + len(values), np.arange(len(values)))
    short = pa.array(np.where(long, -1, np.arange(len(values))), mask=long)
    both = pa.concat_arrays([values.take(short), pa.array(digests, pa.binary())])
    return both.take(pa.array(order)), long


def _places(
    values: pa.Array,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    _, offsets, data = values.buffers()
    if len(values) == 0 or data is None:
        nowhere = np.zeros(len(values), np.int64)
        return nowhere, nowhere, np.zeros(0, np.uint8)
    places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    begin, end = int(places[0]), int(places[-1])
    starts = places.astype(np.int64) - begin
    return starts[:-1], np.diff(starts), np.frombuffer(data, np.uint8)[begin:end]
