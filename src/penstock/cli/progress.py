"""How far a copy is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.snapshot.round import RoundProgress

_log = logging.getLogger("penstock.copy")


@dataclass(frozen=True)
class Stage:
    """What is being done, how much of it is, and of how much."""

    doing: str
    done: int
    total: int
    detail: str

    def __str__(self) -> str:
        return f"{self.doing}: {self.detail}"


class CopyProgress:
    """Called again and again with the rounds under way."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._is_terminal = sys.stderr.isatty()
        self._line_at = 0.0

    def __call__(self, rounds: Sequence[RoundProgress]) -> None:
        """Show how far they are."""
        if self._is_terminal:
            self._show_bar(rounds)
            return
        now = time.monotonic()
        if not rounds:
            self._line_at = now + timing().progress_line_seconds
        elif now >= self._line_at:
            self._line_at = now + timing().progress_line_seconds
            _log.info("%s", stage_of(rounds))

    def _show_bar(self, rounds: Sequence[RoundProgress]) -> None:
        if not rounds:
            self.close()
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[detail]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", detail="")
        assert self._task is not None
        stage = stage_of(rounds)
        self._bar.update(
            self._task,
            description=stage.doing,
            total=stage.total or None,
            completed=stage.done,
            detail=stage.detail,
        )

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None


def stage_of(rounds: Sequence[RoundProgress]) -> Stage:
    """How far they are together: tables are created, rows come, keys and indexes are made."""
    tables = sum(each.table_count for each in rounds)
    if not tables:
        made = sum(each.keys_made for each in rounds)
        due = sum(each.keys_due for each in rounds)
        return Stage("making foreign keys", made, due, f"of {made:,} of {due:,} tables")
    if not any(each.is_prepared for each in rounds):
        begun = sum(each.tables_begun for each in rounds)
        return Stage("making room", begun, tables, f"for {begun:,} of {tables:,} tables")
    return _copying(rounds, tables)


def _copying(rounds: Sequence[RoundProgress], tables: int) -> Stage:
    """How many of the bytes are there; of the tables, once all are."""
    ended = sum(each.tables_done + each.tables_failed for each in rounds)
    done = sum(each.bytes_done for each in rounds)
    total = sum(each.bytes_total for each in rounds)
    doing = f"copying {ended:,}/{tables:,} tables, {sum(each.row_count for each in rounds):,} rows"
    if done == total:
        left = f"all {total / 1e6:.1f} MB are there, making keys and indexes"
        return Stage(doing, ended, tables, left)
    rate = done / max(0.001, *(each.transfer_seconds for each in rounds))
    # Of a few rows nobody can tell: a small table that is there first made it days.
    left = f", about {(total - done) / rate:.0f} s left" if done * 100 >= total else ""
    summary = f"{100 * done / total:.0f}% of {total / 1e6:.1f} MB, {rate / 1e6:.1f} MB/s{left}"
    return Stage(doing, done, total, summary)
