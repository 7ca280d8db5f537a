"""Slices -> Spark tasks -> receipts. The only place where the log meets Spark.

A task reads its slices, decodes them, has modifiers change what they are concerned with, and hands
the changes to the sink's executor half, a few slices at a time; the changes themselves never enter the JVM.
"""

from __future__ import annotations

import itertools
import logging
import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from penstock.changes.decode import Piece, TableChanges, Transaction, decode
from penstock.changes.pgoutput import DELETE, INSERT, TRUNCATE, UPDATE
from penstock.errors import PenstockError, SparkFailed, SparkGone, recognise
from penstock.log.slice import SliceKind
from penstock.modifiers.modifier import modify
from penstock.sinks.sink import RefusedTable, SharingWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.errors import ModifierError
    from penstock.log.contract import Slice
    from penstock.log.slice import SliceHead
    from penstock.modifiers.modifier import Modifiers
    from penstock.sinks.sink import Receipt, Worker
    from penstock.spark.session import Running, Spark
    from penstock.table import TableName

_log = logging.getLogger(__name__)

Work = TypeVar("Work")
Result = TypeVar("Result")

# How much is decoded at once. Small slices are decoded together, since numpy's cost per call is the
# same for one row as for a thousand; but not so many that tasks cannot share them evenly.
_SMALLEST_CHUNK_BYTES = 1024 * 1024
_LARGEST_CHUNK_BYTES = 8 * 1024 * 1024
# Of tasks that all read everything, more would do the same work over and over.
_MOST_SHARES = 8


# Beside a job in Spark's records, where a trace is sampled.
_TRACE_PROPERTY = "penstock.traceparent"

_OPERATIONS = {INSERT: "insert", UPDATE: "update", DELETE: "delete", TRUNCATE: "truncate"}


class JobWatch(NamedTuple):
    """What those who watch want of a job: rows counted, and a trace that it belongs to."""

    counts: bool = False
    traceparent: str | None = None


UNWATCHED = JobWatch()


class Span(NamedTuple):
    """Which transactions of the slices are meant: those that end after one LSN, up to another."""

    after_lsn: int
    until_lsn: int


def run_job(
    spark: Spark,
    worker: Worker,
    slices: Sequence[Slice],
    span: Span,
    parallel: int,
    modifiers: Modifiers | None = None,
    watch: JobWatch = UNWATCHED,
) -> list[Receipt]:
    """Run one Spark job over the slices; the receipts in the slices' order.

    Args:
        watch: what those who watch want of it.

    Raises:
        PenstockError: as raised in a task, recognised by its code.
    """
    size = sum(ref.head.data_bytes for ref in slices)
    chunk_bytes = min(max(size // (2 * parallel), _SMALLEST_CHUNK_BYTES), _LARGEST_CHUNK_BYTES)
    chunks = list(chunk_slices(slices, chunk_bytes))
    if isinstance(worker, SharingWorker):
        shares = min(parallel, _MOST_SHARES, size // _SMALLEST_CHUNK_BYTES)
        tasks = [chunks] * max(1, shares) if chunks else []
        worker = worker.shared_among(len(tasks))
    else:
        tasks = share_out(chunks, parallel)
    # Numbered, so that a receipt can say where in the batch its changes belong.
    work = [(number, task) for number, task in enumerate(tasks)]
    function = partial(_run_tasks, worker, span, modifiers, watch.counts)
    return run_tasks(spark, function, work, traceparent=watch.traceparent)


def run_tasks(
    spark: Spark,
    function: Callable[[Iterable[Work]], Iterable[Any]],
    work: Sequence[Work],
    group: str | None = None,
    traceparent: str | None = None,
) -> list[Any]:
    """Run a function over pieces of work, each in a task of its own. Waits while Spark is being started.

    Args:
        group: a name for `Spark.cancel`. Jobs of groups share the cores fairly with all others.

    Raises:
        SparkGone: Spark died meanwhile; what tasks had done stays.
        PenstockError: as raised in a task, recognised by its code.
    """
    running = spark.running()
    count = max(1, len(work))
    try:
        context = running.context
        spark.label_job(running)
        if group is not None:
            context.setJobGroup(group, "penstock copy", interruptOnCancel=True)
            context.setLocalProperty("spark.scheduler.pool", "copy")
        if traceparent is not None:
            context.setLocalProperty(_TRACE_PROPERTY, traceparent)
        rdd: Any = context.parallelize(work, count)
        try:
            ended = list(rdd.mapPartitions(partial(_at_once, function)).collect())
        finally:
            if traceparent is not None:
                context.setLocalProperty(_TRACE_PROPERTY, None)  # type: ignore[arg-type]
    except PenstockError:
        raise
    except Exception as error:
        raise _explained(error, spark, running) from error
    if len(ended) != count:
        # pyspark takes the end of the stream for the end of the results.
        raise spark.loss(running) or SparkGone(
            f"results of {len(ended)} of {count} tasks", "spark", "nothing, penstock tries again"
        )
    return [result for results in ended for result in results]


def _at_once(
    function: Callable[[Iterable[Work]], Iterable[Result]], work: Iterable[Work]
) -> list[list[Result]]:
    """Runs in a Spark task. One result a task, so that one that is missing is noticed."""
    return [list(function(work))]


def _explained(error: Exception, spark: Spark, running: Running) -> PenstockError:
    """What the failure of a job means."""
    known = recognise(str(error))
    if known is not None:
        return known
    loss = spark.loss(running)
    if loss is not None:
        return loss
    _log.debug("the job's own words", exc_info=error)
    return SparkFailed(
        f"a job failed: {_last_words(str(error))}",
        "spark",
        "nothing, penstock tries again; --log-level debug shows all that Spark says",
    )


def _last_words(text: str) -> str:
    """The class of the Python or Java exception at the bottom of Spark's report, without its text.

    The text of an error that is not ours may hold anything, values of rows included.
    """
    classes = re.findall(r"^(?:Caused by: )?([\w.]+(?:Error|Exception|Exit))\b", text, re.MULTILINE)
    return classes[-1] if classes else "no reason given"


def chunk_slices(slices: Iterable[Slice], chunk_bytes: int) -> Iterator[list[Slice]]:
    """Neighbouring slices to be decoded together, about `chunk_bytes` of them."""
    chunk: list[Slice] = []
    size = 0
    for ref in slices:
        if ref.head.message_count == 0:
            continue
        if chunk and (
            not _go_together(chunk[-1].head, ref.head) or size + ref.head.data_bytes > chunk_bytes
        ):
            yield chunk
            chunk, size = [], 0
        chunk.append(ref)
        size += ref.head.data_bytes
    if chunk:
        yield chunk


def _go_together(one: SliceHead, next_one: SliceHead) -> bool:
    """Slices of whole transactions, or neighbouring parts of the same one."""
    if SliceKind.WHOLE in (one.kind, next_one.kind):
        return one.kind is next_one.kind
    of_one = (one.xid, one.first_commit_lsn, one.carries_xids)
    return of_one == (next_one.xid, next_one.first_commit_lsn, next_one.carries_xids)


def share_out(chunks: list[list[Slice]], parallel: int) -> list[list[list[Slice]]]:
    """Chunks to tasks, neighbours together, in order."""
    count = max(1, min(parallel, len(chunks)))
    bounds = np.linspace(0, len(chunks), count + 1).astype(int)
    return [chunks[begin:end] for begin, end in itertools.pairwise(bounds) if end > begin]


def _run_tasks(
    worker: Worker,
    span: Span,
    modifiers: Modifiers | None,
    counts: bool,
    work: Iterable[tuple[int, list[list[Slice]]]],
) -> Iterator[Receipt]:
    """Runs in a Spark task."""
    for number, chunks in work:
        # Where all read everything, one counts.
        is_counted = counts and (number == 0 or not isinstance(worker, SharingWorker))
        yield run_task(worker, span, number, chunks, modifiers, counts=is_counted)


def run_task(
    worker: Worker,
    span: Span,
    number: int,
    chunks: list[list[Slice]],
    modifiers: Modifiers | None = None,
    *,
    counts: bool = False,
) -> Receipt:
    """What one task does; also runs without Spark, in a test or in another loop.

    `counts`: somebody wants rows and bytes by operation.
    """
    seconds = {"read": 0.0, "decode": 0.0, "modify": 0.0, "stage": 0.0}
    rows: dict[tuple[TableName, str], int] = {}
    read_bytes: dict[str, int] = {}
    began_at, cpu_began = time.time(), time.process_time()
    job = worker.begin(number)
    refused: dict[TableName, ModifierError] = {}

    def prepared(chunk: list[Slice]) -> Any:
        began = time.perf_counter()
        data, lengths, transaction = read_chunk(chunk)
        read = time.perf_counter()
        pieces: list[Piece] = decode(data, lengths, transaction, *span)
        decoded = modified = time.perf_counter()
        if modifiers is not None:
            pieces = modify(modifiers, pieces, refused)
            modified = time.perf_counter()
        work = job.prepare(pieces)
        seconds["read"] += read - began
        seconds["decode"] += decoded - read
        seconds["modify"] += modified - decoded
        seconds["stage"] += time.perf_counter() - modified
        if counts:
            _count_rows(pieces, rows)
            _count_bytes(data, lengths, read_bytes)
        return work

    taken = 0.0
    for work in _ahead(map(prepared, chunks), len(chunks)):
        began = time.perf_counter()
        job.take(work)
        taken += time.perf_counter() - began
    seconds["stage"] += taken
    receipt = job.finish()
    seconds["cpu"] = time.process_time() - cpu_began
    receipt.seconds.update(seconds)
    receipt.refused += [RefusedTable.of(table, error) for table, error in refused.items()]
    receipt.began_at, receipt.rows, receipt.read_bytes = began_at, rows, read_bytes
    return receipt


def _ahead(items: Iterator[Result], count: int) -> Iterator[Result]:
    """Items, of which each is made while the one before is used: who takes a chunk mostly waits for a server."""
    if count < 2:
        yield from items
        return
    with ThreadPoolExecutor(1, thread_name_prefix="prepare") as pool:
        coming = pool.submit(next, items)
        for number in range(count):
            item = coming.result()
            if number + 1 < count:
                coming = pool.submit(next, items)
            yield item


def _count_rows(pieces: Iterable[Piece], counts: dict[tuple[TableName, str], int]) -> None:
    """Add rows by table and operation."""
    for piece in pieces:
        table = piece.relation.table
        if not isinstance(piece, TableChanges):
            counts[table, "truncate"] = counts.get((table, "truncate"), 0) + 1
            continue
        for kind, count in enumerate(np.bincount(piece.operation)):
            if count and kind in _OPERATIONS:
                key = (table, _OPERATIONS[kind])
                counts[key] = counts.get(key, 0) + int(count)


def _count_bytes(data: bytes, lengths: Any, counts: dict[str, int]) -> None:
    """Add the bytes of messages by operation: a message begins with its kind."""
    ends = np.cumsum(lengths)
    kinds = np.frombuffer(data, np.uint8)[ends - lengths]
    sizes = np.bincount(kinds, weights=lengths, minlength=max(_OPERATIONS) + 1)
    for kind, operation in _OPERATIONS.items():
        if sizes[kind]:
            counts[operation] = counts.get(operation, 0) + int(sizes[kind])


def read_chunk(chunk: list[Slice]) -> tuple[bytes, Any, Transaction | None]:
    """Slices that go together: their messages, and the transaction that they are part of."""
    bodies = [ref.read() for ref in chunk]
    head = chunk[0].head
    transaction = None
    if head.kind is not SliceKind.WHOLE:
        transaction = Transaction(
            head.first_commit_lsn,
            head.committed_at,
            head.xid,
            head.first_ordinal,
            head.carries_xids,
            chunk[0].aborted_xids,
        )
    if len(bodies) == 1:
        return bodies[0][0], bodies[0][1], transaction
    data = b"".join(body for body, _ in bodies)
    return data, np.concatenate([lengths for _, lengths in bodies]), transaction
