"""The state directory: whose it is, and who works in it.

    pipeline.json        whose directory this is
    log/                 the log, where it is of the kind `files`
    schema.jsonl         shapes of tables by position (penstock.schema.past_shapes)
    capture.lock …       held by the one process that captures, by the one that delivers
    capture.json, sinks/<name>.json …  what each part last reported (penstock.state.wire)

What sinks have is stored at the sinks. With `acknowledge: delivered` deleting the whole directory loses
nothing: the slot is acknowledged `safe_lsn` of a running delivery and no more, so it has what no sink has.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.disk import is_full, unusable, unwritable
from penstock.errors import SecondInstance, StateOfAnother, StateUnusable
from penstock.schema.past_shapes import PastShapes
from penstock.state.smallfiles import replace_text
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HOLDER_BYTES = 64


class StateDirectory:
    """The directory of a source, or of a whole pipeline."""

    def __init__(self, path: Path, pipeline: str) -> None:
        self.path = path
        self.pipeline = pipeline
        self.past_shapes = PastShapes(path / "schema.jsonl")

    def claim(self) -> None:
        """Make the directory, or see that it is ours.

        Raises:
            StateUnusable: it cannot be made or written.
            StateOfAnother: it belongs to another pipeline.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._is_nobodys():
                text = json.dumps({"name": self.pipeline, "format": 1})
                replace_text(self._owner_path, text)
            (self.path / "sinks").mkdir(mode=0o700, exist_ok=True)
            _shut_out_others(self.path)
            self._require_ours()
            _probe(self.path / ".writable")
        except OSError as error:
            raise self._unusable(error.strerror) from None

    def fault(self) -> StateUnusable | StateOfAnother | None:
        """What `claim` would raise, as far as that shows without changing anything."""
        if (error := unusable(self.path)) is not None:
            return self._unusable(error.strerror)
        try:
            if self.path.exists() and not self._is_nobodys():
                self._require_ours()
        except OSError as failure:
            return self._unusable(failure.strerror)
        except StateOfAnother as fault:
            return fault
        return None

    @property
    def _owner_path(self) -> Path:
        return self.path / "pipeline.json"

    def _is_nobodys(self) -> bool:
        """Whether no pipeline has claimed the directory, which is there."""
        if self._owner_path.exists():
            return False
        if any(entry.name not in ("sinks",) for entry in self.path.iterdir()):
            raise StateOfAnother(
                "the directory holds files that are not penstock's",
                str(self.path),
                "choose an empty directory for `state:`",
            )
        return True

    def _require_ours(self) -> None:
        try:
            found = json.loads(self._owner_path.read_text()).get("name")
        except (ValueError, AttributeError):
            found = None
        if found != self.pipeline:
            raise StateOfAnother(
                f"the directory belongs to pipeline {found!r}, wanted {self.pipeline!r}",
                str(self.path),
                "choose another `state:`, or delete this directory if that pipeline is gone",
            )

    def _unusable(self, reason: str | None) -> StateUnusable:
        return StateUnusable(
            f"cannot use the state directory: {reason}",
            str(self.path),
            "make it writable for this user, or choose another `state:`",
        )

    def is_ours(self) -> bool:
        """Whether the directory is there, and this pipeline's."""
        try:
            found = json.loads((self.path / "pipeline.json").read_text())
        except (OSError, ValueError):
            return False
        return isinstance(found, dict) and found.get("name") == self.pipeline

    @contextmanager
    def lock(self, role: str) -> Iterator[None]:
        """Hold a role (`capture`, `deliver`) alone, until the process ends.

        Raises:
            SecondInstance: another process holds it.
        """
        path = self.path / f"{role}.lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + timing().state_lock_patience_seconds
            while not _try_lock(fd):
                if time.monotonic() > deadline:
                    holder, _ = _holder(fd)
                    raise SecondInstance(
                        f"another process (pid {holder}) already runs {role} of this pipeline",
                        str(self.path),
                        f"stop it first: kill {holder}",
                    )
                time.sleep(timing().state_lock_poll_seconds)
            # Over what is there: a full disk has no place for a new page.
            self._name_run(fd, uuid.uuid4().hex)
            yield
        finally:
            os.close(fd)

    def name_run(self, role: str, run: str) -> None:
        """Give the run that holds a role, which this process does, the name that it has elsewhere."""
        fd = os.open(self.path / f"{role}.lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._name_run(fd, run)
        finally:
            os.close(fd)

    def _name_run(self, fd: int, run: str) -> None:
        try:
            os.pwrite(fd, f"{os.getpid()} {run}".ljust(_HOLDER_BYTES).encode(), 0)
        except OSError as error:
            raise unwritable(error, self.path) from error

    def is_held(self, role: str) -> bool:
        """Whether some process holds the role right now."""
        return self.run_of(role) is not None

    def run_of(self, role: str) -> str | None:
        """Which run holds the role right now: an id that no other run has; None when nobody does."""
        path = self.path / f"{role}.lock"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return None if _try_lock(fd) else _holder(fd)[1]
        finally:
            os.close(fd)


def _holder(fd: int) -> tuple[str, str]:
    """Process and run that a lock file names."""
    words = os.pread(fd, _HOLDER_BYTES, 0).decode(errors="replace").split()
    return (words[0] if words else "unknown"), (words[1] if len(words) > 1 else "")


def _shut_out_others(directory: Path) -> None:
    """Let nobody else into a directory that was made by an earlier version, or by hand.

    Its group stays as it is: who gave it one means it, for executors that run as another user, say.
    """
    found = directory.stat()
    if found.st_mode & 0o007 and found.st_uid == os.geteuid():
        directory.chmod(stat.S_IMODE(found.st_mode) & ~0o007)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _probe(path: Path) -> None:
    """See that a directory can be written to; a full one will have room again."""
    try:
        path.touch()
        path.unlink()
    except OSError as error:
        if not is_full(error):
            raise
