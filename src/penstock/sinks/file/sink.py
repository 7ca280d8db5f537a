"""The driver half: parts become one growing hidden file, which becomes visible whole.

In the sink's directory:

    changes-<after_lsn>-<end_lsn>.jsonl   finished: everything after one position, up to the other
    changes-<lsn>-<lsn>-<n>.jsonl         finished while the position stood still: of copied tables
    .changes-<after_lsn>-<n>.open         grows with every batch
    .position.json                        delivered_lsn, tables, and how long the growing file is
    .part-…                               what tasks have left for the driver
    .copies                               what a copier has left for the driver (`sinks/copies.py`)
    .lock                                 held by the one process that delivers here

Names sort in the order in which files were written.

The position file is the truth. Documents of a batch, or of a copy, are appended and synced, then
the position is recorded, as one file replaced whole; what lies behind the recorded length was never
delivered and is cut off on `open`.
A file is finished in the same way: first the position file says what it becomes, then it is renamed, and
`open` renames what a crash left unrenamed. So nothing is lost and nothing doubled, wherever it stops.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.disk import sync_directory, write_all
from penstock.errors import PenstockError, PositionMissing, SinkPrivilegeMissing
from penstock.failpoints import fault_point
from penstock.sinks.copies import Copies
from penstock.sinks.durable import (
    LOCK_NAME,
    claim_directory,
    make_directory,
)
from penstock.sinks.eventsink import EventSink
from penstock.sinks.file.worker import PART_PREFIX, FileWorker
from penstock.sinks.partfile import read_part, remove_parts
from penstock.sinks.positionfile import PositionFile

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from penstock.lsn import Lsn
    from penstock.sinks.file.options import FileOptions
    from penstock.sinks.positionfile import KeptPosition
    from penstock.sinks.sink import Batch, StoredPosition
    from penstock.table import TableName

_log = logging.getLogger(__name__)

_OPEN_PREFIX, _OPEN_SUFFIX = ".changes-", ".open"

# Of copied documents, whatever `rotate_bytes` says: a batch may be waiting.
_MOST_STEP_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class GrowingFile:
    """The hidden file as the position file knows it. `becomes` is set once it is finished."""

    name: str
    begins_after: int
    began_at: float  # this machine's clock, seconds since 1970: age outlives the process
    length: int = 0
    becomes: str | None = None
    number: int = 0  # counts all files of the sink, also those that are finished and taken away


def position_of(directory: Path, pipeline: str, source: str) -> PositionFile:
    """The position of a sink in that directory."""
    return PositionFile(directory / ".position.json", pipeline, source)


def copies_of(options: FileOptions) -> Copies:
    """Where copies wait to be delivered into the sink's directory."""
    return Copies(options.path / ".copies", options.directory_mode)


class FileSink(EventSink):
    """Delivers documents to files in one directory."""

    batch_bytes = 16 * 1024 * 1024

    def __init__(self, name: str, options: FileOptions, pipeline: str, source: str) -> None:
        position = position_of(options.path, pipeline, source)
        super().__init__(name, options.path, position, copies_of(options), source)
        self._options = options
        self._lock: int | None = None
        self._file: GrowingFile | None = None
        self._last_number = 0
        self._fd: int | None = None

    def open(self) -> StoredPosition | None:
        """Claim the directory, mend what a crash left, read the position."""
        self._forget()
        self._called_off.clear()
        with self._or_forget():
            make_directory(self._directory, self._options.directory_mode)
            if self._lock is None:
                self._lock = claim_directory(self._directory)
            kept = self._position.read()
            remove_parts(self._directory, PART_PREFIX)
            if kept is None:
                return None
            file = self._file_of(kept)
            self._remove_strays(file)
            if file is not None:
                self._recover(file)
            self._take_up(kept)
        return kept.stored

    def worker(self, batch: Batch, only: Collection[TableName] | None = None) -> FileWorker:
        """The executor half."""
        return FileWorker(str(self._directory), self._source, self._wanted(batch, only))

    def idle(self) -> None:
        """Finish a file that has become old enough."""
        if self._kept is not None and self._file is not None and self._is_due(self._file):
            with self._or_forget():
                self._finish(self._file, self._kept)

    def close(self) -> None:
        """Make visible what there is, and let go of the directory."""
        try:
            if self._kept is not None and self._file is not None:
                self._finish(self._file, self._kept)
        except (OSError, PenstockError) as error:
            # Nothing is lost: the next run goes on with the file as it is.
            _log.warning("sink %s: %s stays unfinished: %s", self.name, self._directory, error)
        finally:
            self._forget()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def remove_position(self) -> list[str]:
        """Forget the pipeline and leave nothing but documents; what was removed. For teardown.

        Raises:
            SecondInstance: the pipeline still delivers there.
        """
        if not self._position.path.exists():
            return []
        self.open()
        self.close()
        for path in (self._position.path, self._directory / LOCK_NAME):
            path.unlink(missing_ok=True)
        shutil.rmtree(self._copies.path, ignore_errors=True)
        return [f"position in {self._directory}"]

    @property
    def _step_bytes(self) -> int:
        length = self._file.length if self._file is not None else 0
        return min(max(1, self._options.rotate_bytes - length), _MOST_STEP_BYTES)

    def _deliver(self, documents: Iterable[bytes], kept: KeptPosition) -> None:
        """Append the documents, record the position, finish a full file."""
        file = self._append(documents, kept.delivered_lsn)
        fault_point("file.after_append")
        if file is not None and self._is_due(file):
            self._finish(file, kept)
        else:
            self._write(file, kept)

    def _blocks(self, content: Any) -> Iterable[bytes]:
        return read_part(content) if content is not None else ()

    def _append(self, documents: Iterable[bytes], end_lsn: Lsn) -> GrowingFile | None:
        file, length = self._file, 0
        for block in documents:
            self._raise_if_called_off(end_lsn)
            file = file or self._begin_file()
            assert self._fd is not None
            write_all(self._fd, block)
            length += len(block)
        if file is None or not length:
            return file
        assert self._fd is not None
        os.fdatasync(self._fd)
        return replace(file, length=file.length + length)

    def _begin_file(self) -> GrowingFile:
        after_lsn = self._require_open().delivered_lsn
        # Numbered: never the name of a file that waits to be renamed, though both begin at one position.
        number = self._last_number + 1
        name = f"{_OPEN_PREFIX}{after_lsn:016X}-{number:08d}{_OPEN_SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd = os.open(self._directory / name, flags, 0o600)
        os.fchmod(self._fd, self._options.mode)
        sync_directory(self._directory)
        return GrowingFile(name, int(after_lsn), time.time(), number=number)

    def _is_due(self, file: GrowingFile) -> bool:
        age = time.time() - file.began_at
        # A clock that was set back must not keep a file hidden for ever.
        is_old = age >= self._options.rotate_seconds or age < 0
        return is_old or file.length >= self._options.rotate_bytes

    def _record(self, kept: KeptPosition) -> None:
        self._write(self._file, kept)

    def _write(self, file: GrowingFile | None, kept: KeptPosition) -> None:
        number = self._last_number if file is None else file.number
        told = asdict(file) if file is not None else None
        kept = replace(kept, extra={"file": told, "last_number": number})
        self._position.write(kept)
        self._kept, self._file, self._last_number = kept, file, number
        self.change_count = kept.change_count

    def _finish(self, file: GrowingFile, kept: KeptPosition) -> None:
        """Record what the file becomes, and the position with it; then rename."""
        becomes = f"changes-{file.begins_after:016X}-{kept.delivered_lsn:016X}"
        if kept.delivered_lsn == file.begins_after:
            becomes += f"-{file.number:08d}"
        finished = replace(file, becomes=f"{becomes}.jsonl")
        self._write(finished, kept)
        fault_point("file.after_position")
        self._rename(finished)

    def _rename(self, file: GrowingFile) -> None:
        assert file.becomes is not None
        hidden, visible = self._directory / file.name, self._directory / file.becomes
        if hidden.exists():
            if visible.exists():
                raise SinkPrivilegeMissing(
                    "the file is already there, and would be overwritten",
                    str(visible),
                    "move it away; penstock writes it again, whole",
                )
            hidden.rename(visible)
            sync_directory(self._directory)
        # Else it was renamed before a crash, and may have been taken away by its reader since.
        self._close_file()

    def _file_of(self, kept: KeptPosition) -> GrowingFile | None:
        try:
            self._last_number = int(kept.extra.get("last_number", 0))
            return GrowingFile(**kept.extra["file"]) if kept.extra["file"] else None
        except (KeyError, TypeError, ValueError):
            raise self._position.damaged() from None

    def _recover(self, file: GrowingFile) -> None:
        """Cut off what was never delivered, and finish what was to be finished."""
        path = self._directory / file.name
        size = path.stat().st_size if path.exists() else 0
        if file.becomes is not None and not path.exists():
            return
        if size < file.length:
            raise PositionMissing(
                f"{size} bytes of documents, wanted {file.length}: some that were delivered are gone",
                str(path),
                "put the file back, or begin anew: penstock teardown, then run",
            )
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        if size > file.length:
            os.ftruncate(self._fd, file.length)
            os.fsync(self._fd)
        os.lseek(self._fd, file.length, os.SEEK_SET)
        self._file = file
        if file.becomes is not None:
            self._rename(file)

    def _remove_strays(self, file: GrowingFile | None) -> None:
        """Remove files that were begun but never recorded."""
        for path in self._directory.glob(f"{_OPEN_PREFIX}*{_OPEN_SUFFIX}"):
            if file is None or path.name != file.name:
                path.unlink()

    def _close_file(self) -> None:
        self._file = None
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _forget(self) -> None:
        super()._forget()
        self._close_file()
