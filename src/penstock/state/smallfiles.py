"""Small files that are replaced as a whole: a reader sees the one before or the new one."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.disk import unwritable

if TYPE_CHECKING:
    from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Replace a file, for this user alone.

    Raises:
        DiskFull: there is no room; the file is as it was.
        StateUnusable: its directory cannot be written.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with open(os.open(scratch, flags, 0o600), "w") as file:  # noqa: PTH123 - of a descriptor
            file.write(text)
        scratch.replace(path)
    except OSError as error:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise unwritable(error, path.parent) from error


def write_over(path: Path, text: str) -> bool:
    """Replace a file's content in the blocks that it has; whether it fits."""
    data = text.encode()
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if len(data) > os.fstat(fd).st_blocks * 512:
            return False
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
