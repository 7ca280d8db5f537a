"""Messages on their way into a slice, and what makes the slice self-contained. No socket, no file."""

from __future__ import annotations

import itertools
from array import array
from dataclasses import dataclass, field

import numpy as np

from penstock.changes.pgoutput import (
    DELETE,
    INSERT,
    TRUNCATE,
    UPDATE,
    parse_relation,
    parse_truncate,
    relation_oid,
)
from penstock.errors import DecodeError

# Counts Relation messages over all buffers: the one sent last is the one the server goes by.
_order = itertools.count(1)


@dataclass
class SliceBuffer:
    """Messages on their way into a slice, and the Relation messages known when they began."""

    carries_xids: bool = False
    data: bytearray = field(default_factory=bytearray)
    lengths: array[int] = field(default_factory=lambda: array("I"))
    relations: dict[int, bytes] = field(default_factory=dict)
    arrived: list[tuple[int, int, bytes]] = field(default_factory=list)
    described_at: dict[int, int] = field(default_factory=dict)  # when each table was last described
    row_count: int = 0  # of the transaction so far, in slices that are sealed
    part_count: int = 0  # of those slices

    def add(self, message: memoryview) -> None:
        """Take a message."""
        self.data += message
        self.lengths.append(len(message))

    def add_relation(self, message: memoryview) -> None:
        """Take a Relation message, and keep it for slices to come."""
        oid = relation_oid(message, carries_xid=self.carries_xids)
        self.arrived.append((len(self.lengths), oid, bytes(message)))
        self.described_at[oid] = next(_order)
        self.add(message)

    def count_rows(self) -> int:
        """How many rows the messages hold that have not been cut."""
        lengths = np.array(self.lengths, np.int64)
        kinds = np.frombuffer(self.data, np.uint8)[np.cumsum(lengths) - lengths]
        return int(np.isin(kinds, (INSERT, UPDATE, DELETE, TRUNCATE)).sum())

    def cut(
        self, message_count: int, data_bytes: int
    ) -> tuple[bytes, np.ndarray, dict[str, object], int]:
        """Take the first messages out: their bytes, lengths, meta and number of rows.

        The Relation messages that their rows need and that came earlier are put in front.

        Raises:
            DecodeError: rows of a table that the server has not described.
        """
        data = bytes(memoryview(self.data)[:data_bytes])
        lengths = np.array(self.lengths[:message_count], np.uint32)
        row_count, first_use = self._used(data, lengths)
        front, named = self._describe(first_use, message_count)
        for index, oid, raw in self.arrived:
            if index < message_count:
                self.relations[oid] = raw
        del self.data[:data_bytes]
        del self.lengths[:message_count]
        self.arrived = [
            (index - message_count, oid, raw)
            for index, oid, raw in self.arrived
            if index >= message_count
        ]
        if front:
            data = b"".join((*front, data))
            lengths = np.concatenate((np.array([len(raw) for raw in front], np.uint32), lengths))
        return data, lengths, {"relations": named, "rows": row_count}, row_count

    def _describe(
        self, first_use: dict[int, int], message_count: int
    ) -> tuple[list[bytes], list[list[object]]]:
        """Relation messages to put in front, and all tables by name: one may be renamed on the way."""
        described: dict[int, int] = {}
        inside: list[bytes] = []
        for index, oid, raw in self.arrived:
            if index < message_count and oid in first_use:
                described.setdefault(oid, index)
                inside.append(raw)
        front: list[bytes] = []
        for oid, index in sorted(first_use.items()):
            if index < described.get(oid, message_count):
                if oid not in self.relations:
                    raise DecodeError(f"a row of table {oid} comes before its Relation message")
                front.append(self.relations[oid])
        named = {
            (relation.oid, *relation.table)
            for relation in (
                parse_relation(raw, carries_xid=self.carries_xids) for raw in {*front, *inside}
            )
        }
        return front, [list(name) for name in sorted(named)]

    def _used(self, data: bytes, lengths: np.ndarray) -> tuple[int, dict[int, int]]:
        """How many rows, and which tables' they are: oid -> the first message about it."""
        if len(lengths) == 0:
            return 0, {}
        shift = 4 if self.carries_xids else 0
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        raw = np.frombuffer(data, np.uint8)
        kinds = raw[starts]
        rows = np.flatnonzero((kinds == INSERT) | (kinds == UPDATE) | (kinds == DELETE))
        if bool((lengths[rows] < 5 + shift).any()):
            raise DecodeError("a row message ends before it names its table")
        at = starts[rows] + 1 + shift
        oids = np.zeros(len(at), np.int64)
        for byte in range(4):
            oids = (oids << 8) | raw[at + byte]
        found, first = np.unique(oids, return_index=True)
        first_use = dict(zip(found.tolist(), rows[first].tolist(), strict=True))
        truncates = np.flatnonzero(kinds == TRUNCATE).tolist()
        for index in truncates:
            message = data[starts[index] : starts[index] + lengths[index]]
            for oid in parse_truncate(message, carries_xid=self.carries_xids).relation_oids:
                first_use[oid] = min(index, first_use.get(oid, index))
        return len(rows) + len(truncates), first_use
