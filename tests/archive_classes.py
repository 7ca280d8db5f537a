"""Writes the classes of Spark, as a JVM has them once they are loaded, into a file for later JVMs.

`make test` runs this once, and conftest.py hands the file to every JVM that a test starts: to read and
check classes is a third of what such a start costs. A JVM that is another one ignores the file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

# A JVM writes the file while it ends; it is not killed meanwhile.
os.environ["PENSTOCK_TIMING"] = "1 jvm_end_seconds=300"

from penstock.spark.options import SparkOptions
from penstock.spark.session import Spark


def main(archive: Path) -> None:
    """Start Spark, have it do what tests have it do, and stop it."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={archive}"
    with tempfile.TemporaryDirectory() as directory:
        spark = Spark("classes", SparkOptions(master="local[2]"), Path(directory) / "spark.log")
        spark.start()
        context = spark.running().context
        counted = context.parallelize(range(4), 2).map(lambda number: number + 1).sum()
        spark.stop()
    assert counted == 10, counted


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
