"""A guard over an embedded server: takes it away when the process that made it is gone."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Waits for our end of the pipe to close, which it does however this process ends, kill -9
# included; then takes the server and its files away. A postmaster removes its pid file last.
_SCRIPT = """
read -r _
file=$1/data/postmaster.pid
if pid=$(head -n 1 "$file" 2>/dev/null); then kill -QUIT "$pid"; fi
tries=100
while [ -e "$file" ] && [ "$tries" -gt 0 ]; do sleep 0.1; tries=$((tries - 1)); done
rm -rf "$1"
"""

# The same for a program that is killed and leaves its files to others. Ends with the program.
_GUARDED = """
exec 3<&0
"$@" </dev/null 3<&- & child=$!
{ read -r _ <&3; kill -KILL $child; } & reader=$!
wait $child
kill $reader 2>/dev/null
"""


def guarded(command: Sequence[str]) -> list[str]:
    """A command that runs another one, and kills it when its stdin, a pipe of ours, closes."""
    return ["/bin/sh", "-c", _GUARDED, "sh", *command]


def watch_over(home: Path) -> subprocess.Popen[bytes]:
    """Start a guard over the server whose data directory is home/data; `dismiss` it in time."""
    return subprocess.Popen(  # noqa: S603
        ["/bin/sh", "-c", _SCRIPT, "sh", str(home)],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Out of the reach of Ctrl-C, which would end the guard before its work.
        start_new_session=True,
    )


def dismiss(guard: subprocess.Popen[bytes]) -> None:
    """End the guard without its doing anything."""
    guard.kill()
    guard.communicate()
