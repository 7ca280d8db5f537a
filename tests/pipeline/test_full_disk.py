"""A disk that is full: capture waits, what is delivered is deleted, then capture goes on. On a small disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fix_machine import mounted_disk
from fix_pipeline import assert_equal, pipeline_document, row_count, rows
from fix_postgres import only_new
from fix_wait import wait_until
from penstock.config import pipeline_from_document
from penstock.pipeline import check_logs
from penstock.run.status import read_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fix_pipeline import RunningPipeline
    from fix_postgres import Database

    Make = Callable[..., RunningPipeline]

pytestmark = only_new

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
ROWS = "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(%s::int, %s::int) g"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    place = tmp_path / "small"
    place.mkdir()
    with mounted_disk(place, "24m") as disk:
        yield disk


def write_until_full(source: Database, pipeline: RunningPipeline, target: Database) -> None:
    """Write more than the disk takes, while the target takes nothing."""
    with target.connect(autocommit=False) as blocker:
        blocker.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        for number in range(40):
            source.execute(ROWS, number * 1000 + 1, number * 1000 + 1000)
        report = pipeline.file.state / "capture.json"
        wait_until(
            lambda: pipeline.failures or "PEN-302" in report.read_text(),
            60,
            what="the disk to be full",
        )
        assert pipeline.failures == []
        found = read_status(pipeline.file)
        blocker.rollback()
    assert found.phase == "failed"
    assert "PEN-302" in (found.sources["test"].error or "")


@pytest.mark.parametrize("way", ["on", pytest.param("anew", marks=pytest.mark.long)])
def test_disk_that_is_full_drains_and_capture_goes_on(
    source: Database, target: Database, small_disk: Path, make_pipeline: Make, way: str
) -> None:
    source.execute(TABLE)
    target.execute(TABLE)
    pipeline = make_pipeline(source, target, tables=("public.t",), state=str(small_disk / "state"))
    pipeline.catch_up()
    write_until_full(source, pipeline, target)

    if way == "anew":
        pipeline.stop()
        assert pipeline.failures == []
        fill(small_disk)
        pipeline.start()
        wait_until(lambda: pipeline.failures or row_count(target, "t") > 10_000, 60, what="rows")
        assert pipeline.failures == []
        (small_disk / "ballast").unlink()
    pipeline.catch_up(120)

    assert_equal(source, target, "t")
    wait_until(
        lambda: read_status(pipeline.file).sources["test"].error is None, what="the error to go"
    )
    source.execute("CREATE TABLE u (id int PRIMARY KEY); ALTER TABLE t ADD w int")
    source.execute("UPDATE t SET w = 1 WHERE id < 10")
    pipeline.catch_up()
    assert_equal(source, target, "t")


def fill(disk: Path) -> None:
    """Somebody else takes all that is left, to the last byte."""
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


@pytest.mark.long
@pytest.mark.parametrize("way", ["streamed", "in parts"])
def test_transaction_that_does_not_fit_arrives_once_it_does(
    source: Database, target: Database, small_disk: Path, make_pipeline: Make, way: str
) -> None:
    memory = "64kB" if way == "streamed" else "100MB"
    source.execute(f"ALTER SYSTEM SET logical_decoding_work_mem = '{memory}'")
    source.execute("SELECT pg_reload_conf()")
    source.execute(TABLE)
    target.execute(TABLE)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(12_000_000))
    pipeline = make_pipeline(source, target, tables=("public.t",), state=str(small_disk / "state"))
    source.execute(ROWS, 1, 100)
    pipeline.catch_up()

    source.execute(ROWS, 101, 15_000)
    report = pipeline.file.state / "capture.json"
    wait_until(lambda: "PEN-302" in report.read_text(), 60, what="the disk to be full")
    assert len(rows(target, "t")) == 100
    ballast.unlink()
    pipeline.catch_up(120)
    source.execute("ALTER SYSTEM RESET logical_decoding_work_mem")
    source.execute("SELECT pg_reload_conf()")

    assert pipeline.failures == []
    assert_equal(source, target, "t")


def test_check_compares_what_is_free_with_what_the_log_may_take(
    source: Database, tmp_path: Path, small_disk: Path
) -> None:
    sink = {"kind": "file", "path": str(tmp_path / "out")}
    document = pipeline_document(source, None, small_disk, sink=sink)

    def found(retain_bytes: str) -> list[str]:
        file = pipeline_from_document({**document, "log": {"retain_bytes": retain_bytes}}, "test")
        return [str(each) for each in check_logs(file)]

    [reported] = found("100MB")
    assert "PEN-302" in reported
    assert " MB are free, less than the 100.0 MB that log.retain_bytes" in reported
    assert "Do: set log.retain_bytes to what may be used here, such as 18MB" in reported
    assert found("10MB") == []
