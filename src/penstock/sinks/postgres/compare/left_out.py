"""Expressions of the source's tables that a sink would leave out, reported before anything is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.errors import ExpressionLeftOut, PenstockError
from penstock.schema.describe import structure_of
from penstock.sinks.postgres.connect import connect_target
from penstock.sinks.postgres.ddl.structure import pieces_of
from penstock.sinks.postgres.expressions.expressions import (
    NO_COLUMNS,
    UNREADABLE,
    Expression,
    Scope,
    refused_expressions,
    scope_of_columns,
)
from penstock.sinks.postgres.expressions.node_tree import FIRST_USER_OID
from penstock.sinks.postgres.expressions.sql_text import UnreadableTextError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from penstock.schema.shape import TableShape
    from penstock.sinks.postgres.mapping.table_mapping import TableMappings

    Connection = psycopg.Connection[Any]

_MISSING_TYPES = "SELECT t FROM unnest(%s::text[]) AS t WHERE to_regtype(t) IS NULL"


@dataclass(frozen=True)
class LeftOut:
    """Expressions of one table that are not taken over: what has them, and why."""

    shape: TableShape
    parts: dict[str, str]

    @property
    def finding(self) -> ExpressionLeftOut:
        """What `check` says of it."""
        return ExpressionLeftOut(
            "not taken over: " + "; ".join(f"{what} ({why})" for what, why in self.parts.items()),
            str(self.shape.table),
            "nothing, if the target can do without; else name the functions in allow_functions of the sink",
        )


def expressions_left_out(
    table_mappings: TableMappings, shapes: Collection[TableShape]
) -> list[LeftOut]:
    """Those of each table that has any. What the target cannot read yet is not among them."""
    try:
        with connect_target(table_mappings.options.url, "penstock check") as connection:
            return _left_out(connection, table_mappings, shapes)
    except (psycopg.Error, PenstockError):
        return []  # whether it can be asked is another finding's concern


def _left_out(
    connection: Connection, table_mappings: TableMappings, shapes: Collection[TableShape]
) -> list[LeftOut]:
    missing = _missing_types(connection, shapes)
    wanted: list[tuple[Scope, Expression]] = []
    owners: list[tuple[TableShape, str]] = []
    for shape in shapes:
        for scope, what, expression in _expressions(shape, missing, table_mappings):
            wanted.append((scope, expression))
            owners.append((shape, what))
    found: dict[int, LeftOut] = {}
    refused = refused_expressions(connection, table_mappings.options.expression_rules, wanted)
    for place, why in sorted(refused.items()):
        shape, what = owners[place]
        if not why.startswith(UNREADABLE):
            found.setdefault(shape.id, LeftOut(shape, {})).parts.setdefault(what, why)
    return list(found.values())


def default_of(column: str) -> str:
    """What the default of a column is called among the parts."""
    return f"default of {column}"


def _missing_types(connection: Connection, shapes: Collection[TableShape]) -> set[str]:
    types = {
        column.type
        for shape in shapes
        for column in shape.columns
        if column.type_id >= FIRST_USER_OID
    }
    return {row[0] for row in connection.execute(_MISSING_TYPES, (list(types),))}


def _expressions(
    shape: TableShape, missing: set[str], table_mappings: TableMappings
) -> Iterator[tuple[Scope, str, Expression]]:
    columns = [
        (column.name, sql.SQL("text" if column.type in missing else column.type))
        for column in shape.columns
    ]
    scope = scope_of_columns(shape.table, columns)
    for column in shape.columns:
        if column.generated and column.expression:
            yield scope, f"column {column.name}", Expression("generated", column.expression)
        elif column.default is not None and column.sequence is None and not column.generated:
            yield NO_COLUMNS, default_of(column.name), Expression("default", column.default)
    is_like_source = table_mappings.of(shape.table).is_like_source
    if table_mappings.options.create_indexes and is_like_source:
        for place, expression in _expressions_of_pieces(shape):
            yield scope, place, expression


def _expressions_of_pieces(shape: TableShape) -> Iterator[tuple[str, Expression]]:
    names = {column.name for column in shape.columns}
    for piece in pieces_of(shape.table, structure_of(shape), names):
        try:
            expressions = piece.expressions
        except UnreadableTextError:
            continue
        for each in expressions:
            yield f"{piece.word} {piece.name}", each
