"""The act: servers up, pipeline on, writer to work, and when it has stopped, the proof.

Everything that is made here is removed here, whether the act ends well, badly or by Ctrl-C.
"""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import psycopg

from penstock.config import read_pipeline
from penstock.demo.address import free_address, open_page
from penstock.demo.advice import PIPELINE, SOURCE_SQL, TARGET_SQL, advice
from penstock.demo.proof import Watcher, compare, require_equal, require_none_twice
from penstock.demo.scene import Interrupted, PipelineThread, Scene
from penstock.demo.shop import PIECES, SCHEMA
from penstock.demo.view import View
from penstock.demo.writer import Writer
from penstock.embedded.guard import dismiss, watch_over
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import EmbeddedServerFailed, PenstockError
from penstock.logging import set_up_logging
from penstock.run.signals import stop_on_signals
from penstock.source.tracking import tracking_statements

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from penstock.config import PipelineFile
    from penstock.demo.proof import Comparison

_TITLE = "penstock demo: two Postgres servers, a busy shop, one pipeline through Spark, a proof"


def play(*, opens: bool = False) -> None:
    """Run the demo and print it. Ctrl-C and SIGTERM end it early.

    `opens`: show the pipeline's page in a browser meanwhile.

    Raises:
        PenstockError: a part failed, or the two sides differ; nothing is left behind even then.
    """
    set_up_logging("text", "warning")
    view = View()
    with stop_on_signals() as interrupted:
        interrupted.raises = False  # an exception at any point would leave things behind
        view.say(_TITLE)
        view.say()
        stack = ExitStack()
        try:
            _act(view, stack, interrupted, opens=opens)
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
    view.say(advice())


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
        source, target = stack.enter_context(_two_servers())
        _prepare(source, target)
    view.done(
        f"two Postgres {source.version} servers, source on port {source.port},"
        f" target on port {target.port}"
    )
    if interrupted.is_set():
        raise Interrupted
    pipeline = _pipeline(home, source, target)
    if opens:
        pipeline = replace(pipeline, server=free_address())
    running = PipelineThread(pipeline)
    stack.callback(running.end)
    with view.during("preparing the source"):
        slot = running.begin()
    view.done(f"slot {slot} and its publication at the source")
    if opens:
        open_page(view, pipeline.server)

    with view.during("opening the shop"):
        writer = Writer(source.dsn("shop", "shop_owner"))
        stack.callback(writer.stop)
        writer.start()
    watcher = Watcher(target.dsn("warehouse", "penstock"))
    stack.callback(watcher.stop)
    here = stack.enter_context(psycopg.connect(source.dsn("shop"), autocommit=True))
    there = stack.enter_context(psycopg.connect(target.dsn("warehouse"), autocommit=True))
    scene = Scene(running, writer, watcher, here, there, interrupted)
    view.say()
    view.show(scene.pictures())
    view.say()
    watcher.stop()
    _prove(view, compare(here, there), writer, watcher, scene)
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
def _two_servers() -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    source, target = EmbeddedPostgres(), EmbeddedPostgres()
    with ExitStack() as stack:
        stack.callback(source.close)
        stack.callback(target.close)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(EmbeddedPostgres.start, (source, target)))
        yield source, target


def _prepare(source: EmbeddedPostgres, target: EmbeddedPostgres) -> None:
    """Give each server its database, and penstock the very rights that the advice names."""
    _run(source.dsn(), "CREATE ROLE shop_owner LOGIN")
    _run(source.dsn(), "CREATE DATABASE shop OWNER shop_owner")
    _run(source.dsn("shop"), SOURCE_SQL)
    _run(source.dsn("shop", "shop_owner"), SCHEMA)
    _run(source.dsn("shop"), tracking_statements("penstock"))
    _run(target.dsn(), "CREATE DATABASE warehouse")
    _run(target.dsn("warehouse"), TARGET_SQL)


def _run(url: str, statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statements.encode())


def _pipeline(home: Path, source: EmbeddedPostgres, target: EmbeddedPostgres) -> PipelineFile:
    path = home / "shop.yml"
    path.write_text(PIPELINE, encoding="utf-8")
    urls = {
        "SHOP_URL": source.dsn("shop", "penstock"),
        "WAREHOUSE_URL": target.dsn("warehouse", "penstock"),
    }
    return read_pipeline(path, urls)
