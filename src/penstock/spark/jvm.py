"""The JVM that Spark's driver runs in: launched, talked to, ended; or somebody else's, and left alone. The
only place that knows how pyspark keeps what belongs to one JVM, and forgets it with the JVM.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.shelter import start_sheltered
from penstock.timing import timing

if TYPE_CHECKING:
    from pyspark import SparkContext


# spark-submit asks a JVM of a few hundred milliseconds for the command line of the real one. No garbage collector is
# chosen for it: where JAVA_TOOL_OPTIONS has another one, it would not start.
LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1"

# pyspark finds a gateway by two variables of the environment.
_connecting = threading.Lock()


class JvmEnded(Exception):
    """The JVM ended before Spark was up."""


def has_context() -> bool:
    """Whether this process has a SparkContext; pyspark allows one."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None  # noqa: SLF001


class Jvm:
    """One JVM, from its launch on. `connect` makes its SparkContext."""

    def __init__(self, properties: Path, home: Path, log: Path | None) -> None:
        from pyspark import SparkContext
        from pyspark.find_spark_home import _find_spark_home

        self._info = home / "gateway"
        submit = str(Path(_find_spark_home()) / "bin" / "spark-submit")  # type: ignore[no-untyped-call]
        given = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        settings = ["--properties-file", str(properties), "--load-spark-defaults"]
        environment = {
            "SPARK_LAUNCHER_OPTS": LAUNCHER_OPTIONS,
            **os.environ,
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._info),
        }
        output = os.open(
            log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            self.process = start_sheltered(
                [submit, *settings, *given], stdout=output, stderr=output, env=environment
            )
        finally:
            os.close(output)
        self.context: SparkContext | None = None
        self._gateway: Any = None
        # A session that was stopped leaves its JVM behind, which the next context would be made in.
        self._kept = SparkContext._gateway, SparkContext._jvm  # noqa: SLF001

    def connect(self) -> SparkContext:
        """Wait for the JVM, and make its SparkContext.

        Raises:
            JvmEnded: it ended.
            Exception: pyspark's or py4j's own.
        """
        from pyspark import SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.serializers import UTF8Deserializer, read_int

        while not self._info.exists():
            if self.process.poll() is not None:
                raise JvmEnded(self.how_it_ended)
            time.sleep(timing().jvm_poll_seconds)
        with self._info.open("rb") as info:
            port, secret = read_int(info), UTF8Deserializer().loads(info)  # type: ignore[no-untyped-call]
        self._info.unlink()
        with _connecting:
            os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
            os.environ["PYSPARK_GATEWAY_SECRET"] = secret
            try:
                self._gateway = launch_gateway()  # type: ignore[no-untyped-call]
            finally:
                del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
        # Of a JVM that dies just now; it is reported by who started it.
        warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark", RuntimeWarning)
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
        # Its settings are those of the properties file, which the JVM has read.
        self.context = SparkContext(gateway=self._gateway)
        # A JVM that is killed closes a connection here; the traceback would be printed.
        server: Any = self.context._accumulatorServer  # noqa: SLF001
        server.handle_error = lambda *_: None
        self.context.setLogLevel("ERROR")
        return self.context

    def delete_at_exit(self, *paths: Path) -> None:
        """Have the JVM remove files when it ends by itself, as it does when this process is killed."""
        for path in paths:
            self._gateway.jvm.java.io.File(str(path)).deleteOnExit()

    @property
    def is_well(self) -> bool:
        """Whether the JVM lives and takes jobs."""
        return not self.has_ended and self.context is not None and _takes_jobs(self.context)

    @property
    def has_ended(self) -> bool:
        """Whether the JVM is gone; cheap."""
        return self.process.poll() is not None

    @property
    def was_killed(self) -> bool:
        """Whether it was ended by a signal, and not by itself."""
        code = self._exit_code()
        return code is not None and code < 0

    def _exit_code(self) -> int | None:
        try:
            # Its connections are closed a moment before it is gone.
            return self.process.wait(timeout=timing().jvm_gone_seconds)
        except subprocess.TimeoutExpired:
            return None

    @property
    def how_it_ended(self) -> str:
        """For a message."""
        code = self._exit_code()
        if code is None:
            return "takes no jobs any more"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def kill(self) -> None:
        """End it at once; from any thread."""
        self.process.kill()

    def end(self, *, is_lost: bool = False) -> None:
        """Stop Spark and the JVM, and forget all that pyspark keeps of them.

        Args:
            is_lost: there is nothing to be stopped in order.
        """
        if is_lost:
            self.process.kill()
        elif self.context is not None:
            with suppress(Exception):  # the JVM may die at any moment
                self.context._jsc.stop()  # noqa: SLF001
        if self._gateway is not None:
            with suppress(Exception):
                self._gateway.shutdown()
        with suppress(BrokenPipeError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        try:
            self.process.wait(timeout=timing().jvm_end_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._forget()

    def _forget(self) -> None:
        from pyspark import SparkContext, SparkFiles

        context = self.context or SparkContext._active_spark_context  # noqa: SLF001
        if context is not None:
            server = getattr(context, "_accumulatorServer", None)
            if server is not None:
                server.shutdown()
            context._jsc = None  # noqa: SLF001
            context._accumulatorServer = None  # type: ignore[assignment] # noqa: SLF001
        with SparkContext._lock:  # noqa: SLF001
            SparkContext._active_spark_context = None  # noqa: SLF001
            SparkContext._gateway, SparkContext._jvm = self._kept  # noqa: SLF001
        SparkFiles._sc = None  # noqa: SLF001
        # Each start puts a directory of its own on the path.
        sys.path[:] = [entry for entry in sys.path if "/userFiles-" not in entry]


class BorrowedJvm:
    """The JVM of a SparkContext that somebody else has made. It is asked how it is, and never ended."""

    def __init__(self, context: SparkContext) -> None:
        self.context = context

    def delete_at_exit(self, *paths: Path) -> None:
        """As of a JVM of ours."""
        for path in paths:
            jvm: Any = self.context._jvm  # noqa: SLF001
            jvm.java.io.File(str(path)).deleteOnExit()

    @property
    def is_well(self) -> bool:
        """Whether it takes jobs."""
        return _takes_jobs(self.context)

    @property
    def has_ended(self) -> bool:
        """Whether it takes no jobs any more; its process may be nobody's child."""
        return not self.is_well

    def kill(self) -> None:
        """Left to its owner."""

    def end(self, *, is_lost: bool = False) -> None:
        """Left to its owner."""


def _takes_jobs(context: SparkContext) -> bool:
    try:
        return not context._jsc.sc().isStopped()  # noqa: SLF001
    except Exception:  # noqa: BLE001 - whatever py4j says of it: it does not answer
        return False
