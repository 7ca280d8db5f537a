"""What a sink of somebody else's does wrong is said as PEN-518, wherever it is, and without its texts."""

from __future__ import annotations

import subprocess
import sys
import traceback
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import field_validator

from penstock.config import read_pipeline
from penstock.errors import BadValue, PenstockError, SinkError, error_classes, recognise
from penstock.run.commits import Commits
from penstock.sink import DocumentKind, DocumentSink, DocumentsRefused, SinkOptions, SinkPlace
from penstock.sinks.registry import GROUP, sink_kinds
from penstock.testing.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

SECRET = "password=hunter2"


class OddOptions(SinkOptions):
    kind: Literal["odd"] = "odd"

    how: str = ""

    @field_validator("how")
    @classmethod
    def _known(cls, given: str) -> str:
        return {"": ""}[given]


class OddSink(DocumentSink):
    """Takes everything."""

    def open(self) -> None:
        pass

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        for _ in documents:
            pass


class OddKind(DocumentKind[OddOptions]):
    name = "odd"
    options = OddOptions

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def sink(self, place: SinkPlace[OddOptions]) -> Any:
        return self._make()


class Listed(OddKind):
    """As it is installed."""

    def __init__(self) -> None:
        super().__init__(OddSink)

    def of_source(self, options: OddOptions, source_id: str) -> OddOptions:
        raise KeyError(SECRET)


def scene_of(make: Callable[[], Any], directory: Path, **options: Any) -> Scene:
    return Scene(OddKind(make), OddOptions(**options), directory)


class _Fails(OddSink):
    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        raise ValueError(SECRET)


class _ExplainsWrongly(_Fails):
    passes_with_time = (ValueError,)

    def explain(self, error: Exception) -> str:
        raise KeyError(SECRET)


class _ExplainsNothing(_Fails):
    passes_with_time = (ValueError,)

    def explain(self, error: Exception) -> Any:
        return None


class _DeclaresWrongly(_Fails):
    passes_with_time = [ValueError]  # type: ignore[assignment]  # noqa: RUF012 - as somebody may


class _CannotBeMade(OddSink):
    def __init__(self) -> None:
        raise RuntimeError(SECRET)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_Fails, "PEN-518 sink under_test: the sink raised ValueError"),
        (_ExplainsWrongly, "PEN-518 sink under_test: the sink raised KeyError"),
        (_ExplainsNothing, "PEN-501 sink under_test: ValueError"),
        (_DeclaresWrongly, "PEN-518 sink under_test: the sink raised TypeError"),
        (_CannotBeMade, "PEN-518 sink under_test: the sink raised RuntimeError"),
        (lambda: None, "PEN-518 sink under_test: the sink raised AttributeError"),
    ],
    ids=["undeclared", "explain raises", "explain is empty", "a list", "__init__", "no sink"],
)
def test_whatever_a_sink_raises_in_a_run_ends_it_with_an_error_of_ours_alone(
    make: Callable[[], Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(PenstockError) as raised:
        scene_of(make, tmp_path).deliver()

    assert str(raised.value).startswith(said)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("found", [[SinkError("a", "b", "c")], ["text"], None])
def test_check_that_gives_no_findings_is_a_finding(found: Any, tmp_path: Path) -> None:
    class Sink(OddSink):
        def check(self) -> Any:
            return found

    place = SinkPlace("under_test", OddOptions(), "shop", "shop", ("shop",), tmp_path)

    [finding] = OddKind(Sink).check({"shop": place}, {})

    assert finding.code == "PEN-518"


@pytest.mark.parametrize(("given", "said"), [(None, []), (("a",), ["a"]), ("position", None)])
def test_forget_may_say_nothing(given: Any, said: list[str] | None, tmp_path: Path) -> None:
    class Sink(OddSink):
        def forget(self) -> Any:
            return given

    place = SinkPlace("under_test", OddOptions(), "shop", "shop", ("shop",), tmp_path)

    if said is None:
        with pytest.raises(PenstockError, match="`forget` gives str, wanted a list"):
            OddKind(Sink).forget(place)
    else:
        assert OddKind(Sink).forget(place) == said


def test_validator_that_raises_what_it_should_not_is_a_fault_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint("odd", f"{__name__}:Listed", GROUP)
    monkeypatch.setattr("penstock.config.KINDS", sink_kinds(lambda: [entry]))
    (tmp_path / "shop.yml").write_text(
        'name: shop\nsource: {url: "postgresql://nobody@db.invalid/shop", tables: [orders]}\n'
        f"sinks:\n  odd: {{kind: odd, how: '{SECRET}'}}\n"
    )

    with pytest.raises(
        BadValue, match=r"sinks.odd: cannot be read by kind odd: .* KeyError"
    ) as raised:
        read_pipeline(tmp_path / "shop.yml")

    assert SECRET not in str(raised.value)


def test_kind_that_cannot_say_what_options_a_source_has_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint("odd", f"{__name__}:Listed", GROUP)
    monkeypatch.setattr("penstock.config.KINDS", sink_kinds(lambda: [entry]))
    (tmp_path / "shop.yml").write_text(
        'name: shop\nsources: {a: {url: "postgresql://nobody@db.invalid/shop", tables: [orders]}}\n'
        "sinks:\n  odd: {kind: odd}\n"
    )

    with pytest.raises(
        BadValue, match=r"sinks.odd: kind odd has no options for source a: it raised"
    ):
        read_pipeline(tmp_path / "shop.yml").each()


@pytest.mark.parametrize("call", ["pause", "resume", "has_handed_on", "take_retries"])
def test_call_between_batches_that_raises_is_an_error_of_ours(call: str, tmp_path: Path) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError(SECRET)

    sink: Any = scene_of(type("Sink", (OddSink,), {call: fails}), tmp_path).sink

    with pytest.raises(PenstockError, match="the sink raised RuntimeError"):
        getattr(sink, call)()


def test_interrupt_that_raises_keeps_nobody_from_stopping(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Sink(OddSink):
        def interrupt(self) -> None:
            raise RuntimeError(SECRET)

    sink: Any = scene_of(Sink, tmp_path).sink

    sink.interrupt()

    assert "under_test is not interrupted: PEN-518" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("on_refused", ["stop", "park"])
def test_reason_may_be_an_exception_and_an_id_a_value_of_arrow(
    on_refused: str, tmp_path: Path
) -> None:
    class Sink(OddSink):
        def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
            found = {one: ValueError("odd") for batch in documents for one in batch.column("id")}
            if found:
                raise DocumentsRefused(found)  # type: ignore[arg-type]

    scene = scene_of(Sink, tmp_path, on_refused=on_refused)
    ids = scene.write(1)
    scene.deliver()

    if on_refused == "park":
        parked = OddKind(Sink).parked(scene.place)
        assert [(each.id, each.reason) for each in parked] == [(one, "odd") for one in ids]
    else:
        assert len(scene.sink.tables.detached) == 2


def test_error_may_be_made_of_a_path_and_an_exception() -> None:
    error = SinkError(ValueError("away"), Path("/there"), "wait")  # type: ignore[arg-type]

    assert str(error) == "PEN-501 /there: away\n  Do: wait"


def test_error_that_a_package_derives_does_not_take_the_place_of_its_base() -> None:
    class Own(SinkError):
        def __init__(self) -> None:
            super().__init__("away", "there", "wait")

    assert error_classes()["PEN-501"] is SinkError
    assert type(recognise(str(Own()))) is SinkError


_HANGS = """
import time
from penstock.run.commits import Commits
Commits("hangs").begin(time.sleep, 600)
"""


def test_process_ends_although_a_sink_hangs() -> None:
    subprocess.run([sys.executable, "-c", _HANGS], check=True, timeout=60)


def test_commits_come_one_after_another_and_failures_to_who_waits() -> None:
    commits = Commits("one")
    done: list[int] = []
    for number in range(3):
        commits.begin(done.append, number)
    commits.wait()
    commits.begin({}.__getitem__, "missing")

    with pytest.raises(KeyError, match="missing"):
        commits.wait()
    commits.begin(done.append, 3)
    commits.close()
    commits.close()

    assert done == [0, 1, 2, 3]
    assert commits.is_idle
