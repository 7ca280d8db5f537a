"""Which things of two pictures are the same, and whether they stayed as they were. Pure.

Things are matched by the ids that they keep when they are renamed, and by name where an id is not
known. A constraint or an index that was made anew under its name, as Postgres does when a type
changes, is the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.schema.spelling import is_same_but_for_names, modifiers_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.schema.shape import ColumnShape, ForeignKeyShape, TableShape

FIRST_USER_ID = 16384  # types below are Postgres's own: nobody renames them


class _Identified(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...


_Thing = TypeVar("_Thing", bound=_Identified)
Pair = tuple[_Thing | None, _Thing | None]


def match_by_id(before: Sequence[_Thing], after: Sequence[_Thing]) -> list[Pair[_Thing]]:
    """Which is which: those that are gone, then the others in their order after the change."""
    by_id = {each.id: each for each in before if each.id}
    by_name = {each.name: each for each in before if not each.id}
    unknown = {each.name: each for each in before}
    pairs: list[Pair[_Thing]] = []
    found: set[str] = set()
    for each in after:
        other = by_id.get(each.id) if each.id else unknown.get(each.name)
        other = other if other is not None else by_name.get(each.name)
        pairs.append((other, each))
        if other is not None:
            found.add(other.name)
    return [*((each, None) for each in before if each.name not in found), *pairs]


def match_by_id_or_name(before: Sequence[_Thing], after: Sequence[_Thing]) -> list[Pair[_Thing]]:
    """The same for what Postgres makes anew now and then: what has the name is the same thing."""
    pairs = match_by_id(before, after)
    gone = {each.name: each for each, other in pairs if each is not None and other is None}
    matched: list[Pair[_Thing]] = []
    for each, other in pairs:
        if each is None and other is not None and other.name in gone:
            matched.append((gone.pop(other.name), other))
        else:
            matched.append((each, other))
    left = set(gone)
    return [(a, b) for a, b in matched if b is not None or (a is not None and a.name in left)]


def renamed_within(before: TableShape, after: TableShape) -> dict[str, str]:
    """Names of columns and types that expressions spell anew."""
    renamed: dict[str, str] = {}
    for each, other in match_by_id(before.types, after.types):
        if each is not None and other is not None:
            renamed[each.name] = other.name
            renamed[each.schema_name] = other.schema_name
    for was, now in match_by_id(before.columns, after.columns):
        if was is not None and now is not None:
            renamed[was.name] = now.name
    return {name: other for name, other in renamed.items() if name != other}


def is_same_type(before: ColumnShape, after: ColumnShape) -> bool:
    """Whether a column kept its type, which may have been renamed.

    A type that was made anew under its old name is another one.
    """
    if min(before.type_id, after.type_id) < FIRST_USER_ID:
        return before.type == after.type
    is_same = before.type_id == after.type_id
    return is_same and modifiers_of(before.type) == modifiers_of(after.type)


def is_same_text(before: str | None, after: str | None, renamed: Mapping[str, str]) -> bool:
    """Whether an expression stayed as it was, but for what is called differently now."""
    if before is None or after is None:
        return before is after
    return before == after or is_same_but_for_names(before, after, renamed)


def is_same_foreign_key(before: ForeignKeyShape, after: ForeignKeyShape) -> bool:
    """Whether two of one table do the same; what they lead to may have been renamed."""
    same = {"name", "id", "referenced_id", "referenced_schema", "referenced_name"}
    same |= {"referenced_columns"} if before.id == after.id else set()
    old, new = before.model_dump(exclude=same), after.model_dump(exclude=same)
    return old == new and _leads_to(before) == _leads_to(after)


def _leads_to(key: ForeignKeyShape) -> Any:
    return key.referenced_id or (key.referenced_schema, key.referenced_name)


def is_stale(shape: TableShape, known: TableShape) -> bool:
    """Whether a picture of a table lacks, or has otherwise, what was known of it.

    How types, defaults and definitions are spelled may change with the names of other things; and
    there may be new indexes.
    """
    if {each.id for each in known.indexes} - {each.id for each in shape.indexes}:
        return True
    return _parts(shape) != _parts(known)


def _parts(shape: TableShape) -> tuple[Any, ...]:
    spelled = {"type", "default", "expression", "collation", "missing", "sequence"}
    spelled |= {"has_hidden_default", "has_hidden_missing"}
    return (
        shape.name,
        shape.replica_identity,
        [each.model_dump(exclude=spelled) for each in shape.columns],
        {(each.id, each.name) for each in shape.constraints},
        {(each.id, each.name, each.is_valid) for each in shape.foreign_keys},
    )
