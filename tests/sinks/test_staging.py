"""What executors do at a Postgres target before anything is merged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fix_postgres import only_new
from penstock import testing
from penstock.sinks.postgres import worker as worker_module
from penstock.sinks.postgres.mapping.plan import TablePlan, TargetColumn
from penstock.sinks.postgres.worker import PostgresWorker
from penstock.table import TableName
from penstock.testing import insert, relation, table, transaction

if TYPE_CHECKING:
    import pytest

    from fix_postgres import Database

T = table(16400, "t", {"id": "int4"}, key=["id"])
NAME = TableName("public", "t")


@only_new
def test_time_limits_of_the_role_do_not_hold_for_what_is_staged(
    target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "INLINE_BYTES", 0)
    target.execute("CREATE SCHEMA penstock")
    for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
        target.execute(f"ALTER DATABASE \"{target.name}\" SET {name} = '5s'")
    plan = TablePlan(NAME, NAME, (TargetColumn("id", "integer", True),), (), ("id",))
    task = PostgresWorker(target.dsn, "stage_test_", {NAME: plan}, frozenset()).begin(0)

    task.take(testing.changes([relation(T), *transaction(0x1000, insert(T, ["1"]))]))

    connection = worker_module._connections.pop(target.dsn.conninfo)
    with connection:
        connection.rollback()  # as after a COPY that was refused
        for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
            assert connection.execute(f"SHOW {name}").fetchone() == ("0",)
    [step] = task.finish().content.steps
    assert target.query(f"SELECT c0 FROM penstock.{step.stage_table}") == [(1,)]
