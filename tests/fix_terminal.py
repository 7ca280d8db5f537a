"""Python in a process that has a terminal, and files that make OpenSSL ask there for a passphrase."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# The first terminal that the leader of a session opens is its own.
_TAKE_TERMINAL = "import os, sys\nos.open(sys.argv.pop(1), os.O_RDWR)\n"


def run_at_a_terminal(code: str, *given: object) -> str:
    """What it prints; fails where it waits for somebody to type."""
    ours, theirs = os.openpty()
    try:
        arguments = [os.ttyname(theirs), *map(str, given)]
        done = subprocess.run(
            [sys.executable, "-c", _TAKE_TERMINAL + code, *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            start_new_session=True,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    return done.stdout


def encrypted_key(directory: Path) -> tuple[Path, Path]:
    """A certificate, and its key, which is encrypted."""
    own, key = directory / "certificate.pem", directory / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -days 1 -subj /CN=x -passout pass:s3cret"
    made = [*command.split(), "-keyout", key, "-out", own]
    subprocess.run(made, check=True, capture_output=True)
    return own, key
