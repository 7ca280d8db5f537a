"""Documents that Spark tasks deliver: each task reads a batch as a whole, and delivers the keys of its share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fix_event_sinks import IDENTITY, ORDERS, START, batch_of, place_of
from fix_task_files import TaskFilesKind, TaskFilesOptions
from penstock.changes.cells import gather
from penstock.errors import ValueNotSent
from penstock.lsn import Lsn
from penstock.sinks.documents.driver import DocumentDriver
from penstock.sinks.tables import TableState
from penstock.spark.jobs import Span, run_job
from penstock.testing import insert, read_log, relation, table, transaction, update, write_log

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.changes.decode import TableChanges
    from penstock.spark.session import Spark
    from penstock.table import TableName

ROWS = 300
LINES = table(16500, "lines", {"id": "int8", "note": "text"}, key=["id"])
# So that a batch is worth more than one task.
NOTE = "x" * 2000


def test_documents_of_a_key_are_delivered_by_one_task_in_order(spark: Spark, tmp_path: Path):
    for number in range(1, 7):
        rows = [
            insert(ORDERS, [str(row), NOTE])
            if number == 1
            else update(ORDERS, [str(row), f"{number}{NOTE}"])
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

    # A file for each call of `deliver`, by the first commit in it.
    files = [_documents(path) for path in sorted((tmp_path / "out").glob("*.jsonl"))]
    keys = [{one["key"]["id"] for one in documents} for documents in files]
    assert any(one.isdisjoint(other) for one in keys for other in keys), (
        "one task has delivered all"
    )
    by_key: dict[int, list[int]] = {}
    for documents in files:
        for one in documents:
            by_key.setdefault(one["key"]["id"], []).append(Lsn.parse(one["commit_lsn"]))
    assert len(by_key) == ROWS
    assert all(len(places) == 6 and places == sorted(places) for places in by_key.values())
    assert sink.open().delivered_lsn == batch.end_lsn
    sink.close()


def refuses_lines() -> Any:
    """Modifiers that leave `orders` alone, and cannot be applied to a row of `lines`."""
    lines = LINES.table

    class RefusesLines:  # in here, so that it travels to tasks as a whole
        def concerns(self, table: TableName) -> bool:
            return table == lines

        def excludes(self, table: TableName) -> bool:
            del table
            return False

        def of(self, table: TableName) -> RefusesLines:
            del table
            return self

        def apply(self, changes: TableChanges) -> TableChanges:
            if b"bad" in gather(changes.after[1]).to_pylist():
                raise ValueNotSent("a value is not there", str(lines), "give it")
            return changes

    return RefusesLines()


def test_table_that_a_rule_stops_stops_alone_and_the_others_are_delivered(
    spark: Spark, tmp_path: Path
):
    for number in range(1, 7):
        rows = [insert(ORDERS, [str(100 * number + row), "x"]) for row in range(50)]
        lines = [insert(LINES, [str(100 * number + row), "x"]) for row in range(50)]
        if number == 4:
            lines[7] = insert(LINES, ["407", "bad"])
        messages = [relation(ORDERS), relation(LINES)]
        messages += transaction(START + 0x100 * number, *rows, *lines, xid=number)
        write_log(tmp_path / "log", messages, START)
    place = place_of("spread", TaskFilesOptions(path=tmp_path / "out"), tmp_path / "state")
    sink = DocumentDriver(TaskFilesKind(), place)
    assert sink.open() is None
    sink.begin(IDENTITY, START)
    slices = read_log(tmp_path / "log", START)
    batch = batch_of(START, slices)

    span = Span(batch.after_lsn, batch.end_lsn)
    receipts = run_job(spark, sink.worker(batch), slices, span, spark.parallel, refuses_lines())
    sink.commit(batch, receipts)

    found = [one for path in (tmp_path / "out").glob("*.jsonl") for one in _documents(path)]
    assert {one["table"] for one in found} == {"orders"}, (
        "nothing of the table, be it before the row"
    )
    assert len(found) == len({one["id"] for one in found}) == 300
    assert sink.change_count == 300
    assert sink.open().delivered_lsn == batch.end_lsn
    [(name, failed)] = sink.tables.detached.items()
    assert (name, failed.state, failed.delivered_lsn) == (LINES.table, TableState.FAILED, START)
    assert "PEN-702" in failed.error
    sink.close()


def _documents(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
