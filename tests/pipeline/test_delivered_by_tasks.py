"""Documents that Spark tasks deliver, brought together by key with Spark's own shuffle."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fix_event_sinks import IDENTITY, ORDERS, START, batch_of, place_of
from penstock.lsn import Lsn
from penstock.sinks.documents.driver import DocumentDriver
from penstock.spark.jobs import Span, run_job
from penstock.testing import insert, read_log, relation, transaction, update, write_log
from penstock.testing.task_files import TaskFilesKind, TaskFilesOptions

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.spark.session import Spark

ROWS = 300


def test_documents_of_a_key_are_delivered_by_one_task_in_order(spark: Spark, tmp_path: Path):
    for number in range(1, 7):
        rows = [
            insert(ORDERS, [str(row), "0"])
            if number == 1
            else update(ORDERS, [str(row), str(number)])
            for row in range(ROWS)
        ]
        messages = [relation(ORDERS), *transaction(START + 0x100 * number, *rows, xid=number)]
        write_log(tmp_path / "log", messages, START)
    place = place_of("spread", TaskFilesOptions(path=tmp_path / "out"), tmp_path / "state")
    sink = DocumentDriver(TaskFilesKind(), place)
    assert sink.open() is None
    sink.begin(IDENTITY, START)
    slices = read_log(tmp_path / "log", START)
    batch = batch_of(START, slices)

    span = Span(batch.after_lsn, batch.end_lsn)
    receipts = run_job(spark, sink.worker(batch), slices, span, spark.parallel)
    sink.commit(batch, receipts)

    files = [_documents(path) for path in (tmp_path / "out").glob("*.jsonl")]
    assert len(files) > 1, "only one task has delivered"
    assert sum(map(len, files)) == 6 * ROWS
    seen: set[int] = set()
    for documents in files:
        by_key: dict[int, list[int]] = {}
        for one in documents:
            by_key.setdefault(one["key"]["id"], []).append(Lsn.parse(one["commit_lsn"]))
        assert all(len(places) == 6 and places == sorted(places) for places in by_key.values())
        assert seen.isdisjoint(by_key)
        seen |= set(by_key)
    assert sink.open().delivered_lsn == batch.end_lsn
    sink.close()


def _documents(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
