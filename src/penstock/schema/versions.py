"""Versions of a source's schemas: numbered in the order of commits, reported as differences. Pure.

What a statement has done is known where the stream is read; so is the order of commits. So versions are
counted there: nobody's transaction has to wait for a number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.schema.shape import FORMAT, REFRESH, VersionWritten, as_content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.lsn import Lsn
    from penstock.schema.past_shapes import PastShapes
    from penstock.schema.shape import SchemaChange, TableShape
    from penstock.table import TableName

_LISTS = ("tables", "types", "sequences")


class SchemaVersions:
    """Counts. `numbered` is how far each schema was counted, where the past shapes do not have it."""

    def __init__(
        self,
        past_shapes: PastShapes,
        follows: Callable[[TableName], bool],
        numbered: Mapping[str, int],
    ) -> None:
        self._past_shapes = past_shapes
        self._follows = follows
        self._numbered = numbered

    def after(
        self,
        changes: Sequence[SchemaChange],
        before: Mapping[int, TableShape],
        known: Mapping[int, TableShape],
        commit_lsn: Lsn,
    ) -> list[str]:
        """The documents of the versions that a transaction leads to; the same when it comes again."""
        if not changes:
            return []
        again = self._past_shapes.versions_at(commit_lsn)
        if again is not None:
            return [as_content(each) for each in again]
        last = self._past_shapes.last_versions()
        followed = {
            shape.schema_name
            for shapes in (before, known)
            for shape in shapes.values()
            if self._follows(shape.table)
        }
        return [
            as_content(
                VersionWritten(
                    format=FORMAT,
                    schema_name=name,
                    version=max(last.get(name, 0), self._numbered.get(name, 0)) + 1,
                )
            )
            for name in sorted(touched_schemas(changes, before) & followed)
        ]


def touched_schemas(changes: Iterable[SchemaChange], before: Mapping[int, TableShape]) -> set[str]:
    """The schemas in which changes have left something different."""
    names: set[str] = set()
    for change in changes:
        gone = (*change.dropped_tables, *change.dropped_types, *change.dropped_sequences)
        names |= {each.schema_name for each in change.tables}
        names |= {each.schema_name for each in change.types}
        names |= {each.schema_name for each in change.sequences}
        names |= {each.schema_name for each in gone}
        names |= {each.name for each in change.schemas}
        names |= {each.name for each in change.dropped_schemas}
        ids = {each.id for each in change.tables} | {each.id for each in change.dropped_tables}
        names |= {before[each].schema_name for each in ids & before.keys()}
    return names - {""}


def difference_of(schema: str, changes: Sequence[SchemaChange]) -> tuple[dict[str, Any], bool]:
    """What a transaction has changed of one schema, as JSON; and whether it is all that the schema has.

    Things that are not in the schema any more are listed by their ids, under `gone`.
    """
    document: dict[str, Any] = {"format": FORMAT}
    for kind in _LISTS:
        now: dict[int, Any] = {}
        gone: set[int] = set()
        for change in changes:
            for each in getattr(change, kind):
                now.pop(each.id, None)
                if each.schema_name == schema:
                    now[each.id] = each
                else:
                    gone.add(each.id)
            for each in getattr(change, f"dropped_{kind}"):
                now.pop(each.id, None)
                gone.add(each.id)
        document[kind] = [
            each.model_dump(mode="json", exclude_defaults=True) for each in now.values()
        ]
        if gone - set(now):
            document.setdefault("gone", {})[kind] = sorted(gone - set(now))
    return document, all(change.tag == REFRESH for change in changes)


def schemas_of(shapes: Iterable[TableShape]) -> dict[str, dict[str, Any]]:
    """What schemas hold, by their names, in the form of `whole_of`: tables, and the types and sequences that they need."""
    found: dict[str, dict[str, dict[int, Any]]] = {}
    for shape in shapes:
        parts = (("tables", [shape]), ("types", shape.types), ("sequences", shape.sequences))
        for kind, things in parts:
            for each in things:
                own = found.setdefault(each.schema_name, {kind: {} for kind in _LISTS})
                own[kind][each.id] = each.model_dump(mode="json", exclude_defaults=True)
    return {
        schema: whole_of([({kind: list(own[kind].values()) for kind in _LISTS}, True)])
        for schema, own in found.items()
        if own["tables"]
    }


NO_TABLES: dict[str, Any] = {"format": FORMAT, **{kind: [] for kind in _LISTS}}
"""A schema in which a sink has no table, or has none left."""


def whole_of(differences: Iterable[tuple[dict[str, Any], bool]]) -> dict[str, Any]:
    """A schema as it was after the last of these, oldest first; the first is the whole of it."""
    found: dict[str, dict[int, Any]] = {kind: {} for kind in _LISTS}
    for document, is_whole in differences:
        for kind, things in found.items():
            if is_whole:
                things.clear()
            for number in document.get("gone", {}).get(kind, ()):
                things.pop(number, None)
            things.update({one["id"]: one for one in document.get(kind, ())})
    return {
        "format": FORMAT,
        **{
            kind: sorted(things.values(), key=lambda one: str(one["name"]).encode())
            for kind, things in found.items()
        },
    }
