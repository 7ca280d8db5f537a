"""What people read of a pipeline's state."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from penstock.cli.status import as_text, render, render_tables
from penstock.run.status import PipelineStatus, SinkStatus, SourceStatus, TableStatus


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
    assert shown.getvalue().count(r"public.x\nsink dw  delivered\x1b[2J") == 2
    assert "Do: c" in shown.getvalue()


def test_piped_status_cuts_no_name_and_pads_no_line() -> None:
    long = "public." + "very_long_name_" * 20
    tables = {long: TableStatus(), "public.t": TableStatus(state="failed", error="e" * 300)}
    sink = SinkStatus(tables=tables)

    text = as_text(render(PipelineStatus("p", "running", {"main": SourceStatus()}, {"dw": sink})))

    assert long in text
    assert "e" * 300 in text
    assert all(line == line.rstrip() for line in text.splitlines())
