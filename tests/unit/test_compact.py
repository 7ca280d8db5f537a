"""The net effect of a slice's changes is the effect of the changes, one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings

from fix_changes import dice, examples, of_seed, plain_rows
from penstock import testing
from penstock.changes.compact import GONE, MOVE, REPLACE, compact
from penstock.changes.decode import Transaction
from penstock.changes.pgoutput import DELETE, INSERT, UPDATE
from penstock.errors import DecodeError
from penstock.testing import UNCHANGED, delete, insert, relation, table, update

PART = Transaction(0x1000, 0, 7, 0, carries_xids=False)
LETTERS = {INSERT: "I", UPDATE: "U", DELETE: "D", MOVE: "M", REPLACE: "R", GONE: "G"}


def compacted(described, key, *rows):
    """The steps as lists of (letter, row); a MOVE also has its old key, a keyless DELETE its copies."""
    [piece] = testing.changes([relation(described), *rows], PART)
    steps = []
    for step in compact(piece, key):
        found = plain_rows(step.columns, len(step))
        old_keys = plain_rows(step.old_key, len(step))
        entries = []
        for number, operation in enumerate(step.operation.tolist()):
            kept = step.unchanged_columns[step.unchanged_group[number]]
            row = found[number]
            assert kept == tuple(c for c, value in enumerate(row) if value is UNCHANGED)
            entries.append((LETTERS[operation], row, old_keys[number], int(step.copies[number])))
        steps.append(entries)
    return steps


# Keyed tables against a dictionary.


@dataclass
class Source:
    """A table with a key on the source, and the messages that its changes make."""

    dice: object
    key_width: int
    identity: str
    rows: dict = field(default_factory=dict)
    messages: list = field(default_factory=list)

    def __post_init__(self):
        names = [f"k{n}" for n in range(self.key_width)] + ["a", "big", "huge"]
        # The key need not be the first columns.
        self.names = [*names[self.key_width :], *names[: self.key_width]]
        self.key = [self.names.index(f"k{n}") for n in range(self.key_width)]
        key_names = [self.names[place] for place in self.key]
        columns = dict.fromkeys(self.names, "text")
        self.table = table(16400, "t", columns, key=key_names, identity=self.identity)

    def key_of(self, row):
        return tuple(row[place] for place in self.key)

    def new_row(self):
        row = [self.dice.choice([b"", b"x", b"y", b"zz", None]) for _ in self.names]
        for place in self.key:
            row[place] = self.dice.choice([b"", b"1", b"22"])
        return tuple(row)

    def change(self):
        """One valid change."""
        present = sorted(self.rows)
        way = self.dice.choice("IUUUKKDD") if present else "I"
        row = self.new_row()
        old = self.rows[self.dice.choice(present)] if present else None
        if way == "I":
            if self.key_of(row) not in self.rows:
                self.rows[self.key_of(row)] = row
                self.messages.append(insert(self.table, row))
        elif way == "D":
            del self.rows[self.key_of(old)]
            self.messages.append(delete(self.table, **self._reported(old)))
        elif way == "K":
            if self.key_of(row) not in self.rows:
                self._update(old, self._partly(old, row, self.key))
        else:
            kept_key = [
                old[place] if place in self.key else row[place] for place in range(len(row))
            ]
            self._update(old, self._partly(old, kept_key, ()))

    def _partly(self, old, row, always):
        places = range(len(row))
        return tuple(row[p] if p in always or self.dice.random() < 0.5 else old[p] for p in places)

    def _reported(self, old):
        return {"before": old} if self.identity == "f" else {"key": self.key_of(old)}

    def _update(self, old, new):
        # A TOASTed key is sent although it did not change.
        must_state = self.identity == "f" or self.key_of(old) != self.key_of(new)
        reported = self._reported(old) if must_state or self.dice.random() < 0.2 else {}
        sent = list(new)
        for place, name in enumerate(self.names):
            is_toast = name in ("big", "huge") or (reported and place in self.key)
            if is_toast and new[place] == old[place] is not None and self.dice.random() < 0.7:
                sent[place] = UNCHANGED
        del self.rows[self.key_of(old)]
        self.rows[self.key_of(new)] = new
        self.messages.append(update(self.table, sent, **reported))


def apply_steps(target, source, steps, *, lacks_rows=False):
    """As the sink does with `on_conflict: keep`: DELETEs, UPDATEs, INSERTs; MOVEs alone, at once."""
    for one in steps:
        step = list(one)
        keys = [source.key_of(row) for _, row, _, _ in step]
        assert len(keys) == len(set(keys)), "every key occurs once in a step"
        letters = {letter for letter, *_ in step}
        assert letters == {"M"} or (letters and letters <= {*"IUDRG"})
        if letters == {"M"}:
            left = [(old, target.pop(old)) for _, _, old, _ in step if old in target]
            target.update({("left", *old): row for old, row in left})
            step = [(letter, row, ("left", *old), copies) for letter, row, old, copies in step]
        for wanted in "GDURIM":
            for letter, row, old_key, copies in step:
                assert copies == 1
                if letter == wanted:
                    _apply(target, source, letter, row, old_key, lacks_rows)


def _apply(target, source, letter, row, old_key, lacks_rows):
    key = source.key_of(row)
    former = old_key if letter == "M" else key
    assert letter in "GI" or former in target or lacks_rows
    if letter in "UM" and former not in target:
        return
    if letter in "GD":
        target.pop(key, None)  # a row that came and went is deleted all the same
    elif letter in "IR":
        assert letter == "R" or key not in target
        assert UNCHANGED not in row
        target[key] = row
    else:
        before = target.pop(former)
        assert key not in target
        target[key] = tuple(
            kept if value is UNCHANGED else value for value, kept in zip(row, before, strict=True)
        )


def run_history(dice, most_rows, most_changes):
    source = Source(dice, dice.randint(1, 2), dice.choice("dfi"))
    for _ in range(dice.randint(0, most_rows)):
        row = source.new_row()
        source.rows[source.key_of(row)] = row
    target = dict(source.rows)
    for _ in range(dice.randint(1, most_changes)):
        source.change()
    cut = dice.randint(0, len(source.messages))

    for messages in (source.messages[:cut], source.messages[cut:]):
        if messages:
            apply_steps(target, source, compacted(source.table, source.key, *messages))

    assert target == source.rows


@settings(examples, max_examples=120)
@given(dice)
def test_keyed_table_ends_as_if_changes_were_applied_one_by_one(dice):
    run_history(dice, 4, 10)


@pytest.mark.parametrize("seed", range(80))
def test_keyed_table_ends_right_after_long_histories(seed):
    run_history(of_seed(seed), 9, 60)


@pytest.mark.parametrize("seed", range(80))
def test_target_that_lacks_rows_ends_as_if_changes_came_one_by_one(seed):
    dice = of_seed(seed)
    source = Source(dice, dice.randint(1, 2), dice.choice("dfi"))
    for _ in range(9):
        row = source.new_row()
        source.rows[source.key_of(row)] = row
    held = {key: row for key, row in source.rows.items() if dice.random() < 0.5}
    for _ in range(40):
        source.change()

    one_by_one, at_once = dict(held), dict(held)
    singles = [[message] for message in source.messages]
    for target, slices in ((one_by_one, singles), (at_once, [source.messages])):
        for messages in slices:
            steps = compacted(source.table, source.key, *messages)
            apply_steps(target, source, steps, lacks_rows=True)

    assert at_once == one_by_one


# Keyless tables against a multiset.


def run_keyless(dice, most_rows, most_changes):
    described = table(16400, "t", {"a": "text", "b": "text"}, identity="f")
    rows = [_pair(dice) for _ in range(dice.randint(0, most_rows))]
    target, messages = Counter(rows), []
    for _ in range(dice.randint(1, most_changes)):
        way = dice.choice("IUUDD") if rows else "I"
        if way == "I":
            rows.append(_pair(dice))
            messages.append(insert(described, rows[-1]))
            continue
        old = rows.pop(dice.randrange(len(rows)))
        if way == "D":
            messages.append(delete(described, before=old))
            continue
        new = (old[0], _pair(dice)[1])
        rows.append(new)
        sent = [UNCHANGED if new[0] is not None and dice.random() < 0.5 else new[0], new[1]]
        messages.append(update(described, sent, before=old))

    for step in compacted(described, [], *messages):
        seen = [row for letter, row, *_ in step if letter == "D"]
        assert len(seen) == len(set(seen))
        for letter, row, _, copies in sorted(step, key=lambda one: one[0]):
            assert letter in "DI"
            target[row] += copies if letter == "I" else -copies
            assert target[row] >= 0
            assert copies == 1 or letter == "D"

    assert +target == Counter(rows)


def _pair(dice):
    return dice.choice([b"", b"x", None]), dice.choice([b"", b"x", b"yy", None])


@settings(examples, max_examples=100)
@given(dice)
def test_keyless_table_ends_with_the_same_rows_as_often(dice):
    run_keyless(dice, 4, 8)


@pytest.mark.parametrize("seed", range(30))
def test_keyless_table_ends_right_after_long_histories(seed):
    run_keyless(of_seed(seed), 10, 60)


def test_rows_without_columns_are_counted():
    empty = table(16400, "t", {}, identity="f")
    gone = [delete(empty, before=[])] * 3

    [[(letter, row, _, copies)]] = compacted(empty, [], insert(empty, []), *gone)

    assert (letter, row, copies) == ("D", (), 2)


# Cases with a name.

ORDERS = table(16400, "orders", {"id": "int8", "note": "text", "big": "text"}, key=["id"])


def net(*rows):
    return [
        [(letter, row) if letter != "M" else (letter, row, old) for letter, row, old, _ in step]
        for step in compacted(ORDERS, [0], *rows)
    ]


def test_unchanged_toast_value_is_taken_from_an_earlier_change_of_the_slice():
    steps = net(insert(ORDERS, ["1", "a", "BIG"]), update(ORDERS, ["1", "b", UNCHANGED]))

    assert steps == [[("I", (b"1", b"b", b"BIG"))]]


def test_unchanged_toast_value_that_no_change_brings_stays_with_the_destination():
    steps = net(update(ORDERS, ["1", "a", UNCHANGED]), update(ORDERS, ["1", "b", UNCHANGED]))

    assert steps == [[("U", (b"1", b"b", UNCHANGED))]]


def test_unchanged_toast_value_never_comes_from_the_row_that_was_deleted():
    steps = net(
        update(ORDERS, ["1", "a", "OLD"]),
        delete(ORDERS, key=["1"]),
        insert(ORDERS, ["1", "b", "NEW"]),
        update(ORDERS, ["1", "c", UNCHANGED]),
    )

    assert steps == [[("R", (b"1", b"c", b"NEW"))]]


def test_delete_says_nothing_about_the_values_of_a_row_that_follows():
    """No server sends this; if one did, NULL must not be made of a value that is not known."""
    steps = net(delete(ORDERS, key=["1"]), update(ORDERS, ["1", "a", UNCHANGED]))

    assert steps == [[("U", (b"1", b"a", UNCHANGED))]]


def test_row_inserted_and_deleted_is_gone_for_the_destination_may_hold_an_older_one():
    steps = net(insert(ORDERS, ["1", "a", "b"]), delete(ORDERS, key=["1"]))

    assert steps == [[("G", (b"1", None, None))]]


def test_row_that_goes_and_comes_again_is_another_row_and_no_update():
    gone, came = delete(ORDERS, key=["1"]), insert(ORDERS, ["1", "a", "NEW"])
    changed = update(ORDERS, ["1", "b", UNCHANGED])
    first, then = ("R", (b"1", b"a", b"NEW")), ("R", (b"1", b"b", b"NEW"))

    assert net(gone, came) == [[first]]
    assert net(changed, gone, came) == [[first]]
    assert net(gone, came, changed) == [[then]]
    assert net(gone, came, gone, came, changed) == [[then]]
    moved = update(ORDERS, ["2", "a", "b"], key=["1"])
    assert net(moved, came, changed) == [[("I", (b"2", b"a", b"b")), then]]


def test_row_that_goes_in_the_end_is_deleted_and_one_that_the_slice_brings_inserted():
    gone, came = delete(ORDERS, key=["1"]), insert(ORDERS, ["1", "a", "NEW"])

    assert net(gone, came, gone) == [[("D", (b"1", None, None))]]
    assert net(came, gone, came) == [[("I", (b"1", b"a", b"NEW"))]]


def test_rows_of_one_key_do_not_make_those_of_another_new():
    gone, came = delete(ORDERS, key=["1"]), insert(ORDERS, ["1", "a", "NEW"])
    changes = [update(ORDERS, ["2", note, UNCHANGED]) for note in "xy"]
    new, changed = ("R", (b"1", b"a", b"NEW")), ("U", (b"2", b"y", UNCHANGED))

    assert net(gone, came, *changes) == [[new, changed]]
    assert net(*changes, gone, came) == [[changed, new]]
    assert net(gone, *changes) == [[("D", (b"1", None, None)), changed]]


def test_keys_that_swap_over_a_temporary_one_are_two_rows_replaced():
    steps = net(
        update(ORDERS, ["9", "one", "x"], key=["1"]),
        update(ORDERS, ["1", "two", "y"], key=["2"]),
        update(ORDERS, ["2", "one", "x"], key=["9"]),
    )

    assert [sorted(step) for step in steps] == [
        [("G", (b"9", None, None)), ("R", (b"1", b"two", b"y")), ("R", (b"2", b"one", b"x"))]
    ]


def test_moves_that_take_what_others_have_left_are_one_step():
    steps = net(
        update(ORDERS, ["4", "c", UNCHANGED], key=["3"]),
        update(ORDERS, ["3", "b", UNCHANGED], key=["2"]),
        update(ORDERS, ["2", "a", UNCHANGED], key=["1"]),
    )

    assert [len(step) for step in steps] == [3]


def test_moves_of_rows_that_are_not_wholly_known_stand_alone_and_move_no_row_twice():
    steps = net(
        insert(ORDERS, ["5", "e", "f"]),
        update(ORDERS, ["2", "a", UNCHANGED], key=["1"]),
        update(ORDERS, ["4", "b", UNCHANGED], key=["3"]),
        update(ORDERS, ["1", "b", UNCHANGED], key=["4"]),
        delete(ORDERS, key=["1"]),
    )

    assert steps == [
        [("I", (b"5", b"e", b"f"))],
        [("M", (b"2", b"a", UNCHANGED), (b"1",)), ("M", (b"4", b"b", UNCHANGED), (b"3",))],
        [("M", (b"1", b"b", UNCHANGED), (b"4",))],
        [("D", (b"1", None, None))],
    ]


def test_insert_with_a_value_that_was_not_sent_is_refused():
    """It would arrive as NULL: there is no older row to take the value from."""
    keyless = table(16400, "t", {"a": "text"})

    with pytest.raises(DecodeError, match="INSERT"):
        net(insert(ORDERS, ["1", "a", UNCHANGED]))
    with pytest.raises(DecodeError, match="INSERT"):
        net(delete(ORDERS, key=["1"]), insert(ORDERS, ["1", "a", UNCHANGED]))
    with pytest.raises(DecodeError, match="INSERT"):
        compacted(keyless, [], insert(keyless, [UNCHANGED]))


def test_change_that_does_not_name_its_row_is_refused():
    keyless = table(16400, "t", {"a": "text"}, identity="f")

    with pytest.raises(DecodeError, match="lacks the key"):
        net(insert(ORDERS, [None, "a", "b"]))
    with pytest.raises(DecodeError, match="lacks the key"):
        net(update(ORDERS, [UNCHANGED, "a", "b"]))
    with pytest.raises(DecodeError, match="lacks the old row"):
        compacted(keyless, [], update(keyless, ["x"]))
    with pytest.raises(DecodeError, match="lacks a part of its row"):
        compacted(keyless, [], delete(keyless, before=[UNCHANGED]))
