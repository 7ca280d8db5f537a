"""The kind `postgres`: rows in the tables of a Postgres. What servers are asked is in the modules beside."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.findings import Finding
from penstock.sinks.kind import SinkKind, SinkPlace, Statements
from penstock.sinks.parked import ALL
from penstock.sinks.postgres.mapping.table_mapping import TableMappings
from penstock.sinks.postgres.options import PostgresOptions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import psycopg

    from penstock.dsn import Dsn
    from penstock.schema.description import TableStructure
    from penstock.sinks.chosen import ChosenTables
    from penstock.sinks.describe import Describe
    from penstock.sinks.parked import ParkedEntry, Wanted
    from penstock.sinks.postgres.copy.copying import PostgresCopying
    from penstock.sinks.postgres.session import TargetSession
    from penstock.sinks.postgres.sink import PostgresSink
    from penstock.sinks.postgres.state.parked import ParkedRows
    from penstock.sinks.status import SequencePosition, SinkStatus
    from penstock.table import Routes, TableName

    Place = SinkPlace[PostgresOptions]

# Who runs it has more rights than most, in a session of their own.
_SAFE = "SET search_path = pg_catalog, pg_temp;"


def mappings_of(place: Place) -> TableMappings:
    """Where a source's tables land."""
    return TableMappings(place.options, place.pipeline, place.source_id, place.source_ids)


class PostgresKind(SinkKind[PostgresOptions]):
    """Tables of a Postgres."""

    name = "postgres"
    options = PostgresOptions
    worker_modules = ("penstock.sinks.postgres.worker",)  # with numpy, pyarrow and psycopg

    def build(
        self, place: Place, describe: Describe, shared: TargetSession | None = None
    ) -> PostgresSink:
        """The driver half, unopened."""
        from penstock.sinks.postgres.sink import PostgresSink

        return PostgresSink(place.name, mappings_of(place), place.pipeline, describe, shared)

    def build_copying(self, place: Place) -> PostgresCopying:
        """What copies tables into the target, unopened."""
        from penstock.sinks.postgres.copy.copying import PostgresCopying

        return PostgresCopying(mappings_of(place), place.pipeline)

    def routed(self, options: PostgresOptions, routes: Routes) -> PostgresOptions:
        """Routes of `modifiers:` are targets of `tables:`."""
        from penstock.sinks.postgres.mapping.routed import with_routes

        return with_routes(options, routes)

    def build_shared(self, options: PostgresOptions) -> TargetSession:
        """The connections that the deliveries of all sources share."""
        from penstock.sinks.postgres.session import TargetSession

        return TargetSession(options.url)

    def faults(self, options: PostgresOptions) -> Iterator[Finding]:
        """What stands in the way of delivering there."""
        from penstock.sinks.postgres.preflight import check_target

        return map(Finding, check_target(options.url))

    def occupied(self, place: Place, tables: Sequence[TableName]) -> Sequence[Finding]:
        """Tables of the target's own that hold rows, and nobody has said that they are meant."""
        from penstock.sinks.postgres.mapping.adoption import find_occupied

        taken = find_occupied(mappings_of(place), tables)
        is_all = len(taken) == len(tables)
        return [Finding(each, "error" if is_all else "warning") for each in taken]

    def check(
        self, places: Mapping[str, Place], chosen: Mapping[str, ChosenTables]
    ) -> Iterator[Finding]:
        """What would keep tables from mapping, and what differs already."""
        from penstock.sinks.postgres.check import check_sink

        return check_sink(self, places, chosen)

    def statements(self, options: PostgresOptions) -> Statements:
        """Penstock's own tables at the target."""
        from penstock.sinks.postgres.state.objects import statements

        return Statements(str(options.url), f"{_SAFE}\n{statements().strip()}")

    def connections(self, options: PostgresOptions) -> Iterator[Dsn]:
        """The target."""
        yield options.url

    def creates_tables(self, options: PostgresOptions) -> bool:
        """Unless a person makes them."""
        return options.create_tables

    def read_status(self, places: Sequence[Place], parts: Sequence[SinkStatus]) -> None:
        """The truth about positions and tables is at the target."""
        from penstock.sinks.postgres.status import read_status

        read_status(places, parts)

    def sync_sequences(
        self, place: Place, structures: Collection[TableStructure]
    ) -> Sequence[SequencePosition]:
        """Let the target's sequences go on where the source's stand."""
        from penstock.sinks.postgres.connect import connect_target, target_errors
        from penstock.sinks.postgres.copy.sequences import sync_sequences
        from penstock.sinks.postgres.mapping.target_shape import target_structure

        mappings, url = mappings_of(place), place.options.url
        mapped = [
            target_structure(each, mappings.of(each.name), mappings.of) for each in structures
        ]
        with connect_target(url, "penstock sync-sequences") as connection, target_errors(url):
            return sync_sequences(connection, mapped, mappings.target)

    def parked(self, place: Place, wanted: Wanted = ALL) -> list[ParkedEntry]:
        """Rows of penstock.parked."""
        with self._parked_rows(place) as (rows, connection):
            return rows.entries(connection, wanted)

    def ask_parked(self, place: Place, action: str, ids: Collection[str]) -> None:
        """Note at the rows what is asked for."""
        with self._parked_rows(place) as (rows, connection):
            rows.ask(connection, action, ids)

    def drop_parked(self, place: Place, ids: Collection[str]) -> None:
        """Delete rows of penstock.parked."""
        with self._parked_rows(place) as (rows, connection):
            rows.drop(connection, ids)

    @contextmanager
    def _parked_rows(self, place: Place) -> Iterator[tuple[ParkedRows, psycopg.Connection[Any]]]:
        from penstock.sinks.postgres.connect import connect_target, target_errors
        from penstock.sinks.postgres.state.parked import ParkedRows

        url = place.options.url
        with connect_target(url, "penstock parked") as connection, target_errors(url):
            yield ParkedRows(place.pipeline, place.source_id), connection

    def forget(self, place: Place) -> list[str]:
        """Remove the source's position and staging tables."""
        from penstock.sinks.postgres.state.forget import forget_source

        return forget_source(place.options.url, place.pipeline, place.source_id)

    def forget_orphans(self, options: PostgresOptions, pipeline: str) -> dict[str, list[str]]:
        """Remove the same of sources that are not in the file any more."""
        from penstock.sinks.postgres.state.forget import forget_orphans

        return forget_orphans(options.url, pipeline)
