"""The act: servers up, pipeline on, writer to work, and when it has stopped, the proof.

Everything that is made here is removed here, whether the act ends well, badly or by Ctrl-C.
"""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import psycopg

from penstock.config import read_pipeline
from penstock.demo.address import free_address, open_page
from penstock.demo.advice import PIPELINE, SOURCE_SQL, TARGET_SQL, advice, document_advice
from penstock.demo.destinations import destination
from penstock.demo.proof import (
    Watcher,
    compare,
    compare_once_read,
    require_equal,
    require_none_twice,
)
from penstock.demo.scene import Interrupted, PipelineThread, Scene, Watched
from penstock.demo.shop import DOCUMENT_MIGRATION, PIECES, SCHEMA
from penstock.demo.view import View
from penstock.demo.writer import LONG_PAUSE_SECONDS, PAUSE_SECONDS, Writer
from penstock.embedded.guard import dismiss, watch_over
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import EmbeddedServerFailed, PenstockError
from penstock.logging import set_up_logging
from penstock.run.signals import stop_on_signals
from penstock.source.tracking.install import tracking_statements

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping

    from penstock.config import PipelineFile
    from penstock.demo.destinations import Destination
    from penstock.demo.proof import Comparison

    _Act = Callable[[View, ExitStack, threading.Event], None]

_TITLE = "penstock demo: two Postgres servers, a busy shop, one pipeline through Spark, a proof"


def play(sink: str | None = None, *, opens: bool = False) -> None:
    """Run the demo and print it. Ctrl-C and SIGTERM end it early.

    Args:
        sink: deliver to a destination of documents; None: to another Postgres.
        opens: show the pipeline's page in a browser meanwhile.

    Raises:
        PenstockError: a part is missing or failed, or the two sides differ; nothing is left behind even then.
    """
    # What a destination does by design, such as being away for a moment, is no news.
    set_up_logging("text", "warning" if sink is None else "error")
    if sink is None:
        _play(View(), _TITLE, partial(_act, opens=opens), advice())
        return
    to = destination(sink)
    view = View(target=to.reader)
    with view.during("looking for what it needs"):
        to.require()
    title = (
        f"penstock demo: a busy shop in Postgres, one pipeline through Spark, {to.title}, a proof"
    )
    _play(view, title, partial(_act_documents, to, opens=opens), document_advice(to))


def _play(view: View, title: str, act: _Act, ending: str) -> None:
    with stop_on_signals() as interrupted:
        interrupted.raises = False  # an exception at any point would leave things behind
        view.say(title)
        view.say()
        stack = ExitStack()
        try:
            act(view, stack, interrupted)
        except (Interrupted, PenstockError, psycopg.Error) as error:
            # Ctrl-C reaches every process of the terminal: what breaks after it is no news.
            if not interrupted.is_set():
                _raise(error)
        finally:
            with view.during("stopping and removing everything"):
                stack.close()
    if interrupted.is_set():
        view.say("Stopped early. Everything is removed.")
        return
    view.done(f"everything stopped and removed, {view.seconds:.0f} s in all")
    view.say()
    view.say(ending)


def _raise(error: Exception) -> NoReturn:
    if not isinstance(error, psycopg.Error):
        raise error
    raise EmbeddedServerFailed(
        f"a server of the demo gave up: {str(error).strip().partition(chr(10))[0]}",
        "penstock demo",
        "try again, and report it if it stays",
    ) from error


def _act(
    view: View, stack: ExitStack, interrupted: threading.Event, *, opens: bool = False
) -> None:
    home = stack.enter_context(_directory())
    with view.during("starting two Postgres servers"):
        source, target = stack.enter_context(_servers(2))
        _prepare(source)
        _prepare_target(target)
    view.done(
        f"two Postgres {source.version} servers, source on port {source.port},"
        f" target on port {target.port}"
    )
    if interrupted.is_set():
        raise Interrupted
    urls = {
        "SHOP_URL": source.dsn("shop", "penstock"),
        "WAREHOUSE_URL": target.dsn("warehouse", "penstock"),
    }
    running = _begin(view, stack, _pipeline(home, PIPELINE, urls), opens=opens)
    writer = _open_shop(view, stack, source)
    watcher = Watcher(target.dsn("warehouse", "penstock"))
    stack.callback(watcher.stop)
    here = stack.enter_context(psycopg.connect(source.dsn("shop"), autocommit=True))
    there = stack.enter_context(psycopg.connect(target.dsn("warehouse"), autocommit=True))
    scene = Scene(running, writer, here, Watched(there, watcher), interrupted)
    view.say()
    view.show(scene.pictures())
    view.say()
    watcher.stop()
    _prove(view, compare(here, there), writer, watcher, scene)
    with view.during("stopping and removing everything"):
        running.end()
    running.raise_if_failed()


def _begin(view: View, stack: ExitStack, pipeline: PipelineFile, *, opens: bool) -> PipelineThread:
    if opens:
        pipeline = replace(pipeline, server=free_address())
    running = PipelineThread(pipeline)
    stack.callback(running.end)
    with view.during("preparing the source"):
        slot = running.begin()
    view.done(f"slot {slot} and its publication at the source")
    if opens:
        open_page(view, pipeline.server)
    return running


def _open_shop(
    view: View,
    stack: ExitStack,
    source: EmbeddedPostgres,
    pause_seconds: float = PAUSE_SECONDS,
) -> Writer:
    with view.during("opening the shop"):
        writer = Writer(source.dsn("shop", "shop_owner"), pause_seconds)
        stack.callback(writer.stop)
        writer.start()
    return writer


class _Read:
    """A destination, as pictures show it: nobody looks for half a transaction, documents have none."""

    def __init__(self, to: Destination) -> None:
        self.row_counts = to.row_counts

    def polls(self) -> tuple[int, int] | None:
        return None


def _act_documents(
    to: Destination,
    view: View,
    stack: ExitStack,
    interrupted: threading.Event,
    *,
    opens: bool = False,
) -> None:
    home = stack.enter_context(_directory())
    with view.during("starting a Postgres server"):
        [source] = stack.enter_context(_servers(1))
        _prepare(source)
    view.done(f"a Postgres {source.version} server, the source, on port {source.port}")
    stack.callback(to.close)
    with view.during(f"starting {to.title}"):
        started = to.start(home)
    view.done(started)
    if interrupted.is_set():
        raise Interrupted
    urls = {"SHOP_URL": source.dsn("shop", "penstock"), **to.variables}
    running = _begin(view, stack, _pipeline(home, to.pipeline, urls), opens=opens)
    writer = _open_shop(view, stack, source, LONG_PAUSE_SECONDS)
    here = stack.enter_context(psycopg.connect(source.dsn("shop"), autocommit=True))
    scene = Scene(running, writer, here, _Read(to), interrupted, DOCUMENT_MIGRATION)
    view.say()
    view.show(scene.pictures())
    view.say()
    with view.during(f"letting the {to.reader} read on"):
        compared = compare_once_read(here, to.rows, scene.wait)
    view.show_proof(compared)
    view.say()
    require_equal(compared)
    view.done(
        f"the {to.reader} has every row and every value of the source, the migration included"
    )
    view.done(
        f"{scene.delivered_count:,} changes delivered after the copy;"
        f"\n  {writer.change_count:,} changes written in {writer.transaction_count:,} transactions,"
        f" {writer.key_change_count} change a key"
    )
    for line in to.prove():
        view.done(line)
    with view.during("stopping and removing everything"):
        running.end()
    running.raise_if_failed()


def _prove(
    view: View,
    compared: list[Comparison],
    writer: Writer,
    watcher: Watcher,
    scene: Scene,
) -> None:
    view.show_proof(compared)
    view.say()
    require_equal(compared)
    view.done("both sides are equal, every row and every value, the migration included")
    require_none_twice(writer.change_count, scene.delivered_count)
    view.done(
        f"{scene.copied_count:,} rows copied, {scene.delivered_count:,} changes delivered after that;"
        f"\n  {writer.change_count:,} changes written in {writer.transaction_count:,} transactions,"
        f" {writer.key_change_count} change a key"
    )
    view.done(f"{writer.rolled_back_count} transactions rolled back, nothing of them arrived")
    watcher.require_whole()
    view.done(
        f"never half a transaction: {watcher.poll_count:,} polls of {watcher.state_count:,} states"
        f" of the target,\n  each time {PIECES:,} pieces in stock or sold"
    )


@contextmanager
def _directory() -> Iterator[Path]:
    """For the pipeline file and its state; gone afterwards, even after kill -9."""
    home = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    guard = watch_over(home)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)
        dismiss(guard)


@contextmanager
def _servers(count: int) -> Iterator[list[EmbeddedPostgres]]:
    made = [EmbeddedPostgres() for _ in range(count)]
    with ExitStack() as stack:
        for each in made:
            stack.callback(each.close)
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(EmbeddedPostgres.start, made))
        yield made


def _prepare(source: EmbeddedPostgres) -> None:
    """Give the source its database, and penstock the very rights that the advice names."""
    _run(source.dsn(), "CREATE ROLE shop_owner LOGIN")
    _run(source.dsn(), "CREATE DATABASE shop OWNER shop_owner")
    _run(source.dsn("shop"), SOURCE_SQL)
    _run(source.dsn("shop", "shop_owner"), SCHEMA)
    _run(source.dsn("shop"), tracking_statements("penstock"))


def _prepare_target(target: EmbeddedPostgres) -> None:
    """The same at the target."""
    _run(target.dsn(), "CREATE DATABASE warehouse")
    _run(target.dsn("warehouse"), TARGET_SQL)


def _run(url: str, statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statements.encode())


def _pipeline(home: Path, text: str, urls: Mapping[str, str]) -> PipelineFile:
    path = home / "shop.yml"
    path.write_text(text, encoding="utf-8")
    return read_pipeline(path, urls)
