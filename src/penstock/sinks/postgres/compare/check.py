"""What `check` says of a pipeline that was started: where source and target differ in their tables.

A few queries for all tables. What is meant to be so is said with its reason; what the sink has yet to
come to is said to be on its way.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg.rows import namedtuple_row

from penstock.errors import PenstockError, StructureDiffers, TargetTableUnfit
from penstock.schema.catalog import read_shapes
from penstock.schema.difference import compare_tables, compare_types
from penstock.schema.match import match_by_id
from penstock.schema.shape import read_tables
from penstock.sinks.postgres.compare.deviations import (
    DEFAULT,
    Deviation,
    Wanted,
    deviations,
    wanted_of,
)
from penstock.sinks.postgres.compare.left_out import default_of
from penstock.sinks.postgres.connect import connect_target, target_errors
from penstock.sinks.postgres.mapping.kept_names import KeptNames
from penstock.sinks.postgres.state.objects import has_objects
from penstock.sinks.tables import TableState
from penstock.table import TableName, as_columns
from penstock.text import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import psycopg

    from penstock.schema.shape import TableShape
    from penstock.sinks.postgres.compare.left_out import LeftOut
    from penstock.sinks.postgres.mapping.table_mapping import TableMappings
    from penstock.sinks.postgres.options import PostgresOptions

    Connection = psycopg.Connection[Any]

_LISTED = """
SELECT schema_name, table_name, state, made_by_us, target_oid, coalesce(source_oid, 0) AS source_oid,
       mapping, foreign_keys_due, filled, copied_at
FROM penstock.tables WHERE pipeline = %s AND source = %s
"""
_STORED = """
SELECT schema_name, table_name, shape FROM penstock.tables
WHERE pipeline = %s AND source = %s AND shape IS NOT NULL
  AND (schema_name, table_name) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
"""
# Tables of schemas that rows go to, into which no table that is followed delivers.
_OTHERS = """
SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%s) AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND c.relpersistence <> 't' AND EXISTS (SELECT FROM penstock.tables WHERE pipeline = %s)
  AND c.oid::int8 NOT IN (SELECT target_oid FROM penstock.tables
                          WHERE state <> 'removed' AND target_oid IS NOT NULL)
"""

_NAMED = 5
_UNDER_WAY = "; the source has changed the table since what this sink has delivered, so this may be on its way"
_DO = (
    "nothing, while the sink is behind; else make at the target what is missing, or"
    " penstock tables PIPELINE.yml resync {table} tries it again"
)


class Said(NamedTuple):
    """One finding; `is_meant`: nothing is wrong with it."""

    error: StructureDiffers
    is_meant: bool


@dataclass
class _Target:
    """What one source has at one target. `listed` are rows of penstock.tables, by the source's oids."""

    table_mappings: TableMappings
    copies_first: bool
    listed: dict[int, Any]
    by_name: dict[TableName, Any]
    tables: dict[TableName, TableShape] = field(default_factory=dict)

    def row(self, shape: TableShape) -> Any:
        found = self.listed.get(shape.id)
        if found is not None:
            return found
        named = self.by_name.get(shape.table)
        return named if named is not None and named.source_oid == 0 else None

    def wanted(self, shape: TableShape, *, is_ours: bool) -> Wanted:
        """What is made of a table that is listed."""
        row = self.row(shape)
        return wanted_of(
            self.table_mappings,
            shape,
            KeptNames.read(row.mapping),
            is_ours=is_ours,
            called_now={},
            is_bare=not self.copies_first and row.copied_at is None,
        )


def compare_structures(
    table_mappings: TableMappings,
    shapes: Sequence[TableShape],
    left_out: Collection[LeftOut],
    *,
    copies_first: bool = True,
) -> list[Said]:
    """Findings on the tables of one source, as `shapes` has them now; none before the first start.

    `left_out` are expressions on which there are findings already. `copies_first`: tables are copied before
    they are followed.
    """
    known = {each.shape.id: set(each.parts) for each in left_out}
    dsn = table_mappings.options.url
    try:
        with connect_target(dsn, "penstock check") as connection, target_errors(dsn):
            if not has_objects(connection):
                return []
            return _compare(connection, table_mappings, shapes, known, copies_first)
    except PenstockError as error:
        return [_not_compared(error, str(dsn))]


def other_tables(
    options: PostgresOptions, pipeline: str, places: Collection[TableName]
) -> list[Said]:
    """Tables of the target, in schemas that rows go to, that no table which is followed goes to.

    `places` is where tables go; none are reported before the first start.
    """
    schemas = sorted({place.schema for place in places})
    try:
        with (
            connect_target(options.url, "penstock check") as connection,
            target_errors(options.url),
        ):
            if not has_objects(connection):
                return []
            rows = connection.execute(_OTHERS, (schemas, pipeline)).fetchall()
    except PenstockError as error:
        return [_not_compared(error, str(options.url))]
    others = sorted({TableName(schema, name) for schema, name in rows} - set(places))
    if not others:
        return []
    what = "at the target are tables that no followed table goes to; penstock leaves them alone"
    return [Said(StructureDiffers(what, _list(others), "nothing"), is_meant=True)]


def _list(tables: Sequence[TableName]) -> str:
    few = ", ".join(printable(str(table)) for table in tables[:_NAMED])
    return f"{few} and {len(tables) - _NAMED} more" if len(tables) > _NAMED else few


def _not_compared(error: PenstockError, place: str) -> Said:
    what = f"tables of source and target could not be compared: {error.what}"
    return Said(StructureDiffers(what, place, error.do), is_meant=False)


def _compare(
    connection: Connection,
    table_mappings: TableMappings,
    shapes: Sequence[TableShape],
    left_out: Mapping[int, set[str]],
    copies_first: bool,
) -> list[Said]:
    target = _read_target(connection, table_mappings, copies_first)
    if target is None:
        return []
    wanted, waiting = _sort(target, shapes)
    places = {each.target for each in wanted.values()}
    places |= {place for each in wanted.values() for place in each.referenced}
    target.tables = read_shapes(connection, sorted(places), str(table_mappings.options.url))
    found = {
        shape.table: _differing(target, shape, wanted[shape.table], left_out.get(shape.id, set()))
        for shape in shapes
        if shape.table in wanted
    }
    differing = [shape for shape in shapes if found.get(shape.table)]
    behind = _behind(connection, target, differing)
    said = [
        one
        for shape in differing
        for one in _say(shape.table, wanted[shape.table], found[shape.table], shape.id in behind)
    ]
    return said + [_waiting(tables, why) for why, tables in waiting.items()]


def _read_target(
    connection: Connection, table_mappings: TableMappings, copies_first: bool
) -> _Target | None:
    """What penstock.tables lists of the source; None where that is nothing."""
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        rows: list[Any] = cursor.execute(_LISTED, table_mappings.owner).fetchall()
    if not rows:
        return None
    kept = [row for row in rows if row.state != TableState.REMOVED]
    return _Target(
        table_mappings,
        copies_first,
        {row.source_oid: row for row in kept if row.source_oid},
        {TableName(row.schema_name, row.table_name): row for row in kept},
    )


def _sort(
    target: _Target, shapes: Sequence[TableShape]
) -> tuple[dict[TableName, Wanted], dict[str, list[TableName]]]:
    """What is made of tables that are to be compared; and those that are not yet, by the reason."""
    wanted: dict[TableName, Wanted] = {}
    waiting: dict[str, list[TableName]] = defaultdict(list)
    for shape in shapes:
        why = _waits(target, shape)
        if why:
            waiting[why].append(shape.table)
            continue
        each = _wanted(target, shape)
        if each is not None:
            wanted[shape.table] = each
    return wanted, waiting


def _waits(target: _Target, shape: TableShape) -> str:
    """Why a table is not to be compared yet, or ""."""
    row = target.row(shape)
    if row is None:
        return "not at the target yet: tables that are new come with their copy or their first rows"
    if (row.schema_name, row.table_name) != shape.table:
        return "renamed at the source since what this sink has delivered"
    if row.state not in (TableState.STREAMING, TableState.CATCHING_UP, TableState.FAILED) or (
        row.state == TableState.FAILED and not row.filled
    ):
        return "not compared, since they wait to be copied or are being copied"
    return ""


def _wanted(target: _Target, shape: TableShape) -> Wanted | None:
    try:
        return target.wanted(shape, is_ours=target.row(shape).made_by_us)
    except TargetTableUnfit:
        return None  # it has stopped, and says why


def _differing(
    target: _Target, shape: TableShape, wanted: Wanted, left_out: set[str]
) -> list[Deviation]:
    row, found = target.row(shape), target.tables.get(wanted.target)
    if found is None:
        return [Deviation(f"table {wanted.target}", "is missing")]
    if row.made_by_us and row.target_oid not in (None, found.id):
        # Another one has its name by now.
        wanted = target.wanted(shape, is_ours=False)
    return [
        each
        for each in deviations(wanted, found, target.tables)
        if not _is_reported(each, left_out) and not (row.foreign_keys_due and each.is_foreign_key)
    ]


def _is_reported(each: Deviation, left_out: set[str]) -> bool:
    if each.aspect == DEFAULT:
        return default_of(each.subject.removeprefix("column ")) in left_out
    return each.subject in left_out


def _behind(connection: Connection, target: _Target, shapes: Sequence[TableShape]) -> set[int]:
    """Tables that the source has changed since the target followed them, by their ids."""
    if not shapes:
        return set()
    names = as_columns(shape.table for shape in shapes)
    stored = {
        TableName(schema, name): read_tables([document], "penstock.tables")[0]
        for schema, name, document in connection.execute(
            _STORED, (*target.table_mappings.owner, *names)
        )
    }
    return {
        shape.id
        for shape in shapes
        if shape.table in stored and _has_changed(stored[shape.table], shape)
    }


def _has_changed(before: TableShape, after: TableShape) -> bool:
    types = match_by_id(before.types, after.types)
    return bool(compare_tables(before, after)) or any(compare_types(*pair) for pair in types)


def _say(
    table: TableName, wanted: Wanted, found: Sequence[Deviation], is_behind: bool
) -> list[Said]:
    called = "" if wanted.target == table else f" (at the target {wanted.target})"
    said: list[Said] = []
    wrong = [each for each in found if not each.reason]
    if wrong:
        text = "; ".join(each.line for each in wrong)
        error = StructureDiffers(
            f"differs from the source{called}: {text}{_UNDER_WAY if is_behind else ''}",
            str(table),
            _DO.format(table=table),
        )
        said.append(Said(error, is_meant=False))
    reasons: dict[str, list[Deviation]] = defaultdict(list)
    for each in found:
        if each.reason:
            reasons[each.reason].append(each)
    for reason, some in reasons.items():
        text = "; ".join(each.line for each in some)
        what = f"differs from the source{called}, since {reason}: {text}"
        said.append(Said(StructureDiffers(what, str(table), "nothing"), is_meant=True))
    return said


def _waiting(tables: list[TableName], why: str) -> Said:
    return Said(StructureDiffers(why, _list(tables), "nothing; check again later"), is_meant=True)
