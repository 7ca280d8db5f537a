"""Changes become JSON documents, exactly as the interface promises them."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest
from hypothesis import given, settings

from fix_changes import StreamMaker, dice, examples, of_seed, plain
from fix_documents import LSN, Number, lines_of, parse, parsed_lines
from penstock.changes import jsonvalues, textcolumns
from penstock.changes.documents import change_count, documents, json_lines
from penstock.changes.textcolumns import lsn_texts
from penstock.lsn import Lsn
from penstock.table import TableName
from penstock.testing import (
    UNCHANGED,
    changes,
    delete,
    insert,
    relation,
    table,
    transaction,
    truncate,
    update,
)

ORDERS = table(16400, "orders", {"id": "int8", "note": "text"}, key=["id"])
BOOKS = table(16300, "books", {"isbn": "text"}, key=["isbn"])
FULL = table(16500, "audit", {"id": "int8", "note": "text"}, identity="f")
KEYLESS = table(16600, "lines", {"note": "text"}, identity="d")


def document(described, row):
    """The one document of a transaction with one row."""
    (found,) = parsed_lines(described, row)
    return found


def test_insert_gives_one_line_with_every_field_in_the_promised_order():
    row = insert(ORDERS, ["9007199254740993", 'say "hi"'])

    (line,) = lines_of(
        [relation(ORDERS), *transaction(LSN, row, xid=731, committed_at=846766496789012)]
    )

    assert line == (
        '{"id":"shop:0/16B3748:0","op":"insert","schema":"public","table":"orders",'
        '"commit_lsn":"0/16B3748","ordinal":0,'
        '"xid":731,"committed_at":"2026-10-31T12:54:56.789012+00:00","source":"shop",'
        '"key":{"id":9007199254740993},"before":null,'
        '"after":{"id":9007199254740993,"note":"say \\"hi\\""},"unchanged":[]}'
    )


def test_update_carries_the_new_key_and_the_old_key_where_it_changed():
    found = document(ORDERS, update(ORDERS, ["2", "b"], key=["1"]))

    assert found["op"] == "update"
    assert found["key"] == {"id": Number("2")}
    assert found["before"] == {"id": Number("1")}
    assert found["after"] == {"id": Number("2"), "note": "b"}


def test_update_that_keeps_its_key_has_no_before():
    found = document(ORDERS, update(ORDERS, ["2", "b"]))

    assert found["key"] == {"id": Number("2")}
    assert found["before"] is None


def test_delete_takes_its_key_from_the_old_row_and_has_no_after():
    found = document(ORDERS, delete(ORDERS, key=["7"]))

    assert found["op"] == "delete"
    assert found["key"] == found["before"] == {"id": Number("7")}
    assert found["after"] is None


def test_table_with_replica_identity_full_has_no_key_but_whole_old_rows():
    found = document(FULL, update(FULL, ["1", "new"], before=["1", None]))

    assert found["key"] is None
    assert found["before"] == {"id": Number("1"), "note": None}
    assert found["after"] == {"id": Number("1"), "note": "new"}


def test_table_without_a_key_has_a_null_key():
    assert document(KEYLESS, insert(KEYLESS, ["x"]))["key"] is None


def test_table_without_columns_has_empty_rows():
    described = table(1, "nothing", {})

    assert document(described, insert(described, []))["after"] == {}


def test_truncate_of_two_tables_gives_a_document_for_each_in_the_order_of_the_statement():
    found = lines_of(
        [
            relation(ORDERS),
            relation(BOOKS),
            *transaction(LSN, insert(ORDERS, ["1", ""]), truncate(ORDERS, BOOKS), xid=5),
        ]
    )

    tables = [(one["op"], one["table"], one["ordinal"].digits) for one in map(parse, found)]
    assert tables == [
        ("insert", "orders", "0"),
        ("truncate", "orders", "1"),
        ("truncate", "books", "1"),
    ]
    emptied = parse(found[1])
    assert list(emptied) == list(parse(found[0]))
    assert emptied["key"] is emptied["before"] is emptied["after"] is None
    assert emptied["unchanged"] == []


def test_unchanged_toast_value_is_named_and_left_out_of_after():
    found = document(ORDERS, update(ORDERS, ["1", UNCHANGED]))

    assert found["after"] == {"id": Number("1")}
    assert found["unchanged"] == ["note"]


def test_toasted_key_that_is_unchanged_is_taken_from_the_old_key():
    found = document(BOOKS, update(BOOKS, [UNCHANGED], key=["978-3"]))

    assert found["key"] == {"isbn": "978-3"}
    assert found["after"] == {}
    assert found["unchanged"] == ["isbn"]


def test_rows_with_and_without_unchanged_values_stay_in_order():
    rows = [["1", "a"], ["2", UNCHANGED], ["3", None], [UNCHANGED, UNCHANGED], ["5", "e"]]

    found = parsed_lines(ORDERS, *(update(ORDERS, row) for row in rows))

    assert [one["ordinal"].digits for one in found] == list("01234")
    assert [one["after"].get("note", UNCHANGED) for one in found] == [row[1] for row in rows]
    assert [one["unchanged"] for one in found] == [[], ["note"], [], ["id", "note"], []]


def test_odd_names_are_escaped():
    described = table(1, TableName('sch"ema', "t.a\nb"), {'co"l\\ü': "int4"}, key=['co"l\\ü'])

    found = document(described, insert(described, ["1"]))

    assert (found["schema"], found["table"]) == ('sch"ema', "t.a\nb")
    assert found["key"] == found["after"] == {'co"l\\ü': Number("1")}


def test_documents_come_in_source_order_across_tables_and_transactions():
    stream = [relation(ORDERS), relation(BOOKS)]
    for number in range(20):
        rows = [
            insert(ORDERS, [str(number), "x"]),
            insert(BOOKS, ["y"]),
            delete(ORDERS, key=["1"]),
            truncate(BOOKS),
            update(BOOKS, [UNCHANGED]),
        ]
        stream += transaction(0xFFFFFF00 + 32 * number, *rows, xid=number)

    found = [parse(line) for line in lines_of(stream)]

    order = [(Lsn.parse(one["commit_lsn"]), int(one["ordinal"].digits)) for one in found]
    assert order == sorted(order)
    assert [one["op"] for one in found] == ["insert", "insert", "delete", "truncate", "update"] * 20
    assert {one["commit_lsn"]: one["xid"].digits for one in found}["1/0"] == "8"


def test_no_changes_give_no_documents():
    assert lines_of([]) == []
    assert lines_of(transaction(LSN)) == []


def test_positions_print_as_lsn_does():
    of_interest = [0, 1, 15, 16, 0xFFFFFFFF, 1 << 32, (1 << 64) - 1, 0x16_B374D848]
    numbers = np.array([*of_interest, *(1 << bit for bit in range(64))], np.uint64)

    assert lsn_texts(numbers).to_pylist() == [str(Lsn(number)).encode() for number in numbers]


OPERATIONS = {"I": "insert", "U": "update", "D": "delete", "T": "truncate"}


def reference(piece):
    """Position and document of each row of a piece, in plain Python. Text columns only."""
    columns = piece.relation.columns
    everything = range(len(columns))
    marked = [place for place in everything if columns[place].in_identity]
    has_key = marked and piece.relation.replica_identity != "f"
    for change in plain([piece]):
        before = change.before
        if before is None and (change.is_full_before or change.operation == "D"):
            before = ()  # of a table without columns
        key = None
        if has_key and change.operation != "T":
            olds = before or (UNCHANGED,) * len(columns)
            both = zip(change.after or before, olds, strict=True)
            key = [old if new is UNCHANGED else new for new, old in both]
        place = f"shop:{Lsn(change.commit_lsn)}:{change.ordinal}"
        if change.operation == "T":
            place += f":truncate:{piece.relation.oid}"
        document = {
            "id": place,
            "op": OPERATIONS[change.operation],
            "schema": change.table.schema,
            "table": change.table.name,
            "commit_lsn": str(Lsn(change.commit_lsn)),
            "ordinal": Number(str(change.ordinal)),
            "xid": Number(str(change.xid)),
            "committed_at": _iso(change.committed_at),
            "source": "shop",
            "key": _row(columns, key, marked),
            "before": _row(columns, before, everything if change.is_full_before else marked),
            "after": _row(columns, change.after, everything),
            "unchanged": [
                columns[place].name
                for place, value in enumerate(change.after or ())
                if value is UNCHANGED
            ],
        }
        yield (change.commit_lsn, change.ordinal), document


def _row(columns, values, places):
    if values is None:
        return None
    reported = ((columns[place].name, values[place]) for place in places)
    return {
        name: None if value is None else value.decode()
        for name, value in reported
        if value is not UNCHANGED
    }


def _iso(microseconds):
    try:
        start = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
        at = start + dt.timedelta(microseconds=microseconds)
    except OverflowError:
        return None
    return at.isoformat(timespec="microseconds")


def assert_equal_to_reference(messages):
    pieces = changes(messages)
    wanted = [one for piece in pieces for one in reference(piece)]
    wanted.sort(key=lambda one: one[0])

    batch = documents(pieces, "shop")
    batch.validate(full=True)
    found = [parse(line) for line in batch.column("value").to_pylist()]
    assert_columns_are_those_of_the_json(batch, found)

    for one, (_, other) in zip(found, wanted, strict=False):
        if other["committed_at"] is None:
            other["committed_at"] = one["committed_at"]  # beyond what Python can count
    assert found == [document for _, document in wanted]
    assert change_count(pieces) == len(found)


def assert_columns_are_those_of_the_json(batch, found):
    """What stands beside a document is what it says itself."""
    for name in ("id", "schema", "table", "op"):
        assert batch.column(name).to_pylist() == [one[name] for one in found]
    keys = [None if key is None else parse(key) for key in batch.column("key").to_pylist()]
    assert keys == [one["key"] for one in found]
    lsns = [str(Lsn(lsn)) for lsn in batch.column("commit_lsn").to_pylist()]
    assert lsns == [one["commit_lsn"] for one in found]
    ordinals = [Number(str(each)) for each in batch.column("ordinal").to_pylist()]
    assert ordinals == [one["ordinal"] for one in found]
    assert len(set(batch.column("id").to_pylist())) == len(batch)


@settings(examples, max_examples=100)
@given(dice)
def test_documents_of_any_stream_are_those_of_a_slow_and_simple_writer(dice):
    assert_equal_to_reference(list(StreamMaker(dice).transactions(3, 6)))


@pytest.mark.parametrize("seed", range(5))
def test_documents_of_many_rows_are_those_of_a_slow_and_simple_writer(seed):
    assert_equal_to_reference(list(StreamMaker(of_seed(seed)).transactions(20, 40)))


def test_documents_too_large_for_31_bits_are_the_same(monkeypatch):
    messages = list(StreamMaker(of_seed(1)).transactions(10, 40))
    wanted = bytes(json_lines(documents(changes(messages), "shop")))

    monkeypatch.setattr(textcolumns, "LARGEST_BYTES", 100)
    monkeypatch.setattr(jsonvalues, "_ROOMY", 10)

    assert bytes(json_lines(documents(changes(messages), "shop"))) == wanted
