"""`penstock demo` as a newcomer runs it, and what its proof is worth."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from fix_postgres import only_new
from fix_wait import wait_until
from penstock.demo.proof import Watcher, compare, require_equal, require_none_twice
from penstock.demo.shop import PRODUCT_COUNT, SCHEMA, STOCK_EACH, TABLES, row_counts
from penstock.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fix_postgres import Database


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A TMPDIR for one demo alone, that the servers' user may enter."""
    directory = Path(tempfile.mkdtemp(prefix="test-demo-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def _start(cwd: Path, scratch: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "demo"],
        cwd=cwd,
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _processes_of(scratch: Path) -> list[str]:
    """Servers name the directory on their command line, the others have it as TMPDIR."""
    found = []
    for process in psutil.process_iter():
        try:
            traces = [*process.cmdline(), process.environ().get("TMPDIR", "")]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(str(scratch) in trace for trace in traces):
            found.append(" ".join(process.cmdline()))
    return found


def test_demo_proves_that_both_sides_are_equal_and_leaves_nothing_behind(
    tmp_path: Path, scratch: Path
) -> None:
    began = time.monotonic()

    out, err = _start(tmp_path, scratch).communicate(timeout=120)

    assert "both sides are equal, every row and every value" in out, err
    for table in TABLES:
        rows = re.search(rf"  {table} +([\d,]+)  (\w{{12}}) +([\d,]+)  (\w{{12}}) +equal", out)
        assert rows is not None
        assert rows[1] == rows[3]
        assert rows[2] == rows[4]
    counts = re.search(r"([\d,]+) rows copied, ([\d,]+) changes delivered after that", out)
    assert counts is not None
    assert "0" not in (counts[1], counts[2])
    assert "never half a transaction" in out
    for command in ("check", "run", "status"):
        assert f"penstock {command} shop.yml" in out
    assert err == ""
    assert time.monotonic() - began < 90
    assert list(tmp_path.iterdir()) == []
    assert list(scratch.iterdir()) == []
    assert _processes_of(scratch) == []


def test_demo_stopped_by_ctrl_c_removes_everything(tmp_path: Path, scratch: Path) -> None:
    demo = _start(tmp_path, scratch)
    assert demo.stdout is not None
    while "slot penstock_shop_" not in (line := demo.stdout.readline()):
        assert line

    os.killpg(demo.pid, signal.SIGINT)
    out, err = demo.communicate(timeout=60)

    assert (demo.returncode, err) == (0, "")
    assert "Stopped early. Everything is removed." in out
    assert list(tmp_path.iterdir()) == []
    assert list(scratch.iterdir()) == []
    assert _processes_of(scratch) == []


@only_new
def test_proof_fails_when_one_value_differs(source: Database, target: Database) -> None:
    for side in (source, target):
        side.execute(SCHEMA)
        side.execute("INSERT INTO customers (email, joined_at) VALUES ('a@example.org', 'epoch')")
    with source.connect() as here, target.connect() as there:
        require_equal(compare(here, there))
        target.execute("UPDATE customers SET preferences = '{\"news\": true}'")
        compared = compare(here, there)

    with pytest.raises(RunError, match="customers has 1 rows, checksum") as failure:
        require_equal(compared)

    assert failure.value.exit_code == 1
    assert [each.table for each in compared if not each.is_equal] == ["customers"]


def test_proof_fails_when_a_change_was_delivered_twice() -> None:
    with pytest.raises(RunError, match="3 changes were delivered, wanted at most the 2 written"):
        require_none_twice(2, 3)


@only_new
def test_watcher_sees_half_a_transfer(target: Database) -> None:
    target.execute(SCHEMA)
    target.execute("CREATE SCHEMA penstock; CREATE TABLE penstock.progress (delivered_lsn pg_lsn)")
    target.execute(
        "CREATE TABLE penstock.tables AS SELECT 'streaming' AS state FROM generate_series(1, 4)"
    )
    stock = f"SELECT n, n, 1, {STOCK_EACH} FROM generate_series(1, {PRODUCT_COUNT}) n"
    target.execute(f"INSERT INTO products (sku, title, price, stock) {stock}")
    watcher = Watcher(target.url)
    wait_until(lambda: watcher.poll_count)
    watcher.require_whole()

    target.execute("UPDATE products SET stock = stock - 5 WHERE sku = '1'")
    wait_until(lambda: watcher.torn_count)
    watcher.stop()

    with pytest.raises(RunError, match="saw half a transaction: 39995 pieces, wanted 40000"):
        watcher.require_whole()


@only_new
def test_rows_can_be_counted_while_a_migration_waits_for_its_next_table(source: Database) -> None:
    source.execute(SCHEMA)
    waits = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    counted: list[dict[str, int]] = []
    with source.connect(autocommit=False) as migrating, source.connect() as counting:
        migrating.execute("LOCK TABLE orders")
        counter = threading.Thread(target=lambda: counted.append(row_counts(counting)))
        counter.start()
        wait_until(lambda: source.value(waits), what="the count to wait for orders")

        migrating.execute("LOCK TABLE customers NOWAIT")
        migrating.rollback()
        counter.join(30)

    assert counted == [dict.fromkeys(TABLES, 0)]
