"""A server without a server: sends a script of transactions as pgoutput would, from any position on.

It describes columns as Postgres does (pgoutput.c, maybe_send_schema): once outside of streams, once in
each streamed transaction, again there after a rolled-back subtransaction; what a streamed
transaction described counts as described for all when it commits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fix_changes import Plain, logical_message, random_value, reference_decode, type_message
from penstock import testing
from penstock.changes.decode import Transaction
from penstock.table import TableName
from penstock.testing import UNCHANGED

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from penstock.changes.pgoutput import Relation


@dataclass
class Row:
    """One change; `make` gives its message, `tables` are those it must be known by."""

    tables: tuple[Relation, ...]
    kind: str
    values: dict[str, object]
    subxid: int

    def message(self, xid: int | None) -> bytes:
        if self.kind == "T":
            return testing.truncate(*self.tables, xid=xid)
        if self.kind == "M":
            return logical_message(b"note", xid=xid)
        made = {"I": testing.insert, "U": testing.update, "D": testing.delete}[self.kind]
        return made(self.tables[0], xid=xid, **self.values)


@dataclass
class ScriptedTransaction:
    """What happens in it; streamed ones come in blocks. Never committed when `commit_lsn` is 0."""

    xid: int
    rows: list[Row]
    commit_lsn: int = 0
    committed_at: int = 0
    blocks: list[int] = field(default_factory=list)  # how many rows each; empty: not streamed
    aborted: set[int] = field(default_factory=set)

    @property
    def end_lsn(self) -> int:
        return self.commit_lsn + 8


@dataclass
class Script:
    """Events in the order of the WAL: (transaction, block number), then (transaction, None)."""

    events: list[tuple[ScriptedTransaction, int | None]]

    @property
    def committed(self) -> list[ScriptedTransaction]:
        return [one for one, block in self.events if block is None and one.commit_lsn]

    @property
    def end_lsn(self) -> int:
        return self.committed[-1].end_lsn


def make_script(dice: random.Random) -> Script:
    """Plain and streamed transactions, interleaved."""
    maker = _ScriptMaker(dice)
    waiting: list[tuple[ScriptedTransaction, int]] = []
    events: list[tuple[ScriptedTransaction, int | None]] = []
    for number in range(dice.randint(1, 12)):
        made = maker.transaction(100 + number, is_streamed=dice.random() < 0.4)
        if made.blocks:
            waiting.append((made, 0))
        else:
            events.append((made, None))
        while waiting and (dice.random() < 0.5):
            _send_block(dice, waiting, events)
    while waiting:
        _send_block(dice, waiting, events)
    events.append((maker.transaction(999, is_streamed=False), None))
    commit_lsn = 0x1000
    for made, block in events:
        if block is None and (not made.blocks or dice.random() < 0.8):
            commit_lsn += dice.choice([8, 9, 1000, 2**33])
            made.commit_lsn = commit_lsn
    return Script(events)


def _send_block(dice, waiting, events) -> None:
    place = dice.randrange(len(waiting))
    made, block = waiting.pop(place)
    if block == len(made.blocks):
        events.append((made, None))
        return
    events.append((made, block))
    waiting.append((made, block + 1))


class _ScriptMaker:
    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._tables = [self._describe(16400 + number) for number in range(3)]

    def _describe(self, oid: int) -> Relation:
        names = [f"c{number}" for number in range(self._dice.randint(1, 4))]
        name = TableName("public", f"t{oid}_{self._dice.randint(0, 1)}")
        return testing.table(oid, name, dict.fromkeys(names, "text"), key=names[:1])

    def transaction(self, xid: int, *, is_streamed: bool) -> ScriptedTransaction:
        dice = self._dice
        subxids = [xid, xid + 10_000, xid + 20_000] if is_streamed else [xid]
        rows = [self._row(dice.choice(subxids)) for _ in range(dice.randint(0, 12))]
        made = ScriptedTransaction(xid, rows, committed_at=dice.randint(-(10**9), 10**9))
        left = len(rows)
        while is_streamed and (left or not made.blocks):
            made.blocks.append(dice.randint(0, left))
            left -= made.blocks[-1]
        if is_streamed:
            made.aborted = {one for one in subxids[1:] if dice.random() < 0.4}
        elif dice.random() < 0.3:
            # Columns change between transactions that hold locks, not under a stream's feet.
            place = dice.randrange(3)
            self._tables[place] = self._describe(self._tables[place].oid)
        return made

    def _row(self, subxid: int) -> Row:
        dice = self._dice
        described = dice.choice(self._tables)
        width = len(described.columns)
        kind = dice.choice("IIIUUDTM")
        if kind in "TM":
            tables = tuple(dice.sample(self._tables, dice.randint(1, 3))) if kind == "T" else ()
            return Row(tables, kind, {}, subxid)
        if kind == "D":
            return Row((described,), kind, {"key": [random_value(dice)]}, subxid)
        row = [random_value(dice) for _ in range(width)]
        values: dict[str, object] = {"row": row}
        if kind == "U" and dice.random() < 0.5:
            values["key"] = [random_value(dice)]
            row[-1] = UNCHANGED if width > 1 else row[-1]
        return Row((described,), kind, values, subxid)


class Server:
    """One connection to it."""

    def __init__(self, script: Script, after_lsn: int = 0) -> None:
        self._script = script
        self._after_lsn = after_lsn
        self._reported: dict[int, Relation] = {}
        self._reported_in: dict[int, dict[int, Relation]] = {}
        # When each description was sent: the latest counts.
        self._clock = 0
        self._when: dict[tuple[int | None, int], int] = {}

    def stream(self) -> Iterator[bytes]:
        """Every message of every transaction that does not end at or before the position."""
        for made, block in self._script.events:
            if made.commit_lsn and made.commit_lsn < self._after_lsn:
                continue
            if not made.blocks:
                yield from self._plain(made)
            elif block is not None:
                yield from self._block(made, block)
            elif made.commit_lsn:
                yield from self._aborts(made)
                self._keep_reported(made)
                yield testing.stream_commit(
                    made.xid, made.commit_lsn, made.end_lsn, made.committed_at
                )
            else:
                yield testing.stream_abort(made.xid)

    def _plain(self, made: ScriptedTransaction) -> Iterator[bytes]:
        yield testing.begin(made.commit_lsn, made.xid, made.committed_at)
        for row in made.rows:
            yield from self._row(row, self._reported, None)
        yield testing.commit(made.commit_lsn, made.end_lsn, made.committed_at)

    def _block(self, made: ScriptedTransaction, block: int) -> Iterator[bytes]:
        begin = sum(made.blocks[:block])
        yield testing.stream_start(made.xid, is_first=block == 0)
        reported = self._reported_in.setdefault(made.xid, {})
        for row in made.rows[begin : begin + made.blocks[block]]:
            yield from self._row(row, reported, made.xid)
        yield testing.stream_stop()

    def _row(self, row: Row, reported: dict[int, Relation], topxid: int | None) -> Iterator[bytes]:
        xid = None if topxid is None else row.subxid
        for described in row.tables:
            if reported.get(described.oid) is not described:
                reported[described.oid] = described
                self._clock += 1
                self._when[topxid, described.oid] = self._clock
                yield type_message(xid)
                yield testing.relation(described, xid=xid)
        yield row.message(xid)

    def _aborts(self, made: ScriptedTransaction) -> Iterator[bytes]:
        for subxid in sorted(made.aborted):
            yield testing.stream_abort(made.xid, subxid)

    def _keep_reported(self, made: ScriptedTransaction) -> None:
        for oid, described in self._reported_in.pop(made.xid, {}).items():
            if self._when[made.xid, oid] > self._when.get((None, oid), 0):
                self._reported[oid] = described
                self._when[None, oid] = self._when[made.xid, oid]


def expected_changes(script: Script) -> list[Plain]:
    """What must arrive, in commit order."""
    found: list[Plain] = []
    for made in script.committed:
        messages: list[bytes] = []
        part = Transaction(
            made.commit_lsn, made.committed_at, made.xid, 0, bool(made.blocks), tuple(made.aborted)
        )
        for row in made.rows:
            xid = row.subxid if made.blocks else None
            messages += [testing.relation(one, xid=xid) for one in row.tables]
            messages.append(row.message(xid))
        changes = reference_decode(messages, part)
        found += sorted(changes, key=lambda one: (one.commit_lsn, one.ordinal, one.table))
    return found
