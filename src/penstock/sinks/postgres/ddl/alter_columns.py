"""The statements by which the columns of a target's table follow those of the source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from psycopg import sql

from penstock.schema.match import is_same_text, is_same_type, renamed_within
from penstock.sinks.postgres.ddl.alter_steps import Screened, Step, alter_table
from penstock.sinks.postgres.ddl.alter_types import depends_on_session, is_shift, is_wider, kind_of
from penstock.sinks.postgres.ddl.create import (
    becomes_text,
    collation_exists,
    counting,
    free_sequence_name,
    generated_clause,
    identity_clause,
    lacks_collation,
    next_value,
    owned_by,
    sequence_statement,
)
from penstock.sinks.postgres.ddl.structure import TAKEN
from penstock.sinks.postgres.expressions.expressions import Expression
from penstock.sinks.postgres.expressions.sql_text import enclosed
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Set

    import psycopg

    from penstock.schema.shape import ColumnShape, SequenceShape, TableShape
    from penstock.sinks.postgres.ddl.alter_claims import Claimed, Claims
    from penstock.sinks.postgres.expressions.expressions import Use

    Connection = psycopg.Connection[Any]

_SET_EXPRESSION_SINCE = 170000
_DEFAULT = sql.SQL("DEFAULT {}")

# By which column a sequence of that name is owned, and whether its default counts with it; not where
# anything else does.
_OF_COLUMN = """
SELECT a.attname, x.own > 0
FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
CROSS JOIN LATERAL (
    SELECT count(*) AS found, count(*) FILTER (WHERE (f.adrelid, f.adnum) = (a.attrelid, a.attnum)) AS own
    FROM pg_depend n LEFT JOIN pg_attrdef f ON n.classid = 'pg_attrdef'::regclass AND f.oid = n.objid
    WHERE n.refclassid = 'pg_class'::regclass AND n.refobjid = s.oid AND n.deptype = 'n') AS x
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %s
  AND d.refobjsubid > 0 AND d.deptype = 'a' AND s.relname = %s AND x.found = x.own
"""


@dataclass(frozen=True)
class _Addition:
    """A column that is to be added; `shape` is how its type, `kind`, is declared."""

    table: TableName
    column: ColumnShape
    kind: str
    shape: sql.Composed
    not_null: bool

    def statement(self, clause: sql.Composable) -> sql.Composed:
        """Adds it with what a clause says of its values."""
        return sql.SQL("ALTER TABLE {} ADD COLUMN {} {} {}{}").format(
            sql.Identifier(*self.table),
            sql.Identifier(self.column.name),
            self.shape,
            clause,
            sql.SQL(" NOT NULL" if self.not_null else ""),
        )

    @property
    def plain(self) -> Step:
        """Adds it with nothing but its type."""
        return Step(self.bare(sql.SQL("")))

    def bare(self, clause: sql.Composable) -> sql.Composed:
        """Adds it, and claims nothing of its values."""
        return sql.SQL("ALTER TABLE {} ADD COLUMN {} {}{}").format(
            sql.Identifier(*self.table), sql.Identifier(self.column.name), self.shape, clause
        )

    @property
    def undone(self) -> str:
        """What is noted where only that much is possible."""
        return f"column {self.column.name} goes without NOT NULL and without values in older rows"


@dataclass
class ColumnChanges:
    """What is to be done to the columns of one table; asks the target only what it has."""

    connection: Connection
    before: TableShape
    after: TableShape
    found: TableShape
    table: TableName
    claims: Claims
    is_additive: bool
    has_using: bool
    is_partial: bool  # the target has not all columns of the source
    # Types of which the target had another one of that name, and may have columns.
    replaced: Set[int] = frozenset()
    before_copy: bool = False  # rows are old, and soon replaced: nothing is claimed of them
    needs_copy: bool = False
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._renamed = renamed_within(self.before, self.after)
        can_set = self.connection.info.server_version >= _SET_EXPRESSION_SINCE
        self.remade = [] if can_set else [each for each in self.claims.kept if self._computes(each)]
        self.needs_copy = bool(self.claims.late) or (self.has_using and self._is_written_anew())

    def _is_written_anew(self) -> bool:
        """Whether the source has written every row; of a partitioned table that is not known."""
        return self.after.kind == "p" or self.before.filenode != self.after.filenode

    def _alter(self, action: str, *names: str, undone: str = "") -> Step:
        return Step(alter_table(self.table, action, *names), undone)

    def _alter_text(self, action: str, name: str, *texts: sql.Composable) -> sql.Composed:
        named = sql.SQL(action).format(sql.Identifier(name), *texts)
        return sql.SQL("ALTER TABLE {} {}").format(sql.Identifier(*self.table), named)

    def drops(self) -> Iterator[Step]:
        """Columns that are gone; what is kept of them must not stand in the way of rows."""
        for each in self.remade:
            yield self._alter("DROP COLUMN {}", each.found.name)
        for column in self.claims.dropped:
            if not self.is_additive:
                yield self._alter("DROP COLUMN {}", column.name)
            elif column.not_null and not (column.default or column.identity or column.generated):
                yield self._alter("ALTER COLUMN {} DROP NOT NULL", column.name)

    def renames(self) -> Iterator[Step]:
        """Columns that are called differently."""
        for old, new in self.claims.renames:
            yield self._alter("RENAME COLUMN {} TO {}", old, new)

    def types(self) -> Iterator[Step]:
        """Types and collations."""
        for each in self.claims.kept:
            if each in self.remade:
                continue  # it is made with its type
            is_other = not is_same_type(each.before, each.after)
            if not is_other and each.before.collation == each.after.collation:
                continue
            yield from self._follow_type(each, is_other=is_other)

    def _follow_type(self, each: Claimed, *, is_other: bool) -> Iterator[Step]:
        """`is_other`: its type was changed at the source, and not its collation alone."""
        found, kind = each.found, kind_of(self.connection, each.after, self.after.types)
        if is_other and found.type != each.before.type and is_wider(kind, found.type):
            return  # somebody's own choice, which holds all that may come
        is_replaced = each.after.type_id in self.replaced and found.type == kind
        if not is_replaced and (found.type, found.collation) == (kind, each.after.collation):
            return
        if self.is_additive and not is_wider(found.type, kind) and not is_replaced:
            self.notes.append(
                f"column {each.name} keeps its type {found.type}; at the source it is {kind}"
            )
            return
        # Of the same name, and another one: no cast leads from the one to the other.
        self.needs_copy |= is_replaced
        yield from self._change_type(each, kind, is_known=not self.has_using and not is_replaced)

    def _change_type(self, each: Claimed, kind: str, *, is_known: bool) -> Iterator[Step]:
        """`is_known`: the cast gives what the source has made of the values."""
        found, name = each.found, each.name
        if kind != each.after.type:
            self.notes.append(becomes_text(name, each.after.type))
        collate = self._collate(name, each.after.collation)
        if found.generated:
            # The target computes it anew, and allows no cast beside that.
            action = "ALTER COLUMN {} TYPE {}{}"
            yield Step(self._alter_text(action, name, sql.SQL(kind), collate))
            return
        self.needs_copy |= self._is_unsure(found.type, kind)
        # The default of the old type may have no cast; Postgres takes it away before, in one statement.
        is_kept = found.default is None or found.sequence is not None
        yield from self._cast(each, kind, collate, is_known=is_known, keeps_default=is_kept)
        if not is_kept and each.after.default is not None and each.after.sequence is None:
            yield self._set_default(name, each.after.default)

    def _cast(
        self,
        each: Claimed,
        kind: str,
        collate: sql.Composable,
        *,
        is_known: bool,
        keeps_default: bool,
    ) -> Iterator[Step]:
        """Change the type, with the values that are there."""
        found, name = each.found, each.name
        column, text = sql.Identifier(name), sql.SQL(kind)
        head = sql.SQL("" if keeps_default else "ALTER COLUMN {} DROP DEFAULT, ").format(column)

        def change(using: str, before: str = "") -> sql.Composed:
            return sql.SQL("ALTER TABLE {} {}{}ALTER COLUMN {} TYPE {}{} USING {}").format(
                sql.Identifier(*self.table),
                head,
                sql.SQL(before).format(column),
                column,
                text,
                collate,
                sql.SQL(using).format(column=column, kind=text),
            )

        if is_shift(found.type, kind):
            yield Step(change("({column} AT TIME ZONE 'UTC')::{kind}"))
        elif not is_known or self.before_copy:
            # What the source has computed is not known. A copy brings it; until then, what can be.
            nothing = Step(change("NULL::{kind}", "ALTER COLUMN {} DROP NOT NULL, "))
            by_text = Step(change("{column}::text::{kind}"), instead=(nothing,))
            yield Step(change("{column}::{kind}"), instead=(by_text,))
            if found.not_null and not self.before_copy:
                undone = f"column {name} is not NOT NULL any more"
                yield self._alter("ALTER COLUMN {} SET NOT NULL", name, undone=undone)
        else:
            yield Step(change("{column}::{kind}"))

    def _is_unsure(self, found: str, kind: str) -> bool:
        """Whether the cast here may give another value than it gave at the source."""
        return depends_on_session(found, kind) and self._is_written_anew()

    def additions(self) -> Iterator[Step]:
        """New columns, with what they hold in rows that are there. Computed ones come last."""
        columns = [*self.claims.added, *(each.after for each in self.remade)]
        for column in sorted(columns, key=lambda column: bool(column.generated)):
            yield from self._add(column)

    def shared_additions(self, of_source: sql.Composable | None) -> Iterator[Step]:
        """New columns of a table that other sources deliver to: their rows must not get our values.

        `of_source` is the condition for our rows, as `t`; None where there is none.
        """
        new = [column for column in self.claims.added if not column.generated]
        for column in new:
            _, shape = self._kind_to_add(column)
            # A domain's default is for our rows; Postgres keeps this one, for later rows of others too.
            none = sql.SQL(" DEFAULT NULL" if column.type_kind == "d" else "")
            yield Step(self._alter_text("ADD COLUMN {} {}{}", column.name, shape, none))
        for column in (*new, *self.claims.met):
            if column.missing is not None and of_source is not None:
                yield self._fill(column, sql.Literal(column.missing), of_source)
            elif column.missing is not None or self._is_filled_anew(column):
                self.needs_copy = True
            elif column in self.claims.met and of_source is not None:
                # Instead of what a column of that name held before.
                yield self._fill(column, sql.SQL("NULL"), of_source)

    def _fill(self, column: ColumnShape, value: sql.Composable, of_source: sql.Composable) -> Step:
        """Give our rows one value."""
        name = sql.Identifier(column.name)
        fill = sql.SQL("UPDATE {} t SET {} = {} WHERE {}").format(
            sql.Identifier(*self.table), name, value, of_source
        )
        if column in self.claims.met:
            # As text: json, xml and point have no equality.
            differs = sql.SQL(" AND t.{}::text IS DISTINCT FROM {}").format(name, value)
            fill = sql.Composed([fill, differs])
        return Step(fill)

    def _is_filled_anew(self, column: ColumnShape) -> bool:
        """Whether the source has put values into its rows that are not known here."""
        has_default = column.default is not None or column.has_hidden_default
        has_values = has_default or bool(column.identity) or column.sequence is not None
        is_written = self._is_written_anew() and (has_values or column.type_kind == "d")
        return is_written or column.has_hidden_missing

    def _kind_to_add(self, column: ColumnShape) -> tuple[str, sql.Composed]:
        """The type, and how the column is declared with it."""
        kind = kind_of(self.connection, column, self.after.types)
        if kind != column.type:
            self.notes.append(becomes_text(column.name, column.type))
        collate = self._collate(column.name, column.collation)
        return kind, sql.SQL(kind) + collate

    def _collate(self, column: str, collation: str | None) -> sql.SQL:
        """The clause for a column's collation; noted, where the target does not have it."""
        if collation is None:
            return sql.SQL("")
        if collation_exists(self.connection, collation):
            return sql.SQL(f" COLLATE {collation}")
        self.notes.append(lacks_collation(column, collation))
        return sql.SQL("")

    def _add(self, column: ColumnShape) -> Iterator[Step]:
        kind, shape = self._kind_to_add(column)
        not_null = column.not_null and not self.is_additive
        new = _Addition(self.table, column, kind, shape, not_null)
        # Rows get values of the target's own where those of the source are not known: a key may
        # need some. The copy that brings the source's comes soon.
        is_filled = self._is_written_anew() and column.missing is None
        if column.generated and column.expression:
            yield self._add_computed(new, column.expression)
        elif column.identity:
            self.needs_copy |= is_filled
            yield Step(new.statement(identity_clause(column, kind)))
        elif column.sequence is not None:
            self.needs_copy |= is_filled
            yield from self._add_counted(new, column.sequence, is_filled=is_filled)
        elif column.missing is not None:
            literal = sql.SQL("{}::{}").format(sql.Literal(column.missing), sql.SQL(kind))
            yield Step(new.statement(_DEFAULT.format(literal)))
            yield self._set_default(column.name, column.default)
        elif self._is_filled_anew(column):
            self.needs_copy = True
            yield self._add_filled(new, column.default or "NULL")
            if column.default is None and column.type_kind == "d":
                yield self._set_default(column.name, None)  # its type may have one
        else:
            yield from self._add_empty(new)

    def _add_computed(self, new: _Addition, expression: str) -> Step:
        name = new.column.name
        clause = generated_clause(self.connection, new.column.generated, expression)
        return Step(
            new.statement(clause),
            f"column {name}" if self.is_partial or self.before_copy else "",
            screened=self._screened("generated", expression),
            left_out=f"column {name}: its expression is not taken over",
        )

    def _add_counted(
        self, new: _Addition, wanted: SequenceShape, *, is_filled: bool
    ) -> Iterator[Step]:
        name = new.column.name
        sequence = yield from self._make_sequence(wanted)
        if is_filled:
            statement = new.statement(_DEFAULT.format(next_value(sequence)))
            yield Step(statement, new.undone, (new.plain,))
        else:
            yield new.plain
            yield from self._count_with(sequence, name)
        yield Step(owned_by(sequence, self.table, name))

    def _add_filled(self, new: _Addition, default: str) -> Step:
        return Step(
            new.statement(_DEFAULT.format(sql.SQL(enclosed(default)))),
            new.undone,
            (new.plain,),
            screened=self._screened("default", default),
            left_out=f"column {new.column.name} goes without its default: not taken over",
            without=(Step(new.statement(sql.SQL("")), new.undone, (new.plain,)),),
        )

    def _add_empty(self, new: _Addition) -> Iterator[Step]:
        name, default = new.column.name, new.column.default
        is_domain = new.column.type_kind == "d"
        # A default that the type has got since is not what older rows of the source hold.
        yield Step(new.bare(sql.SQL(" DEFAULT NULL"))) if is_domain else new.plain
        if default is not None or is_domain:
            yield self._set_default(name, default)
        if new.not_null and not self.before_copy:
            undone = f"column {name} is not NOT NULL"
            yield self._alter("ALTER COLUMN {} SET NOT NULL", name, undone=undone)

    def _make_sequence(self, wanted: SequenceShape) -> Generator[Step, None, TableName]:
        """Generates what makes it; returns its name."""
        owner = self._gives_up(wanted)
        if owner is not None:
            name = TableName(self.table.schema, wanted.name)
            if owner in {column.name for column in self.claims.dropped}:
                yield Step(sequence_statement(name, wanted))  # by then it is gone with its column
            else:
                yield _recount(name, wanted)
            return name
        name, is_there = free_sequence_name(self.connection, self.table.schema, wanted.name)
        if not is_there:
            yield Step(sequence_statement(name, wanted))
        return name

    def _gives_up(self, wanted: SequenceShape) -> str | None:
        """The table's own column whose sequence this is here, and which counts with it no more.

        So a key becomes a bigint: another column takes its place, and its sequence.
        """
        row = self.connection.execute(_OF_COLUMN, (self.found.id, wanted.name)).fetchone()
        if row is None:
            return None
        owner, is_counting = str(row[0]), bool(row[1])
        gives_up = any(
            each.found.name == owner
            and each.before.sequence is not None
            and each.before.sequence.id == wanted.id
            and each.after.sequence is None
            for each in self.claims.kept
        )
        is_dropped = owner in {column.name for column in self.claims.dropped}
        return owner if gives_up or is_dropped or not is_counting else None

    def _count_with(self, sequence: TableName, name: str) -> Iterator[Step]:
        value = next_value(sequence)
        yield Step(self._alter_text("ALTER COLUMN {} SET DEFAULT {}", name, value))

    def _set_default(self, name: str, default: str | None) -> Step:
        drop = self._alter("ALTER COLUMN {} DROP DEFAULT", name)
        if default is None:
            return drop
        statement = self._alter_text(
            "ALTER COLUMN {} SET DEFAULT {}", name, sql.SQL(enclosed(default))
        )
        undone = f"column {name} goes without its default"
        return Step(
            statement,
            undone,
            (drop,),
            screened=self._screened("default", default),
            left_out=f"{undone}: not taken over",
            without=(drop,),
        )

    def _screened(self, use: Use, text: str) -> Screened:
        return Screened(self.table, (Expression(use, text),))

    def attributes(self) -> Iterator[Step]:
        """Expressions, identity, defaults and NOT NULL of columns that stay."""
        for each in self.claims.kept:
            if each not in self.remade:
                yield from self._expression(each)
                yield from self._not_null(each)
                yield from self._identity(each)
                yield from self._default(each)

    def _computes(self, each: Claimed) -> bool:
        """Whether the column is computed, and from now on in another way."""
        if not (each.before.generated and each.after.generated and each.found.generated):
            return False
        now = each.after.expression
        is_same = is_same_text(each.before.expression, now, self._renamed)
        return not is_same and each.found.expression != now

    def _expression(self, each: Claimed) -> Iterator[Step]:
        if each.found.generated and not each.after.generated:
            yield self._alter("ALTER COLUMN {} DROP EXPRESSION", each.name)
        elif self._computes(each):
            text = each.after.expression or "NULL"
            yield Step(
                self._alter_text(
                    "ALTER COLUMN {} SET EXPRESSION AS ({})", each.name, sql.SQL(text)
                ),
                screened=self._screened("generated", text),
                left_out=f"column {each.name}: its expression is not taken over",
                without=(self._alter("DROP COLUMN {}", each.name),),
            )

    def _not_null(self, each: Claimed) -> Iterator[Step]:
        before, after, found = each.before.not_null, each.after.not_null, each.found.not_null
        if after in (before, found):
            return
        if after:
            undone = f"column {each.name} is not NOT NULL"
            if not self.is_additive and not self.before_copy:
                yield self._alter("ALTER COLUMN {} SET NOT NULL", each.name, undone=undone)
        else:
            if each.found.identity and each.before.identity:
                yield self._alter("ALTER COLUMN {} DROP IDENTITY IF EXISTS", each.name)
            yield self._alter("ALTER COLUMN {} DROP NOT NULL", each.name)

    def _identity(self, each: Claimed) -> Iterator[Step]:
        found, name = each.found, each.name
        if each.before.identity and not each.after.identity and found.identity:
            yield self._alter("ALTER COLUMN {} DROP IDENTITY IF EXISTS", name)
        elif each.after.identity and not each.before.identity and not found.identity:
            if self.is_additive and not found.not_null:
                self.notes.append(f"column {name} does not become an identity: it may be NULL")
                return
            if found.default is not None:
                yield self._alter("ALTER COLUMN {} DROP DEFAULT", name)
            clause = identity_clause(each.after, each.after.type)
            yield Step(self._alter_text("ALTER COLUMN {} ADD {}", name, clause))

    def _default(self, each: Claimed) -> Iterator[Step]:
        before, after, found = each.before, each.after, each.found
        if after.generated:
            return
        if after.sequence is not None and before.sequence is not None:
            if found.sequence is not None:
                yield from self._count(before.sequence, after.sequence, found.sequence)
        elif after.identity:
            return
        elif after.sequence is not None:
            if found.sequence is None:
                sequence = yield from self._make_sequence(after.sequence)
                yield from self._count_with(sequence, each.name)
                yield Step(owned_by(sequence, self.table, each.name))
        elif after.default not in (before.default, found.default):
            yield self._set_default(each.name, after.default)

    def _count(
        self, before: SequenceShape, after: SequenceShape, found: SequenceShape
    ) -> Iterator[Step]:
        # What the table owns is in its schema and goes with it to another one.
        name = TableName(self.table.schema, found.name)
        if _counts(before) != _counts(after) != _counts(found):
            yield _recount(name, after)
        if before.name != after.name and found.name == before.name:
            statement = sql.SQL("ALTER SEQUENCE {} RENAME TO {}")
            yield Step(
                statement.format(sql.Identifier(*name), sql.Identifier(after.name)),
                f"sequence {name} keeps its name",
                when=TAKEN,
            )


def _recount(name: TableName, wanted: SequenceShape) -> Step:
    """It counts on, otherwise than before."""
    statement = sql.SQL("ALTER SEQUENCE {} AS {} {}")
    return Step(
        statement.format(sql.Identifier(*name), sql.SQL(wanted.type), counting(wanted)),
        f"sequence {name} counts as before",
    )


def _counts(shape: SequenceShape) -> dict[str, Any]:
    return shape.model_dump(exclude={"id", "schema_name", "name"})
