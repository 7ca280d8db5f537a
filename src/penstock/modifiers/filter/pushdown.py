"""A filter in Postgres's own SQL, so that a copy reads only the rows that match: exactly, or not at all.

Whatever a search_path, a collation or an encoding of the source is, the answer is that of `comparison`.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from penstock.modifiers.filter.comparison import read_value
from penstock.modifiers.filter.rows import NoRows, RowFilter, StructuredMatcher
from penstock.modifiers.filter.where import All, AnyOf, Condition, Not
from penstock.modifiers.operations import Operation
from penstock.sql.column_types import ColumnType, Family

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

    from penstock.modifiers.filter.where import Where
    from penstock.modifiers.modifier import TableModifier

_SIGNS = {"eq": "=", "ne": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_TEXTS = (Family.TEXT, Family.PADDED)
_SEARCHED = (*_TEXTS, Family.ENUM, Family.DOCUMENT)
_TYPES = {
    Family.BOOL: "boolean",
    Family.NUMERIC: "numeric",
    Family.FLOAT4: "real",
    Family.FLOAT8: "double precision",
    Family.DATE: "date",
    Family.TIME: "time",
    Family.TIMESTAMP: "timestamp",
    Family.TIMESTAMPTZ: "timestamptz",
    Family.UUID: "uuid",
    Family.BYTEA: "bytea",
    Family.INTERVAL: "interval",
    Family.TIMETZ: "timetz",
}
_BY_NAME = (Family.INTEGER, Family.NETWORK, Family.MAC)
_DAY = 86_400_000_000  # microseconds
_MOST_DAYS = 2**31
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INFINITE = {-(2**63): "-infinity", 2**63 - 1: "infinity"}


class _Unsayable(Exception):
    """It cannot be said exactly."""


def pushed(modifier: TableModifier) -> str | None:
    """What a copied row must be to match, as SQL; None where that cannot be said exactly.

    An empty text: every row matches.
    """
    if isinstance(modifier, NoRows):
        return "false"
    if not isinstance(modifier, RowFilter):
        return None
    if Operation.INSERT not in modifier.operations:
        return ""
    matcher = modifier.matcher
    if not isinstance(matcher, StructuredMatcher):
        return None
    try:
        return _said(matcher.where, matcher.types)
    except _Unsayable:
        return None


def _said(where: Where, types: Mapping[str, ColumnType]) -> str:
    if isinstance(where, Not):
        return f"NOT ({_said(where.part, types)})"
    if isinstance(where, All | AnyOf):
        word = " AND " if isinstance(where, All) else " OR "
        return "(" + word.join(_said(part, types) for part in where.parts) + ")"
    assert isinstance(where, Condition), "there is nothing else"
    return _condition(where, types[where.column])


def _condition(condition: Condition, kind: ColumnType) -> str:
    column = _identifier(condition.column)
    operator = condition.operator
    if operator == "is_null":
        # IS NULL is true of a row whose fields all are.
        return f"{column} IS NOT DISTINCT FROM NULL"
    if condition.ignores_case or operator == "matches":
        raise _Unsayable  # by other rules than Arrow's
    if operator in ("contains", "starts_with"):
        return _search(condition, kind, column)
    compared = _text_operands if kind.family in _TEXTS else _operands
    left, values = compared(condition, kind, column)
    if operator == "in":
        return f"{left} IN ({', '.join(values)})"
    if operator == "between":
        return f"({left} >= {values[0]} AND {left} <= {values[1]})"
    return f"{left} {_SIGNS[operator]} {values[0]}"


def _search(condition: Condition, kind: ColumnType, column: str) -> str:
    [value] = condition.values
    # A domain over text has no text of its own; a database of another encoding has no other letters.
    if kind.family not in _SEARCHED or not value.isascii() or kind.family is Family.PADDED:
        raise _Unsayable
    # Of an enum not by a cast, which its owner can make.
    is_enum = kind.family is Family.ENUM
    said = f"CASE WHEN {column} IS NOT NULL THEN concat({column}) END" if is_enum else column
    text = f'(({said})::text COLLATE "C")'
    if condition.operator == "contains":
        return f"position({_literal(value)} IN {text}) > 0"
    return f"left({text}, {len(value)}) = {_literal(value)}"


def _text_operands(condition: Condition, kind: ColumnType, column: str) -> tuple[str, list[str]]:
    """Bytes beside bytes. A cast to text takes the padding off."""
    values = [read_value(each, kind) for each in condition.values]
    listed = [f"'\\x{value.hex()}'::bytea" for value in values]
    return f"convert_to({column}::text, 'UTF8')", listed


def _operands(condition: Condition, kind: ColumnType, column: str) -> tuple[str, list[str]]:
    declared = kind.name if kind.family in _BY_NAME else _TYPES.get(kind.family)
    if kind.family is Family.ENUM:
        # Of a domain over an enum the enum's name is not known here.
        if not condition.values or kind.base is None:
            raise _Unsayable
        declared = kind.base
    if declared is None:
        raise _Unsayable
    values = [f"{_literal(_spelled(each, kind))}::{declared}" for each in condition.values]
    return f"{column}::{declared}", values


def _spelled(text: str, kind: ColumnType) -> str:
    """A value as every server reads it alike."""
    value = read_value(text, kind)
    if kind.family in (Family.DATE, Family.TIMESTAMP, Family.TIMESTAMPTZ):
        if value in _INFINITE:
            return _INFINITE[value]
        if kind.family is Family.DATE:
            return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
        moment = _EPOCH + timedelta(microseconds=value)
        zone = "+00" if kind.family is Family.TIMESTAMPTZ else ""
        return moment.replace(tzinfo=None).isoformat(sep=" ") + zone
    if kind.family is Family.INTERVAL:
        return _interval(value)
    if kind.family in (
        *(Family.UUID, Family.BYTEA, Family.BOOL),
        *(Family.NETWORK, Family.MAC, Family.TIMETZ),
    ):
        return str(value.decode())
    return text.strip() if kind.family is not Family.ENUM else text


def _interval(length: Decimal) -> str:
    """One that is as long: no more counts where intervals are compared."""
    # Infinite ones are known from Postgres 17 on.
    if length.is_infinite() or abs(length) >= _MOST_DAYS * _DAY:
        raise _Unsayable
    days, rest = divmod(int(length), _DAY)
    return f"{days} days {rest} microseconds"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    quoted = text.replace("'", "''")
    return "E'" + quoted.replace("\\", "\\\\") + "'" if "\\" in quoted else f"'{quoted}'"
