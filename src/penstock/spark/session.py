"""The Spark of one pipeline: started, handed to who runs jobs, lost, started anew.

When and how often it is started anew is decided elsewhere (penstock.run.sparkwatch).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, NamedTuple

from penstock import vault
from penstock.embedded.java import java_home
from penstock.errors import SparkFailed, SparkGone
from penstock.spark.home import SparkHome
from penstock.spark.jvm import Jvm, JvmEnded
from penstock.spark.settings import settings_of
from penstock.vault import Vault

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark import SparkContext

    from penstock.spark.options import SparkOptions

_log = logging.getLogger(__name__)


class Running(NamedTuple):
    """One start of Spark that takes jobs, until it is lost."""

    context: SparkContext
    jvm: Jvm
    home: SparkHome


class Spark:
    """What jobs are run on. Threads that want one wait while Spark is being started anew.

    `log_path`: where what the JVM and its workers print goes. On a cluster, executors see its directory.
    """

    def __init__(self, name: str, options: SparkOptions, log_path: Path) -> None:
        self.parallel = 1  # how many tasks run at once, where nobody says otherwise
        self._name = name
        self._options = options
        self._log_path = log_path
        self._changed = threading.Condition()
        self._running: Running | None = None
        self._starting: Jvm | None = None
        self._lost: list[Running] = []
        self._loss: SparkGone | None = None  # that nobody has taken note of yet
        self._is_over = False

    def start(self) -> None:
        """Start it, and remove what is left of a start that was lost. In any thread but one at a time.

        Raises:
            JavaMissing: there is no Java to run it on.
            SparkFailed: it did not start.
            SparkGone: it was killed meanwhile.
        """
        self._bury()
        self._set_environment()
        home = SparkHome(None if self._options.is_local else self._log_path.parent)
        try:
            settings = settings_of(self._name, self._options, home.path)
            self._starting = Jvm(home.write_properties(settings), home.path, self._log_path)
            if self._is_over:  # a stop that came before there was anything to kill
                self._starting.kill()
            running = self._connect(self._starting, home)
        except BaseException:
            if self._starting is not None:
                self._starting.end(is_lost=True)
            home.remove()
            raise
        finally:
            self._starting = None
        with self._changed:
            if not self._is_over:
                self._running = running
                self._changed.notify_all()
                return
        self._end(running)

    def _set_environment(self) -> None:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        if self._options.is_local:
            # Spark asks the host's name for its address, which fails on a machine without a network.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["JAVA_HOME"] = str(java_home())

    def _connect(self, jvm: Jvm, home: SparkHome) -> Running:
        try:
            context = jvm.connect()
            self.parallel = int(context.defaultParallelism)
            kept = Vault(home.path)
            jvm.delete_at_exit(kept.path)
        except Exception as error:
            if jvm.was_killed:
                raise self._gone(jvm) from error
            if not isinstance(error, JvmEnded):
                _log.debug("why Spark did not start", exc_info=True)
            how = f"the JVM {error}" if isinstance(error, JvmEnded) else type(error).__name__
            raise SparkFailed(
                f"Spark did not start: {how}",
                f"spark.master {self._options.master}",
                "check spark.master and spark.conf in the pipeline file, and that Java runs:"
                f" java -version; {self._log_path.name} in the state directory has the JVM's own words",
            ) from error
        (home.path / "spark.properties").unlink()  # read by now, and it may hold keys
        vault.use(kept)
        return Running(context, jvm, home)

    def running(self) -> Running:
        """What to run a job on, once it is there.

        Raises:
            SparkGone: it will not be started again.
        """
        with self._changed:
            while self._running is None:
                if self._is_over:
                    raise SparkGone("Spark has ended", "spark", "nothing; the work is done again")
                self._changed.wait()
            return self._running

    def loss(self, running: Running) -> SparkGone | None:
        """What became of a start on which something failed; None when it takes jobs as before."""
        if running.jvm.is_well:
            return None
        return self._lose(running)

    def take_loss(self) -> SparkGone | None:
        """How Spark was lost since this was last asked; cheap."""
        running = self._running
        if running is not None and running.jvm.process.poll() is not None:
            self._lose(running)
        with self._changed:
            loss, self._loss = self._loss, None
        return loss

    def _gone(self, jvm: Jvm) -> SparkGone:
        return SparkGone(
            f"the JVM that Spark runs in {jvm.how_it_ended}",
            "spark",
            f"nothing, penstock starts it again; see {self._log_path.name} in the state directory, and"
            " whether the machine, or spark.driver.memory, is short of memory",
        )

    def _lose(self, running: Running) -> SparkGone:
        loss = self._gone(running.jvm)
        with self._changed:
            if self._running is running:
                self._running = None
                self._lost.append(running)
                self._loss = loss
        return loss

    @property
    def is_up(self) -> bool:
        """Whether jobs can be run."""
        return self._running is not None

    def cancel(self, group: str | None = None) -> None:
        """End the jobs of a group, or all; what they had done stays. Those of a lost start have ended."""
        running = self._running
        if running is None:
            return
        try:
            if group is None:
                running.context.cancelAllJobs()
            else:
                running.context.cancelJobGroup(group)
        except Exception:
            if self.loss(running) is None:
                raise

    def let_go(self) -> None:
        """Keep nobody waiting: it is not started again. What runs may end."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop Spark and its JVM, so that nothing outlives the command."""
        self.let_go()
        starting = self._starting
        if starting is not None:
            starting.kill()  # `start` ends by that
        with self._changed:
            running, self._running = self._running, None
        if running is not None:
            self._end(running)
        self._bury()

    def _end(self, running: Running, *, is_lost: bool = False) -> None:
        vault.use(None)
        running.jvm.end(is_lost=is_lost)
        running.home.remove()

    def _bury(self) -> None:
        while self._lost:
            self._end(self._lost.pop(), is_lost=True)
