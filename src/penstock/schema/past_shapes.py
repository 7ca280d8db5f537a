"""Which shapes tables had when: every document of the stream about their shapes, by position.

Lines beside the log (`penstock.schema.shape_lines`), written by the process that captures before the slice that holds the
same document is, and read by everybody else. So whoever has read the log up to a position finds here
the shapes of tables at it. What comes twice, because the slot sent it again, is written once.

What every sink has passed is forgotten now and then: of each table its shape at that time stays.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import SchemaUnreadable
from penstock.lsn import ZERO, Lsn
from penstock.schema.mark import CHANGE, VERSION, Mark
from penstock.schema.shape import (
    FORMAT,
    REFRESH,
    Gone,
    PartitionShape,
    SchemaChange,
    TableShape,
    VersionWritten,
    as_content,
    read_change,
    read_version,
)
from penstock.schema.shape_lines import FileLines
from penstock.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.schema.shape_lines import ShapeLines

    Position = tuple[int, int]

_LAST = 2**31  # after every document of a transaction
# When the file is trimmed, and how many of the tables that were dropped before are remembered.
_LEAST_BYTES = 1024 * 1024
_GROWTH = 4
_GONE_KEPT = 1000


@dataclass
class _Life:
    """One table's shapes, oldest first, each from a position on; None: it was dropped there."""

    shapes: list[tuple[Position, TableShape | None]] = field(default_factory=list)

    def at(self, position: Position) -> TableShape | None:
        index = bisect_right(self.shapes, position, key=itemgetter(0))
        return self.shapes[index - 1][1] if index else None


class _Content:
    """What the lines of one file say."""

    def __init__(self) -> None:
        self.last_lsn = ZERO
        self.lives: dict[int, _Life] = {}
        self.named: dict[TableName, set[int]] = {}  # the tables that have ever had a name
        self.xids: dict[int, int] = {}  # of transactions that changed tables, by their commits
        self.versions: dict[int, list[VersionWritten]] = {}  # by the commit that they begin with
        self.last_versions: dict[str, int] = {}
        self.partitions: dict[int, PartitionShape] = {}
        self.left: dict[int, PartitionShape] = {}  # partitions that were detached or dropped

    def take(self, mark: Mark) -> None:
        position = (int(mark.commit_lsn), mark.number)
        self.last_lsn = max(self.last_lsn, mark.commit_lsn)
        try:
            if mark.kind == CHANGE:
                if mark.xid:
                    self.xids[int(mark.commit_lsn)] = mark.xid
                self._take_change(position, read_change(mark.content, mark.where))
            elif mark.kind == VERSION:
                written = read_version(mark.content, mark.where)
                self.versions.setdefault(int(mark.commit_lsn), []).append(written)
                self.last_versions[written.schema_name] = written.version
        except SchemaUnreadable:
            return  # whoever delivers it says so

    def _take_change(self, position: Position, change: SchemaChange) -> None:
        self.left |= {part.id: part for part in self._detached_in(change)}
        for shape in change.tables:
            self.lives.setdefault(shape.id, _Life()).shapes.append((position, shape))
            self.named.setdefault(shape.table, set()).add(shape.id)
        for gone in change.dropped_tables:
            self.lives.setdefault(gone.id, _Life()).shapes.append((position, None))
        went = [shape.id for shape in change.tables] + [gone.id for gone in change.dropped_tables]
        for table_id in went:
            if table_id in self.partitions:
                self.left[table_id] = self.partitions.pop(table_id)
        for partition in change.partitions:
            if partition.is_left:
                self.left[partition.id] = partition
            else:
                self.partitions[partition.id] = partition
                self.left.pop(partition.id, None)

    def _detached_in(self, change: SchemaChange) -> Iterator[PartitionShape]:
        """Tables that are first heard of where another one is altered: they were partitions of that until then."""
        if change.tag != "ALTER TABLE":
            return
        roots = [each.id for each in change.tables if each.kind == "p" and each.id in self.lives]
        for each in change.tables if len(roots) == 1 else ():
            if each.id not in self.lives:
                yield PartitionShape(
                    id=each.id,
                    schema_name=each.schema_name,
                    name=each.name,
                    root_id=roots[0],
                    is_left=True,
                )

    def kept(self, horizon: Lsn) -> list[Mark]:
        """How things stood at a position, as marks at the places where that was reported."""
        marks: list[Mark] = []
        gone: list[Mark] = []
        for table_id, life in self.lives.items():
            index = bisect_right(life.shapes, (int(horizon), -1), key=itemgetter(0))
            if not index:
                continue
            (commit_lsn, number), shape = life.shapes[index - 1]
            change = SchemaChange(format=FORMAT, tag=REFRESH, dropped_tables=(Gone(id=table_id),))
            if shape is not None:
                change = SchemaChange(format=FORMAT, tag=REFRESH, tables=(shape,))
            mark = _mark(
                commit_lsn, number, CHANGE, as_content(change), self.xids.get(commit_lsn, 0)
            )
            (marks if shape is not None else gone).append(mark)
        for commit_lsn in sorted(self.versions):
            if commit_lsn >= horizon:
                break
            for place, each in enumerate(self.versions[commit_lsn]):
                if not self._has_later(each, commit_lsn, horizon):
                    marks.append(_mark(commit_lsn, _LAST - place, VERSION, as_content(each)))
        left = [each.model_copy(update={"is_left": True}) for each in self.left.values()]
        parts = (*left[-_GONE_KEPT:], *self.partitions.values())
        if parts:
            change = SchemaChange(format=FORMAT, tag=REFRESH, partitions=parts)
            marks.append(_mark(1, 0, CHANGE, as_content(change)))
        gone.sort(key=lambda mark: mark.commit_lsn)
        return sorted(
            [*gone[-_GONE_KEPT:], *marks], key=lambda mark: (mark.commit_lsn, mark.number)
        )

    def _has_later(self, version: VersionWritten, commit_lsn: int, horizon: Lsn) -> bool:
        return any(
            each.schema_name == version.schema_name
            for other, written in self.versions.items()
            if commit_lsn < other < horizon
            for each in written
        )


def _mark(commit_lsn: int, number: int, kind: str, content: str, xid: int = 0) -> Mark:
    return Mark(Lsn(commit_lsn), Lsn(commit_lsn), 0, xid, 0, number, kind, content)


class PastShapes:
    """Those of one source. Any number of readers; one writer, who calls `open_for_writing`.

    `lines`: where they are kept; a path stands for a file of lines.
    """

    def __init__(self, lines: ShapeLines | Path) -> None:
        self._lines: ShapeLines = FileLines(lines) if isinstance(lines, Path) else lines
        self._content = _Content()
        self._covered_lsn = ZERO  # all that was reported before it is known
        self._trimmed_bytes = 0
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    @property
    def path(self) -> Path:
        """The file, where it is one."""
        assert isinstance(self._lines, FileLines), "not kept in a file"
        return self._lines.path

    def open_for_writing(self) -> None:
        """Cut off what a crash has left half-written, and go on after it.

        Raises:
            LogError: it cannot be used.
        """
        self._lines.open_for_writing()
        self.refresh()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known yet."""
        return not self._now().lives

    @property
    def last_lsn(self) -> Lsn:
        """Where the last transaction that it knows of was committed."""
        return self._now().last_lsn

    def append(self, marks: Sequence[Mark]) -> None:
        """Make the documents of one transaction durable.

        Raises:
            LogError: they cannot be written.
        """
        with self._writing:
            assert self._lines.is_open, "opened for writing first"
            if not marks:
                return
            if not self._lines.is_near:
                # What a broker did not answer to it may have taken: the same comes again, or another line would take
                # its number.
                self.refresh()
            if marks[0].commit_lsn <= self._content.last_lsn:
                return
            # One line, so that a crash leaves all of them or none.
            self._lines.append(json.dumps([mark.as_json() for mark in marks]).encode())
            self.refresh()

    def forget_before(self, horizon: Lsn) -> bool:
        """Keep of what was reported up to a position only how things stood there; whether that was due.

        It is when the lines have grown to several times what is kept.

        Raises:
            LogError: they cannot be written; the old ones are whole.
        """
        with self._writing:
            limit = max(_LEAST_BYTES, _GROWTH * self._trimmed_bytes)
            if not horizon or not self._lines.is_open or self._lines.size_bytes() < limit:
                return False
            self.refresh()
            kept = [mark.as_json() for mark in self._content.kept(horizon)]
            lines = [json.dumps(kept).encode()] if kept else []
            lines += [
                line
                for line in self._lines.read_all()
                if any(mark["commit_lsn"] >= horizon for mark in json.loads(line))
            ]
            self._lines.replace(lines)
            self._trimmed_bytes = sum(map(len, lines)) + len(lines)
            self.refresh()
            return True

    def close(self) -> None:
        """Add no more."""
        with self._writing:
            self._lines.close()

    def refresh(self) -> None:
        """Read what has been added, or all of it where other lines have taken the place."""
        with self._lock:
            is_another, lines = self._lines.read_new()
            content = _Content() if is_another else self._content
            for line in lines:
                for document in json.loads(line):
                    content.take(Mark.from_json(document))
            self._content = content

    def _now(self, lsn: Lsn | None = None) -> _Content:
        """All that is known, at least of what was reported before a position that the log has been read up to.

        That is written before the log is, so that it need not be asked for twice.
        """
        if lsn is None or self._lines.is_near or lsn > self._covered_lsn:
            self.refresh()
            self._covered_lsn = max(self._covered_lsn, lsn or ZERO)
        return self._content

    def shape_at(self, name: TableName, lsn: Lsn) -> TableShape | None:
        """The shape of the table that had this name at a position; None when that is not known."""
        content = self._now(lsn)
        for table_id in tuple(content.named.get(name, ())):
            shape = content.lives[table_id].at((int(lsn), -1))
            if shape is not None and shape.table == name:
                return shape
        return None

    def by_id_at(self, table_id: int, lsn: Lsn) -> TableShape | None:
        """A table's shape at a position; None when it was not there, or is not known."""
        life = self._now(lsn).lives.get(table_id)
        return life.at((int(lsn), -1)) if life is not None else None

    def name_of(self, table_id: int, lsn: Lsn) -> TableName | None:
        """What a table was called at a position; None when it was not there, or is not known."""
        shape = self.by_id_at(table_id, lsn)
        return None if shape is None else shape.table

    def was_reported_after(self, table_id: int, since_lsn: Lsn, lsn: Lsn) -> bool:
        """Whether something of a table was reported after one position and before another."""
        life = self._now().lives.get(table_id)
        return life is not None and any(
            since_lsn <= commit_lsn < lsn for (commit_lsn, _), _ in life.shapes
        )

    def first_of(self, table_id: int) -> tuple[Lsn, TableShape] | None:
        """Where a table is first reported, and its shape there."""
        life = self._now().lives.get(table_id)
        if life is None:
            return None
        (commit_lsn, _), shape = life.shapes[0]
        return (Lsn(commit_lsn), shape) if shape is not None else None

    def is_dropped(self, table_id: int) -> bool:
        """Whether a table was there, and was dropped."""
        life = self._now().lives.get(table_id)
        return life is not None and life.shapes[-1][1] is None

    def shape_before(self, table_id: int, mark: Mark) -> TableShape | None:
        """A table's shape before a document reported something of it."""
        life = self._now().lives.get(table_id)
        return life.at((int(mark.commit_lsn), mark.number - 1)) if life is not None else None

    def at(self, lsn: Lsn) -> dict[int, TableShape]:
        """Every table that was there at a position, as it was then, by id."""
        lives = self._now(lsn).lives
        then = {oid: life.at((int(lsn), -1)) for oid, life in tuple(lives.items())}
        return {oid: shape for oid, shape in then.items() if shape is not None}

    def changed_by(self, lsn: Lsn) -> dict[int, int]:
        """Which transaction changed each table last before a position, as far as it is known, by the table's id."""
        content = self._now(lsn)
        found: dict[int, int] = {}
        for oid, life in tuple(content.lives.items()):
            index = bisect_right(life.shapes, (int(lsn), -1), key=itemgetter(0))
            xid = content.xids.get(life.shapes[index - 1][0][0], 0) if index else 0
            if xid:
                found[oid] = xid
        return found

    def versions_before(self, lsn: Lsn) -> dict[str, int]:
        """How far the versions of each schema are counted at a position."""
        counted: dict[str, int] = {}
        for commit_lsn, written in sorted(self._now(lsn).versions.items()):
            if commit_lsn < lsn:
                counted |= {each.schema_name: each.version for each in written}
        return counted

    def left_partitions(self) -> dict[int, dict[int, TableName]]:
        """Partitions that were detached or dropped, by the table that they were part of."""
        found: dict[int, dict[int, TableName]] = {}
        for each in tuple(self._now().left.values()):
            found.setdefault(each.root_id, {})[each.id] = TableName(each.schema_name, each.name)
        return found

    def former_roots(self) -> dict[int, TableShape]:
        """What tables were partitions of before they were detached, by their ids; as that is by now, or was last."""
        content = self._now()
        found: dict[int, TableShape] = {}
        for each in tuple(content.left.values()):
            life = content.lives.get(each.root_id, _Life())
            for _, shape in reversed(life.shapes):
                if shape is not None:
                    found[each.id] = shape
                    break
        return found

    def filled_partitions(self) -> dict[int, dict[int, TableName]]:
        """Partitions that had rows when they were attached, by the table that they are part of."""
        found: dict[int, dict[int, TableName]] = {}
        for each in tuple(self._now().partitions.values()):
            if each.came_filled:
                name = TableName(each.schema_name, each.name)
                found.setdefault(each.root_id, {})[each.id] = name
        return found

    def last_versions(self) -> dict[str, int]:
        """How far the versions of each schema are counted."""
        return dict(self._now().last_versions)

    def last_version_lsn(self) -> Lsn:
        """The commit that the newest version begins with."""
        return Lsn(max(self._now().versions, default=0))

    def versions_at(self, commit_lsn: Lsn) -> list[VersionWritten] | None:
        """The versions that a commit led to; None of one that is not there yet."""
        content = self._now()
        if commit_lsn > content.last_lsn:
            return None
        return list(content.versions.get(int(commit_lsn), ()))

    def transactions_after(self, lsn: Lsn) -> list[list[Mark]]:
        """All that was reported by commits after a position, each as it was written."""
        listed = [
            [Mark.from_json(one) for one in json.loads(line)] for line in self._lines.read_all()
        ]
        return [marks for marks in listed if marks and marks[-1].commit_lsn > lsn]
