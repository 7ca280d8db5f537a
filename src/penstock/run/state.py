"""The state directory: whose it is, who works in it, and what each part last reported.

    pipeline.json        whose directory this is
    log/                 the log, where it is of the kind `files`
    schema.jsonl         how tables looked when (penstock.schema.history)
    capture.lock …       held by the one process that captures, by the one that delivers
    capture.json         what capture last reported
    capture.failed.json …  what ended capture, or deliver, the last time (penstock.run.failures)
    sinks/<name>.json    what each sink last reported; `safe_lsn` is what the slot may be told

Reports are hints for `status` and for the other half; the sinks' own positions are the truth.
Deleting the whole directory loses nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from penstock.disk import is_full, unwritable
from penstock.errors import DiskFull, SecondInstance, StateOfAnother, StateUnusable
from penstock.lsn import ZERO, Lsn
from penstock.schema.history import SchemaHistory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

# A predecessor that was killed may take a moment to be gone.
_LOCK_PATIENCE_SECONDS = 5.0
_HOLDER_BYTES = 64


class StateDirectory:
    """Paths and small JSON files; every write is whole or not there."""

    def __init__(self, path: Path, pipeline: str) -> None:
        self.path = path
        self.pipeline = pipeline
        self.history = SchemaHistory(path / "schema.jsonl")

    def claim(self) -> None:
        """Make the directory, or see that it is ours.

        Raises:
            StateUnusable: it cannot be made or written.
            StateOfAnother: it belongs to another pipeline.
        """
        owner = self.path / "pipeline.json"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not owner.exists():
                if any(entry.name not in ("sinks",) for entry in self.path.iterdir()):
                    raise StateOfAnother(
                        "the directory holds files that are not penstock's",
                        str(self.path),
                        "choose an empty directory for `state:`",
                    )
                write_json(owner, {"name": self.pipeline, "format": 1})
            (self.path / "sinks").mkdir(mode=0o700, exist_ok=True)
            _shut_out_others(self.path)
            found = json.loads(owner.read_text()).get("name")
            _probe(self.path / ".writable")
        except OSError as error:
            raise StateUnusable(
                f"cannot use the state directory: {error.strerror}",
                str(self.path),
                "make it writable for this user, or choose another `state:`",
            ) from None
        except (ValueError, AttributeError):
            found = None
        if found != self.pipeline:
            raise StateOfAnother(
                f"the directory belongs to pipeline {found!r}, wanted {self.pipeline!r}",
                str(self.path),
                "choose another `state:`, or delete this directory if that pipeline is gone",
            )

    def is_ours(self) -> bool:
        """Whether the directory is there, and this pipeline's."""
        return self.read_report("pipeline").get("name") == self.pipeline

    @contextmanager
    def lock(self, role: str) -> Iterator[None]:
        """Hold a role (`capture`, `deliver`) alone, until the process ends.

        Raises:
            SecondInstance: another process holds it.
        """
        path = self.path / f"{role}.lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + _LOCK_PATIENCE_SECONDS
            while not _try_lock(fd):
                if time.monotonic() > deadline:
                    holder, _ = _holder(fd)
                    raise SecondInstance(
                        f"another process (pid {holder}) already runs {role} of this pipeline",
                        str(self.path),
                        f"stop it first: kill {holder}",
                    )
                time.sleep(0.1)
            # Over what is there: a full disk has no place for a new page.
            holder = f"{os.getpid()} {uuid.uuid4().hex}"
            try:
                os.pwrite(fd, holder.ljust(_HOLDER_BYTES).encode(), 0)
            except OSError as error:
                raise unwritable(error, self.path) from error
            yield
        finally:
            os.close(fd)

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

    def write_report(self, part: str, report: dict[str, Any]) -> bool:
        """Leave a report for others; `part` is `capture` or `sinks/<name>`. Whether it was written.

        A full disk ends nobody: a report is a hint. It is then written over the one before, which has
        its place on the disk; it may be torn, and is then none.
        """
        path = self.path / f"{part}.json"
        try:
            write_json(path, report)
        except DiskFull:
            return _write_over(path, report)
        return True

    def remove_report(self, part: str) -> None:
        """Take a report back."""
        (self.path / f"{part}.json").unlink(missing_ok=True)

    def reported_at(self, part: str) -> float:
        """When a part last left a report, by this machine's clock; 0 when it never did."""
        try:
            return (self.path / f"{part}.json").stat().st_mtime
        except OSError:
            return 0.0

    def read_report(self, part: str) -> dict[str, Any]:
        """The last report of a part, empty when there is none."""
        try:
            report = json.loads((self.path / f"{part}.json").read_text())
        except (OSError, ValueError):
            return {}
        return report if isinstance(report, dict) else {}


class SinkReports:
    """What the sinks have, as they say themselves: read by who captures.

    What may be forgotten for good (`safe_lsn`) is believed of a run that delivers while this object
    lives, for it has opened the sink before it reports. A report of an earlier run may say more than
    the sink has by now: a target can lose its last commits when it crashes, or by a failover.

    `state` is the source's directory, `top` that of the whole pipeline, where who delivers is known.
    """

    def __init__(self, state: StateDirectory, top: StateDirectory, sinks: Collection[str]) -> None:
        self._state = state
        self._top = top
        self._sinks = tuple(sinks)
        self._run: str | None = None  # who delivers, or did so last while we looked

    def safe_lsn(self) -> Lsn:
        """What every sink has; zero while one has not been opened."""
        self._run = self._top.run_of("deliver") or self._run
        told = [
            report.get("safe_lsn") if report.get("run") == self._run else None
            for report in self._read()
        ]
        return min((Lsn.parse(lsn) if lsn else ZERO for lsn in told), default=ZERO)

    def once_delivered_lsn(self) -> Lsn:
        """The furthest that any sink has ever said it has: the source once had that much."""
        told = [report.get("delivered_lsn") for report in self._read()]
        return max((Lsn.parse(lsn) for lsn in told if lsn), default=ZERO)

    def changed_at(self) -> tuple[float, ...]:
        """When each last reported; changes when there is something new."""
        return tuple(self._state.reported_at(f"sinks/{name}") for name in self._sinks)

    def is_delivering(self) -> bool:
        """Whether somebody delivers, so that sinks will report or have done so."""
        return self._top.is_held("deliver")

    def _read(self) -> list[dict[str, Any]]:
        return [self._state.read_report(f"sinks/{name}") for name in self._sinks]


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


def _write_over(path: Path, document: dict[str, Any]) -> bool:
    """Replace a file's content in the blocks that it has; whether it fits."""
    data = json.dumps(document).encode()
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if len(data) > os.fstat(fd).st_blocks * 512:
            return False
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Replace a file as a whole: a reader sees the old or the new one."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with open(os.open(scratch, flags, 0o600), "w") as file:  # noqa: PTH123 - of a descriptor
            file.write(json.dumps(document))
        scratch.replace(path)
    except OSError as error:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise unwritable(error, path.parent) from error
