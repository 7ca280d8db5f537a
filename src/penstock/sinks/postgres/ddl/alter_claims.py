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
    from penstock.sinks.postgres.mapping.table_mapping import TableMapping
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


@dataclass(frozen=True)
class ColumnRules:
    """What is to become of a table's columns at the target.

    `wanted` are those that the sink takes (None: all). `names` is what the target calls columns, where that
    is not their name; new ones, too. `own` are columns of the target that penstock fills itself: none of
    the source's is one of them.
    """

    wanted: tuple[str, ...] | None
    names: Mapping[str, str]
    own: Collection[str]
    with_renames: bool
    with_drops: bool

    def takes(self, column: ColumnShape) -> bool:
        """Whether the sink takes the column."""
        return self.wanted is None or column.name in self.wanted

    def was_delivered(self, column: ColumnShape) -> bool:
        """Whether the sink took it and no column of penstock's own has its place."""
        return self.takes(column) and self.start(column.name) not in self.own

    def start(self, name: str) -> str | None:
        """What the target calls a column; None where its name is there, but another's."""
        return self.names.get(name, None if name in self.names.values() else name)


def claim_columns(
    before: TableShape, after: TableShape, found: TableShape, rules: ColumnRules
) -> Claims:
    """Which columns of `found` are those of `before`, and what becomes of them so that they are `after`."""
    claims = Claims()
    columns = _sort(before, after, rules, claims)
    claims.own += [each.final for each in columns.kept if each.final in rules.own]
    there = {column.name: column for column in found.columns if column.name not in rules.own}
    known = {rules.names.get(column.name, column.name) for column in before.columns}
    taken = _Taking(there).take_all(columns, known)
    _claim_kept(claims, columns, taken, there)
    _claim_others(claims, columns, there, set(taken.values()), rules)
    claims.left_out = claims.of_source(claims.left_out)
    return claims


@dataclass
class _Sorted:
    """The source's columns by what becomes of them."""

    kept: list[Kept] = field(default_factory=list)
    dropped: list[ColumnShape] = field(default_factory=list)
    added: list[ColumnShape] = field(default_factory=list)
    nowhere: list[str] = field(default_factory=list)  # the target has no place for them


def _sort(before: TableShape, after: TableShape, rules: ColumnRules, claims: Claims) -> _Sorted:
    columns = _Sorted()
    for was, now in match_by_id(before.columns, after.columns):
        if was is not None and rules.was_delivered(was):
            _sort_delivered(columns, was, now, rules)
        elif now is not None and rules.takes(now):
            _sort_new(columns, was, now, rules, claims)
    return columns


def _sort_delivered(
    columns: _Sorted, was: ColumnShape, now: ColumnShape | None, rules: ColumnRules
) -> None:
    start = rules.start(was.name)
    if start is None:
        if now is not None:
            columns.nowhere.append(now.name)
    elif now is None:
        columns.dropped.append(was)
    else:
        final = now.name if rules.takes(now) and rules.with_renames else start
        columns.kept.append(Kept(was, now, start, final))


def _sort_new(
    columns: _Sorted, was: ColumnShape | None, now: ColumnShape, rules: ColumnRules, claims: Claims
) -> None:
    """A column that the target has not had, as it is to be there."""
    called = rules.names.get(now.name) or now.name
    if called in rules.own:
        # Where it had this name before, it was never delivered, and goes on so.
        if was is None or was.name != now.name:
            claims.own.append(called)
        return
    if called != now.name:
        claims.called[called] = now.name
    if was is not None:
        claims.late.add(called)
    columns.added.append(now.model_copy(update={"name": called}))


def _claim_kept(
    claims: Claims,
    columns: _Sorted,
    taken: Mapping[Kept, str],
    there: Mapping[str, ColumnShape],
) -> None:
    for each in columns.kept:
        current = taken.get(each)
        if current is not None:
            claims.kept.append(Claimed(each.before, each.after, there[current], each.final))
            if current != each.final:
                claims.renames.append((current, each.final))
    claims.renames = in_order(claims.renames, set(there))
    finals = {each.name for each in claims.kept}
    claims.left_out += [name for name in columns.nowhere if name in finals]


def own_names(table_mapping: TableMapping | None) -> set[str]:
    """The columns of the target that penstock fills itself."""
    if table_mapping is None:
        return set()
    names = table_mapping.history
    own = {names.start, names.end, names.deleted} if names is not None else set()
    return own | (
        {table_mapping.source_id_column} if table_mapping.source_id_column is not None else set()
    )


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


def _claim_others(
    claims: Claims,
    columns: _Sorted,
    there: Mapping[str, ColumnShape],
    taken: set[str],
    rules: ColumnRules,
) -> None:
    """Columns that go, and those that come: under a name that is free, kept, or just left."""
    final = {each.name for each in claims.kept}
    going: dict[str, ColumnShape] = {}
    for was in columns.dropped:
        name = rules.names.get(was.name, was.name)
        if name not in taken and name in there:
            going[name] = was
    for now in columns.added:
        if now.name in final:
            claims.left_out.append(now.name)
        elif now.name in going:
            _claim_left_name(claims, now, going, there, with_drops=rules.with_drops)
        elif now.name not in there or now.name in taken:
            claims.added.append(now)
        else:
            claims.met.append(now)
    # What is computed from other columns goes before them.
    gone = [there[name] for name in going if name not in claims.reused]
    claims.dropped = sorted(gone, key=lambda column: not column.generated)


def _claim_left_name(
    claims: Claims,
    now: ColumnShape,
    going: dict[str, ColumnShape],
    there: Mapping[str, ColumnShape],
    *,
    with_drops: bool,
) -> None:
    """A new column has the name of one that goes: which of the two the target has may be seen from it."""
    if not with_drops:
        claims.reused.add(now.name)
        claims.late.add(now.name)
    elif _was_made_anew(claims, going[now.name], now, there[now.name]):
        del going[now.name]
    else:
        claims.added.append(now)


class _Taking:
    """Finds out which name of the target each kept column has now, from the sure to the unsure."""

    def __init__(self, there: Mapping[str, ColumnShape]) -> None:
        self._there = there
        self._free = set(there)
        self._taken: dict[Kept, str] = {}

    def take_all(self, columns: _Sorted, known: set[str]) -> dict[Kept, str]:
        """`known` are the names before the change."""
        waiting = self._take_unchanged(columns.kept)
        waiting = self._take_replaced(waiting, known, {column.name for column in columns.added})
        waiting = self._take_sure(waiting)
        self._take_swapped(waiting, {column.name for column in columns.dropped})
        return self._taken

    def _take(self, each: Kept, name: str) -> None:
        self._taken[each] = name
        self._free.discard(name)

    def _take_unchanged(self, kept: list[Kept]) -> list[Kept]:
        """Those that are to keep their names; the rest."""
        waiting: list[Kept] = []
        for each in kept:
            if each.start != each.final:
                waiting.append(each)
            elif each.start in self._free:
                self._take(each, each.start)
        return waiting

    def _take_replaced(self, waiting: list[Kept], known: set[str], fresh: set[str]) -> list[Kept]:
        """Those that have their new name already, while a new column has their old one; the rest."""
        rest: list[Kept] = []
        for each in waiting:
            if each.start in fresh and each.final in self._free - known:
                self._take(each, each.final)
            else:
                rest.append(each)
        return rest

    def _take_sure(self, waiting: list[Kept]) -> list[Kept]:
        """Those of which one name alone is there, or none; the rest. Each may make the next one sure."""
        rest = list(waiting)
        while True:
            sure = next((e for e in rest if not {e.start, e.final} <= self._free), None)
            if sure is None:
                return rest
            rest.remove(sure)
            if sure.start in self._free:
                self._take(sure, sure.start)
            elif sure.final in self._free:
                self._take(sure, sure.final)

    def _take_swapped(self, waiting: list[Kept], dropped: set[str]) -> None:
        """Both names are there, of all that are left: they were swapped, or a dropped column's was taken."""
        is_done = _is_in_order_of(waiting, self._there)
        is_done = is_done and not any(each.final in dropped for each in waiting)
        for each in waiting:
            self._take(each, each.final if is_done else each.start)


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
