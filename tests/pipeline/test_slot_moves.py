"""A slot that is moved while the pipeline runs, as who runs it sees it: exit code, status, remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fix_pipeline import rows, status_of
from fix_postgres import only_new
from fix_wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fix_pipeline import Command
    from fix_postgres import Database
    from fix_proxy import Proxy

SLOT = "SELECT slot_name FROM pg_replication_slots WHERE database = %s"


@pytest.mark.long
@only_new
def test_run_ends_when_its_slot_was_advanced_while_it_was_disconnected(
    source: Database,
    target: Database,
    proxy: Proxy,
    pipeline_file: Callable[..., Path],
    penstock_command: Callable[..., Command],
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    path = pipeline_file(proxy.url(source), target, tables=("public.t",))
    command = penstock_command("run", str(path))
    wait_until(
        lambda: source.query(f"{SLOT} AND active", source.name), 60, what="it to follow the slot"
    )
    source.execute("INSERT INTO t VALUES (1)")
    wait_until(lambda: rows(target, "t"), 60, what="the first row to arrive")

    proxy.refuse()
    slot = wait_until(
        lambda: source.query(f"{SLOT} AND NOT active", source.name), what="it to be cut off"
    )[0][0]
    source.execute("INSERT INTO t SELECT generate_series(2, 101)")
    source.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", slot)
    proxy.heal()
    code = command.wait()
    found: dict[str, Any] = status_of(path)
    again = penstock_command("run", str(path))

    assert code == 1
    assert "PEN-208" in command.stderr
    assert "Traceback" not in command.stderr
    assert found["phase"] == "failed"
    assert "Do: penstock teardown, then init" in found["sources"]["test"]["error"]
    assert again.wait() == 1
    assert "PEN-208" in again.stderr
    assert status_of(path)["phase"] == "failed"
    assert len(rows(target, "t")) == 1
