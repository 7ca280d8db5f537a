"""What is needed to make a table like another one: plain data, whoever has read it from where.

Types, expressions and definitions are SQL text, the server's own spelling, in which each name that
is not Postgres's own has its schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from penstock.schema.shape import ColumnShape, SequenceShape, TypeShape
    from penstock.table import TableName

ConstraintKind = Literal["unique", "exclusion", "check"]
SequenceUse = Literal["identity", "serial", "default"]

# From the letters of the catalog.
CONSTRAINT_KINDS: dict[str, ConstraintKind] = {"u": "unique", "x": "exclusion", "c": "check"}
ACTIONS = {"a": "NO ACTION", "r": "RESTRICT", "c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT"}
MATCHES = {"s": "SIMPLE", "f": "FULL", "p": "PARTIAL"}


@dataclass(frozen=True)
class TableDescription:
    """What a table is made of before its rows come: like the source's `name`, or as a sink wants it.

    It may have columns of penstock's own, also in its key, which no id at the source stands for.
    """

    name: TableName
    columns: tuple[ColumnShape, ...]
    key_columns: tuple[str, ...]
    types: tuple[TypeShape, ...] = ()
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
    sequence: SequenceShape
    last_value: int | None
    is_called: bool


@dataclass(frozen=True)
class TableStructure:
    """Everything that is made of a table once its rows are there.

    `key_columns` are what updates and deletes are recognised by. `identity_index` names the index they are
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
