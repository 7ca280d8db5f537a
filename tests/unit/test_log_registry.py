"""Kinds of logs are found by their names, and nobody can take a name that is another's."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fix_pipeline_file import SMALL
from penstock.errors import BadValue
from penstock.log import registry
from penstock.log.contract import LogOwner
from penstock.log.options import LogOptions
from penstock.lsn import Lsn
from penstock.pipeline import check_logs, log_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.config import PipelineFile

ROOT = Path(__file__).parents[2]


class MemoryOptions(LogOptions):
    """Options of a kind that another package brings."""

    kind: str = "memory"
    shelves: int


class MemoryLog:
    """A log that knows only whose it is."""

    def __init__(self, options: LogOptions, owner: LogOwner) -> None:
        self.options, self.owner = options, owner


class MemoryKind:
    """A kind that another package brings."""

    name = "memory"
    options = MemoryOptions

    def log_of(self, options: LogOptions, owner: LogOwner) -> MemoryLog:
        return MemoryLog(options, owner)

    def board_of(self, options: MemoryOptions, pipeline: str) -> None:
        return None

    def forget(self, options: MemoryOptions, owners: Sequence[LogOwner]) -> list[str]:
        return []

    def check(self, options: MemoryOptions, owners: Sequence[LogOwner]) -> list[BadValue]:
        return [BadValue(f"{options.shelves} shelves for {each.source_id}") for each in owners]


KIND = MemoryKind()


def offer(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, registry.GROUP)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Entry points as if packages with them were installed."""

    def install(*points: EntryPoint) -> None:
        monkeypatch.setattr(registry.KINDS, "_entry_points", lambda: list(points))
        monkeypatch.setattr(registry.KINDS, "_offers", None)
        monkeypatch.setattr(registry.KINDS, "_kinds", {})

    return install


def test_own_kinds_are_declared_as_entry_points_like_those_of_others():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())

    assert settings["project"]["entry-points"][registry.GROUP] == registry.BUILT_IN
    assert all(registry.kind_of(name).name == name for name in registry.BUILT_IN)


def test_own_kind_is_known_without_an_entry_point_and_once_with_it(
    installed: Callable[..., None], pipeline_of: Callable[[str], PipelineFile]
):
    installed()
    assert pipeline_of(SMALL).log.kind == "files"
    installed(offer("files", registry.BUILT_IN["files"]))
    assert registry.KINDS.names == list(registry.BUILT_IN)
    assert pipeline_of(SMALL).log.kind == "files"


def test_kind_of_another_package_is_used_with_its_own_options(
    installed: Callable[..., None], pipeline_of: Callable[[str], PipelineFile]
):
    installed(offer("memory", f"{__name__}:KIND"))

    pipeline = pipeline_of(f"{SMALL}log: {{kind: memory, shelves: 3}}\n")
    found = log_of(pipeline)

    assert isinstance(found, MemoryLog)
    assert found.options == MemoryOptions(shelves=3)
    assert found.owner == LogOwner(pipeline.name, pipeline.name, pipeline.state)
    assert [each.what for each in check_logs(pipeline)] == [f"3 shelves for {pipeline.name}"]


def test_fault_in_the_options_of_another_package_names_key_and_line(
    installed: Callable[..., None], pipeline_of: Callable[[str], PipelineFile]
):
    installed(offer("memory", f"{__name__}:KIND"))
    line = SMALL.count("\n") + 2

    with pytest.raises(BadValue) as caught:
        pipeline_of(f"{SMALL}log:\n  {{kind: memory, shelves: many}}\n")

    assert caught.value.where.endswith(f":{line}")
    assert caught.value.what.startswith("log.shelves is 'many', wanted ")


def test_kind_that_nobody_offers_is_refused_with_those_there_are(
    installed: Callable[..., None], pipeline_of: Callable[[str], PipelineFile]
):
    installed(offer("memory", f"{__name__}:KIND"))

    with pytest.raises(
        BadValue, match=r"log\.kind is 'tape', wanted 'files' or 'kafka' or 'nats' or 'memory'"
    ):
        pipeline_of(f"{SMALL}log: {{kind: tape}}\n")


def test_name_of_an_own_kind_cannot_be_taken_over(
    installed: Callable[..., None], pipeline_of: Callable[[str], PipelineFile]
):
    installed(offer("files", "intruder:KIND"))

    with pytest.raises(
        BadValue, match="offers a kind of log of this name, which is penstock's own"
    ):
        pipeline_of(SMALL)


def test_name_that_two_packages_offer_is_refused_where_it_is_used(
    installed: Callable[..., None], pipeline_of: Callable[[str], PipelineFile]
):
    installed(offer("memory", "one:KIND"), offer("memory", "two:KIND"))

    with pytest.raises(BadValue, match="both offer a kind of log of this name") as caught:
        pipeline_of(f"{SMALL}log: {{kind: memory}}\n")

    assert caught.value.where.endswith("shop.yml:4")
    assert pipeline_of(SMALL).log.kind == "files"


def test_kind_whose_package_is_broken_is_named(
    installed: Callable[..., None], pipeline_of: Callable[[str], PipelineFile]
):
    installed(offer("memory", "no_such_package:KIND"), offer("tape", f"{__name__}:NO_SUCH_KIND"))

    for name, value in (("memory", "no_such_package:KIND"), ("tape", f"{__name__}:NO_SUCH_KIND")):
        with pytest.raises(BadValue, match=f"the kind of log {value} of package .* cannot be impo"):
            pipeline_of(f"{SMALL}log: {{kind: {name}}}\n")


def test_kind_under_another_name_than_its_own_is_refused(
    installed: Callable[..., None], pipeline_of: Callable[[str], PipelineFile]
):
    installed(offer("tape", f"{__name__}:KIND"), offer("none", f"{__name__}:ROOT"))

    with pytest.raises(BadValue, match="is not called tape, as its entry point is"):
        pipeline_of(f"{SMALL}log: {{kind: tape, shelves: 3}}\n")
    with pytest.raises(BadValue, match="is no LogKind"):
        pipeline_of(f"{SMALL}log: {{kind: none}}\n")


def test_making_a_log_touches_nothing(tmp_path: Path):
    owner = LogOwner("shop", "shop", tmp_path / "state")

    log = registry.kind_of("files").log_of(registry.default_options(), owner)

    assert (log.end_lsn(), log.span().end_lsn) == (Lsn(0), Lsn(0))
    assert not owner.directory.exists()
