"""What a person may say about the log. Knows no segment and no file."""

from typing import Annotated, Literal

from penstock.options import ByteCount, Options, not_yet


class LogOptions(Options):
    """Where the log is kept, and how much of it may wait for the sinks."""

    kind: Annotated[Literal["files"], not_yet("kafka", "nats", now="files")] = "files"
    retain_bytes: ByteCount = 10_000_000_000
