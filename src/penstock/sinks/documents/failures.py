"""What an exception out of a document sink means: for time, for a person, or a defect of the sink."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.errors import DestinationRefuses, PenstockError, SinkDefect, SinkError
from penstock.sinks.durable import cannot_use

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.sinks.documents.contract import DocumentSink

_log = logging.getLogger(__name__)


def explained(error: Exception, sink: DocumentSink, directory: Path, name: str) -> PenstockError:
    """The exception as one of ours. Its own text is said only as far as the sink says it itself."""
    if isinstance(error, PenstockError):
        return error
    place = f"sink {name}"
    _log.debug("raised by %s", place, exc_info=error)
    if isinstance(error, sink.passes_with_time):
        return SinkError(sink.explain(error), place, "nothing, penstock tries again by itself")
    if isinstance(error, sink.needs_a_person):
        return DestinationRefuses(
            sink.explain(error),
            place,
            "fix the cause at the destination, then start penstock again",
        )
    if isinstance(error, OSError):
        return cannot_use(error, directory)
    return SinkDefect(
        f"the sink raised {type(error).__name__}, which it does not declare",
        place,
        "report it to who wrote the sink; --log-level debug shows where it was raised",
    )
