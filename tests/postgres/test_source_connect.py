"""A source that cannot be reached or refuses: one clear error each, and never a secret in it."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from fix_subscription import ALL, rules
from penstock import errors
from penstock.dsn import Dsn, connect
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.source.connect import classify_source_error, connect_source
from penstock.source.options import Tracking
from penstock.source.preflight import preflight

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fix_postgres import Database

CANARY = "canary-s3cret/&%"


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedPostgres]:
    """A server that asks for a password, which is the canary."""
    with EmbeddedPostgres(password=CANARY) as server:
        yield server


def url(host: str, port: int, database: str = "postgres", user: str = "postgres") -> str:
    return f"postgresql://{user}:{quote(CANARY, safe='')}@{host}:{port}/{database}"


def refused(text: str) -> errors.PenstockError:
    """The error for this URL, which must not show its password, nor its chain."""
    started = time.monotonic()
    with pytest.raises(errors.PenstockError) as caught:
        connect_source(Dsn.parse(text))
    assert time.monotonic() - started < 15
    [finding] = preflight(Dsn.parse(text), rules(*ALL), "shop")
    assert (finding.code, finding.what) == (caught.value.code, caught.value.what)
    for shown in (str(caught.value), repr(caught.value), repr(finding)):
        assert CANARY not in shown
        assert quote(CANARY, safe="") not in shown
    assert caught.value.__cause__ is None
    assert caught.value.where
    assert caught.value.do
    return caught.value


def test_wrong_password(guarded: EmbeddedPostgres):
    text = guarded.dsn().replace(quote(CANARY, safe=""), quote(CANARY + "x", safe=""))

    error = refused(text)

    assert isinstance(error, errors.SourceLoginRefused)
    assert "password authentication failed" in error.what


def test_no_password(guarded: EmbeddedPostgres):
    error = refused(f"postgresql://postgres@127.0.0.1:{guarded.port}/postgres")

    assert isinstance(error, errors.SourceLoginRefused)


def test_unknown_role(guarded: EmbeddedPostgres):
    assert isinstance(
        refused(url("127.0.0.1", guarded.port, user="nobody")), errors.SourceLoginRefused
    )


def test_encryption_that_the_server_does_not_offer(guarded: EmbeddedPostgres):
    error = refused(url("127.0.0.1", guarded.port) + "?sslmode=require")

    assert isinstance(error, errors.SourceLoginRefused)
    assert "encryption" in error.what


def test_database_that_does_not_exist(guarded: EmbeddedPostgres):
    error = refused(url("127.0.0.1", guarded.port, "nothing"))

    assert isinstance(error, errors.SourceDatabaseMissing)
    assert error.where == f"127.0.0.1:{guarded.port}/nothing"


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]

    error = refused(url("127.0.0.1", port))

    assert type(error) is errors.SourceError
    assert "refused" in error.what


def test_host_that_does_not_exist():
    error = refused(url("no-such-host.invalid", 5432))

    assert type(error) is errors.SourceError


def test_host_that_does_not_answer_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        text = url("127.0.0.1", silent.getsockname()[1])
        assert "connect_timeout=10" in Dsn.parse(text).for_session("x")

        error = refused(text + "?connect_timeout=2")

    assert type(error) is errors.SourceError


def test_host_called_pgbouncer_that_is_away_is_no_pooler():
    error = refused(url("pgbouncer.invalid", 6432, "bouncer"))

    assert type(error) is errors.SourceError


def test_password_equal_to_a_part_of_the_message_is_not_shown(guarded: EmbeddedPostgres):
    dsn = Dsn.parse(f"postgresql://postgres:authentication@127.0.0.1:{guarded.port}/postgres")

    with pytest.raises(errors.SourceLoginRefused) as caught:
        connect_source(dsn)

    assert "authentication" not in str(caught.value)


def test_values_of_rows_are_not_shown(source: Database):
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    with connect_source(source.dsn) as connection:
        for statement in ("INSERT INTO public.a VALUES ('secret')", "SELECT 'secret'::int"):
            with pytest.raises(psycopg.Error) as caught:
                connection.execute(statement)
            error = classify_source_error(caught.value, source.dsn)
            assert "22P02" in error.what
            assert "secret" not in str(error)


def test_ended_session_is_fixed_by_time(source: Database):
    connection = connect_source(source.dsn)
    source.execute("SELECT pg_terminate_backend(%s)", connection.info.backend_pid)
    with pytest.raises(psycopg.Error) as caught:
        connection.execute("SELECT 1")
    first = classify_source_error(caught.value, connection)
    with pytest.raises(psycopg.Error) as caught:
        connection.execute("SELECT 1")
    second = classify_source_error(caught.value, connection)

    assert type(first) is type(second) is errors.SourceError
    assert first.remedy is errors.Remedy.TIME


def test_errors_that_are_no_errors_of_psycopg(source: Database):
    already = errors.SlotLost("x")

    assert classify_source_error(already, source.dsn) is already
    assert type(classify_source_error(ConnectionResetError(), source.dsn)) is errors.SourceError
    assert type(classify_source_error(KeyError("v"), source.dsn)) is errors.PenstockError


def test_service_alone_connects(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = conninfo_to_dict(source.url)
    wanted = {
        key: parts[key] for key in ("host", "port", "user", "dbname", "password") if key in parts
    }
    lines = ["[shop]", *(f"{key}={value}" for key, value in wanted.items())]
    (tmp_path / "services").write_text("\n".join(lines))
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    dsn = Dsn.parse("service=shop")

    with connect_source(dsn) as connection:
        found = connection.execute("SELECT current_database()::text").fetchone()
    faults = preflight(dsn, rules(*ALL), "shop", Tracking.TRIGGERS)

    assert found == (source.name,)
    assert not [each for each in faults if each.severity == "error"]


@pytest.mark.parametrize("replication", [False, True])
def test_settings_of_a_session_win_over_all_that_others_have_set(
    source: Database, monkeypatch: pytest.MonkeyPatch, replication: bool
) -> None:
    source.execute("CREATE ROLE odd LOGIN SUPERUSER")
    for whose in ("ROLE odd", f'DATABASE "{source.name}"', f'ROLE odd IN DATABASE "{source.name}"'):
        source.execute(f"ALTER {whose} SET search_path = public, pg_catalog")
        source.execute(f"ALTER {whose} SET row_security = on; ALTER {whose} SET jit = on")
    monkeypatch.setenv("PGOPTIONS", "-c search_path=public")
    url = source.server.dsn(source.name, user="odd")
    dsn = Dsn.parse(f"{url}?options=-c%20search_path%3Dpublic%20-c%20work_mem%3D1MB")
    query = "SELECT current_setting(n) FROM unnest(%s::text[]) AS n"
    names = ["search_path", "row_security", "jit", "work_mem"]

    with connect(dsn, "test", replication=replication) as connection:
        # A walsender knows the simple protocol alone.
        cursor = psycopg.ClientCursor(connection)
        found = [cursor.execute(query, (names,)).fetchall()]
        for statement in ("RESET ALL", "DISCARD ALL"):
            connection.execute(statement.encode())
            found.append(cursor.execute(query, (names,)).fetchall())

    assert found == [[("pg_catalog,pg_temp",), ("off",), ("off",), ("1MB",)]] * 3


def test_settings_are_there_where_a_pooler_leaves_the_options_out(
    source: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.execute(f'ALTER DATABASE "{source.name}" SET search_path = public, pg_catalog')
    monkeypatch.setattr("penstock.dsn._AS_OPTIONS", "")

    with connect(source.dsn, "test", autocommit=False) as connection:
        connection.rollback()
        found = connection.execute("SHOW search_path").fetchone()

    assert found == ("pg_catalog,pg_temp",)
