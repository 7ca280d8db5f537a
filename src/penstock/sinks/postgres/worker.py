"""The executor half: changes -> net effect per key -> COPY text -> a staging table.

Few rows are not staged but returned in the receipt: a small batch then costs the target one COPY into
a temporary table of the driver's own session, and no table is made and dropped for it.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from psycopg.errors import InsufficientPrivilege

from penstock.changes.cells import gather
from penstock.changes.compact import COMES, GONE, LEAVES, REPLACE, Step, compact
from penstock.changes.decode import Piece, TableChanges, TableTruncated
from penstock.changes.history import STILL, HistoryStep, versions
from penstock.changes.pgoutput import DELETE, INSERT, UPDATE, Relation
from penstock.errors import PenstockError, RowRefused, TargetTableUnfit
from penstock.failpoints import fault_point
from penstock.sinks.postgres.connect import (
    classify_target_error,
    connect_target,
    is_about_table,
)
from penstock.sinks.postgres.mapping.plan import (
    HistoryTimes,
    Staged,
    StagedStep,
    TablePlan,
    TargetColumn,
)
from penstock.sinks.postgres.merge.copy_text import copy_text
from penstock.sinks.postgres.options import Kind
from penstock.sinks.sink import Receipt, RefusedTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from penstock.changes.cells import Index, Mask
    from penstock.dsn import Dsn
    from penstock.table import TableName

# Above this, rows go to a staging table, from executor to target; below, through the driver.
INLINE_BYTES = 256 * 1024

_UNIX_OF_2000 = 946_684_800_000_000  # microseconds

# One connection per worker process and target, kept from task to task.
_connections: dict[str, psycopg.Connection[Any]] = {}


@dataclass(frozen=True)
class PostgresWorker:
    """What the executors are sent."""

    dsn: Dsn = field(repr=False)
    stage_prefix: str
    plans: dict[TableName, TablePlan]
    # Tables that are stopped, or not this batch's concern; their changes are skipped.
    skipped: frozenset[TableName]
    # The types of columns may be known to the driver's session alone, so far.
    stages_text: bool = False

    def begin(self, task: int) -> PostgresTask:
        """Start the work of one task."""
        return PostgresTask(self, task)


class PostgresTask:
    """The work of one task: takes changes in order, leaves staged steps in order."""

    def __init__(self, worker: PostgresWorker, task: int) -> None:
        self._worker = worker
        self._receipt = Receipt(task)
        self._steps: list[StagedStep] = []
        self._refused: dict[TableName, RefusedTable] = {}
        self._change_counts: dict[TableName, int] = {}
        self._inline_bytes = 0

    def prepare(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """As they are: what becomes of them depends on those before."""
        return pieces

    def take(self, pieces: Sequence[Piece]) -> None:
        """Stage the changes of a few slices."""
        for piece in pieces:
            table = piece.relation.table
            if table in self._worker.skipped or table in self._refused:
                continue
            plan = self._worker.plans[table]
            count = 1 if isinstance(piece, TableTruncated) else len(piece)
            self._receipt.change_count += count
            self._change_counts[table] = self._change_counts.get(table, 0) + count
            if isinstance(piece, TableTruncated) and plan.kind is Kind.APPEND:
                continue
            if isinstance(piece, TableTruncated) and plan.is_mixed:
                self._refused[table] = _ambiguous_truncate(plan)
                continue
            try:
                if isinstance(piece, TableTruncated):
                    self._steps.append(_truncation(plan, piece))
                else:
                    self._stage(plan, piece)
            except (RowRefused, TargetTableUnfit) as error:
                self._refused[table] = RefusedTable.of(table, error)

    def finish(self) -> Receipt:
        """Everything taken is staged."""
        self._receipt.content = Staged(
            tuple(self._steps), tuple(self._refused.values()), self._change_counts
        )
        return self._receipt

    def _stage(self, plan: TablePlan, changes: TableChanges) -> None:
        places, columns, key = _target_columns(plan, changes.relation)
        if len(places) < len(changes.relation.columns):
            changes = _only(changes, places)
        if plan.kind is Kind.APPEND:
            changes = changes.take(np.flatnonzero(changes.operation != DELETE))
            if len(changes) == 0:
                return
        steps = versions(changes, key) if plan.history is not None else compact(changes, key)
        for step in steps:
            self._stage_step(plan, step, columns, key)

    def _stage_step(
        self,
        plan: TablePlan,
        step: Step,
        columns: tuple[TargetColumn, ...],
        key: tuple[int, ...],
    ) -> None:
        staged = _described(plan, step, columns, key)
        arrays = _extra_arrays(staged, step)
        arrays += [gather(cells) for cells in step.columns]
        text = copy_text(arrays)
        if self._inline_bytes + len(text) <= INLINE_BYTES:
            self._inline_bytes += len(text)
            self._steps.append(replace(staged, inline=bytes(text)))
            return
        name = f"{self._worker.stage_prefix}{uuid.uuid4().hex[:20]}"
        fault_point("stage.before_copy")
        try:
            _copy(self._connection(), name, staged, text, as_text=self._worker.stages_text)
        except psycopg.DataError as error:
            raise refusal(
                error, plan, staged, lambda column, line: _text(arrays[column], line)
            ) from None
        except psycopg.Error as error:
            # Of penstock's own schema, permission is everybody's concern.
            if is_about_table(error) and not isinstance(error, InsufficientPrivilege):
                raise TargetTableUnfit(
                    f"rows for {plan.target} cannot be staged: {error.diag.message_primary}",
                    str(plan.source),
                    f"fix {plan.target}; its changes wait in the log",
                ) from None
            _forget(self._worker.dsn)
            raise classify_target_error(error, self._worker.dsn) from None
        fault_point("stage.after_copy")
        self._steps.append(replace(staged, stage_table=name))

    def _connection(self) -> psycopg.Connection[Any]:
        dsn = self._worker.dsn
        connection = _connections.get(dsn.conninfo)
        if connection is None or connection.closed:
            connection = connect_target(dsn, "penstock stage", autocommit=False)
            _connections[dsn.conninfo] = connection
        return connection


def _forget(dsn: Dsn) -> None:
    connection = _connections.pop(dsn.conninfo, None)
    if connection is not None:
        connection.close()


def _ambiguous_truncate(plan: TablePlan) -> RefusedTable:
    error = TargetTableUnfit(
        f"the source has emptied the table, but nothing distinguishes its rows in {plan.target} from others",
        str(plan.source),
        f"delete them from {plan.target}, then penstock tables PIPELINE.yml resync {plan.source};"
        " source_id_column distinguishes rows of several sources",
    )
    return RefusedTable.of(plan.source, error)


def _times(plan: TablePlan, first_at: int, last_at: int) -> HistoryTimes | None:
    if plan.history is None:
        return None
    return HistoryTimes(first_at, last_at, (plan.history.start_type, plan.history.end_type))


def _truncation(plan: TablePlan, piece: TableTruncated) -> StagedStep:
    step = StagedStep(plan.source, "truncate", restart_identity=piece.restart_identity)
    if plan.history is None:
        return step
    _, columns, key = _target_columns(plan, piece.relation)
    times = _times(plan, piece.committed_at, piece.committed_at)
    return replace(step, columns=columns, key=key, times=times)


def _target_columns(
    plan: TablePlan, relation: Relation
) -> tuple[list[int], tuple[TargetColumn, ...], tuple[int, ...]]:
    """Which columns of the relation are delivered, where to, and which of those identify a row."""
    taken = [
        (place, target)
        for place, column in enumerate(relation.columns)
        if (target := plan.column(column.name)) is not None
    ]
    if not taken:
        raise TargetTableUnfit(
            f"{plan.target} has none of the columns that are delivered",
            str(plan.source),
            f"add columns to {plan.target}, or fix `columns:` of the sink",
        )
    places = [place for place, _ in taken]
    key = key_of(relation, plan)
    plan.require(relation.columns[place].name for place in key)
    columns = tuple(target for _, target in taken)
    return places, columns, tuple(places.index(place) for place in key)


def key_of(relation: Relation, plan: TablePlan) -> list[int]:
    """Which columns of the relation identify a row; none when the whole row must."""
    names = [column.name for column in relation.columns]
    if relation.replica_identity == "f":
        return [names.index(name) for name in plan.key] if set(plan.key) <= set(names) else []
    return [place for place, column in enumerate(relation.columns) if column.in_identity]


def _only(changes: TableChanges, places: list[int]) -> TableChanges:
    """The changes of some columns: what is not delivered need not be known, nor identify rows."""
    relation = replace(
        changes.relation, columns=tuple(changes.relation.columns[place] for place in places)
    )
    return replace(
        changes,
        relation=relation,
        after=tuple(changes.after[place] for place in places),
        before=tuple(changes.before[place] for place in places),
    )


def _extra_arrays(staged: StagedStep, step: Step) -> list[pa.Array]:
    """The columns in front of the table's own; see StagedStep.stage_columns."""
    arrays: list[pa.Array] = []
    if staged.has_operations:
        arrays.append(_characters(step.operation))
    if len(staged.unchanged) > 1:
        arrays.append(_digits(step.unchanged_group))
    if staged.has_copies:
        arrays.append(_digits(step.copies))
    if isinstance(step, HistoryStep):
        still = step.until == STILL
        arrays += [_letters(step.is_first), _instants(step.at)]
        arrays += [_instants(step.until, still), _letters(step.ends_deleted)]
    if staged.kind == "move":
        arrays += [gather(cells) for cells in step.old_key]
    return arrays


def _characters(letters: npt.NDArray[np.uint8]) -> pa.Array:
    offsets = np.arange(len(letters) + 1, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(letters.tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(letters), buffers)


def _letters(flags: Mask) -> pa.Array:
    """Booleans, as Postgres writes them."""
    return _characters(np.where(flags, b"t"[0], b"f"[0]).astype(np.uint8))


def _instants(at: Index, is_null: Mask | None = None) -> pa.Array:
    """Microseconds since 2000-01-01 as the text of a timestamptz. Sessions may have any time zone."""
    moments = pa.array(at + _UNIX_OF_2000, mask=is_null).cast(pa.timestamp("us"))
    texts = pc.binary_join_element_wise(moments.cast(pa.string()), "+00", "")
    return texts.cast(pa.binary())


def _digits(numbers: Any) -> pa.Array:
    return pa.array(numbers).cast(pa.string()).cast(pa.binary())


def _copy(
    connection: psycopg.Connection[Any],
    name: str,
    staged: StagedStep,
    text: memoryview,
    *,
    as_text: bool,
) -> None:
    declared = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL("text" if as_text else kind))
        for column, kind in staged.stage_columns
    )
    table = sql.Identifier("penstock", name)
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql.SQL("CREATE UNLOGGED TABLE {} ({})").format(table, declared))
            copy_into(cursor, table, text)
        connection.commit()
    except psycopg.Error:
        if not connection.closed:
            connection.rollback()
        raise


def copy_into(cursor: psycopg.Cursor[Any], table: sql.Composable, text: memoryview | bytes) -> None:
    """COPY the text into the table."""
    with cursor.copy(sql.SQL("COPY {} FROM STDIN").format(table)) as copy:
        view = memoryview(text)
        for begin in range(0, len(view), 1 << 20):
            copy.write(view[begin : begin + (1 << 20)])


_LINE = re.compile(r"^COPY [^\n]*?, line (\d+)(?:, column c(\d+))?", re.MULTILINE)


def refusal(
    error: psycopg.Error, plan: TablePlan, staged: StagedStep, cell: Callable[[int, int], str]
) -> PenstockError:
    """A row that the target's types refuse, named by its key and column, never by its values.

    Args:
        cell: the text at a column and a line of the COPY.
    """
    match = _LINE.search(error.diag.context or "")
    line = int(match[1]) - 1 if match else None
    column = staged.columns[int(match[2])].name if match and match[2] else None
    key = "a row"
    first = len(staged.stage_columns) - len(staged.columns)
    if line is not None and staged.key:
        described = [
            f"{staged.columns[place].name}={cell(first + place, line)}" for place in staged.key
        ]
        key = f"key ({', '.join(described)})"
    what = f"the target refuses column {column}" if column else "the target refuses the row"
    return RowRefused(
        f"{what}: SQLSTATE {error.sqlstate} {type(error).__name__}",
        f"{plan.source} {key}",
        f"widen the column of {plan.target}, or fix the row at the source; its changes wait in the log",
    )


def _text(array: pa.Array, line: int) -> str:
    value = array[line].as_py()
    return "NULL" if value is None else value.decode("utf-8", "replace")


def _described(
    plan: TablePlan, step: Step, columns: tuple[TargetColumn, ...], key: tuple[int, ...]
) -> StagedStep:
    """A step before its rows are anywhere: what they are, and how many of each sort."""
    kind = "move" if step.old_key else "net"
    insert_count = step.count(INSERT)
    staged = StagedStep(
        table=plan.source,
        kind=kind,
        columns=columns,
        key=key,
        has_operations=kind == "net" and insert_count < len(step),
        has_copies=bool((step.copies != 1).any()),
        unchanged=step.unchanged_columns,
        insert_count=insert_count,
        update_count=step.count(UPDATE),
        delete_count=int(step.copies[step.operation == DELETE].sum()),
        replace_count=step.count(REPLACE),
        gone_count=step.count(GONE),
    )
    if not isinstance(step, HistoryStep):
        return staged
    # What meets the target's rows is what comes first.
    firsts = Counter(step.operation[step.is_first].tolist())
    return replace(
        staged,
        has_operations=True,
        insert_count=firsts[INSERT] + firsts[COMES],
        update_count=firsts[UPDATE] + firsts[LEAVES],
        replace_count=firsts[REPLACE],
        times=_times(plan, step.first_at, step.last_at),
    )
