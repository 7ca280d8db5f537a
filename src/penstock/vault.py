"""Connection strings for Spark's tasks: in a file that only this user can read, never in what Spark sends.

Spark keeps what it sends to tasks in blocks and temporary files, and sends it over the network. So a `Dsn`
that is pickled is but the name of an entry in this file.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import VaultUnreadable

if TYPE_CHECKING:
    from collections.abc import Iterator


class Vault:
    """The file of one start of Spark. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "connections.json"
        self._names: dict[str, str] = {}  # by what is kept
        self._lock = threading.Lock()

    def keep(self, secret: str) -> str:
        """The name under which tasks find it; it is in the file by then."""
        with self._lock:
            if secret not in self._names:
                names = {**self._names, secret: secrets.token_hex(8)}
                _replace(self.path, {name: kept for kept, name in names.items()})
                self._names = names
            return self._names[secret]


_in_use: Vault | None = None


def use(vault: Vault | None) -> None:
    """Have what is pickled from now on kept in this vault; None: nothing can be pickled."""
    global _in_use  # noqa: PLW0603 - pickle asks the object, which cannot know where it goes
    _in_use = vault


@contextmanager
def using(vault: Vault) -> Iterator[None]:
    """Have another vault for a while; a Spark that runs in this process has its own again afterwards."""
    before = _in_use
    use(vault)
    try:
        yield
    finally:
        use(before)


def seal(secret: str) -> tuple[str, str]:
    """The file and the name that stand for a secret, for `unseal` in another process."""
    vault = _in_use
    if vault is None:
        raise TypeError("a connection string is pickled for Spark's tasks only, while Spark runs")
    return str(vault.path), vault.keep(secret)


@functools.lru_cache(maxsize=256)
def unseal(path: str, name: str) -> str:
    """What the driver has kept under a name.

    Raises:
        VaultUnreadable: this process cannot read it.
    """
    try:
        kept = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is damaged"
        raise VaultUnreadable(
            f"a task cannot read the file of connections: {reason}",
            path,
            "run executors as the user that penstock runs as, with `state` on storage that all share",
        ) from None
    try:
        return str(kept[name])
    except (KeyError, TypeError):
        raise VaultUnreadable(
            "the file of connections lacks one that a task needs",
            path,
            "nothing, penstock tries again",
        ) from None


def _replace(path: Path, document: dict[str, str]) -> None:
    """A task sees the old file or the new one; both are this user's alone from their first byte."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.unlink(missing_ok=True)
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w") as file:  # noqa: PTH123 - of a descriptor
        json.dump(document, file)
    scratch.replace(path)
