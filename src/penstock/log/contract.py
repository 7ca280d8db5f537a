"""What a log is: the promises between the half that captures and the half that delivers.

    capture ──► LogWriter ──► the log of one source ──► LogReader ──► Slice ──► Spark task: Slice.read

A log keeps slices (`penstock.log.slice`) in the order of their commits, from where the slot stands on
until every sink has them. Kinds of logs lie in packages of their own and are found by their names
(`penstock.log.registry`); a holder of a `Log` does not know which kind it is.

- *Who*: one process writes, any number read at the same time, on any machine that can reach the log. A task
  reads slices that the driver's reader has handed out.
- *Durable*: what ends at or before `durable_lsn` outlasts a crash of process and machine. The slot may be acknowledged that
  position, so it must never move earlier than the bytes are kept.
- *Whole*: readers see whole transactions only. Parts of a transaction become readable with its last part.
- *Repeated*: after a crash the server sends again what is after `durable_lsn`; a writer that is opened
  has removed what it holds of that. A slice may straddle the position that a reader was opened at:
  delivery drops the transactions that the sink has.
- *Encrypted*, where its options ask for it (`LogOptions.keyring`): a writer gives `encode_slice` an encryptor that it
  has made when it was opened, a reader hands out slices with the keyring, and both see to it that keys are there
  before anything is changed or handed out. Reading decrypts by what each slice says of itself.
- *Gone*: what was discarded is not needed by anybody; to read it raises LogError.

Must not know files, topics or sockets, nor what a message means.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from penstock.encryption import NO_KEYS, NotAuthentic
from penstock.log.slice import SliceKind, damaged

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from penstock.encryption import Keyring
    from penstock.errors import PenstockError
    from penstock.log.options import LogOptions
    from penstock.log.slice import SliceHead
    from penstock.lsn import Lsn


class Locator(Protocol):
    """Where the messages of one slice are. Opaque to all but the kind of log that made it.

    Small and picklable: it goes to a Spark task, perhaps on another machine, and holds all that is needed
    to read there. It stays good until its slice is discarded, however often it is read.
    """

    @property
    def where(self) -> str:
        """The place, for errors."""
        ...

    def fetch(self, size: int) -> bytes:
        """The lengths and messages of the slice, `size` bytes; called in a Spark task or on the driver.

        Raises:
            LogError: they cannot be read.
        """
        ...


@dataclass(frozen=True)
class Slice:
    """A slice of a log: what it holds, and where its messages are. This is what a Spark task is given."""

    head: SliceHead
    locator: Locator
    # Subtransactions rolled back before the commit of a streamed transaction.
    aborted_xids: tuple[int, ...] = ()
    keyring: Keyring = NO_KEYS

    def stored(self) -> bytes:
        """The bytes after header and meta as they are stored, checked against the checksum.

        Raises:
            LogError: they are not those that were written.
        """
        head = self.head
        body = self.locator.fetch(head.body_bytes)
        if len(body) != head.body_bytes:
            raise damaged(self.locator.where, f"{len(body)} bytes, wanted {head.body_bytes}")
        if zlib.crc32(body) != head.body_crc:
            raise damaged(
                self.locator.where,
                f"the checksum differs in transactions {head.first_commit_lsn} to {head.last_commit_lsn}",
            )
        return body

    def read(self) -> tuple[bytes, npt.NDArray[np.int64]]:
        """The messages and the length of each, checked and decrypted.

        Raises:
            LogError: the bytes are not those that were written.
            LogKeyMissing: they are encrypted with a key that nobody has given.
        """
        head, body = self.head, self.stored()
        if head.mark is not None:
            try:
                body = self.keyring.decrypt(head.mark, body, head.bound, self.locator.where)
            except NotAuthentic:
                raise damaged(
                    self.locator.where, "was changed by somebody: it is not what was encrypted"
                ) from None
        count = head.message_count
        lengths = np.frombuffer(body, dtype="<u4", count=count).astype(np.int64)
        if int(lengths.sum()) != head.data_bytes:
            raise damaged(self.locator.where, "the lengths of the messages do not add up")
        return body[4 * count :], lengths


@dataclass(frozen=True)
class LastCommit:
    """A commit that the log holds: where it stands in the source's WAL, and its time there."""

    commit_lsn: Lsn
    committed_at: int
    # It was streamed, and no row of it is known to remain: asked for it again, Postgres 15 and later sends
    # a transaction that is empty only if it streams that.
    may_be_skipped: bool = False

    @classmethod
    def of(cls, head: SliceHead) -> LastCommit | None:
        """The last one of a slice."""
        if head.kind is SliceKind.PART or not head.last_commit_lsn:
            return None
        may_be_skipped = bool(head.meta.get("empty") or head.meta.get("aborted"))
        return cls(head.last_commit_lsn, head.committed_at, may_be_skipped)


@dataclass(frozen=True)
class LogSpan:
    """From where to where a log goes; zeros when there is none, or none any more: `is_emptied`."""

    begin_lsn: Lsn
    end_lsn: Lsn
    is_emptied: bool = (
        False  # there was one, and somebody else than its writer has deleted all of it
    )

    def holds(self, lsn: Lsn) -> bool:
        """Whether everything from a position on is in the log, up to where it ends."""
        return self.begin_lsn <= lsn <= self.end_lsn


class Spool(Protocol):
    """The slices of one transaction that the server streams before its commit.

    Nobody reads them before a STREAMED slice names the spool. All methods raise DiskFull when there is no
    room.
    """

    @property
    def name(self) -> str:
        """What the STREAMED slice calls it: `meta.spool`."""
        ...

    @property
    def part_count(self) -> int:
        """How many slices it has: `meta.parts`."""
        ...

    def append(self, head: SliceHead, data: bytes, lengths: npt.NDArray[np.uint32]) -> None:
        """Write one slice; it is durable only after `seal`."""
        ...

    def seal(self) -> None:
        """Make every slice durable, before the commit that names them is."""
        ...

    def discard(self) -> None:
        """Remove it: the transaction was rolled back, or will be sent again."""
        ...


class SliceTaker(Protocol):
    """What slices are given to while they are assembled."""

    @property
    def durable_lsn(self) -> Lsn:
        """Where everything that is durable ends."""
        ...

    def append(self, head: SliceHead, data: bytes, lengths: npt.NDArray[np.uint32]) -> None:
        """Make one slice durable, now or soon, after all earlier ones.

        Slices end in the order in which they are appended; a PART does not count.

        Raises:
            DiskFull: this slice or an earlier one could not be written; nor will any later one.
        """
        ...

    def begin_spool(self, xid: int, begin_lsn: Lsn) -> Spool:
        """A place for a transaction that arrives before its commit, from `begin_lsn` on.

        Raises:
            DiskFull: no room.
        """
        ...


class LogWriter(SliceTaker, Protocol):
    """The log's only writer: capture holds it, in one thread, and has the source's lock meanwhile."""

    @property
    def torn_bytes(self) -> int:
        """How much `open` has cut off that a crash had left half-written."""
        ...

    @property
    def last_commit(self) -> LastCommit | None:
        """The last commit at or before `durable_lsn`; None: not known."""
        ...

    def open(self, start_lsn: Lsn) -> None:
        """Go on where the log ends, or begin anew at `start_lsn` when it does not reach that far.

        What was written and is not whole is removed: the server sends it again. What a predecessor
        wrote and could not make durable is durable afterwards, since readers may have acted on it.

        Raises:
            LogError: the log is damaged elsewhere than at its end.
            StateUnusable: it cannot be written.
        """
        ...

    def flush(self) -> None:
        """Wait until everything appended is durable.

        Raises:
            DiskFull: something is not, and will be sent again.
        """
        ...

    def restart(self) -> None:
        """Go on from `durable_lsn` after something could not be written; it may be later than it was.

        Raises:
            LogUnreachable: that is still so.
        """
        ...

    def end_segment(self) -> None:
        """Make all that is durable discardable, between two transactions.

        A kind that discards by larger units ends the newest one here.
        """
        ...

    def cut(self) -> None:
        """The same after a full disk: also gives up what the log holds of transactions that have not ended.

        Raises:
            DiskFull: there is no room even for that.
        """
        ...

    def discard_before(self, lsn: Lsn) -> int:
        """Let go of what ends at or before `lsn`, as far as it can be had; in how many units."""
        ...

    def size_bytes(self) -> int:
        """What the log takes now, to be held against `retain_bytes`."""
        ...

    def free_bytes(self) -> int:
        """How much more it could take, for all that is known; below 0: less than is kept free."""
        ...

    def risk(self, needed_lsn: Lsn) -> PenstockError | None:
        """What may delete what a sink at a position needs, though nothing has yet; None: nothing is known.

        Asked seldom.
        """
        ...

    def close(self) -> None:
        """End; what was appended is still made durable."""
        ...


class LogReader(Protocol):
    """Hands out slices after a position, in order. Lives in one thread of the driver."""

    def read(self, limit_bytes: int) -> list[Slice]:
        """The next slices, about `limit_bytes` of messages, empty when there is nothing new.

        A transaction in parts is returned whole, whatever its size; all its slices have the `end_lsn`
        of its commit.

        Raises:
            LogShortened: what was read last did not outlast a crash; a new reader goes on.
            LogError: the log is damaged, or begins after the position asked for.
        """
        ...

    def may_have_news(self) -> bool:
        """Whether `read` could find something; far cheaper, to be asked again and again."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Log(Protocol):
    """The log of one source. Making it reaches and touches nothing; from any process, any thread."""

    @property
    def place(self) -> str:
        """Where it is, for errors."""
        ...

    def writer(self) -> LogWriter:
        """What appends to it, unopened. For the one process that captures the source."""
        ...

    def reader(self, after: Lsn) -> LogReader:
        """What reads it from a position on, which slices may straddle."""
        ...

    def span(self) -> LogSpan:
        """From where to where it goes now; it may be written to meanwhile. Changes nothing."""
        ...

    def end_lsn(self) -> Lsn | None:
        """Where everything in it ends; zero when there is none, None when it is not known right now."""
        ...

    def risk(self, needed_lsn: Lsn) -> PenstockError | None:
        """As the writer's, while nobody writes: what will soon delete what a sink at a position needs.

        Raises:
            LogUnreachable: it cannot be asked.
        """
        ...


@dataclass(frozen=True)
class LogOwner:
    """Whose log it is: one source of one pipeline. `directory` is the source's own on this machine."""

    pipeline: str
    source_id: str
    directory: Path


@dataclass(frozen=True)
class Posted:
    """A value on a board: what, and when by the clock of who posted it."""

    value: bytes
    at: float


class Board(Protocol):
    """Small values that all processes of a pipeline see, where they share no disk; of each key the last one counts.

    It also knows who works: a role is held by one process at a time, until that ends. From any
    thread; all methods raise LogUnreachable while they cannot be carried out.
    """

    def put(self, key: str, value: bytes | None) -> None:
        """Put a value in the place of the last one, durably; None takes it back."""
        ...

    def get(self, key: str) -> Posted | None:
        """The last value, as it was a moment ago; what this process has put is seen at once."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin so and have a value."""
        ...

    def sync(self) -> None:
        """See all that was put by anybody before this call."""
        ...

    @property
    def is_known(self) -> bool:
        """Whether this process has read it; raises nothing."""
        ...

    def recall(self, key: str) -> Posted | None:
        """The last value that this process has seen, also while the broker is away; raises nothing."""
        ...

    def hold(self, role: str) -> AbstractContextManager[None]:
        """Hold a role alone.

        Raises:
            SecondInstance: another process holds it.
        """
        ...

    def own_run(self, role: str) -> str | None:
        """Which run of this process holds a role, also while the broker is away; raises nothing."""
        ...

    def run_of(self, role: str) -> str | None:
        """Which run holds a role: an id that no other run has; None when nobody does, for all that is known."""
        ...

    def forget(self) -> list[str]:
        """Remove it as a whole; what was removed."""
        ...


class LogKind(Protocol):
    """One kind of log, as the registry finds it: everything that the rest asks a kind for."""

    @property
    def name(self) -> str:
        """What `log.kind` in the pipeline file says."""
        ...

    @property
    def options(self) -> type[LogOptions]:
        """The model of what stands under `log:` in the pipeline file."""
        ...

    def log_of(self, options: LogOptions, owner: LogOwner) -> Log:
        """The log of one source. Reaches and touches nothing."""
        ...

    def board_of(self, options: LogOptions, pipeline: str) -> Board | None:
        """What the halves of a pipeline share beside its logs; None: the state directory. Reaches nothing."""
        ...

    def forget(self, options: LogOptions, owners: Sequence[LogOwner]) -> list[str]:
        """Remove the logs, where that is not done by removing the state directory; what was removed."""
        ...

    def check(self, options: LogOptions, owners: Sequence[LogOwner]) -> list[PenstockError]:
        """What `penstock check` warns of, for all sources together. Changes nothing."""
        ...
