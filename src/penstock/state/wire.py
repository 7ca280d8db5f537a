"""The wire between the half that captures, the half that delivers, and `status`.

Each part publishes its last report; others read it when they want to. Here reports are small files in the
state directory; where the halves share no disk, they go through the broker (`penstock.state.boardwire`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.errors import DiskFull
from penstock.state.reports import (
    CaptureReport,
    CopyRequest,
    DeliveryReport,
    Failure,
    MembershipReport,
    Pause,
    SeenMembers,
    SeenPartitions,
    SeenRules,
    SourceErrors,
    from_json,
    to_json,
)
from penstock.state.smallfiles import replace_text, write_over

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager
    from pathlib import Path

    from penstock.state.directory import StateDirectory
    from penstock.state.reports import R, Report

# Where the last report of each kind lies; `of` names which one of several.
_FILES: dict[type[Report], str] = {
    CaptureReport: "capture.json",
    MembershipReport: "tables.json",
    DeliveryReport: "sinks/{of}.json",
    CopyRequest: "sinks/{of}.requests.json",
    SeenMembers: "sinks/{of}.members.json",
    SeenPartitions: "sinks/{of}.partitions.json",
    SeenRules: "sinks/{of}.rules.json",
    SourceErrors: "sources.json",
    Failure: "{of}.failed.json",
    Pause: "sinks/{of}.pause.json",
}


class Wire(Protocol):
    """The last reports of one source's parts. From any process, any thread.

    `of` says which one of a kind is meant: the name of a sink, of a half; empty where there is one.
    """

    def publish(self, report: Report, of: str = "") -> bool:
        """Put a report in the place of the last one of its kind; whether that could be done.

        A reader gets the one before, this one, or for a moment none. Where there is no room the one before
        may stay: a caller that must be heard publishes a shorter one, or again.
        """
        ...

    def latest(self, kind: type[R], of: str = "") -> R | None:
        """The last report of a kind; None when there is none, or it is no longer whole."""
        ...

    def published_at(self, kind: type[Report], of: str = "") -> float:
        """When the last one was published; 0 when never. Cheap: changes when there is another one."""
        ...

    def withdraw(self, kind: type[Report], of: str = "") -> bool:
        """Take the last one back; whether that could be done."""
        ...

    def capturing_run(self) -> str | None:
        """Which run captures right now: an id that no other run has; None when nobody does."""
        ...

    def delivering_run(self, sink: str = "") -> str | None:
        """Which run delivers to a sink right now, or to any."""
        ...

    def hold_capture(self) -> AbstractContextManager[None]:
        """Be the one who captures, for as long as the block lasts.

        Raises:
            SecondInstance: another process does.
        """
        ...

    def hold_delivery(self, sinks: Collection[str]) -> AbstractContextManager[None]:
        """Be the one who delivers to sinks, for as long as the block lasts.

        Raises:
            SecondInstance: another process does, to one of them.
        """
        ...


class FileWire:
    """Reports as files in a source's state directory.

    `top` is the directory of the whole pipeline, where the run that delivers is known.
    """

    def __init__(self, state: StateDirectory, top: StateDirectory | None = None) -> None:
        self._state = state
        self._directory = state.path
        self._top = top or state

    def publish(self, report: Report, of: str = "") -> bool:
        """Replace the file; on a full disk, write over the one before, which has its place there.

        It may be torn then, and counts as none.

        Raises:
            StateUnusable: the directory cannot be written, though there is room.
        """
        path, text = self._path(type(report), of), to_json(report)
        try:
            replace_text(path, text)
        except DiskFull:
            return write_over(path, text)
        return True

    def latest(self, kind: type[R], of: str = "") -> R | None:
        """What the file holds."""
        try:
            return from_json(kind, self._path(kind, of).read_bytes())
        except OSError:
            return None

    def published_at(self, kind: type[Report], of: str = "") -> float:
        """The file's time, by this machine's clock."""
        try:
            return self._path(kind, of).stat().st_mtime
        except OSError:
            return 0.0

    def withdraw(self, kind: type[Report], of: str = "") -> bool:
        """Remove the file."""
        self._path(kind, of).unlink(missing_ok=True)
        return True

    def capturing_run(self) -> str | None:
        """Who holds the lock."""
        return self._state.run_of("capture")

    def delivering_run(self, sink: str = "") -> str | None:  # noqa: ARG002 - one delivers to all
        """Who holds the lock."""
        return self._top.run_of("deliver")

    def hold_capture(self) -> AbstractContextManager[None]:
        """Hold the lock."""
        return self._state.lock("capture")

    def hold_delivery(self, sinks: Collection[str]) -> AbstractContextManager[None]:  # noqa: ARG002
        """Hold the lock, for all sinks: their positions may lie in this directory."""
        return self._top.lock("deliver")

    def _path(self, kind: type[Report], of: str) -> Path:
        return self._directory / file_of(kind, of)


def file_of(kind: type[Report], of: str) -> str:
    """What a report is called, below the place of all."""
    return _FILES[kind].format(of=of)
