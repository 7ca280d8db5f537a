"""Where a target's table is not what penstock makes of the source's. Pure: two pictures, and how one is mapped.

What is meant to be so has a reason: the table is somebody's own, or the sink's options say so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.schema.describe import foreign_key_of, structure_of
from penstock.schema.spelling import is_same_but_for_casts
from penstock.sinks.postgres.ddl.alter_claims import own_names
from penstock.sinks.postgres.ddl.alter_pieces import NOT_VALID, is_claim, pieces_there
from penstock.sinks.postgres.ddl.alter_types import is_wider
from penstock.sinks.postgres.ddl.structure import key_piece, one_line, pieces_of
from penstock.sinks.postgres.ddl.type_parts import other_parts
from penstock.sinks.postgres.mapping.target_shape import target_description, target_structure
from penstock.sinks.postgres.options import SchemaChanges
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from penstock.schema.description import (
        ForeignKey,
        TableDescription,
        TableStructure,
    )
    from penstock.schema.shape import (
        ColumnShape,
        SequenceShape,
        TableShape,
        TypeShape,
    )
    from penstock.sinks.postgres.ddl.structure import Piece
    from penstock.sinks.postgres.mapping.kept_names import KeptNames
    from penstock.sinks.postgres.mapping.table_mapping import TableMapping, TableMappings

# What of a column may differ; each word is in the notes on it, and distinguishes them.
TYPE, NOT_NULL, DEFAULT, EXPRESSION = "type", "NOT NULL", "default", "expression"
COLLATION, IDENTITY, SEQUENCE = "collation", "identity", "sequence"
ASPECTS = (TYPE, NOT_NULL, DEFAULT, EXPRESSION, COLLATION, IDENTITY, SEQUENCE)

_NOT_OURS = "the table is not penstock's own"
_OWN = "the target's own, which refuses no row"


@dataclass(frozen=True)
class Deviation:
    """One thing that differs. `subject` is what notes on it begin with; `aspect` which part of a column.

    `reason`: why it is meant to be so; empty, where it is not. `is_extra`: the target has more than the source.
    """

    subject: str
    what: str
    aspect: str = ""
    reason: str = ""
    is_extra: bool = False

    @property
    def line(self) -> str:
        """In one line."""
        return one_line(f"{self.subject} {self.what}")

    @property
    def is_foreign_key(self) -> bool:
        """Whether a foreign key is missing, or does not hold for every row."""
        return self.subject.startswith("foreign key ")


@dataclass(frozen=True)
class Wanted:
    """What penstock makes of a source's table. `place` says where others go."""

    target: TableName
    table_mapping: TableMapping
    description: TableDescription
    structure: TableStructure
    place: Callable[[TableName], TableName]
    is_ours: bool  # penstock has created the target's table
    with_pieces: bool  # indexes and constraints are made
    is_bare: bool = False  # it was made for its first rows, without a copy, and so without them

    @property
    def referenced(self) -> set[TableName]:
        """Where tables go that its foreign keys lead to."""
        return {self.place(key.referenced) for key in self.structure.foreign_keys}

    @property
    def subjects(self) -> set[str]:
        """Everything that notes may be about."""
        key = self.key()
        return {
            *(_column(column.name) for column in self.description.columns),
            *(_piece(piece) for piece in (*self.pieces(), *([key] if key is not None else ()))),
            *(_foreign_key(key) for key in self.structure.foreign_keys),
            *(_sequence(each) for each in self.description.sequences),
            *(_type(each) for each in self.description.types),
        }

    @property
    def columns(self) -> set[str]:
        """The names of its columns."""
        return {column.name for column in self.description.columns}

    def key(self) -> Piece | None:
        """The primary key."""
        return key_piece(self.target, self.structure, self.columns)

    def pieces(self) -> Iterator[Piece]:
        """Indexes and constraints; foreign keys are not among them."""
        yield from pieces_of(self.target, self.structure, self.columns)

    def reason_of_piece(self, *, is_claim: bool = True) -> str:
        """The same of an index, a constraint or a foreign key."""
        # A copy makes indexes of tables that are not like the source's; they do not follow later.
        reason = self.reason(is_claim=is_claim or not self.table_mapping.is_like_source)
        if self.is_bare:
            reason = reason or "the table was made when its first rows came, without a copy"
        return reason or ("" if self.with_pieces else "create_indexes is false")

    def reason(self, *, is_claim: bool) -> str:
        """Why something is as it is; `is_claim`: it is claimed of rows, and so not in every policy."""
        table_mapping = self.table_mapping
        if not self.is_ours:
            return _NOT_OURS
        if table_mapping.is_shared:
            return "rows of other tables land there, too"
        if table_mapping.policy is SchemaChanges.IGNORE:
            return "schema_changes is ignore"
        if table_mapping.policy is SchemaChanges.ADDITIVE and is_claim:
            if table_mapping.is_like_source:
                return "schema_changes is additive"
            return f"kind {table_mapping.kind.value} keeps rows that the source has not"
        return ""


def _renamed_references(
    shape: TableShape, called_now: Mapping[int, TableName]
) -> dict[TableName, TableName]:
    """What tables are called now to which foreign keys lead under the names that they had."""
    return {
        TableName(key.referenced_schema, key.referenced_name): called_now[key.referenced_id]
        for key in shape.foreign_keys
        if key.referenced_id in called_now
    }


def wanted_of(
    table_mappings: TableMappings,
    shape: TableShape,
    known: KeptNames,
    *,
    is_ours: bool,
    called_now: Mapping[int, TableName],
    is_bare: bool = False,
) -> Wanted:
    """What is made of a table; `called_now` are the names of tables by the source's oids.

    Raises:
        TargetTableUnfit: a column of penstock's own has the name of one of the source's.
    """
    table_mapping = table_mappings.of(shape.table, known.ruled_as)
    names = known.names(table_mapping)
    table_mapping = replace(
        table_mapping,
        names={name: called for name, called in names.items() if called},
        columns=known.wanted(table_mapping),
    )
    # What has no place there is not expected, nor is what cannot be computed there.
    kept = [
        column
        for column in shape.columns
        if names.get(column.name) != ""
        and not (table_mapping.columns is not None and column.generated)
    ]
    there = shape.model_copy(update={"columns": tuple(kept)})
    renamed = _renamed_references(shape, called_now)
    structure = target_structure(
        structure_of(shape), table_mapping, lambda name: table_mappings.of(renamed.get(name, name))
    )
    columns = {column.name for column in kept}
    keys = [key for key in structure.foreign_keys if columns >= set(key.columns)]
    return Wanted(
        target=known.target or table_mapping.target,
        table_mapping=table_mapping,
        description=target_description(there, table_mapping),
        structure=replace(structure, foreign_keys=tuple(keys)),
        place=lambda name: table_mappings.target(renamed.get(name, name)),
        is_ours=is_ours,
        with_pieces=table_mappings.options.create_indexes,
        is_bare=is_bare,
    )


def deviations(wanted: Wanted, found: TableShape, tables: Collection[TableName]) -> list[Deviation]:
    """What differs between what is wanted and what was found; `tables` are some that the target has."""
    found_types = {(each.schema_name, each.name): each for each in found.types}
    of_columns = [*_columns(wanted, found)]
    return [
        *of_columns,
        *_pieces(wanted, found),
        *_foreign_keys(wanted, found, tables),
        *_types(wanted, found_types),
        *([] if any(each.aspect == DEFAULT for each in of_columns) else _sequences(wanted, found)),
    ]


def _columns(wanted: Wanted, found: TableShape) -> Iterator[Deviation]:
    there = {column.name: column for column in found.columns}
    own = own_names(wanted.table_mapping)
    for column in wanted.description.columns:
        other = there.pop(column.name, None)
        if other is None:
            is_ignored = wanted.table_mapping.policy is SchemaChanges.IGNORE
            reason = "schema_changes is ignore" if is_ignored else ""
            yield Deviation(_column(column.name), "is missing", reason=reason)
        elif column.name not in own:
            yield from _attributes(wanted, column, other)
    for name, other in there.items():
        is_filled = other.default or other.identity or other.generated or not other.not_null
        reason = "" if not is_filled else wanted.reason(is_claim=True) or _OWN
        what = "is not the source's" + ("" if is_filled else ", and must have a value")
        yield Deviation(_column(name), what, reason=reason, is_extra=True)


def _attributes(wanted: Wanted, column: ColumnShape, other: ColumnShape) -> Iterator[Deviation]:
    def differ(aspect: str, what: str, *, is_claim: bool = False, reason: str = "") -> Deviation:
        why = reason or wanted.reason(is_claim=is_claim)
        return Deviation(_column(column.name), what, aspect, why)

    if column.type != other.type:
        what = f"has type {other.type}, wanted {column.type}"
        is_wide = is_wider(column.type, other.type)
        # A table of the target's own may hold more, not less.
        if wanted.is_ours or is_wide:
            yield differ(TYPE, what, is_claim=True)
        else:
            yield Deviation(_column(column.name), what, TYPE)
    if column.not_null and not other.not_null:
        yield differ(NOT_NULL, "is not NOT NULL", is_claim=True)
    elif other.not_null and not column.not_null and column.name not in wanted.structure.key_columns:
        what = "is NOT NULL, and not so at the source"
        yield Deviation(_column(column.name), what, NOT_NULL, is_extra=True)
    if column.collation != other.collation:
        what = (
            f"has collation {other.collation or 'default'}, wanted {column.collation or 'default'}"
        )
        yield differ(COLLATION, what)
    yield from _computed(column, other, differ)


def _computed(
    column: ColumnShape, other: ColumnShape, differ: Callable[..., Deviation]
) -> Iterator[Deviation]:
    """What values come from: an expression, a sequence, a default."""
    if not _is_alike(column.expression, other.expression):
        yield differ(EXPRESSION, _against("expression", other.expression, column.expression))
    if column.generated or other.generated:
        return
    if bool(column.identity) != bool(other.identity):
        what = "is an identity column, and not so at the source"
        yield differ(IDENTITY, "is no identity column" if column.identity else what)
        return
    if column.sequence is not None:
        wrong = _counted_otherwise(column.sequence, other.sequence)
        if wrong is not None:
            yield differ(SEQUENCE, wrong)
    elif not column.identity and not _is_alike(column.default, other.default):
        yield differ(DEFAULT, _against("default", other.default, column.default))


def _counted_otherwise(wanted: SequenceShape, found: SequenceShape | None) -> str | None:
    """What is wrong about the sequence that a column counts with; None where nothing is."""
    if found is None:
        return "counts with no sequence of its own"
    # An identity of another type than its column's has Postgres's own limits here.
    is_comparable = wanted.type == found.type
    if is_comparable and _counts(wanted) != _counts(found):
        return "has a sequence that counts differently"
    return None


def _is_alike(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return one is other
    return is_same_but_for_casts(one, other)


def _against(word: str, found: str | None, wanted: str | None) -> str:
    if found is None:
        return f"lacks its {word} {wanted}"
    if wanted is None:
        return f"has {word} {found}, and none at the source"
    return f"has {word} {found}, wanted {wanted}"


def _pieces(wanted: Wanted, found: TableShape) -> Iterator[Deviation]:
    """The primary key, indexes, unique, exclusion and check constraints."""
    there = pieces_there(found)
    primary, key = found.primary_key, wanted.key()
    if primary is not None and (key is not None or not wanted.is_ours):
        del there[False, primary.name]
    if key is not None and wanted.is_ours:
        yield from _key(wanted, key, found)
    for piece in wanted.pieces():
        name = _name_there(there, piece)
        if name is None:
            yield from _missing_piece(wanted, piece, found)
        else:
            text = there.pop((piece.word == "index", name))
            yield from _piece_there(wanted, piece, found, name, text)
    for (is_index, name), text in there.items():
        is_plain = is_index and not text.startswith("UNIQUE ")
        word = "index" if is_index else "constraint"
        reason = _OWN if is_plain else wanted.reason_of_piece()
        what = f"is not the source's: {text}"
        yield Deviation(f"{word} {name}", what, reason=reason, is_extra=True)


def _reason_of(wanted: Wanted, piece: Piece) -> str:
    return wanted.reason_of_piece(is_claim=is_claim(piece))


def _missing_piece(wanted: Wanted, piece: Piece, found: TableShape) -> Iterator[Deviation]:
    if not wanted.with_pieces:
        return
    missing = wanted.columns - {column.name for column in found.columns}
    used = _used(wanted, piece) & missing
    because = f"column {min(used)} is missing" if used else ""
    reason = because or _reason_of(wanted, piece)
    yield Deviation(_piece(piece), "is missing", reason=reason)


def _piece_there(
    wanted: Wanted, piece: Piece, found: TableShape, name: str, text: str
) -> Iterator[Deviation]:
    """What the target calls `name` and defines as `text`."""
    parts = found.indexes if piece.word == "index" else found.constraints
    part = next(each for each in parts if each.name == name)
    is_unchecked = text.endswith(NOT_VALID) and not piece.definition.endswith(NOT_VALID)
    if not _is_same(text, piece.definition):
        what = f"is {text.strip()}, wanted {piece.definition}"
        yield Deviation(_piece(piece), what, reason=_reason_of(wanted, piece))
    elif is_unchecked or getattr(part, "is_valid", True) is False:
        yield Deviation(_piece(piece), "is not valid", reason=_reason_of(wanted, piece))


def _key(wanted: Wanted, key: Piece, found: TableShape) -> Iterator[Deviation]:
    primary, columns = found.primary_key, wanted.structure.key_columns
    reason = wanted.reason(is_claim=True) if wanted.table_mapping.is_like_source else ""
    if primary is None:
        yield Deviation(_piece(key), "is missing", reason=reason)
    elif found.names_of(primary.columns) != columns:
        there = ", ".join(found.names_of(primary.columns))
        what = f"has the columns ({there}), wanted ({', '.join(columns)})"
        yield Deviation(_piece(key), what, reason=reason)


def _name_there(there: Mapping[tuple[bool, str], str], piece: Piece) -> str | None:
    """What the target calls it: Postgres may have found a free name."""
    is_index = piece.word == "index"
    if (is_index, piece.name) in there:
        return piece.name
    like = [
        name
        for (kind, name), text in there.items()
        if kind == is_index and _is_same(text, piece.definition)
    ]
    return min(like, default=None)


def _is_same(one: str, other: str) -> bool:
    """Whether two definitions are the same, but for whether they hold for every row."""
    return is_same_but_for_casts(one.removesuffix(NOT_VALID), other.removesuffix(NOT_VALID))


def _used(wanted: Wanted, piece: Piece) -> frozenset[str]:
    structure = wanted.structure
    used = {each.name: each.used_columns for each in structure.constraints}
    used |= {each.name: each.used_columns for each in structure.indexes}
    return used.get(piece.name, frozenset())


def _foreign_keys(
    wanted: Wanted, found: TableShape, tables: Collection[TableName]
) -> Iterator[Deviation]:
    there = {key.name: (key, foreign_key_of(found, key)) for key in found.foreign_keys}
    for key in wanted.structure.foreign_keys:
        place = wanted.place(key.referenced)
        like = [name for name, (_, each) in there.items() if _is_like(each, key, place)]
        name = key.name if key.name in like else min(like, default=key.name)
        other = there.pop(name, None)
        what = ""
        if other is None:
            what = "is missing" if wanted.with_pieces else ""
        elif not _is_like(other[1], key, place):
            what = "is another one at the source"
        elif key.is_valid and key.is_enforced and not other[0].is_valid:
            what = "is not valid"
        if what:
            reason = _reason_of_foreign_key(wanted, key, tables)
            yield Deviation(_foreign_key(key), what, reason=reason)
    for name in there:
        reason = wanted.reason_of_piece()
        what = "is not the source's"
        yield Deviation(f"foreign key {name}", what, reason=reason, is_extra=True)


def _reason_of_foreign_key(wanted: Wanted, key: ForeignKey, tables: Collection[TableName]) -> str:
    reason, place = wanted.reason_of_piece(), wanted.place(key.referenced)
    if key.has_period:
        return reason or "a key over a period is not carried over"
    if place not in tables:
        return reason or f"the target has no table {place}"
    return reason


def _is_like(found: ForeignKey, wanted: ForeignKey, place: TableName) -> bool:
    same = replace(found, name=wanted.name, referenced=place, is_valid=wanted.is_valid)
    return same == replace(wanted, referenced=place) and found.referenced == place


def _types(wanted: Wanted, found: Mapping[tuple[str, str], TypeShape]) -> Iterator[Deviation]:
    """Types of columns that are what they are called, and are made otherwise."""
    for each in wanted.description.types:
        other = found.get((each.schema_name, each.name))
        if other is None or each.is_array or each.extension or each.kind == "other":
            continue  # that it is missing is said of the column
        labels = [label.name for label in other.labels]
        lacking = [label.name for label in each.labels if label.name not in labels]
        if not _is_made_alike(each, other):
            yield Deviation(_type(each), "is made otherwise at the source")
            continue
        if lacking:
            yield Deviation(_type(each), f"lacks the labels {', '.join(lacking)}")
        for part in other_parts(each, other):
            yield Deviation(_type(each), part.what, reason=wanted.reason(is_claim=part.is_claim))


def _is_made_alike(wanted: TypeShape, found: TypeShape) -> bool:
    """Whether the one holds all that the other does, but for labels; `other_parts` has the rest."""
    fields, others = ([(each.name, each.type) for each in one.fields] for one in (wanted, found))
    is_held = wanted.base == found.base or is_wider(wanted.base, found.base)
    return wanted.kind == found.kind and fields == others and is_held


def _sequences(wanted: Wanted, found: TableShape) -> Iterator[Deviation]:
    there = {(each.schema_name, each.name): each for each in found.sequences}
    reason = wanted.reason(is_claim=False)
    defaults = [column.default or "" for column in wanted.description.columns]
    for each in wanted.description.sequences:
        if not any(each.name in default for default in defaults):
            continue  # the default of a column that is not delivered names it
        other = there.get((each.schema_name, each.name))
        if other is None:
            yield Deviation(_sequence(each), "is named by no default here", reason=reason)
        elif each.model_dump(exclude={"id"}) != other.model_dump(exclude={"id"}):
            yield Deviation(_sequence(each), "counts differently", reason=reason)


def _counts(sequence: SequenceShape) -> tuple[int | bool, ...]:
    return (
        sequence.start,
        sequence.increment,
        sequence.minimum,
        sequence.maximum,
        sequence.cache,
        sequence.cycles,
    )


def _column(name: str) -> str:
    return f"column {name}"


def _piece(piece: Piece) -> str:
    return f"{piece.word} {piece.name}"


def _foreign_key(key: ForeignKey) -> str:
    return f"foreign key {key.name}"


def _sequence(each: SequenceShape) -> str:
    return f"sequence {each.schema_name}.{each.name}"


def _type(each: TypeShape) -> str:
    return f"type {each.title}"
