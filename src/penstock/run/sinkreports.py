"""What the sinks have, as the half that delivers reports it: what capture may acknowledge to the slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lsn import ZERO, Lsn
from penstock.state.reports import DeliveryReport

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.state.wire import Wire


class SinkReports:
    """What all sinks of a source have; held by the process that captures it.

    What may be forgotten for good (`safe_lsn`) is believed of a run that delivers while this object
    lives, for it has opened the sink before it reports. A report of an earlier run may say more than
    the sink has by now: a target can lose its last commits when it crashes, or by a failover.
    """

    def __init__(self, wire: Wire, sinks: Collection[str]) -> None:
        self._wire = wire
        self._sinks = tuple(sinks)
        # The runs that deliver to each sink, or did so last in our time.
        self._runs: dict[str, str | None] = {}

    def safe_lsn(self) -> Lsn:
        """What every sink has; zero while one has not been opened."""
        return self.opened_lsn() or ZERO

    def opened_lsn(self) -> Lsn | None:
        """What every sink has, once all have been opened."""
        found: list[Lsn | None] = []
        for name, report in zip(self._sinks, self._reports(), strict=True):
            run = self._wire.delivering_run(name) or self._runs.get(name)
            self._runs[name] = run
            is_believed = run is not None and report.run == run
            found.append(report.safe_lsn or ZERO if is_believed else None)
        opened = [lsn for lsn in found if lsn is not None]
        return min(opened, default=ZERO) if len(opened) == len(found) else None

    def once_delivered_lsn(self) -> Lsn:
        """The furthest that any sink has ever reported: the source once had that much."""
        return max((report.delivered_lsn or ZERO for report in self._reports()), default=ZERO)

    def published_at(self) -> tuple[float, ...]:
        """When each last reported; changes when there is something new."""
        return tuple(self._wire.published_at(DeliveryReport, name) for name in self._sinks)

    def is_delivering(self) -> bool:
        """Whether some process delivers, so that sinks will report or have done so."""
        return self._wire.delivering_run() is not None

    def _reports(self) -> list[DeliveryReport]:
        found = [self._wire.latest(DeliveryReport, name) for name in self._sinks]
        return [report or DeliveryReport() for report in found]
