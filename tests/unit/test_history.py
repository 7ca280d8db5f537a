"""The versions of a slice make the history that its changes make one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from fix_changes import dice, examples, of_seed, plain_rows
from fix_history import Changes, History
from penstock import testing
from penstock.changes.compact import COMES, GONE, LEAVES, REPLACE
from penstock.changes.decode import TableChanges
from penstock.changes.history import STILL, versions
from penstock.changes.pgoutput import DELETE, INSERT, UPDATE
from penstock.errors import DecodeError
from penstock.testing import UNCHANGED, delete, insert, relation, table, transaction, update

T = table(16400, "t", {"id": "int4", "n": "int4", "big": "text"}, key=["id"])
T_FULL = table(16400, "t", {"id": "int4", "n": "int4", "big": "text"}, identity="f")
LETTERS = {
    INSERT: "I",
    UPDATE: "U",
    DELETE: "D",
    REPLACE: "R",
    GONE: "G",
    LEAVES: "C",
    COMES: "N",
}


def steps_of(piece, key):
    """Each step as its rows: letter, row, old key, is_first, at, until, ends_deleted."""
    return [
        [
            (LETTERS[letter], row, old_key, *rest)
            for letter, row, old_key, *rest in zip(
                step.operation.tolist(),
                plain_rows(step.columns, len(step)),
                plain_rows(step.old_key, len(step)),
                step.is_first.tolist(),
                step.at.tolist(),
                step.until.tolist(),
                step.ends_deleted.tolist(),
                strict=True,
            )
        ]
        for step in versions(piece, key)
    ]


def apply(history, steps):
    """As the sink does it, one after the other."""
    for step in steps:
        firsts = [row[0] for _, row, _, is_first, *_ in step if is_first]
        assert len(firsts) == len(set(firsts)), "each key meets the destination once"
        current = history.current()
        begins = {(row[0], at) for letter, row, _, _, at, *_ in step if letter in "IURN"}
        for letter, row, old_key, is_first, at, until, deleted in sorted(step, key=lambda x: x[4]):
            key = row[0].decode()
            if letter in "DCG":
                assert is_first
                if key in history.current():
                    history.end(key, at, deleted=letter == "D")
                else:
                    assert letter == "G"
                continue
            former = old_key[0].decode() if old_key else key
            values = tuple(
                current[former][place] if value is UNCHANGED else value.decode()
                for place, value in enumerate(row)
            )
            if old_key:
                history.end(former, at, deleted=False)
            begin = {"I": history.insert, "N": history.come}.get(letter, history.update)
            begin(key, at, values)
            assert until > at
            # What follows at once ends it by beginning.
            if until != STILL and (row[0], until) not in begins:
                history.end(key, until, deleted=deleted)


def check(dice, described, most_transactions, most_changes):
    changes = Changes(dice, described)
    for _ in range(dice.randint(1, most_transactions)):
        changes.transact(most_changes)
    found = History()
    for batch in changes.batches():
        for messages in batch:
            for piece in testing.changes([relation(described), *messages]):
                if isinstance(piece, TableChanges):
                    apply(found, steps_of(piece, [0]))
                else:
                    found.truncate(piece.committed_at)
    assert found.rows() == changes.history.rows()


@settings(examples, max_examples=150)
@given(dice)
def test_history_is_what_the_changes_make_one_by_one(dice):
    check(dice, dice.choice([T, T_FULL]), 6, 4)


@pytest.mark.parametrize("seed", range(60))
def test_long_history_is_what_the_changes_make_one_by_one(seed):
    check(of_seed(seed), T, 25, 8)


def rows_of(*transactions):
    """The steps of transactions at seconds 1, 2 …, as (letter, values, first, at, until, deleted)."""
    messages = [relation(T)]
    for second, rows in enumerate(transactions, 1):
        messages += transaction(0x1000 * second, *rows, committed_at=second)
    [piece] = testing.changes(messages)
    return [
        [
            (letter, row, first, at, None if until == STILL else until, deleted)
            for letter, row, _, first, at, until, deleted in step
        ]
        for step in steps_of(piece, [0])
    ]


def test_changes_of_one_transaction_share_an_instant_and_leave_the_last():
    came, changed = insert(T, ["1", "1", "a"]), update(T, ["1", "2", UNCHANGED])
    gone = delete(T, key=["1"])
    last = (b"1", b"2", b"a")

    assert rows_of([came, changed]) == [[("I", last, True, 1, None, False)]]
    assert rows_of([came, gone]) == [[("G", (b"1", None, None), True, 1, None, False)]]
    assert rows_of([gone, came]) == [[("R", (b"1", b"1", b"a"), True, 1, None, False)]]
    assert rows_of([changed, gone]) == [[("D", (b"1", None, None), True, 1, None, False)]]


def test_versions_of_one_key_are_chained():
    steps = rows_of(
        [insert(T, ["1", "1", "a"])],
        [update(T, ["1", "2", UNCHANGED])],
        [delete(T, key=["1"])],
        [insert(T, ["1", "3", "b"]), insert(T, ["2", "0", "c"])],
    )

    assert steps == [
        [
            ("I", (b"1", b"1", b"a"), True, 1, 2, False),
            ("U", (b"1", b"2", b"a"), False, 2, 3, True),
            ("I", (b"1", b"3", b"b"), False, 4, None, False),
            ("I", (b"2", b"0", b"c"), True, 4, None, False),
        ]
    ]


def test_row_that_came_and_went_leaves_the_next_one_new():
    came, gone = insert(T, ["1", "1", "a"]), delete(T, key=["1"])

    [[(letter, _, is_first, at, *_)]] = rows_of([came, gone], [came, gone], [came])

    assert (letter, is_first, at) == ("I", True, 3)


def test_instants_of_a_key_never_go_back():
    messages = [relation(T)]
    for number, at in enumerate((5, 3, 4, 9)):
        row = update(T, ["1", str(number), "x"])
        messages += transaction(0x1000 * (number + 1), row, committed_at=at)
        other = update(T, ["2", str(number), "x"])
        messages += transaction(0x1000 * (number + 1) + 8, other, committed_at=number)
    [piece] = testing.changes(messages)

    [step] = steps_of(piece, [0])

    of_one = [(row[1], at, until) for _, row, _, _, at, until, _ in step if row[0] == b"1"]
    of_two = [(row[1], at) for _, row, _, _, at, _, _ in step if row[0] == b"2"]
    assert of_one == [(b"2", 5, 9), (b"3", 9, STILL)]
    assert of_two == [(b"0", 0), (b"1", 1), (b"2", 2), (b"3", 3)]


def test_change_that_does_not_name_its_row_is_refused():
    with pytest.raises(DecodeError, match="INSERT"):
        rows_of([insert(T, ["1", "a", UNCHANGED])])
    with pytest.raises(DecodeError, match="lacks the key"):
        rows_of([update(T, [UNCHANGED, "a", "b"])])
    [piece] = testing.changes(
        [relation(T_FULL), *transaction(0x1000, update(T_FULL, ["1", "2", "3"]))]
    )
    with pytest.raises(DecodeError, match="lacks the old row"):
        versions(piece, [])
