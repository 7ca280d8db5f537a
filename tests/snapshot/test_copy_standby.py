"""Rows are read from a standby, the stream comes from its primary."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from fix_pipeline import ALWAYS_COPIED, assert_equal
from fix_postgres import Database, create_database, only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_pipeline import RunningPipeline
    from fix_postgres import MakeServer
    from penstock.embedded.postgres import EmbeddedPostgres

    Make = Callable[..., RunningPipeline]


def make_standby(primary: EmbeddedPostgres, make_server: MakeServer) -> EmbeddedPostgres:
    """A hot standby that follows the primary."""
    standby = make_server()
    standby.stop()
    owner = standby.data_dir.stat()
    shutil.rmtree(standby.data_dir)
    backup = [str(primary.bin_dir / "pg_basebackup"), "-D", str(standby.data_dir)]
    backup += ["-d", primary.dsn(), "-R", "-c", "fast"]
    subprocess.run(backup, check=True, capture_output=True)
    for path in [standby.data_dir, *standby.data_dir.rglob("*")]:
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    with (standby.data_dir / "postgresql.conf").open("a") as config:
        config.write("hot_standby_feedback = on\n")
    standby.start()
    return standby


@pytest.fixture
def primary_and_standby(make_server: MakeServer) -> tuple[Database, Database]:
    """A database, and the same one on a standby."""
    primary = make_server()
    source = create_database(primary, "source")
    standby = make_standby(primary, make_server)
    return source, Database(standby, source.name)


@only_new
def test_rows_come_from_the_standby_and_changes_from_the_primary(
    primary_and_standby: tuple[Database, Database], target: Database, make_pipeline: Make
) -> None:
    source, standby = primary_and_standby
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 5000) g")
    options: dict[str, Any] = {
        **ALWAYS_COPIED,
        "snapshot": {"mode": "initial", "url": standby.url},
    }
    source.execute("CREATE TABLE seen (id int PRIMARY KEY)")

    pipeline = make_pipeline(source, target, source_options=options)
    source.execute("UPDATE t SET v = 'w' WHERE id < 100; INSERT INTO seen VALUES (1)")
    pipeline.catch_up()

    assert_equal(source, target, "t", "seen")
    assert "penstock copy" in standby_applications(standby, source, pipeline)


def standby_applications(
    standby: Database, source: Database, pipeline: RunningPipeline
) -> set[str]:
    """Who reads at the standby while another table is copied."""
    source.execute("CREATE TABLE large (id int PRIMARY KEY, v text)")
    source.execute("INSERT INTO large SELECT g, repeat('x', 500) FROM generate_series(1, 100000) g")
    found: set[str] = set()

    def poll() -> bool:
        rows = standby.query(
            "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
        )
        found.update(name for (name,) in rows)
        return "penstock copy" in found

    wait_until(poll, what="a copy to read at the standby")
    pipeline.catch_up()
    return found
