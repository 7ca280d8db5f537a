"""The format of log lines."""

from __future__ import annotations

import json
import logging
from contextvars import copy_context

import pytest

from penstock.errors import RowRefused
from penstock.logging import set_up_logging, speak_for, speak_of_batch, speak_of_sink


@pytest.fixture(autouse=True)
def as_before():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    # Other tests run parts of a pipeline in this thread, which name what they speak for.
    speak_for("")
    speak_of_sink("")
    speak_of_batch(None)
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
    text, reported = capsys.readouterr().err.splitlines()

    assert text.partition(" ")[2] == (f"{source}: a line" if source else "a line")
    found = json.loads(reported)
    assert (found["message"], found["part"], found.get("source", "")) == ("a line", "run", source)


def test_line_names_the_sink_where_there_are_several_and_once(capsys: pytest.CaptureFixture[str]):
    def speak() -> None:
        speak_for("eu")
        speak_of_sink("lake")
        logging.getLogger("penstock.run").warning("copied %d tables", 3)
        logging.getLogger("penstock.run").warning("sink %s: gone", "lake")

    for log_format in ("text", "json"):
        set_up_logging(log_format, "info")
        copy_context().run(speak)
    lines = capsys.readouterr().err.splitlines()

    assert [line.partition(" ")[2] for line in lines[:2]] == [
        "eu: sink lake: copied 3 tables",
        "eu: sink lake: gone",
    ]
    assert [json.loads(line)["sink"] for line in lines[2:]] == ["lake", "lake"]


def test_line_in_json_names_the_batch_and_its_trace_until_there_is_none(
    capsys: pytest.CaptureFixture[str],
):
    trace_id = "0af7651916cd43dd8448eb211c80319c"

    def speak() -> None:
        for given in ((7, trace_id), (8, None), (None, None)):
            speak_of_batch(*given)
            logging.getLogger("penstock.run").warning("a line")

    for log_format in ("text", "json"):
        set_up_logging(log_format, "info")
        copy_context().run(speak)
    lines = capsys.readouterr().err.splitlines()

    assert [line.partition(" ")[2] for line in lines[:3]] == ["a line"] * 3
    found = [json.loads(line) for line in lines[3:]]
    assert [(each.get("batch"), each.get("trace_id")) for each in found] == [
        (7, trace_id),
        (8, None),
        (None, None),
    ]


_FORGED = "x\n12:00:00 all is well\r\x1b[2J\u202e\u2028"
_SPELLED = r"x\n12:00:00 all is well\r\x1b[2J\u202e\u2028"


def test_what_others_have_named_makes_no_line_of_the_log(capsys: pytest.CaptureFixture[str]):
    set_up_logging("text", "info")
    log = logging.getLogger("penstock.run")
    log.warning("%s: default %r left out, %.1f times", _FORGED, "a[b", 3)
    log.error("%s", RowRefused(f"refused {_FORGED}", _FORGED, f"fix {_FORGED}"))
    log.info("%(name)s", {"name": _FORGED})
    lines = capsys.readouterr().err.split("\n")

    assert [line.partition(" ")[2] for line in lines if not line.startswith(" ")] == [
        f"{_SPELLED}: default 'a[b' left out, 3.0 times",
        f"PEN-506 {_SPELLED}: refused {_SPELLED}",
        _SPELLED,
        "",
    ]
    assert [line for line in lines if line.startswith(" ")] == [f"  Do: fix {_SPELLED}"]


def test_line_in_json_has_the_traceback_of_a_defect_on_its_one_line(
    capsys: pytest.CaptureFixture[str],
):
    def fail() -> None:
        raise ValueError(_FORGED)

    set_up_logging("json", "info")
    try:
        fail()
    except ValueError:
        logging.getLogger("penstock.run").exception("a defect")
    logging.getLogger("penstock.run").warning("no defect")
    first, second = capsys.readouterr().err.rstrip("\n").split("\n")

    found = json.loads(first)
    assert found["message"] == "a defect"
    assert found["error"].startswith("Traceback (most recent call last):\n")
    assert found["error"].endswith(f"ValueError: {_FORGED}")
    assert "\u2028" not in first
    assert "error" not in json.loads(second)


def test_no_line_of_a_traceback_looks_like_a_line_of_the_log(capsys: pytest.CaptureFixture[str]):
    def fail() -> None:
        raise ValueError(_FORGED)

    set_up_logging("text", "info")
    try:
        fail()
    except ValueError:
        logging.getLogger("penstock.run").exception("a defect")
    first, *others = capsys.readouterr().err.rstrip("\n").split("\n")

    assert first.endswith(" a defect")
    assert all(line.startswith("    ") for line in others)
    assert "\x1b" not in "".join(others)
