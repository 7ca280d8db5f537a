"""A subscription: two publications and one slot, made together, found again, removed together.

Order of making: publications with their stamp, their members, the triggers that report how tables
change, the slot, a message with their shapes, the slot's creation point into the stamp. The publications are committed before the slot exists, so that every change the slot
can hold is judged by them. A crash between any two steps leaves what the next `ensure_subscription`
goes on from. Connections must be in autocommit mode.
"""

from __future__ import annotations

import logging
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.claims import alone
from penstock.errors import DecodingFailed, PenstockError, PublicationChanged
from penstock.failpoints import fault_point
from penstock.source import publication as pub
from penstock.source.choice import (
    Choice,
    LeftOut,
    forbidding,
    raise_first,
    read_choice,
)
from penstock.source.connect import place_of, role_of, source_errors
from penstock.source.identity import SourceIdentity, compare_identity, read_identity
from penstock.source.membership import (
    MembershipChange,
    match_publications,
    plan_steps,
    step_statements,
    update_membership,
)
from penstock.source.options import Tracking
from penstock.source.slot import (
    SlotState,
    can_decode,
    check_slot,
    create_slot,
    drop_slot,
    slot_state,
    slots_of,
    wait_until_free,
)
from penstock.source.tracking.install import (
    drop_tracking,
    ensure_tracking,
    read_tracking,
    refresh_schemas,
    tracking_statements,
)
from penstock.table import TableRule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from penstock.lsn import Lsn
    from penstock.table import TableName, TableRules

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)

# How often a slot is made before it is given up.
_SLOT_ATTEMPTS = 10

# The face of the parts: choice, membership, slot and identity are files of their own.
__all__ = [
    "Choice",
    "LeftOut",
    "MembershipChange",
    "SlotState",
    "SourceIdentity",
    "Subscription",
    "change_tables",
    "check_slot",
    "compare_identity",
    "drop_subscription",
    "ensure_subscription",
    "find_subscription",
    "print_sql",
    "read_identity",
    "slot_state",
    "update_membership",
]

# What an admin's own session runs, so that the point need not be typed over.
_STAMP_LATER = """DO $penstock$
DECLARE created text;
BEGIN
  SELECT confirmed_flush_lsn INTO STRICT created FROM pg_replication_slots WHERE slot_name = {slot};
  EXECUTE format('COMMENT ON PUBLICATION %I IS %L', {updates}, replace({stamp}, '"created_lsn": null', '"created_lsn": "' || created || '"'));
  EXECUTE format('COMMENT ON PUBLICATION %I IS %L', {inserts}, replace({stamp}, '"created_lsn": null', '"created_lsn": "' || created || '"'));
END $penstock$"""


@dataclass(frozen=True)
class Subscription:
    """What capture follows. `generation` is the uuid whose first 8 digits end the slot's name."""

    name: str
    publications: tuple[str, ...]
    slot: str
    generation: str
    created_lsn: Lsn


def find_subscription(connection: Connection, name: str) -> Subscription | None:
    """The subscription as it is stamped, or None when it is not there or not finished.

    Raises:
        PublicationChanged: a publication of that name is not ours, or was altered.
    """
    publications = pub.read_publications(connection, name)
    return None if publications is None else _subscription(name, publications.stamp)


def ensure_subscription(
    connection: Connection, name: str, rules: TableRules, tracking: Tracking = Tracking.OFF
) -> Subscription:
    """Make what is missing; a finished subscription only gets its members brought up to date.

    With `triggers`, event triggers are made or put right too; where the role may not, the log says so.
    Safe to repeat, after a crash too, and by two processes at once. Waits for transactions that are
    open when the slot is created. Nothing is touched when the rules cannot be met.

    Raises:
        TableMissing, TableWithoutKey: of the tables named outright, all at once.
        SlotMissing: it was finished once, and now the slot is gone.
        PublicationChanged: publication or slot of that name is left from something else.
        SourcePrivilegeMissing, NoSlotLeft, WalLevelTooLow: as the server says.
    """
    with _alone(connection, name):
        publications = pub.read_publications(connection, name)
        _raise_what_forbids(connection, name, publications, rules)
        if publications is not None:
            stamp = publications.stamp.with_rules(_stamped_rules(rules, tracking))
            if stamp != publications.stamp:
                _write_stamp(connection, name, stamp)
            match_publications(connection, name, stamp.generation, rules)
            return _finish(connection, name, stamp, tracking)
        _refuse_orphans(connection, name)
        stamp = _create_publications(connection, name, _new_stamp(name, rules, tracking))
        try:
            match_publications(connection, name, stamp.generation, rules)
            fault_point("init.after_publication")
            return _finish(connection, name, stamp, tracking)
        except PenstockError:
            # Bad input changes nothing: what this call has made goes again.
            with suppress(psycopg.Error, PenstockError):
                _undo(connection, name, stamp.slot)
            raise


def drop_subscription(
    connection: Connection, name: str, patience_seconds: float = 10.0
) -> list[str]:
    """Remove slot and publications, whatever is there of them; what was removed, in words.

    Raises:
        SlotInUse: the slot is still read after `patience_seconds`; then nothing is removed.
        PublicationChanged: a publication of that name is not ours; then nothing is removed.
    """
    with _alone(connection, name):
        ours = _our_publications(connection, name)
        slots = slots_of(connection, name)
        wait_until_free(connection, slots, patience_seconds)
        for slot in slots:
            drop_slot(connection, slot)
        with source_errors(connection):
            _drop_publications(connection, ours)
    return [f"slot {slot}" for slot in slots] + [f"publication {name}" for name in ours]


def change_tables(
    connection: Connection,
    name: str,
    rules: TableRules,
    *,
    added: Collection[TableName] = (),
    removed: Collection[TableName] = (),
) -> MembershipChange:
    """Follow more tables, or fewer, than the pipeline file says; kept with the publications.

    Raises:
        SourceError: a table cannot be followed, or nothing is; then nothing has changed.
    """
    with _alone(connection, name):
        publications = pub.read_publications(connection, name)
        if publications is None:
            raise PublicationChanged(
                "there is no publication yet",
                f"{place_of(connection)} publication {pub.publication_names(name).updates}",
                "penstock init or run first",
            )
        before = publications.stamp
        stamp = replace(
            before,
            added=(before.added | set(added)) - set(removed),
            removed=(before.removed | set(removed)) - set(added),
        )
        # As if they were named outright in the file: a table that cannot be followed is an error.
        outright = tuple(TableRule(*table) for table in added)
        wanted = replace(stamp.adjust(rules), include=(*outright, *rules.include))
        choice, faults = read_choice(connection, wanted)
        raise_first([fault for fault in faults if fault.table in set(added)])
        _, foreign = plan_steps(connection, pub.publication_names(name), publications, choice)
        raise_first([fault for fault in foreign if fault.table in set(added)])
        _write_stamp(connection, name, stamp)
        return match_publications(connection, name, stamp.generation, rules)


def _create_statements(
    names: pub.PublicationNames, choice: Choice, stamp: pub.Stamp
) -> Iterator[sql.Composed | sql.SQL]:
    updates = [table.name for table in choice.updates]
    inserts = [table.name for table in choice.inserts]
    yield pub.create_statement(names.updates, pub.UPDATES, updates)
    yield pub.create_statement(names.inserts, pub.INSERTS, inserts)
    for each in names:
        yield pub.stamp_statement(each, stamp)


def print_sql(
    connection: Connection, name: str, rules: TableRules, tracking: Tracking = Tracking.OFF
) -> list[str]:
    """The statements that `ensure_subscription` would run now, for an admin to run instead.

    Some give the subscription to the role that asks, so that it can publish tables later.

    Raises:
        SourceError: as `ensure_subscription`.
    """
    publications = pub.read_publications(connection, name)
    names = pub.publication_names(name)
    if publications is not None:
        rules = publications.stamp.adjust(rules)
    choice, faults = read_choice(connection, rules)
    raise_first(faults)
    statements: list[sql.Composed | sql.SQL] = []
    if publications is None:
        stamp = _new_stamp(name, rules, tracking)
        statements += _create_statements(names, choice, stamp)
    else:
        stamp = publications.stamp
        steps, _ = plan_steps(connection, names, publications, choice)
        statements += step_statements(steps)
        stamp = stamp.with_rules(_stamped_rules(rules, tracking))
        if stamp != publications.stamp:
            statements += [pub.stamp_statement(each, stamp) for each in names]
    lines = [f"{statement.as_string(connection)};" for statement in statements]
    if tracking is Tracking.TRIGGERS and not read_tracking(connection).in_force:
        lines.append(tracking_statements(role_of(connection)))
    if stamp.created_lsn is None:
        slot = _slot_statements(connection, names, stamp)
        lines += [f"{statement.as_string(connection)};" for statement in slot]
    return lines


def _slot_statements(
    connection: Connection, names: pub.PublicationNames, stamp: pub.Stamp
) -> list[sql.Composed | sql.SQL]:
    statements: list[sql.Composed | sql.SQL] = []
    if not slot_state(connection, stamp.slot).exists:
        create = sql.SQL("SELECT pg_create_logical_replication_slot({}, 'pgoutput')")
        statements.append(create.format(sql.Literal(stamp.slot)))
    later = sql.SQL(_STAMP_LATER).format(
        slot=sql.Literal(stamp.slot),
        stamp=sql.Literal(stamp.text()),
        updates=sql.Literal(names.updates),
        inserts=sql.Literal(names.inserts),
    )
    owner = sql.SQL(role_of(connection))
    give = sql.SQL("ALTER PUBLICATION {} OWNER TO {}")
    return [*statements, later, *(give.format(sql.Identifier(each), owner) for each in names)]


@contextmanager
def _alone(connection: Connection, name: str) -> Iterator[None]:
    """One maker or remover of this subscription at a time, over the whole database."""
    with source_errors(connection), alone(connection, f"penstock subscription {name}"):
        yield


def _raise_what_forbids(
    connection: Connection, name: str, publications: pub.Publications | None, rules: TableRules
) -> None:
    if publications is not None:
        rules = publications.stamp.adjust(rules)
    choice, faults = read_choice(connection, rules)
    raise_first(faults)
    _, foreign = plan_steps(connection, pub.publication_names(name), publications, choice)
    raise_first(forbidding(choice, foreign, rules))


def _refuse_orphans(connection: Connection, name: str) -> None:
    orphans = slots_of(connection, name)
    if orphans:
        raise pub.left_behind(name, orphans[0], place_of(connection))


def _create_publications(connection: Connection, name: str, stamp: pub.Stamp) -> pub.Stamp:
    updates, inserts = pub.publication_names(name)
    with source_errors(connection), connection.transaction():
        connection.execute(pub.create_statement(updates, pub.UPDATES, ()))
        connection.execute(pub.create_statement(inserts, pub.INSERTS, ()))
        for each in (updates, inserts):
            connection.execute(pub.stamp_statement(each, stamp))
    return stamp


def _new_stamp(name: str, rules: TableRules, tracking: Tracking) -> pub.Stamp:
    generation = str(uuid.uuid4())
    stamp = pub.Stamp(generation, pub.slot_name(name, generation), None)
    return stamp.with_rules(_stamped_rules(rules, tracking))


def _stamped_rules(rules: TableRules, tracking: Tracking) -> TableRules | None:
    return rules if tracking is Tracking.TRIGGERS else None


def _write_stamp(connection: Connection, name: str, stamp: pub.Stamp) -> None:
    with source_errors(connection), connection.transaction():
        for each in pub.publication_names(name):
            connection.execute(pub.stamp_statement(each, stamp))


def _finish(
    connection: Connection, name: str, stamp: pub.Stamp, tracking: Tracking
) -> Subscription:
    """Make triggers and slot and stamp its creation point, as far as that is still to be done."""
    if stamp.created_lsn is not None:
        check_slot(slot_state(connection, stamp.slot), stamp.slot, place_of(connection))
    fixed = tracking is Tracking.TRIGGERS and ensure_tracking(connection)
    if stamp.created_lsn is not None:
        if fixed:
            _describe_tables(connection, name)
        return _whole(name, stamp, stamp.created_lsn)
    created_lsn = _create_sound_slot(connection, name, stamp.slot)
    fault_point("init.after_slot")
    if tracking is Tracking.TRIGGERS:
        _describe_tables(connection, name)
    stamp = stamp.with_created_lsn(created_lsn)
    _write_stamp(connection, name, stamp)
    return _whole(name, stamp, created_lsn)


def _create_sound_slot(connection: Connection, name: str, slot: str) -> Lsn:
    """Create the slot; anew where the server cannot decode what it holds: nobody knows it yet.

    Raises:
        DecodingFailed: it could not be made sound.
    """
    for _ in range(_SLOT_ATTEMPTS):
        created_lsn = create_slot(connection, slot)
        if can_decode(connection, slot, pub.publication_names(name)):
            return created_lsn
        _log.info("slot %s is made anew: the server cannot decode what was open at that time", slot)
        drop_slot(connection, slot)
    raise DecodingFailed(
        f"the server cannot decode what the slot holds, {_SLOT_ATTEMPTS} times in a row",
        f"{place_of(connection)} slot {slot}",
        "try again while fewer transactions alter tables",
    )


def _describe_tables(connection: Connection, name: str) -> None:
    """Let the stream begin with the shapes of the followed tables, and again after a gap."""
    publications = pub.read_publications(connection, name)
    if publications is not None and read_tracking(connection).in_force:
        followed = [*publications.updates.values(), *publications.inserts.values()]
        refresh_schemas(connection, {table.schema for table in followed})


def _subscription(name: str, stamp: pub.Stamp) -> Subscription | None:
    return None if stamp.created_lsn is None else _whole(name, stamp, stamp.created_lsn)


def _whole(name: str, stamp: pub.Stamp, created_lsn: Lsn) -> Subscription:
    names = tuple(pub.publication_names(name))
    return Subscription(name, names, stamp.slot, stamp.generation, created_lsn)


def _our_publications(connection: Connection, name: str) -> list[str]:
    """Those of the two that are there. Altered ones are ours as well, as long as they are stamped."""
    names = list(pub.publication_names(name))
    query = (
        "SELECT p.pubname, obj_description(p.oid, 'pg_publication'), pg_get_userbyid(p.pubowner),"
        f" {pub.OWNER_COUNTS} FROM pg_publication p WHERE p.pubname = ANY (%s) ORDER BY p.pubname"
    )
    with source_errors(connection):
        rows = connection.execute(query, (names,)).fetchall()
    for publication, comment, owner, owner_counts in rows:
        if pub.Stamp.parse(comment) is None:
            raise pub.not_stamped(publication, place_of(connection))
        if not owner_counts:
            raise pub.of_another(publication, owner, place_of(connection))
    return [publication for publication, *_ in rows]


def _undo(connection: Connection, name: str, slot: str) -> None:
    """Take away what was made in vain. The slot goes first: publications without it can be finished
    by the next attempt, a slot without them cannot."""
    if slot_state(connection, slot).exists:
        drop_slot(connection, slot)
    fault_point("init.inside_undo")
    _drop_publications(connection, _our_publications(connection, name))
    drop_tracking(connection)


def _drop_publications(connection: Connection, publications: Collection[str]) -> None:
    """All of them or none: one without the other cannot be finished."""
    with connection.transaction():
        for publication in publications:
            connection.execute(_drop_publication_statement(publication))


def _drop_publication_statement(publication: str) -> sql.Composed:
    return sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(publication))
