"""SQL expressions over rows, computed by DuckDB inside the task: filters, and columns that are set.

Columns come as what they are: numbers, instants, booleans, text. What Arrow has no type for is text, enums and
json among it. A value that cannot be held exactly (NaN in a numeric, more than 38 digits, an infinite date) stops
the table, as does an expression that fails for a row.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changes.cells import ABSENT, Cells, gather
from penstock.changes.compact import fill_from_before
from penstock.changes.pgoutput import NULL, Column
from penstock.changes.typed import to_arrow
from penstock.errors import ExpressionFails, RuleUnfit, ValueNotSent
from penstock.modifiers.column_types import ColumnType, Family, column_type, shape_of
from penstock.modifiers.sql_text import ROW, SqlText, connect, read_expression
from penstock.schema.shape import ColumnShape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import duckdb

    from penstock.changes.cells import Mask
    from penstock.changes.decode import TableChanges
    from penstock.changes.pgoutput import Relation
    from penstock.schema.shape import TableShape
    from penstock.table import TableName

_local = threading.local()

_ARROW_TYPES = {
    Family.BOOL: pa.bool_(),
    Family.FLOAT4: pa.float32(),
    Family.FLOAT8: pa.float64(),
    Family.DATE: pa.date32(),
    Family.TIME: pa.time64("us"),
    Family.TIMESTAMP: pa.timestamp("us"),
    Family.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    Family.BYTEA: pa.binary(),
}
_INTEGERS = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "oid": pa.uint32(),
}
# Exactly, or not at all: Arrow does not round.
_ANY_NUMERIC = pa.decimal128(38, 18)

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


def _connection() -> duckdb.DuckDBPyConnection:
    """One for each thread, kept from task to task."""
    if not hasattr(_local, "connection"):
        _local.connection = connect()
    found: duckdb.DuckDBPyConnection = _local.connection
    return found


def arrow_type_of(kind: ColumnType) -> pa.DataType:
    """What a column is for DuckDB; strings where nothing fits."""
    if kind.family is Family.INTEGER:
        return _INTEGERS[kind.name]
    if kind.family is Family.NUMERIC:
        return _decimal_of(kind.spelled) or _ANY_NUMERIC
    return _ARROW_TYPES.get(kind.family, pa.string())


def _decimal_of(spelled: str) -> pa.DataType | None:
    """numeric(p,s), where Arrow and DuckDB have that."""
    if not spelled.startswith("numeric("):
        return None
    precision, scale = (int(each) for each in spelled[len("numeric(") : -1].split(","))
    return pa.decimal128(precision, scale) if 0 <= scale <= precision <= 38 else None


def _duck_type_of(kind: ColumnType) -> str:
    if kind.family is Family.INTEGER:
        return _DUCK_INTEGERS[kind.name]
    if kind.family is Family.NUMERIC:
        decimal = _decimal_of(kind.spelled)
        return f"DECIMAL({decimal.precision},{decimal.scale})" if decimal else ""
    return _DUCK_TYPES.get(kind.family, "VARCHAR")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Expression:
    """An expression that knows the columns it is computed from. Picklable."""

    sql: SqlText
    inputs: Mapping[str, ColumnType]

    @classmethod
    def of(cls, sql: SqlText, shape: TableShape) -> Expression:
        """For rows of a shape.

        Raises:
            RuleUnfit: it names a column that is not there.
        """
        columns = {each.name: each for each in shape.columns if not each.generated}
        inputs: dict[str, ColumnType] = {}
        for name in sql.columns:
            # As in Postgres: what is not quoted is lower case.
            found = name if name in columns else name.lower()
            if found not in columns:
                raise RuleUnfit(
                    f"the SQL names column {name}, wanted one of {', '.join(sorted(columns))}",
                    str(shape.table),
                    "fix the rule; if the column was renamed, name it as it is called now",
                )
            inputs[found] = column_type(shape, columns[found])
        if len({name.lower() for name in inputs}) < len(inputs):
            raise RuleUnfit(
                "the SQL names columns that differ only in upper and lower case",
                str(shape.table),
                "name one of them",
            )
        return cls(sql, inputs)

    def compute(self, values: Mapping[str, pa.Array], count: int, wanted: str = "") -> pa.Array:
        """The answers, as Arrow has them.

        Args:
            values: Postgres's text, by column.
            count: of rows.
            wanted: the type that the answers are cast to, where they are to be of one.

        Raises:
            ExpressionFails: for a row, or a value cannot be held.
        """
        arrays = {name: self._typed(name, values[name]) for name in self.inputs}
        if not arrays:
            arrays = {"penstock_none": pa.nulls(count, pa.bool_())}
        return self._run(pa.table(arrays), wanted)

    def result_type(self, wanted: str = "") -> str:
        """What DuckDB calls the type of the answers.

        Raises:
            RuleUnfit: the expression does not suit the types of its columns.
        """
        import duckdb

        arrays: dict[str, pa.Array] = {
            name: pa.nulls(0, arrow_type_of(kind)) for name, kind in self.inputs.items()
        }
        table = pa.table(arrays or {"penstock_none": pa.nulls(0, pa.bool_())})
        connection = _connection()
        connection.register(ROW, table)
        try:
            return str(connection.sql(self._query(wanted)).types[0])
        except duckdb.Error as error:
            raise RuleUnfit(
                f"the SQL does not suit the columns: {str(error).splitlines()[0]}",
                "",
                "fix the expression; ::type casts",
            ) from None
        finally:
            connection.unregister(ROW)

    def _query(self, wanted: str) -> str:
        expression = f"({self.sql.text}\n)"
        if wanted:
            expression = f"CAST({expression} AS {wanted})"
        return f"SELECT {expression} AS answer FROM {ROW}"

    def _run(self, table: pa.Table, wanted: str) -> pa.Array:
        import duckdb

        connection = _connection()
        connection.register(ROW, table)
        try:
            answer = connection.sql(self._query(wanted)).to_arrow_table().column(0)
        except duckdb.Error as error:
            # Its words may hold values of the row.
            raise ExpressionFails(
                f"the SQL fails for a row: {type(error).__name__}",
                "",
                "make the expression hold for every row: TRY_CAST, CASE, nullif",
            ) from None
        finally:
            connection.unregister(ROW)
        return answer.combine_chunks() if answer.num_chunks != 1 else answer.chunk(0)

    def _typed(self, name: str, values: pa.Array) -> pa.Array:
        kind = arrow_type_of(self.inputs[name])
        if pa.types.is_decimal(kind):
            try:
                return values.cast(pa.string()).cast(kind)
            except pa.ArrowInvalid:
                raise self._cannot_hold(name, kind) from None
        if kind == pa.string():
            return values.cast(pa.string())
        typed = to_arrow(Cells.from_arrow(values), kind)
        if len(typed.unfit):
            raise self._cannot_hold(name, kind)
        return typed.values

    def _cannot_hold(self, name: str, kind: pa.DataType) -> ExpressionFails:
        return ExpressionFails(
            f"a value of column {name} that SQL cannot have as {kind}, such as NaN, infinity or too"
            " many digits",
            "",
            "fix the row, or state the condition as a mapping, which compares such values",
        )


@dataclass(frozen=True)
class SqlMatcher:
    """`where:` as SQL."""

    sql: SqlText
    expression: Expression | None = None

    def with_shape(self, shape: TableShape) -> SqlMatcher:
        """Know the types of the columns.

        Raises:
            RuleUnfit: the table has no such column, or the answer is neither true nor false.
        """
        expression = Expression.of(self.sql, shape)
        found = expression.result_type()
        if found != "BOOLEAN":
            raise RuleUnfit(
                f"the SQL gives {found}, wanted true or false",
                str(shape.table),
                "compare it with something",
            )
        return SqlMatcher(self.sql, expression)

    def columns(self) -> tuple[str, ...]:
        """Those that the expression names."""
        assert self.expression is not None, "with_shape comes first"
        return tuple(self.expression.inputs)

    def matches(self, values: Mapping[str, pa.Array], count: int) -> pa.Array:
        """Where the expression is true."""
        assert self.expression is not None, "with_shape comes first"
        return self.expression.compute(values, count)


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
            return SetColumn(name, expression, wanted, False, known)
        found = expression.result_type()
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
        from penstock.schema.describe import row_key_of

        key = row_key_of(shape)
        names = shape.names_of(key.columns) if key is not None else ()
        if name in names and set(expression.inputs) - {name}:
            raise RuleUnfit(
                f"column {name} is part of the key, and the SQL computes it from others, too",
                str(shape.table),
                f"compute it from {name} alone, or set a column of another name",
            )

    def modified_shape(self, shape: TableShape) -> TableShape:
        """With the new columns."""
        bound = self.with_shape(shape)
        new = tuple(each.column for each in bound.columns if each.is_new)
        return shape.model_copy(update={"columns": (*shape.columns, *new)})

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
