"""What teardown takes off a Postgres sink: one source's, or all that a pipeline has left there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fix_postgres import only_new
from penstock.errors import SecondInstance
from penstock.sinks.postgres.copy.shadow import shadow_name
from penstock.sinks.postgres.merge.stages import stage_prefix
from penstock.sinks.postgres.state.forget import forget_orphans, forget_source
from penstock.sinks.postgres.state.objects import make_objects
from penstock.sinks.postgres.state.progress import Progress
from penstock.table import TableName

if TYPE_CHECKING:
    from fix_postgres import Database

pytestmark = only_new

HELD = "SELECT DISTINCT pipeline || '/' || source FROM penstock.{} ORDER BY 1"


def deliver(target: Database, *owners: tuple[str, str]) -> None:
    """Leave what deliveries leave: a position, a table, a range, a stage and a shadow table."""
    with target.connect() as connection:
        make_objects(connection)
        for owner in owners:
            connection.execute(
                "INSERT INTO penstock.progress (pipeline, source, delivered_lsn, identity)"
                " VALUES (%s, %s, '0/1', '{}')",
                owner,
            )
            connection.execute(
                "INSERT INTO penstock.tables (pipeline, source, schema_name, table_name, state)"
                " VALUES (%s, %s, 'public', 't', 'streaming')",
                owner,
            )
            connection.execute(
                "INSERT INTO penstock.ranges VALUES (%s, %s, 'public', 't', 'c', 1, 1, 1)", owner
            )
            for name in (f"{stage_prefix(*owner)}1", shadow_of(owner)):
                connection.execute(f"CREATE TABLE penstock.{name} ()")


def shadow_of(owner: tuple[str, str]) -> str:
    return shadow_name(owner, TableName("public", "t")).name


def others(target: Database) -> set[str]:
    """penstock's tables that come and go."""
    found = target.query("SELECT relname FROM pg_class WHERE relname ~ '^(stage|copy)_'")
    return {name for (name,) in found}


def assert_held(target: Database, *owners: tuple[str, str]) -> None:
    for table in ("progress", "tables", "ranges"):
        assert target.query(HELD.format(table)) == [("/".join(owner),) for owner in owners]
    wanted = {name for owner in owners for name in (f"{stage_prefix(*owner)}1", shadow_of(owner))}
    assert others(target) == wanted


def test_one_source_is_forgotten_and_the_others_keep_their_positions(target: Database) -> None:
    acme, globex, other = ("tenants", "acme"), ("tenants", "globex"), ("other", "globex")
    deliver(target, acme, globex, other)

    assert forget_source(target.dsn, *globex) == ["position"]
    assert_held(target, other, acme)
    assert forget_source(target.dsn, *globex) == []
    assert forget_source(target.dsn, *other) == ["position"]
    assert forget_source(target.dsn, *acme) == ["schema penstock"]
    assert forget_source(target.dsn, *acme) == []
    assert forget_orphans(target.dsn, "tenants") == {}


def test_what_is_left_of_a_pipeline_is_forgotten_and_the_schema_goes_with_the_last(
    target: Database,
) -> None:
    a, b, other = ("tenants", "a"), ("tenants", "b"), ("other", "a")
    deliver(target, a, b, other)

    assert forget_orphans(target.dsn, "tenants") == {"a": ["position"], "b": ["position"]}
    assert_held(target, other)
    assert forget_orphans(target.dsn, "other") == {"a": ["schema penstock"]}


@pytest.mark.long
def test_what_another_process_delivers_is_no_orphan(target: Database) -> None:
    deliver(target, ("tenants", "a"))
    with target.connect() as connection:
        Progress("tenants", "a").claim(connection, "test")
        with pytest.raises(SecondInstance, match="another process delivers pipeline tenants"):
            forget_orphans(target.dsn, "tenants")
    assert_held(target, ("tenants", "a"))
