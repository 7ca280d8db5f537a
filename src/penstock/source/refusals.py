"""What libpq and the server say when they refuse, and what each refusal means to penstock.

A table of facts: SQLSTATEs and sentences, each with its error class and the way out. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import (
    NoSlotLeft,
    PenstockError,
    PoolerInTheWay,
    PublicationChanged,
    SlotInUse,
    SlotLost,
    SlotMissing,
    SourceDatabaseMissing,
    SourceError,
    SourceLoginRefused,
    SourcePrivilegeMissing,
    WalLevelTooLow,
)

# Stands for a failure without SQLSTATE: libpq gives none for a connection that was not made.
NO_STATE = "none"

START_ANEW = "penstock teardown, then init: what was not delivered is only in the tables now"


class Refusal(NamedTuple):
    """One kind of refusal: by SQLSTATE and by text.

    `states` None: any failure to connect. `text` None: whatever the words.
    """

    states: tuple[str, ...] | None
    text: str | None
    error: type[PenstockError]
    what: str
    do: str


# The first that fits decides. A failed connection attempt has no SQLSTATE, its text must do.
REFUSALS = (
    Refusal(
        None,
        r"unsupported startup parameter|bouncer|supavisor|pgpool|pgcat|odyssey|rds proxy"
        r"|no such database:|tenant or user not found|replication connections? (is|are) not supported",
        PoolerInTheWay,
        "a connection pooler answers, wanted the Postgres server itself",
        "put the server's own host and port into the url; poolers do not pass replication on",
    ),
    Refusal(
        ("28P01", "28000"),
        None,
        SourceLoginRefused,
        "the server refused the login",
        "check user and password in the url, and the server's pg_hba.conf",
    ),
    Refusal(
        None,
        r"authentication failed|no pg_hba\.conf entry|pg_hba\.conf rejects|no password supplied"
        r"|role \".*\" does not exist|not permitted to log in|authentication method",
        SourceLoginRefused,
        "the server refused the login",
        "check user and password in the url, and the server's pg_hba.conf",
    ),
    Refusal(
        None,
        r"does not support SSL|certificate|SSL error|server name .* does not match",
        SourceLoginRefused,
        "the two sides did not agree on encryption",
        "check sslmode and sslrootcert in the url",
    ),
    Refusal(
        ("3D000",),
        None,
        SourceDatabaseMissing,
        "the server has no database of that name",
        "correct the database in the url",
    ),
    Refusal(
        None,
        r"database \".*\" does not exist",
        SourceDatabaseMissing,
        "the server has no database of that name",
        "correct the database in the url",
    ),
    Refusal(
        ("53300", NO_STATE),
        r"max_wal_senders",
        NoSlotLeft,
        "every WAL sender of the server is in use",
        "raise max_wal_senders and restart the server",
    ),
    Refusal(
        ("53400",),
        r"replication slots? ",
        NoSlotLeft,
        "every replication slot of the server is in use",
        "drop a slot that nobody reads (pg_replication_slots), or raise max_replication_slots and restart",
    ),
    Refusal(
        ("42501", NO_STATE),
        r"walsender|WAL sender|replication role|REPLICATION attribute|replication slots",
        SourcePrivilegeMissing,
        "the role may not replicate",
        "ALTER ROLE {role} REPLICATION; on Amazon RDS: GRANT rds_replication TO {role}",
    ),
    Refusal(
        ("42501",),
        r"could then act as role",
        SourcePrivilegeMissing,
        "schema penstock, or something in it, belongs to another role, which could then act as this one",
        "ALTER SCHEMA penstock OWNER TO {role}, and so for what is in it; or let its owner install the"
        " triggers, where that is a role that may",
    ),
    Refusal(
        ("42501",),
        r"row-level security",
        SourcePrivilegeMissing,
        "row-level security would hide rows from the role",
        "ALTER ROLE {role} BYPASSRLS, or let a role copy for which it does not hold",
    ),
    Refusal(
        ("42501", NO_STATE),
        r"permission denied|must be owner|must be superuser",
        SourcePrivilegeMissing,
        "the role lacks a privilege",
        "run penstock check: it prints the statement that grants each",
    ),
    Refusal(
        ("55006",),
        r"replication slot",
        SlotInUse,
        "another connection holds the slot",
        "nothing if a predecessor just died, the server notices; else stop the other reader",
    ),
    Refusal(
        ("42704",),
        r"replication slot",
        SlotMissing,
        "the slot is not there any more",
        START_ANEW,
    ),
    Refusal(
        ("42704",),
        r"publication",
        PublicationChanged,
        "the publication was dropped, or is younger than the position of the slot",
        START_ANEW,
    ),
    Refusal(
        ("55000", "58P01"),
        r"can no longer|invalidated|maximum reserved size|has already been removed",
        SlotLost,
        "the server removed WAL that the slot still needed",
        "penstock teardown, then init; raise max_slot_wal_keep_size before",
    ),
    Refusal(
        ("55000",),
        r"wal_level",
        WalLevelTooLow,
        "wal_level is too low, wanted logical",
        "ALTER SYSTEM SET wal_level = 'logical'; then restart the server",
    ),
    Refusal(
        ("25006",),
        None,
        SourceError,
        "the server is read-only, wanted the primary",
        "put the primary into the url, or wait until this server is promoted",
    ),
)
