"""The kind `file`: documents in files of a directory, of each source in one of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.sinks.documents.contract import DocumentKind
from penstock.sinks.file.options import FileOptions

if TYPE_CHECKING:
    from penstock.sinks.documents.workspace import Workspace
    from penstock.sinks.file.sink import FileSink
    from penstock.sinks.kind import SinkPlace


class FileKind(DocumentKind[FileOptions]):
    """Files of documents."""

    name = "file"
    options = FileOptions

    def sink(self, place: SinkPlace[FileOptions]) -> FileSink:
        """The sink, unopened."""
        from penstock.sinks.file.sink import FileSink

        return FileSink(place.options, place.pipeline, place.source_id)

    def of_source(self, options: FileOptions, source_id: str) -> FileOptions:
        """Each source has a directory of its own."""
        return options.model_copy(update={"path": options.path / source_id})

    def workspace(self, place: SinkPlace[FileOptions]) -> Workspace:
        """Beside the documents: who deletes the state directory deletes no position."""
        from penstock.sinks.documents.workspace import Workspace, default_workspace
        from penstock.sinks.file.sink import POSITION_NAME

        path = place.options.path
        return Workspace(
            directory=path,
            part_prefix=".part-",
            position=path / POSITION_NAME,
            copies=path / ".copies",
            parked=default_workspace(place.name, place.state).parked,
            directory_mode=place.options.directory_mode,
            sink_writes_position=True,
        )
