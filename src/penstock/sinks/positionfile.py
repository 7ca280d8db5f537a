"""A sink's position and its tables in a file, for destinations that cannot hold them beside the data.

One writer, the delivering loop; a copier reads what waits for it.
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
from penstock.sinks.tables import CATCHING_UP, PENDING, REMOVED, STREAMING
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


@dataclass(frozen=True)
class KeptTable:
    """How a table stands: pending, catching_up, streaming or removed.

    What a copier does with a table that is pending, it writes down itself. `enrolment` is made anew
    whenever the table begins again, so that a copy which was begun before is not taken for the one
    that is wanted.
    """

    state: str
    delivered_lsn: Lsn = ZERO
    enrolment: str = ""
    published: Published | None = None
    oid: int = 0  # at the source, where it is known

    @classmethod
    def enrolled(cls, lsn: Lsn, oid: int = 0) -> KeptTable:
        """A table that is to be copied from now on."""
        return cls(PENDING, lsn, uuid.uuid4().hex, oid=oid)


@dataclass(frozen=True)
class KeptPosition:
    """How far a sink has got, in which source, and what else it must remember with that."""

    delivered_lsn: Lsn
    identity: dict[str, str]
    change_count: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    tables: Mapping[TableName, KeptTable] = field(default_factory=dict)

    def with_tables(self, tables: Mapping[TableName, KeptTable]) -> KeptPosition:
        """The same, but for how these tables stand."""
        return replace(self, tables={**self.tables, **tables})

    def in_state(self, state: str) -> set[TableName]:
        """Tables that stand so."""
        return {name for name, table in self.tables.items() if table.state == state}

    @property
    def stored(self) -> StoredPosition:
        """As the rest of penstock knows it."""
        return StoredPosition(self.delivered_lsn, dict(self.identity))


class PositionFile:
    """One pipeline's and source's position; every write is durable, and whole or not there."""

    def __init__(self, path: Path, pipeline: str, source: str) -> None:
        self.path = path
        self._owner = {"pipeline": pipeline, "source": source}

    def read(self) -> KeptPosition | None:
        """The position, None when there is none yet.

        Raises:
            PositionMissing: the file cannot be made out.
            SinkPrivilegeMissing: it belongs to another pipeline or source.
            OSError: it cannot be read.
        """
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return None
        try:
            content = json.loads(text)
            owner = {key: content[key] for key in self._owner}
            kept = KeptPosition(
                Lsn.parse(content["delivered_lsn"]),
                {str(key): str(value) for key, value in content["identity"].items()},
                int(content["change_count"]),
                dict(content["extra"]),
                _read_tables(content.get("tables", {})),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self.damaged() from None
        if owner != self._owner:
            raise SinkPrivilegeMissing(
                f"the directory belongs to pipeline {owner['pipeline']!r}, source "
                f"{owner['source']!r}; wanted {self._owner['pipeline']!r}, "
                f"{self._owner['source']!r}",
                str(self.path.parent),
                "choose a directory of its own for each pipeline",
            )
        return kept

    def damaged(self) -> PositionMissing:
        """The error of a file that cannot be made out."""
        return PositionMissing(
            "the file that holds the sink's position is damaged",
            str(self.path),
            "put it back from a backup, or begin anew: penstock teardown, then run",
        )

    def write(self, kept: KeptPosition) -> None:
        """Store the position.

        Raises:
            OSError: it is stored or not; only `read` can tell.
        """
        content = {
            "format": _FORMAT,
            **self._owner,
            "delivered_lsn": str(Lsn(kept.delivered_lsn)),
            "identity": kept.identity,
            "change_count": kept.change_count,
            "extra": kept.extra,
            "tables": _write_tables(kept),
        }
        replace_file(self.path, json.dumps(content).encode())


def _write_tables(kept: KeptPosition) -> dict[str, Any]:
    """Those that stream by name alone: there may be thousands, and they are written with every batch."""
    return {
        "streaming": sorted(kept.in_state(STREAMING)),
        "apart": [
            {
                "schema": name.schema,
                "name": name.name,
                "state": table.state,
                "delivered_lsn": str(table.delivered_lsn),
                "enrolment": table.enrolment,
                "published": asdict(table.published) if table.published else None,
                "oid": table.oid,
            }
            for name, table in kept.tables.items()
            if table.state != STREAMING
        ],
    }


def _read_tables(content: dict[str, Any]) -> dict[TableName, KeptTable]:
    """What was written; nothing of a file that an earlier version wrote, which knew no tables."""
    tables = {TableName(*name): KeptTable(STREAMING) for name in content.get("streaming", ())}
    for entry in content.get("apart", ()):
        if entry["state"] not in (PENDING, CATCHING_UP, REMOVED):
            raise ValueError(entry["state"])
        tables[TableName(entry["schema"], entry["name"])] = KeptTable(
            entry["state"],
            Lsn.parse(entry["delivered_lsn"]),
            entry["enrolment"],
            Published(**entry["published"]) if entry["published"] else None,
            int(entry.get("oid", 0)),
        )
    return tables
