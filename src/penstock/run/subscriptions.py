"""Who has subscribed to the sinks of a pipeline, whether it runs or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import BadValue
from penstock.run.signals import stop_on_signals
from penstock.server.serve import served_subscriptions
from penstock.sinks.subscriptions import NoSubscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.config import PipelineFile
    from penstock.sinks.subscriptions import Subscriptions


def subscriptions_of(pipeline: PipelineFile) -> dict[str, Subscriptions]:
    """By sink, of sinks that can be subscribed to."""
    found = {}
    for name in pipeline.sinks:
        places = [view.place_of(name) for view in pipeline.each()]
        of_sink = pipeline.kind_of(name).subscriptions(places)
        if of_sink is not None:
            found[name] = of_sink
    return found


def choose_subscriptions(pipeline: PipelineFile, sink: str | None) -> dict[str, Subscriptions]:
    """Those of the sink that a person has named, or of all.

    Raises:
        BadValue: there is none.
    """
    found = subscriptions_of(pipeline)
    chosen = found if sink is None else {name: found[name] for name in found if name == sink}
    if not chosen:
        named = "no sink" if sink is None else f"sink {sink!r} is none"
        raise BadValue(
            f"{named} that can be subscribed to, wanted one of {', '.join(found) or 'kind webhook'}",
            pipeline.name if sink is None else "--sink",
            "name a sink of kind webhook, or add one to the file",
        )
    return chosen


def of_subscription(
    sinks: dict[str, Subscriptions], id_: str, do: Callable[[Subscriptions], Any]
) -> Any:
    """Do something with a subscription, at the sink that has it.

    Raises:
        BadValue: none has.
    """
    for each in sinks.values():
        try:
            each.get(id_)
        except NoSubscription:
            continue
        return do(each)
    raise BadValue(f"no subscription {id_!r}", "penstock webhooks", "list shows their ids")


def serve_subscriptions(
    pipeline: PipelineFile, sinks: dict[str, Subscriptions], on_started: Callable[[str], None]
) -> None:
    """Serve their routes alone, until Ctrl-C or SIGTERM.

    Raises:
        BadValue: the file does not say where.
        ServerFailed: that cannot be listened on.
    """
    if pipeline.server.listen is None:
        raise BadValue(
            "neither listen: in the file nor --listen",
            "penstock webhooks",
            "add --listen HOST:PORT",
        )
    with stop_on_signals() as stop:
        stop.raises = False
        with served_subscriptions(pipeline.name, sinks, pipeline.server) as url:
            on_started(url)
            while not stop.wait(3600):
                pass
