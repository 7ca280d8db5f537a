"""Append slices to the log, durably, and delete what every sink has passed. One writer at a time."""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.disk import free_bytes, sync_directory, unwritable, write_within_room
from penstock.encryption import NO_KEYS
from penstock.errors import LogError
from penstock.failpoints import fault_point, is_next
from penstock.log.contract import LastCommit, LogSpan
from penstock.log.files.segment import (
    ENDED_MODE,
    SEGMENT_BYTES,
    SPOOL_SUFFIX,
    base_of,
    cut_torn_end,
    key_of,
    list_segments,
    segment_name,
    walk,
)
from penstock.log.files.spool import FileSpool
from penstock.log.slice import SliceKind, encode_slice
from penstock.lsn import ZERO, Lsn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from penstock.encryption import Encryptor, Keyring
    from penstock.errors import DiskFull, StateUnusable
    from penstock.log.slice import SliceHead


# Of the room that is left, a segment takes so much at most: only a whole one can be deleted.
_SEGMENTS_IN_ROOM = 8
_LEAST_SEGMENT_BYTES = 256 * 1024


class FilesWriter:
    """The log's only writer.

    `durable_lsn` is where everything in the log ends: the server need not send anything before it
    again. It moves only after the bytes are on disk.
    """

    def __init__(self, directory: Path, keyring: Keyring = NO_KEYS) -> None:
        self.directory = directory
        self._keyring = keyring
        self._encryptor: Encryptor | None = None
        self.durable_lsn = Lsn(0)
        self.torn_bytes = 0
        self.last_commit: LastCommit | None = None  # at or before durable_lsn; None: not known
        self._file: int | None = None
        self._segment_size = 0

    def open(self, start_lsn: Lsn) -> None:
        """Open the log where it ends, or begin anew at `start_lsn` when it does not reach that far.

        A slice that a crash tore is cut off, spools of transactions that never committed are
        removed: the server sends both again. What a predecessor wrote and was killed before it could
        sync is synced: whoever reads it may act on it.

        Raises:
            LogError: a segment is damaged elsewhere than at its end.
            LogKeyMissing: one is encrypted with a key that is not given; nothing was changed.
            StateUnusable: the directory cannot be written.
        """
        self._encryptor = self._keyring.encryptor()
        self._require_keys()
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            segments = list_segments(self.directory)
            if segments:
                self.torn_bytes = cut_torn_end(segments[-1])
                self._sync(segments)
                self.durable_lsn = _end(segments)
                self.last_commit = last_commit(segments)
                self._remove_orphan_spools(segments)
                self._continue(segments[-1])
                if self.durable_lsn < start_lsn:
                    # An older state of the log was put back. What lies between is delivered, or the
                    # slot would not stand at `start_lsn`.
                    self.durable_lsn = start_lsn
                    self._begin_segment()
            else:
                self.durable_lsn = start_lsn
                self._begin_segment()
            sync_directory(self.directory.parent)
        except OSError as error:
            raise self._unwritable(error) from error

    def _require_keys(self) -> None:
        """See that all of the log can be read, before anything in it is changed."""
        for segment in list_segments(self.directory):
            try:
                key_id = key_of(segment)
            except LogError:
                continue  # torn, and cut off later on, or damaged, which is raised then
            self._keyring.require(key_id, segment.name)

    def _sync(self, segments: Sequence[Path]) -> None:
        """Make durable what a predecessor may have left unsynced: its last bytes, and names."""
        with segments[-1].open("rb") as file:
            os.fsync(file.fileno())
        sync_directory(self.directory)
        for segment in segments[:-1]:
            segment.chmod(ENDED_MODE)

    def _remove_orphan_spools(self, segments: Sequence[Path]) -> None:
        named = {
            ref.head.meta["spool"]
            for segment in segments
            for ref in walk(segment)
            if ref.head.kind is SliceKind.STREAMED
        }
        for spool in self.directory.glob(f"*{SPOOL_SUFFIX}"):
            if spool.name not in named:
                spool.unlink()

    def _continue(self, path: Path) -> None:
        path.chmod(0o600)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._segment_size = os.fstat(self._file).st_size
        if self._segment_size and key_of(path) != self._keyring.key_id:
            # All of a segment is encrypted alike: what was written before goes when the sinks have it.
            self._begin_segment()

    def end_segment(self) -> None:
        """Go on in a new file, so that the present one can be deleted; between two transactions.

        Raises:
            DiskFull: there is not even room for another name.
        """
        try:
            self._begin_segment()
        except OSError as error:
            raise self._unwritable(error) from error

    def _begin_segment(self) -> None:
        """Go on in a new file, unless the present one is still empty."""
        if self._file is not None and self._segment_size == 0:
            return
        path = self.directory / segment_name(self.durable_lsn)
        begun = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        if self._file is not None and not os.path.sameopenfile(begun, self._file):
            # Readers see by its mode that there is a successor, whatever the size.
            os.fchmod(self._file, ENDED_MODE)
        self.close()
        self._file = begun
        self._segment_size = os.fstat(begun).st_size
        sync_directory(self.directory)

    def cut(self) -> None:
        """Have all that is in the log deletable, once the sinks have it, after a disk was full.

        What the log holds of a transaction that did not fit is given up: the server sends it again.

        Raises:
            DiskFull: there is not even room for another name.
        """
        try:
            segments = list_segments(self.directory)
            self._remove_orphan_spools(segments)
            if segments and base_of(segments[-1]) == self.durable_lsn and self._segment_size:
                # It holds nothing whole. Who reads it goes on in the new one.
                self.close()
                segments[-1].unlink()
            self._begin_segment()
        except OSError as error:
            raise self._unwritable(error) from error

    def append(self, head: SliceHead, data: bytes, lengths: npt.NDArray[np.uint32]) -> None:
        """Make one slice durable.

        Raises:
            DiskFull: what is after `durable_lsn` was not written, and will be sent again.
        """
        assert self._file is not None, "append before open"
        if head.kind is not SliceKind.PART and head.end_lsn < self.durable_lsn:
            # Whoever reads on from here would take what lies between for delivered.
            raise LogError(
                f"a slice that ends at {head.end_lsn} is to follow one that ends at {self.durable_lsn}",
                str(self.directory),
                "report this: it is a defect of penstock; nothing was written",
            )
        encoded = encode_slice(head, data, lengths, self._encryptor)
        if is_next("capture.torn_slice"):
            os.write(self._file, encoded[: len(encoded) // 2])
        fault_point("capture.torn_slice")
        try:
            write_within_room(self._file, encoded)
            os.fdatasync(self._file)
        except OSError as error:
            with suppress(OSError):  # else the next `open` cuts it off
                os.ftruncate(self._file, self._segment_size)
            raise self._unwritable(error) from error
        self._segment_size += len(encoded)
        if head.kind is SliceKind.PART:
            return
        self.durable_lsn = head.end_lsn
        self.last_commit = LastCommit.of(head) or self.last_commit
        try:
            if self._segment_size >= self._segment_limit():
                self._begin_segment()
        except OSError as error:
            raise self._unwritable(error) from error

    def flush(self) -> None:
        """Nothing waits: what was appended is durable."""

    def restart(self) -> None:
        """Nothing is left of what could not be written: `append` has taken it back."""

    def risk(self, needed_lsn: Lsn) -> None:
        """Nobody but penstock deletes segments."""

    def begin_spool(self, xid: int, begin_lsn: Lsn) -> FileSpool:
        """A file for a transaction that arrives before its commit.

        Raises:
            DiskFull: no space left.
        """
        return FileSpool(self.directory, xid, begin_lsn, self._encryptor)

    def _segment_limit(self) -> int:
        """How large a segment may get: smaller ones while room is short, so that some can be deleted."""
        room = free_bytes(self.directory) // _SEGMENTS_IN_ROOM
        return min(SEGMENT_BYTES, max(room, _LEAST_SEGMENT_BYTES))

    def discard_before(self, lsn: Lsn) -> int:
        """Delete segments whose every slice ends at or before `lsn`; the number deleted."""
        segments = list_segments(self.directory)
        count = 0
        for segment, successor in itertools.pairwise(segments):
            if base_of(successor) > lsn:
                break
            for ref in walk(segment):
                if ref.head.kind is SliceKind.STREAMED:
                    (self.directory / ref.head.meta["spool"]).unlink(missing_ok=True)
            segment.unlink()
            count += 1
        return count

    def size_bytes(self) -> int:
        """Bytes on disk, spools included."""
        total = 0
        for entry in os.scandir(self.directory):
            try:
                total += entry.stat().st_size
            except FileNotFoundError:
                continue  # a spool discarded meanwhile
        return total

    def free_bytes(self) -> int:
        """How much more the disk takes; below 0: less than is kept free."""
        return free_bytes(self.directory)

    def close(self) -> None:
        """Let go of the file; everything appended is durable already."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _unwritable(self, error: OSError) -> DiskFull | StateUnusable:
        return unwritable(error, self.directory)


def last_commit(segments: Sequence[Path]) -> LastCommit | None:
    """The last commit in the log's segments, oldest first; None when there is none."""
    for segment in reversed(segments):
        found = [commit for ref in walk(segment) if (commit := LastCommit.of(ref.head))]
        if found:
            return found[-1]
    return None


def log_span(directory: Path) -> LogSpan:
    """From where to where the log goes now; it may be written to meanwhile. Changes nothing."""
    segments = list_segments(directory)
    if not segments:
        return LogSpan(ZERO, ZERO)
    end = base_of(segments[-1])
    with suppress(LogError, FileNotFoundError):  # torn, or written or deleted at this moment
        for ref in walk(segments[-1]):
            if ref.head.kind is not SliceKind.PART:
                end = ref.head.end_lsn
    return LogSpan(base_of(segments[0]), end)


def log_end(directory: Path) -> Lsn | None:
    """Where everything in the log ends; zero when there is none. Changes nothing.

    None while the newest segment is being written to, or deleted; who reads it finds real damage.
    """
    try:
        return _end(list_segments(directory))
    except (LogError, FileNotFoundError):
        return None


def _end(segments: Sequence[Path]) -> Lsn:
    """Where everything in segments ends; zero when there are none.

    Raises:
        LogError: the newest is damaged, or being written to.
    """
    if not segments:
        return ZERO
    end = base_of(segments[-1])
    for ref in walk(segments[-1]):
        if ref.head.kind is not SliceKind.PART:
            end = ref.head.end_lsn
    return end
