"""The public functions, as far as they need neither server nor Spark."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.run import functions

if TYPE_CHECKING:
    from pathlib import Path


def test_pipeline_file_that_cannot_be_read_is_an_error_of_penstock(tmp_path: Path) -> None:
    for call in (penstock.run, penstock.status, penstock.check):
        with pytest.raises(penstock.PenstockError, match="PEN-101"):
            call(tmp_path / "none.yml")


def test_run_is_a_function_also_once_the_package_of_its_name_is_imported() -> None:
    asked = (
        "import penstock; before = penstock.run; import penstock.run.status;"
        "from penstock import run; print(callable(before), before is run is penstock.run)"
    )

    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["True", "True"]
    assert inspect.signature(penstock.run) == inspect.signature(functions.run)


def test_import_is_cheap() -> None:
    asked = (
        "import sys, penstock; first = 'pydantic' in sys.modules;"
        "penstock.status; print(first, 'pyspark' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("level", "wanted"),
    [(logging.DEBUG, "debug"), (15, "info"), (logging.WARNING, "warning"), (99, "error")],
)
def test_capture_logs_at_the_level_of_the_caller(
    level: int, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("penstock"), "level", level)

    assert functions._level() == wanted
