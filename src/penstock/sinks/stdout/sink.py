"""Documents to standard output, which cannot hold a position: penstock keeps it in the state directory.

What was written cannot be taken back: after a crash the documents of one batch, or some of a copy, come
a second time, with the same ids.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from typing import TYPE_CHECKING

from penstock.changes.documents import json_lines
from penstock.errors import ReaderGone, SinkError
from penstock.sinks.documents.contract import DocumentSink
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

# A pipe that can be written at all takes this much without blocking (PIPE_BUF), so that a reader who
# has stopped reading cannot keep penstock from stopping.
_WRITE_BYTES = 4096


class StdoutSink(DocumentSink):
    """Prints documents."""

    batch_bytes = 2 * 1024 * 1024

    def __init__(self, name: str, descriptor: int = 1) -> None:
        self._name = name
        self._descriptor = descriptor
        self._cancelled = threading.Event()

    def open(self) -> None:
        """Nothing to reach."""
        self._cancelled.clear()

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        """Print.

        Raises:
            ReaderGone: nobody reads any more.
        """
        del state  # penstock keeps it
        for batch in documents:
            self._print(json_lines(batch))

    def interrupt(self) -> None:
        """Wait for the reader no longer."""
        self._cancelled.set()

    def _print(self, lines: memoryview) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        view = lines
        try:
            if sys.stdout is not None and self._descriptor == 1:
                sys.stdout.flush()  # what others have printed comes first
            while view:
                if poll.poll(1000 * timing().stdout_poll_seconds):
                    view = view[os.write(self._descriptor, view[:_WRITE_BYTES]) :]
                elif self._cancelled.is_set():
                    raise SinkError(
                        "printing a batch was cancelled",
                        f"sink {self._name}",
                        "nothing; it is printed when penstock runs again",
                    )
        except OSError as error:
            raise ReaderGone(
                "the reader of standard output went away"
                if isinstance(error, BrokenPipeError)
                else f"standard output takes no more: {(error.strerror or 'closed').lower()}",
                f"sink {self._name}",
                "start penstock again with a reader; it goes on from the last batch that was printed",
            ) from None
