"""The SQL that merges one step. Builds statements and runs none; knows no batch and no position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.sinks.postgres.mapping.plan import StagedStep, TablePlan, TargetColumn

_TRUE = sql.SQL("true")
_KEPT_NAME = "kept"
_KEPT = sql.Identifier("pg_temp", _KEPT_NAME)


class Statements:
    """The SQL of one step. `t` is the target, `s` the stage."""

    def __init__(self, plan: TablePlan, step: StagedStep, stage: sql.Identifier) -> None:
        self._plan = plan
        self._step = step
        self._stage = stage
        self._target = sql.Identifier(*plan.target)
        self._names = [sql.Identifier(column.name) for column in step.columns]
        self._cells = [sql.Identifier("s", f"c{place}") for place in range(len(step.columns))]
        self._fixed = of_this_source(plan)
        delivered = {column.name for column in step.columns}
        self._others = [
            sql.Identifier(name)
            for name in (*plan.others, *(column.name for column in plan.columns))
            if name not in delivered
        ]

    def truncate(self) -> sql.Composed:
        """Empty the target."""
        if self._plan.is_referenced or self._plan.fixed:
            return sql.SQL("DELETE FROM {} t WHERE {}").format(self._target, self._fixed)
        restart = " RESTART IDENTITY" if self._step.restart_identity else ""
        return sql.SQL("TRUNCATE {}" + restart).format(self._target)

    def _is(self, *letters: str, row: str = "s") -> sql.Composable:
        """Rows of these operations; a stage without `op` holds INSERTs alone."""
        if not self._step.has_operations:
            return _TRUE if "I" in letters or self._step.kind == "move" else sql.SQL("false")
        op = sql.Identifier(row, "op")
        wanted = sql.SQL(", ").join(
            sql.SQL('{}::"char"').format(sql.Literal(letter)) for letter in letters
        )
        return sql.SQL("{} IN ({})" if len(letters) > 1 else "{} = {}").format(op, wanted)

    def _is_written_over(self) -> sql.Composable:
        """UPDATEs, and REPLACEs, which write over the row that is there, if one is."""
        return self._is("U", "R") if self._step.replace_count else self._is("U")

    def _group(self, number: int) -> sql.Composable:
        if len(self._step.unchanged) == 1:
            return _TRUE
        return sql.SQL("s.g = {}").format(sql.Literal(number))

    def _theirs(self, place: int) -> sql.Composable:
        """The target's value."""
        return self._undomained(place, sql.SQL("t.{}").format(self._names[place]))

    def _undomained(self, place: int, value: sql.Composable) -> sql.Composable:
        return _undomained(self._step.columns[place], value)

    def _equal(self, place: int, one: sql.Composable, other: sql.Composable) -> sql.Composed:
        """That two values of a column are one."""
        equals = sql.SQL(self._step.columns[place].equals)
        return sql.SQL("{} {} {}").format(one, equals, other)

    def _same_key(self, row: str = "s") -> sql.Composed:
        return self._conjunction(
            self._equal(place, self._theirs(place), sql.Identifier(row, f"c{place}"))
            for place in self._step.key
        )

    def _same_old_key(self) -> sql.Composed:
        return self._conjunction(
            self._equal(place, self._theirs(place), sql.Identifier("s", f"k{number}"))
            for number, place in enumerate(self._step.key)
        )

    def _conjunction(self, terms: Iterable[sql.Composable]) -> sql.Composed:
        """All of the terms, and that the row is of this source."""
        fixed = [self._fixed] if self._plan.fixed else []
        return sql.SQL(" AND ").join([*fixed, *terms])

    def delete(self, letter: str = "D", *, spares_put: bool = False) -> sql.Composed:
        """Take away the rows that are deleted; those that came and went are `G`.

        With `spares_put` not those that the step itself has put there before.
        """
        if not self._step.key:
            return self._delete_keyless()
        puts = self._step.insert_count + self._step.update_count + self._step.replace_count
        return sql.SQL("DELETE FROM {} t USING {} s WHERE {} AND {} AND {}").format(
            self._target,
            self._stage,
            self._is(letter),
            self._same_key(),
            self._is_not_put(letter) if spares_put and puts else _TRUE,
        )

    def _is_not_put(self, letter: str) -> sql.Composed:
        """That the row `t` is none of those that were put: keys may be equal and spelled differently.

        Equal by the target's own operator and collation, as 'Bob' and 'bob' of type citext are, 1 and 1.0.
        Where the target holds no key unique, a row of the old spelling may be there beside the new.
        """
        same = [self._is("I", "U", "R", row="p"), self._same_key("p")]
        if letter == "D":
            same += [
                sql.SQL('t.{}::text COLLATE "C" = p.{}::text').format(
                    self._names[place], sql.Identifier(f"c{place}")
                )
                for place in self._step.key
            ]
        return sql.SQL("NOT EXISTS (SELECT FROM {} p WHERE {})").format(
            self._stage, sql.SQL(" AND ").join(same)
        )

    def _delete_keyless(self) -> sql.Composed:
        """Whole rows are compared as text: every type has it, and NULL equals NULL."""
        if any(column.is_loose for column in self._step.columns):
            return self._delete_keyless_by_equality()
        copies = sql.SQL("s.n" if self._step.has_copies else "1")
        ours = _row_text(self._cells)
        theirs = _row_text([sql.SQL("t.{}").format(name) for name in self._names])
        return sql.SQL(
            "WITH gone AS MATERIALIZED"
            " (SELECT {ours} AS r, sum({copies}) AS n FROM {stage} s WHERE {is_delete} GROUP BY 1),"
            " found AS (SELECT t.tableoid AS part, t.ctid AS place, gone.n,"
            " row_number() OVER (PARTITION BY gone.r) AS number"
            " FROM {target} t JOIN gone ON {theirs} = gone.r WHERE {fixed})"
            " DELETE FROM {target} t USING found WHERE t.tableoid = found.part"
            " AND t.ctid = found.place AND found.number <= found.n"
        ).format(
            ours=ours,
            copies=copies,
            stage=self._stage,
            is_delete=self._is("D"),
            target=self._target,
            theirs=theirs,
            fixed=self._fixed,
        )

    def _delete_keyless_by_equality(self) -> sql.Composed:
        """The same where the target may spell a text differently and still call it equal.

        As many rows go as the changes say, of all that are equal, those that are spelled alike first.
        """
        loose = [place for place, column in enumerate(self._step.columns) if column.is_loose]
        parts = [sql.Identifier(f"l{place}") for place in loose]
        theirs = [sql.SQL("t.{}").format(name) for name in self._names]
        found = [self._never_null(place, self._theirs(place)) for place in loose]
        same = [
            self._equal(place, each, sql.SQL("gone.{}").format(part))
            for place, each, part in zip(loose, found, parts, strict=True)
        ]
        last = len(loose)
        return sql.SQL(
            "WITH gone AS MATERIALIZED (SELECT {ours} AS r, {our_rest} AS q, {staged},"
            " sum({copies}) AS n FROM {stage} s WHERE {is_delete} GROUP BY {of_gone}),"
            " matched AS (SELECT t.tableoid AS part, t.ctid AS place, {theirs} AS r, {rest} AS q,"
            " {found}, sum(gone.n) AS n, sum(gone.n) FILTER (WHERE gone.r = {theirs}) AS alike"
            " FROM {target} t JOIN gone ON {rest} = gone.q AND {same} WHERE {fixed}"
            " GROUP BY {of_matched}),"
            " numbered AS (SELECT m.*, row_number() OVER (PARTITION BY m.r) <= coalesce(m.alike, 0)"
            " AS is_alike FROM matched m),"
            " found AS (SELECT part, place, n, row_number() OVER (PARTITION BY q, {parts}"
            " ORDER BY is_alike DESC) AS number FROM numbered)"
            " DELETE FROM {target} t USING found WHERE t.tableoid = found.part"
            " AND t.ctid = found.place AND found.number <= found.n"
        ).format(
            ours=_row_text(self._cells),
            our_rest=_rest(self._cells, loose),
            staged=_called([self._never_null(p, self._cells[p]) for p in loose], parts),
            copies=sql.SQL("s.n" if self._step.has_copies else "1"),
            stage=self._stage,
            is_delete=self._is("D"),
            of_gone=_numbers(2 + last),
            target=self._target,
            theirs=_row_text(theirs),
            rest=_rest(theirs, loose),
            found=_called(found, parts),
            same=sql.SQL(" AND ").join(same),
            fixed=self._fixed,
            of_matched=_numbers(4 + last),
            parts=sql.SQL(", ").join(parts),
        )

    def _never_null(self, place: int, value: sql.Composable) -> sql.Composed:
        """A text or an array, an empty one for NULL; whether it was NULL `_rest` says."""
        kind = self._step.columns[place].stage_type
        empty = sql.SQL("'{}'" if kind.endswith("[]") else "''")
        return sql.SQL("coalesce({}, {}::{})").format(value, empty, sql.SQL(kind))

    def _settable(self, kept: tuple[int, ...], *, with_key: bool) -> list[int]:
        return [
            place
            for place, column in enumerate(self._step.columns)
            if place not in kept
            and column.is_updatable
            and (with_key or place not in self._step.key)
        ]

    def fixed_columns(self, *, with_key: bool) -> list[str]:
        """The columns that an UPDATE may not set."""
        return [
            column.name
            for place, column in enumerate(self._step.columns)
            if not column.is_updatable and (with_key or place not in self._step.key)
        ]

    def first_fixed_difference(self) -> sql.Composed:
        """A row where such a column would have to change."""
        differs = sql.SQL(" OR ").join(
            sql.SQL("t.{} IS DISTINCT FROM {}").format(self._names[place], self._cells[place])
            for place, column in enumerate(self._step.columns)
            if not column.is_updatable and place not in self._step.key
        )
        return sql.SQL("SELECT FROM {} t JOIN {} s ON {} WHERE {} AND ({}) LIMIT 1").format(
            self._target, self._stage, self._same_key(), self._is_written_over(), differs
        )

    def updates(self) -> list[sql.Composed]:
        """Change the rows that are there, leaving alone what is not known."""
        return [
            sql.SQL("UPDATE {} t SET {} FROM {} s WHERE {} AND {} AND {}").format(
                self._target,
                self._assignments(places),
                self._stage,
                self._is_written_over(),
                self._group(number),
                self._same_key(),
            )
            for number, kept in enumerate(self._step.unchanged)
            if (places := self._settable(kept, with_key=False))
        ]

    def move(self, place: str | None = None) -> sql.Composed:
        """Give rows another key, keeping what is not known; of all rows, or of the one at a ctid.

        One statement, since a key may be both left and taken in it.
        """
        return sql.SQL("UPDATE {} t SET {} FROM {} s WHERE {} AND {}").format(
            self._target,
            sql.SQL(", ").join(
                sql.SQL("{} = {}").format(self._names[column], self._moved_cell(column))
                for column in self._settable((), with_key=True)
            ),
            self._stage,
            _TRUE if place is None else sql.SQL("s.ctid = {}").format(sql.Literal(place)),
            self._same_old_key(),
        )

    def _moved_cell(self, column: int) -> sql.Composable:
        keeping = [number for number, kept in enumerate(self._step.unchanged) if column in kept]
        if not keeping:
            return self._cells[column]
        groups = sql.SQL(", ").join(map(sql.Literal, keeping))
        return sql.SQL("CASE WHEN s.g IN ({}) THEN t.{} ELSE {} END").format(
            groups, self._names[column], self._cells[column]
        )

    def places(self) -> sql.Composed:
        """Where the staged rows are, in the order in which they came.

        s.ctid: a bare one would be the text, in whose order 10 comes before 9.
        """
        return sql.SQL("SELECT s.ctid::text FROM {} s ORDER BY s.ctid").format(self._stage)

    def _assignments(self, places: list[int]) -> sql.Composed:
        return sql.SQL(", ").join(
            sql.SQL("{} = {}").format(self._names[place], self._cells[place]) for place in places
        )

    def _insert(self, condition: sql.Composable, ending: sql.Composable) -> sql.Composed:
        # OVERRIDING: a clone takes the source's values also for identity columns.
        return sql.SQL(
            "INSERT INTO {} AS t ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} s WHERE {} {}"
        ).format(
            self._target,
            sql.SQL(", ").join([*fixed_names(self._plan), *self._names]),
            sql.SQL(", ").join([*fixed_values(self._plan), *self._cells]),
            self._stage,
            condition,
            ending,
        )

    def insert(self) -> sql.Composed:
        """Add the new rows."""
        return self._insert(self._is("I"), sql.SQL(""))

    def insert_all(self) -> list[sql.Composed]:
        """Add every row that is to be there in the end, with what `keep_others` has kept."""
        wanted = _TRUE if self._step.kind == "move" else self._is("I", "U", "R")
        if not self._others:
            return [self._insert(wanted, sql.SQL(""))]
        is_kept = sql.SQL("EXISTS (SELECT FROM {} k WHERE k.place = s.ctid)").format(_KEPT)
        return [
            self._insert(sql.SQL("{} AND NOT {}").format(wanted, is_kept), sql.SQL("")),
            sql.SQL(
                "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE"
                " SELECT {} FROM {} s JOIN {} k ON k.place = s.ctid WHERE {}"
            ).format(
                self._target,
                sql.SQL(", ").join([*fixed_names(self._plan), *self._names, *self._others]),
                sql.SQL(", ").join([*fixed_values(self._plan), *self._cells, *self._kept_cells()]),
                self._stage,
                _KEPT,
                wanted,
            ),
            sql.SQL("DROP TABLE {}").format(_KEPT),
        ]

    def _kept_cells(self) -> list[sql.Identifier]:
        return [sql.Identifier("k", f"o{number}") for number in range(len(self._others))]

    def keep_others(self) -> list[sql.Composed]:
        """Keep what the touched rows hold in columns that are not delivered to.

        The stage must not change until `insert_all`: it is its rows' places that are noted.
        """
        if not self._others:
            return []
        cells = sql.SQL(", ").join(
            sql.SQL("t.{} AS {}").format(name, sql.Identifier(f"o{number}"))
            for number, name in enumerate(self._others)
        )
        found = self._same_old_key() if self._step.kind == "move" else self._same_key()
        return [
            sql.SQL(
                "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS"
                " SELECT DISTINCT ON (s.ctid) s.ctid AS place, {} FROM {} s JOIN {} t ON {}"
            ).format(sql.Identifier(_KEPT_NAME), cells, self._stage, self._target, found)
        ]

    def insert_missing(self, *, only_replaces: bool = False) -> sql.Composed:
        """Add rows that an UPDATE or REPLACE has wholly and that are not there."""
        condition = sql.SQL("{} AND {} AND NOT EXISTS (SELECT FROM {} t WHERE {})").format(
            self._is("R") if only_replaces else self._is_written_over(),
            self._group(0),
            self._target,
            self._same_key(),
        )
        return self._insert(condition, sql.SQL(""))

    def insert_or_update(self) -> sql.Composed:
        """Add new rows, or change those that are there."""
        places = self._settable((), with_key=False)
        action = (
            sql.SQL("UPDATE SET {}").format(
                sql.SQL(", ").join(
                    sql.SQL("{0} = EXCLUDED.{0}").format(self._names[place]) for place in places
                )
            )
            if places
            else sql.SQL("NOTHING")
        )
        key = sql.SQL(", ").join(
            [*fixed_names(self._plan), *(self._names[place] for place in self._step.key)]
        )
        return self._insert(self._is("I"), sql.SQL("ON CONFLICT ({}) DO {}").format(key, action))

    def completions(self) -> list[sql.Composed]:
        """Fill in, at the stage, what only the target knows."""
        found = self._same_old_key() if self._step.kind == "move" else self._same_key()
        return [
            sql.SQL("UPDATE {} s SET {} FROM {} t WHERE {} AND {}").format(
                self._stage,
                sql.SQL(", ").join(
                    sql.SQL("{} = t.{}").format(sql.Identifier(f"c{place}"), self._names[place])
                    for place in kept
                ),
                self._target,
                self._group(number),
                found,
            )
            for number, kept in enumerate(self._step.unchanged)
            if kept
        ]

    def clear_touched(self) -> list[sql.Composed]:
        """Take away every row that will be written anew or is gone."""
        statements = [
            sql.SQL("DELETE FROM {} t USING {} s WHERE {}").format(
                self._target, self._stage, self._same_key()
            )
        ]
        if self._step.kind == "move":
            statements.append(
                sql.SQL("DELETE FROM {} t USING {} s WHERE {}").format(
                    self._target, self._stage, self._same_old_key()
                )
            )
        return statements

    def _key_texts(self) -> sql.Composed:
        """The key by which the target knows the row: before a move, the old one."""
        moves = self._step.kind == "move"
        return sql.SQL(", ").join(
            sql.SQL("{} || '=' || {}::text").format(
                sql.Literal(self._step.columns[place].name),
                sql.Identifier("s", f"k{number}") if moves else self._cells[place],
            )
            for number, place in enumerate(self._step.key)
        )

    def key_at(self, place: str) -> sql.Composed:
        """The key of the staged row at a ctid, as texts `column=value`."""
        return sql.SQL("SELECT {} FROM {} s WHERE s.ctid = {}").format(
            self._key_texts(), self._stage, sql.Literal(place)
        )

    def keys_at(self, place: str) -> sql.Composed:
        """The new and the old key of the staged row at a ctid, as arrays of texts."""
        olds = range(len(self._step.key)) if self._step.kind == "move" else ()
        new = [sql.SQL("{}::text").format(self._cells[each]) for each in self._step.key]
        old = [sql.SQL("{}::text").format(sql.Identifier("s", f"k{each}")) for each in olds]
        return sql.SQL(
            "SELECT ARRAY[{}]::text[], ARRAY[{}]::text[] FROM {} s WHERE s.ctid = {}"
        ).format(sql.SQL(", ").join(new), sql.SQL(", ").join(old), self._stage, sql.Literal(place))


def fixed_names(plan: TablePlan) -> list[sql.Identifier]:
    """The columns that say which source a row is from."""
    return [sql.Identifier(each.name) for each in plan.fixed]


def fixed_values(plan: TablePlan) -> list[sql.Composed]:
    """What they say of a row of this source."""
    return [
        sql.SQL("{}::{}").format(sql.Literal(each.value), sql.SQL(each.type)) for each in plan.fixed
    ]


def same_value(plan: TablePlan, name: str) -> sql.Composed:
    """That a column is the same in the row `t` of the target and in `s`, which has the target's types."""
    own = next((each for each in plan.columns if each.name == name), None)
    sides = [sql.Identifier(side, name) for side in ("t", "s")]
    one, other = sides if own is None else [_undomained(own, side) for side in sides]
    return sql.SQL("{} {} {}").format(one, sql.SQL(plan.equals(name)), other)


def _undomained(column: TargetColumn, value: sql.Composable) -> sql.Composable:
    """A value of a target column. Operators of enums do not see through a domain; an index does."""
    if not column.is_domain:
        return value
    return sql.SQL("{}::{}").format(value, sql.SQL(column.stage_type))


def of_this_source(plan: TablePlan) -> sql.Composable:
    """That the row `t` of the target is of this source; true where rows do not say it."""
    if not plan.fixed:
        return _TRUE
    return sql.SQL(" AND ").join(
        sql.SQL("t.{} {} {}").format(sql.Identifier(each.name), sql.SQL(each.equals), value)
        for each, value in zip(plan.fixed, fixed_values(plan), strict=True)
    )


def _row_text(cells: list[Any]) -> sql.Composed:
    return sql.SQL("ROW({})::text").format(sql.SQL(", ").join(cells))


def _rest(cells: Sequence[sql.Composable], loose: list[int]) -> sql.Composed:
    """What of a row is compared as text where some columns are not: the others, and whether those are NULL."""
    return _row_text(
        [
            sql.SQL("{} IS NULL").format(cell) if place in loose else cell
            for place, cell in enumerate(cells)
        ]
    )


def _called(cells: list[sql.Composed], names: list[sql.Identifier]) -> sql.Composed:
    named = [sql.SQL("{} AS {}").format(*each) for each in zip(cells, names, strict=True)]
    return sql.SQL(", ").join(named)


def _numbers(last: int) -> sql.Composed:
    """1, 2 …, as GROUP BY takes them."""
    return sql.SQL(", ").join(sql.Literal(number) for number in range(1, last + 1))
