"""A sink whose destination fails for a while: once for each batch, before, in the middle of, or after its documents; or once
behind another call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.errors import SinkError
from penstock.sink import DocumentKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from penstock.sink import DocumentSink, SinkPlace, Workspace
    from penstock.sinks.documents.format import DocumentFormat

FAILS: Final = ("before", "inside", "after")
CALLS: Final = ("open", "idle", "close")  # beside `deliver`, while a pipeline runs
SECRET: Final = "password=hunter2"  # noqa: S105 - of nothing


class Undeclared(Exception):
    """An exception that no sink declares, with a text that nobody is to read."""

    def __init__(self) -> None:
        super().__init__(SECRET)


class FailingKind(DocumentKind[Any]):
    """Another kind, whose sinks fail: in `deliver`, as `FAILS` says, or behind the call that `fails` names. Goes to tasks, and is
    there the same: what has failed is in a directory."""

    def __init__(self, kind: DocumentKind[Any], fails: str, failed: Path) -> None:
        self._kind = kind
        self._fails = fails
        self._failed = failed
        failed.mkdir()

    def sink(self, place: SinkPlace[Any]) -> DocumentSink:
        """The other kind's, with a `deliver` that fails the first time that it is given documents of a transaction."""
        sink = self._kind.sink(place)
        if self._fails not in FAILS:
            self._fail_behind(sink, self._fails)
            return sink
        whole = sink.deliver

        def deliver(documents: Iterator[pa.RecordBatch], state: str | None) -> None:
            batches = list(documents)
            if not batches or self._has_failed(batches):
                whole(iter(batches), state)
                return
            if self._fails != "before":
                is_inside = self._fails == "inside"
                whole(_cut_off(batches[:1], sink) if is_inside else iter(batches), state)
            raise _passing_error(sink)

        sink.deliver = deliver  # type: ignore[method-assign]
        return sink

    def _fail_behind(self, sink: DocumentSink, call: str) -> None:
        """Have a call do all of its work and raise then, the first time."""
        whole = getattr(sink, call)

        def failing(*arguments: Any) -> Any:
            done = whole(*arguments)
            if call == "check_tables":
                done = list(done)
            marker = self._failed / call
            if marker.exists():
                return done
            marker.touch()
            raise _passing_error(sink) if call in CALLS else Undeclared

        setattr(sink, call, failing)

    def _has_failed(self, batches: Sequence[pa.RecordBatch]) -> bool:
        marker = self._failed / str(batches[0].column("commit_lsn")[0].as_py())
        if marker.exists():
            return True
        marker.touch()
        return False

    def format(self, place: SinkPlace[Any]) -> DocumentFormat:
        """The other kind's."""
        return self._kind.format(place)

    def workspace(self, place: SinkPlace[Any]) -> Workspace:
        """The other kind's."""
        return self._kind.workspace(place)


def _cut_off(batches: Sequence[pa.RecordBatch], sink: DocumentSink) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise _passing_error(sink)


def _passing_error(sink: DocumentSink) -> Exception:
    """One that the sink itself says passes with time, where it names one that can be made by hand."""
    for kind in sink.passes_with_time:
        try:
            return kind("the destination is away")
        except TypeError:
            continue
    return SinkError("the destination is away", "a test", "nothing, penstock tries again by itself")
