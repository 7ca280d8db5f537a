"""What the stream reports of tables' shapes: noted, marked in the log, kept by position."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from penstock.changes.pgoutput import parse_commit
from penstock.log.files.reader import FilesReader
from penstock.log.files.writer import FilesWriter
from penstock.log.slice import SliceKind
from penstock.lsn import Lsn
from penstock.run.ddl_transactions import DdlTransactionReader, cut_at_marks
from penstock.schema import past_shapes
from penstock.schema.past_shapes import PastShapes
from penstock.schema.shape import ColumnShape, Gone, PartitionShape, SchemaChange, TableShape
from penstock.sinks.ddl_transaction import Rows, ShapeChange
from penstock.source.assemble import Assembler
from penstock.source.notes import Notes
from penstock.table import TableName
from penstock.testing import (
    TYPE_OIDS,
    begin,
    commit,
    insert,
    logical_message,
    relation,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
    table,
    transaction,
)

if TYPE_CHECKING:
    from pathlib import Path

SEAL = b"secret"
END = Lsn(1 << 62)
ORDERS = table(16400, "orders", {"id": "int8"}, key=["id"])
WIDER = table(16400, "orders", {"id": "int8", "note": "text"}, key=["id"])


def shape(name: str = "orders", oid: int = 16400, **columns: str) -> TableShape:
    listed = columns or {"id": "int8"}
    return TableShape(
        id=oid,
        schema_name="public",
        name=name,
        columns=tuple(
            ColumnShape(
                id=place,
                name=column,
                type=kind,
                type_id=TYPE_OIDS[kind],
                type_kind="b",
                not_null=False,
            )
            for place, (column, kind) in enumerate(listed.items(), 1)
        ),
    )


def change(*shapes: TableShape, xid: int = 0, **others: object) -> str:
    document = SchemaChange(format=1, tables=shapes, **others).model_dump(mode="json")
    return json.dumps({**document, "xid": xid})


def sealed(document: str, seal: bytes = SEAL) -> bytes:
    raw = document.encode()
    inner = hashlib.sha256(seal + raw).digest()
    return hashlib.sha256(seal + inner).hexdigest().encode() + raw


def reported(document: str, *, xid: int | None = None, prefix: str = "penstock.schema") -> bytes:
    return logical_message(prefix, sealed(document), xid=xid)


class Log:
    """A log and past shapes in a directory, written through an assembler."""

    def __init__(self, directory: Path) -> None:
        self.writer = FilesWriter(directory / "log")
        self.writer.open(Lsn(0))
        self.past_shapes = PastShapes(directory / "schema.jsonl")
        self.past_shapes.open_for_writing()
        self.now: dict[int, TableShape] = {}
        self.notes = Notes(self.past_shapes, Lsn(0), self.now.get, SEAL)
        self.assembler = Assembler(self.writer, self.notes)

    def feed(self, *messages: bytes) -> None:
        for message in messages:
            self.assembler.add(memoryview(message))

    def stretches(self):
        self.assembler.seal()
        reader = FilesReader(self.writer.directory, Lsn(0))
        try:
            return cut_at_marks(reader.read(1 << 40))
        finally:
            reader.close()

    def ddl_transactions(self):
        reader = DdlTransactionReader(self.past_shapes, lambda _: True, ())
        return [reader.read(each)[0] for each in self.stretches() if each.marks]


@pytest.fixture
def log(tmp_path: Path):
    made = Log(tmp_path)
    made.now[16400] = shape()
    yield made
    made.past_shapes.close()
    made.writer.close()


def test_transaction_that_changes_shapes_has_its_slices_to_itself(log: Log):
    log.feed(relation(ORDERS), *transaction(8, insert(ORDERS, ["1"])))
    log.feed(*transaction(24, insert(ORDERS, ["2"])))
    log.feed(begin(40), reported(change(shape(id="int8", note="text"))), commit(40))
    log.feed(*transaction(56, relation(WIDER), insert(WIDER, ["3", "x"])))

    before, migration, after = log.stretches()

    assert [ref.head.last_commit_lsn for ref in before.slices] == [24]
    assert [ref.head.last_commit_lsn for ref in migration.slices] == [40]
    assert [(m.commit_lsn, m.end_lsn, m.ordinal, m.kind) for m in migration.marks] == [
        (40, 48, 0, "change"),
        (40, 48, 0, "version"),
    ]
    assert [ref.head.last_commit_lsn for ref in after.slices] == [56]
    assert after.marks == ()


def test_rows_are_cut_where_the_shape_changes_within_a_transaction(log: Log):
    log.feed(
        begin(8),
        relation(ORDERS),
        insert(ORDERS, ["1"]),
        reported(change(shape(id="int8", note="text"))),
        reported(change(shape(id="int8", note="text", more="text"))),
        relation(
            table(16400, "orders", {"id": "int8", "note": "text", "more": "text"}, key=["id"])
        ),
        insert(
            table(16400, "orders", {"id": "int8", "note": "text", "more": "text"}), ["2", "", ""]
        ),
        reported(change(shape())),
        commit(8),
    )

    (ddl_transaction,) = log.ddl_transactions()

    assert [type(part).__name__ for part in ddl_transaction] == [
        "Rows",
        "ShapeChange",
        "ShapeChange",
        "Rows",
        "ShapeChange",
    ]
    assert [part.mark.ordinal for part in ddl_transaction if isinstance(part, ShapeChange)] == [
        1,
        1,
        2,
    ]
    assert [d.op for d in ddl_transaction[2].followed[0].differences] == ["add_column"]
    assert [d.op for d in ddl_transaction[4].followed[0].differences] == [
        "drop_column",
        "drop_column",
    ]


def test_part_of_a_streamed_transaction_that_was_rolled_back_reports_nothing(log: Log):
    log.feed(
        stream_start(7),
        relation(ORDERS, xid=7),
        insert(ORDERS, ["1"], xid=7),
        # pgoutput gives a message the id of the whole transaction.
        reported(change(shape(id="int8", note="text"), xid=9), xid=7),
        insert(WIDER, ["2", "x"], xid=8),
        reported(change(shape(id="int8", more="text"), xid=10), xid=7),
        stream_stop(),
        stream_abort(7, 9),
        stream_abort(7, 8),
        stream_commit(7, 40),
    )

    (ddl_transaction,) = log.ddl_transactions()

    changes = [part for part in ddl_transaction if isinstance(part, ShapeChange)]
    assert [c.change.tables[0].columns[1].name for c in changes] == ["more"]
    assert isinstance(ddl_transaction[0], Rows)
    assert (
        log.past_shapes.shape_at(TableName("public", "orders"), Lsn(41)).columns[1].name == "more"
    )


def test_catalog_is_not_asked_about_a_transaction_that_is_open(log: Log):
    """Its locks would keep capture waiting until the user commits."""
    log.feed(begin(8), reported(change(shape())), commit(8))
    asked: list[int] = []
    log.notes = Notes(log.past_shapes, END, lambda oid: asked.append(oid) or log.now[oid], SEAL)
    log.assembler = Assembler(log.writer, log.notes)
    log.feed(
        stream_start(7),
        relation(WIDER, xid=7),
        insert(WIDER, ["1", "x"], xid=7),
        relation(WIDER, xid=7),
        insert(WIDER, ["2", "x"], xid=7),
        stream_stop(),
    )
    assert asked == []
    log.now[16400] = shape(id="int8", note="text")
    log.feed(stream_commit(7, 40))

    *_, ddl_transaction = log.ddl_transactions()

    assert asked == [16400]
    assert [type(part).__name__ for part in ddl_transaction] == ["ShapeChange", "Rows"]
    assert not ddl_transaction[0].change.is_unsure


def test_picture_of_a_table_that_was_not_locked_does_not_undo_what_others_have_reported_since(
    log: Log,
):
    log.feed(begin(8), reported(change(shape())), commit(8))
    log.feed(begin(24), reported(change(shape(id="int8", note="text"))), commit(24))
    log.now[16400] = shape(id="int8", note="text", more="text")
    # Of a statement that ran before the last one, and commits after it.
    log.feed(begin(40), reported(change(shape(), shape("parent", 7), loose=(16400,))), commit(40))

    assert [column.name for column in log.past_shapes.at(END)[16400].columns] == [
        "id",
        "note",
        "more",
    ]
    assert log.past_shapes.at(END)[7].name == "parent"


def test_picture_of_a_table_that_was_not_locked_is_taken_where_nothing_is_missing(log: Log):
    log.feed(begin(8), reported(change(shape())), commit(8))
    renamed = shape().model_copy(update={"schema_name": "other"})
    log.feed(begin(24), reported(change(renamed, loose=(16400,))), commit(24))

    assert log.past_shapes.at(END)[16400].schema_name == "other"


def test_message_without_the_seal_is_somebody_elses(log: Log, caplog: pytest.LogCaptureFixture):
    forged = change(shape(id="int8", evil="text"))
    log.feed(
        begin(8),
        logical_message("penstock.schema", forged.encode()),
        logical_message("penstock.schema", sealed(forged, b"guess")),
        logical_message("other", sealed(forged)),
        commit(8),
    )

    assert log.ddl_transactions() == []
    assert caplog.text.count("without penstock's seal") == 2


def test_message_that_an_older_transaction_has_sealed_is_not_taken_again(
    log: Log, caplog: pytest.LogCaptureFixture
):
    said = reported(change(shape(), xid=42))
    log.feed(begin(8, xid=41), said, commit(8))
    log.feed(begin(24, xid=43), said, commit(24))
    log.feed(begin(40, xid=2**32 - 5), reported(change(shape("later"), xid=3)), commit(40))

    assert len(log.ddl_transactions()) == 2
    assert caplog.text.count("of another transaction") == 1


def test_relation_message_that_is_news_is_noted_with_what_the_catalog_says(log: Log):
    log.feed(relation(ORDERS), *transaction(8, insert(ORDERS, ["1"])))
    log.now[16400] = shape(id="int8", note="text")
    log.feed(begin(24), relation(WIDER), insert(WIDER, ["2", "x"]), commit(24))
    log.feed(begin(40), relation(WIDER), insert(WIDER, ["3", "x"]), commit(40))

    (ddl_transaction,) = log.ddl_transactions()

    assert [type(part).__name__ for part in ddl_transaction] == ["ShapeChange", "Rows"]
    assert not ddl_transaction[0].change.is_unsure


def test_relation_message_that_a_crash_kept_out_of_the_log_is_noted_again(log: Log):
    log.feed(begin(8), reported(change(shape())), commit(8))
    log.now[16400] = shape(id="int8", note="text")
    wider = [begin(24), relation(WIDER), insert(WIDER, ["2", "x"]), commit(24)]
    lost = Assembler(FilesWriter(log.writer.directory), log.notes)
    lost.received_lsn = log.writer.durable_lsn
    for message in wider[:2]:
        lost.add(memoryview(message))
    # The past shapes are written at the commit, before the slice; then the process is killed.
    log.notes.commit(lost._noted, parse_commit(memoryview(wider[3])), 7)
    log.past_shapes = PastShapes(log.past_shapes.path)
    log.past_shapes.open_for_writing()
    log.notes = Notes(log.past_shapes, log.writer.durable_lsn, log.now.get, SEAL)
    log.assembler = Assembler(log.writer, log.notes)
    log.feed(*wider)

    (_, ddl_transaction) = log.ddl_transactions()

    assert [type(part).__name__ for part in ddl_transaction] == ["ShapeChange", "Rows"]


def test_relation_message_that_the_catalog_has_left_behind_is_patched_or_unsure(log: Log):
    log.feed(relation(ORDERS), *transaction(8, insert(ORDERS, ["1"])))
    log.now[16400] = shape(number="int8")
    log.feed(begin(24), relation(WIDER), insert(WIDER, ["2", "x"]), commit(24))
    renamed = table(16400, "orders", {"id": "int8", "text": "text"}, key=["id"])
    log.feed(begin(40), relation(renamed), insert(renamed, ["2", "x"]), commit(40))

    first, second = log.ddl_transactions()

    # What type the column has nobody can know any more; whether it was renamed neither.
    assert first[0].change.is_unsure
    assert second[0].change.is_unsure


def test_what_comes_again_is_kept_once(log: Log, tmp_path: Path):
    messages = [begin(8), reported(change(shape(id="int8", note="text"))), commit(8)]
    log.feed(*messages)
    size = log.past_shapes.path.stat().st_size
    again = Assembler(log.writer, log.notes)
    for message in messages:
        again.add(memoryview(message))

    assert log.past_shapes.path.stat().st_size == size
    assert len(PastShapes(tmp_path / "schema.jsonl").at(END)) == 1


def test_name_is_found_among_past_shapes_without_a_check_of_every_table(log: Log, monkeypatch):
    log.feed(begin(8), reported(change(*(shape(f"t{n}", n) for n in range(1, 301)))), commit(8))
    log.feed(begin(24), reported(change(dropped_tables=(Gone(id=7),))), commit(24))
    log.feed(begin(40), reported(change(shape("t7", 1007))), commit(40))
    polled = []
    at = past_shapes._Life.at
    monkeypatch.setattr(
        past_shapes._Life, "at", lambda life, when: polled.append(life) or at(life, when)
    )
    reader = DdlTransactionReader(log.past_shapes, lambda _: True, ())

    found = [reader.oid_at(TableName("public", f"t{n}"), Lsn(48)) for n in range(1, 301)]

    assert found == [n if n != 7 else 1007 for n in range(1, 301)]
    assert reader.oid_at(TableName("public", "t7"), Lsn(16)) == 7
    assert reader.is_gone(7)
    assert not reader.is_gone(1007)
    assert not reader.is_gone(5000)
    assert len(polled) <= 304


def test_past_shapes_and_names_are_known_for_every_moment(log: Log):
    orders, renamed = TableName("public", "orders"), TableName("public", "old")
    log.feed(begin(8), reported(change(shape())), commit(8))
    log.feed(begin(24), reported(change(shape("old"))), commit(24))
    log.feed(
        begin(40),
        reported(change(shape(oid=7))),
        commit(40),
    )
    log.feed(begin(56), reported(change(dropped_tables=(Gone(id=16400),))), commit(56))
    past = log.past_shapes

    assert past.shape_at(orders, Lsn(8)) is None
    assert past.shape_at(orders, Lsn(16)).id == 16400
    assert past.shape_at(orders, Lsn(32)) is None
    assert past.shape_at(renamed, Lsn(32)).id == 16400
    assert past.shape_at(orders, Lsn(48)).id == 7
    assert past.shape_at(renamed, Lsn(64)) is None
    assert list(past.at(END)) == [7]
    assert [past.versions_at(Lsn(lsn))[0].version for lsn in (8, 24, 40, 56)] == [1, 2, 3, 4]


def test_torn_line_of_past_shapes_is_cut_off(log: Log, tmp_path: Path):
    log.feed(begin(8), reported(change(shape())), commit(8))
    with (tmp_path / "schema.jsonl").open("a") as file:
        file.write('[{"commit_lsn": 24, "end')
    again = PastShapes(tmp_path / "schema.jsonl")
    again.open_for_writing()
    again.close()

    assert (tmp_path / "schema.jsonl").read_text().endswith("]\n")
    assert len(again.at(END)) == 1


def test_large_transaction_with_a_change_is_in_parts(log: Log, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.source.assemble.SLICE_MESSAGES", 3)
    rows = [insert(ORDERS, [str(number)]) for number in range(10)]
    log.feed(relation(ORDERS), begin(8), *rows, reported(change(shape())), *rows, commit(8))

    (stretch,) = log.stretches()
    (ddl_transaction,) = log.ddl_transactions()

    assert stretch.slices[-1].head.kind is SliceKind.LAST
    assert [type(part).__name__ for part in ddl_transaction] == ["Rows", "ShapeChange", "Rows"]
    assert sum(ref.head.meta["rows"] for ref in stretch.slices) == 20


def test_past_shapes_forget_what_every_sink_has_passed(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("penstock.schema.past_shapes._LEAST_BYTES", 1000)
    reader = PastShapes(tmp_path / "schema.jsonl")
    log.feed(begin(8), reported(change(shape(), shape("gone", 7))), commit(8))
    for number in range(3, 40):
        columns = {"id": "int8", f"c{number}": "text"}
        log.feed(begin(8 * number), reported(change(shape(**columns))), commit(8 * number))
        if number == 20:
            log.feed(begin(164), reported(change(dropped_tables=(Gone(id=7),))), commit(164))
    before = {lsn: reader.at(Lsn(lsn)) for lsn in (200, 248, 320)}
    size = log.past_shapes.path.stat().st_size

    assert log.past_shapes.forget_before(Lsn(200))
    assert not log.past_shapes.forget_before(Lsn(200)), "it has not grown since"

    again = PastShapes(tmp_path / "schema.jsonl")
    for past in (log.past_shapes, reader, again):
        assert {lsn: past.at(Lsn(lsn)) for lsn in before} == before
        assert past.last_versions() == {"public": 39}
        assert past.is_dropped(7)
        assert past.first_of(16400)[0] == 192
    assert log.past_shapes.path.stat().st_size < 0.6 * size
    assert [marks[0].commit_lsn for marks in again.transactions_after(Lsn(300))] == [304, 312]
    log.feed(begin(400), reported(change(shape("renamed"))), commit(400))
    assert reader.at(END)[16400].name == "renamed"
    assert reader.last_versions() == {"public": 40}


def test_transaction_that_comes_again_has_the_same_versions(log: Log):
    message = reported(change(shape()))
    log.feed(begin(8), message, commit(8))
    log.feed(begin(24), reported(change(shape("other", 7))), commit(24))
    again = Notes(log.past_shapes, Lsn(0), log.now.get, SEAL)

    note = again.of_message(memoryview(message), carries_xid=False)
    _, mark = again.commit([note], parse_commit(memoryview(commit(8))), 7)

    assert json.loads(mark.content)["version"] == 1
    assert log.past_shapes.last_versions() == {"public": 2}


@pytest.mark.parametrize(
    ("changed_by", "restarts", "is_ahead"),
    [(0, False, False), (90, False, False), (95, False, True), (95, True, True), (120, True, True)],
)
def test_picture_under_an_old_snapshot_is_taken_unless_another_has_changed_the_table_since(
    log: Log, changed_by: int, restarts: bool, is_ahead: bool
):
    """What the catalog says by now is asked for only then: it is ahead of the stream."""
    high = 3 << 32
    snapshot = f"{high + 94}:{high + 100}:{high + 94},{high + 95}"
    if changed_by:
        log.feed(begin(8, xid=changed_by), reported(change(shape("before"))), commit(8))
    if restarts:
        log.notes = Notes(log.past_shapes, Lsn(16), log.now.get, SEAL)
        log.assembler = Assembler(log.writer, log.notes)
    log.now[16400] = shape("ahead")
    document = {"has_old_snapshot": True, "snapshot": snapshot}

    log.feed(
        begin(24, xid=100),
        reported(json.dumps({**json.loads(change(shape("first"))), **document})),
        reported(json.dumps({**json.loads(change(shape("second"))), **document})),
        commit(24),
    )

    assert log.past_shapes.at(END)[16400].name == ("ahead" if is_ahead else "second")


def test_partitions_that_have_left_are_remembered(log: Log, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("penstock.schema.past_shapes._LEAST_BYTES", 1)
    made = [
        PartitionShape(id=number, schema_name="public", name=f"p{number}", root_id=16400)
        for number in (21, 22, 23, 24)
    ]
    log.feed(begin(8), reported(change(partitions=tuple(made))), commit(8))
    log.feed(begin(24), reported(change(shape("p21", 21))), commit(24))
    log.feed(begin(40), reported(change(dropped_tables=(Gone(id=22),))), commit(40))
    left = {16400: {21: TableName("public", "p21"), 22: TableName("public", "p22")}}
    assert log.past_shapes.left_partitions() == left

    assert log.past_shapes.forget_before(Lsn(48))
    assert log.past_shapes.left_partitions() == left
    log.feed(begin(56), reported(change(dropped_tables=(Gone(id=24),))), commit(56))
    assert set(log.past_shapes.left_partitions()[16400]) == {21, 22, 24}


def test_schema_that_nobody_follows_has_no_versions(log: Log):
    log.notes = Notes(
        log.past_shapes,
        Lsn(0),
        log.now.get,
        SEAL,
        lambda table: table.name == "orders",
        {"public": 7},
    )
    log.assembler = Assembler(log.writer, log.notes)
    scratch = shape("scratch", 9).model_copy(update={"schema_name": "scratch"})
    log.feed(begin(8), reported(change(shape())), commit(8))
    log.feed(begin(24), reported(change(scratch)), commit(24))

    assert log.past_shapes.last_versions() == {"public": 8}
