"""Values that come with a table's shape, not with a row: what is done to a column's values is done to them, too.

ADD COLUMN … DEFAULT has the source write no row: older rows hold a value that only the shape has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.schema.shape import ColumnShape, TableShape


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


def without_defaults(shape: TableShape, type_ids: Iterable[int]) -> TableShape:
    """The same of domains: a table with types of columns whose values are modified, and what those need."""
    by_id, waiting = {each.id: each for each in shape.types}, [*type_ids]
    met: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number in by_id and number not in met:
            met.add(number)
            waiting += by_id[number].parts
    hidden = {number for number in met if by_id[number].default is not None}
    if not hidden:
        return shape
    update = {"default": None, "has_hidden_default": True}
    types = (each.model_copy(update=update) if each.id in hidden else each for each in shape.types)
    return shape.model_copy(update={"types": tuple(types)})
