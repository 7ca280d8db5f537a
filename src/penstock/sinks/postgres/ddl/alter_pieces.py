"""The statements by which keys, indexes and constraints of a target's table follow the source's."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from psycopg import sql

from penstock.schema.describe import foreign_key_of, structure_of
from penstock.schema.match import (
    is_same_foreign_key,
    is_same_text,
    match_by_id_or_name,
    renamed_within,
)
from penstock.sinks.postgres.ddl.alter_steps import Displaced, Screened, Step, alter_table
from penstock.sinks.postgres.ddl.displaced import rename_object, stand_in
from penstock.sinks.postgres.ddl.structure import (
    TAKEN,
    foreign_key_statement,
    key_piece,
    pieces_of,
)
from penstock.sinks.postgres.expressions.sql_text import UnreadableTextError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence, Set

    from penstock.schema.match import Pair
    from penstock.schema.shape import ConstraintShape, ForeignKeyShape, RowKey, TableShape
    from penstock.sinks.postgres.ddl.alter_claims import Claims
    from penstock.sinks.postgres.ddl.structure import Piece
    from penstock.table import TableName

NOT_VALID = " NOT VALID"


class _Identified(NamedTuple):
    """A piece with the id that the source has for it."""

    id: int
    name: str
    is_index: bool
    piece: Piece


KEY_STAYS = "the primary key stays as it was"


@dataclass(frozen=True)
class _Change:
    """What becomes of one: `found` is what the target calls it now, `made` what is to be made."""

    found: str | None
    is_index: bool
    is_dropped: bool = False
    made: Piece | None = None
    renamed: str | None = None
    is_validated: bool = False
    has_index: bool = True


@dataclass
class PieceChanges:
    """What is to be done to what one table has beside its columns; foreign keys not among it.

    `with_pieces` is False for tables that are not ours, of which only the key is followed.
    """

    before: TableShape
    after: TableShape
    found: TableShape
    table: TableName
    claims: Claims
    lost: Set[str]  # columns of the target that are dropped, with what is made of them
    is_additive: bool
    with_pieces: bool

    def __post_init__(self) -> None:
        self._renamed = renamed_within(self.before, self.after)
        self.notes: list[str] = []
        self._key_goes, self._key = self._plan_key()
        self._changes = list(self._plan()) if self.with_pieces else []

    def drops(self) -> Iterator[Step]:
        """What is gone, and what is to be made anew."""
        key = self.found.primary_key
        for each in self._changes:
            if each.is_dropped and each.found is not None:
                yield Step(self._drop(each.found, is_index=each.is_index))
        if self._key_goes and key is not None:
            yield Step(self._drop(key.name, is_index=False))

    def _drop(self, name: str, *, is_index: bool) -> sql.Composed:
        if is_index:
            return sql.SQL("DROP INDEX {}").format(sql.Identifier(self.table.schema, name))
        return alter_table(self.table, "DROP CONSTRAINT {}", name)

    def renames(self) -> Iterator[Step]:
        """What is called differently."""
        for each in self._changes:
            if each.renamed is not None and each.found is not None:
                has_index = each.is_index or each.has_index
                yield self._rename(each.found, each.renamed, each.is_index, has_index)
        key, was, now = self.found.primary_key, self.before.row_key, self.after.row_key
        if key is None or was is None or now is None or self._key is not None:
            return
        if key.name in (was.name, stand_in(self.found.id, was.name)) and key.name != now.name:
            yield self._rename(key.name, now.name, is_index=False, has_index=True)

    def _rename(self, old: str, new: str, is_index: bool, has_index: bool) -> Step:
        step = _rename(self.table, old, new, is_index=is_index)
        waiting = stand_in(self.found.id, new)
        wait = rename_object(self.table, old, waiting, has_index=has_index)
        displaced = Displaced(self.table, new, wait if old != waiting else None)
        return replace(step, displaced=displaced)

    def additions(self) -> Iterator[Step]:
        """The key, which must be; the rest as far as the target allows it."""
        if self._key is not None:
            yield Step(
                self._key.named,
                instead=(Step(self._key.unnamed),),
                when=TAKEN,
                displaced=Displaced.of(self._key, self.found.id),
            )
        for each in self._changes:
            if each.made is not None:
                yield from self._make(each.made)
            elif each.is_validated and each.found is not None:
                name = each.renamed or each.found
                statement = alter_table(self.table, "VALIDATE CONSTRAINT {}", name)
                yield Step(statement, f"constraint {name} is not valid")

    def _make(self, piece: Piece) -> Iterator[Step]:
        undone = f"{piece.word} {piece.name}"
        left_out = f"{undone}: not taken over"
        try:
            screened = Screened(self.table, tuple(piece.expressions))
        except UnreadableTextError:
            self.notes.append(f"{left_out}, its definition is not one that a server gives")
            return
        yield Step(
            piece.named,
            undone,
            (Step(piece.unnamed, undone),),
            when=TAKEN,
            displaced=Displaced.of(piece, self.found.id),
            screened=screened,
            left_out=left_out,
        )

    def _plan_key(self) -> tuple[bool, Piece | None]:
        """Whether the target's key goes, and which one comes."""
        was, now = _columns_of(self.before.row_key), _columns_of(self.after.row_key)
        there = _columns_of(self.found.primary_key)
        if was == now:
            return False, None
        called = self.found.names_of(there or ())
        if there is not None and self._final_names(called) == self.after.names_of(now or ()):
            return False, None
        piece = key_piece(self.table, structure_of(self.after), self._columns_after())
        if self.is_additive:
            self.notes.append(KEY_STAYS)
        elif called and called != self._names_before(was or ()):
            self.notes.append(f"the target's own primary key ({', '.join(called)}) stays")
        elif now is not None and piece is None:
            self.notes.append("the target lacks a column of the primary key, which stays as it was")
        else:
            return bool(called), piece
        return False, None

    def _names_before(self, columns: Sequence[int]) -> tuple[str, ...]:
        """What the target called columns of the source before the change."""
        names = {each.id: each.name for each in self.before.columns}
        names |= {each.before.id: each.found.name for each in self.claims.kept}
        return tuple(names.get(number, "") for number in columns)

    def _final_names(self, names: Sequence[str]) -> tuple[str, ...]:
        """What columns of the target are called once all is done; those that go by nothing."""
        finals = {each.found.name: each.name for each in self.claims.kept}
        finals |= {column.name: "" for column in self.claims.dropped}
        return tuple(finals.get(name, name) for name in names)

    def _columns_after(self) -> set[str]:
        """What the target will have under the source's own names."""
        names = {each.name for each in self.claims.kept if each.name == each.after.name}
        names |= {column.name for column in self.claims.added} - set(self.claims.called)
        others = {column.name for column in self.found.columns}
        others -= {each.found.name for each in self.claims.kept}
        others -= {column.name for column in self.claims.dropped}
        mine = {column.name for column in self.after.columns}
        return names | (others & mine - set(self.claims.left_out))

    def _plan(self) -> Iterator[_Change]:
        columns = self._columns_after()
        can_be_made = {each[:3] for each in _identify(self.after, columns, self.table)}
        there = pieces_there(self.found)
        if self.found.primary_key is not None and self.before.row_key is not None:
            del there[False, self.found.primary_key.name]  # it is the key, whatever its name
        pairs = self._pairs()
        names = _names_there(pairs, there, self.found.id)
        for place, (was, now) in enumerate(pairs):
            name = names.get(place)
            if now is None:
                assert was is not None
                if name is not None and not self.is_additive:
                    is_lost = self._is_lost(was.is_index, name)
                    yield _Change(name, was.is_index, is_dropped=not is_lost)
            elif now[:3] in can_be_made:
                change = self._compare(was, now, name, there.get((now.is_index, name or "")))
                if change is not None:
                    yield change

    def _pairs(self) -> list[Pair[_Identified]]:
        """What the source had beside what it has, constraints before indexes."""
        before, after = (
            _identify(shape, {column.name for column in shape.columns}, self.table)
            for shape in (self.before, self.after)
        )
        return [
            pair
            for is_index in (False, True)
            for pair in match_by_id_or_name(
                [each for each in before if each.is_index == is_index],
                [each for each in after if each.is_index == is_index],
            )
        ]

    def _is_lost(self, is_index: bool, name: str) -> bool:
        """Whether it goes with a column that is dropped before."""
        parts = self.found.indexes if is_index else self.found.constraints
        used = next((each.used for each in parts if each.name == name), ())
        return not self.lost.isdisjoint(self.found.names_of(used))

    def _compare(
        self, was: _Identified | None, now: _Identified, name: str | None, text: str | None
    ) -> _Change | None:
        """What becomes of one that the source has; the target calls it `name` and defines it as `text`."""
        is_index, piece = now.is_index, now.piece
        if self.is_additive and is_claim(piece):
            return None
        is_known = was is not None and is_same_text(
            was.piece.definition, piece.definition, self._renamed
        )
        if name is None or self._is_lost(is_index, name):
            # One that is not there was refused by the target before, or dropped by somebody.
            is_made = name is not None or not is_known
            return _Change(name, is_index, made=piece) if is_made else None
        renamed = now.name if self._is_to_rename(was, now, name) else None
        kept = _Change(name, is_index, renamed=renamed, has_index=piece.has_index)
        if text == piece.definition + NOT_VALID:
            return replace(kept, is_validated=True)
        if was is None or is_known or self.is_additive or text == piece.definition:
            return kept if renamed else None
        return _Change(name, is_index, is_dropped=True, made=piece)

    def _is_to_rename(self, was: _Identified | None, now: _Identified, name: str) -> bool:
        """Whether the target's name is one that we have given, and another than the source's."""
        known_as = {known for each in (was, now) if each for known in self._names_of(each)}
        return name in known_as and name != now.name

    def _names_of(self, each: _Identified) -> tuple[str, str]:
        return each.name, stand_in(self.found.id, each.name)


def _columns_of(key: RowKey | ConstraintShape | None) -> tuple[int, ...] | None:
    return None if key is None else key.columns


def is_claim(piece: Piece) -> bool:
    """Whether it claims something of rows, and does not only help to find them."""
    return piece.word != "index" or piece.definition.startswith("UNIQUE ")


def _rename(table: TableName, old: str, new: str, *, is_index: bool) -> Step:
    if is_index:
        statement = sql.SQL("ALTER INDEX {} RENAME TO {}").format(
            sql.Identifier(table.schema, old), sql.Identifier(new)
        )
    else:
        statement = alter_table(table, "RENAME CONSTRAINT {} TO {}", old, new)
    return Step(statement, f"{'index' if is_index else 'constraint'} {old} keeps its name")


def _identify(shape: TableShape, columns: set[str], table: TableName) -> list[_Identified]:
    constraints = {each.name: each.id for each in shape.constraints}
    indexes = {each.name: each.id for each in shape.indexes}
    found = []
    for piece in pieces_of(table, structure_of(shape), columns):
        is_index = piece.word == "index"
        number = (indexes if is_index else constraints)[piece.name]
        found.append(_Identified(number, piece.name, is_index, piece))
    return found


def pieces_there(found: TableShape) -> dict[tuple[bool, str], str]:
    """Definitions of what a table has, by whether it is an index, and its name."""
    there = {(False, each.name): each.definition for each in found.constraints}
    for each in found.indexes:
        head = "UNIQUE INDEX " if each.is_unique else "INDEX "
        there[True, each.name] = head + each.definition
    return there


def _names_there(
    pairs: list[Pair[_Identified]], there: dict[tuple[bool, str], str], oid: int
) -> dict[int, str]:
    """What the target calls each: as before, as after, by what stands for that in the target's table
    of that oid, or as Postgres has found a free name.

    What is kept has the first choice: it may be called already as something that is gone was.
    """
    naming = _Naming(pairs, there, oid)
    order = sorted(range(len(pairs)), key=lambda place: pairs[place][1] is None)
    # Two may have swapped their names: what is defined as it was goes before what is only called so.
    for is_defined_so, place in itertools.product((True, False), order):
        naming.take_called(place, is_defined_so=is_defined_so)
    for place in order:
        naming.take_defined(place)
    return naming.names


@dataclass
class _Naming:
    """Which names of the target are free, and which piece has which, by its place among the pairs."""

    pairs: list[Pair[_Identified]]
    there: dict[tuple[bool, str], str]
    oid: int
    names: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._free = set(self.there)

    def take_called(self, place: int, *, is_defined_so: bool) -> None:
        """By a name that we know of; `is_defined_so`: only where the definition is one we know of, too."""
        known = [each for each in self.pairs[place] if each is not None]
        texts = {each.piece.definition for each in known}
        called = [each.name for each in known] + [stand_in(self.oid, each.name) for each in known]
        for name in called:
            spot = (known[0].is_index, name)
            if spot in self._free and (not is_defined_so or self.there[spot] in texts):
                self._take(place, spot)
                return

    def take_defined(self, place: int) -> None:
        """By its definition alone, whatever it is called."""
        for each in self.pairs[place]:
            for spot in sorted(self._free):
                if each and spot[0] == each.is_index and self.there[spot] == each.piece.definition:
                    self._take(place, spot)
                    return

    def _take(self, place: int, spot: tuple[bool, str]) -> None:
        """A piece that has a name keeps it."""
        if place not in self.names:
            self._free.remove(spot)
            self.names[place] = spot[1]


def drop_foreign_keys(
    before: TableShape,
    after: TableShape | None,
    found: TableShape,
    table: TableName,
    *,
    before_copy: bool = False,
) -> Iterator[Step]:
    """Those that are gone or were changed.

    `before_copy`: those that were renamed as well. All are made once the copy is there, and are then
    found by the name that they have at the source.
    """
    there = {key.name for key in found.foreign_keys}
    pairs = match_by_id_or_name(before.foreign_keys, after.foreign_keys if after else ())
    kept = {now.name for was, now in pairs if was is not None and now is not None}
    for was, now in pairs:
        if was is None or was.name not in there:
            continue
        if now is None or after is None:
            is_gone = was.name not in kept
        else:
            is_renamed = before_copy and was.name != now.name
            is_gone = is_renamed or _is_to_remake(found, after, was, now)
        if is_gone:
            yield Step(alter_table(table, "DROP CONSTRAINT {}", was.name))


def _is_to_remake(
    found: TableShape, after: TableShape, was: ForeignKeyShape, now: ForeignKeyShape
) -> bool:
    """Whether it was changed, and the target has not what it was changed to."""
    return _is_other(was, now) and not _is_as_wanted(found, was.name, after, now)


def _is_other(was: ForeignKeyShape, now: ForeignKeyShape) -> bool:
    """Whether it must be made anew; that it holds for every row is found out without."""
    same = now.model_copy(update={"is_valid": was.is_valid})
    return not is_same_foreign_key(was, same)


def _is_as_wanted(found: TableShape, name: str, after: TableShape, now: ForeignKeyShape) -> bool:
    key = next(each for each in found.foreign_keys if each.name == name)
    ours, theirs = foreign_key_of(found, key), foreign_key_of(after, now)
    return (
        ours.columns == theirs.columns
        and ours.referenced_columns == theirs.referenced_columns
        and ours.referenced.name == theirs.referenced.name
        and (ours.on_update, ours.on_delete, ours.on_delete_columns, ours.match)
        == (theirs.on_update, theirs.on_delete, theirs.on_delete_columns, theirs.match)
        and (ours.is_deferrable, ours.is_deferred) == (theirs.is_deferrable, theirs.is_deferred)
    )


def make_foreign_keys(
    before: TableShape,
    after: TableShape,
    found: TableShape,
    table: TableName,
    place: Callable[[TableName], TableName],
) -> Iterator[Step]:
    """Those that are new, changed or renamed, as far as the target allows it."""
    there = {key.name: key for key in found.foreign_keys}
    for was, now in match_by_id_or_name(before.foreign_keys, after.foreign_keys):
        if now is None:
            continue
        same = was is not None and not _is_other(was, now)
        current = there.get(was.name) if was is not None else None
        current = current or there.get(now.name)
        if current is not None and (same or _is_as_wanted(found, current.name, after, now)):
            yield from _keep_foreign_key(table, was, now, current)
        elif current is not None or not same:  # else the target has refused it before
            yield from _make_foreign_key(table, after, now, place)


def _make_foreign_key(
    table: TableName,
    after: TableShape,
    now: ForeignKeyShape,
    place: Callable[[TableName], TableName],
) -> Iterator[Step]:
    key = foreign_key_of(after, now)
    if key.has_period:
        return
    yield Step(foreign_key_statement(table, key, place(key.referenced)), f"foreign key {now.name}")
    if now.is_valid and now.is_enforced:
        yield _validate(table, now.name)


def _keep_foreign_key(
    table: TableName, was: ForeignKeyShape | None, now: ForeignKeyShape, current: ForeignKeyShape
) -> Iterator[Step]:
    """What the target calls `current` is as the source's, but for its name and whether it was checked."""
    if was is not None and current.name == was.name != now.name:
        yield _rename(table, was.name, now.name, is_index=False)
    is_to_validate = now.is_valid and now.is_enforced and not (current.is_valid or now.has_period)
    # If it was valid before, the target's rows have not allowed it then.
    if is_to_validate and not (was is not None and was.is_valid):
        yield _validate(table, now.name)


def _validate(table: TableName, name: str) -> Step:
    validate = alter_table(table, "VALIDATE CONSTRAINT {}", name)
    return Step(validate, f"foreign key {name} does not hold for every row")
