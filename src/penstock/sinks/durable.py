"""Files that are whole or not there, and what to say when a directory takes no more bytes."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

from penstock.disk import sync_directory, write_all
from penstock.errors import SecondInstance, SinkError, SinkPrivilegeMissing

if TYPE_CHECKING:
    from pathlib import Path

LOCK_NAME = ".lock"

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FOR_A_PERSON = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)


def cannot_use(error: OSError, directory: Path | str) -> SinkError:
    """The error of a directory that cannot be used as a sink wants."""
    reason = (error.strerror or type(error).__name__).lower()
    if error.errno in _NO_SPACE:
        return SinkError(
            f"no space left to write documents ({reason}); nothing is lost",
            str(directory),
            "free space on that file system; penstock tries again by itself",
        )
    if error.errno in _FOR_A_PERSON:
        return SinkPrivilegeMissing(
            f"cannot write there: {reason}; wanted a directory that penstock can make and write",
            str(directory),
            "make it writable for this user, on every machine that runs tasks, "
            "or choose another `path:`",
        )
    return SinkError(
        f"cannot write: {reason}", str(directory), "nothing; penstock tries again by itself"
    )


def make_directory(directory: Path, mode: int = 0o700) -> None:
    """Make a directory and those above it, durably; what is there already stays as it is."""
    missing = []
    level = directory
    while not level.exists():
        missing.append(level)
        level = level.parent
    directory.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        made.chmod(mode)
        sync_directory(made.parent)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file as a whole, durably. One writer at a time."""
    scratch = path.with_name(f".{path.name.lstrip('.')}.new")
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)
    scratch.replace(path)
    sync_directory(path.parent)


def claim_directory(directory: Path) -> int:
    """Hold the directory alone until the descriptor is closed.

    Raises:
        SecondInstance: another process, or another sink, holds it.
    """
    fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        holder = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise SecondInstance(
            f"another sink or process (pid {holder}) already writes there",
            str(directory),
            "stop it first, or give each sink a directory of its own",
        ) from None
    except BaseException:
        os.close(fd)
        raise
    return fd
