"""Where the documents about shapes of tables are kept: lines that one process adds and any number read.

Each line holds what one transaction reported. Now and then fewer lines take the place of all: a reader
notices that, and reads anew.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from penstock.disk import is_full, sync_directory, unwritable, write_all
from penstock.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class ShapeLines(Protocol):
    """The lines of one source. All methods raise LogError where they cannot be read or written."""

    @property
    def is_near(self) -> bool:
        """Whether a look costs next to nothing."""
        ...

    def open_for_writing(self) -> None:
        """Go on after what is whole."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether lines can be added."""
        ...

    def append(self, line: bytes) -> None:
        """Make one line durable."""
        ...

    def size_bytes(self) -> int:
        """How long all lines are, for who has them open for writing."""
        ...

    def replace(self, lines: Sequence[bytes]) -> None:
        """Put these in the place of all; a reader sees those before or these."""
        ...

    def read_all(self) -> list[bytes]:
        """Every line."""
        ...

    def read_new(self) -> tuple[bool, list[bytes]]:
        """Lines that were added since this was last called; whether they are all, since others took the place."""
        ...

    def close(self) -> None:
        """Add no more."""
        ...


class FileLines:
    """Lines of a file in the state directory."""

    is_near = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._read: int | None = None  # kept open, so that no other file gets its number
        self._offset = 0

    def open_for_writing(self) -> None:
        """Cut off what a crash has left half-written, and go on after it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            raw = self.path.read_bytes()
            sound = raw.rfind(b"\n") + 1
            if sound < len(raw):
                os.ftruncate(self._file, sound)
            # What a predecessor wrote may not be synced yet, and slices that are may rely on it.
            os.fsync(self._file)
            sync_directory(self.path.parent)
        except OSError as error:
            raise self._unusable(error) from None

    @property
    def is_open(self) -> bool:
        """Whether lines can be added."""
        return self._file is not None

    def append(self, line: bytes) -> None:
        """Make one line durable; on a full disk nothing of it stays."""
        assert self._file is not None, "opened for writing first"
        size = os.fstat(self._file).st_size
        try:
            write_all(self._file, line + b"\n")
            os.fdatasync(self._file)
        except OSError as error:
            with suppress(OSError):  # else the next `open_for_writing` cuts it off
                os.ftruncate(self._file, size)
            raise self._unusable(error) from None

    def size_bytes(self) -> int:
        """How long the file is."""
        assert self._file is not None, "opened for writing first"
        return os.fstat(self._file).st_size

    def replace(self, lines: Sequence[bytes]) -> None:
        """Write another file, and put it in the place of this one."""
        try:
            self._replace(b"".join(line + b"\n" for line in lines))
        except OSError as error:
            raise self._unusable(error) from None

    def _replace(self, raw: bytes) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            write_all(file, raw)
            os.fsync(file)
            fresh.replace(self.path)
        except OSError:
            os.close(file)
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise
        sync_directory(self.path.parent)
        assert self._file is not None
        os.close(self._file)
        self._file = file

    def read_all(self) -> list[bytes]:
        """Every whole line."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable(error) from None
        return raw[: raw.rfind(b"\n") + 1].splitlines()

    def read_new(self) -> tuple[bool, list[bytes]]:
        """What was added, or all of it where another file has taken the place."""
        is_another = self._is_another()
        if is_another:
            self._forget_read()
        try:
            if self._read is None:
                self._read = os.open(self.path, os.O_RDONLY)
            size = os.fstat(self._read).st_size
            if size <= self._offset:
                return is_another, []
            raw = os.pread(self._read, size - self._offset, self._offset)
        except FileNotFoundError:
            return is_another, []
        except OSError as error:
            raise self._unusable(error) from None
        whole = raw[: raw.rfind(b"\n") + 1]
        self._offset += len(whole)
        return is_another, whole.splitlines()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _is_another(self) -> bool:
        try:
            there = self.path.stat()
        except OSError:
            return False
        if self._read is None:
            return self._offset > 0
        mine = os.fstat(self._read)
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    def _forget_read(self) -> None:
        if self._read is not None:
            os.close(self._read)
        self._read, self._offset = None, 0

    def __del__(self) -> None:
        """Let go of what was open for reading as long as this was."""
        self._forget_read()

    def _unusable(self, error: OSError) -> LogError:
        if is_full(error):
            return unwritable(error, self.path)
        return LogError(
            f"cannot use the file of shapes of tables: {error.strerror}",
            str(self.path),
            "make the state directory writable for this user, with space left",
        )
