"""What a statement means for tables that it has not locked, and so could not describe. Pure.

Names and types stand in the pictures of other tables too: in those whose foreign keys lead to a table
that was renamed, in those with a column of a type that was altered. At the source only the order of
commits describes such a table as it is then; here it is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.schema.match import FIRST_USER_ID, match_by_id
from penstock.schema.shape import FieldShape
from penstock.schema.spelling import modifiers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.schema.shape import (
        ColumnShape,
        ForeignKeyShape,
        Gone,
        IndexShape,
        SchemaChange,
        SequenceShape,
        TableShape,
        TypeShape,
    )
    from penstock.schema.wire import (
        Reported,
        ReportedComment,
        ReportedIndex,
        ReportedSequence,
        RowType,
    )

    LookUp = Callable[[int], TableShape | None]


def settle(reported: Reported, known: Mapping[int, TableShape], look_up: LookUp) -> SchemaChange:
    """The change with every table whose shape differs after it, given the shapes of all before.

    `look_up` reads a table as it is now: for the definition of an index whose table nobody had locked,
    for a type that no table had, or a table that nobody has described so far.
    """
    others = _Others(known, {shape.id for shape in reported.change.tables}, look_up)
    others.drop_indexes(reported.dropped_indexes)
    for index in reported.indexes:
        others.take_index(index, is_there=reported.change.tag.startswith("ALTER "))
    for comment in reported.comments:
        others.take_comment(comment)
    renamed = {shape.id: shape for shape in reported.change.tables}
    for moved in reported.moved_tables:
        update = {"schema_name": moved.schema_name, "name": moved.name}
        shape = others.update(moved.id, **update)
        if shape is not None:
            renamed[moved.id] = shape
    others.take_types({each.id: each for each in reported.change.types})
    others.take_row_types(reported.row_types, {shape.id: shape for shape in reported.change.tables})
    others.take_sequences(
        reported.column_sequences, {each.id: each for each in reported.change.sequences}
    )
    others.take_names(renamed)
    types = tuple(each for each in reported.change.types if not each.is_array)
    tables = (*reported.change.tables, *others.changed())
    sequences = (*reported.change.sequences, *others.named_alone(reported.column_sequences))
    return reported.change.model_copy(
        update={"tables": tables, "types": types, "sequences": sequences}
    )


class _Others:
    """The tables that the statement has not described, and what becomes of them."""

    def __init__(
        self, known: Mapping[int, TableShape], reported: set[int], look_up: LookUp
    ) -> None:
        self._look_up = look_up
        self._before = known
        self._reported = reported
        self._after: dict[int, TableShape] = {}

    def __iter__(self) -> Iterator[TableShape]:
        shapes = [shape for oid, shape in self._before.items() if oid not in self._reported]
        return iter([self._after.get(shape.id, shape) for shape in shapes])

    def get(self, oid: int) -> TableShape | None:
        return None if oid in self._reported else self._after.get(oid, self._before.get(oid))

    def update(self, oid: int, **fields: Any) -> TableShape | None:
        shape = self.get(oid)
        if shape is not None:
            self._after[oid] = shape = shape.model_copy(update=fields)
        return shape

    def changed(self) -> list[TableShape]:
        return [shape for oid, shape in self._after.items() if shape != self._before.get(oid)]

    def _meet(self, oid: int) -> None:
        """Take a table that nobody has described so far as it is now."""
        now = None if oid in self._reported else self._look_up(oid)
        if now is not None:
            self._after[oid] = now

    def drop_indexes(self, gone: Sequence[Gone]) -> None:
        ids = {each.id for each in gone}
        # REINDEX CONCURRENTLY makes an index anew, which no event reports: it has its name, and another id.
        names = {(each.schema_name, each.name) for each in gone if each.name}
        for shape in self if gone else ():
            left = tuple(
                each
                for each in shape.indexes
                if each.id not in ids and (shape.schema_name, each.name) not in names
            )
            if len(left) < len(shape.indexes):
                self.update(shape.id, indexes=left)

    def take_index(self, reported: ReportedIndex, *, is_there: bool) -> None:
        """One that was made, or altered: `is_there` says that it has been there before."""
        shape = self.get(reported.table_id)
        if shape is None:
            self._meet(reported.table_id)
            return
        if reported.constraint_id is not None:
            self._rename_constraint(shape, reported)
            return
        index = self._index_as_it_is(shape, reported, is_there=is_there)
        if index is None:
            return  # dropped since, which the stream reports in its turn
        others = tuple(
            each for each in shape.indexes if each.id != index.id and each.name != index.name
        )
        self.update(shape.id, indexes=_in_order((*others, index), "name"))

    def _rename_constraint(self, shape: TableShape, reported: ReportedIndex) -> None:
        """An index that is a constraint's, which bears its name."""
        renamed = tuple(
            each.model_copy(update={"name": reported.name})
            if each.id == reported.constraint_id
            else each
            for each in shape.constraints
        )
        self.update(shape.id, constraints=_in_order(renamed, "kind", "name"))

    def _index_as_it_is(
        self, shape: TableShape, reported: ReportedIndex, *, is_there: bool
    ) -> IndexShape | None:
        """With its definition, which is reported, or known, or looked up; under the id by which it is known here."""
        known = next((each for each in shape.indexes if each.id == reported.id), None)
        definition = reported.definition or (known.definition if known is not None else None)
        if definition is None:
            now = self._look_up(reported.table_id)
            definition = _definition(now, reported.id) if now is not None else None
            known = _made_anew(shape, reported, definition, now) if is_there else None
            definition = definition or (known.definition if known is not None else None)
        if definition is None:
            return None
        number = known.id if known is not None else reported.id
        return reported.shape(definition).model_copy(update={"id": number})

    def take_comment(self, reported: ReportedComment) -> None:
        shape = self.get(reported.table_id)
        if shape is None:
            self._meet(reported.table_id)
        elif reported.column == 0:
            self.update(shape.id, comment=reported.text)
        else:
            columns = tuple(
                each.model_copy(update={"comment": reported.text})
                if each.id == reported.column
                else each
                for each in shape.columns
            )
            self.update(shape.id, columns=columns)

    def take_types(self, types: Mapping[int, TypeShape]) -> None:
        for shape in self if types else ():
            if not any(each.id in types for each in shape.types):
                continue
            self.update(
                shape.id,
                types=_in_order(self._needed(shape, types), "schema_name", "name"),
                columns=tuple(_spelled_anew(column, types) for column in shape.columns),
            )

    def _needed(self, shape: TableShape, types: Mapping[int, TypeShape]) -> tuple[TypeShape, ...]:
        """All types that a table's columns need: a type may be made of others now."""
        pool = {each.id: each for each in shape.types} | dict(types)
        found: dict[int, TypeShape] = {}
        wanted = [column.type_id for column in shape.columns]
        while wanted:
            number = wanted.pop()
            if number < FIRST_USER_ID or number in found:
                continue
            if number not in pool:
                pool |= {each.id: each for other in self._before.values() for each in other.types}
                pool |= dict(types)
            if number not in pool and (now := self._look_up(shape.id)) is not None:
                pool = {each.id: each for each in now.types} | pool
            if number in pool:
                found[number] = pool[number]
                wanted += pool[number].parts
        return tuple(found.values())

    def take_row_types(
        self, row_types: Sequence[RowType], tables: Mapping[int, TableShape]
    ) -> None:
        """The types of the rows of tables whose shape differs now."""
        fresh: dict[int, dict[str, Any]] = {}
        for row_type in row_types:
            shape = tables[row_type.table_id]
            fields = tuple(
                FieldShape(id=each.id, name=each.name, type=each.type, collation=each.collation)
                for each in shape.columns
            )
            fresh[row_type.id] = {
                "schema_name": shape.schema_name,
                "name": shape.name,
                "spelled": row_type.spelled,
                "fields": fields,
                "parts": tuple(sorted({each.type_id for each in shape.columns})),
            }
        types = {
            each.id: each.model_copy(update=fresh[each.id])
            for shape in (self if fresh else ())
            for each in shape.types
            if each.id in fresh
        }
        self.take_types(types)

    def take_sequences(
        self, owned: Sequence[ReportedSequence], free: Mapping[int, SequenceShape]
    ) -> None:
        """Those that columns own; and `free` ones, which none owns, or none any more."""
        self._take_named(owned, free)
        for each in owned:
            shape = self.get(each.table_id)
            if shape is None:
                self._meet(each.table_id)
            else:
                columns = tuple(_counting(column, each) for column in shape.columns)
                self.update(shape.id, columns=columns)
        for shape in self if free else ():
            columns = tuple(_released(column, free) for column in shape.columns)
            if columns != shape.columns:
                self.update(shape.id, columns=columns)

    def _take_named(
        self, owned: Sequence[ReportedSequence], free: Mapping[int, SequenceShape]
    ) -> None:
        """Those that defaults name and no identity or serial column owns."""
        for shape in self if owned or free else ():
            named = _named_by_defaults(shape, free)
            for each in owned:
                if self._is_counting(each):
                    named.pop(each.sequence.id, None)
                elif each.sequence.id in named:
                    named[each.sequence.id] = each.sequence
            now = tuple(free.get(number, each) for number, each in named.items())
            if now != shape.sequences:
                self.update(shape.id, sequences=_in_order(now, "schema_name", "name"))

    def named_alone(self, owned: Sequence[ReportedSequence]) -> Iterator[SequenceShape]:
        """Those that a column owns, and that are named in defaults like ones that none owns."""
        for each in owned:
            if any(each.sequence.id == named.id for shape in self for named in shape.sequences):
                yield each.sequence

    def _is_counting(self, owned: ReportedSequence) -> bool:
        """Whether the column that owns the sequence is an identity or a serial one."""
        shape = self.get(owned.table_id)
        column = shape.column(owned.column) if shape is not None else None
        return owned.kind == "i" or column is None or column.default == owned.default

    def take_names(self, tables: Mapping[int, TableShape]) -> None:
        """Let foreign keys lead to tables and columns by the names that these have now."""
        names = {}
        for oid, shape in tables.items():
            before = self._before.get(oid)
            columns = _renamed_columns(before, shape) if before is not None else {}
            if before is not None and (columns or before.table != shape.table):
                names[oid] = (shape, columns)
        for shape in self if names else ():
            if any(key.referenced_id in names for key in shape.foreign_keys):
                keys = tuple(_leading(key, names) for key in shape.foreign_keys)
                self.update(shape.id, foreign_keys=keys)


def _renamed_columns(before: TableShape, after: TableShape) -> dict[str, str]:
    return {
        was.name: now.name
        for was, now in match_by_id(before.columns, after.columns)
        if was is not None and now is not None and was.name != now.name
    }


def _leading(
    key: ForeignKeyShape, names: Mapping[int, tuple[TableShape, dict[str, str]]]
) -> ForeignKeyShape:
    if key.referenced_id not in names:
        return key
    shape, columns = names[key.referenced_id]
    return key.model_copy(
        update={
            "referenced_schema": shape.schema_name,
            "referenced_name": shape.name,
            "referenced_columns": tuple(columns.get(each, each) for each in key.referenced_columns),
        }
    )


def _spelled_anew(column: ColumnShape, types: Mapping[int, TypeShape]) -> ColumnShape:
    found = types.get(column.type_id)
    if found is None or not found.spelled:
        return column
    modifiers = "".join(modifiers_of(column.type))
    # The modifier of an array's elements stands before its brackets.
    base = found.spelled.removesuffix("[]")
    spelled = base + modifiers + found.spelled[len(base) :]
    return column.model_copy(update={"type": spelled})


def _counting(column: ColumnShape, reported: ReportedSequence) -> ColumnShape:
    had = column.sequence
    if column.id != reported.column:
        if had is not None and had.id == reported.sequence.id:
            return column.model_copy(update={"sequence": None})
        return column
    update: dict[str, Any] = {}
    if had is not None and had.id == reported.sequence.id and reported.kind == "a":
        update = {"default": reported.default}
    elif reported.kind == "a" and column.default != reported.default:
        return column
    return column.model_copy(update={**update, "sequence": reported.sequence})


def _definition(shape: TableShape, index_id: int) -> str | None:
    return next((each.definition for each in shape.indexes if each.id == index_id), None)


def _made_anew(
    shape: TableShape, reported: ReportedIndex, definition: str | None, now: TableShape | None
) -> IndexShape | None:
    """What an index was that is not known by its id: REINDEX CONCURRENTLY has made it anew, without a word.

    None where that is not certain.
    """
    alive = {each.id for each in now.indexes} if now is not None else set()
    found = [
        each
        for each in shape.indexes
        if each.id not in alive
        and definition in (None, each.definition)
        and (each.is_unique, each.columns, each.used)
        == (reported.is_unique, *_columns_of(reported))
    ]
    named = [each for each in found if each.name == reported.name] or found
    return named[0] if len(named) == 1 else None


def _columns_of(reported: ReportedIndex) -> tuple[tuple[int, ...], tuple[int, ...]]:
    index = reported.shape("")
    return index.columns, index.used


def _in_order(things: tuple[Any, ...], *keys: str) -> tuple[Any, ...]:
    # As the catalog is read: in the order of bytes, whatever the database's own is.
    return tuple(sorted(things, key=lambda one: [getattr(one, key).encode() for key in keys]))


def _released(column: ColumnShape, free: Mapping[int, SequenceShape]) -> ColumnShape:
    """A column that counts with none of these sequences any more."""
    if column.sequence is None or column.sequence.id not in free:
        return column
    return column.model_copy(update={"sequence": None})


def _named_by_defaults(
    shape: TableShape, free: Mapping[int, SequenceShape]
) -> dict[int, SequenceShape]:
    """By id; also those that columns owned and that are `free` now: the defaults still name them."""
    named = {each.id: each for each in shape.sequences}
    for column in shape.columns:
        if column.sequence is not None and column.sequence.id in free and column.default:
            named[column.sequence.id] = free[column.sequence.id]
    return named
