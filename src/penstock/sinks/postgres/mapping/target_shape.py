"""What is made at the target of a source's table: with its own columns and key, as its landing says.

Where the target has rows that the source has not (of other sources, of other times), what the source
claims of its rows need not hold: unique values, foreign keys, checks, what counts up.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import TargetTableUnfit
from penstock.schema.describe import types_in_order
from penstock.schema.description import ColumnDescription
from penstock.sinks.postgres.ddl.user_types import needed_types

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.schema.description import TableDescription, TableStructure
    from penstock.sinks.postgres.mapping.table_mapping import Landing
    from penstock.table import TableName

_log = logging.getLogger(__name__)

# The bounds of time: a row that was so from the beginning, and is so still.
FIRST_INSTANT = "1900-01-01 00:00:00+00"
LAST_INSTANT = "9999-01-01 00:00:00+00"

_TEXT_OID, _BOOLEAN_OID, _TIMESTAMPTZ_OID = 25, 16, 1184


def landed_description(description: TableDescription, landing: Landing) -> TableDescription:
    """The table to make.

    Raises:
        TargetTableUnfit: a column of penstock's own has the name of one of the source's.
    """
    columns = _delivered(description, landing)
    before, after = _own_columns(landing)
    taken = {column.name for column in columns}
    for own in (*before, *after):
        if own.name in taken:
            raise TargetTableUnfit(
                f"the source has a column {own.name}, which penstock is to fill at the target",
                str(description.name),
                "choose another name: source_id_column, history_columns",
            )
    types = needed_types(description.types, (column.type_oid for column in columns))
    return replace(
        description,
        types=types,
        sequences=description.sequences if landing.is_like_source else (),
        user_types=types_in_order(types),
        columns=(*before, *columns, *after),
        key_columns=_key(description.key_columns, landing),
        primary_key=_key(description.primary_key, landing),
    )


def _delivered(description: TableDescription, landing: Landing) -> list[ColumnDescription]:
    """The source's columns that the target gets, as they are called and made there."""
    wanted, columns = landing.columns, list(description.columns)
    if wanted is not None:
        columns = [column for column in columns if column.name in wanted]
        # Their expressions speak of columns that may have another name here, or none.
        for column in columns:
            if column.generated:
                _log.warning(
                    "%s: column %s is computed at the source, and not delivered",
                    description.name,
                    column.name,
                )
        columns = [column for column in columns if not column.generated]
    if not landing.is_like_source:
        columns = [_uncounted(column) for column in columns]
    return [replace(column, name=_called(column.name, landing)) for column in columns]


def landed_structure(
    structure: TableStructure, landing: Landing, landing_of: Callable[[TableName], Landing]
) -> TableStructure:
    """What is made of the table once its rows are there."""
    if landing.is_like_source and not landing.names:
        return _with_keys_to_alike(structure, landing_of)
    # Columns of these names are not the source's own of that name.
    renamed = set(landing.names) | (set(landing.names.values()) - set(landing.columns or ()))
    indexes = [each for each in structure.indexes if not each.used_columns & renamed]
    constraints = [each for each in structure.constraints if not each.used_columns & renamed]
    if landing.is_like_source:
        kept = [each for each in structure.foreign_keys if not renamed & set(each.columns)]
        return _with_keys_to_alike(
            replace(
                structure,
                key_columns=_key(structure.key_columns, landing),
                primary_key=None,
                identity_index=None,
                indexes=tuple(indexes),
                constraints=tuple(constraints),
                foreign_keys=tuple(kept),
                sequences=tuple(s for s in structure.sequences if s.column not in renamed),
            ),
            landing_of,
        )
    return replace(
        structure,
        key_columns=_key(structure.key_columns, landing),
        primary_key=None,
        identity_index=None,
        indexes=tuple(each for each in indexes if not each.is_unique),
        constraints=(),
        foreign_keys=(),
        sequences=(),
    )


def _with_keys_to_alike(
    structure: TableStructure, landing_of: Callable[[TableName], Landing]
) -> TableStructure:
    """Foreign keys lead to tables that have exactly the source's rows."""
    kept = [
        each
        for each in structure.foreign_keys
        if (other := landing_of(each.referenced)).is_like_source
        and not set(other.names) & set(each.referenced_columns)
    ]
    return replace(structure, foreign_keys=tuple(kept))


def _called(name: str, landing: Landing) -> str:
    return landing.names.get(name, name)


def _key(columns: tuple[str, ...], landing: Landing) -> tuple[str, ...]:
    return landed_key(tuple(_called(name, landing) for name in columns), landing)


def landed_key(key: tuple[str, ...], landing: Landing) -> tuple[str, ...]:
    """The source's key, within the source, and until when: one probe finds the row that is still so."""
    if not key:
        return ()
    if landing.source_id_column is not None:
        key = (landing.source_id_column, *key)
    return (*key, landing.history.end) if landing.history is not None else key


def _uncounted(column: ColumnDescription) -> ColumnDescription:
    """A column whose values only ever come from elsewhere."""
    default = column.default or ""
    if column.sequence is not None or column.identity or "nextval(" in default:
        default = ""
    return replace(column, identity="", sequence=None, default=default or None)


def _own_columns(
    landing: Landing,
) -> tuple[tuple[ColumnDescription, ...], tuple[ColumnDescription, ...]]:
    """Columns that no column of the source fills, in front of the others and behind."""
    before: tuple[ColumnDescription, ...] = ()
    if landing.source_id_column is not None:
        before = (_own(landing.source_id_column, "text", _TEXT_OID, None),)
    if landing.history is None:
        return before, ()
    names = landing.history
    first, last = (f"'{each}'::timestamptz" for each in (FIRST_INSTANT, LAST_INSTANT))
    return before, (
        _own(names.start, "timestamp with time zone", _TIMESTAMPTZ_OID, first),
        _own(names.end, "timestamp with time zone", _TIMESTAMPTZ_OID, last),
        _own(names.deleted, "boolean", _BOOLEAN_OID, "false"),
    )


def _own(name: str, kind: str, type_oid: int, default: str | None) -> ColumnDescription:
    return ColumnDescription(
        name=name,
        type=kind,
        type_oid=type_oid,
        type_kind="base",
        not_null=True,
        generated="",
        identity="",
        default=default,
    )
