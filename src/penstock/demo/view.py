"""What a person sees of the demo: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.demo.shop import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType

    from penstock.demo.proof import Comparison, Content

_PLAIN_LINE_SECONDS = 2.0
_WIDTHS = (11, 9, 9, 13, 9, 11, 8)


@dataclass(frozen=True)
class Picture:
    """Both sides at one moment."""

    phase: str
    source_rows: Mapping[str, int]
    target_rows: Mapping[str, int]  # empty before anything has arrived
    written_count: int
    delivered_count: int
    lag_seconds: float | None
    polls: tuple[int, int] | None = None  # of the target, and how many saw half a transaction


class View:
    """Writes to stdout; moves things only where they can be moved."""

    def __init__(self, console: Console | None = None, target: str = "target") -> None:
        self._target = target
        self._console = console or Console(highlight=False)
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._tick = "✓" if self._console.encoding.lower().startswith("utf") else "ok"
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def say(self, text: str = "", style: str = "") -> None:
        """Lines as they are: a terminal wraps what is too long, a file does not want it wrapped."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def done(self, text: str) -> None:
        """Something that was done, or that was found to hold."""
        self._console.print(Text.assemble((self._tick, "bold green"), " ", text), soft_wrap=True)

    @contextmanager
    def during(self, text: str) -> Iterator[None]:
        """Something that takes a moment."""
        if not self._is_live:
            yield
            return
        with self._console.status(Text(text, style="dim"), spinner="line"):
            yield

    def show(self, pictures: Iterator[Picture]) -> None:
        """Show each picture as it comes; the last one stays. On paper, only some, and the last."""
        if self._is_live:
            with Live(console=self._console, auto_refresh=False) as live:
                for picture in pictures:
                    live.update(_drawn(picture, self._target), refresh=True)
        else:
            self._list(pictures)

    def _list(self, pictures: Iterator[Picture]) -> None:
        self.say(f"  rows at source/{self._target}, and changes")
        self.say(_line("", *TABLES, "written", "delivered", "lag"))
        phase, line, line_due = "", "", 0.0
        for picture in pictures:
            if picture.phase != phase:
                phase, line_due = picture.phase, 0.0
                self.say(f"  {phase}")
            line = _numbers(picture, self.seconds)
            if self.seconds >= line_due:
                self.say(line)
                line, line_due = "", self.seconds + _PLAIN_LINE_SECONDS
        if line:
            self.say(line)

    def show_proof(self, compared: list[Comparison]) -> None:
        """Both sides of every table, side by side."""
        table = _table("rows and checksum", "source", self._target)
        table.add_column()
        for each in compared:
            equal = Text("equal", "green") if each.is_equal else Text("DIFFERENT", "bold red")
            table.add_row(f"  {each.table}", _content(each.source), _content(each.target), equal)
        self._console.print(table)


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(f"  {first}", no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _drawn(picture: Picture, target: str) -> RenderableType:
    table = _table("rows", "source", target)
    for name in TABLES:
        here, there = picture.source_rows.get(name), picture.target_rows.get(name)
        style = "green" if here == there else "yellow"
        table.add_row(f"  {name}", _count(here), Text(_count(there), style))
    lines: list[RenderableType] = [
        Text(f"  {picture.phase}", "bold"),
        table,
        Text(),
        Text(
            f"  {picture.written_count:,} changes written, {picture.delivered_count:,} delivered,"
            f" lag {_lag(picture)}"
        ),
    ]
    if picture.polls is not None:
        poll_count, torn_count = picture.polls
        said = f"  {poll_count:,} polls of the target, {torn_count:,} saw half a transaction"
        lines.append(Text(said, "bold red" if torn_count else ""))
    return Group(*lines)


def _numbers(picture: Picture, seconds: float) -> str:
    rows = [
        f"{_count(picture.source_rows.get(name))}/{_count(picture.target_rows.get(name))}"
        for name in TABLES
    ]
    counts = f"{picture.written_count:,}", f"{picture.delivered_count:,}"
    return _line(f"{seconds:.1f} s", *rows, *counts, _lag(picture))


def _line(first: str, *others: str) -> str:
    return f"  {first:>6} " + "".join(
        f"{word:>{width}}" for word, width in zip(others, _WIDTHS, strict=True)
    )


def _lag(picture: Picture) -> str:
    return "-" if picture.lag_seconds is None else f"{picture.lag_seconds:.2f} s"


def _content(content: Content) -> str:
    return f"{content.row_count:,}  {content.checksum}"


def _count(rows: int | None) -> str:
    return "-" if rows is None else f"{rows:,}"
