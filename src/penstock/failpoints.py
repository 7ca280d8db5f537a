"""Named places where a test can kill the process. Costs one lookup in an empty dictionary when unused.

`PENSTOCK_FAULT=capture.after_seal` kills at the first passing, `PENSTOCK_FAULT=capture.after_seal:3`
at the third. SIGKILL, so that no handler, flush or `finally` softens the blow.

penstock's own are listed here. A sink of another package has its own, under a prefix that none of these has: its kind's
name. Public as `penstock.sink.fault_point`.
"""

from __future__ import annotations

import os
import signal
import threading

POINTS = (
    "capture.before_seal",  # transactions received, none of them in the log
    "capture.torn_slice",  # half of a slice written
    "capture.after_seal",  # slice durable, not acknowledged to the server
    "capture.after_acknowledge",  # what is safe is acknowledged to the server
    "stage.before_copy",  # executor: slice decoded, nothing staged
    "stage.after_copy",  # executor: staged, receipt not returned
    "deliver.after_job",  # driver: receipts in hand, no transaction begun
    "deliver.between_steps",  # driver: one step merged, the next not
    "deliver.before_commit",  # driver: everything merged, COMMIT not sent
    "deliver.after_commit",  # target committed, nothing else knows
    "unpark.before_commit",  # driver: parked rows merged again, COMMIT not sent
    "catch_up.before_commit",  # driver: changes of detached tables merged, COMMIT not sent
    "catch_up.before_join",  # tables have caught up, they are still detached
    "copy.after_snapshot",  # copier: snapshot taken, no table begun
    "copy.after_create",  # copier: a table made without its key, the transaction still open
    "copy.before_range",  # executor: nothing of the range read
    "copy.inside_range",  # executor: rows sent, COMMIT not
    "copy.after_range",  # executor: range committed, not reported
    "copy.before_finish",  # copier: every range there, key and indexes not
    "copy.after_merge",  # copier: rows are those of the copy, its constraints are not made
    "copy.after_finish",  # copier: the table can catch up, not reported
    "schema.before_commit",  # driver: tables altered and rows merged, COMMIT not sent
    "schema.after_commit",  # target committed, nothing else knows
    "documents.before_deliver",  # documents in hand, the sink not called
    "documents.inside_deliver",  # within the sink: some documents read, more to come
    "documents.after_deliver",  # the sink has delivered, a position that it cannot store is not kept
    "kafka.before_commit",  # documents and position produced, the transaction not committed
    "file.after_append",  # documents written, position not recorded
    "file.after_position",  # position recorded, file not renamed
    "webhook.inside_append",  # some entries of a large batch in the outbox, not published
    "webhook.before_commit",  # documents and position in the outbox, COMMIT not done
    "webhook.after_commit",  # in the outbox, no receiver asked
    "search.between_requests",  # some documents of a batch written, others not
    "search.before_schema_change",  # noted as begun, nothing done
    "search.after_schema_change",  # done, and noted as begun only
    "search.before_switch",  # a copy whole in its own index, not searched yet
    "search.after_switch",  # a copy searched, its table not known to be copied
    "search.before_position",  # all documents written, the position not
    "search.after_position",  # position written, nothing else knows
    "init.after_publication",  # publication there, slot not
    "init.after_slot",  # slot there, target knows nothing
    "init.inside_undo",  # after a failure: slot gone again, publications still there
)

_OWN_PREFIXES = frozenset(name.partition(".")[0] for name in POINTS)

_armed: dict[str, int] = {}
_lock = threading.Lock()


def _require_known(name: str) -> None:
    """See that there may be such a point: one of the above, or another package's.

    Raises:
        ValueError: penstock has none of this name.
    """
    prefix, _, step = name.partition(".")
    if name not in POINTS and (prefix in _OWN_PREFIXES or not (prefix and step)):
        raise ValueError(
            f"no fault point {name!r}, wanted one of {', '.join(POINTS)}; or <kind>.<step> of another package"
        )


def _read_environment() -> None:
    for entry in filter(None, os.environ.get("PENSTOCK_FAULT", "").split(",")):
        name, _, passing = entry.partition(":")
        _require_known(name)
        _armed[name] = int(passing or 1)


_read_environment()


def arm(name: str, passing: int = 1) -> None:
    """Have this process die at a point, as the environment would."""
    _require_known(name)
    _armed[name] = passing


def is_next(name: str) -> bool:
    """Whether the coming passing of this point will kill."""
    return _armed.get(name) == 1


def fault_point(name: str) -> None:
    """Die here when a test says so; else nothing. `name` is `<kind>.<step>`, such as `mine.before_rename`."""
    if name not in _armed:
        return
    with _lock:
        _armed[name] -= 1
        if _armed[name] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
