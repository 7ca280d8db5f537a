"""Claims: of all sessions that may act as a role, one at a time does something in a database.

An advisory lock under a known key would do, were it not for others: any role that may connect can take
it first, and hold it. So a claim is a lock under a key whose last digits are random, of which somebody
else can only take some; and it is a claim only of a role that counts. Whoever has put theirs checks for
those of others, so that of two at least one sees the other. It ends with its session.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    Connection = psycopg.Connection[Any]

_log = logging.getLogger(__name__)

_RANDOM_BITS = 16
_TRIES = 100

# pg_locks shows the two halves of the key. Only who may act as this session's role counts: that role,
# its members, superusers.
_HOLDERS = f"""
SELECT a.pid, a.backend_start::timestamptz(0) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid <> pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND ((l.classid::int8 << 32) | l.objid::int8) >> {_RANDOM_BITS} = %s
  AND pg_has_role(a.usesysid, (SELECT oid FROM pg_roles WHERE rolname = session_user), 'MEMBER')
ORDER BY a.backend_start LIMIT 1
"""


class Holder(NamedTuple):
    """The session that has a claim."""

    backend: int
    since: datetime


def try_claim(connection: Connection, name: str) -> int | None:
    """Claim something, until `release` or the session's end; the key, or None when another has it."""
    family = _family(name)
    for _ in range(_TRIES):
        key = (family << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
        row = connection.execute("SELECT pg_try_advisory_lock(%s::int8)", (key,)).fetchone()
        if row == (True,):
            break
    else:
        return None
    if connection.execute(_HOLDERS, (family,)).fetchone() is None:
        return key
    release(connection, key)
    return None


def release(connection: Connection, key: int) -> None:
    """Let others have it."""
    connection.execute("SELECT pg_advisory_unlock(%s::int8)", (key,))


def holder_of(connection: Connection, name: str) -> Holder | None:
    """Which other session has a claim, or is about to have it."""
    row = connection.execute(_HOLDERS, (_family(name),)).fetchone()
    return None if row is None else Holder(*row)


def wait_a_little() -> None:
    """Before the next try. Two that saw each other do not meet again in step."""
    time.sleep(timing().claim_poll_seconds * (0.5 + secrets.randbelow(1000) / 1000))


@contextmanager
def alone(connection: Connection, name: str) -> Iterator[None]:
    """Wait for a claim, and have it for a while. The connection is in autocommit mode.

    Raises:
        psycopg.Error: of the connection, from taking it.
    """
    report_at = time.monotonic() + timing().claim_report_seconds
    while (key := try_claim(connection, name)) is None:
        if time.monotonic() > report_at and (holder := holder_of(connection, name)):
            report_at = float("inf")
            _log.info("waits for backend %d, which has %s", holder.backend, name)
        wait_a_little()
    try:
        yield
    finally:
        try:
            release(connection, key)
        except psycopg.Error:
            _log.debug("%s was lost together with the connection", name)


def _family(name: str) -> int:
    """What the keys of one claim begin with: signed, as the key that it begins is."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[: 8 - _RANDOM_BITS // 8], signed=True)
