"""A publication with penstock's name and stamp that somebody else has made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fix_postgres import Database, only_new
from fix_subscription import ensure, follower, members, rules, slots, stamp_of
from penstock.errors import PublicationChanged
from penstock.source.connect import connect_source
from penstock.source.options import Tracking
from penstock.source.preflight import preflight
from penstock.source.subscription import drop_subscription, ensure_subscription, find_subscription
from penstock.source.tracking.install import drop_tracking, install_tracking, read_tracking

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = only_new


@pytest.fixture
def stranger(source: Database) -> Iterator[Database]:
    """The same database as a role that may create publications in it, and no more."""
    source.execute("CREATE ROLE stranger LOGIN")
    source.execute(f'GRANT CREATE ON DATABASE "{source.name}" TO stranger')

    class AsStranger(Database):
        @property
        def url(self) -> str:
            return self.server.dsn(self.name, user="stranger")

    yield AsStranger(source.server, source.name)
    source.execute("DROP OWNED BY stranger")


def _forge(stranger: Database, name: str) -> None:
    stamp = {
        "penstock": 1,
        "generation": "00000000-0000-4000-8000-000000000000",
        "slot": f"penstock_{name}_00000000",
        "created_lsn": "0/1",
        "rules": {"include": [{}], "exclude": [], "insert_only": []},
    }
    for each, operations in (
        (f"penstock_{name}", "insert, update, delete, truncate"),
        (f"penstock_{name}_inserts", "insert"),
    ):
        stranger.execute(
            f"CREATE PUBLICATION {each} WITH (publish = '{operations}',"
            f" publish_via_partition_root = true);"
            f"COMMENT ON PUBLICATION {each} IS '{json.dumps(stamp)}'"
        )


def test_trigger_publishes_no_table_in_a_publication_that_a_stranger_has_stamped(
    source: Database, stranger: Database
) -> None:
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    with connect_source(source.dsn) as connection:
        ensure_subscription(connection, "shop", rules("*.*"), Tracking.TRIGGERS)
    _forge(stranger, "evil")

    source.execute("CREATE TABLE salaries (id int PRIMARY KEY)")

    assert members(source, "penstock_evil") == []
    assert members(source) == ["public.a", "public.salaries"]


def test_trigger_takes_no_table_out_of_a_publication_that_a_stranger_has_made(
    source: Database, stranger: Database
) -> None:
    with connect_source(source.dsn) as connection:
        ensure_subscription(connection, "shop", rules("*.*"), Tracking.TRIGGERS)
    source.execute("GRANT CREATE ON SCHEMA public TO stranger")

    with stranger.connect(autocommit=False) as session:
        session.execute("CREATE TABLE own (id int PRIMARY KEY)")
        session.execute("CREATE PUBLICATION penstock_evil FOR TABLE own")
        session.execute("ALTER TABLE own DROP CONSTRAINT own_pkey")
        session.commit()

    assert members(source, "penstock_evil") == ["public.own"]
    assert members(source) == []


@pytest.mark.parametrize("is_superuser", [True, False])
def test_subscription_that_a_stranger_has_stamped_is_refused_and_stays_as_it_is(
    source: Database, stranger: Database, is_superuser: bool
) -> None:
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    ours = source if is_superuser else follower(source)
    if not is_superuser:
        source.execute("ALTER TABLE a OWNER TO follower")
    _forge(stranger, "shop")
    before = stamp_of(source)

    with connect_source(ours.dsn) as connection:
        for refuses in (
            lambda: find_subscription(connection, "shop"),
            lambda: ensure_subscription(connection, "shop", rules("public.a")),
            lambda: drop_subscription(connection, "shop"),
        ):
            with pytest.raises(PublicationChanged, match="belongs to role stranger"):
                refuses()

    [finding] = [
        each for each in preflight(ours.dsn, rules("public.a"), "shop") if each.severity == "error"
    ]
    assert "belongs to role stranger" in finding.what
    assert stamp_of(source) == before
    assert members(source) == []
    assert slots(source) == []


def test_triggers_are_taken_off_whatever_a_stranger_has_stamped(
    source: Database, stranger: Database
) -> None:
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    with connect_source(source.dsn) as connection:
        ensure_subscription(connection, "shop", rules("*.*"), Tracking.TRIGGERS)
        _forge(stranger, "evil")
        drop_subscription(connection, "shop")
        assert drop_tracking(connection)
        assert not read_tracking(connection).is_installed


def test_subscription_of_a_role_is_found_by_an_admin_who_has_installed_its_triggers(
    source: Database,
) -> None:
    source.execute("CREATE TABLE a (id int PRIMARY KEY)")
    ours = follower(source)
    source.execute("ALTER TABLE a OWNER TO follower")
    ensure(ours, rules("public.a"))
    with connect_source(source.dsn) as connection:
        with pytest.raises(PublicationChanged, match="belongs to role follower"):
            find_subscription(connection, "shop")
        install_tracking(connection, "follower")
        assert find_subscription(connection, "shop") is not None
