"""The version of a document, from the position of its change: a whole number of 63 bits that only grows. Pure.

Commit records of Postgres begin at least 40 bytes after one another. So `commit_lsn` times 128 leaves 5,120 numbers for the
changes of a transaction: one for each of the first 4,096, and then one for each 1,048,576. What has the same number is
taken in the order in which it comes (`external_gte`). LSNs up to 64 PiB have a version.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import DestinationRefuses

_FACTOR = 128
_EXACT = 4096
_COARSE_BITS = 20
_LAST = 40 * _FACTOR - 1
_MOST_LSN = 2**56


def versions(commit_lsn: npt.NDArray[np.uint64], ordinal: npt.NDArray[np.int64]) -> Any:
    """The versions of changes.

    Raises:
        DestinationRefuses: a position is beyond what a version can say.
    """
    if len(commit_lsn) and int(commit_lsn.max()) >= _MOST_LSN:
        raise DestinationRefuses(
            "the source's position is beyond 64 PiB, which versions of documents cannot say",
            "search",
            "use another kind of sink for this source",
        )
    coarse = _EXACT + ((ordinal - _EXACT) >> _COARSE_BITS)
    level = np.where(ordinal < _EXACT, ordinal, np.minimum(coarse, _LAST))
    return commit_lsn.astype(np.int64) * _FACTOR + level


def is_coarse(ordinal: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which changes share their version with others of the transaction."""
    return np.greater_equal(ordinal, _EXACT)


def version(commit_lsn: int, ordinal: int) -> int:
    """The version of one change."""
    found = versions(np.array([commit_lsn], np.uint64), np.array([ordinal], np.int64))
    return int(found[0])
