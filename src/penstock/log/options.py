"""What a person may say about any kind of log. Knows no kind: each adds options of its own."""

from penstock.options import ByteCount, Options


class LogOptions(Options):
    """Where the log is kept, and how much of it may wait for the sinks."""

    kind: str
    retain_bytes: ByteCount = 10_000_000_000
