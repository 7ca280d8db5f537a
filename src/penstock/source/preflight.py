"""Checks before anything is made: every fault of the source at once, each with what fixes it.

Changes nothing on the server; the only thing it opens is connections.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from penstock.errors import (
    BadTableRule,
    NoSlotLeft,
    PenstockError,
    PoolerInTheWay,
    SourcePrivilegeMissing,
    SourceTooOld,
    TableMissing,
    TableWithoutKey,
)
from penstock.findings import Finding
from penstock.source.choice import LeftOut, forbidding, read_choice
from penstock.source.connect import classify_source_error, connect_source, place_of, role_of
from penstock.source.identity import identify_system
from penstock.source.membership import plan_steps
from penstock.source.options import Tracking
from penstock.source.publication import (
    Publications,
    drop_statement,
    left_behind,
    publication_names,
    read_publications,
)
from penstock.source.server import OLDEST_VERSION, read_server, server_errors, server_warnings
from penstock.source.shapes import locked_by_others
from penstock.source.slot import check_slot, slot_state, slots_of
from penstock.source.tracking.install import broken_tracking, read_tracking

if TYPE_CHECKING:
    from penstock.dsn import Dsn
    from penstock.source.catalog import SourceTable
    from penstock.source.choice import Choice
    from penstock.source.server import ServerFacts
    from penstock.table import TableRules

    Connection = psycopg.Connection[Any]


def preflight(
    dsn: Dsn, rules: TableRules, name: str, tracking: Tracking = Tracking.OFF
) -> list[Finding]:
    """Every finding about this source for this pipeline, errors first; empty when all is well.

    Raises nothing that a server can cause.
    """
    try:
        with connect_source(dsn, "penstock check") as connection:
            findings = _check(connection, dsn, rules, name)
            if tracking is Tracking.TRIGGERS:
                findings += _tracking_findings(connection)
    except (PenstockError, psycopg.Error) as error:
        return [Finding(classify_source_error(error, dsn))]
    return sorted(findings, key=lambda finding: finding.severity != "error")


def _tracking_findings(connection: Connection) -> list[Finding]:
    """Without its triggers a source can be followed all the same, so that these are warnings."""
    state = read_tracking(connection)
    if state.is_installed:
        broken = broken_tracking(connection)
        return [] if broken is None else [Finding(broken, "warning")]
    if state.may_install:
        return []
    return [
        Finding(
            SourcePrivilegeMissing(
                f"the role {role_of(connection)} may not create event triggers, so that changes of"
                " tables will be reported by Relation messages alone: tracking: relation",
                place_of(connection),
                "for tracking: triggers let a superuser (on Amazon RDS the master user) run what"
                " penstock init --print-sql prints; or set source.schema.tracking: relation",
            ),
            "warning",
        )
    ]


def _check(connection: Connection, dsn: Dsn, rules: TableRules, name: str) -> list[Finding]:
    version = connection.info.server_version
    if version < OLDEST_VERSION:
        found = f"{version // 10000}.{version % 10000}"
        wanted = OLDEST_VERSION // 10000
        what = f"the server is version {found}, wanted {wanted} or later"
        return [Finding(SourceTooOld(what, place_of(connection), f"upgrade to {wanted} or later"))]
    publication_names(name)  # refuses a name that no slot can carry
    own_slots = slots_of(connection, name)
    facts = read_server(connection, own_slots)
    findings = [Finding(error) for error in server_errors(facts)]
    findings += _replication_findings(dsn, facts, findings)
    findings += [Finding(error, "warning") for error in server_warnings(facts)]
    publications, more = _subscription_findings(connection, name, own_slots)
    findings += more
    if publications is None and not more and not facts.may_create and not facts.is_standby:
        database = sql.Identifier(dsn.database).as_string(None)
        findings.append(
            Finding(
                SourcePrivilegeMissing(
                    f"the role {facts.role} may not create a publication in this database",
                    facts.place,
                    f"GRANT CREATE ON DATABASE {database} TO {facts.role}",
                )
            )
        )
    return findings + _table_findings(connection, name, publications, rules)


def _replication_findings(dsn: Dsn, facts: ServerFacts, so_far: list[Finding]) -> list[Finding]:
    """Try what capture will do: a pooler passes SQL on, but not replication."""
    try:
        identify_system(dsn)
    except psycopg.errors.SyntaxError:
        error: PenstockError = PoolerInTheWay(
            "a replication command was taken for SQL, so a pooler answers, wanted the server itself",
            str(dsn),
            "put the server's own host and port into the url; poolers do not pass replication on",
        )
    except psycopg.Error as refusal:
        error = classify_source_error(refusal, dsn)
    else:
        return []
    known = {finding.code for finding in so_far}
    if facts.used_senders < facts.max_senders:
        known.add(NoSlotLeft.code)  # the last sender is our own, streaming at this moment
    return [] if error.code in known else [Finding(error)]


def _subscription_findings(
    connection: Connection, name: str, own_slots: list[str]
) -> tuple[Publications | None, list[Finding]]:
    """What an earlier init has left, and whether it can be used."""
    place = place_of(connection)
    try:
        publications = read_publications(connection, name)
        if publications is None and own_slots:
            raise left_behind(name, own_slots[0], place)
        if publications is not None and publications.stamp.created_lsn is not None:
            slot = publications.stamp.slot
            check_slot(slot_state(connection, slot), slot, place)
    except PenstockError as error:
        return None, [Finding(error)]
    return publications, []


def _table_findings(
    connection: Connection, name: str, publications: Publications | None, rules: TableRules
) -> list[Finding]:
    choice, faults = read_choice(connection, rules)
    names = publication_names(name)
    _, foreign = plan_steps(connection, names, publications, choice)
    must = forbidding(choice, foreign, rules)
    faults = _with_refusals(faults, names.updates, publications)
    left_out = _with_refusals(choice.left_out, names.updates, publications)
    may = [*(each for each in foreign if each not in must), *left_out]
    findings = [Finding(each.as_error()) for each in (*faults, *must)]
    warnings: list[PenstockError] = [
        each.as_error()
        for each in (*may, *_unreadable(connection, choice), *_filtered(connection, choice))
    ]
    warnings += [_swept_in(table) for table in choice.swept_in]
    chosen = [table.oid for table in (*choice.updates, *choice.inserts)]
    warnings += locked_by_others(connection, chosen).values()
    if not (choice.updates or choice.inserts or findings or warnings):
        warnings.append(
            TableMissing(
                "no table matches the rules yet",
                place_of(connection),
                "check tables in the pipeline file; tables that appear later are followed",
            )
        )
    return findings + [Finding(error, "warning") for error in warnings]


def _with_refusals(
    left_out: list[LeftOut], name: str, publications: Publications | None
) -> list[LeftOut]:
    """The same, with what people notice now of tables that have lost their key and are published still."""
    published = set(publications.updates.values()) if publications else set()
    return [
        replace(
            each,
            reason=f"{each.reason}; it is published since it had a key, so that they fail at this moment",
            do=f"let penstock run, which takes it out within seconds, or do so yourself:"
            f" {drop_statement(name, each.table).as_string(None)}; and for the table to be followed: {each.do}",
        )
        if each.error is TableWithoutKey and each.table in published
        else each
        for each in left_out
    ]


def _unreadable(connection: Connection, choice: Choice) -> list[LeftOut]:
    role = role_of(connection)
    return [
        LeftOut(
            table.name,
            f"the role {role} may not read the table; following it needs no such right, copying does",
            f"GRANT USAGE ON SCHEMA {sql.Identifier(table.name.schema).as_string(None)} TO {role};"
            f" GRANT SELECT ON {sql.Identifier(*table.name).as_string(None)} TO {role}",
            SourcePrivilegeMissing,
        )
        for table in (*choice.updates, *choice.inserts)
        if not table.readable
    ]


def _filtered(connection: Connection, choice: Choice) -> list[LeftOut]:
    role = role_of(connection)
    return [
        LeftOut(
            table.name,
            f"row-level security holds for the role {role}: a copy that lacks what the policies hide is"
            " refused by the server; following the table needs no such right",
            f"ALTER ROLE {role} BYPASSRLS",
            SourcePrivilegeMissing,
        )
        for table in (*choice.updates, *choice.inserts)
        if table.is_filtered and table.readable
    ]


def _swept_in(table: SourceTable) -> PenstockError:
    return BadTableRule(
        "the rules exclude this partition, yet its changes arrive under its root's name",
        str(table.name),
        "exclude the root and name the wanted partitions, or take the exclusion out",
    )
