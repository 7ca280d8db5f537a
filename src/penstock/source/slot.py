"""The slot as the server sees it: read its state, judge it, create it, drop it.

Knows nothing of tables. A position is judged against the slot, never changed by it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import namedtuple_row

from penstock.errors import SlotInUse, SlotLost, SlotMissing, SlotMoved
from penstock.lsn import Lsn
from penstock.source.connect import place_of, source_errors
from penstock.source.refusals import START_ANEW
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)

# Columns that only some versions have are read through to_jsonb, which gives NULL for the others.
_STATE = """
SELECT active, active_pid, restart_lsn::text, confirmed_flush_lsn::text, wal_status, safe_wal_size,
       pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                            ELSE pg_current_wal_lsn() END, restart_lsn)::bigint AS retained_bytes,
       to_jsonb(s) ->> 'invalidation_reason' AS invalidation_reason,
       CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn() END::text AS server_lsn,
       coalesce(plugin, slot_type) AS plugin, database = current_database() AS is_of_database
FROM pg_replication_slots s WHERE slot_name = %s
"""

# Begin and Commit alone are a transaction without a change for us, as 14 sends them. Of messages,
# those of the triggers count: M | flags u8 | lsn u64 | prefix.
_PEEK = """
SELECT EXISTS (
    SELECT FROM pg_logical_slot_peek_binary_changes(
        %s, NULL, NULL, 'proto_version', '1', 'publication_names', %s, 'messages', 'true') AS c
    WHERE CASE get_byte(c.data, 0) WHEN ascii('M') THEN substr(c.data, 11, 15) = 'penstock.schema'
          ELSE get_byte(c.data, 0) NOT IN (ascii('B'), ascii('C')) END)
"""
_DECODE = """
SELECT count(*) FROM pg_logical_slot_peek_binary_changes(
    %s, pg_current_wal_lsn(), NULL, 'proto_version', '1', 'publication_names', %s)
"""
_PEEKED_BYTES = 64 * 1024 * 1024

_PLUGIN = "pgoutput"


@dataclass(frozen=True)
class SlotState:
    """One row of pg_replication_slots, or `exists` False and nothing else."""

    exists: bool
    active: bool = False
    active_pid: int | None = None
    restart_lsn: Lsn | None = None
    confirmed_flush_lsn: Lsn | None = None  # None while the slot is being created
    wal_status: str | None = None  # reserved | extended | unreserved | lost
    retained_bytes: int | None = None
    safe_wal_size: int | None = None  # None: no limit is set
    invalidation_reason: str | None = None  # from version 17 on
    plugin: str = _PLUGIN  # "physical" for a slot that has none
    is_of_database: bool = True
    server_lsn: Lsn | None = None  # how far the server has written; None for a standby

    @property
    def is_lost(self) -> bool:
        """Whether the server can no longer serve the slot."""
        return self.wal_status == "lost" or self.invalidation_reason is not None


def slot_state(connection: Connection, slot: str) -> SlotState:
    """How the slot stands now."""
    with source_errors(connection, slot), connection.cursor(row_factory=namedtuple_row) as cursor:
        row: Any = cursor.execute(_STATE, (slot,)).fetchone()
    if row is None:
        return SlotState(exists=False)
    return SlotState(
        exists=True,
        active=row.active,
        active_pid=row.active_pid,
        restart_lsn=_lsn(row.restart_lsn),
        confirmed_flush_lsn=_lsn(row.confirmed_flush_lsn),
        wal_status=row.wal_status,
        retained_bytes=row.retained_bytes,
        safe_wal_size=row.safe_wal_size,
        invalidation_reason=row.invalidation_reason,
        plugin=row.plugin,
        is_of_database=bool(row.is_of_database),
        server_lsn=_lsn(row.server_lsn),
    )


def check_slot(state: SlotState, slot: str, place: str, have_lsn: Lsn | None = None) -> None:
    """Judge whether the slot still has everything after `have_lsn`, where what we have ends.

    A slot re-created under its old name starts later than that, as does one that a person advanced;
    the server would then skip the changes between without a word.

    Raises:
        SlotMissing: it was dropped.
        SlotLost: the server removed WAL it needed.
        SlotMoved: it was advanced or re-created past `have_lsn`, or is of another kind.
    """
    where = f"{place} slot {slot}"
    if not state.exists:
        raise SlotMissing("the slot is not there, wanted the one made by init", where, START_ANEW)
    if state.is_lost:
        reason = state.invalidation_reason or "max_slot_wal_keep_size"
        raise SlotLost(
            f"the server removed WAL that the slot still needed ({reason})",
            where,
            "penstock teardown, then init; raise max_slot_wal_keep_size or idle_replication_slot_timeout before",
        )
    if state.plugin != _PLUGIN or not state.is_of_database:
        found = state.plugin if state.plugin != _PLUGIN else "a slot of another database"
        raise SlotMoved(f"found {found}, wanted {_PLUGIN}: it was re-created", where, START_ANEW)
    flushed = state.confirmed_flush_lsn
    if have_lsn is not None and flushed is not None and flushed > have_lsn:
        raise SlotMoved(
            f"the slot stands at {flushed}, wanted at most {have_lsn}, where what was received or"
            " delivered ends: it was advanced or re-created, or the target has lost commits",
            where,
            START_ANEW,
        )


def slot_warning(state: SlotState, slot: str, place: str) -> SlotLost | None:
    """What may become of a slot that is behind; None when nothing does."""
    if state.is_lost or state.wal_status not in ("extended", "unreserved"):
        return None
    found = f"the server keeps {state.retained_bytes} bytes of WAL for the slot"
    if state.wal_status == "unreserved":
        found += ", and may remove what it needs at the next checkpoint (wal_status unreserved)"
    else:
        found += ", more than max_wal_size (wal_status extended)"
        if state.safe_wal_size is not None:
            found += f"; after {state.safe_wal_size} more the slot may be lost"
    return SlotLost(
        found,
        f"{place} slot {slot}",
        "see what keeps the pipeline behind (penstock status); give it time by raising"
        " max_slot_wal_keep_size, as far as the source's disk allows",
    )


def has_changes(
    connection: Connection, slot: str, publications: Sequence[str], state: SlotState
) -> bool | None:
    """Whether the slot holds changes that nobody has received; None where that is not to be known.

    The server decodes what the slot retains, so it is asked only where that is little and nobody
    streams. WAL grows also without a change: by checkpoints, other tables, other databases.
    """
    if state.active or state.is_lost or state.confirmed_flush_lsn is None or not publications:
        return None
    if state.retained_bytes is None or state.retained_bytes > _PEEKED_BYTES:
        return None
    try:
        with connection.transaction():
            connection.execute(
                f"SET LOCAL statement_timeout = {1000 * timing().slot_peek_seconds:.0f}"
            )
            row = connection.execute(_PEEK, (slot, publication_names(publications))).fetchone()
    except psycopg.Error:
        return None  # somebody streams by now, or a publication is gone, which others report
    return None if row is None else bool(row[0])


def create_slot(connection: Connection, slot: str) -> Lsn:
    """Create the slot, or adopt it when an earlier attempt got that far; its consistent point.

    Waits for transactions that are open now. Nobody has acknowledged anything to a slot whose
    creation point is not recorded yet, so confirmed_flush_lsn still is that point.

    Raises:
        SlotInUse: another connection is creating it at this moment.
    """
    state = slot_state(connection, slot)
    if not state.exists:
        with source_errors(connection, slot):
            row = connection.execute(
                "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,)
            ).fetchone()
        if row is not None:
            return Lsn.parse(row[0])
        state = slot_state(connection, slot)
    check_slot(state, slot, place_of(connection))
    if state.confirmed_flush_lsn is None:
        raise SlotInUse(
            f"the slot is still being created by process {state.active_pid}",
            f"{place_of(connection)} slot {slot}",
            "nothing: it waits for open transactions; if it lasts, find old ones in pg_stat_activity",
        )
    return state.confirmed_flush_lsn


def can_decode(connection: Connection, slot: str, publications: Sequence[str]) -> bool:
    """Whether the server can decode what a slot that was just created holds.

    Servers of all versions so far may build a wrong picture of the catalog while a slot is created under
    transactions that alter tables: of those that began before the slot's first snapshot and committed
    after it, the changes are not seen. Transactions that were open when the slot was ready then cannot be
    decoded, ever ("could not map filenumber … to relation OID"); later ones can. So those are waited for.
    """
    with source_errors(connection, slot):
        _wait_for_open_transactions(connection, slot)
        try:
            connection.execute(_DECODE, (slot, publication_names(publications)))
        except psycopg.errors.InternalError_:
            return False
    return True


def _wait_for_open_transactions(connection: Connection, slot: str) -> None:
    """Wait for those that write and are open now, as the creation of a slot does, too; not for ever."""
    began = time.monotonic()
    is_reported = False
    # Later than that of any transaction that is open.
    first = connection.execute("SELECT pg_current_xact_id()").fetchone()
    while (waited := time.monotonic() - began) < timing().slot_open_seconds:
        now = connection.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())").fetchone()
        if first is None or now is None or int(now[0]) >= int(first[0]):
            return
        if waited > timing().slot_open_report_seconds and not is_reported:
            is_reported = True
            _log.info("slot %s waits for transactions that were open when it was made", slot)
        time.sleep(timing().slot_poll_seconds)


def slots_of(connection: Connection, name: str) -> list[str]:
    """Every slot that a pipeline of this name has made in this database, of any generation."""
    query = """
        SELECT slot_name FROM pg_replication_slots
        WHERE database = current_database() AND slot_name ~ %s ORDER BY slot_name
    """
    with source_errors(connection):
        rows = connection.execute(query, (f"^penstock_{name}_[0-9a-f]{{8}}$",)).fetchall()
    return [slot for (slot,) in rows]


def wait_until_free(connection: Connection, slots: list[str], patience_seconds: float) -> None:
    """Wait until nobody reads the slots.

    Raises:
        SlotInUse: somebody still does after `patience_seconds`; nobody is cut off.
    """
    deadline = time.monotonic() + patience_seconds
    for slot in slots:
        while (state := slot_state(connection, slot)).active:
            if time.monotonic() > deadline:
                raise SlotInUse(
                    f"process {state.active_pid} of the server still streams from the slot",
                    f"{place_of(connection)} slot {slot}",
                    "stop the pipeline that reads it (penstock run or capture), then try again",
                )
            time.sleep(timing().slot_poll_seconds)


def drop_slot(connection: Connection, slot: str) -> None:
    """Drop the slot; with it goes the server's duty to keep WAL."""
    with source_errors(connection, slot):
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


def publication_names(publications: Sequence[str]) -> str:
    """As pgoutput reads them."""
    return ",".join('"' + name.replace('"', '""') + '"' for name in publications)


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)
