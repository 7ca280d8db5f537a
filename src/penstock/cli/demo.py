"""penstock demo: everything embedded; ends by itself."""

from __future__ import annotations


def demo() -> None:
    """Run the whole product on embedded parts: two servers, a workload, a pipeline, a proof."""
    from penstock.demo.play import play

    play()
