"""penstock status: where every table and every sink stands."""

from __future__ import annotations

import io
import json
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.options import AsJson, PipelinePath
from penstock.config import read_pipeline
from penstock.run.status import PipelineStatus, SourceStatus, read_status
from penstock.sinks.status import SinkStatus, SubscriptionStatus, TableStatus
from penstock.text import counted, printable, printable_lines, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

_PIPED_WIDTH = 10_000

_COLOURS = {
    "streaming": "green",
    "failed": "red",
    "stopped": "yellow",
    "catching_up": "cyan",
    "copying": "blue",
    "pending": "dim",
    "removed": "dim",
}


def status(
    path: PipelinePath,
    as_json: AsJson = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", envvar="PENSTOCK_WATCH", help="Show again every second, until Ctrl-C."
        ),
    ] = False,
) -> None:
    """Show positions, lag, retained WAL, and each table's state and last error."""
    pipeline = read_pipeline(path)
    if as_json:
        while True:
            typer.echo(json.dumps(read_status(pipeline).as_dict()))
            if not watch:
                return
            time.sleep(1.0)
    if not watch:
        print_rendered(render(read_status(pipeline)))
        return
    with Live(render(read_status(pipeline)), console=Console(), auto_refresh=False) as live:
        while True:
            time.sleep(1.0)
            live.update(render(read_status(pipeline)), refresh=True)


def print_rendered(rendered: RenderableType) -> None:
    """To a terminal as wide as that is; elsewhere as text."""
    console = Console()
    if console.is_terminal:
        console.print(rendered)
    else:
        typer.echo(as_text(rendered))


def as_text(rendered: RenderableType) -> str:
    """What is piped to a program or a file: no name is cut, no line has blanks at its end."""
    console = Console(file=io.StringIO(), width=_PIPED_WIDTH, color_system=None)
    with console.capture() as captured:
        console.print(rendered)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def render(found: PipelineStatus) -> RenderableType:
    """The status as a person reads it."""
    parts: list[RenderableType] = [
        Text.assemble(found.name, "  ", (found.phase, _COLOURS.get(found.phase, "white")))
    ]
    if found.error and not any(found.error == each.error for each in found.sources.values()):
        parts.append(_text(found.error, style="red"))
    if _is_new(found):
        parts.append(Text("nothing of it is there yet: penstock run PIPELINE.yml begins"))
    for name, source in found.sources.items():
        parts.append(_render_source(name, source))
    for name, sink in found.sinks.items():
        parts += [_render_sink(name, sink), render_tables(sink)]
    return Group(*parts)


def _is_new(found: PipelineStatus) -> bool:
    """Whether all could be asked, and nobody has made anything for the pipeline."""
    return (
        not found.errors
        and not any(source.slot for source in found.sources.values())
        and not any(sink.delivered_lsn for sink in found.sinks.values())
    )


def _text(text: str, style: str = "") -> Text:
    """Text of others, as it is: rich would take what stands in [] for its own markup."""
    return Text(printable_lines(text), style=style)


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    return grid


def _size(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else size_text(size_bytes)


def _seconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:.1f} s"


def _render_source(name: str, source: SourceStatus) -> Table:
    grid = _grid()
    active = "active" if source.slot_active else "not active"
    grid.add_row(_text(f"source {name}"), f"slot {source.slot or '(none)'}, {active}")
    grid.add_row("  WAL now", source.current_lsn or "?")
    grid.add_row("  received", source.received_lsn or "?")
    grid.add_row("  durable", f"{source.durable_lsn or '?'}  (log {size_text(source.log_bytes)})")
    retained = f"server retains {_size(source.retained_bytes)}, {source.wal_status or '?'}"
    grid.add_row("  acknowledged", f"{source.acknowledged_lsn or '?'}  ({retained})")
    grid.add_row("  tracking", source.tracking)
    if source.tracking_error:
        grid.add_row("  tracking error", _text(source.tracking_error, style="red"))
    for table, reason in source.left_out.items():
        grid.add_row("  left out", _text(printable(f"{table}: {reason}")))
    if source.warning:
        grid.add_row("  warning", _text(source.warning, style="yellow"))
    if source.error:
        grid.add_row("  error", _text(source.error, style="red"))
    return grid


def _render_sink(name: str, sink: SinkStatus) -> Table:
    grid = _grid()
    shown = f"delivered {sink.delivered_lsn or 'nothing yet'}"
    shown = shown if len(sink.sources) == 1 else f"{len(sink.sources)} sources"
    grid.add_row(_text(f"sink {name}"), shown)
    grid.add_row("  lag", f"{_size(sink.lag_bytes)}, {_seconds(sink.lag_seconds)}")
    grid.add_row("  changes", f"{sink.changes_delivered:,}")
    for source_id, flow in sink.sources.items() if len(sink.sources) > 1 else ():
        said = f"delivered {flow.delivered_lsn or 'nothing yet'}, lag {_seconds(flow.lag_seconds)}"
        grid.add_row(_text(f"  from {source_id}"), said)
    if sink.parked:
        see = "penstock parked PIPELINE.yml shows them"
        grid.add_row("  parked", _text(f"{sink.parked:,}: {see}", style="yellow"))
    for id_, each in sink.subscriptions.items():
        style = "white" if each.state == "active" else "yellow"
        grid.add_row(_text(f"  {id_}"), _text(printable(_subscription_text(each)), style=style))
    if sink.error:
        grid.add_row("  error", _text(sink.error, style="red"))
    return grid


def _subscription_text(each: SubscriptionStatus) -> str:
    said = (
        f"{each.state}, delivered {each.delivered:,}, up to {each.delivered_lsn or 'nothing yet'}"
    )
    said += f", parked {each.parked:,}" if each.parked else ""
    said += f", lost up to {each.lost_to_lsn}" if each.lost_to_lsn else ""
    return said + (f": {each.error}" if each.error else "")


def render_tables(sink: SinkStatus) -> RenderableType:
    """How each table of a sink stands; below that, by table, what there is to say of some."""
    table = Table(box=None, padding=(0, 2), show_header=bool(sink.tables), header_style="dim")
    table.add_column("  table", overflow="fold")
    table.add_column("state")
    table.add_column("copied", justify="right", no_wrap=True)
    shown: list[RenderableType] = []
    for name, entry in sink.tables.items():
        colour = _COLOURS.get(entry.state, "white")
        state = f"{entry.state}, {entry.request} asked for" if entry.request else entry.state
        table.add_row(
            _text(f"  {printable(name)}"), _text(state, style=colour), _text(_copied(entry))
        )
        shown += _remarks(name, entry)
    return Group(table, *shown)


def _remarks(name: str, entry: TableStatus) -> Iterator[Text]:
    """Error, notes and conflicts of a table, each with its name: people search for that."""
    place = f"  {printable(name)}: "
    if entry.error:
        # Most errors name the table themselves.
        is_named = f" {name}: " in entry.error.partition("\n")[0]
        lines = f"{'  ' if is_named else place}{entry.error}".split("\n")
        yield _text("\n  ".join(lines), style="red")
    for note in (*(entry.notes or "").splitlines(), _conflicts(entry)):
        if note:
            yield _text(f"{place}{note}")


def _conflicts(entry: TableStatus) -> str:
    """Rows that were there already, or were not there."""
    return ", ".join(f"{kind} {count:,}" for kind, count in entry.conflicts.items() if count)


def _copied(entry: TableStatus) -> str:
    """Rows and bytes, and how far the copy is while there is one."""
    if not entry.ranges_total:
        return ""
    shown = counted(entry.rows_copied, "row")
    if entry.rows_copied:  # what is sent of an empty table is no more than how it begins and ends
        shown += f", {size_text(entry.bytes_copied)}"
    if entry.state != "copying":
        return shown
    age = f", snapshot {entry.snapshot_seconds:.0f} s old" if entry.snapshot_seconds else ""
    return f"{shown}, {entry.ranges_done}/{entry.ranges_total} ranges{age}"
