"""Which partitions are reported to a sink: those that it has not seen, of tables that flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.run.drift import PartitionDrift
from penstock.source.partitions import Partition
from penstock.state.directory import StateDirectory
from penstock.state.wire import FileWire
from penstock.table import TableName

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.state.reports import Partitions
    from penstock.state.wire import Wire

P = TableName("public", "p")
CAME = "partition public.b was attached with rows, which no change reports"
WENT = "partition public.a was detached or dropped, its rows stay at the target"
FIX = "penstock tables PIPELINE.yml resync public.p makes both sides equal"


@pytest.fixture
def wire(tmp_path: Path) -> Wire:
    (tmp_path / "sinks").mkdir()
    return FileWire(StateDirectory(tmp_path, "p"))


def report(**leaves: bool) -> Partitions:
    return {7: {ord(name): Partition(f"public.{name}", filled) for name, filled in leaves.items()}}


def test_what_was_not_remembered_is_reported_again(wire: Wire):
    drift = PartitionDrift(wire, "s")
    assert drift.compare(report(a=False), {P: 7}, ()) == {}
    drift.remember()
    for _ in range(2):
        assert drift.compare(report(b=True), {P: 7}, ()) == {P: [WENT, CAME, FIX]}
    again = PartitionDrift(wire, "s")  # killed before it was reported
    assert again.compare(report(b=True), {P: 7}, ()) == {P: [WENT, CAME, FIX]}
    again.remember()
    assert again.compare(report(b=True), {P: 7}, ()) == {}
    assert PartitionDrift(wire, "s").compare(report(b=True), {P: 7}, ()) == {}


def test_table_that_waits_for_its_copy_is_copied_as_it_is(wire: Wire):
    drift = PartitionDrift(wire, "s")
    drift.compare(report(a=False), {P: 7}, ())
    drift.remember()
    assert drift.compare(report(b=True), {}, [7]) == {}
    drift.remember()
    assert drift.compare(report(b=True), {P: 7}, ()) == {}


def test_what_happens_during_a_copy_is_reported_after_it(wire: Wire):
    drift = PartitionDrift(wire, "s")
    drift.compare(report(a=False), {P: 7}, ())
    drift.remember()
    assert drift.compare(report(b=True), {}, ()) == {}
    drift.remember()
    assert drift.compare(report(b=True), {P: 7}, ()) == {P: [WENT, CAME, FIX]}


def test_empty_partition_that_comes_is_nothing_to_report(wire: Wire):
    drift = PartitionDrift(wire, "s")
    drift.compare(report(a=False), {P: 7}, ())
    drift.remember()
    assert drift.compare(report(a=False, b=False), {P: 7}, ()) == {}


def test_partition_that_came_and_went_between_two_polls_is_reported_once(wire: Wire):
    drift = PartitionDrift(wire, "s")
    left = {7: {ord("c"): TableName("public", "c")}}
    drift.compare(report(a=False), {P: 7}, (), {7: {ord("x"): TableName("public", "x")}})
    drift.remember()  # what went before the table was first seen is nobody's

    found = drift.compare(report(a=False), {P: 7}, (), left)
    assert found == {P: [WENT.replace("public.a", "public.c"), FIX]}
    drift.remember()
    assert drift.compare(report(a=False), {P: 7}, (), left) == {}
    assert PartitionDrift(wire, "s").compare(report(a=False), {P: 7}, (), left) == {}


@pytest.mark.parametrize("stream_first", [True, False])
def test_partition_that_poll_and_stream_both_see_is_reported_once(wire: Wire, stream_first: bool):
    drift = PartitionDrift(wire, "s")
    left = {7: {ord("a"): TableName("public", "a")}}
    drift.compare(report(a=False, b=False), {P: 7}, ())
    drift.remember()
    polls = [(report(a=False, b=False), left), (report(b=False), left), (report(b=False), left)]
    if not stream_first:
        polls = [(report(b=False), {}), (report(b=False), left)]
    noted = []
    for reported, gone in polls:
        noted.append(drift.compare(reported, {P: 7}, (), gone))
        drift.remember()

    assert [each for each in noted if each] == [{P: [WENT, FIX]}]


@pytest.mark.parametrize("stream_first", [True, False])
def test_partition_that_came_filled_as_the_stream_alone_says_is_reported_once(
    wire: Wire, stream_first: bool
):
    drift = PartitionDrift(wire, "s")
    filled = {7: {ord("b"): TableName("public", "b")}}
    drift.compare(report(a=False), {P: 7}, (), {}, {7: {ord("x"): TableName("public", "x")}})
    drift.remember()  # what came before the table was first seen is nobody's
    polls = [(report(a=False), filled), (report(a=False, b=False), filled)]
    if not stream_first:
        polls = [(report(a=False, b=False), {}), (report(a=False, b=False), filled)]
    noted = []
    for reported, full in [*polls, polls[-1]]:
        noted.append(drift.compare(reported, {P: 7}, (), {}, full))
        drift.remember()

    assert [each for each in noted if each] == [{P: [CAME, FIX]}]
    again = PartitionDrift(wire, "s")
    assert again.compare(report(a=False, b=False), {P: 7}, (), {}, filled) == {}


@pytest.mark.parametrize("stream_first", [True, False])
def test_partition_that_poll_and_stream_both_call_filled_is_reported_once(
    wire: Wire, stream_first: bool
):
    drift = PartitionDrift(wire, "s")
    filled = {7: {ord("b"): TableName("public", "b")}}
    drift.compare(report(a=False), {P: 7}, ())
    drift.remember()
    polls = [(report(a=False), filled), (report(a=False, b=True), filled)]
    if not stream_first:
        polls = [(report(a=False, b=True), {}), (report(a=False, b=True), filled)]
    noted = []
    for reported, full in polls:
        noted.append(drift.compare(reported, {P: 7}, (), {}, full))
        drift.remember()

    assert [each for each in noted if each] == [{P: [CAME, FIX]}]


def test_partition_that_came_filled_while_its_table_waits_for_a_copy_is_copied_with_it(wire: Wire):
    drift = PartitionDrift(wire, "s")
    filled = {7: {ord("b"): TableName("public", "b")}}
    drift.compare(report(a=False), {P: 7}, ())
    drift.remember()
    assert drift.compare(report(a=False, b=False), {}, [7], {}, filled) == {}
    drift.remember()
    assert drift.compare(report(a=False, b=False), {P: 7}, (), {}, filled) == {}
