"""Rows of a table before and after the rules of the file, side by side. Writes nothing, anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql

from penstock.changes.cells import gather
from penstock.changes.decode import TableChanges, decode
from penstock.changes.pgoutput import DELETE, relation_of
from penstock.errors import BadValue, TableMissing
from penstock.modifiers.chain import chain_for
from penstock.modifiers.copies import ModifiedCopy
from penstock.modifiers.route import routes_of
from penstock.pipeline import describer_of, log_of
from penstock.run.ddl_transactions import tables_of
from penstock.source.connect import connect_source, source_errors
from penstock.source.ordinary import are_ordinary, refuses_views
from penstock.source.shapes import read_named_shapes
from penstock.spark.jobs import read_chunk
from penstock.table import TableName, TableRule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.changes.cells import Cells
    from penstock.config import PipelineFile
    from penstock.modifiers.chain import Chain, TableChain
    from penstock.modifiers.modifier import TableModifier

Row = dict[str, str | None]


@dataclass(frozen=True)
class Preview:
    """One change, or one row: its operation and columns as the source has them, and as the sink is given them.

    `after` is None where the sink is given nothing.
    """

    operation: str
    before: Row
    after: Row | None
    became: str = ""  # the operation at the sink, where it is another one


def preview(
    pipeline: PipelineFile, table: str, *, sink: str | None, rows: int, from_log: bool
) -> list[Preview]:
    """Some rows of a table, or the newest changes that the log has of it.

    Raises:
        BadValue: there is no such sink, or no rule for the table.
        TableMissing: the source has no such table.
        ModifierError: a rule and the table do not fit.
    """
    name = _table_of(table)
    chosen = _sink_of(pipeline, sink)
    chain = chain_for(pipeline.modifiers, chosen)
    is_moved = destination(pipeline, table, sink) is not None
    if chain is None or chain.excludes(name) or not (chain.concerns(name) or is_moved):
        said = "the sink is not given the table" if chain and chain.excludes(name) else "no rule"
        raise BadValue(
            f"{said}: there is nothing to show of {name} at sink {chosen}",
            "penstock modifiers",
            "penstock check shows the rules of each table",
        )
    if from_log:
        return _from_log(pipeline, chosen, chain, name, rows)
    return _from_table(pipeline, chain.of(name), name, rows)


def destination(pipeline: PipelineFile, table: str, sink: str | None) -> TableName | None:
    """Where a `route` sends a table; None where to one of its own name."""
    return routes_of(pipeline.modifiers, _sink_of(pipeline, sink)).of(_table_of(table))


def _table_of(text: str) -> TableName:
    rule = TableRule.parse(text)
    if rule.schema is None or rule.name is None:
        raise BadValue(f"{text} is no single table", "--table", "write schema.table")
    return TableName(rule.schema, rule.name)


def _sink_of(pipeline: PipelineFile, sink: str | None) -> str:
    if sink is None:
        return next(iter(pipeline.sinks))
    if sink not in pipeline.sinks:
        raise BadValue(
            f"{sink} is no sink, wanted {', '.join(pipeline.sinks)}", "--sink", "name one of them"
        )
    return sink


def _from_table(
    pipeline: PipelineFile, chain: TableChain, name: TableName, rows: int
) -> list[Preview]:
    url = pipeline.source.url
    with connect_source(url, "penstock preview") as connection:
        shape = read_named_shapes(connection, [name]).get(name)
        if shape is None:
            raise TableMissing("the source has no such table", str(name), "fix --table")
        bound = chain.with_shape(shape)
        copy = ModifiedCopy(bound, relation_of(shape), (), 0)
        listed = sql.SQL(", ").join(map(sql.Identifier, copy.source_columns))
        query = sql.SQL("COPY (SELECT {} FROM {} LIMIT {}) TO STDOUT").format(
            listed, sql.Identifier(*name), sql.Literal(rows)
        )
        with source_errors(url), connection.transaction(), connection.cursor() as cursor:
            if not (refuses_views(connection) or are_ordinary(connection, [name])):
                raise TableMissing("this is no table any more", str(name), "fix --table")
            with cursor.copy(query) as lines:
                block = [bytes(line) for line in lines]
    return list(_beside(copy.begin(copy.source_columns).inserts(block), bound)) if block else []


def _from_log(
    pipeline: PipelineFile, sink: str, chain: Chain, name: TableName, rows: int
) -> list[Preview]:
    log, describer = log_of(pipeline), describer_of(pipeline, sink)
    found: list[Preview] = []
    reader = log.reader(log.span().begin_lsn)
    try:
        while slices := reader.read(16 * 1024 * 1024):
            for each in slices:
                if name not in tables_of([each]):
                    continue
                shape = describer.source_shape(name, each.head.end_lsn)
                bound = chain.of(name) if shape is None else chain.of(name).with_shape(shape)
                data, lengths, transaction = read_chunk([each])
                for piece in decode(data, lengths, transaction):
                    if isinstance(piece, TableChanges) and piece.relation.table == name:
                        found += _beside(piece, bound)
                found = found[-rows:]
    finally:
        reader.close()
    return found


_WORDS = {ord("I"): "insert", ord("U"): "update", ord("D"): "delete"}


def _beside(changes: TableChanges, modifier: TableModifier) -> Iterator[Preview]:
    after = modifier.apply(changes)
    places = {
        position: place
        for place, position in enumerate(
            zip(after.positions.commit_lsn.tolist(), after.positions.ordinal.tolist(), strict=True)
        )
    }
    was, now = _Rows(changes), _Rows(after)
    for place, position in enumerate(
        zip(changes.positions.commit_lsn.tolist(), changes.positions.ordinal.tolist(), strict=True)
    ):
        operation = _WORDS[int(changes.operation[place])]
        found = places.get(position)
        if found is None:
            yield Preview(operation, was.row(place), None)
            continue
        became = _WORDS[int(after.operation[found])]
        yield Preview(
            operation, was.row(place), now.row(found), became if became != operation else ""
        )


class _Rows:
    """Rows of changes as text, new ones, or old ones of deletes."""

    def __init__(self, changes: TableChanges) -> None:
        self._changes = changes
        self._names = [column.name for column in changes.relation.columns]
        self._after = [_texts(cells) for cells in changes.after]
        self._before = [_texts(cells) for cells in changes.before]

    def row(self, place: int) -> Row:
        is_delete = int(self._changes.operation[place]) == DELETE
        columns = self._before if is_delete else self._after
        return {name: texts[place] for name, texts in zip(self._names, columns, strict=True)}


def _texts(cells: Cells) -> list[Any]:
    values = [
        None if each is None else each.decode("utf-8", "replace")
        for each in gather(cells).to_pylist()
    ]
    for place in cells.is_unchanged.nonzero()[0].tolist():
        values[place] = "(unchanged)"
    return values


def as_json(found: Preview) -> Mapping[str, Any]:
    """For machines."""
    return {
        "op": found.operation,
        "before": found.before,
        "after": found.after,
        "became": found.became or found.operation,
    }
