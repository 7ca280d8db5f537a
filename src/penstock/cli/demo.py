"""penstock demo: everything embedded; ends by itself."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    sink: Annotated[
        str | None,
        typer.Option(
            "--sink",
            metavar="KIND",
            envvar="PENSTOCK_DEMO_SINK",
            help="Deliver to kafka, search or webhook instead of a second Postgres.",
        ),
    ] = None,
    opens: Annotated[
        bool,
        typer.Option(
            "--open",
            envvar="PENSTOCK_OPEN",
            help="Show the pipeline's page in a browser meanwhile; needs penstock[server].",
        ),
    ] = False,
) -> None:
    """Run the whole product on embedded parts: two servers, a workload, a pipeline, a proof."""
    from penstock.demo.play import play

    play(sink, opens=opens)
