"""Part files: what a task leaves on disk for the driver to pick up, where a receipt is too small.

Those of a batch are not durable and not meant to be: a part that is lost is made again from the log.
Those of a copy are: its snapshot is gone by the time that they are picked up.
"""

from __future__ import annotations

import errno
import io
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import SinkPrivilegeMissing
from penstock.sinks.durable import cannot_use

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Part:
    """A finished part file."""

    path: str
    size: int


class PartWriter:
    """Writes one part file, under a name that no other attempt at the same task uses."""

    def __init__(self, directory: str, prefix: str) -> None:
        self._path = Path(directory) / f"{prefix}{uuid.uuid4().hex}"
        self._file: io.FileIO | None = None
        self._size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append; the file is made by the first byte.

        Raises:
            SinkError: the file cannot be written; it is gone.
        """
        view = memoryview(data)
        try:
            if self._file is None and view:
                self._file = self._made()
            while view:
                assert self._file is not None
                count = self._file.write(view)
                self._size += count
                view = view[count:]
        except OSError as error:
            self.discard()
            raise cannot_use(error, self._path.parent) from None

    def _made(self) -> io.FileIO:
        return io.FileIO(self._path, "xb", opener=_open_for_owner)

    def finish(self) -> Part | None:
        """The part, None when nothing was written."""
        if self._file is None:
            return None
        try:
            self._file.close()
        except OSError as error:  # where storage is remote, a full disk may show only here
            self.discard()
            raise cannot_use(error, self._path.parent) from None
        return Part(str(self._path), self._size)

    def finish_as(self, name: str) -> None:
        """Make what was written durable under a name of its own, be it nothing; all of it or none.

        Raises:
            SinkError: the file cannot be written; it is gone.
        """
        try:
            if self._file is None:
                self._file = self._made()
            os.fsync(self._file.fileno())
            self._file.close()
            self._path.rename(self._path.with_name(name))
        except OSError as error:
            self.discard()
            raise cannot_use(error, self._path.parent) from None

    @property
    def size(self) -> int:
        """How much was written."""
        return self._size

    def discard(self) -> None:
        """Leave nothing behind."""
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)


def read_part(part: Part) -> Iterator[bytes]:
    """The bytes of a part, block by block; the file is removed after the last one.

    Raises:
        SinkPrivilegeMissing: the driver does not see what the task wrote.
        OSError: the file cannot be read.
    """
    path = Path(part.path)
    left = part.size
    try:
        with path.open("rb", buffering=0) as file:
            while block := file.read(min(_BLOCK_BYTES, left)):
                left -= len(block)
                yield block
    except FileNotFoundError:
        pass
    if left:
        raise SinkPrivilegeMissing(
            f"the driver sees {part.size - left} of {part.size} bytes that a task wrote",
            part.path,
            "choose a directory that the driver and all executors share",
        )
    path.unlink(missing_ok=True)


def line_end(path: str, offset: int, size: int, most_bytes: int) -> int:
    """Where to end so that lines stay whole: the first end of a line from so many bytes on.

    Raises:
        OSError: the file cannot be read.
    """
    at = offset + most_bytes - 1
    if at >= size:
        return size
    with Path(path).open("rb", buffering=0) as file:
        file.seek(at)
        while block := file.read(_BLOCK_BYTES):
            found = block.find(b"\n")
            if found >= 0:
                return at + found + 1
            at += len(block)
    return size


def read_span(path: str, begin: int, end: int) -> Iterator[bytes]:
    """Some of a file's bytes, block by block.

    Raises:
        OSError: they cannot be read, or are not there.
    """
    with Path(path).open("rb", buffering=0) as file:
        file.seek(begin)
        left = end - begin
        while left:
            block = file.read(min(_BLOCK_BYTES, left))
            if not block:
                raise OSError(errno.EIO, "a file of documents is shorter than it was", path)
            left -= len(block)
            yield block


def remove_parts(directory: Path, prefix: str) -> None:
    """Remove what tasks of a predecessor have left and nobody will pick up."""
    for path in directory.iterdir():
        if path.name.startswith(prefix):
            path.unlink(missing_ok=True)


def _open_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
