"""The kind `files`: a log of segment files in the source's state directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from penstock.log.files.background import BackgroundWriter
from penstock.log.files.disks import narrow_disks
from penstock.log.files.options import FilesOptions
from penstock.log.files.reader import FilesReader
from penstock.log.files.writer import FilesWriter, log_end, log_span

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.errors import PenstockError
    from penstock.log.contract import LogKind, LogOwner, LogReader, LogSpan, LogWriter
    from penstock.log.options import LogOptions
    from penstock.lsn import Lsn

_DIRECTORY = "log"


class FilesLog:
    """Segments and spools in one directory, on a disk that both halves and all executors see."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def place(self) -> str:
        """The directory."""
        return str(self._directory)

    def writer(self) -> LogWriter:
        """What appends to it, in a thread of its own where slices are large."""
        return BackgroundWriter(FilesWriter(self._directory))

    def reader(self, after: Lsn) -> LogReader:
        """What reads it from a position on."""
        return FilesReader(self._directory, after)

    def span(self) -> LogSpan:
        """From where to where it goes now."""
        return log_span(self._directory)

    def end_lsn(self) -> Lsn | None:
        """Where everything in it ends; None while it is being written to."""
        return log_end(self._directory)


class FilesKind:
    """Says what the rest asks of a kind of log."""

    name = "files"
    options: ClassVar[type[LogOptions]] = FilesOptions

    def log_of(self, options: LogOptions, owner: LogOwner) -> FilesLog:  # noqa: ARG002 - all are alike
        """The log beside the source's other state."""
        return FilesLog(owner.directory / _DIRECTORY)

    def check(self, options: LogOptions, owners: Sequence[LogOwner]) -> list[PenstockError]:
        """Disks that are too small for what the options allow."""
        return narrow_disks(options.retain_bytes, [each.directory / _DIRECTORY for each in owners])


KIND: LogKind = FilesKind()
