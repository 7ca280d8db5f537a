"""Documents that wait for receivers, stored together with the state that they lead to.

An entry stays until every subscription has passed it. Entries above `published` are not there yet: of a transaction of the
source that is larger than one transaction here should be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import SinkError
from penstock.failpoints import fault_point
from penstock.sinks.documents.parts import message_of, value_bytes
from penstock.sinks.webhook.database import Database
from penstock.sinks.webhook.rows import Entry
from penstock.sinks.webhook.typed import stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

# An entry of the outbox is read as a whole, and a transaction here locks out others.
_ENTRY_DOCUMENTS = 2000
_ENTRY_BYTES = 1024 * 1024
_TRANSACTION_BYTES = 16 * 1024 * 1024

_Stored = tuple[bytes, int, int, str]

# Of these subscriptions the outbox keeps what they have not had.
RETAINING = ("active", "suspended", "cut_off")


class Outbox(Database):
    """Entries, in the order in which they were stored."""

    def recover(self) -> None:
        """Remove what a killed predecessor had not published."""
        with self._transaction():
            self._delete("seq > ?", self.published)

    def append(self, documents: Iterable[pa.RecordBatch], state: str | None) -> int:
        """Store documents and the state that they lead to, both or neither; the last entry.

        Where nobody has subscribed only the state is stored.

        Raises:
            SinkError: somebody has subscribed just now, to documents that were not stored.
        """
        is_wanted = self._has_retaining()
        waiting: list[_Stored] = []
        size = 0
        for entry in _entries(documents) if is_wanted else _skipped(documents):
            waiting.append(entry)
            size += entry[1]
            if size > _TRANSACTION_BYTES:
                with self._transaction():
                    self._insert(waiting)
                waiting, size = [], 0
                fault_point("webhook.inside_append")
        with self._transaction():
            if self._has_retaining() and not is_wanted:
                raise SinkError(
                    "a subscription was made while documents were stored",
                    str(self.path),
                    "nothing, penstock tries again by itself",
                )
            self._insert(waiting)
            last = self._db.execute("SELECT max(seq) FROM outbox").fetchone()[0]
            published = max(self.published, last or 0)
            self._set_meta("published", str(published))
            if state is not None:
                self._set_meta("state", state)
            fault_point("webhook.before_commit")
        return published

    def _insert(self, entries: list[_Stored]) -> None:
        insert = "INSERT INTO outbox (documents, bytes, commit_lsn, types) VALUES (?, ?, ?, ?)"
        sealed = ((self._sealed(message), *rest) for message, *rest in entries)
        self._db.executemany(insert, sealed)
        self._grow(sum(size for _, size, *_ in entries))

    def _delete(self, which: str, seq: int) -> None:
        query = f"SELECT coalesce(sum(bytes), 0) FROM outbox WHERE {which}"
        size = self._db.execute(query, (seq,)).fetchone()[0]
        if size:
            self._db.execute(f"DELETE FROM outbox WHERE {which}", (seq,))
            self._grow(-size)

    def _grow(self, size: int) -> None:
        if size:
            self._set_meta("outbox_bytes", str(self.outbox_bytes + size))

    @property
    def outbox_bytes(self) -> int:
        """How much waits there. Counted along: to add it up would take longer the more there is."""
        return int(self._meta("outbox_bytes") or 0)

    def _has_retaining(self) -> bool:
        marks = ", ".join("?" * len(RETAINING))
        found = self._db.execute(
            f"SELECT 1 FROM subscriptions WHERE state IN ({marks}) LIMIT 1", RETAINING
        )
        return found.fetchone() is not None

    def entry(self, from_seq: int) -> Entry | None:
        """The first published entry at or after one.

        Raises:
            LogKeyMissing: it is encrypted with a key that is not given.
        """
        row = self._db.execute(
            "SELECT seq, documents, commit_lsn, types FROM outbox WHERE seq >= ? AND seq <= ?"
            " ORDER BY seq LIMIT 1",
            (from_seq, self.published),
        ).fetchone()
        if row is None:
            return None
        seq, documents, *rest = row
        return Entry(seq, self._plain(documents), *rest)


def _skipped(documents: Iterable[pa.RecordBatch]) -> Iterator[_Stored]:
    """Nothing of them; but they are read: who hands them out may want to stop this."""
    for _ in documents:
        pass
    yield from ()


def _entries(documents: Iterable[pa.RecordBatch]) -> Iterator[_Stored]:
    """Documents in pieces that can be read as a whole: the message, its size, the last position, types."""
    for batch in documents:
        if not len(batch):
            continue
        pieces = max(-(-len(batch) // _ENTRY_DOCUMENTS), -(-value_bytes(batch) // _ENTRY_BYTES))
        step = -(-len(batch) // pieces)
        for begin in range(0, len(batch), step):
            piece = batch.slice(begin, step)
            typed, types = stored(piece)
            message = message_of(typed).to_pybytes()
            last = int(piece.column("commit_lsn")[len(piece) - 1].as_py())
            yield message, len(message), last, types
