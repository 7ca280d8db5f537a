"""What sinks of documents have in common: all tables go on together, none stops alone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import PositionTaken, RunError, SinkError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.lsn import Lsn
    from penstock.sinks.positionfile import KeptPosition
    from penstock.sinks.sink import Batch, Receipt
    from penstock.sinks.tables import ApartTable
    from penstock.table import TableName


class EventSink:
    """The part of the driver half that does not depend on where documents go.

    `_kept` mirrors the position that is stored; None while the sink is not open, and after a failure,
    so that nothing is done before `open` has looked again at what there is.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.change_count = 0
        self.flowing: set[TableName] = set()
        self.apart: dict[TableName, ApartTable] = {}
        self._kept: KeptPosition | None = None
        self._called_off = threading.Event()

    def refresh_tables(self, lsn: Lsn) -> None:
        """Nobody else changes how tables stand."""
        del lsn

    def enrol(self, tables: Collection[TableName], lsn: Lsn) -> None:
        """Tables flow from here on."""
        del lsn
        self.flowing |= set(tables)

    def remove(self, tables: Collection[TableName]) -> None:
        """Tables are followed no more."""
        self.flowing -= set(tables)

    def commit_apart(
        self, tables: Collection[TableName], batch: Batch, receipts: Sequence[Receipt]
    ) -> None:
        """Never called: no table is apart."""
        del batch, receipts
        self._require_all(tables)

    def join(self, tables: Collection[TableName]) -> None:
        """Never called: no table is apart."""
        self._require_all(tables)

    def interrupt(self) -> None:
        """Call off the commit that runs, between two blocks of bytes; its position does not move."""
        self._called_off.set()

    def _refuse(self, table: TableName) -> NoReturn:
        raise RunError(
            f"{table} was to go on alone, but this sink delivers all tables together",
            f"sink {self.name}",
        )

    def _require_all(self, only: Collection[TableName] | None) -> None:
        for table in only or ():
            self._refuse(table)

    def _require_position(self, batch: Batch) -> KeptPosition:
        """The stored position, which is where the batch begins.

        Raises:
            SinkError: the sink is not open.
            PositionTaken: the position is elsewhere.
        """
        kept = self._require_open()
        if kept.delivered_lsn != batch.after_lsn:
            raise PositionTaken(
                f"the position is {kept.delivered_lsn}, wanted {batch.after_lsn}",
                f"sink {self.name}",
                "stop the other penstock that delivers this pipeline, and start again",
            )
        return kept

    def _require_open(self) -> KeptPosition:
        if self._kept is None:
            raise SinkError("not open", f"sink {self.name}", "nothing, penstock tries again")
        return self._kept

    def _raise_if_called_off(self, end_lsn: Lsn) -> None:
        if self._called_off.is_set():
            raise SinkError(
                f"the batch up to {end_lsn} was called off",
                f"sink {self.name}",
                "nothing; it is delivered when penstock runs again",
            )
