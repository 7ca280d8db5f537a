"""Changes of tables, reported by the source's own event triggers: installed, checked, taken off.

Tiers: with `triggers` each DDL statement sends a message down the stream; without them, Relation
messages are all there is. What is installed is shared by all pipelines of a database. Versions of
schemas: `schemalog`. Connections must be in autocommit mode.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg.rows import namedtuple_row

from penstock.claims import alone
from penstock.errors import SourceError, SourcePrivilegeMissing, TrackingBroken
from penstock.source.connect import place_of, role_of, source_errors
from penstock.source.options import Tracking
from penstock.source.publication import OWNER_COUNTS, Stamp
from penstock.source.shapes import waiting_little
from penstock.source.tracking import sql as made
from penstock.source.tracking.sql import tracking_statements

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg

    Connection = psycopg.Connection[Any]

__all__ = [
    "TrackingState",
    "broken_tracking",
    "drop_tracking",
    "ensure_tracking",
    "has_log",
    "install_tracking",
    "read_seal",
    "read_tracking",
    "refresh_schemas",
    "tier_in_force",
    "tracking_statements",
]

_log = logging.getLogger(__name__)

_CLAIM = "penstock tracking"
# A migration that is under way has the secret in use.
_PATIENCE = "SET LOCAL lock_timeout = '30s'; SET LOCAL client_min_messages = warning"

_TABLES_OF_SCHEMAS = """
SELECT c.oid::int8 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = ANY (%s) AND c.relkind IN ('r', 'p')
"""
_REFRESH_ATTEMPTS = 6  # of some seconds each

# From the catalog: to_regclass() fails for who may not use the schema.
_FACTS = """
WITH own AS (
    SELECT n.oid AS home, max(c.oid) FILTER (WHERE c.relname = 'schema_log') AS log,
           max(c.oid) FILTER (WHERE c.relname = 'seal') AS seal
    FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind = 'r'
    WHERE n.nspname = 'penstock' GROUP BY n.oid
)
SELECT own.log IS NOT NULL AS has_log, own.seal IS NOT NULL AS has_seal,
       (SELECT coalesce(array_agg(attname::text), '{}') FROM pg_attribute
        WHERE attrelid = own.log AND attnum > 0 AND NOT attisdropped) AS log_columns,
       current_setting('event_triggers', true) AS event_triggers,
       NOT pg_is_in_recovery() AND (
           (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
           OR coalesce(pg_has_role(to_regrole('rds_superuser'), 'MEMBER'), false)) AS may_install,
       coalesce(has_schema_privilege(own.home, 'USAGE'), false) AS may_enter,
       coalesce(has_table_privilege(own.seal, 'SELECT'), false) AS may_read_seal,
       coalesce(has_table_privilege(own.log, 'SELECT') AND has_table_privilege(own.log, 'INSERT')
                AND has_table_privilege(own.log, 'UPDATE')
                AND has_table_privilege(own.log, 'DELETE'), false) AS may_use_log
FROM (VALUES (1)) AS one LEFT JOIN own ON true
"""

_FUNCTIONS = """
SELECT p.proname AS name, p.prosrc AS body, p.prosecdef AS is_definers,
       coalesce(p.proconfig, '{}') AS settings, obj_description(p.oid, 'pg_proc') AS stamp,
       has_function_privilege(p.oid, 'EXECUTE') AS may_call
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'penstock'
"""

_EVENT_TRIGGERS = """
SELECT e.evtname AS name, e.evtenabled::text AS enabled, e.evtevent AS event,
       format('%%s.%%s', n.nspname, p.proname) AS function, coalesce(e.evttags, '{}') AS tags
FROM pg_event_trigger e JOIN pg_proc p ON p.oid = e.evtfoid
JOIN pg_namespace n ON n.oid = p.pronamespace WHERE e.evtname = ANY (%s)
"""


@dataclass(frozen=True)
class TrackingState:
    """What is there. `is_installed`: a part of it at least; `problems`: what is not as it should be."""

    is_installed: bool
    problems: tuple[str, ...]
    may_install: bool

    @property
    def in_force(self) -> bool:
        """Whether every change of a table is reported."""
        return self.is_installed and not self.problems


def read_tracking(connection: Connection) -> TrackingState:
    """Check everything that `install_tracking` makes. Changes nothing."""
    facts = _facts(connection)
    with source_errors(connection), connection.cursor(row_factory=namedtuple_row) as cursor:
        functions = _by_name(cursor.execute(_FUNCTIONS).fetchall())
        names = list(made.EVENT_TRIGGERS)
        triggers = _by_name(cursor.execute(_EVENT_TRIGGERS, (names,)).fetchall())
    ours = [each for each in made.FUNCTIONS if each.name in functions]
    if not (facts.has_log or ours or triggers):
        return TrackingState(False, (), facts.may_install)
    problems = [] if facts.has_seal else ["the table penstock.seal is gone"]
    problems += [
        *_log_problems(facts),
        *_trigger_problems(triggers),
        *_function_problems(functions),
    ]
    if not problems:
        may_refresh = functions["refresh_schema"].may_call
        if not (facts.may_enter and facts.may_read_seal and facts.may_use_log and may_refresh):
            role = role_of(connection)
            grants = " ".join(made.grant_statements(role).split())
            problems.append(f"the role {role} may not use penstock.schema_log, wanted {grants}")
    if facts.event_triggers == "off":
        problems.append("the server's setting event_triggers is off, wanted on")
    return TrackingState(True, tuple(problems), facts.may_install)


def broken_tracking(connection: Connection) -> TrackingBroken | None:
    """What keeps a source from reporting its changes though it once did, or could; None if nothing.

    For a source that `init` has been at. A role that may not install triggers has none: no error.
    """
    state = read_tracking(connection)
    if state.in_force or not (state.is_installed or state.may_install):
        return None
    return TrackingBroken(
        "; ".join(state.problems) or "the event triggers and their log are gone",
        place_of(connection),
        "penstock init puts them right and describes every table anew; where the role may not,"
        " an admin runs what penstock init --print-sql prints",
    )


def tier_in_force(connection: Connection, wanted: Tracking) -> Tracking:
    """How changes of tables are noticed, or would be after `init`: what is wanted, or what there is."""
    if wanted is not Tracking.TRIGGERS:
        return wanted
    state = read_tracking(connection)
    possible = state.in_force or (state.may_install and not state.is_installed)
    return Tracking.TRIGGERS if possible else Tracking.RELATION


def install_tracking(connection: Connection, role: str) -> bool:
    """Make what is missing, put right what was altered; whether there was anything to do.

    Safe to repeat, and by several at once. `role` is quoted; it may read the log afterwards.

    Raises:
        SourcePrivilegeMissing: the connection's role may not; nothing has changed.
    """
    if read_tracking(connection).in_force:
        return False
    with source_errors(connection), alone(connection, _CLAIM):
        for step in made.tracking_steps(role):
            with connection.transaction():
                connection.execute(_PATIENCE)
                connection.execute(step)
    return True


def ensure_tracking(connection: Connection) -> bool:
    """`install_tracking` as `init` and `run` do it: where the role may not, with a warning."""
    try:
        return install_tracking(connection, role_of(connection))
    except SourcePrivilegeMissing as error:
        _log.warning(
            "changes of tables are reported by Relation messages alone, so that renames are not seen:"
            " %s; an admin runs what penstock init --print-sql prints, or set"
            " source.schema.tracking: relation",
            error.what,
        )
        return False


def drop_tracking(connection: Connection) -> list[str]:
    """Take it all off, unless a pipeline of this database is left; what was removed, in words.

    Raises:
        SourcePrivilegeMissing: another role has installed it; nothing has changed.
    """
    if not read_tracking(connection).is_installed or _has_pipelines(connection):
        return []
    removed = [f"event trigger {name}" for name in made.EVENT_TRIGGERS]
    removed += ["table penstock.schema_log", "table penstock.seal"]
    try:
        _run_drops(connection)
        with source_errors(connection), alone(connection, _CLAIM), connection.transaction():
            # The same database may be a target as well, whose tables are in the same schema.
            row = connection.execute(
                "SELECT NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = n.oid)"
                " AND NOT EXISTS (SELECT FROM pg_proc WHERE pronamespace = n.oid)"
                " FROM pg_namespace n WHERE n.nspname = 'penstock'"
            ).fetchone()
            if row is not None and row[0]:
                connection.execute("DROP SCHEMA penstock")
                removed.append("schema penstock")
    except SourcePrivilegeMissing as error:
        raise SourcePrivilegeMissing(
            f"{error.what}; the event triggers and schema penstock are still there",
            error.where,
            "let an admin run "
            + "; ".join(f"DROP EVENT TRIGGER {name}" for name in made.EVENT_TRIGGERS)
            + "; DROP SCHEMA penstock CASCADE",
        ) from None
    return removed


def _run_drops(connection: Connection) -> None:
    with source_errors(connection), alone(connection, _CLAIM):
        for step in made.drop_steps():
            with connection.transaction():
                connection.execute(_PATIENCE)
                connection.execute(step)


def refresh_schemas(connection: Connection, names: Iterable[str]) -> None:
    """Have the stream describe every table of these schemas as it is now.

    Raises:
        SourceError: one of them stays locked against readers; it is named.
    """
    schemas = sorted(set(names))
    query = "SELECT penstock.refresh_schema(name) FROM unnest(%s::text[]) AS name"
    for left in reversed(range(_REFRESH_ATTEMPTS)):
        try:
            with source_errors(connection):
                oids = [oid for (oid,) in connection.execute(_TABLES_OF_SCHEMAS, (schemas,))]
                with waiting_little(connection, oids):
                    connection.execute(query, (schemas,))
        except SourceError as error:
            if not left or connection.closed or type(error) is not SourceError:
                raise
            _log.warning("waiting to describe the tables: %s", error.what)
        else:
            return


def read_seal(connection: Connection) -> bytes | None:
    """What the triggers sign their messages with; None where there are none, or it is not to be read."""
    facts = _facts(connection)
    if not (facts.may_enter and facts.may_read_seal):
        return None
    with source_errors(connection):
        row = connection.execute("SELECT secret FROM penstock.seal").fetchone()
    return None if row is None else bytes(row[0])


def has_log(connection: Connection) -> bool:
    """Whether there is a log of versions, to be read and written."""
    facts = _facts(connection)
    columns = set(facts.log_columns or ())
    return bool(facts.may_enter and facts.may_use_log and columns >= set(made.LOG_COLUMNS))


def _facts(connection: Connection) -> Any:
    with source_errors(connection), connection.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(_FACTS).fetchone()


def _has_pipelines(connection: Connection) -> bool:
    query = (
        "SELECT obj_description(p.oid, 'pg_publication') FROM pg_publication p"
        f" WHERE p.pubname LIKE 'penstock\\_%' AND {OWNER_COUNTS}"
    )
    with source_errors(connection):
        rows = connection.execute(query).fetchall()
    return any(Stamp.parse(comment) is not None for (comment,) in rows)


def _by_name(rows: list[Any]) -> dict[str, Any]:
    return {row.name: row for row in rows}


def _log_problems(facts: Any) -> list[str]:
    if not facts.has_log:
        return ["the table penstock.schema_log is gone"]
    missing = [name for name in made.LOG_COLUMNS if name not in facts.log_columns]
    return [f"penstock.schema_log has no column {name}" for name in missing]


def _trigger_problems(triggers: dict[str, Any]) -> list[str]:
    problems = []
    for name, (event, function) in made.EVENT_TRIGGERS.items():
        found = triggers.get(name)
        if found is None:
            problems.append(f"the event trigger {name} is gone")
        elif found.enabled != "A":
            what = {"D": "disabled", "O": "not enabled ALWAYS", "R": "enabled for replicas alone"}
            problems.append(f"the event trigger {name} is {what.get(found.enabled, 'altered')}")
        elif (found.event, found.function) != (event, f"penstock.{function}"):
            problems.append(
                f"the event trigger {name} is on {found.event} and calls {found.function}"
            )
        elif not set(made.TAGS_OF_EVENT.get(event, ())) <= set(found.tags):
            problems.append(f"the event trigger {name} does not fire for all tags")
    return problems


def _function_problems(functions: dict[str, Any]) -> list[str]:
    """A newer penstock's functions are good as well."""
    if any(_stamped(row.stamp) > made.TRACKING_VERSION for row in functions.values()):
        return []
    problems = []
    for wanted in made.FUNCTIONS:
        found = functions.get(wanted.name)
        if found is None:
            problems.append(f"the function penstock.{wanted.name} is gone")
            continue
        same = (found.body, found.is_definers) == (wanted.body, wanted.is_definers)
        # A session with quote_all_identifiers had the path's names quoted when it made the function.
        settings = {setting.replace('"', "") for setting in found.settings}
        if not same or settings != made.settings_of(wanted):
            kind = "altered"
            if _stamped(found.stamp) < made.TRACKING_VERSION:
                kind = "of another penstock"
            problems.append(f"the function penstock.{wanted.name} is {kind}")
    return problems


def _stamped(comment: str | None) -> int:
    """The version in a function's comment; 0 when it carries none."""
    version = (comment or "").removeprefix("penstock tracking ")
    return int(version) if version.isdecimal() else 0
