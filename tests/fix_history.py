"""A history kept one change after another, slow and obviously right, and random changes to feed it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.testing import UNCHANGED, delete, insert, transaction, truncate, update

if TYPE_CHECKING:
    import random

    from penstock.changes.pgoutput import Relation

ALWAYS = "1900"
STILL = "9999"


@dataclass
class Version:
    """One row of a history. `came` is when its key came, where it is current from the beginning."""

    start: Any
    values: tuple[Any, ...]
    came: int
    end: Any = STILL
    deleted: bool = False


@dataclass
class History:
    """What a history table must hold, by key."""

    versions: dict[Any, list[Version]] = field(default_factory=dict)

    def rows(self) -> list[tuple[Any, ...]]:
        """All versions, sorted by key and time."""
        return [
            (*one.values, one.start, one.end, one.deleted)
            for key in sorted(self.versions)
            for one in self.versions[key]
        ]

    def current(self) -> dict[Any, tuple[Any, ...]]:
        """The rows that are still so."""
        return {
            key: of_key[-1].values
            for key, of_key in self.versions.items()
            if of_key and of_key[-1].end == STILL
        }

    def insert(self, key: Any, at: int, values: tuple[Any, ...]) -> None:
        """A key that is new has been so from the beginning; one that was there starts now."""
        if not self.versions.get(key):
            self.versions[key] = [Version(ALWAYS, values, at)]
        else:
            self.come(key, at, values)

    def come(self, key: Any, at: int, values: tuple[Any, ...]) -> None:
        """A key begins now. Gone and come again at one instant is a change."""
        of_key = self.versions.setdefault(key, [])
        if of_key and of_key[-1].end == at:
            of_key[-1].deleted = False
        of_key.append(Version(at, values, at))

    def update(self, key: Any, at: int, values: tuple[Any, ...]) -> None:
        """The current version ends, something else begins."""
        last = self.versions[key][-1]
        if last.came == at:
            last.values = values
            return
        last.end = at
        self.versions[key].append(Version(at, values, at))

    def end(self, key: Any, at: int, *, deleted: bool) -> None:
        """The current version ends; if it began at the same instant it never was."""
        of_key = self.versions[key]
        if of_key[-1].came == at:
            of_key.pop()
            if of_key and of_key[-1].end == at:
                of_key[-1].deleted = deleted
            return
        of_key[-1].end, of_key[-1].deleted = at, deleted

    def truncate(self, at: int) -> None:
        """Everything ends."""
        for key in self.current():
            self.end(key, at, deleted=True)


@dataclass
class Changes:
    """Random transactions on one table of id, n, big; their messages, and the history they make."""

    dice: random.Random
    table: Relation
    most_ids: int = 5
    at: int = 800_000_000_000_000
    history: History = field(default_factory=History)
    # One entry per transaction: its instant and its messages.
    transactions: list[tuple[int, list[bytes]]] = field(default_factory=list)

    def transact(self, most: int) -> None:
        """One more transaction."""
        self.at += self.dice.randint(1, 2_000_000)
        messages: list[bytes] = []
        left: set[Any] = set()
        touched: set[Any] = set()
        for _ in range(self.dice.randint(1, most)):
            messages += self._change(left, touched)
        if messages:
            self.transactions.append((self.at, messages))

    def _change(self, left: set[Any], touched: set[Any]) -> list[bytes]:
        dice, history, at = self.dice, self.history, self.at
        rows = history.current()
        ids = [str(number) for number in range(self.most_ids)]
        key = dice.choice(ids)
        new = (key, str(dice.randint(0, 99)), dice.choice(["", "x", "long"]))
        if dice.random() < 0.02:
            history.truncate(at)
            touched.update(ids)
            return [truncate(self.table)]
        if key not in rows:
            # What leaves and comes again within a transaction, to leave once more, is another story.
            if key in left:
                return []
            history.insert(key, at, new)
            touched.add(key)
            return [insert(self.table, new)]
        old = rows[key]
        way = dice.choice("UUUDK")
        reported: dict[str, Any] = {}
        if self.table.replica_identity == "f":
            reported["before"] = old
        if way == "D":
            history.end(key, at, deleted=True)
            touched.add(key)
            return [delete(self.table, **(reported or {"key": [key]}))]
        keeps_big = dice.random() < 0.4
        values = (key, new[1], old[2] if keeps_big else new[2])
        if way == "K":
            free = [each for each in ids if each not in rows and each not in touched]
            if not free:
                return []
            to = dice.choice(free)
            values = (to, *values[1:])
            history.end(key, at, deleted=False)
            history.come(to, at, values)
            left.add(key)
            touched |= {key, to}
            reported = reported or {"key": [key]}
        else:
            history.update(key, at, values)
            touched.add(key)
        sent = [*values[:2], UNCHANGED if keeps_big else values[2]]
        return [update(self.table, sent, **reported)]

    def batches(self) -> list[list[list[bytes]]]:
        """The messages in batches of slices, cut anywhere; a batch holds whole transactions."""
        dice = self.dice
        batches: list[list[list[bytes]]] = []
        for number, (at, messages) in enumerate(self.transactions):
            if not batches or dice.random() < 0.3:
                batches.append([[]])
            begin = 0
            while begin < len(messages):
                end = (
                    len(messages) if dice.random() < 0.5 else dice.randint(begin + 1, len(messages))
                )
                part = transaction(0x1000 + number * 16, *messages[begin:end], committed_at=at)
                batches[-1][-1] += part
                if end < len(messages) or dice.random() < 0.3:
                    batches[-1].append([])
                begin = end
        return [[part for part in batch if part] for batch in batches]
