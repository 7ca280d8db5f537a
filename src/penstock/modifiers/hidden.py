"""Values that come with a table's shape, not with a row: what is done to a column's values is done to them, too.

ADD COLUMN … DEFAULT has the source write no row: older rows hold a value that only the shape has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.schema.shape import ColumnShape


class NotKnown(Exception):
    """What becomes of a value, only a whole row says, or a failure of its own."""


def without_values(column: ColumnShape, modified: Callable[[str], str | None]) -> ColumnShape:
    """A column whose values are modified, as the sink sees it.

    Its default goes: it would show a value as it was. One that counts holds none.

    Args:
        modified: what becomes of a value, Postgres's text; raises `NotKnown`.
    """
    update: dict[str, Any] = {}
    if column.default is not None and column.sequence is None and not column.generated:
        update = {"default": None, "has_hidden_default": True}
    if column.missing is not None:
        try:
            update["missing"] = modified(column.missing)
        except NotKnown:
            update |= {"missing": None, "has_hidden_missing": True}
    return column.model_copy(update=update) if update else column
