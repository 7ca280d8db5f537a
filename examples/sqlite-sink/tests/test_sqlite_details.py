"""What is this sink's own."""

import sqlite3

import pyarrow as pa
import pytest
from penstock_sqlite import SqliteKind, SqliteOptions

from penstock.sink import DOCUMENTS, DocumentsRefused, SinkPlace


def test_check_finds_a_path_where_no_file_can_be(tmp_path):
    (tmp_path / "file").touch()
    options = SqliteOptions(path=tmp_path / "file" / "changes.db")
    place = SinkPlace("local", options, "shop", "shop", ("shop",), tmp_path / "state")

    [finding] = SqliteKind().sink(place).check()

    assert finding.place == str(tmp_path / "file")


def test_two_sources_share_a_database(tmp_path):
    options = SqliteOptions(path=tmp_path / "changes.db")
    sinks = [
        SqliteKind().sink(SinkPlace("local", options, "shop", each, ("eu", "us"), tmp_path))
        for each in ("eu", "us")
    ]

    for sink in sinks:
        assert sink.open() is None
    sinks[0].deliver(iter(()), "position of eu")

    assert [sink.open() for sink in sinks] == ["position of eu", None]
    for sink in sinks:
        sink.close()


def test_document_that_comes_again_is_skipped_and_another_with_its_id_refused(tmp_path):
    options = SqliteOptions(path=tmp_path / "changes.db")
    place = SinkPlace("local", options, "shop", "shop", ("shop",), tmp_path / "state")
    sink = SqliteKind().sink(place)
    sink.open()
    row = {"schema": "public", "table": "orders", "op": "insert", "commit_lsn": 1, "ordinal": 0}
    row |= {"id": "shop:0/1:0", "key": None, "value": '{"id":"shop:0/1:0"}'}
    other = {**row, "value": '{"id":"shop:0/1:0","after":{}}'}

    for _ in range(2):
        sink.deliver(iter([pa.RecordBatch.from_pylist([row], DOCUMENTS)]), "state")
    with pytest.raises(DocumentsRefused) as refused:
        sink.deliver(iter([pa.RecordBatch.from_pylist([other], DOCUMENTS)]), "state")
    sink.close()

    assert list(refused.value.reasons) == ["shop:0/1:0"]
    with sqlite3.connect(options.path) as database:
        assert database.execute("SELECT value FROM documents").fetchall() == [(row["value"],)]
