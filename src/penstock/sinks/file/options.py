"""What a person may say about a file sink. Knows no change and no position."""

from typing import Literal

from penstock.options import ByteCount, LocalPath, Options, Seconds


class FileOptions(Options):
    """Where documents are written, and when the next file begins."""

    kind: Literal["file"] = "file"
    path: LocalPath
    rotate_bytes: ByteCount = 64_000_000
    rotate_seconds: Seconds = 10.0
