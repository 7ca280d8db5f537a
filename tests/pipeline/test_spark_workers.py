"""The Python processes that Spark's tasks run in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark

from penstock.spark.jobs import run_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.spark.session import Spark


def test_workers_import_pyspark_from_where_it_is_compiled(spark: Spark) -> None:
    # A function of a function: its code travels, since workers have no tests to import.
    def files_of_modules(_work: Iterable[int]) -> list[str]:
        import py4j
        import pyspark

        return [str(pyspark.__file__), str(py4j.__file__)]

    of_pyspark, of_py4j = run_tasks(spark, files_of_modules, [1])

    assert of_pyspark == pyspark.__file__
    assert ".zip" not in of_py4j
