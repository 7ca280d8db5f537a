"""What the stream reports of the shape of tables, gathered transaction by transaction. No socket, no file.

Two things report it: documents that the source's triggers write, and Relation messages that differ from
what is known. The latter come after the former and then say nothing new, unless there are no
triggers, or somebody has switched them off.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from penstock.changes.pgoutput import parse_message, parse_relation
from penstock.errors import SchemaUnreadable
from penstock.schema.cascade import settle
from penstock.schema.mark import CHANGE, VERSION, Mark
from penstock.schema.match import is_stale
from penstock.schema.shape import (
    CHANGE_PREFIX,
    FORMAT,
    ColumnShape,
    SchemaChange,
    TableShape,
    as_content,
)
from penstock.schema.versions import SchemaVersions
from penstock.schema.wire import Reported, read_reported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.changes.pgoutput import Column, Commit, Relation
    from penstock.lsn import Lsn
    from penstock.schema.cascade import LookUp
    from penstock.schema.past_shapes import PastShapes
    from penstock.table import TableName

_log = logging.getLogger(__name__)

_SEAL_LENGTH = 64


@dataclass(frozen=True)
class Note:
    """One document, before its transaction has committed."""

    kind: str
    content: str
    ordinal: int = 0
    subxid: int = 0
    shapes: tuple[TableShape, ...] = ()
    reported: Reported | None = None  # what a trigger said; of a Relation message, None
    relation: Relation | None = None  # of a transaction that was open: understood at its commit


class Notes:
    """Recognises documents, and Relation messages that are news.

    While a transaction is open, the catalog shows its tables to us as they were before, and keeps who asks
    waiting for the locks that it holds: what needs the catalog waits for the commit.

    `lsn` is where the log ends: the past shapes may be ahead of it, by documents whose transaction a crash
    has kept out of the log, and which come again. `look_up` gives the table's shape now; `seal` is the secret that the triggers sign with, without
    which no document of theirs is believed: anybody may write logical messages. `follows` says whether
    a table is the pipeline's: only schemas with such tables have versions; `numbered` is how far these
    were counted before, where the past shapes do not have it.
    """

    def __init__(
        self,
        past_shapes: PastShapes,
        lsn: Lsn,
        look_up: LookUp,
        seal: bytes | None,
        follows: Callable[[TableName], bool] = lambda _: True,
        numbered: Mapping[str, int] | None = None,
    ) -> None:
        self._past_shapes = past_shapes
        self._look_up = look_up
        self._seal = seal
        self._known = past_shapes.at(lsn)
        self._changed_by = past_shapes.changed_by(lsn)
        self._versions = SchemaVersions(past_shapes, follows, numbered or {})

    def of_message(
        self, raw: memoryview, *, carries_xid: bool, xid: int = 0, pending: Iterable[Note] = ()
    ) -> Note | None:
        """The document in a logical message, None when it is somebody else's.

        `xid` is the transaction that it came with.
        """
        message = parse_message(raw, carries_xid=carries_xid)
        if message.prefix != CHANGE_PREFIX:
            return None
        content = unseal(message.content, self._seal)
        if content is None:
            _log.warning("a logical message %s without penstock's seal is skipped", message.prefix)
            return None
        try:
            reported = read_reported(content, "")
        except SchemaUnreadable:  # reported where it is delivered, with its place
            return Note(CHANGE, content, subxid=message.xid)
        if reported.xid and xid and (reported.xid - xid) % 2**32 >= 2**31:
            # Sealed, but by an older transaction: somebody has read it there, and says it again.
            _log.warning("a logical message %s of another transaction is skipped", message.prefix)
            return None
        known = dict(self._known)
        for note in pending:
            known.update({shape.id: shape for shape in note.shapes})
        change = self._settled(reported, known, _nothing if carries_xid else self._look_up)
        return Note(
            CHANGE,
            content,
            subxid=reported.xid or message.xid,
            shapes=change.tables,
            reported=reported,
        )

    def of_relation(
        self, raw: memoryview, *, carries_xid: bool, pending: Iterable[Note] = ()
    ) -> Note | None:
        """A document where a Relation message reports something new, None where it does not."""
        relation = parse_relation(raw, carries_xid=carries_xid)
        known = self._known.get(relation.oid)
        for note in pending:
            known = next((shape for shape in note.shapes if shape.id == relation.oid), known)
        if known is not None and agrees(known, relation):
            return None
        if carries_xid:
            subxid = int.from_bytes(raw[1:5], "big")
            shapes = (patch(known, relation, None)[0],) if known is not None else ()
            return Note(CHANGE, "", subxid=subxid, shapes=shapes, relation=relation)
        change = self._change(known, relation)
        if change is None:
            return None
        return Note(CHANGE, as_content(change), shapes=change.tables)

    def _settled(
        self, reported: Reported, known: Mapping[int, TableShape], look_up: LookUp
    ) -> SchemaChange:
        if reported.change.has_old_snapshot:
            # Where a transaction changed the table before that this one could not see: as the catalog has it by
            # now, which may be ahead of the stream.
            tables = tuple(
                shape
                if shows(reported.snapshot, self._changed_by.get(shape.id, 0))
                else look_up(shape.id) or shape
                for shape in reported.change.tables
            )
            change = reported.change.model_copy(update={"tables": tables})
            reported = replace(reported, change=change)
        return settle(reported, known, look_up)

    def _news(self, relation: Relation) -> SchemaChange | None:
        known = self._known.get(relation.oid)
        if known is not None and agrees(known, relation):
            return None
        return self._change(known, relation)

    def _change(self, known: TableShape | None, relation: Relation) -> SchemaChange | None:
        now = self._look_up(relation.oid)
        if now is not None and agrees(now, relation):
            if known is None:
                # Nothing has changed: it is only seen for the first time.
                self._known[relation.oid] = now
                return None
            return SchemaChange(format=FORMAT, tag="RELATION", tables=(now,))
        if known is None:
            return None
        patched, is_unsure = patch(known, relation, now)
        return SchemaChange(format=FORMAT, tag="RELATION", tables=(patched,), is_unsure=is_unsure)

    def commit(self, notes: Iterable[Note], commit: Commit, xid: int) -> list[Mark]:
        """The marks of a transaction that has committed; they are among the past shapes from now on.

        Raises:
            LogError: the past shapes cannot be written.
        """
        before = dict(self._known)
        contents: list[tuple[int, str, str]] = []
        changes: list[SchemaChange] = []
        touched: set[int] = set()
        for note in notes:
            content, shapes = note.content, note.shapes
            if note.relation is not None:
                found = self._news(note.relation)
                if found is None:
                    continue
                content, shapes = as_content(found), found.tables
            elif note.reported is not None:
                # What others have committed since the statement is in what is known by now.
                settled = self._settled(note.reported, self._known, self._look_up)
                change = self._without_stale(settled)
                content, shapes = as_content(change), change.tables
                changes.append(change)
                for gone in change.dropped_tables:
                    self._known.pop(gone.id, None)
                    self._changed_by.pop(gone.id, None)
            contents.append((note.ordinal, note.kind, content))
            self._known.update({shape.id: shape for shape in shapes})
            touched.update(shape.id for shape in shapes)
        self._changed_by.update(dict.fromkeys(touched & self._known.keys(), xid))
        for content in self._versions.after(changes, before, self._known, commit.commit_lsn):
            contents.append((contents[-1][0], VERSION, content))
        marks = [
            Mark(
                commit.commit_lsn,
                commit.end_lsn,
                commit.committed_at,
                xid,
                ordinal,
                number,
                kind,
                content,
            )
            for number, (ordinal, kind, content) in enumerate(contents)
        ]
        self._past_shapes.append(marks)
        return marks

    def _without_stale(self, change: SchemaChange) -> SchemaChange:
        """The change without what others have changed, between the statement and this commit.

        Triggers of an older penstock describe tables that the statement had not locked (`loose`): a
        picture that lacks something the stream has reported since would undo that.
        """
        stale = {
            shape.id: known
            for shape in change.tables
            if shape.id in change.loose
            and (known := self._known.get(shape.id)) is not None
            and is_stale(shape, known)
        }
        if not stale:
            return change
        tables = tuple(
            self._look_up(shape.id) or stale[shape.id] if shape.id in stale else shape
            for shape in change.tables
        )
        return change.model_copy(update={"tables": tables})


def _nothing(_: int) -> None:
    """What is looked up of tables whose transaction is still open."""


def shows(snapshot: str, xid: int) -> bool:
    """Whether a snapshot shows what a transaction that has committed did; 0 is one of long ago.

    `snapshot` is as Postgres writes it, of 64 bits: the oldest that is running, the next that will, all that are.
    That of an older penstock's triggers is not known.
    """
    if not snapshot or not xid:
        return bool(snapshot)
    _, end, running = snapshot.split(":")
    is_later = (xid - int(end)) % 2**32 < 2**31
    return not is_later and xid not in {int(each) % 2**32 for each in running.split(",") if each}


def unseal(content: bytes, seal: bytes | None) -> str | None:
    """The document in a message that the triggers have signed; None where they have not."""
    if seal is None or len(content) < _SEAL_LENGTH:
        return None
    sealed, document = content[:_SEAL_LENGTH], content[_SEAL_LENGTH:]
    inner = hashlib.sha256(seal + document).digest()
    wanted = hashlib.sha256(seal + inner).hexdigest().encode()
    if not hmac.compare_digest(sealed, wanted):
        return None
    return document.decode(errors="replace")


def agrees(shape: TableShape, relation: Relation) -> bool:
    """Whether a table's shape is as a Relation message says. Generated columns are not in the stream."""
    reported = [(column.name, column.type_oid, column.type_modifier) for column in relation.columns]
    known = [
        (column.name, column.type_id, column.type_modifier)
        for column in shape.columns
        if not column.generated
    ]
    return shape.table == relation.table and sorted(reported) == sorted(known)


def patch(known: TableShape, relation: Relation, now: TableShape | None) -> tuple[TableShape, bool]:
    """What is known, brought in line with a Relation message; and whether that is a guess.

    The catalog has moved on already, but what it has of the same name and type is taken from it.
    """
    known_columns = {column.name: column for column in known.columns}
    current = {column.name: column for column in now.columns} if now is not None else {}
    free_ids = count(max((each.id for each in (*known.columns, *current.values())), default=0) + 1)
    columns = [
        _patched(reported, known_columns.get(reported.name), current.get(reported.name), free_ids)
        for reported in relation.columns
    ]
    names = {column.name for column in relation.columns}
    added = names - known_columns.keys()
    gone = {name for name, each in known_columns.items() if not each.generated} - names
    columns += [column for column in known.columns if column.generated]
    patched = known.model_copy(
        update={
            "schema_name": relation.table.schema,
            "name": relation.table.name,
            "columns": tuple(columns),
        }
    )
    return patched, bool(added and gone) or any(column.type == "" for column in columns)


def _patched(
    reported: Column, known: ColumnShape | None, now: ColumnShape | None, free_ids: Iterator[int]
) -> ColumnShape:
    """One column as it is reported: what is known of it if its type is the same, else by the catalog."""
    kind = (reported.type_oid, reported.type_modifier)
    if known is not None and (known.type_id, known.type_modifier) == kind:
        return known
    if now is None or now.type_id != reported.type_oid:
        number = known.id if known is not None else next(free_ids)
        return _unknown_type(reported.name, reported.type_oid, number)
    return now if known is None else now.model_copy(update={"id": known.id})


def _unknown_type(name: str, type_oid: int, number: int) -> ColumnShape:
    return ColumnShape(
        id=number, name=name, type="", type_id=type_oid, type_kind="b", not_null=False
    )
