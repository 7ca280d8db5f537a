"""What the command line says of itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fix_machine import missing
from penstock import __version__
from penstock.cli.main import app

COMMANDS = [name for name, each in get_command(app).commands.items() if not each.hidden]  # type: ignore[attr-defined]


def shown(*words: str, columns: int = 80) -> str:
    done = CliRunner().invoke(app, words, terminal_width=columns)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("columns", [60, 80])
def test_list_of_commands_cuts_no_sentence(columns: int) -> None:
    text = shown("--help", columns=columns)

    assert "..." not in text.replace("[ARGS]...", "")
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert max(map(len, text.splitlines())) <= columns


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_speaks_of_names_and_not_of_types(name: str) -> None:
    text = shown(name, "--help")

    assert "<str>" not in text
    assert "<list[" not in text.replace("NAME <list[str]>", "").replace("VERSION <list[int]>", "")
    assert "[[" not in text


def test_short_forms_work() -> None:
    assert shown("-h") == shown("--help")
    assert shown("check", "-h") == shown("check", "--help")
    assert shown("--version").strip() == shown("version").strip() == __version__


def test_stdout_that_takes_nothing_is_no_traceback() -> None:
    full = Path("/dev/full")
    if not full.exists():
        missing("this machine has no /dev/full")

    with full.open("w") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "version"],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.returncode == 1
    assert done.stderr == (
        "PEN-612 stdout: cannot write what is printed: No space left on device\n"
        "  Do: free space, or let it print elsewhere\n"
    )


def test_interrupt_while_the_command_is_imported_is_no_traceback() -> None:
    interrupted = (
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'penstock.cli.main':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from penstock.__main__ import main\n"
        "main()\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", interrupted], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
