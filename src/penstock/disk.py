"""Bytes and names that are to outlast a crash."""

import os
from pathlib import Path


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
