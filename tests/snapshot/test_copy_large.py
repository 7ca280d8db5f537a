"""A large table is copied while it is written, across a stop: both sides end with the same checksum."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import Command
    from fix_postgres import Database

ROWS = 500_001
GROUPS = 4
GROUP_ROWS = 5000

CHECKSUM = "SELECT count(*), md5(string_agg(md5(u::text), '' ORDER BY id)), sum(balance)::text FROM users u"


def make_users(source: Database) -> None:
    """Half a million rows, one of them with a document of ten thousand elements."""
    source.execute(
        "CREATE TABLE users (id bigserial PRIMARY KEY, name text, balance numeric(12,2), doc jsonb)"
    )
    source.execute(
        "INSERT INTO users (name, balance, doc) SELECT 'user ' || g, g % 1000 / 7.0,"
        f" jsonb_build_object('n', g) FROM generate_series(1, {ROWS - 1}) g"
    )
    source.execute(
        "INSERT INTO users (name, balance, doc) SELECT 'last', 1, jsonb_agg(g)"
        " FROM generate_series(1, 10000) g"
    )


@pytest.mark.long
@only_new
def test_half_a_million_rows_are_copied_while_they_are_written_across_a_stop(
    source: Database,
    target: Database,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    make_users(source)
    options: dict[str, Any] = {"snapshot": {"mode": "initial", "max_rows_per_second": 150_000}}
    path = pipeline_file(source, target, tables=("public.users",), source_options=options)
    failures: list[BaseException] = []

    def write() -> None:
        try:
            for group in range(GROUPS):
                for begin in range(0, GROUP_ROWS, 500):
                    source.execute(
                        "INSERT INTO users (name, balance) SELECT 'new', g FROM"
                        f" generate_series({begin}, {begin + 499}) g;"
                        f" UPDATE users SET balance = balance + 1 WHERE id % 5000 = {begin + group};"
                        f" DELETE FROM users WHERE id % 50000 = {begin + 7 + group}"
                    )
        except BaseException as error:  # noqa: BLE001 - asserted on below
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    first = penstock_command("run", str(path))
    under_way = "SELECT count(*) FROM penstock.ranges"
    wait_until(
        lambda: target.value("SELECT to_regclass('penstock.ranges')") and target.value(under_way),
        deadline_seconds=90,
        what="a range to arrive",
    )
    assert first.terminate() == 0
    second = penstock_command("run", str(path), "--until-caught-up")
    writer.join()
    assert failures == []
    assert second.wait(180) == 0, second.stderr
    third = penstock_command("run", str(path), "--until-caught-up")
    assert third.wait(120) == 0, third.stderr

    assert target.query(CHECKSUM) == source.query(CHECKSUM)
    assert target.value("SELECT count(*) FROM users") > ROWS
