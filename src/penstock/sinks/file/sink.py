"""Documents into files: one hidden file grows with every batch, and becomes visible whole.

In the sink's directory:

    changes-<after_lsn>-<end_lsn>.jsonl   finished: everything after one position, up to the other
    changes-<lsn>-<lsn>-<n>.jsonl         finished while the position stood still: of copied tables
    .changes-<after_lsn>-<n>.open         grows with every batch
    .position.json                        delivered_lsn, tables, and how long the growing file is
    .part-…                               what tasks have left for the driver
    .copies                               what a copier has left for the driver
    .lock                                 held by the one process that delivers here

Names sort in the order in which files were written.

The position file is the truth. Documents of a batch, or of a copy, are appended and synced, then
the position is recorded, as one file replaced whole; what lies behind the recorded length was never
delivered and is cut off on `open`.
A file is finished in the same way: first the position file says what it becomes, then it is renamed, and
`open` renames what a crash left unrenamed. So nothing is lost and nothing doubled, wherever it stops.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from penstock.changes.documents import json_lines
from penstock.disk import sync_directory, unusable, write_all
from penstock.errors import PenstockError, PositionMissing, SinkPrivilegeMissing
from penstock.failpoints import fault_point
from penstock.findings import Finding
from penstock.lsn import Lsn
from penstock.sinks.documents.contract import DocumentSink
from penstock.sinks.documents.position import PositionFile
from penstock.sinks.durable import (
    LOCK_NAME,
    cannot_use,
    claim_directory,
    make_directory,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock.sinks.file.options import FileOptions

_log = logging.getLogger(__name__)

POSITION_NAME = ".position.json"
_OPEN_PREFIX, _OPEN_SUFFIX = ".changes-", ".open"


@dataclass(frozen=True)
class GrowingFile:
    """The hidden file as the position file knows it. `becomes` is set once it is finished."""

    name: str
    begins_after: int
    began_at: float  # this machine's clock, seconds since 1970: age outlives the process
    length: int = 0
    becomes: str | None = None
    number: int = 0  # counts all files of the sink, also those that are finished and taken away


class FileSink(DocumentSink):
    """Delivers documents to files in one directory."""

    stores_state = True
    batch_bytes = 16 * 1024 * 1024

    def __init__(self, options: FileOptions, pipeline: str, source: str) -> None:
        self._options = options
        self._directory = options.path
        self._position = PositionFile(options.path / POSITION_NAME, pipeline, source)
        self._lock: int | None = None
        self._file: GrowingFile | None = None
        self._last_number = 0
        self._fd: int | None = None
        self._state: str | None = None  # as stored; None while the sink is not open

    def open(self) -> str | None:
        """Claim the directory, fix what a crash left, read the position."""
        self._forget()
        make_directory(self._directory, self._options.directory_mode)
        if self._lock is None:
            self._lock = claim_directory(self._directory)
        state = self._position.read_text()
        if state is None:
            return None
        self._position.text.read(state)  # that it is ours
        file = self._file_of(state)
        self._remove_orphans(file)
        if file is not None:
            self._recover(file)
        self._state = state
        return state

    def check(self) -> Iterator[Finding]:
        """Whether the directory can be made and written."""
        if (error := unusable(self._directory)) is not None:
            yield Finding(cannot_use(error, self._directory))

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        """Append the documents, record the position, finish a full file."""
        assert state is not None, "delivered by the driver"
        try:
            file = self._append(documents)
            fault_point("file.after_append")
            if file is not None and self._is_due(file):
                self._finish(file, state)
            else:
                self._write(file, state)
        except BaseException:
            self._forget()
            raise

    def idle(self) -> None:
        """Finish a file that has become old enough."""
        if self._state is not None and self._file is not None and self._is_due(self._file):
            self._finish(self._file, self._state)

    def close(self) -> None:
        """Make visible what there is, and let go of the directory."""
        try:
            if self._state is not None and self._file is not None:
                self._finish(self._file, self._state)
        except (OSError, PenstockError) as error:
            # Nothing is lost: the next run goes on with the file as it is.
            _log.warning("%s stays unfinished: %s", self._directory, error)
        finally:
            self._forget()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def forget(self) -> list[str]:
        """Forget the pipeline and leave nothing but documents.

        Raises:
            SecondInstance: the pipeline still delivers there.
        """
        if not self._position.path.exists():
            return []
        self.open()
        self.close()
        for path in (self._position.path, self._directory / LOCK_NAME):
            path.unlink(missing_ok=True)
        return [f"position in {self._directory}"]

    @property
    def step_bytes(self) -> int:
        """What there is room for in the file that grows."""
        length = self._file.length if self._file is not None else 0
        return max(1, self._options.rotate_bytes - length)

    def _append(self, documents: Iterator[pa.RecordBatch]) -> GrowingFile | None:
        file, length = self._file, 0
        for batch in documents:
            file = file or self._begin_file()
            assert self._fd is not None
            lines = json_lines(batch)
            write_all(self._fd, lines)
            length += len(lines)
        if file is None or not length:
            return file
        assert self._fd is not None
        os.fdatasync(self._fd)
        return replace(file, length=file.length + length)

    def _begin_file(self) -> GrowingFile:
        after_lsn = 0 if self._state is None else _lsn_of(self._state)
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

    def _write(self, file: GrowingFile | None, state: str) -> None:
        number = self._last_number if file is None else file.number
        extra = {"file": asdict(file) if file is not None else None, "last_number": number}
        self._position.write(json.dumps({**json.loads(state), "extra": extra}))
        self._state, self._file, self._last_number = state, file, number

    def _finish(self, file: GrowingFile, state: str) -> None:
        """Record what the file becomes, and the position with it; then rename."""
        delivered_lsn = _lsn_of(state)
        becomes = f"changes-{file.begins_after:016X}-{delivered_lsn:016X}"
        if delivered_lsn == file.begins_after:
            becomes += f"-{file.number:08d}"
        finished = replace(file, becomes=f"{becomes}.jsonl")
        self._write(finished, state)
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

    def _file_of(self, state: str) -> GrowingFile | None:
        try:
            extra = json.loads(state)["extra"]
            self._last_number = int(extra.get("last_number", 0))
            return GrowingFile(**extra["file"]) if extra["file"] else None
        except (KeyError, TypeError, ValueError):
            raise self._position.text.damaged() from None

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

    def _remove_orphans(self, file: GrowingFile | None) -> None:
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
        """Know nothing any more: what is stored is read again by `open`."""
        self._state = None
        self._close_file()


def _lsn_of(state: str) -> Lsn:
    """Files are named after positions; the rest of the state is penstock's."""
    return Lsn.parse(json.loads(state)["delivered_lsn"])
