"""The act: servers up, pipeline on, writer to work, and when it has stopped, the proof.

Everything that is made here is removed here, whether the act ends well, badly or by Ctrl-C.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from penstock.config import read_pipeline
from penstock.demo.advice import PIPELINE, SOURCE_SQL, TARGET_SQL, advice
from penstock.demo.proof import Watcher, compare, require_each_once, require_equal
from penstock.demo.scene import Interrupted, Scene
from penstock.demo.shop import PIECES, SCHEMA
from penstock.demo.view import View
from penstock.demo.writer import Writer
from penstock.embedded.guard import dismiss, watch_over
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import RunError
from penstock.logging import set_up_logging
from penstock.run.signals import stop_on_signals
from penstock.run.supervise import run_pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.config import PipelineFile
    from penstock.run.start import Started


def play() -> None:
    """Run the demo and print it. Ctrl-C and SIGTERM end it early.

    Raises:
        PenstockError: a part failed, or the two sides differ; nothing is left behind even then.
    """
    set_up_logging("text", "warning")
    view = View()
    view.say("penstock demo: two Postgres servers, a busy shop, one pipeline through Spark, a proof")
    view.say()
    with stop_on_signals() as interrupted:
        stack = ExitStack()
        try:
            _act(view, stack, interrupted)
        except Interrupted:
            pass
        except psycopg.Error as error:
            what = f"a server of the demo gave up: {error}".strip()
            raise RunError(what, "penstock demo", "try again; report it if it stays") from error
        finally:
            with view.during("stopping and removing everything"):
                stack.close()
    if interrupted.is_set():
        view.say(f"Stopped before the end. Everything is removed.")
        return
    view.done(f"everything stopped and removed, {view.seconds:.0f} s in all")
    view.say()
    view.say(advice())


def _act(view: View, stack: ExitStack, interrupted: threading.Event) -> None:
    home = stack.enter_context(_directory())
    with view.during("starting two Postgres servers"):
        source, target = stack.enter_context(_two_servers())
        _prepare(source, target)
    view.done(
        f"two Postgres {source.version} servers, source on port {source.port},"
        f" target on port {target.port}"
    )
    pipeline = _pipeline(home, source, target)
    running = _PipelineThread(pipeline)
    stack.callback(running.end)
    with view.during("preparing the source"):
        slot = running.begin()
    view.done(f"slot {slot} and its publication at the source")

    writer = Writer(source.dsn("shop", "shop_owner"))
    stack.callback(writer.stop)
    watcher = Watcher(target.dsn("warehouse", "penstock"))
    stack.callback(watcher.stop)
    scene = stack.enter_context(
        Scene(pipeline, running.raise_if_failed, writer, watcher, interrupted)
    )
    view.say()
    view.show(scene.pictures())
    view.say()
    _prove(view, scene, writer, watcher)
    with view.during("stopping and removing everything"):
        running.end()
    running.raise_if_failed()


def _prove(view: View, scene: Scene, writer: Writer, watcher: Watcher) -> None:
    watcher.stop()
    compared = compare(scene.source, scene.target)
    view.show_proof(compared)
    view.say()
    require_equal(compared)
    view.done("both sides are equal, every row and every value")
    require_each_once(writer.change_count, scene.delivered_count)
    view.done(f"each of the {writer.change_count:,} changes delivered once")
    watcher.require_whole()
    view.done(
        f"no transaction seen torn: stock + sold = {PIECES:,} pieces in {watcher.look_count:,} looks"
        f" at {watcher.state_count:,} states of the target"
    )
    view.done(
        f"among them {writer.key_change_count} key changes;"
        f" {writer.rolled_back_count} rolled back transactions left no trace"
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


class _PipelineThread(threading.Thread):
    """`penstock run`, in a thread, so that the view has the main one."""

    def __init__(self, pipeline: PipelineFile) -> None:
        super().__init__(name="demo pipeline", daemon=True)
        self._pipeline = pipeline
        self._stop_pipeline = threading.Event()
        self._prepared = threading.Event()
        self._slot = ""
        self._failure: BaseException | None = None

    def begin(self) -> str:
        """Start; the name of the slot, once there is one and no change can be missed."""
        self.start()
        self._prepared.wait()
        self.raise_if_failed()
        return self._slot

    def run(self) -> None:
        """Run the pipeline; keep what went wrong for the main thread."""
        try:
            run_pipeline(
                self._pipeline, self._stop_pipeline, log_level="warning", on_ready=self._on_ready
            )
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which raises it
            self._failure = error
        finally:
            self._prepared.set()

    def _on_ready(self, started: Started) -> None:
        self._slot = started.subscription.slot
        self._prepared.set()

    def raise_if_failed(self) -> None:
        """Raise what ended the pipeline."""
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Stop the pipeline and wait until Spark is gone. Safe to repeat."""
        self._stop_pipeline.set()
        if self.is_alive():
            self.join()
