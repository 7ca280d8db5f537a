"""What people read of a pipeline's state."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from penstock.cli.status import as_text, render, render_tables
from penstock.run.status import PipelineStatus, SourceStatus
from penstock.sinks.status import SinkStatus, TableStatus


def test_names_are_shown_as_they_are_whatever_rich_would_make_of_them() -> None:
    names = ['public."x[/y]"', "public.audit[red]", "public.[link=http://a]b"]
    sink = SinkStatus(tables={name: TableStatus() for name in names})
    source = SourceStatus(left_out=dict.fromkeys(names, "no [/key]"))
    found = PipelineStatus("p[/]", "running", {"eu[/a]": source}, {"dw[red]": sink})

    shown = StringIO()
    console = Console(file=shown, width=120)
    console.print(render(found))
    console.print(render_tables(sink))

    for name in names:
        assert shown.getvalue().count(name) == 3
        assert f"{name}: no [/key]" in shown.getvalue()
    for name in ("p[/]", "source eu[/a]", "sink dw[red]"):
        assert name in shown.getvalue()


def test_nothing_that_others_have_named_begins_a_line_or_rules_the_terminal() -> None:
    name = "public.x\nsink dw  delivered\x1b[2J"
    table = TableStatus(error="PEN-506 a: b\n  Do: c\x1b[2J")
    sink = SinkStatus(tables={name: table}, error=f"PEN-501 {name}")
    source = SourceStatus(left_out={name: "no key"})

    shown = StringIO()
    console = Console(file=shown, width=200)
    console.print(render(PipelineStatus("p", "running", {"main": source}, {"dw": sink})))

    assert "\x1b" not in shown.getvalue()
    assert shown.getvalue().count(r"public.x\nsink dw  delivered\x1b[2J") == 3
    assert "Do: c" in shown.getvalue()


def test_piped_status_cuts_no_name_and_pads_no_line() -> None:
    long = "public." + "very_long_name_" * 20
    tables = {long: TableStatus(), "public.t": TableStatus(state="failed", error="e" * 300)}
    sink = SinkStatus(tables=tables)

    text = as_text(render(PipelineStatus("p", "running", {"main": SourceStatus()}, {"dw": sink})))

    assert long in text
    assert "e" * 300 in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_narrow_terminal_cuts_no_name_and_notes_stand_below_with_their_table() -> None:
    long = "public.customer_order_line_item_history_of_the_department_1"
    notes = "index a_idx: not taken over\nindex b_idx: not taken over"
    tables = {long: TableStatus("streaming", notes=notes), "public.t": TableStatus("streaming")}

    shown = StringIO()
    Console(file=shown, width=60).print(render_tables(SinkStatus(tables=tables)))

    grid = "".join(shown.getvalue().replace("streaming", "").split())
    assert grid.count(long) == 3  # in its row, and before each note
    assert "…" not in shown.getvalue()
    text = as_text(render_tables(SinkStatus(tables=tables)))
    assert f"{long}: index a_idx: not taken over" in text
    assert f"{long}: index b_idx: not taken over" in text


def test_error_of_a_table_names_it_once() -> None:
    failed = TableStatus("failed", error="PEN-506 public.t: refused\n  Do: this")
    other = TableStatus("failed", error="PEN-302 /log: full\n  Do: that")

    lines = as_text(
        render_tables(SinkStatus(tables={"public.t": failed, "public.u": other}))
    ).splitlines()

    assert lines[-4:] == [
        "  PEN-506 public.t: refused",
        "    Do: this",
        "  public.u: PEN-302 /log: full",
        "    Do: that",
    ]


def test_empty_and_single_rows_are_counted_as_people_do() -> None:
    empty = TableStatus("streaming", rows_copied=0, bytes_copied=21, ranges_total=1)
    single = TableStatus("streaming", rows_copied=1, bytes_copied=36, ranges_total=1)

    text = as_text(render_tables(SinkStatus(tables={"public.t": empty, "public.u": single})))

    assert "0 rows\n" in text
    assert "1 row, 36 B" in text


def test_pipeline_that_was_never_started_says_how_it_is() -> None:
    new = PipelineStatus("p", "stopped", {"main": SourceStatus()}, {"dw": SinkStatus()})
    away = PipelineStatus("p", "failed", {"main": SourceStatus(error="PEN-201 x")}, {})
    begun = PipelineStatus("p", "stopped", {"main": SourceStatus(slot="s")}, {"dw": SinkStatus()})

    assert "penstock run PIPELINE.yml begins" in as_text(render(new))
    assert "begins" not in as_text(render(away)) + as_text(render(begun))
