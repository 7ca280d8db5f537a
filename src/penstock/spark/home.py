"""The directory of one start of Spark: secrets, sockets and blocks, all of them this user's alone.

    lock                held while Spark runs; who finds it free takes a leftover directory away
    spark.properties    settings, while the JVM starts: a command line would show them to everybody
    connections.json    what tasks connect with (penstock.vault)
    .….sock             between the JVM, its Python workers and the driver: they ask for no password
    blockmgr-…, spark-… Spark's own

On this machine it lies among the temporary files, whose path is short enough for a socket. Executors on
other machines see the state directory, so it lies there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import SparkFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PREFIX = "penstock-spark-"

# A path of a socket may have 107 bytes, of which its own name takes 42.
_LONGEST = 64


class SparkHome:
    """Made anew for each start, removed with everything in it.

    Raises:
        SparkFailed: nothing can be written there.
    """

    def __init__(self, parent: Path | None = None) -> None:
        with _writable("temporary files" if parent is None else str(parent)):
            parent = parent or _temporary_directory()
            _remove_leftovers(parent)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            # Found by others only once it is held.
            new = self.path / ".lock"
            self._lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            new.rename(self.path / "lock")

    def write_properties(self, settings: Mapping[str, str]) -> Path:
        """Leave settings for spark-submit.

        Raises:
            SparkFailed: there is no room.
        """
        path = self.path / "spark.properties"
        with _writable(str(self.path)):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(fd, "w", encoding="ascii") as file:  # noqa: PTH123 - of a descriptor
                file.writelines(
                    f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items()
                )
        return path

    def remove(self) -> None:
        """Leave nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


@contextmanager
def _writable(place: str) -> Iterator[None]:
    """See that files can be made; a disk that is full now may have room at the next start."""
    try:
        yield
    except OSError as error:
        raise SparkFailed(
            f"Spark did not start: its files cannot be written ({error.strerror})",
            place,
            "free space there, or set TMPDIR to a directory that can be written",
        ) from None


def _escaped(text: str) -> str:
    r"""As java.util.Properties reads it: everything but plain characters as \uXXXX."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2)]
    return "".join(
        chr(code)
        if code < 128 and (chr(code).isalnum() or chr(code) in "._-/[]")
        else f"\\u{code:04x}"
        for code in codes
    )


def _temporary_directory() -> Path:
    given = Path(tempfile.gettempdir())
    made = len(os.fsencode(given)) + 1 + len(_PREFIX) + 8
    return given if made <= _LONGEST else Path("/tmp")  # noqa: S108 - mkdtemp makes it private


def _remove_leftovers(parent: Path) -> None:
    """Remove what was left where a process and its JVM were killed together."""
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if path.lstat().st_uid != os.geteuid():
                continue
            fd = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(fd)
