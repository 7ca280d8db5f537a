"""Random conditions over random changes, beside a model in plain Python that goes row by row.

What a table sink ends up with is what a SELECT of the rule would give at the source; in copies likewise.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fix_changes import plain
from fix_rules import chain, shape
from penstock.changes.copyrows import parse_rows
from penstock.modifiers.copies import ModifiedCopy, relation_of
from penstock.modifiers.modifier import modify
from penstock.testing import changes, delete, insert, relation, transaction, update

COLUMNS = {"id": "int8", "n": "int4", "d": "numeric", "t": "text", "e": "size", "b": "bool"}
LABELS = ("small", "big", "huge")
VALUES: dict[str, st.SearchStrategy[str]] = {
    "id": st.integers(0, 6).map(str),
    "n": st.integers(-3, 3).map(str),
    "d": st.sampled_from(["0", "1.50", "1.5", "-2", "NaN", "Infinity", "9" * 45, "0." + "0" * 25 + "1"]),
    "t": st.sampled_from(["", "a", "A", "ab", "é", "10", "9"]),
    "e": st.sampled_from(LABELS),
    "b": st.sampled_from(["t", "f"]),
}  # fmt: skip
ORDERED = ["eq", "ne", "lt", "lte", "gt", "gte"]


def key_of(column: str, text: str) -> Any:
    """A value as something that Python orders as the type does."""
    if column in ("id", "n"):
        return int(text)
    if column == "d":
        number = Decimal(text)
        return (1, Decimal(0)) if number.is_nan() else (0, number)
    if column == "e":
        return LABELS.index(text)
    if column == "b":
        return text[0] == "t"
    return text.encode()


def answer(where: dict[str, Any], row: dict[str, str | None]) -> bool | None:
    """True, false, or None where it is not known."""
    if "all" in where or "any" in where:
        word = "all" if "all" in where else "any"
        found = [answer(each, row) for each in where[word]]
        decides = word == "any"
        if decides in found:
            return decides
        return None if None in found else not decides
    if "not" in where:
        inner = answer(where["not"], row)
        return None if inner is None else not inner
    value = row[where["column"]]
    if where["operator"] == "is_null":
        return value is None
    if value is None:
        return None
    return _compared(where, value)


def _compared(where: dict[str, Any], value: str) -> bool:
    operator, wanted, column = where["operator"], where["value"], where["column"]
    if operator == "contains":
        return wanted in value
    if operator == "starts_with":
        return value.startswith(wanted)
    own = key_of(column, value)
    if operator == "in":
        return own in [key_of(column, each) for each in wanted]
    if operator == "between":
        return key_of(column, wanted[0]) <= own <= key_of(column, wanted[1])
    other = key_of(column, wanted)
    return {
        "eq": own == other,
        "ne": own != other,
        "lt": own < other,
        "lte": own <= other,
        "gt": own > other,
        "gte": own >= other,
    }[operator]


@st.composite
def conditions(draw: st.DrawFn) -> dict[str, Any]:
    column = draw(st.sampled_from(list(COLUMNS)))
    choices = ["is_null", "eq", "ne", "in"]
    choices += [] if column == "b" else [*ORDERED, "between"]
    choices += ["contains", "starts_with"] if column in ("t", "e") else []
    operator = draw(st.sampled_from(choices))
    made: dict[str, Any] = {"column": column, "operator": operator}
    if operator == "in":
        made["value"] = draw(st.lists(VALUES[column], min_size=1, max_size=3))
    elif operator == "between":
        made["value"] = [draw(VALUES[column]), draw(VALUES[column])]
    elif operator != "is_null":
        made["value"] = draw(VALUES[column])
    return made


WHERES = st.recursive(
    conditions(),
    lambda inner: st.one_of(
        st.builds(lambda parts: {"all": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda parts: {"any": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda part: {"not": part}, inner),
    ),
    max_leaves=5,
)


def nullable(column: str) -> st.SearchStrategy[str | None]:
    return VALUES[column] if column == "id" else st.one_of(st.none(), VALUES[column])


ROWS = st.fixed_dictionaries({column: nullable(column) for column in COLUMNS})
CHANGES = st.lists(st.tuples(st.sampled_from("IUDK"), ROWS), max_size=25)


def stream_of(table: Any, changed: list[tuple[str, dict[str, Any]]], *, is_full: bool):
    """Messages that a source could have sent, and its rows in the end."""
    rows: dict[str, dict[str, Any]] = {}
    messages = []
    for operation, row in changed:
        key, values = row["id"], [row[name] for name in COLUMNS]
        if key not in rows:
            rows[key] = row
            messages.append(insert(table, values))
        elif operation == "D":
            old = rows.pop(key)
            sent = {"before": [old[name] for name in COLUMNS]} if is_full else {"key": [key]}
            messages.append(delete(table, **sent))
        else:
            # K: the row gets another key, where that is free.
            free = [each for each in map(str, range(7)) if each not in rows]
            new = {**row, "id": free[0]} if operation == "K" and free else row
            old = rows.pop(key)
            rows[new["id"]] = new
            moved = {} if new["id"] == key else {"key": [key]}
            sent = {"before": [old[name] for name in COLUMNS]} if is_full else moved
            messages.append(update(table, [new[name] for name in COLUMNS], **sent))
    return messages, rows


def delivered(found: list[Any]) -> dict[bytes, Any]:
    """What a table sink that writes over what is there makes of changes; identities are keys."""
    target: dict[bytes, Any] = {}
    for change in found:
        if change.before is not None and change.operation != "I":
            target.pop(change.before[0], None)
        if change.after is not None:
            target[change.after[0]] = change.after
    return target


def encoded(row: dict[str, Any]) -> tuple[bytes | None, ...]:
    return tuple(
        None if each is None else each.encode() for each in (row[name] for name in COLUMNS)
    )


@settings(max_examples=150, deadline=None)
@given(where=WHERES, changed=CHANGES, is_full=st.booleans())
def test_sink_has_the_rows_that_match_at_the_source(where, changed, is_full) -> None:
    described = shape("t", COLUMNS, identity="f" if is_full else "d")
    table = relation_of(described)
    messages, rows = stream_of(table, changed, is_full=is_full)
    rule = {"filter": {"table": "t", "where": where}}
    bound = chain(rule).bound({described.table: described})

    pieces = changes([relation(table), *transaction(0x100, *messages)])
    found = delivered(plain(modify(bound, pieces)))

    wanted = {key.encode(): encoded(row) for key, row in rows.items() if answer(where, row)}
    assert found == wanted


@settings(max_examples=80, deadline=None)
@given(where=WHERES, rows=st.lists(ROWS, max_size=20))
def test_copy_has_the_rows_that_match(where, rows) -> None:
    described = shape("t", COLUMNS)
    made = chain({"filter": {"table": "t", "where": where}}).of(described.table)
    copy = ModifiedCopy(made.with_shape(described), relation_of(described), ("id",), 0)
    lines = [
        b"\t".join(b"\\N" if each is None else each for each in encoded(row)) + b"\n"
        for row in rows
    ]

    found = copy.begin(tuple(COLUMNS)).rows(lines)

    parsed = parse_rows(b"".join(found), len(COLUMNS))
    assert len(parsed) == sum(answer(where, row) is True for row in rows)
