"""Children that a signal to a whole group, session or control group does not end before their parent.

Ctrl-C reaches a terminal's foreground group, systemd sends SIGTERM to every process of a unit. The parent
decides what ends when, so its children ignore both, from before their own first line: a signal that is
ignored stays so across exec. They end when their stdin does, which it does however the parent ends.
"""

from __future__ import annotations

import subprocess
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Not in a function between fork and exec: another thread's lock could be held there for ever.
_IGNORING = "trap '' HUP INT TERM; exec \"$@\""


def start_sheltered(
    command: Sequence[str],
    *,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child that ends by the end of its stdin, or by SIGKILL. What it makes is its user's alone."""
    return subprocess.Popen(  # noqa: S603
        ["/bin/sh", "-c", _IGNORING, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env=env,
        # A session of its own has no terminal, whose signals it would get.
        start_new_session=True,
        umask=0o077,
    )
