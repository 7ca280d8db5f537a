"""What is made at the target of a source's table: with its own columns and key, as its table mapping says.

Where the target has rows that the source has not (of other sources, of other times), what the source
claims of its rows need not hold: unique values, foreign keys, checks, what counts up.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import TargetTableUnfit
from penstock.schema.describe import description_of
from penstock.schema.shape import ColumnShape
from penstock.sinks.postgres.ddl.user_types import needed_types

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.schema.description import TableDescription, TableStructure
    from penstock.schema.shape import TableShape
    from penstock.sinks.postgres.mapping.table_mapping import TableMapping
    from penstock.table import TableName

_log = logging.getLogger(__name__)

# The bounds of time: a row that was valid from the beginning, and is the current version.
FIRST_INSTANT = "1900-01-01 00:00:00+00"
LAST_INSTANT = "9999-01-01 00:00:00+00"

_TEXT_OID, _BOOLEAN_OID, _TIMESTAMPTZ_OID = 25, 16, 1184


def target_description(shape: TableShape, table_mapping: TableMapping) -> TableDescription:
    """The table to make.

    Raises:
        TargetTableUnfit: a column of penstock's own has the name of one of the source's.
    """
    columns = _delivered(shape, table_mapping)
    before, after = _own_columns(table_mapping)
    taken = {column.name for column in columns}
    for own in (*before, *after):
        if own.name in taken:
            raise TargetTableUnfit(
                f"the source has a column {own.name}, which penstock is to fill at the target",
                str(shape.table),
                "choose another name: source_id_column, history_columns",
            )
    return replace(
        description_of(shape),
        columns=(*before, *columns, *after),
        key_columns=_key(shape.key_columns, table_mapping),
        types=needed_types(shape.types, (column.type_id for column in columns)),
        sequences=shape.sequences if table_mapping.is_like_source else (),
    )


def _delivered(shape: TableShape, table_mapping: TableMapping) -> list[ColumnShape]:
    """The source's columns that the target gets, as they are called and made there."""
    wanted, columns = table_mapping.columns, list(shape.columns)
    if wanted is not None:
        columns = [column for column in columns if column.name in wanted]
        # Their expressions speak of columns that may have another name here, or none.
        for column in columns:
            if column.generated:
                _log.warning(
                    "%s: column %s is computed at the source, and not delivered",
                    shape.table,
                    column.name,
                )
        columns = [column for column in columns if not column.generated]
    if not table_mapping.is_like_source:
        columns = [_uncounted(column) for column in columns]
    called = ((column, _called(column.name, table_mapping)) for column in columns)
    return [column.model_copy(update={"name": name}) for column, name in called]


def target_structure(
    structure: TableStructure,
    table_mapping: TableMapping,
    table_mapping_of: Callable[[TableName], TableMapping],
) -> TableStructure:
    """What is made of the table once its rows are there."""
    if table_mapping.is_like_source and not table_mapping.names:
        return _with_keys_to_alike(structure, table_mapping_of)
    # Columns of these names are not the source's own of that name.
    renamed = set(table_mapping.names) | (
        set(table_mapping.names.values()) - set(table_mapping.columns or ())
    )
    kept = replace(
        structure,
        key_columns=_key(structure.key_columns, table_mapping),
        primary_key=None,
        identity_index=None,
        indexes=tuple(each for each in structure.indexes if not each.used_columns & renamed),
        constraints=tuple(
            each for each in structure.constraints if not each.used_columns & renamed
        ),
        foreign_keys=tuple(k for k in structure.foreign_keys if not renamed & set(k.columns)),
        sequences=tuple(each for each in structure.sequences if each.column not in renamed),
    )
    if table_mapping.is_like_source:
        return _with_keys_to_alike(kept, table_mapping_of)
    plain = tuple(each for each in kept.indexes if not each.is_unique)
    return replace(kept, indexes=plain, constraints=(), foreign_keys=(), sequences=())


def _with_keys_to_alike(
    structure: TableStructure, table_mapping_of: Callable[[TableName], TableMapping]
) -> TableStructure:
    """Foreign keys lead to tables that have exactly the source's rows."""
    kept = [
        each
        for each in structure.foreign_keys
        if (other := table_mapping_of(each.referenced)).is_like_source
        and not set(other.names) & set(each.referenced_columns)
    ]
    return replace(structure, foreign_keys=tuple(kept))


def _called(name: str, table_mapping: TableMapping) -> str:
    return table_mapping.names.get(name, name)


def _key(columns: tuple[str, ...], table_mapping: TableMapping) -> tuple[str, ...]:
    return target_key(tuple(_called(name, table_mapping) for name in columns), table_mapping)


def target_key(key: tuple[str, ...], table_mapping: TableMapping) -> tuple[str, ...]:
    """The source's key, within the source, and until when: one probe finds the current version."""
    if not key:
        return ()
    if table_mapping.source_id_column is not None:
        key = (table_mapping.source_id_column, *key)
    return (*key, table_mapping.history.end) if table_mapping.history is not None else key


def _uncounted(column: ColumnShape) -> ColumnShape:
    """A column whose values only ever come from elsewhere."""
    default = column.default or ""
    if column.sequence is not None or column.identity or "nextval(" in default:
        default = ""
    return column.model_copy(update={"identity": "", "sequence": None, "default": default or None})


def _own_columns(
    table_mapping: TableMapping,
) -> tuple[tuple[ColumnShape, ...], tuple[ColumnShape, ...]]:
    """Columns that no column of the source fills, in front of the others and behind."""
    before: tuple[ColumnShape, ...] = ()
    if table_mapping.source_id_column is not None:
        before = (_own(table_mapping.source_id_column, "text", _TEXT_OID, None),)
    if table_mapping.history is None:
        return before, ()
    names = table_mapping.history
    first, last = (f"'{each}'::timestamptz" for each in (FIRST_INSTANT, LAST_INSTANT))
    return before, (
        _own(names.start, "timestamp with time zone", _TIMESTAMPTZ_OID, first),
        _own(names.end, "timestamp with time zone", _TIMESTAMPTZ_OID, last),
        _own(names.deleted, "boolean", _BOOLEAN_OID, "false"),
    )


def _own(name: str, kind: str, type_oid: int, default: str | None) -> ColumnShape:
    return ColumnShape(
        id=0,  # none of the source's
        name=name,
        type=kind,
        type_id=type_oid,
        type_kind="b",
        not_null=True,
        default=default,
    )
