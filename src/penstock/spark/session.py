"""The SparkSession and the few settings penstock relies on. Nowhere else is Spark configured."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.embedded.java import java_home
from penstock.errors import SparkFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from penstock.spark.options import SparkOptions

_LOG4J = Path(__file__).with_name("log4j2.properties")

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # See worker_daemon: 116 ms for a small job as shipped, 27 ms with these two.
    "spark.python.daemon.module": "penstock.spark.worker_daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    # A task that fails is told to the driver at once: penstock's own loop tries again, and knows why.
    "spark.task.maxFailures": "1",
    # Our JVM only plans small jobs: its optimising compiler and its concurrent collector took more
    # time than they saved (16 ms of CPU a job with both, 13 without, after 400 jobs; at first 54, 33).
    "spark.driver.extraJavaOptions": (
        f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} -Xss4m"
        " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    ),
    "spark.driver.memory": "768m",
    "spark.scheduler.mode": "FAIR",
    # Receipts are small; the rest of a batch never passes through the driver.
    "spark.driver.maxResultSize": "512m",
}


def start_session(name: str, options: SparkOptions, log_path: Path | None = None) -> SparkSession:
    """Start Spark for one pipeline. What the JVM and its workers print goes to `log_path`.

    Raises:
        JavaMissing: there is no Java to run it on.
        SparkFailed: it did not start.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if options.master.startswith("local"):
        # Spark asks the host's name for its address, which fails on a machine without a network.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["JAVA_HOME"] = str(java_home())
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    master, own = options.master, {}
    if master == "local[*]":
        # Copies wait for two servers most of the time: with room beside them, batches do not wait.
        cores = os.cpu_count() or 1
        master, own = f"local[{2 * cores}]", {"spark.default.parallelism": str(cores)}
    builder = SparkSession.builder.appName(f"penstock {name}").master(master)
    for key, value in {**_SETTINGS, **own, **options.conf}.items():
        builder = builder.config(key, value)
    try:
        with _stderr_to(log_path):
            session = builder.getOrCreate()
    except (PySparkException, RuntimeError) as error:
        raise SparkFailed(
            f"Spark did not start: {type(error).__name__}",
            f"spark.master {options.master}",
            "check spark.master and spark.conf in the pipeline file, and that Java runs: java -version",
        ) from error
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    """Let a child process that is started here write its stderr to a file.

    The JVM greets with warnings that nobody can act on; errors of jobs come as exceptions.
    """
    if path is None:
        yield
        return
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def stop_session(session: SparkSession) -> None:
    """Stop Spark and its JVM, so that nothing outlives the command."""
    gateway = session.sparkContext._gateway  # noqa: SLF001
    session.stop()
    if gateway is not None:
        gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            process.stdin.close()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
