"""The documentation says what the code does: nothing left out, nothing that is not there."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import subprocess
import textwrap
import types
import typing
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

import penstock
from fix_machine import missing
from penstock import config
from penstock.changes.documents import documents
from penstock.cli.main import app
from penstock.errors import error_classes
from penstock.failpoints import POINTS
from penstock.log import registry as log_registry
from penstock.log.slice import _HEADER, HEADER_BYTES, SliceKind
from penstock.modifiers.rule import FAMILIES, family_of
from penstock.options import Options
from penstock.run.status import PipelineStatus, SourceStatus
from penstock.sink import DOCUMENTS, DocumentKind, DocumentSink, RowSink
from penstock.sinks.postgres.state.objects import statements
from penstock.sinks.registry import BUILT_IN, KINDS
from penstock.sinks.status import FlowStatus, SinkStatus, SubscriptionStatus, TableStatus
from penstock.testing import (
    RowSinkContract,
    SinkContract,
    changes,
    insert,
    relation,
    table,
    transaction,
)
from penstock.testing.contract import SinkScenes

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLE = ROOT / "examples" / "sqlite-sink"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]

LONGEST_README = 150
# Not there before the first `make bench`.
MADE_LATER = {DOCS / "benchmarks.md"}

# In pieces, so that this file does not hold them itself.
FORBIDDEN = [
    *(f"/{directory}/" for directory in ("wo" + "rk", "ro" + "ot")),
    "pypi" + ".org",
    "python" + "hosted.org",
    "maven" + ".org",
    "maven.apache" + ".org",
    "npm" + "js.org",
    "npm" + "js.com",
    "crates" + ".io",
]


def _page(path: str) -> str:
    return (DOCS / path).read_text()


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _section(page: str, heading: str) -> str:
    """The text under a heading, up to the next one of its rank or above."""
    rank = heading.count("#")
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{rank}}} |\Z)", page, re.M | re.S)
    assert found is not None, f"no heading {heading}"
    return found[1]


COMMANDS: dict[str, Any] = dict(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [name for name, each in COMMANDS.items() if not each.hidden])
def test_command_is_documented_with_every_option_and_variable(name: str):
    section = _section(_page("reference/cli.md"), f"## penstock {name}")
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "option":
            for option in parameter.opts:
                assert f"`{option}" in section, f"penstock {name} {option}"
        variables = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar
        for variable in variables or []:
            assert f"`{variable}`" in section, f"penstock {name} {variable}"


def test_other_names_of_commands_are_documented():
    page = _page("reference/cli.md")

    for name in (name for name, each in COMMANDS.items() if each.hidden):
        assert f"`{name}`" in page


def test_documented_commands_and_options_exist():
    page = _page("reference/cli.md")
    options = {option for each in COMMANDS.values() for one in each.params for option in one.opts}

    assert set(re.findall(r"^## penstock ([\w-]+)$", page, re.M)) <= set(COMMANDS)
    assert set(re.findall(r"`(--[a-z-]+)", page)) - {"--help"} <= options


def _load_everything() -> None:
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def test_every_error_code_has_a_heading_and_every_heading_a_code():
    _load_everything()
    documented = dict(re.findall(r"^## (PEN-\d{3}) (\w+)$", _page("reference/errors.md"), re.M))

    assert documented == {code: cls.__name__ for code, cls in error_classes().items()}


def test_every_error_says_its_cause_and_what_to_do():
    page = _page("reference/errors.md")

    for code, name in re.findall(r"^## (PEN-\d{3}) (\w+)$", page, re.M):
        section = _section(page, f"## {code} {name}")
        assert "Cause: " in section, code
        assert "Do: " in section, code


def _keys(model: type[Options], path: str = "") -> Iterator[str]:
    """Every key of a model and of the models below it, as a path from the top of the file."""
    yield from (f"{path}{key}" for key in model.later)
    for name, field in model.model_fields.items():
        key = f"{path}{field.alias or name}"
        yield key
        for below, step in _models(field.annotation):
            yield from _keys(below, f"{key}.{step}")


def _models(annotation: Any) -> Iterator[tuple[type[Options], str]]:
    if isinstance(annotation, type) and issubclass(annotation, Options):
        yield annotation, ""
        return
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is dict:
        yield from ((model, "*.") for model, _ in _models(arguments[1]))
    elif origin in (typing.Annotated, typing.Union, types.UnionType):
        for argument in arguments:
            yield from _models(argument)


def test_every_key_of_the_pipeline_file_is_documented_and_no_other():
    documented = re.findall(r"^\| `([\w.*]+)` \|", _page("reference/config.md"), re.M)

    known = set(_keys(config._Pipeline))
    for name in BUILT_IN:
        kind = KINDS.find(name)
        assert kind is not None
        known |= set(_keys(kind.options, "sinks.*."))
    for name in log_registry.BUILT_IN:
        known |= set(_keys(log_registry.kind_of(name).options, "log."))
    # What a rule of `transform` may say besides is on a page of its own.
    known |= {key for key in documented if key.startswith("transform.")} & set(
        _keys(family_of("transform").OPTIONS, "transform.")
    )
    for family in set(FAMILIES) - {"transform"}:
        known |= set(_keys(family_of(family).OPTIONS, f"{family}."))
    # A source is described once, whether it is the only one or one of several.
    of_several = {key for key in known if key.startswith("sources.*.")}
    assert {key.replace("sources.*.", "source.", 1) for key in of_several} <= known
    assert set(documented) == known - of_several


def test_every_fault_point_is_documented_and_no_other():
    page = _page("explain/delivery-guarantees.md")

    assert set(re.findall(r"^\| `(\w+\.\w+)` \|", page, re.M)) == set(POINTS)


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("## The pipeline", PipelineStatus),
        ("## Each source", SourceStatus),
        ("## Each sink", SinkStatus),
        ("## Each source of a sink", FlowStatus),
        ("## Each subscription", SubscriptionStatus),
        ("## Each table", TableStatus),
    ],
)
def test_every_field_of_status_is_documented_and_no_other(heading: str, model: type):
    section = _section(_page("reference/status.md"), heading)

    documented = re.findall(r"^\| `(\w+)` \|", section, re.M)
    assert documented == [field.name for field in fields(model)]


@pytest.mark.parametrize("name", ["penstock.progress", "penstock.tables"])
def test_columns_of_penstocks_own_tables_are_the_documented_ones(name: str):
    made = re.search(rf"CREATE TABLE IF NOT EXISTS {name} \((.*?)^\);", statements(), re.M | re.S)
    added = re.search(rf"ALTER TABLE {name}\n(.*?);", statements(), re.S)
    assert made is not None
    columns = re.findall(r"^ +([a-z_]+) [a-z_]+", made[1], re.M)
    columns += re.findall(r"IF NOT EXISTS ([a-z_]+)", added[1] if added else "")

    section = _section(_page("reference/target-objects.md"), f"### {name}")
    cells = re.findall(r"^\| (`[^|]+) \|", section, re.M)
    assert [name for cell in cells for name in re.findall(r"`(\w+)`", cell)] == columns


def test_layout_of_a_slice_is_the_documented_one():
    page = _page("reference/log-format.md")
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (bytes|[ui]\d+) \|", page, re.M)
    letters = {"bytes": "4s", "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q"}

    assert "<" + "".join(letters[kind] for *_, kind in rows) == _HEADER.format
    offset = 0
    for at, size, _ in rows:
        assert int(at) == offset
        offset += int(size)
    assert f"header, {offset} bytes" in page
    assert offset == HEADER_BYTES
    kinds = re.findall(r"^\| (\d) \| ([A-Z]+) \|", page, re.M)
    assert {name: int(number) for number, name in kinds} == {
        kind.name: kind.value for kind in SliceKind
    }


def test_fields_of_a_document_are_the_documented_ones():
    orders = table(16400, "orders", {"id": "int8"}, key=["id"])
    stream = [relation(orders), *transaction(0x16B3748, insert(orders, ["1"]))]

    [document] = documents(changes(stream), "shop").column("value").to_pylist()

    page = _section(_page("reference/documents.md"), "## Fields")
    assert re.findall(r"^\| `(\w+)` \|", page, re.M) == list(json.loads(document))


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < LONGEST_README


def _anchor(heading: str) -> str:
    """As the usual renderers make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken += [link] if target not in MADE_LATER else []
        elif anchor and target.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.M)
            if anchor not in map(_anchor, headings):
                broken.append(link)

    assert broken == []


def test_every_page_is_reached_from_the_index():
    index = _page("index.md")
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]

    assert [page for page in pages if page != "index.md" and f"({page})" not in index] == []


def _pipelines() -> Iterator[Any]:
    for page in PAGES:
        blocks = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.M | re.S)
        for number, block in enumerate(blocks, start=1):
            yield pytest.param(block, id=f"{_name(page)}-{number}")


@pytest.mark.parametrize("text", list(_pipelines()))
def test_pipeline_files_of_the_documentation_can_be_read(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(EXAMPLE / "src")
    example = importlib.import_module("penstock_sqlite").SqliteKind()
    monkeypatch.setitem(KINDS._kinds, "sqlite", example)  # as if it were installed
    path = tmp_path / "pipeline.yml"
    path.write_text(text)
    variables = re.findall(r"\$\{(\w+)\}", text)

    # Two sources are two databases.
    environ = {name: f"postgresql://u:p@host/{name}" for name in variables}
    environ |= {name: f"whsec_{'A' * 32}" for name in variables if name.endswith("_SECRET")}
    read = config.read_pipeline(path, environ)

    assert read.sinks


def test_readme_and_tutorial_show_a_pipeline_file():
    shown = {str(param.id).rpartition("-")[0] for param in _pipelines()}

    assert {"README.md", "docs/tutorial.md"} <= shown


def _example_files() -> dict[str, str]:
    """By the language of the blocks that show them."""
    python = ("src/penstock_sqlite/__init__.py", "tests/test_sqlite_sink.py")
    return {
        "python": "\n".join((EXAMPLE / name).read_text() for name in python),
        "toml": (EXAMPLE / "pyproject.toml").read_text(),
    }


def test_page_on_sinks_shows_the_example_as_it_is():
    # The example itself is run by tests/sinks/test_contract.py and tests/pipeline/test_example_sink.py.
    page = _page("howto/write-a-sink.md")

    for language, text in _example_files().items():
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)
        assert blocks
        for block in blocks:
            is_shown = block in text or textwrap.indent(block, "    ") in text
            assert is_shown, f"not in the example:\n{block}"


def test_page_on_sinks_shows_all_of_the_example():
    blocks = re.findall(r"^```python\n(.*?)^```$", _page("howto/write-a-sink.md"), re.M | re.S)
    shown = {line.strip() for block in blocks for line in block.splitlines()}
    code = (EXAMPLE / "src/penstock_sqlite/__init__.py").read_text()
    without_docstring = code.split('"""', 2)[2]

    assert [line for line in without_docstring.splitlines() if line.strip() not in shown] == []


@pytest.mark.parametrize("module", ["penstock.sink", "penstock.testing"])
def test_every_public_name_of_a_module_for_sinks_is_documented(module: str):
    page = _page("reference/sink.md")
    documented = set(re.findall(r"`(\w+)(?:\([^`]*\))?`", page))

    assert set(importlib.import_module(module).__all__) <= documented


@pytest.mark.parametrize(
    "owner", [DocumentSink, DocumentKind, RowSink, SinkContract, RowSinkContract]
)
def test_every_member_that_an_author_may_define_is_documented(owner: type):
    page = _page("reference/sink.md")
    documented = set(re.findall(r"^\| `(\w+)", page, re.M))
    # What a kind has for the rest of penstock is the same for all kinds of documents.
    for_penstock = {"build", "build_copying", "check", "read_status", "forget", "worker_modules"}
    for_penstock |= {"parked", "ask_parked", "drop_parked", "has_working_files"}

    inherited = vars(SinkScenes) if issubclass(owner, SinkScenes) else ()
    members = {name for name in (*vars(owner), *inherited) if not name.startswith(("_", "test_"))}
    assert members - (for_penstock if owner is DocumentKind else set()) <= documented


def test_columns_of_a_batch_of_documents_are_the_documented_ones():
    section = _section(_page("reference/sink.md"), "### `DOCUMENTS`")

    assert re.findall(r"^\| `(\w+)` \|", section, re.M) == DOCUMENTS.names


def test_no_file_holds_a_path_of_one_machine_or_the_address_of_a_registry():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        missing("not a git working copy, so what belongs to the project is not known")
    found = []
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = ROOT / name
        if path.is_file():
            text = path.read_text(errors="replace")
            found += [f"{name}: {word}" for word in FORBIDDEN if word in text]

    assert found == []
