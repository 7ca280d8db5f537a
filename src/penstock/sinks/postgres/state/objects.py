"""penstock's own tables at a target: made once, brought up to date when a newer penstock comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors

from penstock.claims import wait_a_little
from penstock.errors import TargetObjectsForeign

if TYPE_CHECKING:
    from collections.abc import Iterable

    Connection = psycopg.Connection[Any]

_SCHEMA = "CREATE SCHEMA IF NOT EXISTS penstock;\n"

_TABLES = {
    "progress": """\
CREATE TABLE IF NOT EXISTS penstock.progress (
    pipeline text NOT NULL,
    source text NOT NULL,
    delivered_lsn pg_lsn NOT NULL,
    committed_at timestamptz,
    changes bigint NOT NULL DEFAULT 0,
    identity jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, source)
);
""",
    "tables": """\
CREATE TABLE IF NOT EXISTS penstock.tables (
    pipeline text NOT NULL,
    source text NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    state text NOT NULL,
    delivered_lsn pg_lsn,
    error text,
    filled boolean NOT NULL DEFAULT false,
    changed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, source, schema_name, table_name)
);
""",
    "ranges": """\
-- One row for each range of a copy that has arrived, written together with its rows.
CREATE TABLE IF NOT EXISTS penstock.ranges (
    pipeline text NOT NULL,
    source text NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    copy_id text NOT NULL,
    number integer NOT NULL,
    rows bigint NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (pipeline, source, schema_name, table_name, copy_id, number)
);
""",
    "types": """\
-- One row for each type of the source that was made or altered here: which one it is, and how it looked.
CREATE TABLE IF NOT EXISTS penstock.types (
    pipeline text NOT NULL,
    source text NOT NULL,
    source_oid bigint NOT NULL,
    oid oid NOT NULL,
    schema_name text NOT NULL,
    type_name text NOT NULL,
    made_by_us boolean NOT NULL,
    shape jsonb NOT NULL,
    PRIMARY KEY (pipeline, source, source_oid)
);
""",
    "sequences": """\
-- The same for sequences that no column owns.
CREATE TABLE IF NOT EXISTS penstock.sequences (
    pipeline text NOT NULL,
    source text NOT NULL,
    source_oid bigint NOT NULL,
    oid oid NOT NULL,
    schema_name text NOT NULL,
    sequence_name text NOT NULL,
    made_by_us boolean NOT NULL,
    shape jsonb NOT NULL,
    is_gone boolean NOT NULL DEFAULT false,
    PRIMARY KEY (pipeline, source, source_oid)
);
""",
    "schemas": """\
-- One row for each schema that was made here.
CREATE TABLE IF NOT EXISTS penstock.schemas (
    pipeline text NOT NULL,
    source text NOT NULL,
    oid oid NOT NULL,
    schema_name text NOT NULL,
    PRIMARY KEY (pipeline, source, oid)
);
""",
    "parked": """\
-- One row for each change that the target refused, and for those of its key that came after it.
CREATE TABLE IF NOT EXISTS penstock.parked (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    pipeline text NOT NULL,
    source text NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    commit_lsn pg_lsn NOT NULL,
    step integer NOT NULL,
    op text NOT NULL,
    key jsonb NOT NULL,
    old_key jsonb,
    row_values jsonb NOT NULL,
    reason text,
    request text,
    parked_at timestamptz NOT NULL DEFAULT now()
);
""",
}

_LATER_COLUMNS = {
    "needs_copy": "boolean NOT NULL DEFAULT false",
    "request": "text",  # what a person has asked for and nobody has begun: resync
    "copy_id": "text",  # which snapshot the rows come from
    "copy_way": "text",  # direct: into the table; aside: into a shadow table of penstock's, merged at the end
    "made_by_us": "boolean NOT NULL DEFAULT false",
    "ranges_total": "integer NOT NULL DEFAULT 0",
    "rows_copied": "bigint NOT NULL DEFAULT 0",
    "bytes_copied": "bigint NOT NULL DEFAULT 0",
    "attempts": "integer NOT NULL DEFAULT 0",
    "retry_at": "timestamptz",
    "snapshot_at": "timestamptz",
    "copied_at": "timestamptz",
    "foreign_keys_due": "boolean NOT NULL DEFAULT false",  # once the table streams
    "notes": "text",  # indexes and constraints that could not be made
    "source_oid": "bigint",  # the source's table, whatever it is called
    "shape": "jsonb",  # the shape of the source's table when this one last followed
    "shape_lsn": "pg_lsn",  # the position of that
    "mapping": "jsonb",  # names that this one did not follow
    "constraints_of": "jsonb",  # the shape whose constraints this one has, until a copy brings rows
    # What was other than the source's changes said, since it is known.
    "insert_exists": "bigint NOT NULL DEFAULT 0",
    "update_missing": "bigint NOT NULL DEFAULT 0",
    "delete_missing": "bigint NOT NULL DEFAULT 0",
    # The target's table that was made: another one of its name is somebody's own.
    "target_oid": "bigint",
    "names_due": "boolean NOT NULL DEFAULT false",  # objects wait for names that others have
}

# Two pipelines may start against a new target at once. Nothing is there yet that others could not lock,
# so who comes second fails, and finds it made.
_MADE_MEANWHILE = (
    errors.UniqueViolation,
    errors.DuplicateSchema,
    errors.DuplicateTable,
    errors.DuplicateObject,
)
_TRIES = 10

# And the first thing by which somebody else could act as the role that uses these tables.
_FOUND = """
WITH own_schema AS (SELECT oid, nspowner FROM pg_namespace WHERE nspname = 'penstock'),
own_tables AS (
    SELECT c.oid, c.relname, c.relowner, c.relkind, c.relrowsecurity
    FROM pg_class c JOIN own_schema s ON s.oid = c.relnamespace
    WHERE c.relname = ANY (%s)
)
SELECT EXISTS (SELECT FROM own_schema),
    ARRAY(SELECT relname::text FROM own_tables),
    ARRAY(SELECT attname::text FROM pg_attribute JOIN own_tables c ON c.oid = attrelid
          WHERE c.relname = 'tables' AND attnum > 0 AND NOT attisdropped),
    coalesce((SELECT pg_has_role(relowner, 'USAGE') FROM own_tables WHERE relname = 'tables'), true), (
    SELECT what FROM own_schema, LATERAL (
        SELECT format('schema penstock belongs to role %%I', rolname), 0 FROM pg_roles
        WHERE oid = nspowner AND NOT rolsuper AND rolname <> current_user
        UNION ALL
        SELECT format('penstock.%%I belongs to role %%I', relname, rolname), 1
        FROM own_tables JOIN pg_roles r ON r.oid = relowner
        WHERE NOT rolsuper AND rolname <> current_user
        UNION ALL
        SELECT format('penstock.%%I is no plain table', relname), 2 FROM own_tables
        WHERE relkind <> 'r'
        UNION ALL
        SELECT format('penstock.%%I has a trigger, %%I', relname, tgname), 3
        FROM own_tables c JOIN pg_trigger t ON t.tgrelid = c.oid WHERE NOT t.tgisinternal
        UNION ALL
        SELECT format('penstock.%%I has a rule, %%I', relname, rulename), 4
        FROM own_tables c JOIN pg_rewrite w ON w.ev_class = c.oid
        UNION ALL
        SELECT format('penstock.%%I has row-level security', relname), 5 FROM own_tables
        WHERE relrowsecurity
    ) AS found(what, rank) ORDER BY rank, what LIMIT 1)
"""


@dataclass(frozen=True)
class _Found:
    """What is there of penstock's."""

    has_schema: bool
    tables: frozenset[str]
    columns: frozenset[str]  # of penstock.tables
    may_alter: bool

    def missing(self) -> list[str]:
        """The SQL that makes what is not there, and names nothing that is.

        Postgres asks for the right to make something, or to alter it, before it looks whether that is needed.
        """
        found = [] if self.has_schema else [_SCHEMA]
        found += [text for name, text in _TABLES.items() if name not in self.tables]
        return found + self.missing_columns()

    def missing_columns(self) -> list[str]:
        """The part of it that only the table's owner may run."""
        columns = [name for name in _LATER_COLUMNS if name not in self.columns]
        return [_add_columns(columns)] if columns else []


def has_objects(connection: Connection) -> bool:
    """Whether penstock's tables are there, of this version or an older one.

    Raises:
        TargetObjectsForeign: somebody else's are.
    """
    return "progress" in _find_objects(connection).tables


def denied_statements(connection: Connection) -> list[str]:
    """The SQL that is missing still and that this role may not run, though it may create in the schema.

    Raises:
        TargetObjectsForeign: somebody else's objects are there.
    """
    found = _find_objects(connection)
    return [] if found.may_alter else found.missing_columns()


def make_objects(connection: Connection) -> None:
    """Make what is missing. A role that may only write need not be able to create what is there.

    Raises:
        TargetObjectsForeign: somebody else's are there, or came while these were made.
    """
    failure: psycopg.Error | None = None
    for _ in range(_TRIES):
        missing = _find_objects(connection).missing()
        if not missing:
            return
        try:
            with connection.transaction():
                connection.execute("".join(missing))
                _find_objects(connection)
        except _MADE_MEANWHILE as error:
            failure = error
            wait_a_little()
    if failure is not None:
        raise failure


def statements() -> str:
    """The SQL that makes everything, also where an older penstock has made a part of it."""
    return "".join((_SCHEMA, *_TABLES.values(), _add_columns(_LATER_COLUMNS)))


def _add_columns(names: Iterable[str]) -> str:
    added = ",\n".join(
        f"    ADD COLUMN IF NOT EXISTS {name} {_LATER_COLUMNS[name]}" for name in names
    )
    return f"ALTER TABLE penstock.tables\n{added};\n"


def _find_objects(connection: Connection) -> _Found:
    row = connection.execute(_FOUND, (list(_TABLES),)).fetchone()
    assert row is not None
    has_schema, tables, columns, may_alter, foreign = row
    if foreign is not None:
        raise TargetObjectsForeign(
            f"{foreign}: somebody else could then act as role {connection.info.user}",
            f"schema penstock of database {connection.info.dbname}",
            "find out who made it, and why; where it is right, let the sink's role or a superuser own"
            " schema penstock and its tables, and take triggers, rules and row-level security off them",
        )
    return _Found(has_schema, frozenset(tables), frozenset(columns), may_alter)
