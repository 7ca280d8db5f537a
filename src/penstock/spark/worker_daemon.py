"""The parent of Spark's Python workers: they start warm. Started by Spark, by module name.

The package pyspark is imported from its directory where Spark would have it read from the zip inside that
directory: modules in a zip are compiled at every start, which takes a second.

Two things cost every task more than its work, and are taken away before the first fork:

- Spark puts its jars and zips on sys.path, and calls importlib.invalidate_caches() in every task, which
  reads the directory of each of them again, 40-90 ms each time.
- After each task the worker collects garbage over all that is imported; frozen objects are left out.

SIGTERM, SIGINT and SIGHUP are for penstock, which lets tasks end: here they are ignored. The end of stdin
ends the daemon, and that its workers.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import zipimport
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def _unpack_pyspark() -> None:
    """Put the directory that has pyspark in the place of the zip of it that lies in there."""
    for place, entry in enumerate(sys.path):
        package = Path(entry).parents[2] if entry.endswith("/python/lib/pyspark.zip") else None
        if package is not None and (package / "__init__.py").exists():
            sys.path[place] = str(package.parent)


def _shorten_path() -> None:
    sys.path[:] = [entry for entry in sys.path if not entry.endswith((".zip", ".jar"))]
    # The keys are also folders inside an archive, such as pyspark.zip/pyspark/sql.
    for entry, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[entry]


def _warm() -> None:
    import penstock.spark.jobs  # noqa: F401
    from penstock.sinks.registry import import_workers

    import_workers()


def _ignore_signals(daemon: ModuleType) -> None:
    """Have the daemon use signals that nobody else sends; by SIGHUP it ends its workers."""
    others = {"SIGTERM": signal.SIGUSR2, "SIGINT": signal.SIGUSR2, "SIGHUP": signal.SIGUSR1}
    for name, other in others.items():
        signal.signal(getattr(signal, name), signal.SIG_IGN)
        setattr(daemon, name, other)


if __name__ == "__main__":
    os.umask(0o077)
    _unpack_pyspark()
    # Imported before the path is cut: on a cluster pyspark itself may live in one of those zips.
    from pyspark import daemon, worker  # noqa: F401

    _ignore_signals(daemon)
    _warm()
    _shorten_path()
    gc.collect()
    gc.freeze()
    daemon.manager()  # type: ignore[no-untyped-call]
