"""`set:`: columns that SQL computes from the row, inside the task.

A value that SQL cannot have exactly (`penstock.sql.expression`) stops the table, as does an expression that fails for a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.cells import ABSENT, Cells, gather
from penstock.changes.compact import fill_from_before
from penstock.changes.pgoutput import NULL, Column
from penstock.errors import ExpressionFails, RuleUnfit, ValueNotSent
from penstock.modifiers.hidden import NotKnown, without_defaults, without_values
from penstock.schema.shape import ColumnShape
from penstock.sql.column_types import ColumnType, Family, column_type, shape_of
from penstock.sql.expression import Expression, decimal_of
from penstock.sql.text import SqlText, read_expression

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.changes.cells import Mask
    from penstock.changes.decode import TableChanges
    from penstock.changes.pgoutput import Relation
    from penstock.schema.shape import TableShape
    from penstock.table import TableName

# What DuckDB casts a result to, so that it is one of the column's type.
_DUCK_TYPES = {
    Family.BOOL: "BOOLEAN",
    Family.FLOAT4: "FLOAT",
    Family.FLOAT8: "DOUBLE",
    Family.DATE: "DATE",
    Family.TIME: "TIME",
    Family.TIMESTAMP: "TIMESTAMP",
    Family.TIMESTAMPTZ: "TIMESTAMPTZ",
    Family.BYTEA: "BLOB",
    Family.UUID: "UUID",
}
_DUCK_INTEGERS = {
    "smallint": "SMALLINT",
    "integer": "INTEGER",
    "bigint": "BIGINT",
    "oid": "UINTEGER",
}
# Of a column that is new: how Postgres spells its type, its oid.
_POSTGRES_TYPES = {
    "BOOLEAN": ("boolean", 16),
    "TINYINT": ("smallint", 21),
    "SMALLINT": ("smallint", 21),
    "INTEGER": ("integer", 23),
    "BIGINT": ("bigint", 20),
    "UTINYINT": ("smallint", 21),
    "USMALLINT": ("integer", 23),
    "UINTEGER": ("bigint", 20),
    "UBIGINT": ("numeric", 1700),
    "HUGEINT": ("numeric", 1700),
    "UHUGEINT": ("numeric", 1700),
    "FLOAT": ("real", 700),
    "DOUBLE": ("double precision", 701),
    "VARCHAR": ("text", 25),
    "JSON": ("json", 114),
    "DATE": ("date", 1082),
    "TIME": ("time without time zone", 1083),
    "TIMESTAMP": ("timestamp without time zone", 1114),
    "TIMESTAMP WITH TIME ZONE": ("timestamp with time zone", 1184),
    "UUID": ("uuid", 2950),
    "BLOB": ("bytea", 17),
}
# Ids of columns of the source are positive.
_FIRST_NEW_ID = -1000


def _duck_type_of(kind: ColumnType) -> str:
    if kind.family is Family.INTEGER:
        return _DUCK_INTEGERS[kind.name]
    if kind.family is Family.NUMERIC:
        decimal = decimal_of(kind.spelled)
        return f"DECIMAL({decimal.precision},{decimal.scale})" if decimal else ""
    return _DUCK_TYPES.get(kind.family, "VARCHAR")


def postgres_text(values: pa.Array) -> pa.Array:
    """Answers as Postgres's text, binary."""
    kind = values.type
    if pa.types.is_boolean(kind):
        return pc.if_else(values, b"t", b"f").cast(pa.binary())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        texts = [
            None if each is None else b"\\x" + each.hex().encode() for each in values.to_pylist()
        ]
        return pa.array(texts, pa.binary())
    if pa.types.is_floating(kind):
        text = values.cast(pa.string())
        named = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
        for found, wanted in named.items():
            text = pc.if_else(pc.equal(text, found), wanted, text)
        return text.cast(pa.binary())
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        plain = values.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
        return pc.binary_join_element_wise(plain.cast(pa.string()), "+00", "").cast(pa.binary())
    return values.cast(pa.string()).cast(pa.binary())


@dataclass(frozen=True)
class SetColumn:
    """One column of `set:`, for rows of one shape."""

    name: str
    expression: Expression
    duck_type: str
    is_new: bool
    column: ColumnShape

    def of_value(self, value: str) -> str | None:
        """What becomes of a value of the column, whatever the row.

        Raises:
            NotKnown: it depends on others, or the expression fails.
        """
        if set(self.expression.inputs) - {self.name}:
            raise NotKnown
        values = {name: pa.array([value.encode()], pa.binary()) for name in self.expression.inputs}
        try:
            answer = postgres_text(self.expression.compute(values, 1, self.duck_type))[0].as_py()
        except ExpressionFails:
            raise NotKnown from None
        return None if answer is None else str(answer, "utf-8")


@dataclass(frozen=True)
class SetColumns:
    """`set:`: columns that are computed from the row as it came; all from the same row."""

    table: TableName
    expressions: Mapping[str, SqlText]
    columns: tuple[SetColumn, ...] = field(default=())
    is_bound: bool = False

    def with_shape(self, shape: TableShape) -> SetColumns:
        """Know the types of the columns, and those of the new ones.

        Raises:
            RuleUnfit: the table and the expressions do not fit.
        """
        known = {each.name: each for each in shape.columns}
        made = [
            self._column(name, sql, number, shape, known.get(name))
            for number, (name, sql) in enumerate(self.expressions.items())
        ]
        return replace(self, columns=tuple(made), is_bound=True)

    def _column(
        self,
        name: str,
        sql: SqlText,
        number: int,
        shape: TableShape,
        known: ColumnShape | None,
    ) -> SetColumn:
        expression = Expression.of(sql, shape)
        if known is not None:
            if known.generated:
                raise RuleUnfit(
                    f"column {name} is computed by the source, and not in the stream",
                    str(shape.table),
                    "set a column of another name",
                )
            self._require_own_value(name, expression, shape)
            wanted = _duck_type_of(column_type(shape, known)) or _duck_decimal(expression)
            expression.result_type(wanted)
            expression.require_constants(wanted)
            return SetColumn(name, expression, wanted, False, known)
        found = expression.result_type()
        expression.require_constants()
        spelled, oid, modifier = _postgres_type(found, shape.table)
        column = ColumnShape(
            id=_FIRST_NEW_ID - number,
            name=name,
            type=spelled,
            type_id=oid,
            type_kind="b",
            type_modifier=modifier,
            not_null=False,
        )
        return SetColumn(name, expression, "", True, column)

    def _require_own_value(self, name: str, expression: Expression, shape: TableShape) -> None:
        """An old key says nothing but the key: what becomes of it must follow from it alone."""

        if name in shape.key_columns and set(expression.inputs) - {name}:
            raise RuleUnfit(
                f"column {name} is part of the key, and the SQL computes it from others, too",
                str(shape.table),
                f"compute it from {name} alone, or set a column of another name",
            )

    def modified_shape(self, shape: TableShape) -> TableShape:
        """With the new columns, without values of those that are computed anew."""
        bound = self.with_shape(shape)
        new = tuple(each.column for each in bound.columns if each.is_new)
        computed = {each.name: each for each in bound.columns if not each.is_new}
        own = tuple(
            without_values(column, computed[column.name].of_value)
            if column.name in computed
            else column
            for column in shape.columns
        )
        kinds = [column.type_id for column in shape.columns if column.name in computed]
        shape = without_defaults(shape, kinds)
        return shape.model_copy(update={"columns": (*own, *new)})

    def modified_relation(self, relation: Relation) -> Relation:
        """With the new columns."""
        if not self.is_bound:
            return self.with_shape(shape_of(relation)).modified_relation(relation)
        is_whole = relation.replica_identity == "f"  # every column is marked then
        new = tuple(
            Column(each.name, each.column.type_id, each.column.type_modifier, in_identity=is_whole)
            for each in self.columns
            if each.is_new
        )
        return replace(relation, columns=(*relation.columns, *new))

    def apply(self, changes: TableChanges) -> TableChanges:
        """Compute the columns of new and old rows."""
        if not self.is_bound:
            return self.with_shape(shape_of(changes.relation)).apply(changes)
        filled = fill_from_before(changes)
        after, before = list(changes.after), list(changes.before)
        names = [column.name for column in changes.relation.columns]
        has_row = changes.after[0].kind != ABSENT
        has_old = changes.before[0].kind != ABSENT
        for each in self.columns:
            new = self._computed(each, changes, filled, names, has_row)
            old = self._computed_before(each, changes, names, has_old)
            if each.is_new:
                after.append(new)
                before.append(old)
            else:
                place = names.index(each.name)
                after[place], before[place] = new, old
        return replace(
            changes,
            relation=self.modified_relation(changes.relation),
            after=tuple(after),
            before=tuple(before),
        )

    def _computed(
        self,
        each: SetColumn,
        changes: TableChanges,
        cells: Sequence[Cells],
        names: list[str],
        has_row: Mask,
    ) -> Cells:
        inputs = [cells[names.index(name)] for name in each.expression.inputs]
        unknown = [one.is_unchanged for one in inputs]
        some = np.logical_or.reduce(unknown) if unknown else np.zeros(len(changes), np.bool_)
        every = np.logical_and.reduce(unknown) if unknown else np.zeros(len(changes), np.bool_)
        if bool((some & ~every).any()):
            table = changes.relation.table
            raise ValueNotSent(
                f"column {each.name} is computed from values of which an UPDATE left some alone, so"
                " that the source has not sent them",
                str(table),
                f"ALTER TABLE {table} REPLICA IDENTITY FULL, then penstock tables resync {table}",
            )
        return self._cells(each, cells, names, has_row, every)

    def _computed_before(
        self, each: SetColumn, changes: TableChanges, names: list[str], has_old: Mask
    ) -> Cells:
        cells = changes.before
        identity = {column.name for column in changes.relation.columns if column.in_identity}
        is_key = not each.is_new and each.name in identity
        known = has_old if is_key else changes.has_full_before
        made = self._cells(each, cells, names, known, np.zeros(len(changes), np.bool_))
        kind = np.where(known, made.kind, np.where(has_old, NULL, ABSENT)).astype(np.uint8)
        return Cells(made.data, made.start, np.where(known, made.length, 0), kind)

    def _cells(
        self,
        each: SetColumn,
        cells: Sequence[Cells],
        names: list[str],
        has_row: Mask,
        unchanged: Mask,
    ) -> Cells:
        count = len(has_row)
        rows = np.flatnonzero(has_row & ~unchanged)
        values = {
            name: gather(cells[names.index(name)].take(rows)) for name in each.expression.inputs
        }
        answers = each.expression.compute(values, len(rows), each.duck_type)
        texts = postgres_text(answers)
        if len(rows) < count:
            places = np.full(count, -1, np.int64)
            places[rows] = np.arange(len(rows))
            texts = texts.take(pa.array(places, mask=places < 0))
        return Cells.from_arrow(texts, unchanged=has_row & unchanged, absent=~has_row)


def _duck_decimal(expression: Expression) -> str:
    """For a numeric without precision: whatever the expression gives, as long as it is a number."""
    found = expression.result_type()
    return "DECIMAL(38,18)" if found in ("VARCHAR", "JSON", "BOOLEAN", "BLOB") else found


def _postgres_type(found: str, table: TableName) -> tuple[str, int, int]:
    if found.startswith("DECIMAL("):
        precision, scale = (int(each) for each in found[len("DECIMAL(") : -1].split(","))
        return f"numeric({precision},{scale})", 1700, ((precision << 16) | scale) + 4
    if found not in _POSTGRES_TYPES:
        raise RuleUnfit(
            f"the SQL gives {found}, wanted a type that a column can have",
            str(table),
            "cast it: ::varchar, ::bigint, ::json",
        )
    return (*_POSTGRES_TYPES[found], -1)


def set_columns(given: Mapping[str, str], table: TableName) -> SetColumns:
    """What `set:` does to a table.

    Raises:
        PydanticCustomError: an expression does not parse.
    """
    return SetColumns(table, {name: read_expression(text) for name, text in given.items()})
