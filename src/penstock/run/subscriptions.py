"""Who has subscribed to the sinks of a pipeline, whether it runs or not."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import BadValue, DeliveredElsewhere
from penstock.run.delivered import is_shared, require_here
from penstock.run.signals import stop_on_signals
from penstock.server.serve import served_subscriptions
from penstock.sinks.subscriptions import NoSubscription

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.config import PipelineFile
    from penstock.sinks.subscriptions import Subscriptions


def subscriptions_of(pipeline: PipelineFile) -> dict[str, Subscriptions]:
    """By sink, of sinks that can be subscribed to."""
    found: dict[str, Subscriptions] = {}
    for name in pipeline.sinks:
        places = [view.place_of(name) for view in pipeline.each()]
        of_sink = pipeline.kind_of(name).subscriptions(places)
        if of_sink is None:
            continue
        found[name] = (
            of_sink if is_shared(pipeline, name) else _AtTheirPlace(pipeline, name, of_sink)
        )
    return found


class _AtTheirPlace:
    """Subscriptions that are kept on the machine that delivers. Implements `Subscriptions`.

    But for `test`, which sends from where it is asked to, any method raises DeliveredElsewhere on another one.
    """

    def __init__(self, pipeline: PipelineFile, sink: str, inner: Subscriptions) -> None:
        self._views = pipeline.each()
        self._sink = sink
        self._inner = inner

    def _here(self) -> Subscriptions:
        for view in self._views:
            require_here(view, self._sink)
        return self._inner

    def all(self) -> list[dict[str, Any]]:
        """All of them."""
        return self._here().all()

    def get(self, id_: str) -> dict[str, Any]:
        """One."""
        return self._here().get(id_)

    def create(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """A new one."""
        return self._here().create(wanted)

    def change(self, id_: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Change some of what one wants."""
        return self._here().change(id_, wanted)

    def resume(self, id_: str) -> dict[str, Any]:
        """Deliver again."""
        return self._here().resume(id_)

    def remove(self, id_: str) -> None:
        """Forget one."""
        self._here().remove(id_)

    def subscribe(self, url: str, schema: str, table: str, actions: list[str]) -> None:
        """As pgstream's receivers do it."""
        self._here().subscribe(url, schema, table, actions)

    def unsubscribe(self, url: str, schema: str, table: str) -> None:
        """As pgstream's receivers do it."""
        self._here().unsubscribe(url, schema, table)

    def test(self, url: str) -> str:
        """Send a request without a document."""
        return self._inner.test(url)


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


def send_test(sinks: dict[str, Subscriptions], url: str) -> str:
    """Send a request without a document; what came of it. Of several sinks the one does that the receiver is known to: it
    may be allowed, and signed for, there alone.

    Raises:
        SinkError: it was not taken.
    """
    for each in sinks.values():
        # Those of another machine are not known here; it can be tested all the same.
        with suppress(DeliveredElsewhere):
            if any(known["url"] == url for known in each.all()):
                return each.test(url)
    return next(iter(sinks.values())).test(url)


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
