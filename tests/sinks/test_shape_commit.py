"""A transaction that is done again without tables that cannot follow comes to an end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from fix_postgres import only_new
from penstock.errors import SchemaChangeStops
from penstock.sinks.postgres.evolve.commit import ShapeCommits
from penstock.sinks.postgres.evolve.transaction import Evolution
from penstock.sinks.postgres.mapping.table_mapping import TableMappings
from penstock.sinks.postgres.options import PostgresOptions
from penstock.sinks.postgres.state.progress import Progress
from penstock.sinks.postgres.state.shapes import TableStops
from penstock.sinks.postgres.state.tables import TargetTables
from penstock.table import TableName

if TYPE_CHECKING:
    from fix_postgres import Database


@only_new
def test_table_that_stops_although_it_was_left_out_ends_the_attempts(
    target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[set[TableName]] = []

    def stop_again(self: Evolution, *_: object) -> None:
        attempts.append(set(self.tables.refused))
        assert len(attempts) < 5, "this never ends"
        raise TableStops(TableName("public", "t"), SchemaChangeStops("it was dropped", "t", "x"))

    monkeypatch.setattr(Evolution, "run", stop_again)
    options = PostgresOptions.model_validate({"kind": "postgres", "url": target.url})
    commits = ShapeCommits(
        TableMappings(options, "p", "s", ["s"]),
        Progress("p", "s"),
        TargetTables("p", "s"),
        cast("Any", None),
        "stage_",
    )
    nothing = cast("Any", None)
    with target.connect() as connection, pytest.raises(SchemaChangeStops, match="it was dropped"):
        commits.commit(connection, nothing, nothing, nothing, None, replica_role=False)
    assert attempts == [set(), {TableName("public", "t")}]
