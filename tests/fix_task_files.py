"""A sink that tasks deliver to, for tests of that road: each task appends to a file of its own key range.

It refuses the documents of public.orders whose key a file `refused` beside them names.
"""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Literal

from penstock.sink import DocumentKind, DocumentSink, DocumentsRefused, LocalPath, SinkOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from penstock.sink import SinkPlace


class TaskFilesOptions(SinkOptions):
    """A directory."""

    kind: Literal["task_files"] = "task_files"
    path: LocalPath


class TaskFilesSink(DocumentSink):
    """Each call of `deliver` leaves one file, named by a number that grows."""

    delivered_by = "tasks"

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> None:
        """Make the directory."""
        self._path.mkdir(exist_ok=True)

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        """Write one file."""
        del state
        refused = self._path / "refused"
        wanted = refused.read_text() if refused.exists() else ""
        rows = [row for batch in documents for row in batch.to_pylist()]
        found = [row["id"] for row in rows if row["table"] == "orders" and row["key"] == wanted]
        if found:
            raise DocumentsRefused(dict.fromkeys(found, "no"))
        if not rows:
            return
        place = f"{min(row['commit_lsn'] for row in rows):016X}-{uuid.uuid4().hex}.jsonl"
        fd = os.open(self._path / place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write("".join(f"{row['value']}\n" for row in rows))


class TaskFilesKind(DocumentKind[TaskFilesOptions]):
    """Not in the registry: only tests make it."""

    name = "task_files"
    options = TaskFilesOptions

    def sink(self, place: SinkPlace[TaskFilesOptions]) -> TaskFilesSink:
        """The sink, unopened."""
        return TaskFilesSink(place.options.path)
