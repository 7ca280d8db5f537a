"""The Postgres sink keeps the contract, on a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.sinks.postgres import worker as worker_module
from penstock.sinks.postgres.kind import PostgresKind
from penstock.sinks.postgres.options import PostgresOptions
from penstock.testing import RowSinkContract

if TYPE_CHECKING:
    from pathlib import Path

    from fix_postgres import Database, MakeDatabase
    from penstock.embedded.postgres import EmbeddedPostgres


class TestPostgres(RowSinkContract):
    kills_after = (1, 2)
    is_altered_by_hand = True  # by descriptions of the source's tables: see test_names_by_position
    fault_points = (
        "stage.before_copy",
        "deliver.after_job",
        "deliver.before_commit",
        "deliver.after_commit",
    )

    @pytest.fixture(autouse=True)
    def _databases(self, pg_new: EmbeddedPostgres, make_database: MakeDatabase) -> None:
        self._server = pg_new
        self._make_database = make_database
        self._targets: dict[str, Database] = {}

    def test_kill_between_any_two_steps_loses_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A few bytes would travel in the receipt, and nothing be staged.
        monkeypatch.setattr(worker_module, "INLINE_BYTES", 0)
        super().test_kill_between_any_two_steps_loses_nothing(tmp_path)

    def kind(self) -> PostgresKind:
        return PostgresKind()

    def options(self, directory: Path) -> PostgresOptions:
        target = self._make_database(self._server, "target")
        options = PostgresOptions.model_validate({"url": target.url})
        self._targets[str(options.url)] = target
        return options

    def rows(self, options: PostgresOptions, table: str) -> list[tuple[int, str]]:
        target = self._targets[str(options.url)]
        if target.value("SELECT to_regclass(%s)", f"public.{table}") is None:
            return []
        return [(key, note) for key, note in target.query(f"SELECT id, note FROM {table}")]

    def refuse(self, options: PostgresOptions, key: int) -> bool:
        self._targets[str(options.url)].execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, note text,"
            f" CONSTRAINT unwanted CHECK (id <> {key}))"
        )
        return True

    def accept(self, options: PostgresOptions) -> None:
        self._targets[str(options.url)].execute("ALTER TABLE orders DROP CONSTRAINT unwanted")
