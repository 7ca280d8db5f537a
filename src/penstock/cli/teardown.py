"""penstock teardown: remove what penstock has made, and say what was removed."""

from __future__ import annotations

import typer

from penstock.cli.options import PipelinePath
from penstock.config import read_pipeline


def teardown(path: PipelinePath) -> None:
    """Remove slot, publication and penstock's own tables on both sides. Your tables stay."""
    pipeline = read_pipeline(path)
    from penstock.run.teardown import tear_down

    removed = tear_down(pipeline)
    for line in removed:
        typer.echo(f"removed {line}")
    if not removed:
        typer.echo(f"nothing of {pipeline.name} was there")
