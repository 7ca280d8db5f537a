"""What a person may say about a log of files."""

from typing import Literal

from penstock.log.options import LogOptions


class FilesOptions(LogOptions):
    """Files in the state directory."""

    kind: Literal["files"] = "files"
