"""What a person may say about a file sink. Knows no change and no position."""

import re
from typing import Annotated, Any, Literal

from pydantic import PlainValidator

from penstock.options import ByteCount, LocalPath, Seconds, SinkOptions, wanted

_LEAST, _MOST = 0o600, 0o664


def _read_mode(given: Any) -> int:
    # Without quotes, YAML reads 0640 as the number that it means.
    mode = given if isinstance(given, int) and not isinstance(given, bool) else None
    if isinstance(given, str) and re.fullmatch(r"0?[0-7]{3}", given):
        mode = int(given, 8)
    if mode is not None and mode & _LEAST == _LEAST and not mode & ~_MOST:
        return mode
    raise wanted('a mode such as "0600", "0640" or "0644", that the owner can read and write')


FileMode = Annotated[int, PlainValidator(_read_mode)]
"""Who may read a file."""


class FileOptions(SinkOptions):
    """Where documents are written, and when the next file begins."""

    kind: Literal["file"] = "file"
    path: LocalPath
    rotate_bytes: ByteCount = 64_000_000
    rotate_seconds: Seconds = 10.0
    mode: FileMode = 0o640

    @property
    def directory_mode(self) -> int:
        """Who may read a document may also find it."""
        return self.mode & 0o644 | (self.mode & 0o444) >> 2
