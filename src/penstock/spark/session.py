"""The Spark of one pipeline: started, handed to who runs jobs, lost, started anew.

When and how often it is started anew is decided elsewhere (penstock.run.sparkwatch). A Spark that somebody
else has started is in penstock.spark.borrowed.
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
from penstock.spark.jvm import Jvm, JvmEnded, has_context
from penstock.spark.settings import settings_of
from penstock.vault import Vault

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark import SparkContext

    from penstock.spark.jvm import BorrowedJvm
    from penstock.spark.options import SparkOptions

_log = logging.getLogger(__name__)

_SET_BY_PYSPARK = ("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE")


class Running(NamedTuple):
    """One start of Spark that takes jobs, until it is lost."""

    context: SparkContext
    jvm: Jvm | BorrowedJvm
    home: SparkHome


class Spark:
    """What jobs are run on. Threads that want one wait while Spark is being started anew.

    `log_path`: where what the JVM and its workers print goes. On a cluster, executors see its directory.
    """

    can_start_again = True

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
        self._environment: dict[str, str | None] = {}  # as it was before

    def start(self) -> None:
        """Start it, and remove what is left of a start that was lost. In any thread but one at a time.

        Raises:
            JavaMissing: there is no Java to run it on.
            SparkFailed: it did not start.
            SparkGone: it was killed meanwhile.
        """
        self._bury()
        if has_context():
            raise SparkFailed(
                "this process has a SparkSession, and can have but one",
                "spark",
                "give it to penstock.run as spark=, or stop it first",
            )
        self._set_environment()
        home = self._make_home()
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
        self._hand_out(running)

    def _make_home(self) -> SparkHome:
        return SparkHome(None if self._options.is_local else self._log_path.parent)

    def _hand_out(self, running: Running) -> None:
        """From now on it takes jobs; unless it was stopped meanwhile."""
        with self._changed:
            if not self._is_over:
                self._running = running
                self._changed.notify_all()
                return
        self._end(running)

    def _set_environment(self) -> None:
        """Set what pyspark, and the JVM, read from there. Once only: what was there is put back."""
        if self._environment:
            return
        wanted = {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "JAVA_HOME": str(java_home()),
        }
        if self._options.is_local and "SPARK_LOCAL_IP" not in os.environ:
            # Spark asks the host's name for its address, which fails on a machine without a network.
            wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
        self._environment = {name: os.environ.get(name) for name in (*wanted, *_SET_BY_PYSPARK)}
        os.environ.update(wanted)

    def _put_environment_back(self) -> None:
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._environment = {}

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
        if running is not None and running.jvm.has_ended:
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

    def _explain_loss(self, running: Running) -> SparkGone:
        assert isinstance(running.jvm, Jvm)
        return self._gone(running.jvm)

    def _lose(self, running: Running) -> SparkGone:
        loss = self._explain_loss(running)
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

    def label_job(self, running: Running) -> None:
        """Called in the thread of a job before each."""

    def cancel(self, group: str | None = None) -> None:
        """End the jobs of a group, or all; what they had done stays. Those of a lost start have ended."""
        running = self._running
        if running is None:
            return
        try:
            if group is None:
                self._cancel_all(running)
            else:
                running.context.cancelJobGroup(group)
        except Exception:
            if self.loss(running) is None:
                raise

    def _cancel_all(self, running: Running) -> None:
        running.context.cancelAllJobs()

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
        self._put_environment_back()

    def _end(self, running: Running, *, is_lost: bool = False) -> None:
        vault.use(None)
        running.jvm.end(is_lost=is_lost)
        running.home.remove()

    def _bury(self) -> None:
        while self._lost:
            self._end(self._lost.pop(), is_lost=True)
