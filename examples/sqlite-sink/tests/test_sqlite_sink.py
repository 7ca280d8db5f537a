"""The contract that every sink of documents keeps."""

import json
import sqlite3

import pyarrow as pa
import pytest
from penstock_sqlite import SqliteKind, SqliteOptions

from penstock.sink import DOCUMENTS, DocumentsRefused, SinkPlace
from penstock.testing import SinkContract


class TestSqliteSink(SinkContract):
    def kind(self):
        return SqliteKind()

    def options(self, directory):
        return SqliteOptions(path=directory / "changes.db")

    def delivered(self, options):
        with sqlite3.connect(options.path) as database:
            rows = database.execute("SELECT value FROM documents ORDER BY number").fetchall()
        return [json.loads(value) for (value,) in rows]

    def refuse(self, options, key):
        # Before the sink is opened for the first time: it finds the table, with a trigger on it.
        with sqlite3.connect(options.path) as database:
            database.executescript(f"""
                CREATE TABLE IF NOT EXISTS documents (
                    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, op TEXT NOT NULL,
                    "schema" TEXT NOT NULL, "table" TEXT NOT NULL, "key" TEXT, value TEXT NOT NULL);
                CREATE TRIGGER refuses BEFORE INSERT ON documents
                WHEN NEW."table" = 'orders' AND NEW."key" = '{{"id":{key}}}'
                BEGIN SELECT RAISE(ABORT, 'not this one'); END;
            """)
        return True

    def accept(self, options):
        with sqlite3.connect(options.path) as database:
            database.execute("DROP TRIGGER refuses")

    def test_check_finds_a_path_where_no_file_can_be(self, tmp_path):
        (tmp_path / "file").touch()
        options = SqliteOptions(path=tmp_path / "file" / "changes.db")
        place = SinkPlace("local", options, "shop", "shop", ("shop",), tmp_path / "state")

        [finding] = self.kind().sink(place).check()

        assert finding.place == str(tmp_path / "file")

    def test_two_sources_share_a_database(self, tmp_path):
        options = self.options(tmp_path)
        sinks = [
            self.kind().sink(SinkPlace("local", options, "shop", each, ("eu", "us"), tmp_path))
            for each in ("eu", "us")
        ]

        for sink in sinks:
            assert sink.open() is None
        sinks[0].deliver(iter(()), "position of eu")

        assert [sink.open() for sink in sinks] == ["position of eu", None]
        for sink in sinks:
            sink.close()

    def test_document_that_comes_again_is_skipped_and_another_with_its_id_refused(self, tmp_path):
        options = self.options(tmp_path)
        place = SinkPlace("local", options, "shop", "shop", ("shop",), tmp_path / "state")
        sink = self.kind().sink(place)
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
        assert self.delivered(options) == [{"id": "shop:0/1:0"}]
