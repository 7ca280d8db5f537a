"""What is needed to make a table like another one: plain data, whoever has read it from where.

Types, expressions and definitions are SQL text, the server's own spelling, in which each name that
is not Postgres's own has its schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from penstock.schema.shape import SequenceShape, TypeShape
    from penstock.table import TableName

TypeKind = Literal["base", "enum", "domain", "composite", "range", "multirange", "other"]
ConstraintKind = Literal["unique", "exclusion", "check"]
SequenceUse = Literal["identity", "serial", "default"]

# From the letters of the catalog.
TYPE_KINDS: dict[str, TypeKind] = {
    "b": "base",
    "c": "composite",
    "d": "domain",
    "e": "enum",
    "m": "multirange",
    "r": "range",
}
CONSTRAINT_KINDS: dict[str, ConstraintKind] = {"u": "unique", "x": "exclusion", "c": "check"}
ACTIONS = {"a": "NO ACTION", "r": "RESTRICT", "c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT"}
MATCHES = {"s": "SIMPLE", "f": "FULL", "p": "PARTIAL"}


class TypeName(NamedTuple):
    """Schema and name of a type as the catalog spells them, unquoted."""

    schema: str
    name: str


class Field(NamedTuple):
    """One field of a composite type; `type` is SQL text."""

    name: str
    type: str


@dataclass(frozen=True)
class UserType:
    """A type that is not Postgres's own, and what is needed to make it again.

    `base` (SQL text) is what a domain or a range is made over. `other` cannot be made from this:
    a base type, or the row type of a table. `extension` names the extension that brings the type.
    """

    name: TypeName
    kind: Literal["enum", "domain", "composite", "range", "other"]
    labels: tuple[str, ...] = ()
    base: str = ""
    fields: tuple[Field, ...] = ()
    extension: str | None = None


@dataclass(frozen=True)
class SequenceDescription:
    """A sequence, without what it has counted so far; `type` is SQL text."""

    name: TableName
    type: str
    start: int
    increment: int
    minimum: int
    maximum: int
    cache: int
    cycles: bool


@dataclass(frozen=True)
class ColumnDescription:
    """One column; `type` is SQL text with its modifier, `expression` that of a generated column.

    `default` is that of another one; `collation` is SQL text, where it is not the type's own.
    `sequence` is what an identity or a serial column counts with.
    """

    name: str
    type: str
    type_oid: int
    type_kind: TypeKind
    not_null: bool
    generated: str  # '' | 's' stored | 'v' virtual: such columns are not in the stream
    identity: str  # '' | 'a' always | 'd' by default
    expression: str | None = None
    sequence: SequenceDescription | None = None
    default: str | None = None
    collation: str | None = None


@dataclass(frozen=True)
class TableDescription:
    """A table, its key, and the types it needs in an order in which they can be made.

    `key_columns` are what updates and deletes are recognised by: the replica identity index where
    the table is set to one, else the primary key, else (). `primary_key` is the primary key.
    """

    name: TableName
    oid: int
    kind: str
    replica_identity: str
    columns: tuple[ColumnDescription, ...]
    key_columns: tuple[str, ...]
    primary_key: tuple[str, ...]
    user_types: tuple[UserType, ...]
    types: tuple[TypeShape, ...] = ()  # the same as pictures, with arrays of them
    sequences: tuple[SequenceShape, ...] = ()  # that defaults name and no column owns


@dataclass(frozen=True)
class PrimaryKey:
    """The primary key as a constraint; `used_columns` are its own and those it includes."""

    name: str
    columns: tuple[str, ...]
    definition: str
    used_columns: frozenset[str]
    is_deferrable: bool = False
    has_period: bool = False  # WITHOUT OVERLAPS


@dataclass(frozen=True)
class Index:
    """An index that is no constraint's. `definition` begins after the word USING."""

    name: str
    is_unique: bool
    definition: str
    used_columns: frozenset[str]


@dataclass(frozen=True)
class Constraint:
    """A unique, exclusion or check constraint. `definition` is what follows its name."""

    name: str
    kind: ConstraintKind
    definition: str
    used_columns: frozenset[str]


@dataclass(frozen=True)
class ForeignKey:
    """A foreign key in its parts, since the table it leads to may have another name elsewhere.

    Actions and match are SQL words.
    """

    name: str
    columns: tuple[str, ...]
    referenced: TableName
    referenced_columns: tuple[str, ...]
    on_update: str = "NO ACTION"
    on_delete: str = "NO ACTION"
    on_delete_columns: tuple[str, ...] = ()
    match: str = "SIMPLE"
    is_deferrable: bool = False
    is_deferred: bool = False
    is_valid: bool = True
    is_enforced: bool = True
    has_period: bool = False


@dataclass(frozen=True)
class UsedSequence:
    """A sequence that a column counts with; `last_value` is None where the role may not see it.

    `default` is a sequence that the column's default names without owning it.
    """

    column: str
    use: SequenceUse
    sequence: SequenceDescription
    last_value: int | None
    is_called: bool


@dataclass(frozen=True)
class TableStructure:
    """Everything that is made of a table once its rows are there.

    `key_columns` is what `TableDescription` calls so. `identity_index` names the index they are
    of, where that is the replica identity's and not the primary key's.
    """

    name: TableName
    key_columns: tuple[str, ...] = ()
    primary_key: PrimaryKey | None = None
    identity_index: str | None = None
    indexes: tuple[Index, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    sequences: tuple[UsedSequence, ...] = ()
