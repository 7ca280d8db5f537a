"""What differs between two pictures of a table, a type or a sequence. Pure.

What only follows from the renaming of something else is no difference, nor is that rows were
written anew. The differences go into documents of event sinks: their keys and words stay.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from penstock.schema.describe import foreign_key_of
from penstock.schema.difference_text import describe_difference
from penstock.schema.match import (
    is_same_foreign_key,
    is_same_text,
    is_same_type,
    match_by_id,
    match_by_id_or_name,
    renamed_within,
)
from penstock.schema.unsent import is_filled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.schema.shape import (
        ColumnShape,
        ConstraintShape,
        ForeignKeyShape,
        IndexShape,
        SequenceShape,
        TableShape,
        TypeShape,
    )

__all__ = [
    "Difference",
    "as_json",
    "compare_sequences",
    "compare_tables",
    "compare_types",
    "describe_difference",
]

Kind = Literal["table", "type", "sequence"]


@dataclass(frozen=True)
class Difference:
    """One thing that differs. `before` and `after` are JSON: text, a truth value, an object, None.

    `kind`, `schema` and `name` say of what: named as it is after the change, or was last. `part`
    is the column, constraint, index, foreign key or label in it, named in the same way. `is_filled`: of a
    column that was added, whether rows that were there have values in it.
    """

    op: str
    kind: Kind
    schema: str
    name: str
    part: str = ""
    before: Any = None
    after: Any = None
    is_filled: bool = False


def as_json(difference: Difference) -> dict[str, Any]:
    """An object of `op`, `kind`, `name`, `before`, `after`; `schema` and `part` where there are any."""
    described: dict[str, Any] = {"op": difference.op, "kind": difference.kind}
    if difference.schema:
        described["schema"] = difference.schema
    described["name"] = difference.name
    if difference.part:
        described["part"] = difference.part
    return {**described, "before": difference.before, "after": difference.after}


def compare_tables(before: TableShape | None, after: TableShape | None) -> tuple[Difference, ...]:
    """What has become of a table; None stands for one that is not there."""
    if before is None or after is None:
        shape = after or before
        if shape is None:
            return ()
        op, described = ("drop_table", {}) if after is None else ("create_table", _table(after))
        return (Difference(op, "table", shape.schema_name, shape.name, after=described or None),)
    return tuple(_table_differences(before, after))


def _table(shape: TableShape) -> dict[str, Any]:
    primary = shape.primary_key
    return {
        "columns": [_column(column) for column in shape.columns],
        "primary_key": list(shape.names_of(primary.columns)) if primary is not None else [],
    }


def _table_differences(before: TableShape, after: TableShape) -> Iterator[Difference]:
    def differ(op: str, part: str = "", was: Any = None, now: Any = None) -> Difference:
        return Difference(op, "table", after.schema_name, after.name, part, was, now)

    renamed = renamed_within(before, after)
    if before.table != after.table:
        yield differ("rename_table", "", str(before.table), str(after.table))
    for was, now in match_by_id(before.columns, after.columns):
        if now is None:
            assert was is not None
            yield differ("drop_column", was.name, _column(was))
        elif was is None:
            added = differ("add_column", now.name, None, _column(now))
            yield replace(added, is_filled=is_filled(now, after))
        else:
            for op, old, new in _column_differences(was, now, renamed):
                yield differ(op, now.name, old, new)
    if before.comment != after.comment:
        yield differ("table_comment", "", before.comment, after.comment)
    old_key, new_key = _primary(before), _primary(after)
    if _key_ids(before) != _key_ids(after):
        yield differ("primary_key", "", old_key, new_key)
    pieces = itertools.chain(
        _constraint_differences(before, after, renamed),
        _index_differences(before, after, renamed),
        _foreign_key_differences(before, after),
    )
    for op, name, old, new in pieces:
        yield differ(op, name, old, new)
    if _identity(before) != _identity(after):
        yield differ("replica_identity", "", _identity(before), _identity(after))


_Aspect = tuple[str, Any, Any]
_Named = tuple[str, str, Any, Any]


def _column(column: ColumnShape) -> dict[str, Any]:
    """What a person would write of it; what it has not is left out."""
    described: dict[str, Any] = {"type": column.type, "not_null": column.not_null}
    if column.default is not None:
        described["default"] = column.default
    if column.identity:
        described["identity"] = _IDENTITIES[column.identity]
    if column.generated:
        described["generated"] = column.expression
    if column.collation is not None:
        described["collation"] = column.collation
    return {"name": column.name, **described}


_IDENTITIES = {"": None, "a": "always", "d": "by default"}


def _column_differences(
    before: ColumnShape, after: ColumnShape, renamed: Mapping[str, str]
) -> Iterator[_Aspect]:
    if before.name != after.name:
        yield "rename_column", before.name, after.name
    if not is_same_type(before, after):
        yield "column_type", before.type, after.type
    if before.collation != after.collation:
        yield "column_collation", before.collation, after.collation
    if before.not_null != after.not_null:
        yield "column_not_null", before.not_null, after.not_null
    yield from _value_differences(before, after, renamed)
    if before.comment != after.comment:
        yield "column_comment", before.comment, after.comment


def _value_differences(
    before: ColumnShape, after: ColumnShape, renamed: Mapping[str, str]
) -> Iterator[_Aspect]:
    """What values come from where a statement gives none."""
    is_counting = before.sequence is not None and after.sequence is not None
    if not is_counting and not is_same_text(before.default, after.default, renamed):
        yield "column_default", before.default, after.default
    if before.identity != after.identity:
        yield "column_identity", _IDENTITIES[before.identity], _IDENTITIES[after.identity]
    if not is_same_text(before.expression, after.expression, renamed):
        yield "column_generated", before.expression, after.expression
    if before.sequence is not None and after.sequence is not None:
        old, new = _sequence(before.sequence), _sequence(after.sequence)
        if old != new:
            yield "column_sequence", old, new


def _primary(shape: TableShape) -> dict[str, Any] | None:
    key = shape.primary_key
    return None if key is None else {"name": key.name, "columns": list(shape.names_of(key.columns))}


def _key_ids(shape: TableShape) -> tuple[Any, ...]:
    """By ids: a key does not change by its columns being renamed."""
    key = shape.primary_key
    return () if key is None else (key.columns, key.has_period, key.is_deferrable)


def _identity(shape: TableShape) -> str:
    if shape.replica_identity != "i":
        return {"d": "default", "f": "full", "n": "nothing"}[shape.replica_identity]
    wanted = shape.identity_index_id
    named = [each.name for each in shape.indexes if each.id == wanted]
    named += [each.name for each in shape.constraints if each.index_id == wanted]
    return f"index {named[0]}" if named else "index"


def _constraint_differences(
    before: TableShape, after: TableShape, renamed: Mapping[str, str]
) -> Iterator[_Named]:
    for was, now in match_by_id_or_name(before.constraints, after.constraints):
        one = now or was
        assert one is not None
        is_key = one.kind == "p"
        if was is not None and now is not None:
            if was.name != now.name:
                yield "rename_constraint", now.name, was.name, now.name
            if not is_key and not is_same_text(was.definition, now.definition, renamed):
                yield "change_constraint", now.name, was.definition, now.definition
        elif not is_key:
            op = "drop_constraint" if now is None else "add_constraint"
            yield op, one.name, _definition(was), _definition(now)


def _definition(one: ConstraintShape | None) -> str | None:
    return None if one is None else one.definition


def _index_differences(
    before: TableShape, after: TableShape, renamed: Mapping[str, str]
) -> Iterator[_Named]:
    for was, now in match_by_id_or_name(before.indexes, after.indexes):
        one = now or was
        assert one is not None
        if was is not None and now is not None:
            if was.name != now.name:
                yield "rename_index", now.name, was.name, now.name
            is_same = is_same_text(was.definition, now.definition, renamed)
            if not is_same or was.is_unique != now.is_unique or was.is_valid != now.is_valid:
                yield "change_index", now.name, _index(was), _index(now)
        else:
            op = "drop_index" if now is None else "add_index"
            yield op, one.name, _index(was), _index(now)


def _index(one: IndexShape | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {"is_unique": one.is_unique, "definition": one.definition, "is_valid": one.is_valid}


def _foreign_key_differences(before: TableShape, after: TableShape) -> Iterator[_Named]:
    for was, now in match_by_id_or_name(before.foreign_keys, after.foreign_keys):
        one = now or was
        assert one is not None
        if was is not None and now is not None:
            if was.name != now.name:
                yield "rename_foreign_key", now.name, was.name, now.name
            if not is_same_foreign_key(was, now):
                old, new = _foreign_key(before, was), _foreign_key(after, now)
                yield "change_foreign_key", now.name, old, new
        elif was is not None:
            yield "drop_foreign_key", one.name, _foreign_key(before, was), None
        else:
            yield "add_foreign_key", one.name, None, _foreign_key(after, one)


def _foreign_key(shape: TableShape, key: ForeignKeyShape) -> dict[str, Any]:
    described = foreign_key_of(shape, key)
    return {
        "columns": list(described.columns),
        "references": str(described.referenced),
        "referenced_columns": list(described.referenced_columns),
        "on_update": described.on_update,
        "on_delete": described.on_delete,
        "is_deferrable": described.is_deferrable,
        "is_valid": described.is_valid,
    }


def compare_types(before: TypeShape | None, after: TypeShape | None) -> tuple[Difference, ...]:
    """What has become of a type; None stands for one that is not there."""
    if before is None or after is None:
        shape = after or before
        if shape is None:
            return ()
        op, described = ("drop_type", None) if after is None else ("create_type", _type(shape))
        return (Difference(op, "type", shape.schema_name, shape.name, after=described),)
    return tuple(_type_differences(before, after))


def _type_differences(before: TypeShape, after: TypeShape) -> Iterator[Difference]:
    def differ(op: str, part: str = "", was: Any = None, now: Any = None) -> Difference:
        return Difference(op, "type", after.schema_name, after.name, part, was, now)

    if before.title != after.title:
        yield differ("rename_type", "", before.title, after.title)
    names = [label.name for label in after.labels]
    for place, (was, now) in enumerate(
        pair for pair in match_by_id(before.labels, after.labels) if pair[1] is not None
    ):
        assert now is not None
        if was is None:
            follows = names[place - 1] if place else None
            precedes = names[place + 1] if place + 1 < len(names) else None
            yield differ("add_label", now.name, None, {"follows": follows, "precedes": precedes})
        elif was.name != now.name:
            yield differ("rename_label", now.name, was.name, now.name)
    old, new = _type(before), _type(after)
    if {**old, "labels": None} != {**new, "labels": None}:
        yield differ("change_type", "", old, new)


def _type(shape: TypeShape) -> dict[str, Any]:
    described: dict[str, Any] = {"kind": shape.kind}
    if shape.kind == "enum":
        described["labels"] = [label.name for label in shape.labels]
    elif shape.kind == "composite":
        described["fields"] = [
            field.model_dump(include={"name", "type", "collation"}, exclude_none=True)
            for field in shape.fields
        ]
    elif shape.base:
        described["base"] = shape.base
        # Not the default: columns may have the domain whose values, and defaults, a rule modifies.
        more = {"collation", "multirange", "not_null"}
        described |= shape.model_dump(include=more, exclude_defaults=True)
    return described


def compare_sequences(
    before: SequenceShape | None, after: SequenceShape | None
) -> tuple[Difference, ...]:
    """What has become of a sequence that belongs to no column."""
    shape = after or before
    if shape is None:
        return ()

    def differ(op: str, was: Any = None, now: Any = None) -> Difference:
        return Difference(op, "sequence", shape.schema_name, shape.name, "", was, now)

    if before is None or after is None:
        return (
            differ("drop_sequence")
            if after is None
            else differ("create_sequence", None, _counts(shape)),
        )
    found: list[Difference] = []
    old, new = _sequence(before), _sequence(after)
    if old["name"] != new["name"]:
        found.append(differ("rename_sequence", old["name"], new["name"]))
    if _counts(before) != _counts(after):
        found.append(differ("change_sequence", _counts(before), _counts(after)))
    return tuple(found)


def _sequence(shape: SequenceShape) -> dict[str, Any]:
    return {"name": f"{shape.schema_name}.{shape.name}", **_counts(shape)}


def _counts(shape: SequenceShape) -> dict[str, Any]:
    return shape.model_dump(exclude={"id", "schema_name", "name"})
