"""run_penstock: a command that ends by itself, in a process of its own that need not import penstock first.

To import it takes a second of a core, and most commands of tests do less than that. So a process
that has done so, and nothing else, forks one for each command. Commands that are killed, or whose
processes are looked at, are started as a user starts them: `penstock_command` of fix_pipeline.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import penstock.timing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["penstock.cli.main"])


def run_penstock(
    *arguments: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """What `penstock ARGUMENTS` prints and ends with; in this environment, where no other is given."""
    command = ["penstock", *map(str, arguments)]
    with tempfile.TemporaryDirectory(prefix="penstock-command-") as directory:
        outputs = [Path(directory) / name for name in ("stdout", "stderr")]
        process = _context.Process(
            target=_be_the_command,
            args=(
                command,
                str(cwd or Path.cwd()),
                dict(env or os.environ),
                list(map(str, outputs)),
            ),
        )
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(command, timeout)
        printed = [path.read_text() if path.exists() else "" for path in outputs]
        return subprocess.CompletedProcess(command, process.exitcode, *printed)


def _be_the_command(
    command: Sequence[str], cwd: str, environment: Mapping[str, str], outputs: Sequence[str]
) -> None:
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    penstock.timing._current = penstock.timing.parse_timing(
        os.environ.get(penstock.timing.VARIABLE, "")
    )
    sys.argv = list(command)

    from penstock.cli.main import main

    main()
