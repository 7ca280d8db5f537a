"""All that a webhook sink keeps: the outbox, subscriptions, and what is parked for them.

How far a subscription is and what of it is parked are recorded in one transaction.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.lsn import Lsn
from penstock.sinks.webhook.database import as_bytes, database_of
from penstock.sinks.webhook.outbox import RETAINING, Outbox
from penstock.sinks.webhook.rows import Kept, ParkedRow, Place
from penstock.sinks.webhook.wants import made_id

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from penstock.sinks.kind import SinkPlace
    from penstock.sinks.webhook.rows import Progress

_SUBSCRIPTIONS = """
SELECT id, is_fixed, wanted, secrets, created_at, from_lsn, epoch, state, seq, row, delivered_lsn,
    delivered, failing_since, error, lost_after_lsn, lost_to_lsn, held_until FROM subscriptions
"""

# What pgstream knows a subscription by.
_PGSTREAM_KEY = ("url", "tables", "format")


def store_of(place: SinkPlace[Any]) -> Store:
    """What a sink keeps, unopened."""
    return Store(database_of(place), (place.pipeline, place.source_id), place.keyring)


def now_text() -> str:
    """Now, for people."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Store(Outbox):
    """One connection to all of it."""

    def prune(self, retain_bytes: int) -> list[str]:
        """Remove entries that everybody has passed, and the oldest beyond a limit; who is cut off by that.

        One that is cut off has lost documents: its state says so, and between which positions. What is behind them is
        kept for it, as for others.
        """
        cut_off: list[str] = []
        with self._transaction():
            excess = self.outbox_bytes - retain_bytes
            if excess > 0:
                cut_off = self._cut(excess)
            marks = ", ".join("?" * len(RETAINING))
            first = self._db.execute(
                f"SELECT min(seq) FROM subscriptions WHERE state IN ({marks})", RETAINING
            ).fetchone()[0]
            published = self.published
            until = published + 1 if first is None else min(first, published + 1)
            self._delete("seq < ?", until)
        self._db.execute("PRAGMA incremental_vacuum(2000)").fetchall()
        return cut_off

    def _cut(self, excess: int) -> list[str]:
        kept_from, lost_lsn = 0, 0
        for seq, size, lsn in self._db.execute(
            "SELECT seq, bytes, commit_lsn FROM outbox ORDER BY seq"
        ):
            if excess <= 0:
                break
            excess -= size
            kept_from, lost_lsn = seq + 1, lsn
        marks = ", ".join("?" * len(RETAINING))
        behind = [
            _kept(row)
            for row in self._db.execute(
                f"{_SUBSCRIPTIONS} WHERE state IN ({marks}) AND seq < ?", (*RETAINING, kept_from)
            )
        ]
        for each in behind:
            self._lose(each, kept_from, str(Lsn(lost_lsn)))
        cut_off = [each.id for each in behind if each.state != "cut_off"]
        if cut_off:
            self._bump()
        return cut_off

    def _lose(self, kept: Kept, seq: int, lost_lsn: str) -> None:
        """A subscription goes on behind what was deleted, once somebody resumes it."""
        # While it is cut off, what it loses is one gap.
        is_more = kept.state == "cut_off"
        after = kept.lost_after_lsn if is_more else kept.delivered_lsn or kept.from_lsn
        gap = f"documents{f' after {after}' if after else ''} up to {lost_lsn} are gone"
        self._db.execute(
            "UPDATE subscriptions SET state = 'cut_off', error = ?, epoch = epoch + 1, seq = ?,"
            " row = 0, from_lsn = ?, lost_after_lsn = ?, lost_to_lsn = ? WHERE id = ?",
            (f"{gap}: retain_bytes was reached", seq, lost_lsn, after, lost_lsn, kept.id),
        )

    # --- subscriptions -------------------------------------------------------------------------

    def subscriptions(self) -> list[Kept]:
        """All, in the order in which they were made."""
        return [_kept(row) for row in self._db.execute(f"{_SUBSCRIPTIONS} ORDER BY rowid")]

    def subscription(self, id_: str) -> Kept | None:
        """One; None where there is none of that id."""
        row = self._db.execute(f"{_SUBSCRIPTIONS} WHERE id = ?", (id_,)).fetchone()
        return None if row is None else _kept(row)

    def add(
        self, made: str, wanted: Mapping[str, Any], secrets: Collection[tuple[str, float | None]]
    ) -> None:
        """A subscription from the sink's position on, which it names."""
        with self._transaction():
            self._insert_subscription(made, wanted, secrets, is_fixed=False)

    def subscribe(self, made: str, wanted: Mapping[str, Any]) -> str:
        """Have one that wants this, unsigned; its id: `made`, unless one of the same URL, tables and format is there.

        That one wants this from where it is; where it was ended it begins again.
        """
        with self._transaction():
            for known in self.subscriptions():
                has_same = all(known.wanted[name] == wanted[name] for name in _PGSTREAM_KEY)
                if has_same and not known.is_fixed:
                    self._change(known.id, wanted, None)
                    if known.state != "active":
                        self._resume(known.id)
                    return known.id
            self._insert_subscription(made, wanted, (), is_fixed=False)
        return made

    def _insert_subscription(
        self,
        made: str,
        wanted: Mapping[str, Any],
        secrets: Collection[tuple[str, float | None]],
        *,
        is_fixed: bool,
    ) -> None:
        lsn = self.delivered_lsn
        self._db.execute(
            "INSERT INTO subscriptions"
            " (id, is_fixed, wanted, secrets, created_at, from_lsn, delivered_lsn, seq)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                made,
                is_fixed,
                json.dumps(wanted),
                json.dumps(list(secrets)),
                now_text(),
                lsn,
                lsn,
                self.published + 1,
            ),
        )
        self._bump()

    def set_fixed(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        """Have exactly these among those that the file names, by id; who is known stays where it is.

        So does who was given an id, or another one, or whose id another one has from now on.
        """
        with self._transaction():
            known = self._fixed()
            former = _former(known, wanted)
            for gone in known.keys() - set(former.values()):
                self._db.execute("DELETE FROM subscriptions WHERE id = ?", (gone,))
                self._bump()
            moving = {made: id_ for made, id_ in former.items() if made != id_}
            for made, id_ in moving.items():  # two may change their ids with each other
                self._rename(id_, f"{made} from now on")
            for made in moving:
                self._rename(f"{made} from now on", made)
            for made, what in wanted.items():
                if made not in former:
                    self._insert_subscription(made, what, (), is_fixed=True)
                elif known[former[made]].wanted != what:
                    self._change(made, what, None)

    def leaving(self, wanted: Mapping[str, Mapping[str, Any]]) -> list[Kept]:
        """Those whom `set_fixed` would forget."""
        known = self._fixed()
        stay = set(_former(known, wanted).values())
        return [kept for id_, kept in known.items() if id_ not in stay]

    def _fixed(self) -> dict[str, Kept]:
        return {each.id: each for each in self.subscriptions() if each.is_fixed}

    def _rename(self, id_: str, made: str) -> None:
        self._db.execute("PRAGMA defer_foreign_keys = ON")
        self._db.execute("UPDATE subscriptions SET id = ? WHERE id = ?", (made, id_))
        self._db.execute("UPDATE parked SET subscription = ? WHERE subscription = ?", (made, id_))
        self._bump()

    def _change(self, id_: str, wanted: Mapping[str, Any], secrets: Collection[Any] | None) -> None:
        known = self.subscription(id_)
        self._db.execute(
            "UPDATE subscriptions SET wanted = ?, epoch = epoch + 1 WHERE id = ?",
            (json.dumps(wanted), id_),
        )
        if known is not None and known.wanted["url"] != wanted["url"]:
            # It was another receiver that wanted to be left alone.
            self._db.execute("UPDATE subscriptions SET held_until = NULL WHERE id = ?", (id_,))
        if secrets is not None:
            self._db.execute(
                "UPDATE subscriptions SET secrets = ? WHERE id = ?", (json.dumps(secrets), id_)
            )
        self._bump()

    def change(
        self, known: Kept, wanted: Mapping[str, Any], secrets: Collection[Any] | None = None
    ) -> bool:
        """Have a subscription want something else, from where it is; False where somebody has changed it meanwhile."""
        with self._transaction():
            kept = self.subscription(known.id)
            if kept is None or (kept.wanted, kept.secrets) != (known.wanted, known.secrets):
                return False
            self._change(known.id, wanted, secrets)
        return True

    def resume(self, id_: str) -> None:
        """Deliver again: from where it is, or from now on where nothing was kept for it."""
        with self._transaction():
            self._resume(id_)

    def _resume(self, id_: str) -> None:
        marks = ", ".join("?" * len(RETAINING))
        self._db.execute(
            "UPDATE subscriptions SET seq = ?, row = 0, from_lsn = ?"
            f" WHERE id = ? AND state NOT IN ({marks})",
            (self.published + 1, self.delivered_lsn, id_, *RETAINING),
        )
        self._db.execute(
            "UPDATE subscriptions SET state = 'active', error = NULL, failing_since = NULL,"
            " held_until = NULL, epoch = epoch + 1 WHERE id = ?",
            (id_,),
        )
        self._bump()

    def remove(self, id_: str) -> bool:
        """Forget a subscription, and what is parked for it."""
        with self._transaction():
            found = self._db.execute("DELETE FROM subscriptions WHERE id = ?", (id_,)).rowcount
            self._bump()
        return found > 0

    def record(self, news: Collection[Progress]) -> None:
        """How far deliveries are, and what of them is parked, as one.

        What is said of a subscription that somebody has changed meanwhile counts for its place alone.
        """
        with self._transaction():
            for each in news:
                known = self._db.execute(
                    "UPDATE subscriptions SET seq = ?, row = ?, delivered = delivered + ?,"
                    " delivered_lsn = coalesce(?, delivered_lsn)"
                    " WHERE id = ? AND (seq < ? OR (seq = ? AND row <= ?))",
                    (
                        *each.place,
                        each.delivered,
                        each.delivered_lsn,
                        each.id,
                        each.place.seq,
                        *each.place,
                    ),
                ).rowcount
                if known:
                    self._record_parked(each)
                self._db.execute(
                    "UPDATE subscriptions SET state = ?, error = ?, failing_since = ?, held_until = ?"
                    " WHERE id = ? AND epoch = ?",
                    (
                        each.state,
                        each.error,
                        each.failing_since,
                        each.held_until,
                        each.id,
                        each.epoch,
                    ),
                )

    def _record_parked(self, news: Progress) -> None:
        at = now_text()
        self._db.executemany(
            "INSERT INTO parked (subscription, document, id, reason, parked_at)"
            " VALUES (?, ?, ?, ?, ?)",
            [
                (news.id, self._stored_document(document), id_, reason, at)
                for document, id_, reason in news.parked
            ],
        )
        self._db.executemany(
            "DELETE FROM parked WHERE number = ?", [(number,) for number in news.unparked]
        )
        self._db.executemany(
            # Somebody may have asked for it to be dropped meanwhile.
            "UPDATE parked SET reason = ?, request = nullif(request, 'retry') WHERE number = ?",
            [(reason, number) for number, reason in news.refused_again.items()],
        )

    def _stored_document(self, document: str) -> str | bytes:
        return document if self._encryptor is None else self._sealed(document.encode())

    # --- what is parked ------------------------------------------------------------------------

    def parked(self, subscription: str | None = None) -> list[ParkedRow]:
        """What is parked, in the source's order, for one subscription or for all.

        Raises:
            LogKeyMissing: some of it is encrypted with a key that is not given.
        """
        rows = self._db.execute(
            "SELECT document, number, subscription, id, reason, parked_at, request FROM parked"
            " WHERE subscription = coalesce(?, subscription) ORDER BY number",
            (subscription,),
        ).fetchall()
        return [ParkedRow(self._plain(as_bytes(stored)).decode(), *row) for stored, *row in rows]

    def asked(self) -> set[str]:
        """Subscriptions of which somebody wants what is parked tried again, or dropped."""
        rows = self._db.execute("SELECT DISTINCT subscription FROM parked WHERE request NOT NULL")
        return {row[0] for row in rows}

    def parked_counts(self) -> dict[str, int]:
        """How many are parked, by subscription."""
        rows = self._db.execute("SELECT subscription, count(*) FROM parked GROUP BY subscription")
        return dict(rows.fetchall())

    def ask_parked(self, request: str, numbers: Collection[int]) -> None:
        """Leave a request for who delivers."""
        with self._transaction():
            self._db.executemany(
                "UPDATE parked SET request = ? WHERE number = ?", [(request, n) for n in numbers]
            )
            self._bump()

    def drop_asked(self, subscription: str) -> None:
        """Forget what somebody wants dropped of a subscription, for good."""
        with self._transaction():
            self._db.execute(
                "DELETE FROM parked WHERE subscription = ? AND request = 'drop'", (subscription,)
            )

    def drop_parked(self, numbers: Collection[int]) -> None:
        """Forget some for good."""
        with self._transaction():
            self._db.executemany("DELETE FROM parked WHERE number = ?", [(n,) for n in numbers])
            self._bump()


def _former(known: Mapping[str, Kept], wanted: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Which of those that are known has which id from now on: by its id, the one that it had, mostly the same.

    An id that the file gives decides. Of others a part is their number among those of one URL, which moves as one is given
    an id, or goes: who wants the very same is the same one.
    """
    left = dict(known)
    found = {}

    def match(is_same: Callable[[str, str], bool]) -> None:
        for made in wanted:
            if made in found:
                continue
            # Those that want the same may be several: one stays as it is where it can.
            same = sorted((id_ for id_ in left if is_same(made, id_)), key=lambda id_: id_ != made)
            if same:
                found[made] = same[0]
                del left[same[0]]

    def is_given(made: str) -> bool:
        return not made.startswith(made_id(wanted[made]["url"]))

    match(lambda made, id_: made == id_ and is_given(made))
    match(lambda made, id_: wanted[made] == left[id_].wanted)
    match(lambda made, id_: made == id_)
    match(lambda made, id_: wanted[made]["url"] == left[id_].wanted["url"])
    return found


def _kept(row: tuple[Any, ...]) -> Kept:
    return Kept(
        id=row[0],
        is_fixed=bool(row[1]),
        wanted=json.loads(row[2]),
        secrets=tuple((secret, until) for secret, until in json.loads(row[3])),
        created_at=row[4],
        from_lsn=row[5],
        epoch=row[6],
        state=row[7],
        place=Place(row[8], row[9]),
        delivered_lsn=row[10],
        delivered=row[11],
        failing_since=row[12],
        error=row[13],
        lost_after_lsn=row[14],
        lost_to_lsn=row[15],
        held_until=row[16],
    )
