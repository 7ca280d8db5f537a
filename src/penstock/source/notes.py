"""What the stream tells of the shape of tables, gathered transaction by transaction. No socket, no file.

Two things tell: documents that the source's triggers write, and Relation messages that differ from
what is known. The latter come after the former and then say nothing new, unless there are no
triggers, or somebody has switched them off.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.changes.pgoutput import parse_message, parse_relation
from penstock.errors import SchemaUnreadable
from penstock.schema.mark import CHANGE, VERSION, Mark
from penstock.schema.match import is_stale
from penstock.schema.shape import (
    CHANGE_PREFIX,
    FORMAT,
    VERSION_PREFIX,
    ColumnShape,
    SchemaChange,
    TableShape,
    read_change,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.changes.pgoutput import Commit, Relation
    from penstock.lsn import Lsn
    from penstock.schema.history import SchemaHistory

_log = logging.getLogger(__name__)

_KINDS = {CHANGE_PREFIX: CHANGE, VERSION_PREFIX: VERSION}
_SEAL_LENGTH = 64


@dataclass(frozen=True)
class Note:
    """One document, before its transaction has committed."""

    kind: str
    content: str
    ordinal: int = 0
    subxid: int = 0
    shapes: tuple[TableShape, ...] = ()
    loose: tuple[int, ...] = ()  # ids of tables that the statement had not locked


class Notes:
    """Recognises documents, and Relation messages that are news.

    `lsn` is where the log ends: the history may be ahead of it, by documents whose transaction a crash
    has kept out of the log, and which come again. `look_up` tells how a table looks now; `seal` is the secret that the triggers sign with, without
    which no document of theirs is believed: anybody may write logical messages.
    """

    def __init__(
        self,
        history: SchemaHistory,
        lsn: Lsn,
        look_up: Callable[[int], TableShape | None],
        seal: bytes | None,
    ) -> None:
        self._history = history
        self._look_up = look_up
        self._seal = seal
        self._known = history.at(lsn)

    def of_message(self, raw: memoryview, *, carries_xid: bool) -> Note | None:
        """The document in a logical message, None when it is somebody else's."""
        message = parse_message(raw, carries_xid=carries_xid)
        kind = _KINDS.get(message.prefix)
        if kind is None:
            return None
        content = self._unseal(message.content)
        if content is None:
            _log.warning(
                "a logical message %s without penstock's seal is passed over", message.prefix
            )
            return None
        shapes: tuple[TableShape, ...] = ()
        loose: tuple[int, ...] = ()
        if kind == CHANGE:
            with suppress(SchemaUnreadable):  # told where it is delivered, with its place
                change = read_change(content, "")
                if change.has_old_snapshot:
                    change = self._made_current(change)
                    content = change.model_dump_json()
                shapes, loose = change.tables, change.loose
        return Note(kind, content, subxid=message.xid, shapes=shapes, loose=loose)

    def of_relation(
        self, raw: memoryview, *, carries_xid: bool, pending: Iterable[Note] = ()
    ) -> Note | None:
        """A document where a Relation message tells something new, None where it does not."""
        relation = parse_relation(raw, carries_xid=carries_xid)
        known = self._known.get(relation.oid)
        for note in pending:
            known = next((shape for shape in note.shapes if shape.id == relation.oid), known)
        if known is not None and agrees(known, relation):
            return None
        change = self._change(known, relation)
        subxid = int.from_bytes(raw[1:5], "big") if carries_xid else 0
        if change is None:
            return None
        return Note(CHANGE, change.model_dump_json(), subxid=subxid, shapes=change.tables)

    def _made_current(self, change: SchemaChange) -> SchemaChange:
        """A document of a transaction that could not see all, with what the catalog has by now."""
        tables = tuple(self._look_up(shape.id) or shape for shape in change.tables)
        return change.model_copy(update={"tables": tables})

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
        """The marks of a transaction that has committed; they are in the history from now on.

        Raises:
            LogError: the history cannot be written.
        """
        marks = []
        for number, noted in enumerate(notes):
            note = self._settled(noted)
            marks.append(
                Mark(
                    commit.commit_lsn,
                    commit.end_lsn,
                    commit.committed_at,
                    xid,
                    note.ordinal,
                    number,
                    note.kind,
                    note.content,
                )
            )
            self._known.update({shape.id: shape for shape in note.shapes})
        self._history.append(marks)
        return marks

    def _settled(self, note: Note) -> Note:
        """The document without what others have changed, between the statement and this commit.

        Of a table that the statement had not locked, a picture that lacks something the stream has
        told since would undo that.
        """
        stale = {
            shape.id: known
            for shape in note.shapes
            if shape.id in note.loose
            and (known := self._known.get(shape.id)) is not None
            and is_stale(shape, known)
        }
        if not stale:
            return note
        change = read_change(note.content, "")
        tables = tuple(
            self._look_up(shape.id) or stale[shape.id] if shape.id in stale else shape
            for shape in change.tables
        )
        change = change.model_copy(update={"tables": tables})
        return replace(note, content=change.model_dump_json(), shapes=tables)

    def _unseal(self, content: bytes) -> str | None:
        if self._seal is None or len(content) < _SEAL_LENGTH:
            return None
        sealed, document = content[:_SEAL_LENGTH], content[_SEAL_LENGTH:]
        inner = hashlib.sha256(self._seal + document).digest()
        wanted = hashlib.sha256(self._seal + inner).hexdigest().encode()
        if not hmac.compare_digest(sealed, wanted):
            return None
        return document.decode(errors="replace")


def agrees(shape: TableShape, relation: Relation) -> bool:
    """Whether a table looks as a Relation message says. Generated columns are not in the stream."""
    told = [(column.name, column.type_oid, column.type_modifier) for column in relation.columns]
    known = [
        (column.name, column.type_id, column.type_modifier)
        for column in shape.columns
        if not column.generated
    ]
    return shape.table == relation.table and sorted(told) == sorted(known)


def patch(known: TableShape, relation: Relation, now: TableShape | None) -> tuple[TableShape, bool]:
    """What is known, brought in line with a Relation message; and whether that is a guess.

    The catalog has moved on already, but what it has of the same name and type is taken from it.
    """
    of_name = {column.name: column for column in known.columns}
    current = {column.name: column for column in now.columns} if now is not None else {}
    next_id = max((column.id for column in (*known.columns, *current.values())), default=0) + 1
    columns: list[ColumnShape] = []
    added = 0
    for told in relation.columns:
        found = of_name.get(told.name)
        if found is None:
            added += 1
        if found is None or (found.type_id, found.type_modifier) != (
            told.type_oid,
            told.type_modifier,
        ):
            fresh = current.get(told.name)
            if fresh is None or fresh.type_id != told.type_oid:
                fresh = _unknown_type(told.name, told.type_oid, found.id if found else next_id)
                next_id += 1
            found = fresh if found is None else fresh.model_copy(update={"id": found.id})
        columns.append(found)
    names = {column.name for column in relation.columns}
    gone = [c for c in known.columns if c.name not in names and not c.generated]
    columns += [column for column in known.columns if column.generated]
    patched = known.model_copy(
        update={
            "schema_name": relation.table.schema,
            "name": relation.table.name,
            "columns": tuple(columns),
        }
    )
    return patched, bool(added and gone) or any(column.type == "" for column in columns)


def _unknown_type(name: str, type_oid: int, number: int) -> ColumnShape:
    return ColumnShape(
        id=number, name=name, type="", type_id=type_oid, type_kind="b", not_null=False
    )
