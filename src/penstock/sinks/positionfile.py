"""A sink's position in a file, for destinations that cannot hold one beside the data."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import PositionMissing, SinkPrivilegeMissing
from penstock.lsn import Lsn
from penstock.sinks.durable import replace_file
from penstock.sinks.sink import StoredPosition

if TYPE_CHECKING:
    from pathlib import Path

_FORMAT = 1


@dataclass(frozen=True)
class KeptPosition:
    """How far a sink has got, in which source, and what else it must remember with that."""

    delivered_lsn: Lsn
    identity: dict[str, str]
    change_count: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

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
        }
        replace_file(self.path, json.dumps(content).encode())
