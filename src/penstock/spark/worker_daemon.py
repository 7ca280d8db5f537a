"""The parent of Spark's Python workers: they are born warm. Started by Spark, by module name.

Spark puts its jars and zips on sys.path, and every task then reads the directory of a jar of 40 MB
again, 40-90 ms each time. They are taken out before the first fork, and what tasks need is imported
once here.
"""

from __future__ import annotations

import sys


def _shorten_path() -> None:
    sys.path[:] = [entry for entry in sys.path if not entry.endswith((".zip", ".jar"))]
    for entry in list(sys.path_importer_cache):
        if entry.endswith((".zip", ".jar")):
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
    daemon.manager()  # type: ignore[no-untyped-call]
