"""The two loops, processes and status. Called as a function, the package runs a pipeline.

`penstock.run` is the name of this package and of the public function: Python binds a package to its name in
its parent as soon as anything of it is imported, so both must be one object. See penstock.run.functions.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.config import PipelineFile


class _CallablePackage(ModuleType):
    def __call__(
        self,
        pipeline: str | Path | PipelineFile,
        spark: SparkSession | None = None,
        until_caught_up: bool = False,
        *,
        stop: threading.Event | None = None,
    ) -> None:
        """See `penstock.run.functions.run`."""
        from penstock.run.functions import run

        run(pipeline, spark, until_caught_up, stop=stop)


sys.modules[__name__].__class__ = _CallablePackage
