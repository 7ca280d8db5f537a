"""Which column of the target is which column of the source, before and after a change. Pure.

The target has no ids of the source's, only names; and the change may have been made there already,
by a person. So what a name stands for follows from the names that are there.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import TargetTableUnfit
from penstock.schema.match import match_by_id

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from penstock.schema.shape import ColumnShape, TableShape
    from penstock.sinks.postgres.mapping.table_mapping import Landing
    from penstock.table import TableName


class Kept(NamedTuple):
    """A column that both pictures have: what the target calls it, and is to call it."""

    before: ColumnShape
    after: ColumnShape
    start: str
    final: str


class Claimed(NamedTuple):
    """A column that was kept, and the one that it is at the target."""

    before: ColumnShape
    after: ColumnShape
    found: ColumnShape
    name: str  # at the target, once all is done


@dataclass
class Claims:
    """How the target's columns become the source's.

    `dropped` are columns of the target. `left_out` are source columns whose name at the target is
    another's.
    """

    kept: list[Claimed] = field(default_factory=list)
    dropped: list[ColumnShape] = field(default_factory=list)
    added: list[ColumnShape] = field(default_factory=list)
    renames: list[tuple[str, str]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    # Those of `added` whose rows had values before, which are not known here.
    late: set[str] = field(default_factory=set)
    # Columns that are new at the source, and that the target has already.
    met: list[ColumnShape] = field(default_factory=list)
    # Those of `added` for which a dropped one is kept at the target.
    reused: set[str] = field(default_factory=set)
    # New columns that the target is to call differently, by that name: the source's own.
    called: dict[str, str] = field(default_factory=dict)
    # What columns would be called from now on that is the name of one which penstock fills itself.
    own: list[str] = field(default_factory=list)

    @property
    def column_names(self) -> dict[str, str]:
        """What the target calls columns, where that is not their name."""
        kept = {each.after.name: each.name for each in self.kept if each.after.name != each.name}
        return {name: called for called, name in self.called.items()} | kept

    def of_source(self, names: Iterable[str]) -> list[str]:
        """What the source calls columns that are new."""
        return [self.called.get(name, name) for name in names]


def claim_columns(
    before: TableShape,
    after: TableShape,
    found: TableShape,
    wanted: tuple[str, ...] | None,
    names: Mapping[str, str],
    *,
    with_renames: bool,
    with_drops: bool,
    own: Collection[str] = (),
) -> Claims:
    """`names` is what the target calls columns, where that is not their name; new ones, too.

    `own` are columns of the target that penstock fills itself: none of the source's is one of them.
    """
    claims = Claims()
    kept: list[Kept] = []
    dropped: list[ColumnShape] = []
    added: list[ColumnShape] = []
    nowhere: list[str] = []
    for was, now in match_by_id(before.columns, after.columns):
        was_in = was is not None and (wanted is None or was.name in wanted)
        was_in = was_in and was is not None and _start(was.name, names) not in own
        is_in = now is not None and (wanted is None or now.name in wanted)
        if was is not None and was_in:
            start = _start(was.name, names)
            if start is None:
                if now is not None:
                    nowhere.append(now.name)
            elif now is None:
                dropped.append(was)
            else:
                kept.append(Kept(was, now, start, now.name if is_in and with_renames else start))
        elif now is not None and is_in:
            called = names.get(now.name) or now.name
            if called not in own:
                added.append(_new(claims, was, now, called))
            elif was is None or was.name != now.name:
                # Else it had this name before, was never delivered, and goes on so.
                claims.own.append(called)
    claims.own += [each.final for each in kept if each.final in own]
    there = {column.name: column for column in found.columns if column.name not in own}
    known = {names.get(column.name, column.name) for column in before.columns}
    fresh = {column.name for column in added}
    taken = _claim(kept, there, {column.name for column in dropped}, known, fresh)
    for each in kept:
        current = taken.get(each)
        if current is not None:
            claims.kept.append(Claimed(each.before, each.after, there[current], each.final))
            if current != each.final:
                claims.renames.append((current, each.final))
    claims.renames = in_order(claims.renames, set(there))
    finals = {each.name for each in claims.kept}
    claims.left_out += [name for name in nowhere if name in finals]
    _claim_others(claims, dropped, added, there, set(taken.values()), names, with_drops=with_drops)
    claims.left_out = claims.of_source(claims.left_out)
    return claims


def _new(claims: Claims, was: ColumnShape | None, now: ColumnShape, called: str) -> ColumnShape:
    """A column that the target has not had, as it is to be there."""
    if called != now.name:
        claims.called[called] = now.name
    if was is not None:
        claims.late.add(called)
    return now.model_copy(update={"name": called})


def own_names(landing: Landing | None) -> set[str]:
    """The columns of the target that penstock fills itself."""
    if landing is None:
        return set()
    names = landing.history
    own = {names.start, names.end, names.deleted} if names is not None else set()
    return own | ({landing.source_id_column} if landing.source_id_column is not None else set())


def refuse_own(claims: Claims, table: TableName) -> None:
    """See that no column of the source takes the place of one that penstock fills itself.

    Raises:
        TargetTableUnfit: one would, as where the table is made (`mapping/target_shape.py`).
    """
    if claims.own:
        raise TargetTableUnfit(
            f"the source has a column {claims.own[0]}, which penstock is to fill at the target",
            str(table),
            "choose another name: source_id_column, history_columns; or give the source's column"
            f" another one, then penstock tables PIPELINE.yml resync {table}",
        )


def _start(name: str, names: Mapping[str, str]) -> str | None:
    """What the target calls a column; None where its name is there, but another's."""
    return names.get(name, None if name in names.values() else name)


def _claim_others(
    claims: Claims,
    dropped: list[ColumnShape],
    added: list[ColumnShape],
    there: Mapping[str, ColumnShape],
    taken: set[str],
    names: Mapping[str, str],
    *,
    with_drops: bool,
) -> None:
    final = {each.name for each in claims.kept}
    going: dict[str, ColumnShape] = {}
    for was in dropped:
        name = names.get(was.name, was.name)
        if name not in taken and name in there:
            going[name] = was
    for now in added:
        if now.name in final:
            claims.left_out.append(now.name)
        elif now.name in going:
            if not with_drops:
                claims.reused.add(now.name)
                claims.late.add(now.name)
            elif _was_made_anew(claims, going[now.name], now, there[now.name]):
                del going[now.name]
            else:
                claims.added.append(now)
        elif now.name not in there or now.name in taken:
            claims.added.append(now)
        else:
            claims.met.append(now)
    # What is computed from other columns goes before them.
    gone = [there[name] for name in going if name not in claims.reused]
    claims.dropped = sorted(gone, key=lambda column: not column.generated)


def _claim(
    kept: list[Kept],
    there: Mapping[str, ColumnShape],
    dropped: set[str],
    known: set[str],
    fresh: set[str],
) -> dict[Kept, str]:
    """Which name of the target each column has now.

    `known` are the names before the change, `fresh` those of columns that are new.
    """
    taken: dict[Kept, str] = {}
    free = set(there)

    def take(each: Kept, name: str) -> None:
        taken[each] = name
        free.discard(name)

    waiting: list[Kept] = []
    for each in kept:
        if each.start != each.final:
            waiting.append(each)
        elif each.start in free:
            take(each, each.start)
    for each in list(waiting):
        # It has its new name already, and a new column has its old one.
        if each.start in fresh and each.final in free - known:
            take(each, each.final)
            waiting.remove(each)
    while waiting:
        sure = [each for each in waiting if not (each.start in free and each.final in free)]
        if not sure:
            break
        each = sure[0]
        waiting.remove(each)
        if each.start in free:
            take(each, each.start)
        elif each.final in free:
            take(each, each.final)
    # Both names are there, of all that are left: they were swapped, or a dropped column's was taken.
    is_done = _is_in_order_of(waiting, there) and not any(e.final in dropped for e in waiting)
    for each in waiting:
        take(each, each.final if is_done else each.start)
    return taken


def _is_in_order_of(swapped: list[Kept], there: Mapping[str, ColumnShape]) -> bool:
    """Whether names that were swapped stand at the target as they do at the source now."""
    starts = [each.start for each in swapped]
    if sorted(starts) != sorted(each.final for each in swapped):
        return False
    by_source = sorted(swapped, key=lambda each: each.after.id)
    by_target = sorted(starts, key=lambda name: there[name].id)
    return by_target == [each.final for each in by_source]


def _was_made_anew(claims: Claims, was: ColumnShape, now: ColumnShape, found: ColumnShape) -> bool:
    """Whether a column that was dropped and added under its name is at the target already so."""
    if was.type != now.type:
        return found.type == now.type
    is_last = all(each.found.id < found.id for each in claims.kept)
    return is_last and any(each.before.id > was.id for each in claims.kept)


def in_order(renames: list[tuple[str, str]], there: set[str]) -> list[tuple[str, str]]:
    """An order in which each name is free when it is given, by way of another one if need be."""
    waiting, ordered, names = list(renames), [], set(there)
    while waiting:
        current = {old for old, _ in waiting}
        ready = next((each for each in waiting if each[1] not in current), None)
        if ready is None:
            old, new = waiting.pop(0)
            between = next(
                name for n in itertools.count() if (name := f"penstock_{n}") not in names
            )
            names.add(between)
            ordered.append((old, between))
            waiting.append((between, new))
        else:
            waiting.remove(ready)
            ordered.append(ready)
    return ordered
