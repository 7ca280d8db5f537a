"""`where:` as a mapping: conditions on columns, and `all`, `any`, `not` around them.

The result for a row is true, false or unknown, as in SQL: a comparison with NULL is unknown, and only
true is a match. Knows nothing of types: `comparison` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow.compute as pc

from penstock.errors import BadValue, UnknownKey
from penstock.options import fault, nearest, wanted

if TYPE_CHECKING:
    import pyarrow as pa

ORDERED = ("lt", "lte", "gt", "gte", "between")
SEARCHES = ("contains", "starts_with", "matches")
OPERATORS = ("eq", "ne", *ORDERED, "in", "is_null", *SEARCHES)
_DEPTH = 20


class Compare(Protocol):
    """Answers what one condition is for all rows."""

    def __call__(self, condition: Condition) -> pa.Array:
        """True, false or null for each row."""


class Where(Protocol):
    """A condition, or several."""

    def evaluate(self, compare: Compare) -> pa.Array:
        """True, false or null for each row."""

    def conditions(self) -> Iterator[Condition]:
        """All conditions in it."""


@dataclass(frozen=True)
class Condition:
    """One column beside a value, or several; the values are text, the column's type reads them."""

    column: str
    operator: str
    values: tuple[str, ...] = ()
    ignores_case: bool = False

    def evaluate(self, compare: Compare) -> pa.Array:
        """True, false or null for each row."""
        return compare(self)

    def conditions(self) -> Iterator[Condition]:
        """Itself."""
        yield self


@dataclass(frozen=True)
class All:
    """All of several."""

    parts: tuple[Where, ...]

    def evaluate(self, compare: Compare) -> pa.Array:
        """True, false or null for each row."""
        return _folded(pc.and_kleene, self.parts, compare)

    def conditions(self) -> Iterator[Condition]:
        """All conditions in it."""
        for part in self.parts:
            yield from part.conditions()


@dataclass(frozen=True)
class AnyOf:
    """Any of several."""

    parts: tuple[Where, ...]

    def evaluate(self, compare: Compare) -> pa.Array:
        """True, false or null for each row."""
        return _folded(pc.or_kleene, self.parts, compare)

    def conditions(self) -> Iterator[Condition]:
        """All conditions in it."""
        for part in self.parts:
            yield from part.conditions()


@dataclass(frozen=True)
class Not:
    """The contrary. Unknown stays unknown."""

    part: Where

    def evaluate(self, compare: Compare) -> pa.Array:
        """True, false or null for each row."""
        return pc.invert(self.part.evaluate(compare))

    def conditions(self) -> Iterator[Condition]:
        """All conditions in it."""
        yield from self.part.conditions()


def _folded(function: Any, parts: tuple[Where, ...], compare: Compare) -> pa.Array:
    whole = parts[0].evaluate(compare)
    for part in parts[1:]:
        whole = function(whole, part.evaluate(compare))
    return whole


def read_where(given: Any, below: tuple[str | int, ...] = ()) -> Where:
    """Read `where:`.

    Raises:
        PydanticCustomError: with the path of keys to what is wrong.
    """
    if not isinstance(given, Mapping):
        raise wanted("a condition: column, operator and value; or SQL text", *below)
    if len(below) > _DEPTH:
        raise wanted("conditions that are less deep", *below)
    groups = [key for key in ("all", "any", "not") if key in given]
    if not groups:
        return _read_condition(given, below)
    if len(given) > 1:
        other = next(str(key) for key in given if key != groups[0])
        what = f"stands beside {groups[0]}, wanted it alone"
        raise fault(BadValue(what, do=f"put it into the list of {groups[0]}"), *below, other)
    [(key, inner)] = given.items()
    if key == "not":
        return Not(read_where(inner, (*below, "not")))
    if not isinstance(inner, list | tuple) or not inner:
        raise wanted("a list of at least one condition", *below, key)
    parts = tuple(read_where(each, (*below, key, at)) for at, each in enumerate(inner))
    return All(parts) if key == "all" else AnyOf(parts)


def _read_condition(given: Mapping[Any, Any], below: tuple[str | int, ...]) -> Condition:
    known = ("column", "operator", "value", "ignore_case", "all", "any", "not")
    for key in given:
        if key not in known:
            what = f"is not a known key, wanted one of {', '.join(known)}"
            raise fault(UnknownKey(what, do=nearest(str(key), known)), *below, str(key))
    column, operator = given.get("column"), given.get("operator")
    if not isinstance(column, str) or not column:
        raise wanted("a condition with a column", *below, "column")
    if "operator" not in given:
        what = f"is missing, wanted one of {', '.join(OPERATORS)}"
        raise fault(BadValue(f"operator {what}", do="write operator: eq, or another"), *below)
    if operator not in OPERATORS:
        what = f"{operator!r} is no operator, wanted {', '.join(OPERATORS)}"
        raise fault(BadValue(what, do=nearest(str(operator), OPERATORS)), *below, "operator")
    ignores_case = str(given.get("ignore_case", "false")).lower()
    if ignores_case not in ("true", "false"):
        raise wanted("true or false", *below, "ignore_case")
    values = _read_values(operator, given.get("value"), (*below, "value"))
    return Condition(column, operator, values, ignores_case == "true")


def _read_values(operator: str, given: Any, below: tuple[str | int, ...]) -> tuple[str, ...]:
    if operator == "is_null":
        if given is None or str(given).lower() == "true":
            return ()
        raise wanted("no value; write not: around it for the contrary", *below)
    if operator in ("in", "between"):
        count = "a list of at least one value" if operator == "in" else "a list of two values"
        is_list = isinstance(given, list | tuple) and given
        if not is_list or (operator == "between" and len(given) != 2):
            raise wanted(count, *below)
        return tuple(_text(each, (*below, at)) for at, each in enumerate(given))
    return (_text(given, below),)


def _text(given: Any, below: tuple[str | int, ...]) -> str:
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, str | int | Decimal):
        return str(given)
    if isinstance(given, float):
        return repr(given)
    raise wanted("a value; is_null asks for NULL", *below)
