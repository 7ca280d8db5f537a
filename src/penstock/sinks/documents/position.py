"""How far a sink of documents has got, and how its tables stand: what its destination stores for penstock.

To the destination it is one opaque text (JSON). A destination that cannot store it with the documents
has it kept in a file (`PositionFile`); of one that can, that file is a copy, for the copier.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.errors import PositionMissing, SinkPrivilegeMissing
from penstock.lsn import ZERO, Lsn
from penstock.sinks.durable import replace_file
from penstock.sinks.sink import StoredPosition
from penstock.sinks.tables import TableState
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_FORMAT = 1


@dataclass(frozen=True)
class Published:
    """How far the documents of a copy are delivered: where in which range to go on."""

    copy_id: str
    number: int = 0
    offset: int = 0
    row: int = 0


@dataclass(frozen=True)
class KeptTable:
    """How a table stands: pending, catching_up, streaming, failed or removed.

    What a copier does with a table that is pending, it writes down itself. `schedule_id` is made anew
    whenever the table begins again, so that a copy which was begun before is not taken for the one
    that is wanted. A table that failed has its rows, and a document that was refused.
    """

    state: TableState
    delivered_lsn: Lsn = ZERO
    schedule_id: str = ""
    published: Published | None = None
    oid: int = 0  # at the source, where it is known
    error: str = ""

    @classmethod
    def scheduled(cls, lsn: Lsn, oid: int = 0) -> KeptTable:
        """A table that is to be copied from now on."""
        return cls(TableState.PENDING, lsn, uuid.uuid4().hex, oid=oid)

    @property
    def can_catch_up(self) -> bool:
        """Whether its rows are there, and it is delivered by its own position."""
        return self.state in (TableState.CATCHING_UP, TableState.FAILED)

    def caught_up_to(self, lsn: Lsn) -> KeptTable:
        """The same table, at a later position."""
        return replace(self, state=TableState.CATCHING_UP, delivered_lsn=lsn, error="")

    def after_ddl(self, lsn: Lsn, *, is_renamed: bool) -> KeptTable:
        """How it stands after a transaction in which tables may have got other names."""
        if self.can_catch_up:
            return self.caught_up_to(lsn)
        # What was copied of it so far bears the old name.
        is_begun_again = self.state == TableState.PENDING and is_renamed
        return KeptTable.scheduled(lsn, self.oid) if is_begun_again else self

    def stopped(self, after_lsn: Lsn, error: str) -> KeptTable:
        """The same table, of which a document was refused that comes after a position."""
        if self.state == TableState.PENDING:  # while its copy was delivered
            return replace(self, error=error)
        lsn = self.delivered_lsn if self.can_catch_up else after_lsn
        return KeptTable(TableState.FAILED, lsn, oid=self.oid, error=error)


@dataclass(frozen=True)
class KeptPosition:
    """How far a sink has got, in which source, and how tables stand there."""

    delivered_lsn: Lsn
    identity: dict[str, str]
    change_count: int = 0
    tables: Mapping[TableName, KeptTable] = field(default_factory=dict)

    def with_tables(self, tables: Mapping[TableName, KeptTable]) -> KeptPosition:
        """The same, but for how these tables stand."""
        return replace(self, tables={**self.tables, **tables})

    def with_count(self, count: int) -> KeptPosition:
        """The same, with so many changes more."""
        return replace(self, change_count=self.change_count + count)

    def in_state(self, state: TableState) -> set[TableName]:
        """Tables that stand so."""
        return {name for name, table in self.tables.items() if table.state == state}

    @property
    def stored(self) -> StoredPosition:
        """As the rest of penstock knows it."""
        return StoredPosition(self.delivered_lsn, dict(self.identity))


@dataclass(frozen=True)
class PositionText:
    """Writes and reads positions of one pipeline and source. `place` is where they are, for errors."""

    pipeline: str
    source: str
    place: str

    def write(self, kept: KeptPosition) -> str:
        """The position as a destination stores it."""
        return json.dumps(
            {
                "format": _FORMAT,
                "pipeline": self.pipeline,
                "source": self.source,
                "delivered_lsn": str(Lsn(kept.delivered_lsn)),
                "identity": kept.identity,
                "change_count": kept.change_count,
                "extra": {},  # a destination may have something of its own there
                "tables": _write_tables(kept),
            }
        )

    def read(self, text: str) -> KeptPosition:
        """What was written.

        Raises:
            PositionMissing: the text cannot be made out.
            SinkPrivilegeMissing: it belongs to another pipeline or source.
        """
        try:
            content = json.loads(text)
            owner = str(content["pipeline"]), str(content["source"])
            kept = KeptPosition(
                Lsn.parse(content["delivered_lsn"]),
                {str(key): str(value) for key, value in content["identity"].items()},
                int(content["change_count"]),
                _read_tables(content.get("tables", {})),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self.damaged() from None
        if owner != (self.pipeline, self.source):
            raise SinkPrivilegeMissing(
                f"what is there belongs to pipeline {owner[0]!r}, source {owner[1]!r}; "
                f"wanted {self.pipeline!r}, {self.source!r}",
                self.place,
                "choose a place of its own for each pipeline",
            )
        return kept

    def damaged(self) -> PositionMissing:
        """The error of a text that cannot be made out."""
        return PositionMissing(
            "what holds the sink's position is damaged",
            self.place,
            "put it back from a backup, or begin anew: penstock teardown, then run",
        )


class PositionFile:
    """A position in a file. One writer, the delivering loop; a copier reads how tables stand.

    Every write is durable, and whole or not there.
    """

    def __init__(self, path: Path, pipeline: str, source: str) -> None:
        self.path = path
        self.text = PositionText(pipeline, source, str(path))

    def read(self) -> KeptPosition | None:
        """The position, None when there is none yet.

        Raises:
            PositionMissing: the file cannot be made out.
            SinkPrivilegeMissing: it belongs to another pipeline or source.
            OSError: it cannot be read.
        """
        text = self.read_text()
        return None if text is None else self.text.read(text)

    def read_text(self) -> str | None:
        """What is there, as it is."""
        try:
            return self.path.read_text()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            raise self.text.damaged() from None

    def write(self, text: str) -> None:
        """Store a position.

        Raises:
            OSError: it is stored or not; only `read` can say which.
        """
        replace_file(self.path, text.encode())


def _write_tables(kept: KeptPosition) -> dict[str, Any]:
    """Those that stream by name alone: there may be thousands, and they are written with every batch."""
    return {
        "streaming": sorted(kept.in_state(TableState.STREAMING)),
        "apart": [
            {
                "schema": name.schema,
                "name": name.name,
                "state": table.state,
                "delivered_lsn": str(table.delivered_lsn),
                "enrolment": table.schedule_id,
                "published": asdict(table.published) if table.published else None,
                "oid": table.oid,
                "error": table.error,
            }
            for name, table in kept.tables.items()
            if table.state != TableState.STREAMING
        ],
    }


def _read_tables(content: dict[str, Any]) -> dict[TableName, KeptTable]:
    """What was written; nothing of a file that an earlier version wrote, which knew no tables."""
    tables = {
        TableName(*name): KeptTable(TableState.STREAMING) for name in content.get("streaming", ())
    }
    for entry in content.get("apart", ()):
        state = TableState(entry["state"])
        if state in (TableState.STREAMING, TableState.COPYING):
            raise ValueError(state)
        tables[TableName(entry["schema"], entry["name"])] = KeptTable(
            state,
            Lsn.parse(entry["delivered_lsn"]),
            entry["enrolment"],
            Published(**entry["published"]) if entry["published"] else None,
            int(entry.get("oid", 0)),
            str(entry.get("error", "")),
        )
    return tables
