"""penstock webhooks: who has subscribed to a pipeline's sinks."""

from __future__ import annotations

import enum
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from penstock.cli.options import (
    AsJson,
    Listen,
    LogFormat,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
    PipelinePath,
)
from penstock.cli.status import print_rendered
from penstock.config import read_pipeline
from penstock.errors import BadValue
from penstock.logging import set_up_logging
from penstock.text import printable

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.sinks.subscriptions import Subscriptions


class Action(enum.StrEnum):
    """What to do with subscriptions."""

    LIST = "list"
    TEST = "test"
    RESUME = "resume"
    REMOVE = "remove"
    SERVE = "serve"


def webhooks(
    path: PipelinePath,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")] = Action.LIST,
    given: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="A URL to test; the id of a subscription."),
    ] = None,
    sink: Annotated[
        str | None,
        typer.Option(
            "--sink", metavar="NAME", envvar="PENSTOCK_SINK", help="One sink; default: all."
        ),
    ] = None,
    listen: Listen = None,
    as_json: AsJson = False,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """List who has subscribed, test a receiver, resume or remove a subscription, or serve their API alone."""
    from penstock.run.subscriptions import choose_subscriptions, serve_subscriptions

    set_up_logging(log_format, log_level)
    pipeline = read_pipeline(path)
    sinks = choose_subscriptions(pipeline, sink)
    if action is Action.LIST:
        _print(sinks, as_json=as_json)
    elif action is Action.SERVE:
        served = replace(pipeline, server=pipeline.server.at(listen))
        serve_subscriptions(served, sinks, lambda url: typer.echo(f"listening on {url}", err=True))
    else:
        which = _only(given, action, path)
        _act(action, which, sinks)


def _only(given: list[str] | None, action: Action, path: Path) -> str:
    if given is None or len(given) != 1:
        wanted = "a URL" if action is Action.TEST else "an id"
        raise BadValue(
            f"{action.value} of {len(given or ())}, wanted {wanted}",
            "penstock webhooks",
            f"penstock webhooks {path} {action.value} {'URL' if action is Action.TEST else 'ID'}",
        )
    return given[0]


def _act(action: Action, which: str, sinks: dict[str, Subscriptions]) -> None:
    from penstock.run.subscriptions import of_subscription, send_test

    if action is Action.TEST:
        typer.echo(send_test(sinks, which))
    elif action is Action.RESUME:
        of_subscription(sinks, which, lambda each: each.resume(which))
        typer.echo(printable(f"{which}: delivered to again, as soon as the pipeline runs"))
    else:
        of_subscription(sinks, which, lambda each: each.remove(which))
        typer.echo(printable(f"{which}: removed, with what waited for it"))


def _print(sinks: dict[str, Subscriptions], *, as_json: bool) -> None:
    found = [{"sink": name, **one} for name, each in sinks.items() for one in each.all()]
    if as_json:
        typer.echo(json.dumps(found))
    elif not found:
        typer.echo("nobody has subscribed")
    else:
        _print_table(found)


def _print_table(found: list[dict[str, Any]]) -> None:
    shown = Table(box=None, padding=(0, 2), header_style="dim")
    for heading in (
        "sink",
        "id",
        "url",
        "format",
        "filter",
        "state",
        "delivered",
        "up to",
        "error",
    ):
        shown.add_column(heading, overflow="fold")
    for each in found:
        is_alone = len(each["sources"]) == 1
        for source, stands in each["sources"].items():
            cells = (
                each["sink"] if is_alone else f"{each['sink']}/{source}",
                each["id"],
                each["url"],
                each["format"],
                each["filter"] or "",
                stands["state"],
                f"{stands['delivered']:,}",
                stands["delivered_lsn"] or "",
                stands["error"] or "",
            )
            shown.add_row(*(Text(printable(cell)) for cell in cells))
    print_rendered(shown)
