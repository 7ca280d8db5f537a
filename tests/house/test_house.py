"""The house rules of docs/style.md that a machine can keep: names, docstrings, imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"
MODULES = sorted(SOURCE.rglob("*.py"))

FORBIDDEN_NAMES = {"common", "helper", "helpers", "misc", "util", "utils"}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_module_is_named_after_nothing():
    words = {_name(path): set(re.split(r"[_.]", path.stem)) for path in MODULES}
    words |= {_name(path.parent): {path.parent.name} for path in MODULES}

    assert {name for name, parts in words.items() if parts & FORBIDDEN_NAMES} == set()


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_module_says_what_it_holds(path: Path):
    tree = ast.parse(path.read_text())

    assert not tree.body or ast.get_docstring(tree), "a module without a docstring"


def test_public_names_are_those_of_the_documentation():
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    documented = re.findall(r"^## `(\w+)`", page, re.MULTILINE)

    assert sorted(documented) == sorted(penstock.__all__)
    assert all(hasattr(penstock, name) for name in penstock.__all__)


def test_imports_keep_to_their_layers():
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_part_has_a_layer():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [layers] = [one["layers"] for one in settings["contracts"] if one["type"] == "layers"]
    placed = {name.strip() for layer in layers for name in layer.split("|")}
    parts = [
        path.stem if path.is_file() else path.name
        for path in SOURCE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    ]
    parts = [f"penstock.{part}" for part in parts if not part.startswith("__")]

    assert placed == set(parts)


def test_capture_runs_without_loading_spark():
    program = "import sys, penstock.run.capture_process; print('pyspark' in sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "False"


def test_every_connection_to_a_users_server_is_made_in_one_place():
    makes = re.compile(r"psycopg\.connect\(|Connection\.connect\(|\.for_session\(")
    own = {"src/penstock/dsn.py"}
    demo = {_name(path) for path in MODULES if "demo" in path.parts}

    assert {_name(path) for path in MODULES if makes.search(path.read_text())} - demo == own


def test_nothing_outside_a_sinks_own_folder_asks_which_kind_it_is():
    sinks = SOURCE / "sinks"
    others = [path for path in MODULES if sinks not in path.parent.parents]

    assert len(others) > 100
    assert {_name(path) for path in others if any(_asked_kinds(path))} == set()


def _asked_kinds(path: Path) -> list[str]:
    """The options of sinks that `isinstance` is called with."""
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance"
    ]
    asked = {name for call in calls for name in re.findall(r"\w+Options\b", ast.unparse(call))}
    of_sinks = {
        name
        for options in (SOURCE / "sinks").glob("*/options.py")
        for name in re.findall(r"^class (\w+Options)\b", options.read_text(), re.MULTILINE)
    }
    return sorted(asked & of_sinks)


def test_every_time_is_a_field_of_timing():
    constant = re.compile(r"^_?[A-Z_]*(?:MILLI)?SECONDS\b[^=\n]* = ", re.MULTILINE)
    own = {"src/penstock/timing.py"}
    # How long a scene of the demo lasts is part of the scene.
    demo = {_name(path) for path in MODULES if "demo" in path.parts}

    assert {_name(path) for path in MODULES if constant.search(path.read_text())} - demo == own
