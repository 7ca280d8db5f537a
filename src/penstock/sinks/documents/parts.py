"""Part files: documents that a task leaves on disk for the driver, where a receipt is too small.

A part is a row of Arrow messages, one for each batch of documents, so that it can be read from any of
them on. Parts of a batch are not durable and not meant to be: one that is lost is made again from
the log. Those of a copy are: its snapshot is gone by the time that they are read. Where `log.encrypt` is asked for,
each message is encrypted by itself; one that is not is recognised, and read as it is.
"""

from __future__ import annotations

import errno
import io
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.documents import DOCUMENTS
from penstock.encryption import FRAME_HEADER_BYTES, NO_KEYS, NotAuthentic, frame_bytes
from penstock.errors import SinkPrivilegeMissing
from penstock.sinks.durable import cannot_use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.encryption import Keyring


@dataclass(frozen=True)
class Part:
    """A finished part file."""

    path: str
    size: int


class PartWriter:
    """Writes one part file, under a name that no other attempt at the same task uses."""

    def __init__(self, directory: str, prefix: str, keyring: Keyring = NO_KEYS) -> None:
        self._path = Path(directory) / f"{prefix}{uuid.uuid4().hex}"
        self._encryptor = keyring.encryptor()
        self._file: io.FileIO | None = None
        self._size = 0

    def write(self, message: bytes | bytearray | memoryview | pa.Buffer) -> None:
        """Append one message or several; the file is made by the first byte.

        Raises:
            SinkError: the file cannot be written; it is gone.
        """
        view = memoryview(message).cast("B")
        if self._encryptor is not None and view:
            view = memoryview(self._encryptor.frame(view))
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


def message_of(batch: pa.RecordBatch) -> pa.Buffer:
    """A batch of documents as a part holds it."""
    return batch.serialize()


def read_messages(content: bytes, schema: pa.Schema = DOCUMENTS) -> Iterator[pa.RecordBatch]:
    """The batches of a part that travelled in a receipt."""
    source = pa.BufferReader(content)
    while source.tell() < len(content):
        yield _read_batch(source, schema)


def read_part(
    part: Part, keyring: Keyring = NO_KEYS, schema: pa.Schema = DOCUMENTS
) -> Iterator[pa.RecordBatch]:
    """The batches of a part file, one after another.

    Raises:
        LogKeyMissing: they are encrypted with a key that is not given.
        SinkPrivilegeMissing: the driver does not see what the task wrote.
        OSError: the file cannot be read.
    """
    path = Path(part.path)
    size = path.stat().st_size if path.exists() else 0
    if size < part.size:
        raise SinkPrivilegeMissing(
            f"the driver sees {size} of {part.size} bytes that a task wrote",
            part.path,
            "choose a directory that the driver and all executors share",
        )
    with pa.OSFile(part.path) as file:
        while file.tell() < part.size:
            yield _read_batch(file, schema, keyring)


@dataclass(frozen=True)
class Cursor:
    """Where in a part to go on: at which message, and at which of its documents."""

    offset: int = 0
    row: int = 0


def read_some(
    path: str,
    size: int,
    at: Cursor,
    most_bytes: int,
    keyring: Keyring = NO_KEYS,
    schema: pa.Schema = DOCUMENTS,
) -> tuple[list[pa.RecordBatch], Cursor]:
    """Documents of a part from a place on, about so many bytes of them, at least one; and where to go on.

    Raises:
        LogKeyMissing: they are encrypted with a key that is not given.
        OSError: they cannot be read, or are not there.
    """
    batches: list[pa.RecordBatch] = []
    offset, row, room = at.offset, at.row, most_bytes
    with pa.OSFile(path) as file:
        if file.size() < size:
            raise OSError(errno.EIO, "a file of documents is shorter than it was", path)
        file.seek(offset)
        while room > 0 and offset < size:
            batch = _read_batch(file, schema, keyring)
            count = _fitting(batch, row, room)
            taken = batch.slice(row, count)
            batches.append(taken)
            room -= value_bytes(taken)
            row += count
            if row < len(batch):
                break
            offset, row = file.tell(), 0
    return batches, Cursor(offset, row)


def value_bytes(batch: pa.RecordBatch) -> int:
    """How many bytes of documents a batch holds: their values with line ends, and where there are any their record keys."""
    return int(_sizes(batch).sum())


def _fitting(batch: pa.RecordBatch, row: int, room: int) -> int:
    """How many documents from a row on reach so many bytes, the last one whole."""
    sizes = np.cumsum(_sizes(batch)[row:])
    return min(int(np.searchsorted(sizes, room)) + 1, len(batch) - row)


def _sizes(batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    sizes = _lengths(batch.column("value")) + 1
    if "record_key" in batch.schema.names:
        sizes += _lengths(batch.column("record_key"))
    return sizes


def _lengths(texts: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.asarray(pc.fill_null(pc.binary_length(texts), 0)).astype(np.int64)


def _read_batch(
    source: pa.NativeFile, schema: pa.Schema, keyring: Keyring = NO_KEYS
) -> pa.RecordBatch:
    """The next message, or the messages that were encrypted together."""
    begin = source.tell()
    size = frame_bytes(source.read(FRAME_HEADER_BYTES))
    source.seek(begin)
    try:
        if size is not None:
            plain = keyring.unframe(source.read(size), "a file of documents")
            return pa.concat_batches(list(read_messages(plain, schema)))
        return pa.ipc.read_record_batch(pa.ipc.read_message(source), schema)
    except (pa.ArrowInvalid, EOFError, NotAuthentic):
        raise OSError(errno.EIO, "a file of documents is damaged") from None


def remove_parts(directory: Path, prefix: str) -> None:
    """Remove what tasks of a predecessor have left and nobody will read."""
    for path in directory.iterdir():
        if path.name.startswith(prefix):
            path.unlink(missing_ok=True)


def _open_for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
