"""A source whose triggers tell how its tables change, and who reads what they say."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from penstock.schema.shape import SchemaChange, VersionWritten, read_change, read_version
from penstock.source.connect import connect_source, role_of
from penstock.source.tracking import install_tracking, read_seal

if TYPE_CHECKING:
    from fix_postgres import Database


class Tracked:
    """A database with triggers, and a slot that hears them."""

    def __init__(self, source: Database) -> None:
        self.source = source
        with connect_source(source.dsn) as connection:
            install_tracking(connection, role_of(connection))
            self._seal = read_seal(connection)
        self._slot = f"heard_{source.name}"
        source.execute("CREATE PUBLICATION heard")
        source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", self._slot)

    def heard(self) -> tuple[list[SchemaChange], list[VersionWritten]]:
        """What was said since the last time."""
        rows = self.source.query(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
            " 'publication_names', 'heard', 'messages', 'true')",
            self._slot,
        )
        changes: list[SchemaChange] = []
        versions: list[VersionWritten] = []
        for (data,) in rows:
            if data[:1] != b"M":
                continue
            # M, flags, LSN, prefix with its zero, length, content.
            prefix, _, rest = data[10:].partition(b"\0")
            content = rest[4:]
            if prefix == b"penstock.schema":
                changes.append(read_change(self._unsealed(content), "test"))
            elif prefix == b"penstock.version":
                versions.append(read_version(self._unsealed(content), "test"))
        return changes, versions

    def said(self, *statements: str) -> list[SchemaChange]:
        """What these statements make the triggers say, each in a transaction of its own."""
        self.heard()
        for statement in statements:
            self.source.execute(statement)
        return self.heard()[0]

    def versions(self) -> list[tuple[str, int]]:
        rows = self.source.query(
            "SELECT schema_name, version FROM penstock.schema_log ORDER BY schema_name, version"
        )
        return [(schema, version) for schema, version in rows]

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
