"""What is stored for a sink of documents, mirrored in memory while the sink is open."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, PositionTaken, SinkError
from penstock.sinks.documents.failures import explained

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from penstock.lsn import Lsn
    from penstock.sinks.documents.contract import DocumentSink
    from penstock.sinks.documents.position import KeptPosition, PositionFile
    from penstock.sinks.documents.workspace import Workspace
    from penstock.sinks.sink import Batch
    from penstock.table import TableName

_log = logging.getLogger(__name__)


class PositionKeeper:
    """One sink's position. It is unknown while the sink is not open, and after a failure.

    So nothing is done before `open` has seen again what there is. `on_opened` is called when it is known.
    """

    def __init__(self, name: str, sink: DocumentSink, space: Workspace, file: PositionFile) -> None:
        self.change_count = 0
        self.on_opened: Callable[[], None] = lambda: None
        self._name = name
        self._sink = sink
        self._space = space
        self._file = file
        self._kept: KeptPosition | None = None
        self._cancelled = threading.Event()

    def open(self, stored: str | None) -> KeptPosition | None:
        """Know the position, by what the sink has stored where it can; None when there is none yet."""
        text = stored if self._sink.stores_state else self._file.read_text()
        if text is None:
            return None
        kept = self._file.text.read(text)
        self.keep(kept, text)
        return kept

    @property
    def is_open(self) -> bool:
        """Whether the position is known."""
        return self._kept is not None

    @property
    def stored(self) -> KeptPosition:
        """The position.

        Raises:
            SinkError: the sink is not open.
        """
        if self._kept is None:
            raise SinkError("not open", f"sink {self._name}", "nothing, penstock tries again")
        return self._kept

    def text(self, kept: KeptPosition) -> str:
        """A position as a destination stores it."""
        return self._file.text.write(kept)

    def record(self, kept: KeptPosition) -> None:
        """Store a position without documents."""
        text = self.text(kept)
        self._sink.deliver(iter(()), text)
        self.keep(kept, text, is_news=True)

    def keep(self, kept: KeptPosition, text: str, *, is_news: bool = False) -> None:
        """Know that a position is stored; write it to the file that others read, where it is needed.

        Where the destination stores it the file only says how tables stand.
        """
        before = self._kept
        is_due = (
            before is None or before.tables is not kept.tables
            if self._sink.stores_state
            else is_news
        )
        if is_due and not self._space.sink_writes_position:
            self._file.write(text)
        self._kept = kept
        self.change_count = kept.change_count
        if before is None:
            self.on_opened()

    def forget(self) -> None:
        """Know nothing any more: what is stored is read again by `open`."""
        self._kept = None

    @contextmanager
    def or_forget(self) -> Iterator[None]:
        """After a failure nothing in memory counts any more, and the error is a PenstockError."""
        try:
            yield
        except PenstockError:
            self.forget()
            raise
        except Exception as error:  # noqa: BLE001 - explained, and raised
            self.forget()
            if self._cancelled.is_set():
                # An exception of an interrupted sink is the interruption, whatever it says.
                _log.debug("cancelled", exc_info=error)
                raise self._was_cancelled("a batch") from None
            # Not from it: a program that runs a pipeline prints the whole chain, and so its text.
            raise explained(error, self._sink, self._space.directory, self._name) from None

    # --- a commit that takes too long ----------------------------------------------------------

    def cancel(self) -> None:
        """Have what is under way end; from another thread."""
        self._cancelled.set()

    def allow(self) -> None:
        """Take that back: the sink is opened anew."""
        self._cancelled.clear()

    def raise_if_cancelled(self, end_lsn: Lsn) -> None:
        """Raise a SinkError when what is under way up to a position is to end."""
        if self._cancelled.is_set():
            raise self._was_cancelled(f"the batch up to {end_lsn}")

    def _was_cancelled(self, what: str) -> SinkError:
        return SinkError(
            f"{what} was cancelled",
            f"sink {self._name}",
            "nothing; it is delivered when penstock runs again",
        )

    # --- what must hold ------------------------------------------------------------------------

    def require(self, batch: Batch, only: Collection[TableName] | None = None) -> KeptPosition:
        """The stored position, which is where the batch begins; with `only`, so is that of tables.

        Raises:
            SinkError: the sink is not open.
            PositionTaken: the position is elsewhere, or one of the tables is or cannot catch up.
        """
        kept = self.stored
        if only is None and kept.delivered_lsn != batch.after_lsn:
            raise self._taken(f"the position is {kept.delivered_lsn}, wanted {batch.after_lsn}")
        for table in only or ():
            known = kept.tables.get(table)
            if known is None or not known.can_catch_up or known.delivered_lsn != batch.after_lsn:
                raise self._taken(f"{table} does not stand at {batch.after_lsn}")
        return kept

    def _taken(self, what: str) -> PositionTaken:
        return PositionTaken(
            what,
            f"sink {self._name}",
            "stop the other penstock that delivers this pipeline, and start again",
        )
