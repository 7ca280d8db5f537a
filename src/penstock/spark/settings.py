"""The settings of Spark. Nowhere else is it configured."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.embedded.java import serial_collector

if TYPE_CHECKING:
    from penstock.spark.options import SparkOptions

_LOG4J = Path(__file__).with_name("log4j2.properties")

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # See worker_daemon: 116 ms for a small job as shipped, 27 ms with these two.
    "spark.python.daemon.module": "penstock.spark.worker_daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    # A task that fails is reported to the driver at once: penstock's own loop tries again, and knows why.
    "spark.task.maxFailures": "1",
    # Our JVM only plans small jobs: its optimising compiler and its concurrent collector took more
    # time than they saved (16 ms of CPU a job with both, 13 without, after 400 jobs; at first 54, 33).
    # A JVM that has run out of memory may go on with some of its threads gone: better it ends, and is
    # started anew.
    _JAVA_OPTIONS: (
        f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} -Xss4m"
        " -XX:TieredStopAtLevel=1 -XX:+ExitOnOutOfMemoryError"
    ),
    "spark.driver.memory": "768m",
    "spark.scheduler.mode": "FAIR",
    # Receipts are small; the rest of a batch never passes through the driver.
    "spark.driver.maxResultSize": "512m",
}


def settings_of(name: str, options: SparkOptions, home: Path) -> dict[str, str]:
    """Every setting of Spark for one pipeline; those of a person win.

    Args:
        home: the directory of this start, nobody else's.
    """
    settings = {
        **_SETTINGS,
        _JAVA_OPTIONS: " ".join((_SETTINGS[_JAVA_OPTIONS], *serial_collector())),
        "spark.app.name": f"penstock {name}",
        "spark.master": options.master,
    }
    if options.is_local:
        settings |= _of_this_machine(home)
        # Libraries that the JVM unpacks stay behind when it is killed.
        settings[_JAVA_OPTIONS] += f' "-Djava.io.tmpdir={home}"'
    if options.master == "local[*]":
        # Copies wait for two servers most of the time: with room beside them, batches do not wait.
        cores = os.cpu_count() or 1
        settings["spark.master"] = f"local[{2 * cores}]"
        settings["spark.default.parallelism"] = str(cores)
    return {**settings, **options.conf}


def _of_this_machine(home: Path) -> dict[str, str]:
    """Other users of this machine reach its ports, and its temporary files."""
    return {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secrets.token_hex(32),
        "spark.python.unix.domain.socket.dir": str(home),
        "spark.local.dir": str(home),
    }
