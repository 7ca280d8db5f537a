"""Sessions that the short statements of tests share: to connect makes the server fork."""

from __future__ import annotations

import re
import select
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

from penstock.sinks.postgres import worker
from penstock.sinks.postgres.copy import copy_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    Connection = psycopg.Connection[Any]

_kept: dict[str, Connection] = {}

# What says how later sessions begin.
_OF_SESSIONS = re.compile(r"\bALTER\s+(?:DATABASE|ROLE|USER|SYSTEM)\b", re.IGNORECASE)


@contextmanager
def shared_session(url: str, statement: str) -> Iterator[Connection]:
    """A session for one statement that nobody can distinguish from a new one, in autocommit mode.

    Threads get one of their own each time: what one of them waits for, another may bring about.
    """
    if _OF_SESSIONS.search(statement):
        close_sessions()
    if threading.current_thread() is not threading.main_thread():
        with psycopg.connect(url, autocommit=True) as connection:
            yield connection
        return
    connection = _kept.pop(url, None) or _connect(url)
    if _has_ended(connection):
        connection.close()
        connection = _connect(url)
    try:
        yield connection
    except psycopg.Error:
        # Such as a table that is not there yet, asked for again and again.
        _give_back(url, connection, statement)
        raise
    except BaseException:
        connection.close()
        raise
    _give_back(url, connection, statement)


def close_sessions(url: str | None = None) -> None:
    """End the session with a database, or all."""
    for one in [url] if url is not None else list(_kept):
        connection = _kept.pop(one, None)
        if connection is not None:
            connection.close()


def pytest_unconfigure() -> None:
    """End all, and those that tasks keep for the next one, where a test has run some in this process."""
    close_sessions()
    for kept in (worker._connections, copy_in._connections):
        while kept:
            kept.popitem()[1].close()


def _connect(url: str) -> Connection:
    return psycopg.connect(url, autocommit=True, prepare_threshold=None)


def _has_ended(connection: Connection) -> bool:
    """Whether the server has hung up, or says something unasked: it is about to."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _give_back(url: str, connection: Connection, statement: str) -> None:
    is_idle = connection.info.transaction_status is TransactionStatus.IDLE
    if not is_idle or _OF_SESSIONS.search(statement):
        connection.close()
        return
    try:
        connection.execute("DISCARD ALL")
    except psycopg.OperationalError:
        connection.close()  # the server has gone meanwhile
    else:
        _kept[url] = connection
