"""Bytes and names that are to outlast a crash, and disks that have no more room for them."""

import errno
import os
from pathlib import Path

from penstock.errors import DiskFull, StateUnusable

# What is left free for the little that must be written all the same: positions and reports, without which
# nobody would know what can be deleted. A part of a small disk.
_RESERVE_BYTES = 8 * 1024 * 1024
_RESERVE_PART = 32


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write every byte; os.write may stop short on large buffers."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_directory(directory: Path) -> None:
    """Make a new or renamed file's name durable."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def free_bytes(place: int | Path) -> int:
    """How much may still be written on the disk of a file or directory; below 0: less than is kept free."""
    found = os.statvfs(place)
    reserve = min(_RESERVE_BYTES, found.f_blocks * found.f_frsize // _RESERVE_PART)
    return found.f_bavail * found.f_frsize - reserve


def write_within_room(fd: int, data: bytes) -> None:
    """Write every byte, and leave free what others need.

    Raises:
        OSError: ENOSPC, also before the disk is wholly full.
    """
    if free_bytes(fd) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    write_all(fd, data)


def unwritable(error: OSError, directory: Path) -> DiskFull | StateUnusable:
    """The error for a directory that took no more bytes."""
    if is_full(error):
        return DiskFull(
            "no space left to write the log; capture waits, nothing is lost: what the sinks have got"
            " is deleted, and the source keeps its WAL meanwhile",
            str(directory),
            "free space on that file system, fix the sink or table that is behind (penstock status),"
            " or move `state:` to a larger disk while penstock is stopped",
        )
    return StateUnusable(
        f"cannot write: {error.strerror}",
        str(directory),
        "make the directory writable for this user, or choose another `state:`",
    )


def unusable(directory: Path) -> OSError | None:
    """Why a directory cannot be made or written, as far as that shows before it is tried; None: it can."""
    place = next(each for each in (directory, *directory.parents) if os.path.lexists(each))
    if not place.is_dir():
        return _os_error(errno.EEXIST if place == directory else errno.ENOTDIR)
    if os.access(place, os.W_OK | os.X_OK):
        return None
    read_only = os.statvfs(place).f_flag & os.ST_RDONLY
    return _os_error(errno.EROFS if read_only else errno.EACCES)


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def is_full(error: OSError) -> bool:
    """Whether there was no room: on the disk, in a quota, or for so large a file."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
