"""Random conditions, SQL and routes over random changes, beside a model in plain Python that goes row by row.

What a table sink ends up with is what a SELECT of the rule would give at the source; in copies likewise.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fix_changes import plain
from fix_rules import chain, shape
from penstock.changes.cells import gather
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


# SQL of `where` and `set`, and a route, likewise.

Function = Any  # from a row to a value


def number(row: dict[str, str | None], name: str) -> int | None:
    value = row[name]
    return None if value is None else int(value)


def on(value: Any, function: Function) -> Any:
    """A function of a value that is there."""
    return None if value is None else function(value)


ATOMS: list[tuple[str, Function]] = [
    ("n > 0", lambda row: on(number(row, "n"), lambda n: n > 0)),
    ("n + id < 4", lambda row: on(number(row, "n"), lambda n: n + number(row, "id") < 4)),
    ("n IN (1, -2)", lambda row: on(number(row, "n"), lambda n: n in (1, -2))),
    ("id % 2 = 0", lambda row: number(row, "id") % 2 == 0),
    ("t = 'a'", lambda row: on(row["t"], lambda t: t == "a")),
    ("t IS NULL", lambda row: row["t"] is None),
    ("length(t) > 1", lambda row: on(row["t"], lambda t: len(t) > 1)),
    ("upper(t) = 'A'", lambda row: on(row["t"], lambda t: t.upper() == "A")),
    ("t LIKE 'a%'", lambda row: on(row["t"], lambda t: t.startswith("a"))),
    ("b", lambda row: on(row["b"], lambda b: b == "t")),
]


def joined_by(word: str, left: Any, right: Any) -> tuple[str, Function]:
    decides = word == "OR"

    def function(row: Any) -> bool | None:
        found = [left[1](row), right[1](row)]
        if decides in found:
            return decides
        return None if None in found else not decides

    return f"({left[0]} {word} {right[0]})", function


SQL_WHERES = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.builds(joined_by, st.sampled_from(["AND", "OR"]), inner, inner),
        st.builds(
            lambda one: (f"NOT {one[0]}", lambda row: on(one[1](row), lambda v: not v)), inner
        ),
    ),
    max_leaves=4,
)
OF_T: list[tuple[str, Function]] = [
    ("upper(t)", lambda row: on(row["t"], str.upper)),
    ("coalesce(t, 'none')", lambda row: "none" if row["t"] is None else row["t"]),
    ("CASE WHEN b THEN t END", lambda row: row["t"] if row["b"] == "t" else None),
]
OF_NEW: list[tuple[str, Function]] = [
    ("n * 2", lambda row: on(number(row, "n"), lambda n: str(n * 2))),
    ("t || '-' || id", lambda row: on(row["t"], lambda t: f"{t}-{row['id']}")),
    ("n > 1", lambda row: on(number(row, "n"), lambda n: "t" if n > 1 else "f")),
]
SETS = st.fixed_dictionaries(
    {}, optional={"t": st.sampled_from(OF_T), "s": st.sampled_from(OF_NEW)}
).filter(bool)


def sql_rules(where: Any, made: dict[str, Any], *, is_set_first: bool) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = [
        {"filter": {"table": "t", "where": where[0]}},
        {"transform": {"table": "t", "set": {name: sql for name, (sql, _) in made.items()}}},
    ]
    route = {"table": "t", "target": "far.away", "columns": {"t": "words"}, "drop": ["b"]}
    return [*(reversed(rules) if is_set_first else rules), {"route": route}]


def sql_row(
    where: Any, made: dict[str, Any], row: dict[str, Any], *, is_set_first: bool
) -> dict[str, bytes | None] | None:
    """What becomes of a row; None where it is left out."""
    computed = {**row, **{name: function(row) for name, (_, function) in made.items()}}
    if where[1](computed if is_set_first else row) is not True:
        return None
    computed["words"] = computed.pop("t")
    del computed["b"]
    return {name: on(value, str.encode) for name, value in computed.items()}


@settings(max_examples=60, deadline=None)
@given(
    where=SQL_WHERES,
    made=SETS,
    changed=CHANGES,
    is_full=st.booleans(),
    is_set_first=st.booleans(),
)
def test_sql_and_routes_do_to_changes_and_copies_what_they_do_to_each_row(
    where, made, changed, is_full, is_set_first
) -> None:
    described = shape("t", COLUMNS, identity="f" if is_full else "d")
    table = relation_of(described)
    messages, rows = stream_of(table, changed, is_full=is_full)
    rules = sql_rules(where, made, is_set_first=is_set_first)
    bound = chain(*rules).bound({described.table: described})
    wanted = [sql_row(where, made, row, is_set_first=is_set_first) for row in rows.values()]
    expected = sorted(str(sorted(row.items())) for row in wanted if row is not None)

    found = plain(modify(bound, changes([relation(table), *transaction(0x100, *messages)])))
    columns = found[0].columns if found else ()
    kept = [dict(zip(columns, row, strict=True)) for row in delivered(found).values()]
    assert sorted(str(sorted(row.items())) for row in kept) == expected

    copy = ModifiedCopy(bound.of(described.table), table, ("id",), 0)
    names = [column.name for column in bound.modified_shape(described).columns]
    lines = [
        b"\t".join(b"\\N" if each is None else each for each in encoded(row)) + b"\n"
        for row in rows.values()
    ]
    parsed = parse_rows(b"".join(copy.begin(tuple(names)).rows(lines)), len(names))
    copied = zip(*(gather(cells).to_pylist() for cells in parsed.cells), strict=True)
    again = [dict(zip(names, row, strict=True)) for row in copied]
    assert sorted(str(sorted(row.items())) for row in again) == expected
