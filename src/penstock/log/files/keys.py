"""Whether the keys that are given fit what lies in a log."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.errors import Exposed, LogError, LogKeyMissing
from penstock.log.files.segment import key_of, list_segments

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.encryption import Keyring
    from penstock.errors import PenstockError


def unfit_segments(directory: Path, keyring: Keyring) -> list[PenstockError]:
    """Segments that cannot be read with the keys given, and those in the clear where none should be."""
    in_clear = 0
    for segment in list_segments(directory):
        key_id = None
        with suppress(LogError, FileNotFoundError):  # torn, or deleted meanwhile
            key_id = key_of(segment)
        try:
            keyring.require(key_id, segment.name)
        except LogKeyMissing as error:
            return [error]  # one key is named at a time
        in_clear += key_id is None and segment.stat().st_size > 0
    if not keyring.encrypts or not in_clear:
        return []
    return [
        Exposed(
            f"{in_clear} segments of the log are not encrypted: they were written before log.encrypt was asked for",
            str(directory),
            "nothing: they are deleted once every sink has what is in them, and new ones are encrypted",
        )
    ]
