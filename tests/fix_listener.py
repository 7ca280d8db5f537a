"""Follows a source into a log and past shapes, as capture does, step by step and without a thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fix_subscription import ALL, rules
from penstock.changes.pgoutput import STREAM_START
from penstock.log.files.writer import FilesWriter
from penstock.lsn import Lsn
from penstock.schema.past_shapes import PastShapes
from penstock.source.assemble import Assembler
from penstock.source.connect import connect_source
from penstock.source.notes import Notes
from penstock.source.shapes import read_published_shapes, read_shape_now
from penstock.source.stream import InProgress, SlotStream
from penstock.source.subscription import ensure_subscription
from penstock.source.tracking.install import read_seal

if TYPE_CHECKING:
    from pathlib import Path

    from fix_postgres import Database
    from penstock.schema.shape import TableShape
    from penstock.source.options import Tracking


class Listener:
    """Follows a source into a log, as capture does; without a thread."""

    def __init__(self, source: Database, tracking: Tracking, directory: Path) -> None:
        self.source = source
        self.streamed = 0
        with connect_source(source.dsn) as connection:
            subscription = ensure_subscription(connection, "shop", rules(*ALL), tracking)
            seal = read_seal(connection)
            shapes = read_published_shapes(connection, subscription.publications)
        self._writer = FilesWriter(directory / "log")
        self._writer.open(Lsn(0))
        self.past_shapes = PastShapes(directory / "schema.jsonl")
        self.past_shapes.open_for_writing()
        notes = Notes(self.past_shapes, Lsn(0), self.now, seal)
        notes._known.update({shape.id: shape for shape in shapes})
        self._assembler = Assembler(self._writer, notes)
        self._subscription = subscription
        self._stream = self._open(InProgress.STREAMED)

    def now(self, oid: int) -> TableShape | None:
        with connect_source(self.source.dsn) as connection:
            return read_shape_now(connection, oid)

    def add(self, message: memoryview) -> None:
        self.streamed += message[0] == STREAM_START
        self._assembler.add(message)

    def receive_streamed(self) -> None:
        """Until the server has sent more of what is open."""
        wanted, deadline = self.streamed + 1, time.monotonic() + 30
        while self.streamed < wanted:
            assert time.monotonic() < deadline, "the server did not stream"
            self._stream.receive(self, 0.05)

    def receive_all(self) -> None:
        end = Lsn.parse(self.source.value("SELECT pg_current_wal_lsn()::text"))
        self.source.execute("SELECT pg_logical_emit_message(false, 'test', '')")
        deadline = time.monotonic() + 30
        while self._assembler.received_lsn < end:
            assert time.monotonic() < deadline, "the commit did not come"
            self._stream.receive(self, 0.05)
        self._assembler.seal()

    def close(self) -> None:
        self._stream.close()
        self._assembler.discard()
        self.past_shapes.close()
        self._writer.close()

    def _open(self, in_progress: InProgress) -> SlotStream:
        slot, publications = self._subscription.slot, self._subscription.publications
        stream = SlotStream(self.source.dsn, slot, publications, in_progress)
        stream.connect()
        stream.start(Lsn(0))
        return stream
