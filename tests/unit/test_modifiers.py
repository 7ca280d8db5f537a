"""Between decoding and the sink's executor half, and in copies, modifiers change what they are concerned with."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from fix_changes import plain
from fix_event_sinks import batch_of, file_sink, open_sink, visible
from fix_modifiers import ShoutingOrders
from penstock.changes.cells import Cells
from penstock.changes.copyrows import copy_lines
from penstock.changes.decode import TableTruncated
from penstock.errors import DecodeError
from penstock.modifiers.copies import ModifiedCopy, modified_copies, relation_of
from penstock.modifiers.modifier import modify
from penstock.schema.shape import ColumnShape, ConstraintShape, TableShape
from penstock.sinks.sink import Receipt
from penstock.spark.jobs import Span, run_task
from penstock.testing import (
    UNCHANGED,
    changes,
    delete,
    insert,
    read_log,
    relation,
    table,
    transaction,
    truncate,
    update,
    write_log,
)

ORDERS = table(16400, "orders", {"id": "int8", "note": "text"}, key=["id"])
BOOKS = table(16300, "books", {"id": "int8", "note": "text"}, key=["id"])
LSN = 0x16B3748
STREAM = [
    relation(ORDERS),
    relation(BOOKS),
    *transaction(
        LSN,
        insert(ORDERS, ["1", "a"]),
        insert(BOOKS, ["1", "a"]),
        insert(ORDERS, ["91", "b"]),
        insert(ORDERS, ["2", None]),
        update(ORDERS, ["1", UNCHANGED]),
        update(ORDERS, ["3", "c"], key=["2"]),
        update(ORDERS, ["1", "gone"]),
        update(ORDERS, ["4", "gone"], key=["3"]),
        delete(ORDERS, key=["91"]),
        delete(ORDERS, key=["5"]),
        truncate(ORDERS, BOOKS),
        insert(ORDERS, ["92", "d"]),
    ),
]
WANTED = [
    ("I", ("1", "A", "eu"), None),
    ("I", ("2", None, "eu"), None),
    ("U", ("1", UNCHANGED, "eu"), None),
    ("U", ("3", "C", "eu"), ("2", None, "eu")),
    ("D", None, ("1", None, "eu")),
    ("D", None, ("3", None, "eu")),
    ("D", None, ("5", None, "eu")),
]


@dataclass
class Recorder:
    """A sink's executor half that keeps what it is given."""

    pieces: list = field(default_factory=list)

    def begin(self, task):
        return self

    def prepare(self, pieces):
        return pieces

    def take(self, pieces):
        self.pieces += pieces

    def finish(self):
        return Receipt(0)


def reported(pieces, name):
    def text(row):
        return row and tuple(v.decode() if isinstance(v, bytes) else v for v in row)

    return [
        (one.operation, text(one.after), text(one.before))
        for one in plain(pieces)
        if one.table.name == name and one.operation != "T"
    ]


def test_task_hands_the_sink_changes_as_the_modifier_made_them(tmp_path):
    end = write_log(tmp_path / "log", STREAM, 0x1000)
    slices, recorder = read_log(tmp_path / "log", 0x1000), Recorder()
    modifiers = pickle.loads(pickle.dumps(ShoutingOrders()))

    run_task(recorder, Span(0x1000, end), 0, [slices], modifiers)

    assert reported(recorder.pieces, "orders") == WANTED
    assert reported(recorder.pieces, "books") == [("I", ("1", "a"), None)]
    assert [one.positions.ordinal.tolist() for one in recorder.pieces if hasattr(one, "positions")]


def test_task_without_modifiers_hands_on_what_was_decoded(tmp_path):
    end = write_log(tmp_path / "log", STREAM, 0x1000)
    slices, recorder = read_log(tmp_path / "log", 0x1000), Recorder()

    run_task(recorder, Span(0x1000, end), 0, [slices])

    assert reported(recorder.pieces, "orders") == reported(changes(STREAM), "orders")


def test_truncate_stays_and_is_described_as_its_rows_are():
    modified = modify(ShoutingOrders(), changes(STREAM))

    names = {
        one.relation.table.name: [column.name for column in one.relation.columns]
        for one in modified
        if isinstance(one, TableTruncated)
    }
    assert names == {"orders": ["id", "shout", "region"], "books": ["id", "note"]}


def test_table_that_no_modifier_is_concerned_with_is_not_touched():
    pieces = changes(STREAM)

    modified = modify(ShoutingOrders(), pieces)

    [books] = [
        one for one in pieces if one.relation.table.name == "books" and hasattr(one, "after")
    ]
    assert any(one is books for one in modified)


def test_changes_that_a_modifier_drops_altogether_are_not_handed_on():
    """Executor halves need not know tables' changes that are none."""
    stream = [relation(ORDERS), *transaction(LSN, insert(ORDERS, ["9", "a"]))]

    assert modify(ShoutingOrders(), changes(stream)) == []


def test_file_sink_writes_documents_of_modified_changes(tmp_path):
    sink = file_sink(tmp_path / "out")
    position = open_sink(sink)
    write_log(tmp_path / "log", STREAM, position)
    slices = read_log(tmp_path / "log", position)
    batch = batch_of(position, slices)
    span = Span(batch.after_lsn, batch.end_lsn)

    receipt = run_task(sink.worker(batch), span, 0, [slices], ShoutingOrders())
    sink.commit(batch, [receipt])
    sink.close()

    [path] = visible(tmp_path / "out")
    lines = list(map(json.loads, path.read_text().splitlines()))
    orders = [line for line in lines if line["table"] == "orders"]
    assert [(one["op"], one["key"], one["after"]) for one in orders] == [
        ("insert", {"id": 1}, {"id": 1, "shout": "A", "region": "eu"}),
        ("insert", {"id": 2}, {"id": 2, "shout": None, "region": "eu"}),
        ("update", {"id": 1}, {"id": 1, "region": "eu"}),
        ("update", {"id": 3}, {"id": 3, "shout": "C", "region": "eu"}),
        ("delete", {"id": 1}, None),
        ("delete", {"id": 3}, None),
        ("delete", {"id": 5}, None),
        ("truncate", None, None),
    ]


SHAPE = TableShape(
    id=16400,
    schema_name="public",
    name="orders",
    columns=(
        ColumnShape(id=1, name="id", type="bigint", type_id=20, type_kind="b", not_null=True),
        ColumnShape(id=2, name="note", type="text", type_id=25, type_kind="b", not_null=False),
        ColumnShape(
            id=3,
            name="twice",
            type="bigint",
            type_id=20,
            type_kind="b",
            not_null=False,
            generated="s",
            expression="id * 2",
        ),
    ),
    constraints=(
        ConstraintShape(
            id=5, name="orders_pkey", kind="p", definition="PRIMARY KEY (id)", columns=(1,)
        ),
    ),
)


def test_shape_relation_and_rows_of_a_modifier_agree():
    """The law of the contract, of the modifier that other tests rely on."""
    modifier = ShoutingOrders().of(ORDERS.table)

    by_shape = relation_of(modifier.modified_shape(SHAPE))
    [piece, *_] = modify(ShoutingOrders(), changes(STREAM))

    assert by_shape == modifier.modified_relation(relation_of(SHAPE)) == piece.relation


def copy_of(modifiers=None):
    shapes = {ORDERS.table: SHAPE, BOOKS.table: SHAPE.model_copy(update={"name": "books"})}
    copies, _ = modified_copies(modifiers or ShoutingOrders(), shapes, LSN)
    assert list(copies) == [ORDERS.table], "only tables that are concerned lose the quick way"
    return pickle.loads(pickle.dumps(copies[ORDERS.table]))


def test_copied_rows_go_through_the_modifier_and_are_copy_text_again():
    begun = copy_of().begin(("region", "shout", "id"), (("text", "shop\t1"),))

    first = begun.rows([b"1\ta\\tb\n", b"90\tx\n", b"2\t\\N\n"])
    second = begun.rows([b"91\tx\n3\tc\\\\\n"])

    assert b"".join(first + second).splitlines(keepends=True) == [
        b"eu\tA\\tB\t1\tshop\\t1\n",
        b"eu\t\\N\t2\tshop\\t1\n",
        b"eu\tC\\\\\t3\tshop\\t1\n",
    ]
    assert begun.rows([]) == []


class Stars:
    """Changes one column of many, and leaves the others alone."""

    def apply(self, piece):
        from dataclasses import replace

        count = len(piece)
        stars = Cells.from_arrow(pa.array([b"*\t*"] * count, pa.binary()))
        return replace(piece, after=(*piece.after[:2], stars, *piece.after[3:]))


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        ("abcde", b"1\t\\N\t*\\t*\tx\\\\y\t\\\\N\n2\t\t*\\t*\t\\N\t\\v\n"),
        ("edcba", b"\\\\N\tx\\\\y\t*\\t*\t\\N\t1\n\\v\t\\N\t*\\t*\t\t2\n"),
        ("bce", b"\\N\t*\\t*\t\\\\N\n\t*\\t*\t\\v\n"),
        ("abab", b"1\t\\N\t1\t\\N\n2\t\t2\t\n"),
    ],
)
def test_columns_that_no_rule_has_touched_are_passed_on_as_they_came(columns, wanted):
    letters = table(16401, "letters", dict.fromkeys("abcde", "text"), key=["a"])
    copy = ModifiedCopy(Stars(), letters, ("a",), LSN)

    found = copy.begin(tuple(columns)).rows(
        [b"1\t\\N\tsecret\tx\\\\y\t\\\\N\n", b"2\t\tsecret\t\\N\t\\v\n"]
    )

    assert b"".join(found) == wanted


def test_line_of_a_modified_range_leads_to_the_row_of_the_source():
    """The sink names a row by its line; whoever searches its key counts the source's rows."""
    begun = copy_of().begin(("id",))
    begun.rows([b"1\ta\n", b"90\tx\n", b"2\tb\n"])
    begun.rows([b"91\tx\n", b"3\tc\n"])

    assert [begun.source_row(line) for line in range(3)] == [0, 2, 4]
    assert begun.source_row(3) is None
    assert begun.source_row(None) is None


def test_copied_row_whose_value_a_modifier_does_not_give_is_refused():
    """COPY would write NULL for it."""

    class Forgetful:
        def apply(self, piece):
            from dataclasses import replace

            from penstock.changes.cells import no_cells

            return replace(
                piece, after=(piece.after[0], no_cells(piece.after[0].data, piece.after[0].start))
            )

    copy = ModifiedCopy(Forgetful(), ORDERS, ("id",), LSN)

    with pytest.raises(DecodeError, match="lacks values"):
        copy.begin(("id", "note")).rows([b"1\ta\n"])


def test_rows_without_columns_are_empty_lines():
    assert copy_lines([], 3).to_pylist() == [b"\n"] * 3
