"""What log lines look like."""

from __future__ import annotations

import json
import logging
from contextvars import copy_context

import pytest

from penstock.logging import set_up_logging, speak_for


@pytest.fixture(autouse=True)
def as_before():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.mark.parametrize("source", ["", "eu"])
def test_line_names_the_source_where_there_are_several(
    capsys: pytest.CaptureFixture[str], source: str
):
    def speak() -> None:
        speak_for(source)
        logging.getLogger("penstock.run").warning("a %s", "line")

    for log_format in ("text", "json"):
        set_up_logging(log_format, "info")
        copy_context().run(speak)
    text, told = capsys.readouterr().err.splitlines()

    assert text.partition(" ")[2] == (f"{source}: a line" if source else "a line")
    found = json.loads(told)
    assert (found["message"], found["part"], found.get("source", "")) == ("a line", "run", source)
