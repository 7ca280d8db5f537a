"""The spool of one streamed transaction: its slices, on disk, until it commits or is rolled back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.disk import sync_directory, unwritable, write_within_room
from penstock.log.files.segment import SPOOL_SUFFIX
from penstock.log.slice import SliceHead, encode_slice

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from penstock.encryption import Encryptor
    from penstock.lsn import Lsn


class FileSpool:
    """Slices of a transaction that has not committed; nobody reads them before it does.

    Raises:
        DiskFull: no space left.
    """

    def __init__(
        self, directory: Path, xid: int, begin_lsn: Lsn, encryptor: Encryptor | None = None
    ) -> None:
        # The name holds where the transaction began to arrive: xids repeat after wraparound.
        self.path = directory / f"{begin_lsn:016X}-{xid}{SPOOL_SUFFIX}"
        self.name = self.path.name
        self.part_count = 0
        self._encryptor = encryptor
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        try:
            self._file = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise unwritable(error, directory) from error

    def append(self, head: SliceHead, data: bytes, lengths: npt.NDArray[np.uint32]) -> None:
        """Write one slice; it is durable only after `seal`.

        Raises:
            DiskFull: no space left.
        """
        try:
            write_within_room(self._file, encode_slice(head, data, lengths, self._encryptor))
        except OSError as error:
            raise unwritable(error, self.path.parent) from error
        self.part_count += 1

    def seal(self) -> None:
        """Make every slice durable, before the commit that names them is."""
        try:
            os.fdatasync(self._file)
            sync_directory(self.path.parent)
        except OSError as error:
            raise unwritable(error, self.path.parent) from error
        finally:
            os.close(self._file)

    def discard(self) -> None:
        """Remove it: the transaction was rolled back, or will be sent again."""
        os.close(self._file)
        self.path.unlink(missing_ok=True)
