"""penstock teardown: remove what penstock has made, and say what was removed."""

from __future__ import annotations

import typer

from penstock.cli.options import PipelinePath, SourceId
from penstock.config import read_pipeline
from penstock.text import printable


def teardown(path: PipelinePath, source_id: SourceId = None) -> None:
    """Remove slot, publication and penstock's own tables on both sides. Your tables stay."""
    pipeline = read_pipeline(path)
    from penstock.run.requests import choose_sources
    from penstock.run.teardown import tear_down

    views = choose_sources(pipeline, source_id) if source_id is not None else None
    removed = tear_down(pipeline, views)
    for line in removed:
        typer.echo(printable(f"removed {line}"))
    if not removed:
        typer.echo(f"nothing of {pipeline.name} was there")
