"""`penstock parked` on documents that a destination refused."""

from __future__ import annotations

import json
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.cli.status import as_text, render
from penstock.errors import BadValue
from penstock.options import SinkOptions
from penstock.run.status import PipelineStatus, SourceStatus
from penstock.sink import DocumentKind, DocumentSink, DocumentsRefused, LocalPath
from penstock.sinks.documents import parked as parked_module
from penstock.sinks.documents.parked import Parked, ParkedDocument, ParkedRequest
from penstock.sinks.registry import GROUP, sink_kinds
from penstock.sinks.status import SinkStatus
from penstock.state.directory import StateDirectory
from penstock.testing import update
from penstock.testing.scene import ORDERS, PURCHASES, Scene, renamed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock.sink import SinkPlace

PIPELINE = """\
name: shop
state: state
source: {url: "postgresql://nobody@db.invalid/shop", tables: [orders, audit]}
sinks:
  under_test: {kind: picky, path: out, on_refused: park}
"""


class _Picky(SinkOptions):
    kind: Literal["picky"] = "picky"
    path: LocalPath


class _PickySink(DocumentSink):
    """A file that takes no order whose key is in a file beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> None:
        self._path.mkdir(exist_ok=True)

    def deliver(self, documents: Iterator[pa.RecordBatch], state: str | None) -> None:
        rows = [row for batch in documents for row in batch.to_pylist()]
        refused = self._path / "refused"
        keys = refused.read_text().splitlines() if refused.exists() else []
        orders = [row for row in rows if row["table"] == "orders"]
        if found := {row["id"]: "too odd" for row in orders if row["key"] in keys}:
            raise DocumentsRefused(found)
        with (self._path / "documents").open("a") as file:
            file.writelines(f"{row['value']}\n" for row in rows)


class PickyKind(DocumentKind[_Picky]):
    name = "picky"
    options = _Picky

    def sink(self, place: SinkPlace[_Picky]) -> _PickySink:
        return _PickySink(place.options.path)


class Refusing:
    """The scene with a pipeline file for it, and keys that are refused."""

    def __init__(self, directory: Path) -> None:
        options = _Picky(path=directory / "out", on_refused="park")  # type: ignore[arg-type]
        self.file = directory / "shop.yml"
        self.file.write_text(PIPELINE)
        self.state = StateDirectory(directory / "state", "shop")
        self.state.claim()
        self._out = directory / "out"
        self._out.mkdir()
        self.scene = Scene(PickyKind(), options, directory)
        self.ids = self.scene.write(4)

    def refuse(self, *keys: int) -> None:
        (self._out / "refused").write_text("\n".join(f'{{"id":{key}}}' for key in keys))

    def parked(self, *words: str) -> str:
        done = CliRunner().invoke(app, ["parked", str(self.file), *words])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0
        return done.output

    def listed(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.parked("list", "--json", *words))
        return found

    def delivered(self) -> list[str]:
        lines = (self._out / "documents").read_text().splitlines()
        return [json.loads(line)["id"] for line in lines]


@pytest.fixture
def refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refusing:
    entry = EntryPoint("picky", f"{__name__}:PickyKind", GROUP)
    monkeypatch.setattr("penstock.config.KINDS", sink_kinds(lambda: [entry]))
    return Refusing(tmp_path)


@pytest.fixture
def of_two_keys(refusing: Refusing) -> Refusing:
    """Keys 2 and 4 are refused: four documents of the one, three of the other."""
    refusing.refuse(2, 4)
    refusing.scene.deliver()
    return refusing


def test_nothing_parked_says_so_and_is_no_failure(refusing: Refusing) -> None:
    refusing.scene.deliver()

    for action in ("list", "retry", "drop"):
        assert refusing.parked(action) == "nothing is parked\n"
    assert refusing.listed() == []


def test_list_shows_reason_and_what_waits_behind_and_no_value(of_two_keys: Refusing) -> None:
    found = of_two_keys.listed()

    ids = of_two_keys.ids
    of_2, of_4 = [ids[4], ids[5], ids[7], ids[11]], [ids[12], ids[13], ids[15]]
    assert [each["id"] for each in found] == sorted(of_2 + of_4, key=ids.index)
    assert [each["op"] for each in found if each["reason"] is None] == ["delete"]
    assert {each["reason"] for each in found} == {"too odd", None}
    assert found[0] == {
        "sink": "under_test",
        "source": "shop",
        "table": "public.orders",
        "id": ids[4],
        "op": "insert",
        "key": {"id": 2},
        "commit_lsn": "0/1200",
        "reason": "too odd",
        "parked_at": found[0]["parked_at"],
        "request": None,
    }
    text = of_two_keys.parked("list")
    assert "paid" not in text
    assert text.count("too odd") == 6
    assert text.count("behind an earlier change of its key") == 1
    assert '{"id":2}' in text
    shown = [one["values"]["after"]["note"] for one in of_two_keys.listed("--values")[:2]]
    assert shown == ["new", "paid"]


def test_choice_by_id_and_table_and_sink(of_two_keys: Refusing) -> None:
    one = of_two_keys.listed()[0]["id"]

    assert [each["id"] for each in of_two_keys.listed("--id", one)] == [one]
    assert len(of_two_keys.listed("--table", "orders")) == 7
    assert of_two_keys.listed("--table", "audit") == []
    assert len(of_two_keys.listed("--sink", "under_test", "--source", "shop")) == 7
    assert of_two_keys.parked("drop", "--table", "audit") == "none of these\n"
    with pytest.raises(BadValue, match="no sink 'other'"):
        of_two_keys.parked("list", "--sink", "other")
    with pytest.raises(BadValue, match="--values without --json"):
        of_two_keys.parked("list", "--values")


def test_retry_is_carried_out_by_the_next_run(of_two_keys: Refusing) -> None:
    of_two_keys.scene.sink.close()
    of_two_keys.refuse(4)

    text = of_two_keys.parked("retry")
    assert "7 changes: will be tried again at the next run" in text
    assert {each["request"] for each in of_two_keys.listed()} == {"retry"}
    of_two_keys.scene.deliver()

    left = of_two_keys.listed()
    assert {each["key"]["id"] for each in left} == {4}
    assert {each["request"] for each in left} == {None}
    of_2 = [one for one in of_two_keys.delivered() if one in of_two_keys.ids[4:8]]
    assert of_2 == [of_two_keys.ids[6], *of_two_keys.ids[4:6], of_two_keys.ids[7]]


def test_retry_takes_along_what_is_parked_behind_it_after_the_request(
    of_two_keys: Refusing,
) -> None:
    of_2 = [each["id"] for each in of_two_keys.listed() if each["key"]["id"] == 2]
    of_two_keys.refuse()

    of_two_keys.parked("retry", *(word for one in of_2 for word in ("--id", one)))
    of_two_keys.ids += of_two_keys.scene.write_rows([update(ORDERS, ["2", "late"])])
    of_two_keys.scene.deliver_at_once()
    assert of_two_keys.ids[-1] in [each["id"] for each in of_two_keys.listed()]
    of_two_keys.scene.deliver()

    assert {each["key"]["id"] for each in of_two_keys.listed()} == {4}
    assert of_two_keys.delivered()[-1] == of_two_keys.ids[-1]


def test_retry_does_not_take_along_what_is_to_be_dropped(of_two_keys: Refusing) -> None:
    found = [each for each in of_two_keys.listed() if each["key"]["id"] == 2]
    refused = [each["id"] for each in found if each["reason"]]
    behind = [each["id"] for each in found if not each["reason"]]
    assert refused
    assert behind
    of_two_keys.refuse()

    with of_two_keys.state.lock("deliver"):
        of_two_keys.parked("retry", *(word for one in refused for word in ("--id", one)))
        of_two_keys.parked("drop", *(word for one in behind for word in ("--id", one)))
        of_two_keys.scene.deliver()

    assert {each["key"]["id"] for each in of_two_keys.listed()} == {4}
    assert set(refused) < set(of_two_keys.delivered())
    assert not set(behind) & set(of_two_keys.delivered())


def test_table_with_something_parked_waits_under_its_next_name_too(
    of_two_keys: Refusing, tmp_path: Path
) -> None:
    before = len(of_two_keys.listed())

    of_two_keys.scene.alter(
        renamed(ORDERS, PURCHASES), (PURCHASES, [update(PURCHASES, ["2", "late"])])
    )
    of_two_keys.scene.add(PURCHASES, update(PURCHASES, ["2", "later"]))
    of_two_keys.scene.deliver()

    behind = of_two_keys.listed()[before:]
    assert [(each["table"], each["op"]) for each in behind] == [
        ("public.purchases", "schema"),
        ("public.purchases", "update"),
        ("public.purchases", "update"),
    ]
    assert [each["reason"] for each in behind] == [None] * 3
    kept = of_two_keys.scene.place.state / "sinks" / "under_test.parked.jsonl"
    of_a_copy = Parked(tmp_path / "of_a_copy")
    of_a_copy.replace(Parked(kept).read())
    assert of_a_copy.drop_table(ORDERS.table) == before
    of_a_copy.replace(Parked(kept).read())
    assert of_a_copy.drop_table(PURCHASES.table) == before + 3

    of_two_keys.refuse()
    of_two_keys.parked("retry")
    of_two_keys.scene.deliver()

    assert of_two_keys.listed() == []
    assert of_two_keys.delivered()[-3:] == [each["id"] for each in behind]


def test_two_requests_are_both_carried_out(of_two_keys: Refusing) -> None:
    of_4 = [each["id"] for each in of_two_keys.listed() if each["key"]["id"] == 4]
    of_two_keys.refuse()

    with of_two_keys.state.lock("deliver"):
        choice = [word for one in of_4 for word in ("--id", one)]
        assert "3 changes: is dropped within seconds" in of_two_keys.parked("drop", *choice)
        assert "is tried again within seconds" in of_two_keys.parked("retry")
        of_two_keys.scene.deliver()

    assert of_two_keys.listed() == []
    assert not set(of_4) & set(of_two_keys.delivered())
    assert sorted([*of_two_keys.delivered(), *of_4]) == sorted(of_two_keys.ids)


def test_drop_is_done_at_once_while_nothing_runs(of_two_keys: Refusing) -> None:
    of_two_keys.scene.sink.close()

    assert of_two_keys.parked("drop") == "sink under_test: 7 changes: dropped\n"

    assert of_two_keys.listed() == []
    of_two_keys.scene.deliver()
    assert len(of_two_keys.delivered()) == len(of_two_keys.ids) - 7


def test_status_counts_what_is_parked_and_says_how_to_see_it() -> None:
    sinks = {"dw": SinkStatus(parked=1204), "files": SinkStatus()}

    text = as_text(render(PipelineStatus("p", "streaming", {"main": SourceStatus()}, sinks)))

    assert "parked  " in text
    assert "1,204: penstock parked PIPELINE.yml shows them" in text
    assert text.count("parked") == 2


def test_file_of_parked_documents_is_counted_once_for_each_state_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dw.parked.jsonl"
    path.write_bytes(b"{}\n{}\n{}\n")
    counted: list[int] = []
    count = parked_module._count_lines
    monkeypatch.setattr(
        parked_module, "_count_lines", lambda file: counted.append(1) or count(file)
    )

    assert [Parked(path).count(), Parked(path).count()] == [3, 3]
    with path.open("ab") as file:
        file.write(b"{}\n")
    assert Parked(path).count() == 4
    assert len(counted) == 2
    path.unlink()
    assert Parked(path).count() == 0


def _row(number: int) -> dict[str, Any]:
    return {
        "id": f"shop:0/1000:{number}",
        "key": f'{{"id":{number}}}',
        "value": "{}",
        "schema": "public",
        "table": "orders",
        "op": "insert",
        "commit_lsn": 0x1000,
        "ordinal": number,
        "committed_at": None,
    }


@pytest.mark.parametrize("half", [b"", b"{", b'{"id": "' + b"x" * 200_000])
@pytest.mark.parametrize("whole", [0, 1, 3])
def test_half_a_line_is_cut_off_and_whole_ones_stay(
    tmp_path: Path, half: bytes, whole: int
) -> None:
    path = tmp_path / "dw.parked.jsonl"
    parked = Parked(path)
    parked.append([_row(number) for number in range(whole)], {})
    with path.open("ab") as file:
        file.write(half)

    parked.append([_row(7)], {})

    ids = [each.id for each in Parked(path).read()]
    assert ids == [f"shop:0/1000:{number}" for number in (*range(whole), 7)]


def test_append_does_not_read_what_is_parked_already(tmp_path: Path) -> None:
    parked = Parked(tmp_path / "dw.parked.jsonl")
    parked.append([_row(number) for number in range(3_000)], {})
    before = _read_by_us()

    for number in range(3_000, 3_050):
        parked.append([_row(number)], {})

    # The file has nearly a MB; read at each append, that would be forty.
    assert _read_by_us() - before < 1_000_000
    assert len(Parked(tmp_path / "dw.parked.jsonl").read()) == 3_050


def _read_by_us() -> int:
    """How many bytes this process has read, from memory or disk."""
    [line] = [each for each in Path("/proc/self/io").read_text().splitlines() if "rchar" in each]
    return int(line.split()[1])


def test_request_that_means_many_documents_is_carried_out_at_once(tmp_path: Path) -> None:
    parked = Parked(tmp_path / "many.parked.jsonl")
    ids = [f"shop:0/{number:08X}:0" for number in range(30_000)]
    documents = [
        ParkedDocument(one, "{}", "{}", "public", "t", "insert", number, 0, 0, "odd", "2026")
        for number, one in enumerate(ids)
    ]
    parked.ask(ParkedRequest("retry", frozenset(ids)))
    [asked] = parked.asked()

    began = time.process_time()
    meant = sum(map(asked.means, documents))

    assert meant == len(ids)
    assert time.process_time() - began < 1.0  # with a list it is several seconds
