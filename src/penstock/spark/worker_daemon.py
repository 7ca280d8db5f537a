"""The parent of Spark's Python workers: they are born warm. Started by Spark, by module name.

Two things cost every task more than its work, and are taken away before the first fork:

- Spark puts its jars and zips on sys.path, and calls importlib.invalidate_caches() in every task, which
  reads the directory of each of them again, 40-90 ms each time.
- After each task the worker collects garbage over all that is imported; frozen objects are left out.
"""

from __future__ import annotations

import gc
import sys
import zipimport


def _shorten_path() -> None:
    sys.path[:] = [entry for entry in sys.path if not entry.endswith((".zip", ".jar"))]
    # The keys are also folders inside an archive, such as pyspark.zip/pyspark/sql.
    for entry, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[entry]


def _warm() -> None:
    import penstock.sinks.file.worker
    import penstock.sinks.postgres.worker  # with numpy, pyarrow and psycopg
    import penstock.sinks.stdout.worker
    import penstock.spark.jobs  # noqa: F401


if __name__ == "__main__":
    # Imported before the path is cut: on a cluster pyspark itself may live in one of those zips.
    from pyspark import daemon, worker  # noqa: F401

    _warm()
    _shorten_path()
    gc.collect()
    gc.freeze()
    daemon.manager()  # type: ignore[no-untyped-call]
