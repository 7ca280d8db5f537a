"""An SQL expression that knows its columns, computed by DuckDB where the rows are.

Columns come as what they are: numbers, instants, booleans, text. What Arrow has no type for is text, enums and
json among it. A value that cannot be held exactly (NaN in a numeric, more than 38 digits, an infinite date), or for which
the expression fails, is an error that holds nothing of it.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.changes.cells import Cells
from penstock.changes.typed import to_arrow
from penstock.errors import ExpressionFails, RuleUnfit
from penstock.sql.column_types import (
    ColumnType,
    Family,
    column_type,
    require_stored,
    without_padding,
)
from penstock.sql.text import ROW, SqlText, connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import duckdb

    from penstock.schema.shape import TableShape

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


def _connection() -> duckdb.DuckDBPyConnection:
    """One for each thread, kept from task to task."""
    if not hasattr(_local, "connection"):
        _local.connection = connect()
    found: duckdb.DuckDBPyConnection = _local.connection
    return found


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """What this thread computes meanwhile fails after so long."""
    timer = threading.Timer(seconds, _connection().interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def arrow_type_of(kind: ColumnType) -> pa.DataType:
    """What a column is for DuckDB; strings where nothing fits."""
    if kind.family is Family.INTEGER:
        return _INTEGERS[kind.name]
    if kind.family is Family.NUMERIC:
        return decimal_of(kind.spelled) or _ANY_NUMERIC
    return _ARROW_TYPES.get(kind.family, pa.string())


def decimal_of(spelled: str) -> pa.DataType | None:
    """numeric(p,s), where Arrow and DuckDB have that."""
    if not spelled.startswith("numeric("):
        return None
    precision, scale = (int(each) for each in spelled[len("numeric(") : -1].split(","))
    return pa.decimal128(precision, scale) if 0 <= scale <= precision <= 38 else None


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
                require_stored(shape, name)
                require_stored(shape, found)
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
            raise _does_not_suit(str(error).splitlines()[0]) from None
        finally:
            connection.unregister(ROW)

    def require_constants(self, wanted: str = "") -> None:
        """See that constants can be of the types that they stand for, which DuckDB says of rows alone.

        Raises:
            RuleUnfit: it fails with the same words for a row of NULLs and for one of ones: not because of a value.
        """
        kinds = {name: arrow_type_of(kind) for name, kind in self.inputs.items()}
        nulls = {name: pa.nulls(1, kind) for name, kind in kinds.items()}
        ones = {name: _one(kind) for name, kind in kinds.items()}
        faults = [self._fault_of_row(row, wanted) for row in (nulls, ones)]
        if faults[0] and faults[0] == faults[1]:
            raise _does_not_suit(faults[0])

    def _fault_of_row(self, row: Mapping[str, pa.Array], wanted: str) -> str:
        """What is wrong with one made-up row."""
        import duckdb

        connection = _connection()
        connection.register(ROW, pa.table(dict(row) or {"penstock_none": pa.nulls(1, pa.bool_())}))
        try:
            connection.sql(self._query(wanted)).fetchall()
        except duckdb.Error as error:
            return str(error).splitlines()[0]
        finally:
            connection.unregister(ROW)
        return ""

    def _query(self, wanted: str) -> str:
        expression = f"({self.sql.text}\n)"
        if wanted:
            expression = f"CAST({expression} AS {wanted})"
        return f"SELECT {expression} AS answer FROM {self._row}"

    @property
    def _row(self) -> str:
        """Where columns come from: those of citext are compared without case, and keep it."""
        named = [
            '"' + name.replace('"', '""') + '"'
            for name, kind in self.inputs.items()
            if kind.family is Family.CITEXT
        ]
        if not named:
            return ROW
        listed = ", ".join(f"{name} COLLATE NOCASE AS {name}" for name in named)
        return f"(SELECT * REPLACE ({listed}) FROM {ROW}) AS {ROW}"

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
        if len(answer) != table.num_rows:
            raise ExpressionFails(
                f"the SQL gives {len(answer)} answers for {table.num_rows} rows, wanted one for each",
                "",
                "make it an expression over one row: no function that gives or looks at several",
            )
        return answer.combine_chunks() if answer.num_chunks != 1 else answer.chunk(0)

    def _typed(self, name: str, values: pa.Array) -> pa.Array:
        kind = arrow_type_of(self.inputs[name])
        if pa.types.is_decimal(kind):
            try:
                return values.cast(pa.string()).cast(kind)
            except pa.ArrowInvalid:
                raise self._cannot_hold(name, kind) from None
        if self.inputs[name].family is Family.PADDED:
            values = without_padding(values.cast(pa.binary()))
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


def _one(kind: pa.DataType) -> pa.Array:
    """Something of a type that casts to most others."""
    if pa.types.is_binary(kind):
        return pa.array([b"1"], kind)
    if pa.types.is_temporal(kind):
        return pa.array([1]).cast(pa.int32() if kind == pa.date32() else pa.int64()).view(kind)
    if pa.types.is_boolean(kind):
        return pa.array([True])
    return pa.array(["1"]).cast(kind)


def _does_not_suit(said: str) -> RuleUnfit:
    what = f"the SQL does not suit the columns: {said}"
    return RuleUnfit(what, "", "fix the expression; ::type casts")


@dataclass(frozen=True)
class SqlMatcher:
    """`where:` as SQL."""

    sql: SqlText
    expression: Expression | None = None

    def with_shape(self, shape: TableShape) -> SqlMatcher:
        """Know the types of the columns.

        Raises:
            RuleUnfit: the table has no such column, the answer is neither true nor false, or a constant cannot be
                of the type that it is compared with.
        """
        expression = Expression.of(self.sql, shape)
        found = expression.result_type()
        if found != "BOOLEAN":
            raise RuleUnfit(
                f"the SQL gives {found}, wanted true or false",
                str(shape.table),
                "compare it with something",
            )
        expression.require_constants()
        return SqlMatcher(self.sql, expression)

    def columns(self) -> tuple[str, ...]:
        """Those that the expression names."""
        assert self.expression is not None, "with_shape comes first"
        return tuple(self.expression.inputs)

    def matches(self, values: Mapping[str, pa.Array], count: int) -> pa.Array:
        """Where the expression is true."""
        assert self.expression is not None, "with_shape comes first"
        return self.expression.compute(values, count)
