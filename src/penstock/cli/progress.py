"""How far a copy is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.snapshot.round import RoundProgress

_log = logging.getLogger("penstock.copy")

_LINE_SECONDS = 5.0


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
            self._line_at = now + _LINE_SECONDS
        elif now >= self._line_at:
            self._line_at = now + _LINE_SECONDS
            _log.info("%s", line(rounds))

    def _show_bar(self, rounds: Sequence[RoundProgress]) -> None:
        if not rounds:
            self.close()
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn("copying {task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("")
        assert self._task is not None
        self._bar.update(
            self._task,
            description=_counts(rounds),
            total=sum(each.bytes_total for each in rounds) or None,
            completed=sum(each.bytes_done for each in rounds),
        )

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None


def line(rounds: Sequence[RoundProgress]) -> str:
    """The same as a sentence."""
    done = sum(each.bytes_done for each in rounds)
    total = sum(each.bytes_total for each in rounds)
    seconds = max(each.seconds for each in rounds)
    rate = done / seconds if seconds else 0.0
    left = f", about {(total - done) / rate:.0f} s left" if rate else ""
    share = f"{100 * done / total:.0f}%" if total else "0%"
    return (
        f"copying {_counts(rounds)}: {share} of {total / 1e6:.1f} MB, {rate / 1e6:.1f} MB/s{left}"
    )


def _counts(rounds: Sequence[RoundProgress]) -> str:
    tables = sum(each.table_count for each in rounds)
    ended = sum(each.tables_done + each.tables_failed for each in rounds)
    return f"{ended}/{tables} tables, {sum(each.row_count for each in rounds):,} rows"
