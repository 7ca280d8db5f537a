"""The SQL that merges one step of a history. Builds statements and runs none.

`t` is the target, `s` the stage: s.f first of its key in the step, s.a from when, s.u until when (NULL:
still), s.d whether that is by a DELETE, s.op I, U, R (another row), N (came by a key change) for versions
that begin, D, C (left by a key change), G (came and went) for what only ends.

One transaction of the source may come in several steps. A key that is new has been so from the beginning, which
hides when it came. Where its transaction goes on in another step, the key is noted in a temporary table (`Carried`),
so that what changes it there changes a row that is new with this instant: one row is left of it, or none.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from psycopg import sql

from penstock.sinks.postgres.mapping.target_shape import FIRST_INSTANT, LAST_INSTANT
from penstock.sinks.postgres.merge.statements import Statements, fixed_names, fixed_values

if TYPE_CHECKING:
    from penstock.sinks.postgres.mapping.plan import (
        HistoryPlan,
        StagedStep,
        TablePlan,
        TargetColumn,
    )


_2000 = datetime(2000, 1, 1, tzinfo=UTC)
BEGINNING = ("I", "U", "R", "N")
NEW = ("I", "N")


class Versions(Statements):
    """The SQL of one step."""

    def __init__(
        self, plan: TablePlan, history: HistoryPlan, step: StagedStep, stage: sql.Identifier
    ) -> None:
        super().__init__(plan, step, stage)
        self._start = sql.Identifier(history.start)
        self._end = sql.Identifier(history.end)
        self._deleted = sql.Identifier(history.deleted)
        self._first = self._instant(FIRST_INSTANT, history.start_type)
        self._last = self._instant(LAST_INSTANT, history.end_type)
        self._is_open = sql.SQL("t.{} = {}").format(self._end, self._last)
        self._start_type = history.start_type

    @staticmethod
    def _instant(text: str, kind: str) -> sql.Composed:
        return sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(kind))

    def _at(self, microseconds: int) -> sql.Composed:
        moment = _2000 + timedelta(microseconds=microseconds)
        return self._instant(moment.isoformat(" "), self._start_type)

    def _format(self, template: str, **parts: Any) -> sql.Composed:
        return sql.SQL(template).format(
            target=self._target,
            stage=self._stage,
            start=self._start,
            end=self._end,
            deleted=self._deleted,
            first=self._first,
            last=self._last,
            is_open=self._is_open,
            **parts,
        )

    def count_seen(self) -> sql.Composed:
        """How many new keys are not new to the target."""
        return self._format(
            "SELECT count(*) FROM {stage} s WHERE s.f AND {new}"
            " AND EXISTS (SELECT FROM {target} t WHERE {same})",
            new=self._is(*NEW),
            same=self._same_key(),
        )

    def counts(self) -> sql.Composed:
        """How many keys begin with which operation."""
        return self._format("SELECT s.op::text, count(*) FROM {stage} s WHERE s.f GROUP BY 1")

    def keys(self, *letters: str, are_open: bool, most: int, only: str = "true") -> sql.Composed:
        """Keys, as texts, whose row is open at the target, or is not."""
        found = self._same_old_key() if self._step.kind == "move" else self._same_key()
        return self._format(
            "SELECT {texts} FROM {stage} s WHERE s.f AND {wanted} AND {only} AND {word}"
            " (SELECT FROM {target} t WHERE {found} AND {is_open}) LIMIT {most}",
            texts=self._key_texts(),
            wanted=self._is(*letters),
            only=sql.SQL(only),
            word=sql.SQL("EXISTS" if are_open else "NOT EXISTS"),
            found=found,
            most=sql.Literal(most),
        )

    def completions(self) -> list[sql.Composed]:
        """Fill in, at the stage, what only the target knows."""
        found = self._same_old_key() if self._step.kind == "move" else self._same_key()
        return [
            self._format(
                "UPDATE {stage} s SET {cells} FROM {target} t WHERE {group} AND {found} AND {is_open}",
                cells=sql.SQL(", ").join(
                    sql.SQL("{} = t.{}").format(sql.Identifier(f"c{place}"), self._names[place])
                    for place in kept
                ),
                group=self._group(number),
                found=found,
            )
            for number, kept in enumerate(self._step.unchanged)
            if kept
        ]

    def close(self, *, with_new: bool) -> sql.Composed:
        """End the open rows of keys that change: how many, by operation."""
        return self._close(self._ends(with_new=with_new), self._same_key())

    def close_old(self) -> sql.Composed:
        """End the open rows of keys that are left for others."""
        return self._close(sql.SQL("true"), self._same_old_key())

    def _ends(self, *, with_new: bool) -> sql.Composable:
        """Operations that end a row; those of new keys do where the target has one open."""
        return self._is("U", "R", "D", "C", "G", *(NEW if with_new else ()))

    def _close(self, ending: sql.Composable, found: sql.Composable) -> sql.Composed:
        return self._format(
            "WITH closed AS (UPDATE {target} t SET {end} = s.a, {deleted} = {by_delete}"
            " FROM {stage} s WHERE s.f AND {ending} AND {found} AND {is_open} AND t.{start} < s.a"
            " RETURNING s.op) SELECT op::text, count(*) FROM closed GROUP BY 1",
            by_delete=self._is("D", "G"),
            ending=ending,
            found=found,
        )

    def close_whole(self) -> sql.Composed:
        """The same for rows without a key: as many of equal ones as the changes say, the last that came first."""
        theirs = [sql.SQL("t.{}").format(name) for name in self._names]
        return self._format(
            "WITH ended AS MATERIALIZED (SELECT {ours} AS r, s.op, s.a,"
            " row_number() OVER (PARTITION BY {ours} ORDER BY s.a) AS n"
            " FROM {stage} s WHERE {ending}),"
            " found AS (SELECT t.tableoid AS part, t.ctid AS place, {theirs} AS r,"
            " row_number() OVER (PARTITION BY {theirs} ORDER BY t.{start} DESC) AS n"
            " FROM {target} t WHERE {fixed} AND {is_open} AND {theirs} IN (SELECT r FROM ended)),"
            " closed AS (UPDATE {target} t SET {end} = s.a, {deleted} = {by_delete}"
            " FROM found JOIN ended s USING (r, n)"
            " WHERE t.tableoid = found.part AND t.ctid = found.place"
            " RETURNING s.op, t.{start} >= s.a AS late)"
            " SELECT op::text, count(*), count(*) FILTER (WHERE late) FROM closed GROUP BY 1",
            ours=_row_text(self._cells),
            theirs=_row_text(theirs),
            ending=self._is("D", "C"),
            by_delete=self._is("D"),
            fixed=self._fixed,
        )

    def drop_late(self) -> sql.Composed:
        """Rows without a key that ended before they began never were."""
        return self._format(
            "DELETE FROM {target} t WHERE {fixed} AND t.{start} >= t.{end}", fixed=self._fixed
        )

    def close_all(self, at: int) -> list[sql.Composed]:
        """End every row of this source; those that would end before they began never were."""
        moment = self._at(at)
        close = self._format(
            "UPDATE {target} t SET {end} = {at}, {deleted} = true"
            " WHERE {fixed} AND {is_open} AND t.{start} < {at}",
            at=moment,
            fixed=self._fixed,
        )
        if not self._step.key:
            never = self._format(
                "DELETE FROM {target} t WHERE {fixed} AND {is_open}", fixed=self._fixed
            )
            return [close, never]
        listed = [self._names[place] for place in self._step.key]
        never = self._format(
            "WITH never AS (DELETE FROM {target} t WHERE {fixed} AND {is_open}"
            " RETURNING {keys}, t.{start})"
            " UPDATE {target} t SET {deleted} = true FROM never"
            " WHERE {fixed} AND t.{end} = never.{start} AND {same}",
            fixed=self._fixed,
            keys=sql.SQL(", ").join(sql.SQL("t.{}").format(name) for name in listed),
            same=sql.SQL(" AND ").join(
                self._equal(
                    place,
                    self._theirs(place),
                    self._undomained(place, sql.SQL("never.{}").format(self._names[place])),
                )
                for place in self._step.key
            ),
        )
        return [close, never]

    def take_late(self, *, with_new: bool = False) -> sql.Composed:
        """Open rows that would end before they began never were; how many, by operation.

        What takes the place of one begins where it did.
        """
        is_move = self._step.kind == "move"
        keys = [(cell, sql.Identifier(f"e{number}")) for number, cell in enumerate(self._matched())]
        return self._format(
            "WITH never AS (DELETE FROM {target} t USING {stage} s"
            " WHERE s.f AND {ending} AND {found} AND {is_open} AND t.{start} >= s.a"
            " RETURNING {keys}, s.op, t.{start} AS since),"
            " lifted AS (UPDATE {stage} s SET {lifted} FROM never WHERE {same})"
            " SELECT op::text, count(*) FROM never GROUP BY 1",
            ending=sql.SQL("true") if is_move else self._ends(with_new=with_new),
            found=self._same_old_key() if is_move else self._same_key(),
            keys=sql.SQL(", ").join(sql.SQL("s.{} AS {}").format(*each) for each in keys),
            lifted=_LIFTED,
            same=sql.SQL(" AND ").join(
                self._equal(place, sql.SQL("s.{}").format(cell), sql.SQL("never.{}").format(name))
                for place, (cell, name) in zip(self._step.key, keys, strict=True)
            ),
        )

    def delete_before_late(self) -> sql.Composed:
        """The DELETE of what never was is of what went before it; unless the key comes again at once."""
        return self._format(
            "UPDATE {target} t SET {deleted} = true FROM {stage} s"
            " WHERE {found} AND t.{end} = s.a AND NOT t.{deleted}"
            " AND ((s.f AND {deletes}) OR (s.d AND s.u <= s.a)) AND NOT EXISTS"
            " (SELECT FROM {stage} n WHERE n.op IN ('I', 'U', 'R', 'N') AND n.a = s.a"
            " AND (n.u IS NULL OR n.u > n.a) AND {again})",
            found=self._same_key(),
            deletes=self._is("D", "G"),
            again=self._same_staged("n"),
        )

    def _matched(self) -> list[sql.Identifier]:
        """The staged columns by which a row of the target is found."""
        letter = "k" if self._step.kind == "move" else "c"
        return [
            sql.Identifier(f"{letter}{number if letter == 'k' else place}")
            for number, place in enumerate(self._step.key)
        ]

    def lift_over_past(self) -> sql.Composed:
        """No row begins before an earlier one of its key has ended."""
        cells = [sql.Identifier(f"c{place}") for place in self._step.key]
        return self._format(
            "WITH past AS (SELECT {keys}, max(t.{end}) AS since FROM {target} t"
            " JOIN {stage} s ON {found} WHERE s.f AND {beginning} AND t.{end} > s.a"
            " AND NOT {is_open} GROUP BY {keys})"
            " UPDATE {stage} s SET {lifted} FROM past never WHERE {same}",
            keys=sql.SQL(", ").join(sql.SQL("s.{}").format(cell) for cell in cells),
            found=self._same_key(),
            beginning=self._is(*BEGINNING),
            lifted=_LIFTED,
            same=sql.SQL(" AND ").join(
                self._equal(place, sql.SQL("s.{}").format(cell), sql.SQL("never.{}").format(cell))
                for place, cell in zip(self._step.key, cells, strict=True)
            ),
        )

    def undo_deletions(self) -> sql.Composed:
        """A row that was deleted and came again at the same instant was changed."""
        return self._format(
            "UPDATE {target} t SET {deleted} = false FROM {stage} s WHERE s.f AND {new}"
            " AND {found} AND t.{end} = s.a AND t.{deleted}",
            new=self._is(*NEW),
            found=self._same_key(),
        )

    def insert_versions(self, *, may_be_seen: bool) -> sql.Composed:
        """Add every version: a key that is new to the target has been so from the beginning."""
        is_new: sql.Composable = sql.SQL("s.f AND {}").format(self._is("I"))
        if may_be_seen:
            is_new = self._format(
                "{is_new} AND NOT EXISTS (SELECT FROM {target} t WHERE {found})",
                is_new=is_new,
                found=self._same_key(),
            )
        return self._format(
            "INSERT INTO {target} ({names}, {start}, {end}, {deleted}) OVERRIDING SYSTEM VALUE"
            " SELECT {cells}, CASE WHEN {is_new} THEN {first} ELSE s.a END,"
            " coalesce(s.u, {last}), s.d FROM {stage} s"
            " WHERE {beginning} AND (s.u IS NULL OR s.u > s.a)",
            names=sql.SQL(", ").join([*fixed_names(self._plan), *self._names]),
            cells=sql.SQL(", ").join([*fixed_values(self._plan), *self._cells]),
            is_new=is_new,
            beginning=self._is(*BEGINNING),
        )

    def skip_existing(self) -> list[sql.Composed]:
        """INSERTs of keys that are open are left out; what came after them is not."""
        following = self._format(
            "SELECT FROM {stage} n WHERE NOT n.f AND n.a = s.a AND {same}",
            same=self._same_staged("n"),
        )
        return [
            self._format(
                "UPDATE {stage} s SET op = CASE WHEN s.d THEN 'D' WHEN s.u IS NULL THEN '-'"
                " ELSE 'C' END::\"char\", a = coalesce(s.u, s.a) FROM {target} t"
                " WHERE s.f AND {inserted} AND {found} AND {is_open}",
                inserted=self._is("I"),
                found=self._same_key(),
            ),
            self._format(
                "DELETE FROM {stage} s WHERE s.f AND ({passed} OR ({left} AND EXISTS ({following})))",
                passed=self._is("-"),
                left=self._is("C"),
                following=following,
            ),
            self.have_firsts(),
        ]

    def skip_missing(self) -> list[sql.Composed]:
        """UPDATEs of keys that are not open are left out, up to where the key comes anew."""
        if self._step.kind == "move":
            return [
                self._format(
                    "DELETE FROM {stage} s WHERE NOT EXISTS"
                    " (SELECT FROM {target} t WHERE {found} AND {is_open})",
                    found=self._same_old_key(),
                )
            ]
        return [
            self._format(
                "DELETE FROM {stage} s WHERE {updated} AND NOT EXISTS"
                " (SELECT FROM {target} t WHERE {found} AND {is_open}) AND NOT EXISTS"
                " (SELECT FROM {stage} n WHERE n.op NOT IN ('U', 'D', 'C', 'G') AND n.a < s.a"
                " AND {same})",
                updated=self._is("U"),
                found=self._same_key(),
                same=self._same_staged("n"),
            ),
            self.have_firsts(),
        ]

    def have_firsts(self) -> sql.Composed:
        """Every key has a first row again."""
        return self._format(
            "UPDATE {stage} s SET f = true WHERE NOT s.f AND NOT EXISTS"
            " (SELECT FROM {stage} n WHERE n.a < s.a AND {same})",
            same=self._same_staged("n"),
        )

    def _same_staged(self, other: str) -> sql.Composed:
        return sql.SQL(" AND ").join(
            self._equal(place, self._cells[place], sql.Identifier(other, f"c{place}"))
            for place in self._step.key
        )


_LIFTED = sql.SQL(
    "a = greatest(s.a, never.since),"
    " u = CASE WHEN s.u IS NOT NULL THEN greatest(s.u, never.since) END"
)


def _row_text(cells: list[Any]) -> sql.Composed:
    return sql.SQL("ROW({})::text").format(sql.SQL(", ").join(cells))


class Carried(Versions):
    """The SQL of one step, and of what it shares with those before and after it."""

    @property
    def carried_name(self) -> str:
        """Of the temporary table that holds the keys which began with the instant that goes on."""
        named = [*self._plan.target, *(f"{c.name} {c.stage_type}" for c in self._key_columns())]
        return f"carried_{hashlib.sha256('/'.join(named).encode()).hexdigest()[:16]}"

    def _key_columns(self) -> list[TargetColumn]:
        return [self._step.columns[place] for place in self._step.key]

    def _carried_keys(self) -> list[sql.Identifier]:
        return [sql.Identifier(f"e{number}") for number in range(len(self._step.key))]

    def make_carried(self) -> sql.Composed:
        """Have that table."""
        declared = [
            sql.SQL("{} {}").format(name, sql.SQL(column.stage_type))
            for name, column in zip(self._carried_keys(), self._key_columns(), strict=True)
        ]
        return sql.SQL("CREATE TEMPORARY TABLE IF NOT EXISTS {} ({}, at {}) ON COMMIT DROP").format(
            sql.Identifier(self.carried_name),
            sql.SQL(", ").join(declared),
            sql.SQL(self._start_type),
        )

    def carry(self, last_at: int) -> sql.Composed:
        """Note the keys that are new with the step's last instant, before they are inserted."""
        return self._format(
            "INSERT INTO {carried} SELECT {cells}, s.a FROM {stage} s"
            " WHERE s.f AND {inserted} AND s.u IS NULL AND s.a = {at}"
            " AND NOT EXISTS (SELECT FROM {target} t WHERE {found})",
            carried=self._carried,
            cells=sql.SQL(", ").join(self._cells[place] for place in self._step.key),
            inserted=self._is("I"),
            at=self._at(last_at),
            found=self._same_key(),
        )

    @property
    def _carried(self) -> sql.Identifier:
        return sql.Identifier("pg_temp", self.carried_name)

    def take_carried(self) -> list[sql.Composed]:
        """Rows that began with this very instant never were so: what changes them is new instead."""
        matched = self._matched()
        same = sql.SQL(" AND ").join(
            sql.SQL("k.{} {} s.{}").format(name, sql.SQL(column.equals), cell)
            for name, column, cell in zip(
                self._carried_keys(), self._key_columns(), matched, strict=True
            )
        )
        is_carried = sql.SQL("s.f AND k.at = s.a AND {}").format(same)
        became = (
            sql.SQL("op = s.op")
            if self._step.kind == "move"
            else sql.SQL("op = CASE WHEN {} THEN '-' ELSE 'I' END::\"char\"").format(
                self._is("D", "C", "G")
            )
        )
        return [
            self._format(
                "DELETE FROM {target} t USING {stage} s, {carried} k"
                " WHERE {is_carried} AND {found} AND {is_open} AND t.{start} = {first}",
                carried=self._carried,
                is_carried=is_carried,
                found=self._same_old_key() if self._step.kind == "move" else self._same_key(),
            ),
            self._format(
                "UPDATE {stage} s SET {became} FROM {carried} k WHERE {is_carried}",
                carried=self._carried,
                became=became,
                is_carried=is_carried,
            ),
            self._format(
                "DELETE FROM {carried} k USING {stage} s WHERE {is_carried}",
                carried=self._carried,
                is_carried=is_carried,
            ),
            # What came and went is as if it had not been.
            self._format("DELETE FROM {stage} s WHERE {undone}", undone=self._is("-")),
            self.have_firsts(),
        ]

    def take_all_carried(self, at: int) -> sql.Composed:
        """The same, where every row goes."""
        same = sql.SQL(" AND ").join(
            self._equal(place, self._theirs(place), sql.SQL("k.{}").format(name))
            for name, place in zip(self._carried_keys(), self._step.key, strict=True)
        )
        return self._format(
            "WITH taken AS (DELETE FROM {carried} k WHERE k.at = {at} RETURNING *)"
            " DELETE FROM {target} t USING taken k"
            " WHERE {fixed} AND {is_open} AND t.{start} = {first} AND {same}",
            carried=self._carried,
            at=self._at(at),
            fixed=self._fixed,
            same=same,
        )
