"""Where a sink of documents has its working files: parts, copies that wait, and its position.

    <state>/sinks/<name>.position.json   the position, or a copy of what the destination stores
    <state>/sinks/.<name>.copies/        copied rows that wait to be delivered (`copies.py`)
    <state>/sinks/.<name>.part-…         what tasks have left for the driver
    <state>/sinks/<name>.parked.jsonl    documents that the destination refused (`parked.py`)

A kind may have them elsewhere, as `file` has its own beside its documents.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.sinks.documents.copies import Copies
from penstock.sinks.documents.copying import DocumentCopying
from penstock.sinks.documents.parked import Parked
from penstock.sinks.documents.position import PositionFile

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.sinks.documents.contract import DocumentKind
    from penstock.sinks.kind import SinkPlace


@dataclass(frozen=True)
class Workspace:
    """Paths; the driver and all executors see them."""

    directory: Path  # of parts
    part_prefix: str
    position: Path
    copies: Path
    parked: Path
    directory_mode: int = 0o700
    sink_writes_position: bool = False  # it is the sink's own file, which penstock only reads


def default_workspace(name: str, state: Path) -> Workspace:
    """Below the state directory."""
    directory = state / "sinks"
    return Workspace(
        directory=directory,
        part_prefix=f".{name}.part-",
        position=directory / f"{name}.position.json",
        copies=directory / f".{name}.copies",
        parked=directory / f"{name}.parked.jsonl",
    )


def copying_of(kind: DocumentKind[Any], place: SinkPlace[Any]) -> DocumentCopying:
    """What copies tables into a sink."""
    space = kind.workspace(place)
    position = PositionFile(space.position, place.pipeline, place.source_id)
    return DocumentCopying(
        position,
        Copies(space.copies, space.directory_mode),
        place.source_id,
        place.keyring,
        kind.format(place),
    )


def remove_workspace(space: Workspace) -> None:
    """Leave nothing of it, for teardown."""
    shutil.rmtree(space.copies, ignore_errors=True)
    Parked(space.parked).remove()
    with suppress(NotADirectoryError):  # something else is where it would be made
        space.position.unlink(missing_ok=True)
