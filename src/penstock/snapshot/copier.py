"""The copier of one sink: a thread that copies whatever tables wait for it, in rounds."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, SnapshotGone
from penstock.retry import BackOff, is_temporary
from penstock.snapshot.round import Round, RoundProgress
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.modifiers.former_parts import FormerParts
    from penstock.modifiers.modifier import Modifiers
    from penstock.sinks.copying import Copying
    from penstock.source.options import SourceOptions
    from penstock.spark.session import Spark
    from penstock.table import TableName

_log = logging.getLogger(__name__)

# A table that is added while others are being copied does not wait for them.
_MOST_ROUNDS = 4

_DEFECT = "report this with the log: penstock did not expect it"


class Copier:
    """Polls for tables that wait, and copies them; errors that time fixes are waited out.

    `has_work`: whether tables are on their way; while there are none it holds nothing at the sink, and
    waits to be woken.
    `has_notes`: whether tables lack something that may be there by now. Where they lack nothing, it
    checks now and then whether somebody has taken something away.
    `keeps_claim`: once it is the copier, it stays that, also when nothing is to be copied.
    `is_alone`: there is no other source, so that what only a person can fix ends the command.
    `is_paused`: whether a person holds the sink; then no copy is begun.
    """

    def __init__(
        self,
        spark: Spark,
        name: str,
        copying: Copying,
        source: SourceOptions,
        stop: threading.Event,
        on_change: Callable[[], None] = lambda: None,
        *,
        has_work: Callable[[], bool] = lambda: True,
        has_notes: Callable[[], bool] = lambda: False,
        keeps_claim: bool = False,
        is_alone: bool = True,
        modifiers: Modifiers | None = None,
        former_parts: FormerParts | None = None,
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = name
        self._is_paused = is_paused
        self._modifiers = modifiers
        self._former_parts = former_parts
        self.error: PenstockError | None = None
        self._failure: BaseException | None = None  # what a round ended with that nobody expects
        self._spark = spark
        self._copying = copying
        self._source = source
        self._stop = stop
        self._on_change = on_change
        self._has_work = has_work
        self._has_notes = has_notes
        self._keeps_claim = keeps_claim
        self._is_alone = is_alone
        self._awake_until = 0.0
        self._has_news = threading.Event()
        self._reported_another = False
        self._keys: RoundProgress | None = None
        self._rounds: list[tuple[Round, threading.Thread]] = []

    @property
    def progress(self) -> list[RoundProgress]:
        """How far the rounds under way have got, or what follows them."""
        rounds = [each.progress for each, thread in self._rounds if thread.is_alive()]
        return rounds or ([self._keys] if self._keys is not None else [])

    @property
    def is_busy(self) -> bool:
        """Whether tables are being copied."""
        return any(thread.is_alive() for _, thread in self._rounds)

    def run(self) -> None:
        """Copy until stopped.

        Raises:
            PenstockError: one that a person must fix.
            BaseException: a round ended with something that is no PenstockError.
        """
        back_off = BackOff()
        try:
            while not self._stop.is_set():
                try:
                    self._copying.open()
                    while not self._stop.is_set():
                        self._poll()
                        back_off.succeed()
                        self.error = None
                        if self._is_needed():
                            self._nap(timing().copier_poll_seconds)
                        else:
                            self._sleep()
                except PenstockError as error:
                    if self._stop.is_set():
                        break  # what was under way was cancelled, and is made another time
                    self.error = error
                    if self._is_alone and not is_temporary(error):
                        raise
                    wait = back_off.seconds_after(error)
                    _log.warning(
                        "copying to %s: %s (next attempt in %.1f s)",
                        self.name,
                        str(error).splitlines()[0],
                        wait,
                    )
                    self._stop.wait(wait)
        finally:
            self._end_rounds()
            self._copying.close()

    def wake(self) -> None:
        """There may be tables to copy; from another thread."""
        self._has_news.set()

    def interrupt(self) -> None:
        """Cancel what is under way at the sink; from another thread, after a stop."""
        self._copying.interrupt()

    def _end_rounds(self) -> None:
        """Tables that are being finished may be so; an index that takes hours is made another time."""
        self._join_rounds(timing().copier_patience_seconds)
        if self.is_busy:
            self.interrupt()
            self._join_rounds(timing().copier_cancel_seconds)

    def _join_rounds(self, patience_seconds: float) -> None:
        deadline = time.monotonic() + patience_seconds
        for _, thread in self._rounds:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _is_needed(self) -> bool:
        now = time.monotonic()
        if self._rounds or self._keeps_claim or self._has_work():
            self._awake_until = now + timing().copier_awake_seconds
        return now < self._awake_until

    def _nap(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._stop.is_set() and time.monotonic() < deadline:
            if self._has_news.wait(
                min(timing().copier_nap_seconds, max(0.0, deadline - time.monotonic()))
            ):
                break
        self._has_news.clear()

    def _sleep(self) -> None:
        """Hold nothing until there is something to do."""
        self._copying.close()
        review_at = time.monotonic() + timing().review_marks_seconds
        while not (self._stop.is_set() or self._has_news.is_set() or self._has_more(review_at)):
            self._has_news.wait(timing().copier_nap_seconds)
        if not self._stop.is_set():
            self._awake_until = time.monotonic() + timing().copier_awake_seconds
            self._copying.open()

    def _has_more(self, review_at: float) -> bool:
        if self._has_work():
            return True
        is_wanted = self._has_notes() or time.monotonic() >= review_at
        return is_wanted and self._copying.is_review_due

    def _poll(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._rounds = [each for each in self._rounds if each[1].is_alive()]
        if self._is_paused():
            return
        taken = {table for each, _ in self._rounds for table in each.tables}
        due = {name: oid for name, oid in self._copying.due().items() if name not in taken}
        # Rounds go on after the connection was lost, and with it the claim.
        has_claim = self._claim() if due or self._rounds or self._keeps_claim else False
        if due and has_claim and len(self._rounds) < _MOST_ROUNDS:
            self._begin_round(due)
        elif not self._rounds:
            self._make_keys()
            if not self._keeps_claim:
                self._copying.release()  # a worker beside us may want to be the one

    def _begin_round(self, due: Mapping[TableName, int]) -> None:
        each = Round(
            self._spark,
            self._copying,
            self._source,
            due,
            self._stop,
            self._on_change,
            self._modifiers,
            self._former_parts,
        )
        # In this context, so that its lines name the same source.
        run = partial(copy_context().run, self._run_round, each)
        thread = threading.Thread(target=run, name=f"copy {self.name}", daemon=True)
        self._rounds.append((each, thread))
        thread.start()

    def _make_keys(self) -> None:
        try:
            if self._copying.after_attach(self._note_keys):
                self._on_change()
        finally:
            self._keys = None

    def _note_keys(self, made: int, due: int) -> None:
        self._keys = RoundProgress(keys_made=made, keys_due=due)

    def _claim(self) -> bool:
        has_claim = self._copying.claim()
        if not has_claim and not self._reported_another:
            _log.info("another process copies tables to %s, this one waits", self.name)
        self._reported_another = not has_claim
        return has_claim

    def _run_round(self, each: Round) -> None:
        try:
            each.run()
            if each.progress.tables_done:
                self.wake()  # some of its tables may have to begin again; where all do, a moment later
        except PenstockError as error:
            if self._stop.is_set():
                return
            self.error = error
            if is_temporary(error):
                _log.warning("copying to %s: %s", self.name, str(error).splitlines()[0])
            else:
                _log.error("copying to %s: %s", self.name, error)
            if not isinstance(error, SnapshotGone):  # else its tables are due, and begin again
                _fail_unfinished(each, error)
        except BaseException as error:  # noqa: BLE001 - handed to the copier's own thread, which raises it
            # Or they would begin again and again.
            kind = type(error).__name__
            _fail_unfinished(
                each, PenstockError(f"unexpected {kind}", f"sink {self.name}", _DEFECT)
            )
            self._failure = error
            self.wake()


def _fail_unfinished(each: Round, error: PenstockError) -> None:
    for table in each.unfinished:
        with suppress(PenstockError):  # the sink is away: the table is found again later
            each.fail(table, error)
