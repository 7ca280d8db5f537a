"""What an exception out of a document sink means: for time, for a person, or a defect of the sink."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.errors import DestinationRefuses, PenstockError, SinkDefect, SinkError
from penstock.sinks.durable import cannot_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.sinks.documents.contract import DocumentSink

_log = logging.getLogger(__name__)


def explained(
    error: Exception, sink: DocumentSink | None, directory: Path, name: str
) -> PenstockError:
    """The exception as one of ours; without a sink of the making of one. Its own text is said only as far as the sink says
    it itself."""
    if isinstance(error, PenstockError):
        return error
    place = f"sink {name}"
    _log.debug("raised by %s", place, exc_info=error)
    if sink is None:
        return _defect(error, place)
    try:
        return _explained_by(sink, error, place, directory)
    except Exception as other:  # noqa: BLE001 - what explains it is the sink's, too
        _log.debug("raised by %s, explaining the one before", place, exc_info=other)
        return _defect(other, place)


def _explained_by(
    sink: DocumentSink, error: Exception, place: str, directory: Path
) -> PenstockError:
    if isinstance(error, sink.passes_with_time):
        what = _said(sink, error)
        return SinkError(what, place, "nothing, penstock tries again by itself")
    if isinstance(error, sink.needs_a_person):
        what = _said(sink, error)
        return DestinationRefuses(
            what, place, "fix the cause at the destination, then start penstock again"
        )
    if isinstance(error, OSError):
        return cannot_use(error, directory)
    return _defect(error, place)


def _said(sink: DocumentSink, error: Exception) -> str:
    """What the sink says of it; where that is nothing, its class."""
    return sink.explain(error) or type(error).__name__


def _defect(error: Exception, place: str) -> SinkDefect:
    return SinkDefect(
        f"the sink raised {type(error).__name__}, which it does not declare",
        place,
        "report it to who wrote the sink; --log-level debug shows where it was raised",
    )


@contextmanager
def ours(sink: DocumentSink | None, directory: Path, name: str) -> Iterator[None]:
    """What a sink, or the making of one where there is none yet, raises is one of ours."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:  # noqa: BLE001 - explained, and raised
        # Not from it: whoever prints the whole chain would print its text.
        raise explained(error, sink, directory, name) from None


@contextmanager
def for_a_moment(
    make: Callable[[], DocumentSink], directory: Path, name: str
) -> Iterator[DocumentSink]:
    """A sink that is made for one call, and closed after it. What it raises is one of ours."""
    sink: DocumentSink | None = None
    try:
        sink = make()
        yield sink
    except PenstockError:
        raise
    except Exception as error:  # noqa: BLE001 - explained, and raised
        # Not from it: whoever prints the whole chain would print its text.
        raise explained(error, sink, directory, name) from None
    finally:
        if sink is not None:
            let_go(sink, directory, name)


def let_go(sink: DocumentSink, directory: Path, name: str) -> None:
    """Close a sink. That it cannot be is logged and no more: what it has delivered is durable, and `open` begins anew."""
    try:
        sink.close()
    except Exception as error:  # noqa: BLE001 - as said
        reason = str(explained(error, sink, directory, name)).splitlines()[0]
        _log.warning("sink %s is not closed: %s", name, reason)
