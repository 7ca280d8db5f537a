"""Bulk requests of a search sink: how writes are cut, and what an answer says."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from penstock.sinks.search.bulk import Writes


def writes_of(sizes: list[int]) -> Writes:
    texts = pa.array([b"x" * size for size in sizes], pa.binary())
    return Writes(texts, pa.array([str(number) for number in range(len(sizes))]))


@pytest.mark.parametrize("seed", range(5))
def test_requests_that_go_together_are_alike(seed: int) -> None:
    chosen = random.Random(seed)
    sizes = [chosen.randrange(50, 150) for _ in range(1000)]
    some = writes_of(sizes)
    for most_bytes in (1000, 7_777, 33_000, 60_000):
        for at_once in (1, 2, 3):
            parts = list(some.cut(most_bytes, at_once))
            found = [sum(map(len, part.texts.to_pylist())) for part in parts]
            assert max(found) <= most_bytes
            assert sum(found) == sum(sizes)
            if most_bytes > 5000:
                assert len(found) % at_once == 0
                assert max(found) - min(found) <= 150 * len(found)
            owners = [owner for part in parts for owner in part.owners.to_pylist()]
            assert owners == list(map(str, range(1000)))


def test_little_is_one_request_and_a_large_document_is_one_too() -> None:
    assert len(list(writes_of([10, 10]).cut(100, 4))) == 1
    parts = list(writes_of([10, 500, 10]).cut(100, 1))
    assert [len(part) for part in parts] == [1, 1, 1]
