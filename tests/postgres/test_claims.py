"""One session at a time, whatever roles do that have no part in it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg

from fix_postgres import only_new
from fix_subscription import ensure, rules
from penstock import claims
from penstock.claims import alone, holder_of, release, try_claim
from penstock.sinks.postgres.connect import connect_target
from penstock.sinks.postgres.state.objects import has_objects, make_objects
from penstock.sinks.postgres.state.progress import Progress

if TYPE_CHECKING:
    from fix_postgres import Database

pytestmark = only_new


def _as_role(database: Database, role: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(database.server.dsn(database.name, user=role), autocommit=True)


def test_claim_is_had_by_one_session_and_ends_with_it(source: Database) -> None:
    with source.connect() as one, source.connect() as other:
        key = try_claim(one, "shop")
        assert key is not None
        assert try_claim(one, "another") is not None

        assert try_claim(other, "shop") is None
        holder = holder_of(other, "shop")
        assert holder is not None
        assert holder.backend == one.info.backend_pid

        release(one, key)
        assert try_claim(other, "shop") is not None
        one.execute("SELECT pg_terminate_backend(%s)", (other.info.backend_pid,))
        with alone(one, "shop"):
            assert holder_of(one, "shop") is None


def test_role_that_may_only_connect_keeps_nobody_from_a_claim(
    source: Database, target: Database
) -> None:
    source.execute("CREATE ROLE stranger LOGIN; CREATE TABLE t (id int PRIMARY KEY)")
    with _as_role(source, "stranger") as there, _as_role(target, "stranger") as here:
        for connection, names in (
            (there, ("penstock subscription shop", "penstock tracking")),
            (here, ("penstock shop main", "penstock copy shop main")),
        ):
            for name in names:
                # As penstock itself would take it, and a good many of the keys besides.
                assert try_claim(connection, name) is not None
                connection.execute(
                    "SELECT pg_advisory_lock((%s::int8 << 16) | g) FROM generate_series(0, 999) g",
                    (claims._family(name),),
                )

        ensure(source, rules("public.t"))
        with connect_target(target.dsn, "penstock deliver") as connection:
            Progress("shop", "main").claim(connection, "target")


def test_session_of_a_role_that_may_act_as_ours_counts(target: Database) -> None:
    target.execute("CREATE ROLE sink LOGIN; CREATE ROLE operator LOGIN; GRANT sink TO operator")
    for other in ("operator", "postgres"):
        with _as_role(target, other) as theirs, _as_role(target, "sink") as ours:
            assert try_claim(theirs, "shop") is not None
            assert try_claim(ours, "shop") is None


def test_of_many_at_once_there_is_one_at_a_time_and_all_get_their_turn(source: Database) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        with source.connect() as connection:
            for _ in range(5):
                with alone(connection, "shop"):
                    inside.append(number)
                    connection.execute("SELECT pg_sleep(0.002)")
                    most.append(len(inside))
                    inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert most == [1] * 30


def test_pipelines_that_start_at_once_make_the_targets_objects_together(target: Database) -> None:
    failures: list[BaseException] = []
    ready = threading.Barrier(6)

    def work() -> None:
        try:
            with connect_target(target.dsn, "penstock deliver") as connection:
                ready.wait()
                make_objects(connection)
        except psycopg.Error as error:
            failures.append(error)

    for _ in range(5):
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures
        with target.connect() as connection:
            assert has_objects(connection)
        target.execute("DROP SCHEMA penstock CASCADE")
