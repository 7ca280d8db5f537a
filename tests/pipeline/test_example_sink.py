"""The example of a sink of somebody else's, made of what its page shows and nothing else, installed and run, from Postgres into
SQLite."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import Command
    from fix_postgres import Database, MakeDatabase
    from penstock.embedded.postgres import EmbeddedPostgres

    Begin = Callable[..., Command]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "write-a-sink.md"


@pytest.fixture
def source(pg_new: EmbeddedPostgres, make_database: MakeDatabase) -> Database:
    return make_database(pg_new, "source")


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def _code(page: str) -> str:
    """Blocks one after another; those of methods belong to the class before them."""
    is_method = re.compile(r"(def|@property)\b")
    return "\n".join(
        textwrap.indent(block, "    ") if is_method.match(block) else f"\n{block}"
        for block in _blocks(page, "python")
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The files that the page has its reader write."""
    page = PAGE.read_text()
    code, tests = page.split("## The contract test")
    [tree] = re.findall(r"^sqlite-sink/\n.*?(?=^```)", page, re.MULTILINE | re.DOTALL)
    found = re.findall(r"── (\S+)", tree)
    assert found == [
        "pyproject.toml",
        "src/penstock_sqlite/__init__.py",
        "tests/test_sqlite_sink.py",
    ]
    [toml] = _blocks(page, "toml")
    for name, text in zip(found, (toml, _code(code), _code(tests)), strict=True):
        path = tmp_path / "sqlite-sink" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "sqlite-sink"


@pytest.fixture
def installed(project: Path, tmp_path: Path) -> Path:
    """A directory that the example is installed into, with the metadata by which it is found."""
    directory = tmp_path / "installed"
    # An environment that uv made has no pip of its own.
    install = (
        [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
        if find_spec("pip")
        else ["uv", "pip", "install", "--python", sys.executable]
    )
    done = subprocess.run(
        [*install, "--quiet", "--no-deps", "--target", str(directory), str(project)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return directory


def test_contract_that_the_page_writes_passes(project: Path, installed: Path) -> None:
    some = "every_change or refused or teardown"

    linted = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", str(project)],
        capture_output=True,
        text=True,
        check=False,
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", some, "."],
        cwd=project,
        env=os.environ | _found_in(installed),
        capture_output=True,
        text=True,
        check=False,
    )

    assert linted.returncode == 0, linted.stdout
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


def _found_in(installed: Path) -> dict[str, str]:
    paths = [str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def _delivered(database: Path) -> list[dict[str, Any]]:
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT value FROM documents ORDER BY number").fetchall()
    return [json.loads(value) for (value,) in rows]


def _rows(documents: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The table that follows from the documents."""
    rows: dict[int, dict[str, Any]] = {}
    for one in documents:
        if one["op"] == "delete":
            del rows[one["key"]["id"]]
        else:
            rows[one["key"]["id"]] = one["after"]
    return rows


def test_installed_example_is_found_by_its_kind_and_delivers_everything_once(
    source: Database, installed: Path, penstock_command: Begin, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, status text)")
    source.execute("INSERT INTO orders SELECT g, 'placed' FROM generate_series(1, 20) g")
    [pipeline] = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "shop.yml").write_text(pipeline)
    database = tmp_path / "changes.db"
    env = {**_found_in(installed), "SHOP_URL": source.url}
    commands = re.findall(r"^penstock (\w+ shop\.yml.*)$", PAGE.read_text(), re.MULTILINE)
    assert commands == ["check shop.yml", "run shop.yml --until-caught-up"]

    def penstock(arguments: str) -> None:
        command = penstock_command(*arguments.split(), env=env)
        assert command.wait() == 0, command.stderr

    for command in commands:
        penstock(command)

    first = _delivered(database)
    assert [one["op"] for one in first] == ["read"] * 20
    assert _rows(first) == {
        key: {"id": key, "status": status}
        for key, status in source.query("SELECT id, status FROM orders")
    }

    source.execute("INSERT INTO orders VALUES (21, 'placed')")
    source.execute("UPDATE orders SET status = 'paid' WHERE id = 1")
    source.execute("DELETE FROM orders WHERE id = 2")
    penstock(commands[-1])

    second = _delivered(database)
    assert second[:20] == first, "what was there was delivered again, or has changed"
    assert [(one["op"], one["key"]["id"]) for one in second[20:]] == [
        ("insert", 21),
        ("update", 1),
        ("delete", 2),
    ]
    assert len({one["id"] for one in second}) == len(second)
    assert _rows(second) == {
        key: {"id": key, "status": status}
        for key, status in source.query("SELECT id, status FROM orders")
    }
