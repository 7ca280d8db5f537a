"""Changes of a table by which its rows come to hold what the source sends no row for. Pure.

ADD COLUMN … DEFAULT and ALTER COLUMN … TYPE write rows anew, or have them read otherwise, and the stream says nothing of
it: a sink that shows rows as they are now copies the table again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.schema.difference import Difference
    from penstock.schema.shape import ColumnShape, TableShape

# Of a key: rows are known by another one, which those that are there have not been sent with.
_ALWAYS = ("column_type", "primary_key")


def is_filled(column: ColumnShape, shape: TableShape) -> bool:
    """Whether rows that are older than a column have a value in it; what a rule hides of that counts as well."""
    if column.generated:
        return False  # nobody is sent those
    is_given = any(
        (
            column.default is not None,
            column.has_hidden_default,
            column.missing is not None,
            column.has_hidden_missing,
            column.identity,
            column.sequence is not None,
        )
    )
    return is_given or (column.type_kind == "d" and _has_default(column.type_id, shape))


def _has_default(type_id: int, shape: TableShape) -> bool:
    """Whether a domain brings a default, be it that of what it is made of."""
    by_id, waiting = {each.id: each for each in shape.types}, [type_id]
    met: set[int] = set()
    while waiting:
        found = by_id.get(waiting.pop())
        if found is None or found.id in met or found.kind != "domain":
            continue
        if found.default is not None or found.has_hidden_default:
            return True
        met.add(found.id)
        waiting += found.parts
    return False


def leaves_rows_behind(difference: Difference) -> bool:
    """Whether rows hold by this change of their table what nobody was sent."""
    if difference.op == "add_column":
        return difference.is_filled
    if difference.op == "column_generated":
        return difference.after is None  # from now on it is sent
    if difference.op == "replica_identity":
        both = f"{difference.before} {difference.after}"
        return "index" in both or "nothing" in both
    return difference.op in _ALWAYS
