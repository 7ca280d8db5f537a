"""Random pgoutput streams, and a slow, obviously right decoder to hold the real one against."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st

from penstock import testing
from penstock.changes.cells import ABSENT, Cells, gather
from penstock.changes.decode import Piece, TableTruncated, Transaction
from penstock.changes.pgoutput import NULL, TEXT, Column, Relation
from penstock.changes.pgoutput import UNCHANGED as UNCHANGED_KIND
from penstock.table import TableName
from penstock.testing import UNCHANGED, Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# The same examples on every run, and no database of them: CI must not differ from the desk.
examples = settings(derandomize=True, deadline=None, database=None)
# A random.Random whose every call hypothesis knows about, so that failures shrink.
dice = st.randoms(use_true_random=False)


def of_seed(seed: int) -> random.Random:
    """For examples that are larger than hypothesis likes."""
    return random.Random(seed)


class Plain(NamedTuple):
    """One change, as plain as can be. Values are bytes, None, or UNCHANGED."""

    table: TableName
    columns: tuple[str, ...]
    operation: str
    commit_lsn: int
    ordinal: int
    committed_at: int
    xid: int
    after: tuple[Value, ...] | None = None
    before: tuple[Value, ...] | None = None
    is_full_before: bool = False
    restart_identity: bool = False


# Messages that penstock.testing has no use for.


def logical_message(
    content: bytes, lsn: int = 0, *, transactional: bool = True, xid: int | None = None
) -> bytes:
    """M: what pg_logical_emit_message wrote."""
    head = b"M" if xid is None else b"M" + struct.pack(">I", xid)
    body = struct.pack(">BQ", transactional, lsn) + b"prefix\0"
    return head + body + struct.pack(">I", len(content)) + content


def type_message(xid: int | None = None) -> bytes:
    """Y: the name of a type that is not built in."""
    head = b"Y" if xid is None else b"Y" + struct.pack(">I", xid)
    return head + struct.pack(">I", 90000) + b"public\0mood\0"


def origin_message() -> bytes:
    """O: where a transaction was replicated from."""
    return b"O" + struct.pack(">Q", 7) + b"elsewhere\0"


# The reference: one message after the other, one byte after the other.


class _Cursor:
    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0

    def take(self, count: int) -> bytes:
        assert self.at + count <= len(self.raw)
        self.at += count
        return self.raw[self.at - count : self.at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def text(self) -> str:
        end = self.raw.index(b"\0", self.at)
        found = self.take(end - self.at)
        self.take(1)
        return found.decode()

    def values(self) -> tuple[Value, ...]:
        return tuple(self._value() for _ in range(self.number(2)))

    def _value(self) -> Value:
        kind = self.take(1)
        if kind == b"t":
            return self.take(self.number(4))
        return {b"n": None, b"u": UNCHANGED}[kind]

    def relation(self) -> Relation:
        oid = self.number(4)
        name = TableName(self.text() or "pg_catalog", self.text())
        identity = self.take(1).decode()
        columns = []
        for _ in range(self.number(2)):
            flags = self.number(1)
            column = self.text()
            oid_of_type = self.number(4)
            modifier = int.from_bytes(self.take(4), "big", signed=True)
            columns.append(Column(column, oid_of_type, modifier, flags == 1))
        return Relation(oid, name, identity, tuple(columns))


def reference_decode(
    messages: Sequence[bytes], part: Transaction | None = None, after_lsn: int = 0
) -> list[Plain]:
    """What `decode` must find, in the order of the stream."""
    found: list[Plain] = []
    relations: dict[int, Relation] = {}
    now = replace(part, aborted_xids=()) if part else Transaction(0, 0, 0, 0, carries_xids=False)
    ordinal = now.first_ordinal
    for message in messages:
        cursor = _Cursor(message)
        kind = cursor.take(1).decode()
        if kind == "B" and part is None:
            lsn, at, xid = struct.unpack(">QqI", cursor.take(20))
            now, ordinal = Transaction(lsn, at, xid, 0, carries_xids=False), 0
        if kind not in "RIUDT":
            continue
        subxid = cursor.number(4) if now.carries_xids else None
        if kind == "R":
            described = cursor.relation()
            relations[described.oid] = described
            continue
        made = list(_reference_changes(kind, cursor, relations, now, ordinal))
        if now.commit_lsn >= after_lsn and subxid not in (part.aborted_xids if part else ()):
            found += made
        assert cursor.at == len(message)
        ordinal += 1
    return found


def _reference_changes(
    kind: str,
    cursor: _Cursor,
    relations: dict[int, Relation],
    now: Transaction,
    ordinal: int,
) -> Iterator[Plain]:
    position = (now.commit_lsn, ordinal, now.committed_at, now.xid)
    if kind == "T":
        count, options = cursor.number(4), cursor.number(1)
        for _ in range(count):
            described = relations[cursor.number(4)]
            names = tuple(column.name for column in described.columns)
            yield Plain(described.table, names, "T", *position, restart_identity=bool(options & 2))
        return
    described = relations[cursor.number(4)]
    after, before, mark = None, None, cursor.take(1)
    if mark in b"KO":
        before = cursor.values()
    if kind != "D":
        if before is not None:
            assert cursor.take(1) == b"N"
        after = cursor.values()
    names = tuple(column.name for column in described.columns)
    # A row without columns has no cell that could show whether it is there.
    before = before or None
    yield Plain(described.table, names, kind, *position, after, before, is_full_before=mark == b"O")


def plain(pieces: Sequence[Piece]) -> list[Plain]:
    """What `decode` gave, as plain changes, in its order."""
    found: list[Plain] = []
    for piece in pieces:
        names = tuple(column.name for column in piece.relation.columns)
        if isinstance(piece, TableTruncated):
            position = (piece.commit_lsn, piece.ordinal, piece.committed_at, piece.xid)
            restart = piece.restart_identity
            found.append(
                Plain(piece.relation.table, names, "T", *position, restart_identity=restart)
            )
            continue
        after = plain_rows(piece.after, len(piece))
        before = plain_rows(piece.before, len(piece))
        for row in range(len(piece)):
            operation = chr(piece.operation[row])
            found.append(
                Plain(
                    piece.relation.table,
                    names,
                    operation,
                    int(piece.positions.commit_lsn[row]),
                    int(piece.positions.ordinal[row]),
                    int(piece.positions.committed_at[row]),
                    int(piece.positions.xid[row]),
                    None if operation == "D" else after[row],
                    before[row] or None,
                    bool(piece.has_full_before[row]),
                )
            )
    return found


def plain_rows(columns: Sequence[Cells], count: int) -> list[tuple | None]:
    """Rows as tuples of values; None where a row is absent."""
    gathered = []
    for cells in columns:
        texts = gather(cells).to_pylist()
        assert len(texts) == count
        # Twice: what is gathered, and what lies at the places that the cells name.
        raw = bytes(cells.data)
        for text, start, length, kind in zip(
            texts, cells.start, cells.length, cells.kind, strict=True
        ):
            assert text == (raw[start : start + length] if kind == TEXT else None)
        marks = {NULL: None, UNCHANGED_KIND: UNCHANGED, ABSENT: ABSENT}
        gathered.append(
            [
                text if kind == TEXT else marks[int(kind)]
                for text, kind in zip(texts, cells.kind, strict=True)
            ]
        )
    rows: list[tuple | None] = list(zip(*gathered, strict=True)) if columns else [()] * count
    for row in rows:
        assert row is not None
        assert len({value is ABSENT for value in row}) <= 1, (
            "a row is absent as a whole or not at all"
        )
    return [None if row and row[0] is ABSENT else row for row in rows]


# Random streams: any shape that the wire allows, whether or not it makes sense as SQL.

_TEXTS = [b"", b"0", b"1", b"x", b"\\N", b"\\.", b"\t\n\r\\", "żółć".encode(), b"PSL1", b"y" * 300]


def random_value(dice: random.Random) -> Value:
    """Any value of any type."""
    return dice.choice(_TEXTS) if dice.random() < 0.8 else None


class StreamMaker:
    """Makes streams of a few tables. Each table keeps its oid; its columns and name may change."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._tables = [self._describe(16400 + number) for number in range(dice.randint(1, 3))]
        self._reported: set[int] = set()
        self._commit_lsn = 0x1000

    def _describe(self, oid: int) -> Relation:
        count = self._dice.randint(0, 5)
        names = [f"c{number}" for number in range(count)]
        key = [name for name in names if self._dice.random() < 0.4]
        table = testing.table(
            oid,
            TableName(self._dice.choice(["public", "pg_catalog", "ö"]), f"t{oid % 10}"),
            dict.fromkeys(names, "text"),
            key=key,
            identity=self._dice.choice("dnfi"),
        )
        return replace(table, table=TableName(*table.table))

    def rows(self, count: int, xids: Sequence[int] = ()) -> Iterator[bytes]:
        """Row messages, with Relation messages where they are needed and some where they are not."""
        dice = self._dice
        for _ in range(count):
            xid = dice.choice(xids) if xids else None
            place = dice.randrange(len(self._tables))
            if dice.random() < 0.1:
                self._tables[place] = self._describe(self._tables[place].oid)
                self._reported.discard(place)
            yield from self._announce(place, xid)
            yield self._row(place, xid)
            if dice.random() < 0.1:
                extra = [logical_message(b"PSL1", xid=xid), type_message(xid), origin_message()]
                yield dice.choice(extra)

    def _announce(self, place: int, xid: int | None) -> Iterator[bytes]:
        if place not in self._reported or self._dice.random() < 0.1:
            self._reported.add(place)
            yield testing.relation(self._tables[place], xid=xid)

    def _row(self, place: int, xid: int | None) -> bytes:
        table, kind = self._tables[place], self._dice.choice("IIUUUDDT")
        if kind == "T":
            others = [
                self._tables[reported] for reported in sorted(self._reported) if reported != place
            ]
            chosen = [table, *others[: self._dice.randint(0, 2)]]
            return testing.truncate(*chosen, restart_identity=self._dice.random() < 0.5, xid=xid)
        if kind == "I":
            return testing.insert(table, self._values(table), xid=xid)
        if kind == "U":
            old = self._dice.choice([{}, self._old(table)])
            return testing.update(table, self._values(table, 0.3), xid=xid, **old)
        return testing.delete(table, xid=xid, **self._old(table))

    def _values(self, table: Relation, unchanged: float = 0.0) -> list[Value]:
        return [
            UNCHANGED if self._dice.random() < unchanged else random_value(self._dice)
            for _ in table.columns
        ]

    def _old(self, table: Relation) -> dict[str, list[Value]]:
        if self._dice.random() < 0.5:
            return {"before": self._values(table)}
        return {"key": [random_value(self._dice) for column in table.columns if column.in_identity]}

    def transactions(self, count: int, most_rows: int) -> Iterator[bytes]:
        """Whole transactions, one after the other."""
        for _ in range(count):
            self._commit_lsn += self._dice.randint(8, 2**40)
            yield from testing.transaction(
                self._commit_lsn,
                *self.rows(self._dice.randint(0, most_rows)),
                xid=self._dice.randint(1, 2**32 - 1),
                committed_at=self._dice.randint(-(2**60), 2**60),
            )
