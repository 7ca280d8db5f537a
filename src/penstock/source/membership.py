"""Keep the publications equal to what the rules choose, while tables come and go.

Two queries when nothing has changed. A table that lost its key leaves its publication at once,
because as long as it stays there the source refuses the user's own UPDATEs of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from penstock.errors import PublicationChanged, SourceError
from penstock.retry import is_temporary
from penstock.source.choice import LeftOut, not_owned, read_choice
from penstock.source.connect import classify_source_error, place_of, source_errors
from penstock.source.publication import (
    Publications,
    add_statement,
    drop_statement,
    lock_statement,
    publication_names,
    read_publications,
)
from penstock.source.refusals import START_ANEW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from psycopg import sql

    from penstock.source.catalog import SourceTable
    from penstock.source.choice import Choice
    from penstock.source.publication import PublicationNames
    from penstock.source.subscription import Subscription
    from penstock.table import TableName, TableRules

    Connection = psycopg.Connection[Any]

# Tables may vanish or be made anew between our check and our statement; then we check again.
_ROUNDS = 3
# Each is locked until its transaction ends, and the server has room for so many locks.
_STEPS_TOGETHER = 200

# A table under VACUUM or ALTER keeps us waiting, and others would queue behind us: better next time.
_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '1s'"
# Who waits for one table and holds another may be half of a deadlock, and the server could choose a
# user's statement to end it. So several tables are taken without waiting for any; what is waited for
# then is the publication, which a trigger may hold, for less than the server's deadlock_timeout.
_LOCK_TIMEOUT_OF_SOME = "SET LOCAL lock_timeout = '100ms'"

# What one table may suffer without harm to the rest: gone, already in or out, not ours, locked,
# another kind of relation by now. Lost connections are not among them.
_OF_ONE_TABLE = (
    psycopg.ProgrammingError,
    psycopg.DataError,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
)


@dataclass(frozen=True)
class MembershipChange:
    """What one poll of the source changed, and how things stand after it."""

    added: list[TableName] = field(default_factory=list)
    removed: list[TableName] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    failed: list[TableName] = field(default_factory=list)  # to be tried again
    # Those of them that will get into a publication with time: somebody locks them now.
    delayed: list[TableName] = field(default_factory=list)
    published: list[TableName] = field(default_factory=list)
    oids: dict[TableName, int] = field(default_factory=dict)  # of those that are published
    entries: dict[int, tuple[int, ...]] = field(default_factory=dict)  # theirs, by the same oids
    rules: TableRules | None = None  # as people have changed them


class Step(NamedTuple):
    """One table into or out of one publication."""

    oid: int
    table: TableName
    publication: str
    added: bool


def update_membership(
    connection: Connection, subscription: Subscription, rules: TableRules
) -> MembershipChange:
    """Publish what appeared and matches, let go what does not match or lost its key.

    Called again and again while capture runs. A table named outright that is missing or unfit is
    reported in `left_out` here, not raised: the others must go on.

    Raises:
        PublicationChanged: a publication is gone, altered, or of another generation.
    """
    return match_publications(connection, subscription.name, subscription.generation, rules)


def match_publications(
    connection: Connection, name: str, generation: str, rules: TableRules
) -> MembershipChange:
    """`update_membership` for a subscription that need not have its slot yet."""
    change = MembershipChange()
    failed: dict[tuple[int, str], LeftOut] = {}
    for _ in range(_ROUNDS):
        publications = _of_generation(connection, name, generation)
        adjusted = publications.stamp.adjust(rules)
        choice, faults = read_choice(connection, adjusted)
        planned, foreign = plan_steps(connection, publication_names(name), publications, choice)
        steps = [step for step in planned if (step.oid, step.publication) not in failed]
        if not steps:
            break
        _carry_out(connection, steps, change, failed)
    members = {**publications.updates, **publications.inserts}
    # A trigger may have published a new table while we were about to.
    late = [why for (oid, _), why in failed.items() if oid not in members]
    change.failed.extend(why.table for why in failed.values())
    change.delayed.extend(
        step.table
        for step in planned
        if step.added
        and (why := failed.get((step.oid, step.publication))) is not None
        and why.is_temporary
    )
    change.left_out.extend([*choice.left_out, *faults, *foreign, *late])
    change.published.extend(sorted(members.values()))
    change.oids.update({name: oid for oid, name in members.items()})
    change.entries.update({oid: publications.entries[oid] for oid in members})
    return replace(change, rules=adjusted)


def plan_steps(
    connection: Connection,
    names: PublicationNames,
    publications: Publications | None,
    choice: Choice,
) -> tuple[list[Step], list[LeftOut]]:
    """The steps that lead from what is published to what is chosen, and what the role cannot add."""
    have_updates = publications.updates if publications else {}
    have_inserts = publications.inserts if publications else {}
    new = [
        *(table for table in choice.updates if table.oid not in have_updates),
        *(table for table in choice.inserts if table.oid not in have_inserts),
    ]
    steps = [
        *_difference(names.updates, have_updates, choice.updates),
        *_difference(names.inserts, have_inserts, choice.inserts),
    ]
    return steps, not_owned(connection, new)


def _difference(
    publication: str, have: Mapping[int, TableName], wanted: Iterable[SourceTable]
) -> list[Step]:
    wanted = list(wanted)
    kept = {table.oid for table in wanted}
    drops = [Step(oid, name, publication, False) for oid, name in have.items() if oid not in kept]
    adds = [
        Step(table.oid, table.name, publication, True)
        for table in wanted
        if table.oid not in have and table.owned
    ]
    return drops + adds


def _of_generation(connection: Connection, name: str, generation: str) -> Publications:
    publications = read_publications(connection, name)
    where = f"{place_of(connection)} publication {publication_names(name).updates}"
    if publications is None:
        raise PublicationChanged("the publication is gone", where, START_ANEW)
    if publications.stamp.generation != generation:
        found = publications.stamp.generation
        raise PublicationChanged(
            f"the publication is of generation {found}, wanted {generation}", where, START_ANEW
        )
    return publications


def _carry_out(
    connection: Connection,
    steps: list[Step],
    change: MembershipChange,
    failed: dict[tuple[int, str], LeftOut],
) -> None:
    """Steps of one table in one transaction, so that one that changes place is never in neither.

    When one of them fails, each on its own, and those that fail are noted.
    """
    done: list[Step] = []
    # In this order those of one table lie together, what takes it out in front.
    ordered = sorted(steps, key=lambda step: (step.oid, step.added))
    with source_errors(connection):
        for some in _shares(ordered):
            try:
                _run(connection, some)
            except _OF_ONE_TABLE:
                done += [step for step in some if _run_one(connection, step, failed)]
            else:
                done += some
    change.added.extend(step.table for step in done if step.added)
    change.removed.extend(step.table for step in done if not step.added)


def _run(connection: Connection, steps: list[Step]) -> None:
    tables = list(dict.fromkeys(step.table for step in steps))
    with connection.transaction():
        if len(tables) > 1:
            connection.execute(_LOCK_TIMEOUT_OF_SOME)
            connection.execute(lock_statement(*tables))
        else:
            connection.execute(_LOCK_TIMEOUT)
        for statement in step_statements(steps):
            connection.execute(statement)


def _shares(steps: list[Step]) -> Iterator[list[Step]]:
    """The steps in shares; those of one table are never in two."""
    share: list[Step] = []
    for step in steps:
        if len(share) >= _STEPS_TOGETHER and share[-1].oid != step.oid:
            yield share
            share = []
        share.append(step)
    if share:
        yield share


def step_statements(steps: list[Step]) -> Iterator[sql.Composed]:
    """Out of each publication, then into each: a statement for all tables."""
    kinds = dict.fromkeys((step.added, step.publication) for step in steps)
    for added, publication in sorted(kinds):
        tables = [s.table for s in steps if (s.added, s.publication) == (added, publication)]
        yield (add_statement if added else drop_statement)(publication, *tables)


def _run_one(connection: Connection, step: Step, failed: dict[tuple[int, str], LeftOut]) -> bool:
    try:
        _run(connection, [step])
    except _OF_ONE_TABLE as error:
        reason = classify_source_error(error, connection)
        kind = type(reason) if isinstance(reason, SourceError) else SourceError
        failed[step.oid, step.publication] = LeftOut(
            step.table, reason.what, reason.do, kind, is_temporary(reason)
        )
        return False
    return True
