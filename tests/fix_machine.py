"""What a test needs of the machine: a skip at a desk, a failure in CI. Disks of a small size, and of memory."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEMORY = Path("/dev/shm")
# Two processes of a run with two servers each, and what they write within one test.
_MEMORY_BYTES = 4 * 1024**3


def memory_disk() -> Path | None:
    """A place in memory for files that no test needs again, None where there is little.

    A database is made there in a tenth of the time, and fsync costs nothing.
    """
    if not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _MEMORY_BYTES:
        return None
    return _MEMORY


def missing(reason: str) -> NoReturn:
    """Skip the test; in CI nobody reads of skipped tests, so that it fails there."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def program(name: str, package: str | None = None) -> str:
    """The path of a program that pip does not have; `make test` has it installed in CI.

    `package`: what Debian calls it, where that is another name.
    """
    path = shutil.which(name)
    if path is None:
        missing(f"{name} is not on this machine (Debian: apt install {package or name})")
    return path


@contextmanager
def mounted_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of that size at a place, as `mount -o size=` takes it.

    Only root can mount; on most machines of a CI others may become root without a password.
    """
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if as_root and shutil.which("sudo") is None:
        missing("a small disk is wanted, and only root can mount one")
    options = f"size={size},uid={os.geteuid()},gid={os.getegid()},mode=0700"
    mount = [*as_root, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        missing(f"this machine does not let us mount a small disk: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run([*as_root, "umount", "-l", str(place)], check=True)


@contextmanager
def not_as_root() -> Iterator[None]:
    """For what root is never refused: as `nobody`, where we are root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
