"""Logs for tests: small segments, and slices whose content says where it belongs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock.encryption import NO_KEYS, Keyring
from penstock.log.files import writer as writer_module
from penstock.log.files.reader import FilesReader
from penstock.log.files.writer import FilesWriter
from penstock.log.slice import SliceHead, SliceKind
from penstock.lsn import Lsn
from penstock.secret import Secret

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.log.files.segment import FileSlice
    from penstock.log.files.spool import FileSpool


class SmallLog:
    """A log and its writer. Every slice holds one message: its number, and some filling."""

    def __init__(self, directory: Path, start_lsn: int = 0, keyring: Keyring = NO_KEYS) -> None:
        self.directory = directory
        self.keyring = keyring
        self.start_lsn = start_lsn
        self.writer = FilesWriter(directory, keyring)
        self.count = 0
        self.reopen()

    def reopen(self) -> None:
        """As after a crash: nothing is closed in good order."""
        self.writer.close()
        self.writer = FilesWriter(self.directory, self.keyring)
        self.writer.open(Lsn(self.start_lsn))

    def append(self, kind: SliceKind, end_lsn: int, part: int = 0, filling: int = 20) -> None:
        """Append one slice; `part` numbers the parts of a transaction."""
        self.count += 1
        message = b"%d %s" % (self.count, b"." * filling)
        lsn = Lsn(end_lsn)
        head = SliceHead(kind, lsn, lsn, lsn, first_ordinal=5 * part, meta={"part": part})
        self.writer.append(head, message, np.array([len(message)], np.uint32))

    def whole(self, end_lsn: int, filling: int = 20) -> None:
        """Append one slice of whole transactions."""
        self.append(SliceKind.WHOLE, end_lsn, filling=filling)

    def streamed(self, end_lsn: int, parts: int = 2, aborted: tuple[int, ...] = ()) -> FileSpool:
        """A transaction that came in pieces, and its commit."""
        spool = self.writer.begin_spool(end_lsn, self.writer.durable_lsn)
        for number in range(parts):
            message = b"%d/%d" % (end_lsn, number)
            head = SliceHead(SliceKind.PART, Lsn(0), first_ordinal=number, carries_xids=True)
            spool.append(head, message, np.array([len(message)], np.uint32))
        spool.seal()
        named = {"spool": spool.path.name, "parts": parts, "aborted": list(aborted)}
        head = SliceHead(
            SliceKind.STREAMED, Lsn(end_lsn), Lsn(end_lsn), Lsn(end_lsn), 77, end_lsn, meta=named
        )
        self.writer.append(head, b"", np.zeros(0, np.uint32))
        return spool

    def read(self, after: int = 0) -> list[FileSlice]:
        """All that a new reader finds."""
        reader = self.reader(after)
        try:
            return reader.read(1 << 60)
        finally:
            reader.close()

    def reader(self, after: int = 0) -> FilesReader:
        """A new reader."""
        return FilesReader(self.directory, Lsn(after), self.keyring)

    def ends(self, after: int = 0) -> list[int]:
        """Where the slices that a new reader finds end."""
        return [int(ref.head.end_lsn) for ref in self.read(after)]


def texts(refs: list[FileSlice]) -> list[str]:
    """The beginning of each slice's message."""
    return [ref.read()[0].split(b" ")[0].decode() for ref in refs]


def random_log(log: SmallLog, dice: random.Random, slices: int) -> list[tuple[int, list[str]]]:
    """Slices of every kind; where each transaction ends, and the texts it is read as."""
    wanted = []
    end = 0
    for _ in range(slices):
        before, end = end, end + dice.randint(1, 3)
        way = dice.choice("WWWMPSX")
        if way == "S":
            log.streamed(end, parts=dice.randint(1, 3))
            wanted.append((end, [f"{end}/{n}" for n in range(_parts_of(log, end))]))
            continue
        first = log.count + 1
        if way == "X":  # cut short by a lost connection
            log.append(SliceKind.PART, before)
            log.reopen()
            first += 1
        if way == "P":
            log.append(SliceKind.PART, before)
            log.append(SliceKind.PART, before, part=1)
            log.append(SliceKind.LAST, end, part=2)
        else:
            log.append(
                SliceKind.MARKER if way == "M" else SliceKind.WHOLE,
                end,
                filling=dice.randint(0, 60),
            )
        wanted.append((end, [str(number) for number in range(first, log.count + 1)]))
    return wanted


def _parts_of(log: SmallLog, end: int) -> int:
    [ref] = {ref.locator.path for ref in log.read() if ref.head.end_lsn == end}
    return len([one for one in log.read() if one.locator.path == ref])


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk: no test can pull the plug anyway."""
    monkeypatch.setattr("os.fsync", lambda fd: None)
    monkeypatch.setattr("os.fdatasync", lambda fd: None)


def keyring(*digits: str, encrypts: bool = True) -> Keyring:
    """Keys that are told apart by one digit, the one in use first."""
    return Keyring(Secret(" ".join(digit * 64 for digit in digits)), encrypts=encrypts)


@pytest.fixture(params=["plain", "encrypted"])
def log(request: pytest.FixtureRequest, tmp_path: Path, no_sync: None) -> Iterator[SmallLog]:
    """An empty log."""
    keys = keyring("a") if request.param == "encrypted" else NO_KEYS
    made = SmallLog(tmp_path / "log", keyring=keys)
    yield made
    made.writer.close()


@pytest.fixture
def segments_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make segments end after so many bytes."""

    def limit(size: int) -> None:
        monkeypatch.setattr(writer_module, "SEGMENT_BYTES", size)

    return limit
