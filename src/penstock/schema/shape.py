"""Shapes of tables and types at one moment, as the source's triggers write it down: JSON, pure data.

Every thing has an id that it keeps when it is renamed, and that no other thing ever had: the oid of
a table, a type, a constraint, an index; the number of a column within its table. Types, defaults
and definitions are the server's own spelling, in which each name that is not Postgres's own has
its schema.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from penstock.errors import SchemaUnreadable
from penstock.table import TableName

FORMAT = 1

# What the logical message of a statement begins with.
CHANGE_PREFIX = "penstock.schema"
# The tag of a change that describes how things stand, without anything having changed.
REFRESH = "REFRESH"


class Shape(BaseModel):
    """A part of the picture. What a newer penstock adds to it is ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class SequenceShape(Shape):
    """What a sequence counts like; not where it stands."""

    id: int
    schema_name: str
    name: str
    type: str
    start: int
    increment: int
    minimum: int
    maximum: int
    cache: int
    cycles: bool

    @property
    def qualified(self) -> TableName:
        """Its name with its schema."""
        return TableName(self.schema_name, self.name)


class ColumnShape(Shape):
    """One column. `missing` is what rows hold that are older than the column, where that is known.

    A rule may hide either: `has_hidden_default` and `has_hidden_missing` say that there is one.
    `expression` is that of a generated column, `default` that of another one.
    """

    id: int
    name: str
    type: str
    type_id: int
    type_kind: str  # pg_type.typtype
    type_modifier: int = -1
    not_null: bool
    default: str | None = None
    missing: str | None = None
    has_hidden_default: bool = False
    has_hidden_missing: bool = False
    identity: str = ""  # '' | 'a' always | 'd' by default
    generated: str = ""  # '' | 's' stored | 'v' virtual
    expression: str | None = None
    collation: str | None = None  # where it is not the type's own
    comment: str | None = None
    sequence: SequenceShape | None = None  # what an identity or a serial column counts with


class ConstraintShape(Shape):
    """A primary key, or a unique, exclusion or check constraint. `columns` are ids.

    `used` are the ids of all columns without which it cannot be. `definition` follows its name.
    """

    id: int
    name: str
    kind: str  # 'p' | 'u' | 'x' | 'c'
    definition: str
    columns: tuple[int, ...] = ()
    used: tuple[int, ...] = ()
    index_id: int = 0
    has_period: bool = False
    is_deferrable: bool = False


class ForeignKeyShape(Shape):
    """A foreign key in its parts: the table it leads to may be elsewhere at a target."""

    id: int
    name: str
    columns: tuple[int, ...]
    referenced_id: int
    referenced_schema: str
    referenced_name: str
    referenced_columns: tuple[str, ...]
    on_update: str  # pg_constraint.confupdtype and so on
    on_delete: str
    on_delete_columns: tuple[int, ...] = ()
    match: str = "s"
    is_deferrable: bool = False
    is_deferred: bool = False
    is_valid: bool = True
    is_enforced: bool = True
    has_period: bool = False


class IndexShape(Shape):
    """An index that is no constraint's. `definition` begins after the word USING."""

    id: int
    name: str
    is_unique: bool
    definition: str
    columns: tuple[int, ...] = ()  # its key columns; an expression is none
    used: tuple[int, ...] = ()
    is_valid: bool = True
    is_immediate: bool = True


class LabelShape(Shape):
    """One label of an enum."""

    id: int
    name: str


class FieldShape(Shape):
    """One field of a composite type; its id is its number within the type, 0 where it is not known."""

    name: str
    type: str
    id: int = 0
    collation: str | None = None  # where it is not the type's own


class TypeShape(Shape):
    """A type that is not Postgres's own. A rule may hide its default: `has_hidden_default` says so."""

    id: int
    schema_name: str
    name: str
    kind: str  # 'enum' | 'domain' | 'composite' | 'range' | 'other': nobody can make that from this
    labels: tuple[LabelShape, ...] = ()
    base: str = ""
    fields: tuple[FieldShape, ...] = ()
    extension: str | None = None
    is_array: bool = False
    collation: str | None = None  # of a domain or a range, where it is not the base's
    multirange: str | None = None  # a range's, where it is not called as Postgres calls one
    not_null: bool = False  # of a domain, as the default
    default: str | None = None
    has_hidden_default: bool = False
    parts: tuple[int, ...] = ()  # ids of the types it is made of
    spelled: str = ""  # as a column's type, without a modifier

    @property
    def qualified(self) -> TableName:
        """Its name with its schema; types have a namespace of their own."""
        return TableName(self.schema_name, self.name)

    @property
    def title(self) -> str:
        """Schema and name, as a person reads them."""
        return f"{self.schema_name}.{self.name}"


class RowKey(NamedTuple):
    """What updates and deletes are recognised by: columns by their ids, and the index's name."""

    columns: tuple[int, ...]
    name: str
    is_primary: bool


class TableShape(Shape):
    """One table: a plain one, or the root of a partitioned one."""

    id: int
    schema_name: str
    name: str
    kind: str = "r"  # 'r' | 'p'
    replica_identity: str = "d"  # 'd' | 'i' | 'f' | 'n'
    identity_index_id: int = 0  # of replica identity 'i'
    comment: str | None = None
    filenode: int = 0  # another one: every row was written anew
    born_in: tuple[str, ...] = ()  # publications that have had it since before its first row
    first_entries: tuple[int, ...] = ()  # its entries in publications at that moment
    columns: tuple[ColumnShape, ...] = ()
    constraints: tuple[ConstraintShape, ...] = ()  # the primary key among them
    foreign_keys: tuple[ForeignKeyShape, ...] = ()
    indexes: tuple[IndexShape, ...] = ()
    types: tuple[TypeShape, ...] = ()  # all that its columns need, and what those need
    sequences: tuple[SequenceShape, ...] = ()  # that its defaults name and no column owns

    @property
    def table(self) -> TableName:
        """Its name."""
        return TableName(self.schema_name, self.name)

    @property
    def primary_key(self) -> ConstraintShape | None:
        """The primary key."""
        return next((each for each in self.constraints if each.kind == "p"), None)

    @property
    def row_key(self) -> RowKey | None:
        """The replica identity index where the table is set to one, else the primary key.

        A deferrable key is none: it may hold a value twice between two rows of one UPDATE.
        """
        primary = self.primary_key
        if self.replica_identity == "i" and self.identity_index_id:
            wanted = self.identity_index_id
            for index in self.indexes:
                if index.id == wanted and index.is_valid and index.is_immediate:
                    return RowKey(index.columns, index.name, is_primary=False)
            for each in self.constraints:
                if each.index_id == wanted and each.kind == "u" and not each.is_deferrable:
                    return RowKey(each.columns, each.name, is_primary=False)
        if primary is not None and not primary.is_deferrable:
            return RowKey(primary.columns, primary.name, is_primary=True)
        return None

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of that key by name; () where there is none."""
        key = self.row_key
        return self.names_of(key.columns) if key is not None else ()

    def column(self, number: int) -> ColumnShape | None:
        """The column of that id."""
        return next((column for column in self.columns if column.id == number), None)

    def names_of(self, numbers: tuple[int, ...]) -> tuple[str, ...]:
        """The names of columns by their ids; those that are not there are left out."""
        names = {column.id: column.name for column in self.columns}
        return tuple(names[number] for number in numbers if number in names)


class Gone(Shape):
    """Something that was dropped."""

    id: int
    schema_name: str = ""
    name: str = ""


class PartitionShape(Shape):
    """A partition that was made, or attached, and the table that it is part of."""

    id: int
    schema_name: str
    name: str
    root_id: int
    is_left: bool = False  # it has been detached or dropped since
    came_filled: bool = False  # it had rows when it was attached


class NamespaceShape(Shape):
    """A schema of the database."""

    id: int
    name: str


class SchemaChange(Shape):
    """What one statement has done: everything that it touched, as it is after it."""

    format: int
    tag: str = ""  # ALTER TABLE, say
    tables: tuple[TableShape, ...] = ()
    types: tuple[TypeShape, ...] = ()
    sequences: tuple[SequenceShape, ...] = ()  # those that belong to no column
    schemas: tuple[NamespaceShape, ...] = ()
    partitions: tuple[PartitionShape, ...] = ()
    dropped_tables: tuple[Gone, ...] = ()
    dropped_types: tuple[Gone, ...] = ()
    dropped_sequences: tuple[Gone, ...] = ()
    dropped_schemas: tuple[Gone, ...] = ()
    # The statement computed values of its own, in an expression that is not in the catalog.
    has_using: bool = False
    # It was read under a snapshot that may be older than what others have changed since.
    has_old_snapshot: bool = False
    # Of triggers of an older penstock: ids of tables that the statement had not locked, so that others may
    # have changed them before it committed.
    loose: tuple[int, ...] = ()
    # Columns went and others came, and nobody can know whether they are the same.
    is_unsure: bool = False


class VersionWritten(Shape):
    """Which version of a schema a transaction's changes led to."""

    format: int
    schema_name: str
    version: int


def as_content(document: SchemaChange | VersionWritten) -> str:
    """The document as the log and the past shapes hold it: without what goes without saying."""
    return document.model_dump_json(exclude_defaults=True)


_Document = TypeVar("_Document", SchemaChange, VersionWritten)


def read_change(content: str | bytes, where: str) -> SchemaChange:
    """The document of one statement.

    Raises:
        SchemaUnreadable: it is none, or of a format that this version does not know.
    """
    return _read(SchemaChange, content, where)


def read_version(content: str | bytes, where: str) -> VersionWritten:
    """The document that ends a transaction.

    Raises:
        SchemaUnreadable: it is none, or of a format that this version does not know.
    """
    return _read(VersionWritten, content, where)


def read_tables(documents: Any, where: str) -> tuple[TableShape, ...]:
    """Tables as a query or a file gives them: parsed JSON.

    Raises:
        SchemaUnreadable: they are none.
    """
    try:
        return tuple(TableShape.model_validate(one, strict=False) for one in documents)
    except (ValidationError, TypeError) as error:
        raise _unreadable(error, where) from None


def read_schema(document: Any, where: str) -> SchemaChange:
    """A whole schema, as a version in penstock.schema_log has it: parsed JSON.

    Raises:
        SchemaUnreadable: it is none.
    """
    try:
        return SchemaChange.model_validate({"format": FORMAT, **document}, strict=False)
    except (ValidationError, TypeError) as error:
        raise _unreadable(error, where) from None


def _read(model: type[_Document], content: str | bytes, where: str) -> _Document:
    try:
        found = model.model_validate_json(content)
    except ValidationError as error:
        raise _unreadable(error, where) from None
    if found.format != FORMAT:
        raise SchemaUnreadable(
            f"a schema document of format {found.format}, wanted {FORMAT}",
            where,
            "run the penstock whose init installed the triggers, or init again with this one",
        )
    return found


def _unreadable(error: ValidationError | TypeError, where: str) -> SchemaUnreadable:
    # Where in the document, never what stands there: defaults and comments are somebody's own words.
    place = "it is no list"
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        at = ".".join(map(str, first["loc"])) or "the document"
        place = f"{at}: {first['type']}"
    return SchemaUnreadable(
        f"a schema document does not parse ({place})",
        where,
        "see who else writes to penstock.schema_log or emits penstock's messages;"
        " penstock init puts the triggers right",
    )
