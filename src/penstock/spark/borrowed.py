"""A SparkSession that the caller of `penstock.run` has made: jobs are run on it, and it is left as it was.

Its settings are its owner's. Jobs do without all of those in penstock.spark.settings: they run on Spark's own
worker daemon as on ours, only slower. Connection strings go to tasks by a file, as they always do, so that no
password depends on the session's settings; rows travel as the session lets them.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Any

from penstock import vault
from penstock.errors import BadValue, Exposed, SparkFailed, SparkGone
from penstock.spark.jobs import run_tasks
from penstock.spark.jvm import BorrowedJvm
from penstock.spark.options import SparkOptions
from penstock.spark.session import Running, Spark
from penstock.vault import Vault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark import SparkContext

_log = logging.getLogger(__name__)

_PLACE = "penstock.run(spark=…)"
_AT_REST = "spark.io.encryption.enabled"
_AGAIN = "make a new SparkSession and call penstock.run again, which goes on where this run stopped"


class BorrowedSpark(Spark):
    """What jobs are run on, never started and never stopped: a session that is lost ends the run.

    Args:
        session: a SparkSession.
        state: the state directory; on a cluster, executors see it.
        encrypts: whether rows are encrypted wherever they are kept.

    Raises:
        BadValue: it is no session that can run our jobs.
    """

    can_start_again = False

    def __init__(self, session: Any, name: str, state: Path, *, encrypts: bool = False) -> None:
        self._encrypts = encrypts
        self._context = _context_of(session)
        # Not validated: it runs.
        options = SparkOptions.model_construct(master=str(self._context.master), conf={})
        super().__init__(name, options, state / "spark.log")
        # Other jobs of the session are not ours to cancel.
        self._tag = f"penstock-{name}-{secrets.token_hex(4)}"

    def start(self) -> None:
        """See that it takes our jobs; from then on it does.

        Raises:
            SparkGone: it is stopped, or its JVM has ended.
            SparkFailed: its tasks cannot use penstock.
        """
        jvm = BorrowedJvm(self._context)
        if not jvm.is_well:
            raise _gone()
        for each in _exposures(self._context, is_local=self._options.is_local):
            _log.warning("%s", each)
        if self._encrypts and self._context.getConf().get(_AT_REST, "false") != "true":
            _log.warning("%s", _in_clear_at_rest())
        home = self._make_home()
        try:
            self.parallel = int(self._context.defaultParallelism)
            kept = Vault(home.path)
            jvm.delete_at_exit(kept.path)
        except BaseException:
            home.remove()
            raise
        vault.use(kept)
        self._hand_out(Running(self._context, jvm, home))
        self._try_out()

    def _try_out(self) -> None:
        """Run a job: what keeps all of them from running is better found before the first batch."""
        from penstock import __version__

        try:
            [found] = run_tasks(self, _installed_version, [None])
        except SparkFailed as error:
            raise _unfit(error.what) from error
        if found != __version__:
            raise _unfit(f"tasks have penstock {found}, wanted {__version__}")

    def label_job(self, running: Running) -> None:
        """Mark it as ours."""
        running.context.addJobTag(self._tag)

    def _cancel_all(self, running: Running) -> None:
        running.context.cancelJobsWithTag(self._tag)

    def _explain_loss(self, running: Running) -> SparkGone:
        del running
        return _gone()


def _context_of(session: Any) -> SparkContext:
    from pyspark import SparkContext

    try:
        context = session.sparkContext
    except Exception:  # noqa: BLE001 - a session of Spark Connect has reasons of its own to raise
        context = None
    if not isinstance(context, SparkContext):
        raise BadValue(
            f"{type(session).__name__} without a SparkContext, wanted a SparkSession that has one;"
            " Spark Connect has none",
            _PLACE,
            'give SparkSession.builder.master("local[*]").getOrCreate(), or leave out spark=',
        )
    return context


def _installed_version(work: Iterable[None]) -> Iterator[str]:
    """Runs in a Spark task."""
    from penstock import __version__

    yield from (__version__ for _ in work)


def _gone() -> SparkGone:
    return SparkGone("the SparkSession was stopped, or its JVM has ended", _PLACE, _AGAIN)


def _unfit(what: str) -> SparkFailed:
    return SparkFailed(
        f"the session's tasks cannot use penstock: {what}",
        _PLACE,
        "install the same penstock for the Python that tasks run in, which PYSPARK_PYTHON names when"
        " the session is made",
    )


def _in_clear_at_rest() -> Exposed:
    return Exposed(
        "log.encrypt is true, but what the session leaves on disks is not encrypted: documents for sinks that tasks"
        " deliver to are among it",
        _PLACE,
        f"make the session with {_AT_REST}=true",
    )


def _exposures(context: SparkContext, *, is_local: bool) -> Iterator[Exposed]:
    """What others could read; such settings are fixed once the session is made."""
    conf = context.getConf()
    if conf.get("spark.authenticate", "false") != "true":
        yield Exposed(
            "the session's ports take orders from anybody who reaches them: rows could be read, passwords"
            " are not sent",
            _PLACE,
            "make the session with spark.authenticate=true and a spark.authenticate.secret",
        )
    ways = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")
    if not is_local and all(conf.get(way, "false") != "true" for way in ways):
        yield Exposed(
            "what the session's processes send one another is not encrypted",
            _PLACE,
            "make the session with spark.network.crypto.enabled=true",
        )
