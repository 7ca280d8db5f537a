"""Real Postgres servers and databases for tests.

`pg_new` and `pg_15` are servers for the whole run. `source` and `target` are fresh databases for one
test, both on `server`, which runs the test once on each version; `only_new` and `only_15` narrow
that for tests that are slow or about one version. A test that stops a server takes `two_servers` or
`make_server`, whose servers are its own.
"""

from __future__ import annotations

import itertools
import platform
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import psycopg
import pytest
from psycopg import sql

from fix_machine import memory_disk, missing
from fix_sessions import close_sessions, shared_session
from fix_wait import wait_until
from penstock.dsn import Dsn
from penstock.embedded.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

only_new = pytest.mark.parametrize("server", ["new"], indirect=True)
only_15 = pytest.mark.parametrize("server", ["15"], indirect=True)

# Little WAL is kept for the next segments, since it may be kept in memory.
# What tests ask of a catalog is long and asked once: to compile it took a fifth of the time.
_SETTINGS = {"max_prepared_transactions": "20", "max_wal_size": "256MB", "jit": "off"}
_ZONKY = "io.zonky.test.postgres:embedded-postgres-binaries-{platform}:{version}"
_ZONKY_PLATFORMS = {
    ("Linux", "x86_64"): "linux-amd64",
    ("Linux", "aarch64"): "linux-arm64v8",
    ("Darwin", "x86_64"): "darwin-amd64",
    ("Darwin", "arm64"): "darwin-arm64v8",
}
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Database:
    """One database of a test.

    `execute` and `query` share a session, for to connect costs the server more than most statements;
    it is as new each time, and restarts do no harm.
    """

    server: EmbeddedPostgres
    name: str

    @property
    def url(self) -> str:
        """A URL of the superuser."""
        return self.server.dsn(self.name)

    @property
    def dsn(self) -> Dsn:
        """The same as penstock's own type."""
        return Dsn.parse(self.url)

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection[Any]:
        """A connection, for tests that need a session or an open transaction."""
        return psycopg.connect(self.url, autocommit=autocommit)

    def execute(self, statement: str, *args: object) -> None:
        """Run SQL; without arguments it may be several statements and may hold %."""
        with shared_session(self.url, statement) as connection:
            connection.execute(statement, args or None)

    def query(self, statement: str, *args: object) -> list[tuple[Any, ...]]:
        """All rows of one statement."""
        with shared_session(self.url, statement) as connection:
            return connection.execute(statement, args or None).fetchall()

    def value(self, statement: str, *args: object) -> Any:
        """The first column of the first row."""
        return self.query(statement, *args)[0][0]


class TwoServers(NamedTuple):
    """A source and a target that can be stopped one without the other."""

    source: Database
    target: Database


class MakeServer(Protocol):
    """What `make_server` gives: a started server of the test's own."""

    def __call__(
        self,
        version: str = "new",
        settings: Mapping[str, str] | None = None,
        password: str | None = None,
    ) -> EmbeddedPostgres: ...


class MakeDatabase(Protocol):
    """What `make_database` gives: a new database that is dropped after the test."""

    def __call__(self, server: EmbeddedPostgres, prefix: str = "test") -> Database: ...


def create_database(server: EmbeddedPostgres, prefix: str) -> Database:
    """A new, empty database with a name that no other test has."""
    name = f"{prefix}_{next(_numbers)}"
    Database(server, "postgres").execute(f'CREATE DATABASE "{name}"')
    return Database(server, name)


def drop_database(database: Database) -> None:
    """Remove the database with all that would keep it: sessions, slots, prepared transactions."""
    close_sessions(database.url)
    with shared_session(Database(database.server, "postgres").url, "") as admin:
        _free(admin, database)
        name = sql.Identifier(database.name)
        admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        wait_until(
            lambda: _has_no_slots(admin, database.name),
            what=f"the slots of {database.name} to be free",
        )
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
        roles = admin.execute(
            "SELECT rolname FROM pg_roles WHERE rolname <> 'postgres' AND rolname NOT LIKE 'pg\\_%'"
        )
        for (role,) in roles.fetchall():
            try:
                admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
            except psycopg.errors.DependentObjectsStillExist:
                continue  # it owns something in the test's other database, dropped next


def _free(admin: psycopg.Connection[Any], database: Database) -> None:
    """Undo what only a session of the database itself can undo."""
    subscriptions = admin.execute(
        "SELECT subname FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid"
        " WHERE datname = %s",
        (database.name,),
    )
    for (subscription,) in subscriptions.fetchall():
        for action in ("DISABLE", "SET (slot_name = NONE)"):
            _run(database, f"ALTER SUBSCRIPTION {{}} {action}", subscription)
        _run(database, "DROP SUBSCRIPTION {}", subscription)
    prepared = admin.execute(
        "SELECT gid FROM pg_prepared_xacts WHERE database = %s", (database.name,)
    )
    for (gid,) in prepared.fetchall():
        database.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)).as_string())
    close_sessions(database.url)


def _has_no_slots(admin: psycopg.Connection[Any], name: str) -> bool:
    # Again and again: a follower under test may reconnect between our two statements.
    admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
    )
    admin.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        " WHERE database = %s AND NOT active",
        (name,),
    )
    left = admin.execute("SELECT 1 FROM pg_replication_slots WHERE database = %s", (name,))
    return not left.fetchall()


def _run(database: Database, statement: str, name: str) -> None:
    database.execute(sql.SQL(statement).format(sql.Identifier(name)).as_string())


def bin_dir_of_15(download_dir: Path) -> Path:
    """Debian's Postgres 15, else the one published for Java tests, else no test."""
    debian = Path("/usr/lib/postgresql/15/bin")
    if (debian / "postgres").exists():
        return debian
    suffix = _ZONKY_PLATFORMS.get((platform.system(), platform.machine()))
    maven = shutil.which("mvn")
    if suffix is None or maven is None:
        missing(
            "no /usr/lib/postgresql/15, and no mvn (or no binaries for this machine) to fetch it with"
        )
    artifact = _ZONKY.format(platform=suffix, version="15.19.0")
    command = [maven, "-q", "-B", "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"]
    command += [f"-Dartifact={artifact}:jar", f"-DoutputDirectory={download_dir}"]
    done = subprocess.run(
        command, cwd=download_dir, capture_output=True, text=True, timeout=180, check=False
    )
    if done.returncode != 0:
        missing(f"mvn cannot fetch {artifact}: {done.stdout.strip()[-300:]}")
    [jar] = download_dir.glob("*.jar")
    with zipfile.ZipFile(jar) as archive:
        [inner] = [name for name in archive.namelist() if name.endswith(".txz")]
        with archive.open(inner) as packed, tarfile.open(fileobj=packed, mode="r:xz") as tree:
            # An attribute, not the argument of extractall: Python 3.11.2 does not know that one.
            tree.extraction_filter = lambda member, _path: member
            tree.extractall(download_dir / "pg15")
    return download_dir / "pg15" / "bin"


@pytest.fixture(scope="session")
def pg_new() -> Iterator[EmbeddedPostgres]:
    """The newest Postgres, from the wheel, for the whole run."""
    with EmbeddedPostgres(settings=_SETTINGS, place=memory_disk()) as server:
        yield server


@pytest.fixture(scope="session")
def pg_15_bin_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of Postgres 15."""
    return bin_dir_of_15(tmp_path_factory.mktemp("pg15"))


@pytest.fixture(scope="session")
def pg_15(pg_15_bin_dir: Path) -> Iterator[EmbeddedPostgres]:
    """A Postgres 15, for the whole run."""
    place = memory_disk()
    with EmbeddedPostgres(bin_dir=pg_15_bin_dir, settings=_SETTINGS, place=place) as server:
        yield server


@pytest.fixture(params=["15", "new"])
def server(request: pytest.FixtureRequest) -> EmbeddedPostgres:
    """The server of `source` and `target`: one test on each version."""
    found: EmbeddedPostgres = request.getfixturevalue(f"pg_{request.param}")
    return found


@pytest.fixture
def make_database() -> Iterator[MakeDatabase]:
    """Makes databases that are dropped after the test."""
    made: list[Database] = []

    def make(server: EmbeddedPostgres, prefix: str = "test") -> Database:
        made.append(create_database(server, prefix))
        return made[-1]

    yield make
    for database in reversed(made):
        if database.server.pid is not None:
            drop_database(database)


@pytest.fixture
def source(server: EmbeddedPostgres, make_database: MakeDatabase) -> Database:
    """A fresh database to follow."""
    return make_database(server, "source")


@pytest.fixture
def target(server: EmbeddedPostgres, make_database: MakeDatabase) -> Database:
    """A fresh database to deliver to, on the same server as `source`."""
    return make_database(server, "target")


@pytest.fixture
def make_server(request: pytest.FixtureRequest) -> Iterator[MakeServer]:
    """Makes servers for one test, which may stop, kill and restart them."""
    made: list[EmbeddedPostgres] = []

    def make(
        version: str = "new",
        settings: Mapping[str, str] | None = None,
        password: str | None = None,
    ) -> EmbeddedPostgres:
        bin_dir = request.getfixturevalue("pg_15_bin_dir") if version == "15" else None
        merged = {**_SETTINGS, **(settings or {})}
        place = memory_disk()
        made.append(
            EmbeddedPostgres(bin_dir=bin_dir, settings=merged, password=password, place=place)
        )
        made[-1].start()
        return made[-1]

    yield make
    close_sessions()
    for server in made:
        server.close()


@pytest.fixture
def two_servers(make_server: MakeServer) -> TwoServers:
    """A source and a target, each on a server of its own."""
    return TwoServers(
        create_database(make_server(), "source"), create_database(make_server(), "target")
    )
