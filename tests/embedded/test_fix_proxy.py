"""The tests' own proxy: faults that do not happen would prove nothing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from fix_postgres import Database
    from fix_proxy import Proxy

pytestmark = only_new


def test_proxy_forwards_both_ways(source: Database, proxy: Proxy):
    with psycopg.connect(proxy.url(source)) as connection:
        answer = connection.execute("SELECT repeat('x', 1000000), %s", ["y" * 1000000]).fetchone()

    assert answer == ("x" * 1000000, "y" * 1000000)
    assert proxy.accepted_count == 1


def test_cut_ends_connections_and_takes_new_ones(source: Database, proxy: Proxy):
    with psycopg.connect(proxy.url(source)) as connection:
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with psycopg.connect(proxy.url(source)) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_refuse_lasts_until_heal(source: Database, proxy: Proxy):
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(proxy.url(source))

    proxy.heal()

    with psycopg.connect(proxy.url(source)) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_blackhole_holds_bytes_until_heal(source: Database, proxy: Proxy):
    answers: list[object] = []
    with psycopg.connect(proxy.url(source)) as connection:
        proxy.blackhole()
        asking = threading.Thread(
            target=lambda: answers.append(connection.execute("SELECT 1").fetchone())
        )
        asking.start()
        asking.join(0.3)
        held = list(answers)
        proxy.heal()
        wait_until(lambda: answers, what="the held answer")
        asking.join()

    assert held == []
    assert answers == [(1,)]


def test_cut_reaches_blackholed_connections(source: Database, proxy: Proxy):
    with psycopg.connect(proxy.url(source)) as connection:
        proxy.blackhole()
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
