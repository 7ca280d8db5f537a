"""What a test needs of the machine: told to be missing at a desk, a failure in CI. And disks of a small size."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def missing(reason: str) -> NoReturn:
    """Skip the test; in CI nobody reads of skipped tests, so that it fails there."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def mounted_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of that size at a place, as `mount -o size=` takes it."""
    if os.geteuid() != 0:
        missing("a small disk is wanted, and only root can mount one")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        missing(f"this machine does not let us mount a small disk: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
