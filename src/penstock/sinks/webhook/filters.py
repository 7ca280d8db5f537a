"""The filter of a subscription: SQL over the row, as in `modifiers:`, asked of documents.

An insert, an update and a copied row are judged by the row after it, a delete by the row before it. Of that the source
sends the key alone, unless REPLICA IDENTITY is FULL: a delete that cannot be judged is delivered. What
concerns a whole table is never judged.
"""

from __future__ import annotations

import base64
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import PydanticCustomError

from penstock.errors import ExpressionFails, RuleUnfit, ValueNotSent
from penstock.sinks.webhook.doc import Digits, json_text
from penstock.sinks.webhook.typed import shape_by
from penstock.sql.column_types import Family
from penstock.sql.expression import SqlMatcher, time_limit
from penstock.sql.text import read_expression
from penstock.table import TableName
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.sinks.webhook.doc import Doc
    from penstock.sql.column_types import ColumnType

JUDGED = ("insert", "update", "delete", "read")
_KNOWN_SHAPES = 64


class Filter:
    """One subscription's. Not for two threads at a time.

    Its text was read when it was given, perhaps by an earlier version, which took what this one refuses. So it is read again
    where a failure is this subscription's alone.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._matcher = lru_cache(_KNOWN_SHAPES)(self._bound)

    def _bound(self, types: str, table: TableName) -> SqlMatcher:
        try:
            sql = read_expression(self._text)
        except PydanticCustomError as error:
            raise RuleUnfit(
                error.message(), str(table), "correct the filter, then resume"
            ) from None
        with time_limit(timing().webhook_filter_seconds):
            return SqlMatcher(sql).with_shape(shape_by(types, table))

    def matches(self, docs: Sequence[Doc], types: str | None) -> list[bool]:
        """Which documents are wanted; all are of one table, and of rows with the same columns.

        Raises:
            RuleUnfit: the table has no such column, or of another type, or the text is none that is taken.
            SqlMissing: DuckDB is not installed.
            ValueNotSent: an update left a value alone that is needed.
            ExpressionFails: for a row, or it takes too long.
        """
        table = TableName(docs[0].schema, docs[0].table)
        if types is None:
            raise RuleUnfit(
                "an earlier version has stored documents without the types of their columns",
                str(table),
                "take the filter out until they are delivered",
            )
        matcher = self._matcher(types, table)
        assert matcher.expression is not None
        rows = [_row(doc, matcher.columns(), table) for doc in docs]
        judged = [row for row in rows if row is not None]
        values = {
            name: _column(judged, name, kind) for name, kind in matcher.expression.inputs.items()
        }
        with time_limit(timing().webhook_filter_seconds):
            answer = pc.fill_null(matcher.matches(values, len(judged)), False)
        answers = iter(answer.to_pylist())
        return [True if row is None else next(answers) for row in rows]


def _row(doc: Doc, names: Sequence[str], table: TableName) -> Mapping[str, Any] | None:
    """The values that decide; None of a delete of which they are not known."""
    try:
        parsed = json.loads(doc.value, parse_int=Digits, parse_float=Digits)
    except RecursionError:
        raise ExpressionFails(
            "a row has JSON that is nested too deeply to be read", str(table), "take the filter out"
        ) from None
    before, after = parsed["before"] or {}, parsed["after"] or {}
    if doc.op == "delete":
        return before if all(name in before for name in names) else None
    row = {**before, **after}
    # Of an update that changed its key, `before` is the old key: nothing of it is missing in `after`.
    for name in names:
        if name not in row:
            raise ValueNotSent(
                f"the filter needs column {name}, and an UPDATE left its value alone, so that the"
                " source has not sent it",
                str(table),
                f"ALTER TABLE {table} REPLICA IDENTITY FULL",
            )
    return row


def _column(rows: Sequence[Mapping[str, Any]], name: str, kind: ColumnType) -> pa.Array:
    try:
        texts = [_postgres_text(row[name], kind.family) for row in rows]
        return pa.array(texts, pa.string()).cast(pa.binary())
    except (pa.ArrowInvalid, UnicodeError):
        raise ExpressionFails(
            f"a value of column {name} is no UTF-8", "", "take the column out of the filter"
        ) from None


def _postgres_text(value: Any, family: Family) -> str | None:
    """A value of a document as Postgres prints it: what `penstock.changes.jsonvalues` does, the other way."""
    if value is None:
        return None
    if isinstance(value, bool) and family is Family.BOOL:
        return "t" if value else "f"
    if not isinstance(value, str) or family is Family.DOCUMENT:
        return json_text(value)
    if family in (Family.TIMESTAMP, Family.TIMESTAMPTZ):
        return value.replace("T", " ", 1)
    return "\\x" + base64.b64decode(value).hex() if family is Family.BYTEA else value
