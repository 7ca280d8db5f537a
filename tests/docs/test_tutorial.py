"""The tutorial's commands, pasted into one shell as its reader would."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"

# What the reader has done already: it installs packages.
SETUP = "make setup\n"


def _script() -> str:
    blocks = re.findall(r"^```sh\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    script = "".join(blocks)
    assert SETUP in script
    # Whatever happens, the two servers end with the script.
    return 'trap "kill \\$SERVERS 2>/dev/null" EXIT\n' + script.replace(SETUP, "")


def test_pipeline_files_are_shown_as_they_are_written():
    text = TUTORIAL.read_text()
    shown = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    written = re.findall(r"^cat > \w+\.yml <<'END'\n(.*?)^END$", text, re.MULTILINE | re.DOTALL)

    assert shown == written


@pytest.mark.long
def test_every_command_of_the_tutorial_runs(tmp_path: Path):
    done = subprocess.run(
        ["bash", "-euc", _script()],
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "shop: ready to run" in done.stdout
    assert "2 | paid   | 99.99 | gift" in done.stdout
    assert "3 | placed |  7.00 | by bike" in done.stdout
    documents = [
        json.loads(line)
        for path in sorted((tmp_path / "penstock-tutorial" / "archive").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert [(each["op"], each["key"]) for each in documents] == [
        ("read", {"id": 1}),
        ("read", {"id": 2}),
        ("delete", {"id": 1}),
        ("insert", {"id": 3}),
    ]
