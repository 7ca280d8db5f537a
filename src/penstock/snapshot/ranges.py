"""Cut tables into ranges of heap pages, and share ranges out to tasks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.source.heaps import HeapSize
    from penstock.table import TableName

# Small enough to be lost without regret and to keep all tasks busy to the end, large enough for the
# target to commit seldom.
RANGE_BYTES = 32 * 1024 * 1024

# Tables smaller than this are copied several to a task.
_TASK_BYTES = RANGE_BYTES
# What a range costs whatever its size: a scan, a COPY, a commit.
_RANGE_COST_BYTES = 256 * 1024


@dataclass(frozen=True)
class PageRange:
    """Some pages of one heap of one table; `end_page` None: up to the end, however far that is."""

    table: TableName
    number: int
    relation: TableName
    first_page: int
    end_page: int | None
    byte_count: int

    @property
    def pages(self) -> tuple[int, int | None]:
        """Where it begins and ends."""
        return self.first_page, self.end_page


def cut(
    table: TableName, heaps: Iterable[HeapSize], range_bytes: int = RANGE_BYTES
) -> list[PageRange]:
    """The ranges of a table. Every heap has at least one, and its last one is open-ended.

    By the size of its files, never by statistics, which a table may not have.
    """
    ranges: list[PageRange] = []
    for heap in heaps:
        step = max(1, range_bytes // heap.page_bytes)
        firsts = range(0, max(1, heap.page_count), step)
        for first in firsts:
            is_last = first + step >= heap.page_count
            pages = (heap.page_count if is_last else first + step) - first
            ranges.append(
                PageRange(
                    table,
                    len(ranges),
                    heap.relation,
                    first,
                    None if is_last else first + step,
                    pages * heap.page_bytes,
                )
            )
    return ranges


def share_out(ranges: Sequence[PageRange]) -> list[list[PageRange]]:
    """Ranges to tasks, in order: small ones together, large ones alone."""
    tasks: list[list[PageRange]] = []
    size = 0
    for each in ranges:
        cost = each.byte_count + _RANGE_COST_BYTES
        if not tasks or size + cost > _TASK_BYTES:
            tasks.append([])
            size = 0
        tasks[-1].append(each)
        size += cost
    return tasks
