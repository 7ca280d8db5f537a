"""A board in memory, kept in step with a broker by its kind; values larger than a message lie in pieces."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import zlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from penstock.brokers.errors import WAIT
from penstock.errors import LogRefused, LogUnreachable, SecondInstance, StateOfAnother
from penstock.log.contract import Posted
from penstock.stopping import is_in_vain
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_log = logging.getLogger(__name__)

_PLAIN, _PIECES = b"=", b"#"
# The key of whose board it is; with an equals sign, as no key of a report has.
_OWNER = "owner="
_PIECE_BYTES = 500_000
# A message has a key, and its framing.
_FRAME_BYTES = 2000


class MemoryBoard(ABC):
    """What was posted last under each key, as far as this process has read it.

    A value that is too long lies in pieces, whose keys hold its checksum: they are there before the value is, and the
    former ones go after it.
    """

    def __init__(self, place: str, timeout: float, pipeline: str) -> None:
        self._place = place
        self._pipeline = pipeline
        self._read_seconds = max(timing().log_read_seconds, timeout)
        self._lock = threading.RLock()
        self._posted: dict[str, tuple[int, Posted]] = {}  # with the number of its message
        self._runs: dict[str, tuple[float, str | None]] = {}
        self._pid = 0
        self._is_known = False
        self._failed_at = float("-inf")
        self._poll_at = 0.0
        self._piece_bytes = _PIECE_BYTES
        self._held: dict[str, str] = {}  # by role: our run
        self._doubt_at = 0.0

    # --- of a kind -----------------------------------------------------------------------------

    @abstractmethod
    def _exists(self) -> bool:
        """Whether somebody has made it."""

    @abstractmethod
    def _connect(self) -> None:
        """Make what is missing, and begin to read from the first message."""

    @abstractmethod
    def _take_next(self, seconds: float) -> bool:
        """Take the next message, waited for so long at most; whether there was one. Calls `_take_read`."""

    @abstractmethod
    def _catch_up(self) -> None:
        """Take everything that is there by now; calls `_take_until`."""

    @abstractmethod
    def _post(self, key: str, value: bytes | None) -> int:
        """Append a message, durably; its number."""

    @abstractmethod
    def _holder(self, role: str) -> str | None:
        """Which run holds a role, asked of the broker."""

    @abstractmethod
    def hold(self, role: str) -> AbstractContextManager[None]:
        """Hold a role alone."""

    @abstractmethod
    def forget(self) -> list[str]:
        """Remove it as a whole."""

    @abstractmethod
    def _keep_roles(self) -> None:
        """Do what is due for the roles that are held; cheap."""

    def _limit_pieces(self, message_bytes: int) -> None:
        """Post no larger messages than the broker takes; called as it connects."""
        self._piece_bytes = max(1000, min(_PIECE_BYTES, message_bytes - _FRAME_BYTES))

    # --- the same for all ----------------------------------------------------------------------

    def _is_connected(self) -> bool:
        return self._pid == os.getpid()

    def _require_connected(self, *, creates: bool = False, asked_at: float | None = None) -> bool:
        """Connect, and read all there is; whether there is a board. One who only reads makes none.

        `asked_at`: when; of many who wait for their turn meanwhile, not each tries for itself what has just failed.
        """
        if self._is_connected():
            return True
        if asked_at is not None and self._failed_at >= asked_at:
            raise LogUnreachable(
                "the broker did not answer a moment ago",
                self._place,
                "nothing, penstock tries again by itself",
            )
        try:
            return self._connected(creates=creates)
        except LogUnreachable:
            self._failed_at = time.monotonic()
            raise

    def _connected(self, *, creates: bool) -> bool:
        if not creates:
            if time.monotonic() < self._poll_at:
                return False
            if not self._exists():
                self._poll_at = time.monotonic() + timing().log_absent_seconds
                return False
        # What was known counts until all has been read again: a part of it would say that the rest is not there.
        self._pid = 0
        before, self._posted = self._posted, {}
        try:
            self._connect()
            self._catch_up()
            self._require_owner()
        except BaseException:
            self._posted = before
            raise
        self._pid, self._is_known, self._poll_at = os.getpid(), True, 0.0
        return True

    def _require_owner(self) -> None:
        """See that no other pipeline reports there: one would take the other's reports for its own.

        Raises:
            StateOfAnother: one does.
        """
        found = self._posted.get(_OWNER)
        owner = found[1].value.decode() if found is not None else ""
        if owner not in ("", self._pipeline):
            raise StateOfAnother(
                f"reports of pipeline {owner} are there, wanted {self._pipeline}",
                self._place,
                "choose another name for it under log:, such as one with {pipeline} in it",
            )

    def _require_own(self) -> None:
        """The same of one that is to be deleted; what cannot be used otherwise can."""
        try:
            self._require_connected()
        except LogRefused as error:
            _log.debug("%s", error)

    def _drain(self) -> None:
        """Take what has come, and wait for nothing."""
        while self._take_next(0.0):
            pass

    def _take_until(self, is_enough: Callable[[], bool]) -> None:
        """Take messages.

        Raises:
            LogUnreachable: no more come. Many over a slow link are no reason: the time counts from the last one.
        """
        deadline = time.monotonic() + self._read_seconds
        while not is_enough():
            if self._take_next(timing().broker_step_seconds):
                deadline = time.monotonic() + self._read_seconds
            if time.monotonic() > deadline or is_in_vain():
                raise LogUnreachable(
                    f"no answer within {self._read_seconds:g} s",
                    self._place,
                    WAIT,
                )

    def _take(self, number: int, key: str, value: bytes | None, at: float) -> None:
        """Know of a message; what comes late is older than what is known."""
        if key in self._posted and self._posted[key][0] >= number:
            return
        former = self._pieces_of(key)
        self._posted[key] = (number, Posted(value or b"", at))
        for piece in set(former).difference(self._pieces_of(key)):
            self._posted.pop(piece, None)

    def _take_read(self, number: int, key: str, value: bytes | None, at: float) -> None:
        """Know of a message that the broker has handed out: what it hands out next is newer, so that one that was
        taken back is not to be remembered."""
        if value is not None:
            if not self._is_of_former_value(number, key):
                self._take(number, key, value, at)
        elif key in self._posted and self._posted[key][0] <= number:
            del self._posted[key]

    def _is_of_former_value(self, number: int, piece: str) -> bool:
        """Whether it is a piece of a value that is known to be replaced."""
        key, is_piece, _ = piece.rpartition("=")
        found = self._posted.get(key) if is_piece else None
        return found is not None and found[0] > number and piece not in self._pieces_of(key)

    def put(self, key: str, value: bytes | None) -> None:
        """Put a value in the place of the last one, durably; None takes it back."""
        with self._lock:
            self._require_connected(creates=True)
            self._require_roles()
            former = self._pieces_of(key)
            fresh: list[str] = []
            if value is None:
                data = None
            elif len(value) <= self._piece_bytes:
                data = _PLAIN + value
            else:
                fresh = self._put_pieces(key, zlib.compress(value, 1))
                data = _PIECES + json.dumps(fresh).encode()
            self._put_one(key, data)
            for piece in former:
                if piece not in fresh:
                    self._drop_piece(piece)

    def _drop_piece(self, piece: str) -> None:
        """Have the broker forget a piece of a value that is replaced; its name does not come again."""
        self._put_one(piece, None)

    def _hold(self, role: str, run: str) -> None:
        """A role was taken: whoever held it before reads that here, in the order of all that is put."""
        self._require_owner()
        if _OWNER not in self._posted:
            self._put_one(_OWNER, self._pipeline.encode())
        self._held[role] = run
        self._put_one(_role(role), run.encode())
        self._changed(role)

    def _last_run(self, role: str) -> str | None:
        """Who has last taken a role, whether it still holds it or not."""
        found = self._posted.get(_role(role))
        return None if found is None else found[1].value.decode() or None

    def _leave_role(self, role: str) -> None:
        self._held.pop(role, None)
        self._changed(role)

    def _require_roles(self) -> None:
        """See that nobody has taken a role of ours over: this process may have been suspended.

        Raises:
            SecondInstance: somebody has; nothing was put.
        """
        if not self._held:
            return
        self._keep_roles()
        if _now() >= self._doubt_at:
            self._catch_up()
        else:
            self._drain()
        self._doubt_at = _now() + timing().board_doubt_seconds
        for role, run in self._held.items():
            found = self._posted.get(_role(role))
            if found is not None and found[1].value not in (b"", run.encode()):
                raise SecondInstance(
                    "another process has taken over while this one was suspended or cut off from the broker",
                    f"role {role}",
                    "nothing if that was meant, else stop one of the two; nothing was written",
                )

    def _put_pieces(self, key: str, packed: bytes) -> list[str]:
        mark = f"{zlib.crc32(packed):08x}{len(packed):x}"
        names = []
        for begin in range(0, len(packed), self._piece_bytes):
            names.append(f"{key}={mark}.{begin}")
            self._put_one(names[-1], packed[begin : begin + self._piece_bytes])
        return names

    def _put_one(self, key: str, value: bytes | None) -> None:
        self._take(self._post(key, value), key, value, time.time())

    def _pieces_of(self, key: str) -> list[str]:
        found = self._posted.get(key)
        if found is None or not found[1].value.startswith(_PIECES):
            return []
        return [str(name) for name in json.loads(found[1].value[1:])]

    def get(self, key: str) -> Posted | None:
        """The last value, as it was a moment ago."""
        now = time.monotonic()
        with self._lock:
            if not self._require_connected(asked_at=now):
                return None
            self._keep_roles()
            self._drain()
            return self._whole(key)

    @property
    def is_known(self) -> bool:
        """Whether this process has read it."""
        return self._is_known

    def recall(self, key: str) -> Posted | None:
        """The last value that this process has seen."""
        with self._lock:
            return self._whole(key)

    def _whole(self, key: str) -> Posted | None:
        """A value as it was put."""
        found = self._posted.get(key)
        if found is None or not found[1].value:
            return None
        if found[1].value.startswith(_PLAIN):
            return Posted(found[1].value[1:], found[1].at)
        pieces = [self._posted.get(name) for name in self._pieces_of(key)]
        packed = b"".join(piece[1].value for piece in pieces if piece is not None)
        try:
            return Posted(zlib.decompress(packed), found[1].at)
        except zlib.error:
            return None  # a piece is missing: the next value is on its way

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin so and have a value."""
        with self._lock:
            if not self._require_connected():
                return []
            self._drain()
            return sorted(
                key
                for key, (_, posted) in self._posted.items()
                if key.startswith(prefix) and posted.value and "=" not in key
            )

    def sync(self) -> None:
        """See all that was put before."""
        with self._lock:
            self._poll_at = 0.0  # also of a board that was not there a moment ago
            if self._require_connected():
                self._catch_up()

    def own_run(self, role: str) -> str | None:
        """Which run of this process holds a role."""
        return self._held.get(role)

    def run_of(self, role: str) -> str | None:
        """Which run holds a role; as it was a moment ago."""
        now = time.monotonic()
        with self._lock:
            asked_at, run = self._runs.get(role, (float("-inf"), None))
            if time.monotonic() - asked_at > timing().log_holder_seconds:
                run = self._holder(role) if self._require_connected(asked_at=now) else None
                self._runs[role] = time.monotonic(), run
            return run

    def _changed(self, role: str) -> None:
        """A role was taken or left by this process."""
        with self._lock:
            self._runs.pop(role, None)


def _role(role: str) -> str:
    """The key of who has taken a role; with an equals sign, as no key of a report has."""
    return f"role={role}"


def _now() -> float:
    """A clock that also runs while the machine sleeps."""
    return (
        time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time()
    )
