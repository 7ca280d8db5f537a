"""Draws: what a transformer chooses by. Out of a value and the salt, so that equal values get equal results.

Nobody without the salt can tell which value a draw is of, nor test a guess: they are AES-CMAC under a key made from
the salt and the transformer's name. With `generator: random` the row's position and key go in too; even then a
batch that is repeated gives the same again.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.modifiers.transform.cmac import Tags, cmac, digested, encrypt

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.secret import Secret

Numbers = npt.NDArray[np.uint64]


def key_of(salt: Secret, purpose: str) -> bytes:
    """A key for one purpose: draws of two transformers have nothing in common."""
    return hmac.digest(salt.reveal().encode(), b"penstock transform " + purpose.encode(), "sha256")[
        :16
    ]


def tags_of(salt: Secret, purpose: str, values: pa.Array) -> Tags:
    """128 bits of each value; binary, no nulls."""
    short, was_long = digested(values)
    tags = cmac(key_of(salt, purpose), short)
    if bool(was_long.any()):
        # A digest is under a key of its own: no value can be chosen to collide with another's.
        long = np.flatnonzero(was_long)
        tags[long] = cmac(key_of(salt, purpose + " digest"), short.take(long))
    return tags


@dataclass(frozen=True)
class Draws:
    """For each row as many bits as are wanted."""

    tags: Tags
    key: bytes

    @classmethod
    def of(cls, salt: Secret, purpose: str, values: pa.Array, stamps: pa.Array | None) -> Draws:
        """Draws by value, or with `stamps`, which differ between rows, by both."""
        tags = tags_of(salt, purpose, values)
        if stamps is not None:
            key = key_of(salt, purpose + " random")
            tags = encrypt(key, tags ^ tags_of(salt, purpose + " stamp", stamps))
        return cls(tags, key_of(salt, purpose + " more"))

    def __len__(self) -> int:
        return len(self.tags)

    def below(self, count: int | Numbers, number: int = 0) -> npt.NDArray[np.int64]:
        """The `number`-th whole number of each row, from 0 to `count` (at most 2^32) exclusive."""
        bits = self._word(number) >> np.uint64(32)
        return ((bits * np.asarray(count, np.uint64)) >> np.uint64(32)).astype(np.int64)

    def between(self, least: int, most: int) -> npt.NDArray[np.int64]:
        """A whole number of each row, both ends included, of 64 bits."""
        span = most - least + 1
        bits = self._word(0)
        if span < 1 << 64:
            bits = bits % np.uint64(span)
        return bits.view(np.int64) + np.int64(least) if span < 1 << 63 else _shifted(bits, least)

    def fraction(self) -> npt.NDArray[np.float64]:
        """A number of each row from 0 to 1, exclusive."""
        return (self._word(0) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def bytes_of(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """`counts` bytes of each row, one row after another."""
        blocks = (counts + 15) // 16
        first = np.cumsum(blocks) - blocks
        of_row = np.repeat(np.arange(len(counts)), blocks)
        number = np.arange(len(of_row)) - first[of_row]
        counters = self.tags[of_row].copy()
        counters[:, 0] ^= number.astype(np.uint64)
        drawn: npt.NDArray[np.uint8] = encrypt(self.key, counters).view(np.uint8).reshape(-1)
        left = np.repeat(counts, blocks) - 16 * number
        picked: npt.NDArray[np.uint8] = drawn[(np.arange(16) < left[:, None]).reshape(-1)]
        return picked

    def matrix(self, width: int) -> npt.NDArray[np.uint8]:
        """`width` bytes of each row, at least one."""
        blocks = [
            encrypt(self.key, self.tags ^ np.array([number, 0], np.uint64)).view(np.uint8)
            for number in range((width + 15) // 16)
        ]
        return np.concatenate(blocks, axis=1)[:, :width]

    def _word(self, number: int) -> Numbers:
        if number < 2:
            return self.tags[:, number]
        more = encrypt(self.key, self.tags ^ np.array([number, 1], np.uint64))
        return np.ascontiguousarray(more[:, 0])


def _shifted(bits: Numbers, least: int) -> npt.NDArray[np.int64]:
    """`least` plus numbers that may not fit 63 bits: the sum wraps around to what is meant."""
    return (bits + np.uint64(least % (1 << 64))).view(np.int64)
