"""What tests about subscriptions ask of a source: make one, poll it, list what is there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fix_postgres import Database
from penstock.source.connect import connect_source
from penstock.source.subscription import Subscription, ensure_subscription, update_membership
from penstock.table import TableName, TableRule, TableRules

if TYPE_CHECKING:
    from penstock.source.subscription import MembershipChange

ALL = ("*.*",)


def rules(
    *include: str, exclude: tuple[str, ...] = (), insert_only: tuple[str, ...] = ()
) -> TableRules:
    def parsed(texts: tuple[str, ...]) -> tuple[TableRule, ...]:
        return tuple(TableRule.parse(text) for text in texts)

    return TableRules(parsed(include), parsed(exclude), parsed(insert_only))


def ensure(source: Database, chosen: TableRules, name: str = "shop") -> Subscription:
    with connect_source(source.dsn) as connection:
        return ensure_subscription(connection, name, chosen)


def poll(source: Database, subscription: Subscription, chosen: TableRules) -> MembershipChange:
    with connect_source(source.dsn) as connection:
        return update_membership(connection, subscription, chosen)


def members(source: Database, publication: str = "penstock_shop") -> list[str]:
    rows = source.query(
        "SELECT n.nspname, c.relname FROM pg_publication p"
        " JOIN pg_publication_rel r ON r.prpubid = p.oid JOIN pg_class c ON c.oid = r.prrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = %s",
        publication,
    )
    return sorted(str(TableName(*row)) for row in rows)


def slots(source: Database) -> list[str]:
    query = "SELECT slot_name FROM pg_replication_slots WHERE database = %s ORDER BY 1"
    return [name for (name,) in source.query(query, source.name)]


def publications(source: Database) -> list[str]:
    return [name for (name,) in source.query("SELECT pubname FROM pg_publication ORDER BY 1")]


def stamp_of(source: Database) -> dict[str, Any]:
    text = source.value(
        "SELECT obj_description(oid, 'pg_publication') FROM pg_publication"
        " WHERE pubname = 'penstock_shop'"
    )
    found: dict[str, Any] = json.loads(text)
    return found


def follower(source: Database, *, replication: str = "REPLICATION") -> Database:
    """The same database as a role that owns nothing but what it is given."""
    source.execute(f"CREATE ROLE follower LOGIN {replication}")
    source.execute(f'GRANT CREATE ON DATABASE "{source.name}" TO follower')

    class AsFollower(Database):
        @property
        def url(self) -> str:
            return self.server.dsn(self.name, user="follower")

    return AsFollower(source.server, source.name)
