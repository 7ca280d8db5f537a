"""What the server needs of a run. `penstock.run.watched` has the run's side; tests have their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.run.status import PipelineStatus
    from penstock.sinks.subscriptions import Subscriptions


@dataclass(frozen=True)
class Snapshot:
    """The whole pipeline as it was at a moment. Nobody changes it afterwards."""

    status: PipelineStatus
    version: int  # each has a higher one than the one before
    at: float  # seconds since 1970


class Watched(Protocol):
    """A run that is watched. All methods from any thread; actions may take seconds.

    `halves` are those of the pipeline that this process runs: capture, deliver or both.
    """

    name: str
    log: str  # its kind
    halves: frozenset[str]
    on_snapshot: Callable[[Snapshot], None]
    on_error: Callable[[str, str], None]  # a part, and the text: what the status itself cannot show

    def snapshot(self) -> Snapshot | None:
        """The last one; None before the first. Asks nobody."""
        ...

    def hurry(self) -> None:
        """Somebody is looking: for some seconds, snapshots come often."""
        ...

    def poll_again(self) -> None:
        """Something was changed: its effect is to be seen soon."""
        ...

    def change_tables(self, action: str, names: Sequence[str], source: str | None) -> list[str]:
        """Add, remove or resync tables; what comes of it, a line for each.

        Raises:
            PenstockError: nothing has changed.
        """
        ...

    def retry_tables(self, sink: str, names: Sequence[str], source: str | None) -> list[str]:
        """Try stopped tables again now, rather than when their time comes; those that are."""
        ...

    def pause(self, sink: str, *, is_paused: bool) -> str:
        """Hold delivery to a sink after the batch under way, also after a restart; or go on."""
        ...

    def parked(
        self, sink: str | None, source: str | None, table: str | None, most: int
    ) -> tuple[int, list[dict[str, Any]]]:
        """Changes that are parked, without the rows' values: how many, and so many of them at most."""
        ...

    def change_parked(
        self,
        action: str,
        sink: str | None,
        source: str | None,
        table: str | None,
        ids: Sequence[str],
    ) -> int:
        """Retry or drop parked changes; how many."""
        ...

    def subscriptions(self) -> Mapping[str, Subscriptions]:
        """Who has subscribed, by sink, of sinks that can be subscribed to."""
        ...

    def versions(self, source: str | None, schema: str | None) -> list[dict[str, Any]]:
        """Versions of the schemas of a source, or of all."""
        ...

    def changes_of_version(self, source: str | None, schema: str, number: int) -> list[str]:
        """What a version changed, a line for each change; empty for the first."""
        ...

    def version(self, source: str | None, schema: str, number: int) -> dict[str, Any]:
        """What a schema was in a version."""
        ...
