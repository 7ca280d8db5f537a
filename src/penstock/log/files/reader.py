"""Read the log after a position. Any number of readers, in any process, beside the writer."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.encryption import NO_KEYS
from penstock.errors import LogError, LogShortened
from penstock.log.files.segment import (
    FileSlice,
    base_of,
    expand,
    list_segments,
    read_ref,
    slice_follows,
)
from penstock.log.slice import SliceKind, damaged

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.encryption import Keyring
    from penstock.log.contract import Slice
    from penstock.lsn import Lsn


class FilesReader:
    """Hands out slices after a position, whole transactions only.

    All slices of a transaction in parts have the same `end_lsn`, that of its commit.

    Slices whose transactions are wholly at or before `after` are skipped. A slice that merely
    straddles it is handed out: delivery drops the transactions that the sink has.
    """

    def __init__(self, directory: Path, after: Lsn, keyring: Keyring = NO_KEYS) -> None:
        self._directory = directory
        self._keyring = keyring
        self._after = after
        self._path: Path | None = None
        self._fd: int | None = None
        self._is_finished = False  # whether the segment had a successor when it was opened
        self._offset = 0
        # Where the slices read so far end.
        self._read_lsn = after
        # Parts of a transaction whose last part has not come yet.
        self._parts: list[FileSlice] = []

    def read(self, limit_bytes: int) -> list[Slice]:
        """The next slices, about `limit_bytes` of messages, empty when there is nothing new.

        A transaction in parts is returned whole, whatever its size.

        Raises:
            LogError: a segment is damaged, or the log begins after the position asked for.
            LogKeyMissing: it is encrypted with a key that is not given.
        """
        slices: list[Slice] = []
        size = 0
        while size < limit_bytes or self._parts:
            ref = self._next()
            if ref is None:
                break
            ready = self._whole(ref)
            slices += [replace(part, keyring=self._keyring) for part in ready]
            size += sum(part.head.data_bytes for part in ready)
        return slices

    def may_have_news(self) -> bool:
        """Whether `read` could find something; far cheaper, to be asked again and again."""
        if self._fd is None or self._is_finished:
            return True
        found = os.fstat(self._fd)
        return found.st_size != self._offset or _is_ended(found)

    def _whole(self, ref: FileSlice) -> list[FileSlice]:
        """The slices that became readable with this one."""
        head = ref.head
        if head.kind is SliceKind.PART:
            # A first part where others wait: those were cut short by a lost connection.
            self._parts = [*self._parts, ref] if head.meta["part"] else [ref]
            return []
        parts, self._parts = self._parts, []
        if head.end_lsn <= self._after:
            return []
        if head.kind is SliceKind.LAST:
            if len(parts) != head.meta["part"]:
                raise damaged(
                    ref.locator.where, f"{len(parts)} parts before, wanted {head.meta['part']}"
                )
            # Only the commit knew where the transaction ends.
            whole = [replace(part, head=replace(part.head, end_lsn=head.end_lsn)) for part in parts]
            return [*whole, ref]
        return expand(ref)

    def _next(self) -> FileSlice | None:
        if self._fd is None and not self._open_first():
            return None
        while True:
            assert self._fd is not None
            found = os.fstat(self._fd)
            size = found.st_size
            ref = self._slice_at(self._fd, size) if self._offset != size else None
            if ref is not None:
                if ref.head.mark is not None:
                    self._keyring.require(ref.head.mark.key_id, ref.locator.where)
                self._offset = ref.end_offset
                if ref.head.kind is not SliceKind.PART:
                    self._read_lsn = ref.head.end_lsn
                return ref
            # No need to list the directory at every poll.
            is_left = self._is_finished or _is_ended(found)
            if not is_left or not self._open_successor(size):
                return None

    def _slice_at(self, fd: int, size: int) -> FileSlice | None:
        path = self._path
        assert path is not None
        if self._offset > size:
            raise LogShortened(
                f"{size} bytes, of which {self._offset} have been read: its end was lost in a crash, or"
                " the disk was full",
                path.name,
                "nothing: it is read again, from what the sinks have",
            )
        try:
            return read_ref(fd, str(path), self._offset, size)
        except LogError:
            # A power cut may leave garbage at the end of the newest segment, until the writer is
            # back and cuts it off.
            if self._successor() is None and not slice_follows(path, self._offset + 1):
                return None
        # Read twice, for the writer may have fixed it meanwhile.
        return read_ref(fd, str(path), self._offset, size)

    def _open_first(self) -> bool:
        segments = list_segments(self._directory)
        if not segments:
            return False
        if base_of(segments[0]) > self._after:
            raise LogError(
                f"the log begins at {base_of(segments[0])}, wanted {self._after}",
                str(self._directory),
                "delete the log directory while penstock is stopped; the slot sends again what no "
                "sink has",
            )
        first = [segment for segment in segments if base_of(segment) <= self._after][-1]
        try:
            self._open(first)
        except FileNotFoundError:
            return False  # deleted since, and there is another one by now
        self._read_lsn = base_of(first)
        return True

    def _successor(self) -> Path | None:
        assert self._path is not None
        later = [segment for segment in list_segments(self._directory) if segment > self._path]
        return later[0] if later else None

    def _open_successor(self, size: int) -> bool:
        assert self._fd is not None
        found = os.fstat(self._fd)
        # A segment that held nothing whole may have been begun anew, under its name.
        is_anew = not found.st_nlink and self._path is not None and self._path.exists()
        successor = self._path if is_anew else self._successor()
        if successor is None:
            return False
        if found.st_size != size:
            return True  # grew between the two checks
        where = f"{self._path and self._path.name} at byte {self._offset}"
        if self._offset < size and found.st_nlink:
            raise damaged(where, f"{size - self._offset} bytes after the last whole slice")
        if base_of(successor) > max(self._read_lsn, self._after):
            raise damaged(
                where, f"ends at {self._read_lsn}, but the next, {successor.name}, begins later"
            )
        self._open(successor)
        return True

    def _open(self, path: Path) -> None:
        self.close()
        self._path = path
        self._fd = os.open(path, os.O_RDONLY)
        self._offset = 0
        self._is_finished = self._successor() is not None

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _is_ended(found: os.stat_result) -> bool:
    """Whether a segment has a successor, or has been deleted."""
    return not found.st_mode & stat.S_IWUSR or not found.st_nlink
