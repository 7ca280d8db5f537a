"""A slice's bytes become the changes that a slow and simple decoder finds in them."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings

from fix_changes import (
    StreamMaker,
    dice,
    examples,
    logical_message,
    of_seed,
    plain,
    reference_decode,
)
from penstock import testing
from penstock.changes.decode import TableChanges, TableTruncated, Transaction, decode
from penstock.changes.pgoutput import Relation, parse_relation, parse_truncate
from penstock.errors import DecodeError
from penstock.table import TableName
from penstock.testing import UNCHANGED, changes, insert, relation, table, transaction

ORDERS = table(16400, "orders", {"id": "int8", "note": "text"}, key=["id"])
BOOKS = table(16300, "books", {"id": "int8"}, key=["id"])
LSN = 0x16B3748


def assert_equal_to_reference(messages, part=None, after_lsn=0):
    pieces = changes(messages, part, after_lsn)
    found = plain(pieces)
    wanted = reference_decode(messages, part, after_lsn)

    assert sorted(found, key=_position) == sorted(wanted, key=_position)
    for name, of_table in groupby(sorted(found, key=lambda one: one.table), lambda one: one.table):
        del name
        positions = [change[3:5] for change in of_table]
        assert positions == sorted(positions), "each table's own order is kept"


def _position(change):
    return change.commit_lsn, change.ordinal, change.table


@settings(examples, max_examples=100)
@given(dice)
def test_whole_transactions_are_decoded_as_the_reference_does(dice):
    maker = StreamMaker(dice)

    assert_equal_to_reference(list(maker.transactions(dice.randint(0, 3), 6)))


@pytest.mark.parametrize("seed", range(25))
def test_many_rows_are_decoded_as_the_reference_does(seed):
    dice = of_seed(seed)
    messages = list(StreamMaker(dice).transactions(20, 30))

    assert_equal_to_reference(messages)


@settings(examples, max_examples=50)
@given(dice)
def test_transactions_before_the_position_are_left_out(dice):
    messages = list(StreamMaker(dice).transactions(4, 4))
    lsns = [struct.unpack(">Q", one[1:9])[0] for one in messages if one[:1] == b"B"]

    assert_equal_to_reference(messages, after_lsn=dice.choice(lsns) + dice.randint(-1, 1))


@settings(examples, max_examples=60)
@given(dice)
def test_parts_of_a_streamed_transaction_are_decoded_as_the_reference_does(dice):
    xids = [7, 8, 9]
    messages = list(StreamMaker(dice).rows(dice.randint(0, 12), xids))
    aborted = tuple(xid for xid in xids if dice.random() < 0.3)
    part = Transaction(LSN, -5, 7, dice.randint(0, 2**40), carries_xids=True, aborted_xids=aborted)

    assert_equal_to_reference(messages, part)
    assert_equal_to_reference(messages, part, after_lsn=LSN)
    assert changes(messages, part, after_lsn=LSN + 1) == []


@settings(examples, max_examples=50)
@given(dice)
def test_parts_of_a_large_transaction_are_numbered_from_their_first_ordinal(dice):
    messages = list(StreamMaker(dice).rows(dice.randint(0, 12)))
    part = Transaction(LSN, 5, 7, dice.randint(0, 2**40), carries_xids=False)

    assert_equal_to_reference(messages, part)


def test_ordinals_count_within_a_transaction_over_all_tables_and_truncates():
    messages = [
        relation(ORDERS),
        relation(BOOKS),
        *transaction(LSN, insert(ORDERS, ["1", "a"]), insert(BOOKS, ["1"]), xid=5, committed_at=-3),
        *transaction(LSN + 8, testing.truncate(BOOKS, ORDERS), insert(ORDERS, ["2", None])),
    ]

    found = [
        (one.operation, one.table.name, one.commit_lsn, one.ordinal)
        for one in plain(changes(messages))
    ]

    assert sorted(found, key=lambda one: (*one[2:], one[1])) == [
        ("I", "orders", LSN, 0),
        ("I", "books", LSN, 1),
        ("T", "books", LSN + 8, 0),
        ("T", "orders", LSN + 8, 0),
        ("I", "orders", LSN + 8, 1),
    ]


def test_relation_repeated_without_change_does_not_cut_the_rows():
    """Slices that are decoded together each begin with the Relation messages they need."""
    messages = []
    for number in range(50):
        messages += [relation(ORDERS), *transaction(LSN + 8 * number, insert(ORDERS, ["1", "a"]))]

    pieces = changes(messages)

    assert [len(piece) for piece in pieces if isinstance(piece, TableChanges)] == [50]


def test_table_that_takes_over_a_name_comes_after_the_one_that_had_it():
    """Two tables swap names: what was written under the name first must be delivered first."""
    old = table(16500, "orders", {"id": "int8"}, key=["id"])
    new = table(16400, "orders", {"id": "int8"}, key=["id"])
    messages = [
        relation(old),
        *transaction(LSN, insert(old, ["1"])),
        relation(new),
        *transaction(LSN + 8, testing.delete(new, key=["1"])),
    ]

    assert [one.operation for one in plain(changes(messages))] == ["I", "D"]


def test_columns_that_change_within_a_slice_cut_the_rows_there():
    wider = table(16400, "orders", {"id": "int8", "note": "text", "more": "text"}, key=["id"])
    messages = [
        relation(ORDERS),
        *transaction(
            LSN, insert(ORDERS, ["1", "a"]), relation(wider), insert(wider, ["2", "b", "c"])
        ),
        relation(ORDERS),
        *transaction(LSN + 8, insert(ORDERS, ["3", "d"])),
    ]

    found = plain(changes(messages))

    assert [(one.columns, one.after) for one in found] == [
        (("id", "note"), (b"1", b"a")),
        (("id", "note", "more"), (b"2", b"b", b"c")),
        (("id", "note"), (b"3", b"d")),
    ]


def test_truncate_stands_between_the_rows_before_and_after_it():
    messages = [
        relation(ORDERS),
        *transaction(
            LSN,
            insert(ORDERS, ["1", "a"]),
            testing.truncate(ORDERS, restart_identity=True),
            insert(ORDERS, ["1", "b"]),
        ),
    ]

    before, emptied, after = changes(messages)

    assert isinstance(emptied, TableTruncated)
    assert emptied.restart_identity
    assert (len(before), len(after)) == (1, 1)


def test_rolled_back_subtransaction_leaves_no_row_but_keeps_the_columns_it_described():
    part = Transaction(LSN, 0, 7, 100, carries_xids=True, aborted_xids=(8,))
    messages = [
        relation(ORDERS, xid=8),
        insert(ORDERS, ["1", "gone"], xid=8),
        testing.update(ORDERS, ["2", UNCHANGED], xid=7),
    ]

    [change] = plain(changes(messages, part))

    assert (change.ordinal, change.after) == (101, (b"2", UNCHANGED))


def test_table_of_the_widest_kind_is_decoded():
    wide = table(16400, "wide", {f"c{number}": "text" for number in range(1600)}, key=["c0"])
    row = [str(number) for number in range(1600)]

    [change] = plain(changes([relation(wide), *transaction(LSN, insert(wide, row))]))

    assert change.after == tuple(value.encode() for value in row)


def test_slice_without_rows_gives_nothing():
    assert decode(b"", np.zeros(0, np.int64)) == []
    assert changes([relation(ORDERS), *transaction(LSN, logical_message(b"x"))]) == []


@pytest.mark.parametrize(
    ("messages", "reported"),
    [
        ([relation(ORDERS), insert(ORDERS, ["1", "a"])], "before any Begin"),
        (transaction(LSN, insert(ORDERS, ["1", "a"])), "before its Relation"),
        (transaction(LSN, insert(ORDERS, ["1", "a"]), relation(ORDERS)), "before its Relation"),
        (transaction(LSN, testing.truncate(ORDERS)), "before its Relation"),
        ([relation(ORDERS), *transaction(LSN, insert(ORDERS, ["1"]))], "number of columns"),
        (
            [relation(ORDERS), *transaction(LSN, insert(ORDERS, ["1", "a", "b"]))],
            "number of columns",
        ),
        ([relation(ORDERS), *transaction(LSN, insert(ORDERS, ["1", "a"]) + b"x")], "goes on after"),
        ([relation(ORDERS), *transaction(LSN, insert(ORDERS, ["1", "a"])[:-1])], "longer than"),
        ([relation(ORDERS), *transaction(LSN, insert(ORDERS, ["1", None])[:-1])], "ends before"),
        ([relation(ORDERS), *transaction(LSN, b"I" + struct.pack(">I", 16400))], "ends before"),
        (
            [relation(ORDERS), *transaction(LSN, b"I" + struct.pack(">I", 16400) + b"K")],
            "tuple mark",
        ),
        ([relation(ORDERS), *transaction(LSN, b"I\0")], "shorter than"),
        ([b"B\0", insert(ORDERS, ["1", "a"])], "shorter than"),
        ([relation(ORDERS) + b"\0", *transaction(LSN, insert(ORDERS, ["1", "a"]))], "too many"),
        ([relation(ORDERS)[:-3], *transaction(LSN, insert(ORDERS, ["1", "a"]))], "too early"),
        ([b"Z"], "kind that pgoutput does not have"),
    ],
)
def test_messages_that_pgoutput_never_sends_are_refused(messages, reported):
    with pytest.raises(DecodeError, match=reported):
        changes(messages)


def test_binary_values_are_refused_because_none_were_asked_for():
    message = insert(ORDERS, ["1", "a"]).replace(b"t\0\0\0\1a", b"b\0\0\0\1a")

    with pytest.raises(DecodeError, match="not asked for"):
        changes([relation(ORDERS), *transaction(LSN, message)])


def test_relation_message_reads_back_as_it_was_described():
    odd = Relation(
        2**32 - 1,
        TableName("sch.ema", 'na"me'),
        "i",
        replace(
            ORDERS, columns=(*ORDERS.columns, replace(BOOKS.columns[0], name="ö", type_modifier=7))
        ).columns,
    )

    assert parse_relation(relation(odd)) == odd
    assert parse_relation(memoryview(relation(odd, xid=9)), carries_xid=True) == odd


def test_truncate_message_names_its_tables_and_options():
    message = b"T" + struct.pack(">IBII", 2, 3, 1, 2**32 - 1)

    read = parse_truncate(message)

    assert (read.relation_oids, read.restart_identity) == ((1, 2**32 - 1), True)
