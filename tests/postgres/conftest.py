"""A source whose triggers report how its tables change, and one who reads what they say."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from penstock.schema.cascade import settle
from penstock.schema.wire import read_reported
from penstock.source.connect import connect_source, role_of
from penstock.source.shapes import read_shape_now
from penstock.source.tracking.install import install_tracking, read_seal

if TYPE_CHECKING:
    from fix_postgres import Database
    from penstock.schema.shape import SchemaChange, TableShape
    from penstock.schema.wire import Reported


class Tracked:
    """A database with triggers, and a slot that hears them."""

    def __init__(self, source: Database) -> None:
        self.source = source
        with connect_source(source.dsn) as connection:
            install_tracking(connection, role_of(connection))
            self._seal = read_seal(connection)
        self._slot = f"heard_{source.name}"
        self.known: dict[int, TableShape] = {}
        source.execute("CREATE PUBLICATION heard")
        source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", self._slot)

    def messages(self) -> list[Reported]:
        """What was said since the last time, as it was said."""
        rows = self.source.query(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
            " 'publication_names', 'heard', 'messages', 'true')",
            self._slot,
        )
        found: list[Reported] = []
        for (data,) in rows:
            if data[:1] != b"M":
                continue
            # M, flags, LSN, prefix with its zero, length, content.
            prefix, _, rest = data[10:].partition(b"\0")
            if prefix == b"penstock.schema":
                found.append(read_reported(self._unsealed(rest[4:]).decode(), "test"))
        return found

    def heard(self) -> list[SchemaChange]:
        """The same, with all tables whose shape differs then."""
        return [self._settled(reported) for reported in self.messages()]

    def _settled(self, reported: Reported) -> SchemaChange:
        with connect_source(self.source.dsn) as connection:
            change = settle(reported, self.known, lambda oid: read_shape_now(connection, oid))
        self.known.update({shape.id: shape for shape in change.tables})
        for gone in change.dropped_tables:
            self.known.pop(gone.id, None)
        return change

    def said(self, *statements: str) -> list[SchemaChange]:
        """What these statements make the triggers say, each in a transaction of its own."""
        self.heard()
        for statement in statements:
            self.source.execute(statement)
        return self.heard()

    def _unsealed(self, content: bytes) -> bytes:
        assert self._seal is not None
        sealed, document = content[:64], content[64:]
        inner = hashlib.sha256(self._seal + document).digest()
        assert sealed == hashlib.sha256(self._seal + inner).hexdigest().encode()
        assert json.loads(document)
        return document


@pytest.fixture
def tracked(source: Database) -> Tracked:
    return Tracked(source)
