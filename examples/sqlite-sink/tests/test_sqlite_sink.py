"""The contract that every sink of documents keeps."""

import json
import sqlite3

from penstock_sqlite import SqliteKind, SqliteOptions

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
