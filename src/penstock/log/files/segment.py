"""Segment files: where slices lie, how a reader walks them, how a torn end is cut off.

A segment is a file of slices, one after another, named by the LSN that everything before it ends
at: `<16 hex digits>.segment`. Reading needs no index: headers are walked, and names are sorted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import LogError
from penstock.log.contract import Slice
from penstock.log.slice import (
    HEADER_BYTES,
    MAGIC,
    SliceKind,
    damaged,
    decode_head,
    meta_bytes_of,
    streamed_heads,
)
from penstock.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

SEGMENT_BYTES = 64 * 1024 * 1024
# The mode of a segment that has a successor: nobody writes to it any more.
ENDED_MODE = 0o400
SUFFIX = ".segment"
SPOOL_SUFFIX = ".spool"
# Most slices' header and meta fit; one read instead of two.
_HEAD_GUESS = 1024


@dataclass(frozen=True)
class FileLocator:
    """The part of a segment or spool that a slice takes."""

    path: str
    offset: int  # of the header
    body_offset: int

    @property
    def where(self) -> str:
        """The place, for errors."""
        return f"{Path(self.path).name} at byte {self.offset}"

    def fetch(self, size: int) -> bytes:
        """The bytes after the slice's header and meta.

        Raises:
            LogError: the file cannot be read.
        """
        try:
            with Path(self.path).open("rb", buffering=0) as file:
                return os.pread(file.fileno(), size, self.body_offset)
        except OSError as error:
            raise damaged(self.where, f"cannot be read: {error.strerror}") from error


@dataclass(frozen=True)
class FileSlice(Slice):
    """A slice in a segment or spool."""

    locator: FileLocator

    @property
    def end_offset(self) -> int:
        """The first byte after the slice."""
        return self.locator.body_offset + self.head.body_bytes


def segment_name(base_lsn: Lsn) -> str:
    """The file name of a segment whose slices all end after `base_lsn`."""
    return f"{base_lsn:016X}{SUFFIX}"


def base_of(path: Path) -> Lsn:
    """The LSN in a segment's name."""
    return Lsn(int(path.name.removesuffix(SUFFIX), 16))


def list_segments(directory: Path) -> list[Path]:
    """The segments of a log, oldest first."""
    return sorted(directory.glob(f"*{SUFFIX}"))


def read_ref(fd: int, path: str, offset: int, size: int) -> FileSlice | None:
    """The slice whose header is at `offset`, or None while it is not wholly there.

    Raises:
        LogError: what stands there is not a slice.
    """
    where = f"{Path(path).name} at byte {offset}"
    raw = os.pread(fd, _HEAD_GUESS, offset)
    if len(raw) < HEADER_BYTES:
        return None
    needed = HEADER_BYTES + meta_bytes_of(raw)
    if len(raw) < needed <= size - offset:
        raw = os.pread(fd, needed, offset)
    decoded = decode_head(raw, where)
    if decoded is None:
        return None
    head, head_bytes = decoded
    found = FileSlice(head, FileLocator(path, offset, offset + head_bytes))
    return found if found.end_offset <= size else None


def walk(path: Path, offset: int = 0) -> Iterator[FileSlice]:
    """Every slice from `offset` on, of a file that is not being written to.

    Raises:
        LogError: something that is not a slice stands between or after them.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        while offset < size:
            ref = read_ref(file.fileno(), str(path), offset, size)
            if ref is None:
                raise damaged(f"{path.name} at byte {offset}", "a slice is cut short")
            yield ref
            offset = ref.end_offset


def key_of(path: Path) -> str | None:
    """Which key a segment is encrypted with: its first slice says it of all. None: with none, or empty.

    Raises:
        LogError: no slice begins it.
    """
    with path.open("rb", buffering=0) as file:
        ref = read_ref(file.fileno(), str(path), 0, os.fstat(file.fileno()).st_size)
    mark = None if ref is None else ref.head.mark
    return None if mark is None else mark.key_id


def cut_torn_end(path: Path) -> int:
    """Cut off a slice that a crash left half-written at the end; the number of bytes cut.

    Raises:
        LogError: the damage is not at the end: whole slices follow it.
    """
    size = path.stat().st_size
    sound = 0
    fault: LogError | None = None
    try:
        for ref in walk(path):
            ref.stored()
            sound = ref.end_offset
    except LogError as error:
        fault = error
    if fault is not None and slice_follows(path, sound + 1):
        raise fault
    if sound < size:
        with path.open("r+b") as file:
            file.truncate(sound)
            os.fsync(file.fileno())
    return size - sound


def slice_follows(path: Path, offset: int) -> bool:
    """Whether a slice with a sound header begins anywhere at or after `offset`."""
    raw = path.read_bytes()
    view = memoryview(raw)
    at = raw.find(MAGIC, offset)
    while at != -1:
        try:
            if decode_head(view[at:], path.name) is not None:
                return True
        except LogError:
            pass  # four bytes of a row that equal our mark
        at = raw.find(MAGIC, at + 1)
    return False


def expand(ref: FileSlice) -> list[FileSlice]:
    """The slices of a streamed transaction, each with what only its commit knew."""
    if ref.head.kind is not SliceKind.STREAMED:
        return [ref]
    spool = Path(ref.locator.path).with_name(str(ref.head.meta["spool"]))
    aborted = tuple(ref.head.meta["aborted"])
    parts = list(walk(spool)) if spool.exists() else []
    if len(parts) != ref.head.meta["parts"]:
        raise damaged(spool.name, f"{len(parts)} slices, wanted {ref.head.meta['parts']}")
    heads = streamed_heads(ref.head, [part.head for part in parts])
    return [FileSlice(head, part.locator, aborted) for head, part in zip(heads, parts, strict=True)]
