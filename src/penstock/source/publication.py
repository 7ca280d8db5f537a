"""The publications of a subscription: their names, their stamp, their members, their statements.

There are two from the start, one for tables followed in full and one for tables followed for their
inserts. The second cannot be added later: pgoutput reads a publication as of the change it
decodes, and before version 18 fails for good on a change older than the publication.

The stamp is a comment: {"penstock": 1, "generation": uuid, "slot": name, "created_lsn": "0/…"}, and
the tables that people have added or removed since. Where event triggers track changes, `rules` are
those of the pipeline file, by which the triggers publish a table when it is created.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import sql
from psycopg.rows import namedtuple_row

from penstock.errors import BadValue, PublicationChanged
from penstock.lsn import Lsn
from penstock.source.connect import place_of, source_errors
from penstock.source.refusals import START_ANEW
from penstock.table import TableName, TableRule, TableRules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import psycopg

    Connection = psycopg.Connection[Any]

_STAMP_VERSION = 1
# 63 bytes for a name, less "penstock_", "_inserts" and the slot's "_" with 8 digits.
_LONGEST_NAME = 45

_RULE_LISTS = ("include", "exclude", "insert_only")

UPDATES = "insert, update, delete, truncate"
INSERTS = "insert"

# Anybody who may create publications can give one our name and a stamp, and its owner can alter it at
# any time. Owners that count: this role and those that it may act as, superusers, and who may read the
# seal. A superuser may act as anybody, which says nothing.
OWNER_COUNTS = """EXISTS (
    SELECT FROM pg_roles me, pg_roles owner
    WHERE me.rolname = current_user AND owner.oid = p.pubowner AND (
        owner.oid = me.oid OR owner.rolsuper
        OR NOT me.rolsuper AND pg_has_role(me.oid, owner.oid, 'USAGE')
        OR EXISTS (
            SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            JOIN pg_roles keeper ON keeper.oid = c.relowner
            WHERE n.nspname = 'penstock' AND c.relname = 'seal'
              AND (keeper.rolsuper OR keeper.oid = me.oid)
              AND has_table_privilege(owner.oid, c.oid, 'SELECT'))))"""

# One row for each publication and member; a publication without members gives one row.
# What a person may have added to a member (columns, row filter) exists from version 15 on.
_READ = f"""
SELECT p.pubname AS publication, pg_get_userbyid(p.pubowner) AS owner, {OWNER_COUNTS} AS owner_counts, obj_description(p.oid, 'pg_publication') AS stamp,
       concat_ws(', ', CASE WHEN pubinsert THEN 'insert' END, CASE WHEN pubupdate THEN 'update' END,
                 CASE WHEN pubdelete THEN 'delete' END, CASE WHEN pubtruncate THEN 'truncate' END)
           AS operations,
       p.pubviaroot AND NOT p.puballtables AS is_ours_in_form,
       r.oid AS entry, r.prrelid AS oid, n.nspname AS schema, c.relname AS name,
       coalesce(to_jsonb(r) ->> 'prqual', to_jsonb(r) ->> 'prattrs') IS NOT NULL AS is_narrowed
FROM pg_publication p
LEFT JOIN (pg_publication_rel r JOIN pg_class c ON c.oid = r.prrelid
           JOIN pg_namespace n ON n.oid = c.relnamespace) ON r.prpubid = p.oid
WHERE p.pubname = ANY (%s)
"""


class PublicationNames(NamedTuple):
    """The two publications of a pipeline, in the order in which the stream names them."""

    updates: str
    inserts: str


@dataclass(frozen=True)
class Stamp:
    """What the comment of both publications says."""

    generation: str
    slot: str
    created_lsn: Lsn | None  # None until the slot is known to exist
    # Single tables that a person has added or removed since, whatever the pipeline file says.
    added: frozenset[TableName] = frozenset()
    removed: frozenset[TableName] = frozenset()
    # Of the pipeline file, for the triggers; None when they are not to publish anything.
    rules: TableRules | None = None

    def adjust(self, rules: TableRules) -> TableRules:
        """The rules, as people have changed them since."""
        return replace(rules, added=self.added, removed=self.removed)

    def with_rules(self, rules: TableRules | None) -> Stamp:
        """The stamp that says what triggers publish."""
        bare = rules and TableRules(rules.include, rules.exclude, rules.insert_only)
        return replace(self, rules=bare)

    def with_created_lsn(self, lsn: Lsn) -> Stamp:
        """The stamp of a finished subscription."""
        return replace(self, created_lsn=lsn)

    def text(self) -> str:
        """The comment."""
        lsn = None if self.created_lsn is None else str(self.created_lsn)
        content: dict[str, object] = {
            "penstock": _STAMP_VERSION,
            "generation": self.generation,
            "slot": self.slot,
            "created_lsn": lsn,
        }
        for key, tables in (("added", self.added), ("removed", self.removed)):
            if tables:
                content[key] = sorted(tables)
        if self.rules is not None:
            content["rules"] = {
                key: _stamped_rules(getattr(self.rules, key)) for key in _RULE_LISTS
            }
        return json.dumps(content)

    @classmethod
    def parse(cls, text: str | None) -> Stamp | None:
        """The stamp in a comment, or None when the comment is not one of ours."""
        try:
            read = json.loads(text or "")
            if read["penstock"] != _STAMP_VERSION:
                return None
            lsn = read["created_lsn"]
            return cls(
                str(read["generation"]),
                str(read["slot"]),
                lsn and Lsn.parse(lsn),
                _tables(read.get("added", ())),
                _tables(read.get("removed", ())),
                _read_rules(read.get("rules")),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def _tables(pairs: Iterable[tuple[str, str]]) -> frozenset[TableName]:
    return frozenset(TableName(str(schema), str(name)) for schema, name in pairs)


def _stamped_rules(rules: Iterable[TableRule]) -> list[dict[str, str]]:
    """Each with the parts that it names; a part that stands for every name is left out."""
    parts = [{"schema": rule.schema, "name": rule.name} for rule in rules]
    return [{key: name for key, name in rule.items() if name is not None} for rule in parts]


def _read_rules(content: dict[str, list[dict[str, str]]] | None) -> TableRules | None:
    if content is None:
        return None
    include, exclude, insert_only = (
        tuple(TableRule(rule.get("schema"), rule.get("name")) for rule in content[key])
        for key in _RULE_LISTS
    )
    return TableRules(include, exclude, insert_only)


@dataclass(frozen=True)
class Publications:
    """Both publications as the catalog has them now; members by oid.

    `entries` distinguish one time that a table was a member from another: what happened between is not sent.
    """

    stamp: Stamp
    updates: Mapping[int, TableName]
    inserts: Mapping[int, TableName]
    entries: Mapping[int, tuple[int, ...]]


def publication_names(name: str) -> PublicationNames:
    """The names that the pipeline's name gives.

    Raises:
        BadValue: the name does not fit into the name of a slot.
    """
    allowed = name.isascii() and name.replace("_", "").isalnum() and name == name.lower()
    if not allowed or len(name) > _LONGEST_NAME:
        raise BadValue(
            f"name is {name!r}, wanted at most {_LONGEST_NAME} of a-z, 0-9 and _",
            do="give the pipeline another name",
        )
    return PublicationNames(f"penstock_{name}", f"penstock_{name}_inserts")


def slot_name(name: str, generation: str) -> str:
    """The slot that belongs to this generation of the pipeline."""
    return f"penstock_{name}_{generation[:8]}"


def read_publications(connection: Connection, name: str) -> Publications | None:
    """Both publications, or None when neither is there.

    Raises:
        PublicationChanged: one is missing, is not ours, or was altered by somebody else.
    """
    names = publication_names(name)
    with source_errors(connection), connection.cursor(row_factory=namedtuple_row) as cursor:
        rows: list[Any] = cursor.execute(_READ, (list(names),)).fetchall()
    if not rows:
        return None
    place = place_of(connection)
    updates = _one(rows, names.updates, UPDATES, place)
    inserts = _one(rows, names.inserts, INSERTS, place)
    stamp = updates[0]
    if stamp != inserts[0] or stamp.slot != slot_name(name, stamp.generation):
        raise PublicationChanged(
            "the stamps of the two publications differ, or name another pipeline's slot",
            f"{place} publication {names.updates}",
            START_ANEW,
        )
    entries: dict[int, tuple[int, ...]] = {}
    for row in rows:
        if row.oid is not None:
            entries[row.oid] = (*entries.get(row.oid, ()), row.entry)
    return Publications(stamp, updates[1], inserts[1], entries)


def _one(
    rows: list[Any], publication: str, operations: str, place: str
) -> tuple[Stamp, dict[int, TableName]]:
    mine = [row for row in rows if row.publication == publication]
    where = f"{place} publication {publication}"
    if not mine:
        raise PublicationChanged("the publication is gone", where, START_ANEW)
    stamp = Stamp.parse(mine[0].stamp)
    if stamp is None:
        raise not_stamped(publication, place)
    if not mine[0].owner_counts:
        raise of_another(publication, mine[0].owner, place)
    found = mine[0].operations if mine[0].is_ours_in_form else f"{mine[0].operations}, altered"
    narrowed = [str(TableName(row.schema, row.name)) for row in mine if row.is_narrowed]
    if found != operations or narrowed:
        filtered = f", with columns or rows left out of {', '.join(narrowed)}" if narrowed else ""
        raise PublicationChanged(
            f"the publication sends {found}{filtered}, wanted {operations} of whole tables by their root",
            where,
            START_ANEW,
        )
    return stamp, {row.oid: TableName(row.schema, row.name) for row in mine if row.oid is not None}


def not_stamped(publication: str, place: str) -> PublicationChanged:
    """The error for a publication of our name that we did not make."""
    return PublicationChanged(
        "the publication carries no stamp of penstock, so somebody else made it",
        f"{place} publication {publication}",
        f"DROP PUBLICATION {publication}; or give the pipeline another name",
    )


def of_another(publication: str, owner: str, place: str) -> PublicationChanged:
    """The error for a publication whose stamp somebody else may have written."""
    return PublicationChanged(
        f"the publication belongs to role {owner}, which could alter it at any time",
        f"{place} publication {publication}",
        f"if it is this pipeline's, ALTER PUBLICATION {publication} OWNER TO the role of source.url;"
        f" else DROP PUBLICATION {publication}",
    )


def left_behind(name: str, slot: str, place: str) -> PublicationChanged:
    """The error for a slot of ours whose publication is gone."""
    return PublicationChanged(
        f"the publication is gone, but its slot {slot} is still there",
        f"{place} publication {publication_names(name).updates}",
        START_ANEW,
    )


def create_statement(
    publication: str, operations: str, tables: Iterable[TableName]
) -> sql.Composed:
    """CREATE PUBLICATION."""
    listed = list(tables)
    members = sql.SQL(" FOR TABLE {}").format(_only(listed)) if listed else sql.SQL("")
    return sql.SQL(
        "CREATE PUBLICATION {}{} WITH (publish = {}, publish_via_partition_root = true)"
    ).format(sql.Identifier(publication), members, sql.Literal(operations))


def stamp_statement(publication: str, stamp: Stamp) -> sql.Composed:
    """COMMENT ON PUBLICATION."""
    return sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(
        sql.Identifier(publication), sql.Literal(stamp.text())
    )


def add_statement(publication: str, *tables: TableName) -> sql.Composed:
    """ALTER PUBLICATION … ADD TABLE."""
    return sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(
        sql.Identifier(publication), _only(tables)
    )


def drop_statement(publication: str, *tables: TableName) -> sql.Composed:
    """ALTER PUBLICATION … DROP TABLE."""
    return sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(
        sql.Identifier(publication), _only(tables)
    )


def lock_statement(*tables: TableName) -> sql.Composed:
    """LOCK TABLE, as ALTER PUBLICATION does it, but without waiting for any."""
    return sql.SQL("LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE NOWAIT").format(_only(tables))


def _only(tables: Iterable[TableName]) -> sql.Composed:
    """Children of an inheritance tree are tables of their own."""
    return sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(*name)) for name in tables)
