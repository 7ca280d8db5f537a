"""The kind `files`: a log of segment files in the source's state directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from penstock.encryption import NO_KEYS
from penstock.log.background import BackgroundWriter
from penstock.log.files.disks import narrow_disks
from penstock.log.files.keys import unfit_segments
from penstock.log.files.options import FilesOptions
from penstock.log.files.reader import FilesReader
from penstock.log.files.writer import FilesWriter, log_end, log_span

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.encryption import Keyring
    from penstock.errors import PenstockError
    from penstock.log.contract import LogKind, LogOwner, LogReader, LogSpan, LogWriter
    from penstock.log.options import LogOptions
    from penstock.lsn import Lsn

_DIRECTORY = "log"


class FilesLog:
    """Segments and spools in one directory, on a disk that both halves and all executors see."""

    def __init__(self, directory: Path, keyring: Keyring = NO_KEYS) -> None:
        self._directory = directory
        self._keyring = keyring

    @property
    def place(self) -> str:
        """The directory."""
        return str(self._directory)

    def writer(self) -> LogWriter:
        """What appends to it, in a thread of its own where slices are large."""
        return BackgroundWriter(FilesWriter(self._directory, self._keyring))

    def reader(self, after: Lsn) -> LogReader:
        """What reads it from a position on."""
        return FilesReader(self._directory, after, self._keyring)

    def span(self) -> LogSpan:
        """From where to where it goes now."""
        return log_span(self._directory)

    def end_lsn(self) -> Lsn | None:
        """Where everything in it ends; None while it is being written to."""
        return log_end(self._directory)

    def risk(self, needed_lsn: Lsn) -> None:  # noqa: ARG002
        """Nobody else deletes files."""
        return


class FilesKind:
    """Says what the rest asks of a kind of log."""

    name = "files"
    options: ClassVar[type[LogOptions]] = FilesOptions

    def log_of(self, options: LogOptions, owner: LogOwner) -> FilesLog:
        """The log beside the source's other state."""
        return FilesLog(owner.directory / _DIRECTORY, options.keyring())

    def board_of(self, options: LogOptions, pipeline: str) -> None:
        """The halves share the state directory."""

    def forget(self, options: LogOptions, owners: Sequence[LogOwner]) -> list[str]:  # noqa: ARG002
        """Nothing: the files go with the state directory."""
        return []

    def check(self, options: LogOptions, owners: Sequence[LogOwner]) -> list[PenstockError]:
        """Disks that are too small for what the options allow, and keys that are not what they want."""
        directories = [each.directory / _DIRECTORY for each in owners]
        found = narrow_disks(options.retain_bytes, directories)
        for directory in directories:
            found += unfit_segments(directory, options.keyring())
        return found


KIND: LogKind = FilesKind()
