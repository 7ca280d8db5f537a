"""Copied rows through a modifier: COPY text in, COPY text out, many rows at once. Runs on executors.

Only tables that a modifier is concerned with come this way, and so as text; all others are passed on as
the server sends them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.changes.cells import Cells, gather, no_cells
from penstock.changes.copyrows import escape, join_lines, parse_rows
from penstock.changes.decode import Positions, TableChanges
from penstock.changes.pgoutput import INSERT, Relation, relation_of
from penstock.changes.textcolumns import raw_bytes
from penstock.errors import DecodeError, ModifierError
from penstock.modifiers.chain import NeedsShape, TableChain
from penstock.modifiers.filter.pushdown import pushed
from penstock.modifiers.inject import Injection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.changes.cells import Index
    from penstock.changes.copyrows import CopiedRows
    from penstock.errors import PenstockError
    from penstock.lsn import Lsn
    from penstock.modifiers.modifier import Modifiers, TableModifier
    from penstock.schema.shape import TableShape
    from penstock.table import TableName


@dataclass(frozen=True)
class ModifiedCopy:
    """How the rows of one table are to be changed on their way. Picklable.

    `relation` and `key_columns` are the source's; `commit_lsn` is the position of the snapshot.
    """

    modifier: TableModifier
    relation: Relation
    key_columns: tuple[str, ...]
    commit_lsn: int
    condition: str = ""  # SQL that the source itself can ask of its rows, before all else
    injected: Relation | None = None  # how rows are described, where documents say more
    is_whole: bool = False  # nothing else is done: what matches is passed on as the server sends it

    @property
    def source_columns(self) -> tuple[str, ...]:
        """What has to be read."""
        return tuple(column.name for column in self.relation.columns)

    def begin(
        self, columns: Sequence[str], literals: Sequence[tuple[str, str]] = ()
    ) -> ModifiedRange:
        """Begin a range; the sink wants these columns of what the modifier gives, then the literals."""
        return ModifiedRange(self, columns, literals)


class ModifiedRange:
    """The rows of one range, block by block."""

    def __init__(
        self, copy: ModifiedCopy, columns: Sequence[str], literals: Sequence[tuple[str, str]]
    ) -> None:
        self._copy = copy
        self._columns = columns
        self._literals = literals
        self._read_count = 0
        self._kept: list[Index] = []  # which rows of the source were written

    def rows(self, block: Sequence[bytes | memoryview]) -> list[memoryview]:
        """Whole rows as COPY sent them -> those that the sink is to have, their lines in one piece.

        Raises:
            DecodeError: these are not rows of the table, or a modifier leaves a value out.
        """
        parsed = parse_rows(b"".join(block), len(self._copy.relation.columns))
        changes = self._copy.modifier.apply(self._inserts(parsed))
        # What a modifier turned into a DELETE is not there.
        kept = np.flatnonzero(changes.operation == INSERT)
        if len(kept) < len(changes):
            changes = changes.take(kept)
        self._kept.append(changes.positions.ordinal)
        names = [column.name for column in changes.relation.columns]
        texts = self._texts([changes.after[names.index(name)] for name in self._columns], parsed)
        texts += [
            escape(pa.repeat(pa.scalar(value.encode(), pa.binary()), len(changes)))
            for _, value in self._literals
        ]
        # Not line by line: that would take as long as all the rest.
        return [raw_bytes(join_lines(texts, len(changes)))] if len(changes) else []

    def _texts(self, columns: Sequence[Cells], parsed: CopiedRows) -> list[pa.Array]:
        """Columns as COPY takes them. Neighbours that no rule has touched go on together, as they came."""
        untouched = {id(cells): place for place, cells in enumerate(parsed.cells)}
        texts: list[pa.Array] = []
        at = 0
        while at < len(columns):
            cells = columns[at]
            first = last = untouched.get(id(cells))
            at += 1
            if first is None or last is None:
                texts.append(escape(self._values(cells)))
                continue
            while at < len(columns) and untouched.get(id(columns[at])) == last + 1:
                last, at = last + 1, at + 1
            texts.append(parsed.text_of(first, last))
        return texts

    def source_row(self, line: int | None) -> int | None:
        """Which row of the range, as the source has it, a line of what was written is of."""
        if line is None:
            return None
        kept = np.concatenate(self._kept) if self._kept else np.zeros(0, np.int64)
        return int(kept[line]) if line < len(kept) else None

    def inserts(self, block: Sequence[bytes | memoryview]) -> TableChanges:
        """Whole rows as COPY sent them, as changes that no rule has seen yet."""
        return self._inserts(parse_rows(b"".join(block), len(self._copy.relation.columns)))

    def _inserts(self, rows: CopiedRows) -> TableChanges:
        relation, count = self._copy.relation, len(rows)
        ordinal = self._read_count + np.arange(count, dtype=np.int64)
        self._read_count += count
        nobody_knows = np.zeros(count, np.int64)
        absent = no_cells(pa.py_buffer(b""), nobody_knows)
        return TableChanges(
            relation,
            np.full(count, INSERT, np.uint8),
            Positions(
                np.full(count, self._copy.commit_lsn, np.uint64),
                ordinal,
                nobody_knows,
                nobody_knows,
            ),
            rows.cells,
            (absent,) * len(relation.columns),
            np.zeros(count, np.bool_),
        )

    def _values(self, cells: Cells) -> pa.Array:
        if bool((~cells.is_value & ~cells.is_null).any()):
            raise DecodeError(f"{self._copy.relation.table}: a copied row lacks values")
        return gather(cells)


def modified_copies(
    modifiers: Modifiers, shapes: Mapping[TableName, TableShape], lsn: Lsn
) -> tuple[dict[TableName, ModifiedCopy], dict[TableName, PenstockError]]:
    """How the rows of tables are to be changed; those that nothing is done to are left out.

    And the tables that their rules do not fit.
    """
    made: dict[TableName, ModifiedCopy] = {}
    unfit: dict[TableName, PenstockError] = {}
    for name, shape in shapes.items():
        if not modifiers.concerns(name):
            continue
        modifier = modifiers.of(name)
        try:
            if isinstance(modifier, NeedsShape):
                modifier = modifier.with_shape(shape)
        except ModifierError as error:
            unfit[name] = error
            continue
        keys = shape.key_columns
        rest, condition = _pushed(modifier)
        described = modifier.modified_relation(relation_of(shape))
        made[name] = ModifiedCopy(
            rest,
            relation_of(shape),
            keys,
            int(lsn),
            condition,
            injected=described if described.injected is not None else None,
            is_whole=isinstance(rest, TableChain) and not rest.links,
        )
    return made, unfit


def _pushed(modifier: TableModifier) -> tuple[TableModifier, str]:
    """What is left to do of a chain after the source has been asked for rows that match, and that SQL."""
    if not isinstance(modifier, TableChain):
        return modifier, ""
    said: list[str] = []
    links = list(modifier.links)
    # Only what comes first: what follows another rule is about the rows that this one leaves.
    while links and (condition := _condition(links[0].modifier)) is not None:
        said += [f"({condition})"] if condition else []
        links.pop(0)
    return TableChain(tuple(links)), " AND ".join(said)


def _condition(modifier: TableModifier) -> str | None:
    return "" if isinstance(modifier, Injection) else pushed(modifier)


def modified_shapes(
    modifiers: Modifiers, shapes: Mapping[TableName, TableShape]
) -> tuple[dict[TableName, TableShape], dict[TableName, PenstockError]]:
    """Tables as the sink sees them, and those that their rules do not fit."""
    seen = dict(shapes)
    unfit: dict[TableName, PenstockError] = {}
    for name, shape in shapes.items():
        try:
            seen[name] = modifiers.modified_shape(shape)
        except ModifierError as error:
            unfit[name] = error
    return seen, unfit
