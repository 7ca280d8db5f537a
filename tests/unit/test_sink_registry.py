"""Kinds of sink are found by name: penstock's own, and those that other packages offer."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fix_pipeline_file import SMALL
from penstock.config import pipeline_from_document
from penstock.errors import BadValue, NotThereYet
from penstock.sinks.registry import BUILT_IN, GROUP, sink_kinds

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.registry import Registry
    from penstock.sinks.kind import SinkKind

    Offer = Callable[..., Registry[SinkKind[Any]]]

ROOT = Path(__file__).parents[2]

KIND = """
from typing import Literal

from penstock.options import LocalPath, Options
from penstock.sinks.kind import SinkKind


class {name}Options(Options):
    kind: Literal["{name}"] = "{name}"
    path: LocalPath
    level: int = 1


class {name}Kind(SinkKind):
    name = "{name}"
    options = {name}Options

    def build(self, place, describe, shared=None):
        raise NotImplementedError

    def build_copying(self, place):
        raise NotImplementedError

    def of_source(self, options, source_id):
        return options.model_copy(update={{"path": options.path / source_id}})


instance = {name}Kind()
"""


def install(home: Path, package: str, offers: dict[str, str], **modules: str) -> None:
    """What an installer would leave in a directory of sys.path."""
    metadata = home / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in offers.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
    for module, text in modules.items():
        (home / f"{module}.py").write_text(text)


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Install a package with kinds of sink; the kinds that are there then."""
    monkeypatch.syspath_prepend(tmp_path / "site")

    def make(package: str, offers: dict[str, str], **modules: str) -> Registry[SinkKind[Any]]:
        install(tmp_path / "site", package, offers, **modules)
        registry = sink_kinds()
        monkeypatch.setattr("penstock.config.KINDS", registry)
        for module in modules:
            monkeypatch.delitem(sys.modules, module, raising=False)
        return registry

    return make


def acme(name: str = "acme") -> str:
    return KIND.format(name=name)


@pytest.mark.parametrize("value", ["acme_sink:acmeKind", "acme_sink:instance"])
def test_kind_of_another_package_is_found_by_the_name_of_its_entry_point(offer: Offer, value: str):
    registry = offer("acme-sinks", {"acme": value}, acme_sink=acme())

    found = registry.find("acme")

    assert found is not None
    assert found.name == "acme"
    assert registry.find("acme") is found
    assert registry.names == [
        "postgres",
        "file",
        "stdout",
        "kafka",
        "nats",
        "webhook",
        "search",
        "acme",
    ]


def test_nothing_of_a_kind_is_imported_before_it_is_asked_for(offer: Offer):
    registry = offer("acme-sinks", {"acme": "acme_idle:acmeKind"}, acme_idle=acme())

    assert registry.find("stdout") is not None
    assert "acme" in registry.names
    assert "acme_idle" not in sys.modules


def test_pipeline_with_a_kind_of_another_package_has_its_options(
    offer: Offer, pipeline_of, tmp_path
):
    offer("acme-sinks", {"acme": "acme_sink:acmeKind"}, acme_sink=acme())

    pipeline = pipeline_of(SMALL.replace("kind: stdout", "kind: acme, path: out, level: 3"))

    assert pipeline.sinks["screen"].level == 3
    assert pipeline.sinks["screen"].path == tmp_path / "out"
    assert pipeline.kind_of("screen").name == "acme"
    assert pipeline.place_of("screen").options is pipeline.sinks["screen"]
    assert pipeline_from_document(pipeline.document, "another process") == pipeline


def test_sources_have_the_options_that_the_kind_makes_for_each(offer: Offer, tmp_path):
    offer("acme-sinks", {"acme": "acme_sink:acmeKind"}, acme_sink=acme())
    sources = {name: {"url": f"postgresql://{name}/x", "tables": ["t"]} for name in ("eu", "us")}
    sinks = {"out": {"kind": "acme", "path": str(tmp_path)}}

    pipeline = pipeline_from_document({"name": "p", "sources": sources, "sinks": sinks}, "here")

    places = [view.place_of("out") for view in pipeline.each()]
    assert [place.options.path for place in places] == [tmp_path / "eu", tmp_path / "us"]
    assert [place.state.name for place in places] == ["eu", "us"]
    assert [place.is_alone for place in places] == [False, False]


def test_options_of_another_packages_kind_are_checked_with_line_and_advice(offer: Offer, fault_of):
    offer("acme-sinks", {"acme": "acme_sink:acmeKind"}, acme_sink=acme())

    unknown = fault_of(SMALL.replace("kind: stdout", "kind: acme, path: out, levle: 3"))
    wrong = fault_of(SMALL.replace("kind: stdout", "kind: acme, path: out, level: [1]"))
    missing = fault_of(SMALL.replace("kind: stdout", "kind: acme"))

    assert "sinks.screen.levle is not a known key" in unknown.what
    assert unknown.do == "write level"
    assert "sinks.screen.level is a list" in wrong.what
    assert "sinks.screen.path is missing" in missing.what
    assert {each.where for each in (unknown, wrong, missing)} == {"shop.yml:3"}


def test_unknown_kind_is_refused_with_all_that_are_there_and_the_nearest(offer: Offer, fault_of):
    offer("acme-sinks", {"acme": "acme_sink:acmeKind"}, acme_sink=acme())

    error = fault_of(SMALL.replace("kind: stdout", "kind: acne"))

    assert isinstance(error, BadValue)
    assert error.what == (
        "sinks.screen.kind: 'acne' is no kind of sink, wanted postgres, file, stdout, kafka, nats, webhook, search, acme"
    )
    assert error.do == "write acme"


def test_kind_that_penstock_has_not_yet_may_be_another_packages(
    offer: Offer, pipeline_of, fault_of
):
    written = SMALL.replace("kind: stdout", "kind: delta, path: out")
    assert isinstance(fault_of(written), NotThereYet)

    offer("acme-lake", {"delta": "acme_lake:deltaKind"}, acme_lake=acme("delta"))

    assert pipeline_of(written).kind_of("screen").name == "delta"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import no_such_module", "cannot be imported: ModuleNotFoundError: No module named"),
        ("raise OSError('no licence')", "cannot be imported: OSError: no licence"),
        ("", "cannot be imported: AttributeError"),
        ("acmeKind = 7", "is no SinkKind"),
        ("class acmeKind: pass", "is no SinkKind"),
        (acme().replace('name = "acme"', 'name = "other"'), "is not called acme"),
        (acme().replace("options = acmeOptions", "options = dict"), "has no options model"),
        (
            acme().replace("kind: Literal", "kinds: Literal"),
            "has an options model without `kind`",
        ),
        (acme().replace("def build(", "def bild("), "cannot be imported: TypeError"),
    ],
)
def test_broken_kind_is_refused_where_it_is_used_and_nowhere_else(
    offer: Offer, pipeline_of, fault_of, text: str, problem: str
):
    offer("acme-sinks", {"acme": "acme_broken:acmeKind"}, acme_broken=text)

    error = fault_of(SMALL.replace("kind: stdout", "kind: acme, path: out"))

    assert isinstance(error, BadValue)
    assert error.where == "shop.yml:3"
    assert error.what.startswith("sinks.screen.kind: ")
    assert problem in error.what
    assert "package acme-sinks" in error.what
    assert "acme-sinks" in error.do
    assert pipeline_of(SMALL).kind_of("screen").name == "stdout"


def test_penstocks_own_name_cannot_be_taken_over(offer: Offer, pipeline_of, fault_of):
    offer("acme-sinks", {"stdout": "acme_sink:stdoutKind"}, acme_sink=acme("stdout"))

    error = fault_of(SMALL)

    assert isinstance(error, BadValue)
    assert "package acme-sinks offers a kind of sink of this name" in error.what
    assert "uninstall acme-sinks" in error.do
    assert "acme_sink" not in sys.modules
    other = pipeline_of(SMALL.replace("kind: stdout", "kind: file, path: out"))
    assert other.kind_of("screen").name == "file"


def test_workers_are_imported_whatever_other_packages_offer(tmp_path: Path):
    site = tmp_path / "site"
    install(site, "acme-sinks", {"postgres": "no_such_module:Kind"})
    program = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "from penstock.spark import worker_daemon\n"
        "worker_daemon._warm()\n"
        "print([f'penstock.sinks.{kind}.worker' in sys.modules"
        " for kind in ('postgres', 'documents')])\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[True, True]"


def test_two_packages_with_one_name_are_both_named(offer: Offer, fault_of):
    offer("acme-sinks", {"acme": "acme_sink:acmeKind"}, acme_sink=acme())
    offer("other-sinks", {"acme": "other_sink:acmeKind"}, other_sink=acme())

    error = fault_of(SMALL.replace("kind: stdout", "kind: acme, path: out"))

    assert "both offer a kind of sink of this name" in error.what
    assert "acme-sinks" in error.what
    assert "other-sinks" in error.what


def test_own_kinds_are_offered_as_others_are():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["entry-points"][GROUP] == BUILT_IN


def test_own_kinds_are_there_where_the_installation_knows_of_no_entry_points():
    registry = sink_kinds(list)

    found = [registry.find(name) for name in registry.names]

    assert [kind.name for kind in found if kind is not None] == [
        "postgres",
        "file",
        "stdout",
        "kafka",
        "nats",
        "webhook",
        "search",
    ]


def test_another_process_finds_the_kind_and_loads_no_other(tmp_path: Path):
    site = tmp_path / "site"
    install(site, "acme-sinks", {"acme": "acme_sink:acmeKind"}, acme_sink=acme())
    document = {
        "name": "shop",
        "source": {"url": "postgresql://db/shop", "tables": ["t"]},
        "sinks": {"out": {"kind": "acme", "path": str(tmp_path)}},
    }
    program = (
        f"import json, sys; sys.path.insert(0, {str(site)!r})\n"
        "import penstock.cli.main\n"
        "from penstock.config import pipeline_from_document\n"
        "pipeline = pipeline_from_document(json.load(sys.stdin), 'stdin')\n"
        "print(pipeline.kind_of('out').name)\n"
        "print([name for name in sys.modules if name.startswith('penstock.sinks.postgres')])\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(document),
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines() == ["acme", "[]"]
