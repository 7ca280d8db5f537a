"""One object holds all times, and tests shorten those that are merely waited."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields

import pytest

from penstock.timing import VARIABLE, Timing, parse_timing, timing


def test_nothing_in_the_variable_leaves_all_times_as_they_are():
    assert parse_timing("") == Timing()


def test_factor_shortens_pauses_and_leaves_limits():
    found = parse_timing("0.1")

    assert found.membership_poll_seconds == pytest.approx(0.2)
    assert found.retry_last_seconds == pytest.approx(1.5)
    assert found.delivery_patience_seconds == Timing().delivery_patience_seconds
    assert found.stream_answer_seconds == Timing().stream_answer_seconds


def test_no_poll_becomes_a_busy_loop():
    found = parse_timing("0.0001")

    for one in fields(Timing):
        before = getattr(Timing(), one.name)
        assert getattr(found, one.name) >= min(before, 0.02), one.name


def test_single_times_can_be_set_beside_the_factor():
    found = parse_timing("0.1 state_lock_patience_seconds=0.5 review_seconds=2")

    assert found.state_lock_patience_seconds == 0.5
    assert found.review_seconds == 2
    assert found.membership_poll_seconds == pytest.approx(0.2)


@pytest.mark.parametrize("text", ["2", "0", "-1", "nan", "quick", "no_such_seconds=1", "=1"])
def test_what_is_no_timing_is_refused(text: str):
    with pytest.raises(ValueError, match=r"PENSTOCK_TIMING|could not convert"):
        parse_timing(text)


def test_timing_of_a_process_is_not_changed_in_place():
    with pytest.raises(FrozenInstanceError):
        timing().review_seconds = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(("text", "wanted"), [("", "2.0"), ("0.5", "1.0")])
def test_process_reads_its_timing_from_the_environment(
    text: str, wanted: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(VARIABLE, text)

    ask = "from penstock.timing import timing; print(timing().membership_poll_seconds)"
    said = subprocess.run([sys.executable, "-c", ask], capture_output=True, check=True, text=True)

    assert said.stdout.strip() == wanted
