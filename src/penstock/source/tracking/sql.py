"""The statements that put penstock's triggers, their secret and the log of versions on a source, and take
them off again.

One text, for `init` and for an admin alike. Safe to run again: it puts right what was altered.
"""

from __future__ import annotations

from penstock.source.tracking.documents import DOCUMENT_FUNCTIONS, Function
from penstock.source.tracking.events import EVENT_FUNCTIONS

# Goes up with every change of the functions or the table: an older penstock leaves newer ones alone.
TRACKING_VERSION = 11

FUNCTIONS = (*DOCUMENT_FUNCTIONS, *EVENT_FUNCTIONS)

# Event trigger, its event, its function.
EVENT_TRIGGERS = {
    "penstock_ddl_command_start": ("ddl_command_start", "on_ddl_command_start"),
    "penstock_ddl_command_end": ("ddl_command_end", "on_ddl_command_end"),
    "penstock_sql_drop": ("sql_drop", "on_sql_drop"),
}

# What earlier versions have made and this one does not. Each is of penstock's own schema.
_FORMER_FUNCTIONS = (
    "note_schemas(text[])",
    "note_schemas(text[], oid[])",
    "patched_document(text, jsonb, oid[])",
    "write_versions()",
    "sealed(jsonb)",
    "say(jsonb)",
    "tell(text, oid[], oid[], oid[], oid[], jsonb, jsonb, text)",
    "former_schemas(oid[])",
    "table_of_index(oid, text)",
    "describe(oid)",
    "sealed(text)",
    "index_columns(oid)",
    "column_sequences(oid, oid[], oid[])",
    "members(oid[])",
    "described(oid)",
    "own_xid()",
    "comments()",
    "tell(text, oid[], oid[], oid[], jsonb)",
    "release(oid[])",
    "release(oid)",
    "release_held()",
)

# Others cannot change a table, so that functions, views and grants cost nothing.
TAGS = (
    *("CREATE TABLE", "CREATE TABLE AS", "SELECT INTO", "ALTER TABLE"),
    *("CREATE INDEX", "ALTER INDEX", "COMMENT"),
    *("CREATE TYPE", "ALTER TYPE", "CREATE DOMAIN", "ALTER DOMAIN"),
    *("CREATE SEQUENCE", "ALTER SEQUENCE", "CREATE SCHEMA", "ALTER SCHEMA"),
)

# The tags for which an event's trigger fires; of an event that is not here, all.
TAGS_OF_EVENT = {"ddl_command_start": ("ALTER TABLE",), "ddl_command_end": TAGS}

# The functions run with the rights of who installs them. Whoever owns the schema, or something in it that
# they use, could put something else in its place. Asked first, so that nothing is made there, and once
# more at the end of the same transaction: between the first time and CREATE SCHEMA IF NOT EXISTS
# somebody else may have made it. What has been made in it by then keeps him from dropping it.
_OWNERS = """
DO $penstock$
DECLARE
    other record;
BEGIN
    SELECT x.what, pg_get_userbyid(x.owner) AS role INTO other FROM (
        SELECT 'schema penstock', nspowner FROM pg_namespace WHERE nspname = 'penstock'
        UNION ALL
        SELECT 'table penstock.' || relname, relowner FROM pg_class
        WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'penstock')
          AND relname IN ('schema_log', 'seal')
        UNION ALL
        SELECT 'function penstock.' || proname, proowner FROM pg_proc
        WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'penstock')
    ) AS x(what, owner)
    JOIN pg_roles r ON r.oid = x.owner WHERE r.rolname <> current_user AND NOT r.rolsuper LIMIT 1;
    IF FOUND THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('%s belongs to role %I, which could then act as role %I',
                             other.what, other.role, current_user),
            HINT = format('ALTER ... OWNER TO %I, or let %I install the triggers', current_user, other.role);
    END IF;
    -- A transaction that sees one moment alone does not see the row of what was made since.
    IF to_regnamespace('penstock') IS NOT NULL
       AND NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'penstock') THEN
        RAISE insufficient_privilege USING
            MESSAGE = 'schema penstock was made by somebody else at this moment',
            HINT = 'find out by whom, and begin again';
    END IF;
END
$penstock$;
"""

# Only penstock's own sessions use the log: a trigger writes nothing. Rows that an earlier version's
# triggers have written are whole, and anybody's.
_LOG = """
CREATE TABLE IF NOT EXISTS penstock.schema_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline text NOT NULL DEFAULT '',
    schema_name text NOT NULL,
    version bigint NOT NULL,
    schema jsonb NOT NULL,
    is_whole boolean NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT now(),
    acked boolean NOT NULL DEFAULT false,
    lsn pg_lsn
);
DO $penstock$
BEGIN
    IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'penstock.schema_log'::regclass
               AND attname = 'touched' AND NOT attisdropped) THEN
        DELETE FROM penstock.schema_log WHERE version IS NULL OR schema IS NULL;
        DROP TRIGGER IF EXISTS penstock_write_versions ON penstock.schema_log;
        ALTER TABLE penstock.schema_log
            DROP COLUMN touched CASCADE,
            DROP CONSTRAINT IF EXISTS schema_log_schema_name_version_key;
        DROP INDEX IF EXISTS penstock.schema_log_waiting;
    END IF;
END
$penstock$;
ALTER TABLE penstock.schema_log
    ADD COLUMN IF NOT EXISTS pipeline text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS is_whole boolean NOT NULL DEFAULT true;
CREATE UNIQUE INDEX IF NOT EXISTS schema_log_version
ON penstock.schema_log (pipeline, schema_name, version);
REVOKE ALL ON penstock.schema_log FROM PUBLIC;
"""

_SEAL = """
CREATE SCHEMA IF NOT EXISTS penstock;
CREATE TABLE IF NOT EXISTS penstock.seal (
    id boolean PRIMARY KEY DEFAULT true CHECK (id),
    secret bytea NOT NULL
);
INSERT INTO penstock.seal (secret)
SELECT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')
ON CONFLICT DO NOTHING;
REVOKE ALL ON penstock.seal FROM PUBLIC;
"""

_SEARCH_PATH = "search_path=pg_catalog, pg_temp"
# Values and expressions are spelled as every other session of penstock's reads them, whatever the user's
# session is set to; the functions' own literals have backslashes, which would be escapes in some. JIT would
# compile queries for longer than they run, and a plan for each call takes longer than what it plans. For the
# functions that are called from outside: the others run under the same.
_SETTINGS = {
    "jit=off",
    "plan_cache_mode=force_generic_plan",
    "DateStyle=ISO, MDY",
    "IntervalStyle=postgres",
    "TimeZone=UTC",
    "bytea_output=hex",
    "extra_float_digits=1",
    "lc_monetary=C",
    "quote_all_identifiers=off",
    "standard_conforming_strings=on",
    "xmloption=content",
}

LOG_COLUMNS = (
    *("id", "pipeline", "schema_name", "version", "schema", "is_whole"),
    *("created_at", "acked", "lsn"),
)


def signature(function: Function) -> str:
    """The function as DROP and GRANT name it."""
    return f"penstock.{function.name}({function.arguments})"


def settings_of(function: Function) -> set[str]:
    """What the function runs under, as the catalog spells it."""
    return {_SEARCH_PATH, *function.settings, *(_SETTINGS if function.is_definers else ())}


def function_stamp() -> str:
    """The comment of each function."""
    return f"penstock tracking {TRACKING_VERSION}"


def tracking_statements(role: str) -> str:
    """All of it, for `role` (quoted) to read the secret and to keep the log; to be run outside of a transaction.

    Who runs it must be allowed to create event triggers. The triggers fire in sessions of replicas
    too (ALWAYS): what those change in a followed table is changed like anything else.
    """
    return "".join(f"BEGIN;\n{step}COMMIT;\n" for step in tracking_steps(role))


def tracking_steps(role: str) -> tuple[str, str]:
    """The same in two transactions: what fires first, and then what no session uses by now.

    An earlier penstock's triggers wrote into the log, in users' transactions: to alter it under them would
    have everybody wait for those that are open.
    """
    first = [_OWNERS, _SEAL, *map(_create, FUNCTIONS), _drop_event_triggers()]
    first += [_event_trigger(name) for name in EVENT_TRIGGERS]
    first.append(_OWNERS)
    # A psql that was not told to stop goes on after a first one that failed.
    second = [_OWNERS, _LOG, _drop_former(), grant_statements(role)]
    return _joined(first), _joined(second)


def _joined(parts: list[str]) -> str:
    return "\n".join(part.strip() for part in parts) + "\n"


def grant_statements(role: str) -> str:
    """What a role needs that did not install the triggers itself."""
    return (
        f"GRANT USAGE ON SCHEMA penstock TO {role};\n"
        f"GRANT SELECT ON penstock.seal TO {role};\n"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON penstock.schema_log TO {role};\n"
        f"GRANT EXECUTE ON FUNCTION penstock.refresh_schema(text) TO {role};\n"
    )


def drop_steps() -> tuple[str, str]:
    """What takes all of it off, but for the schema, in which a target's tables may be.

    In two transactions: what nothing fires any more is nobody's to wait for.
    """
    functions = [f"DROP FUNCTION IF EXISTS {signature(each)};" for each in reversed(FUNCTIONS)]
    tables = "DROP TABLE IF EXISTS penstock.schema_log, penstock.seal;"
    return _drop_event_triggers(), _joined([tables, _drop_former(), *functions])


def _drop_former() -> str:
    return "\n".join(f"DROP FUNCTION IF EXISTS penstock.{each};" for each in _FORMER_FUNCTIONS)


def _drop_event_triggers() -> str:
    return "\n".join(f"DROP EVENT TRIGGER IF EXISTS {name};" for name in EVENT_TRIGGERS)


def _create(function: Function) -> str:
    settings = " ".join(map(_setting, sorted(settings_of(function))))
    security = " SECURITY DEFINER" if function.is_definers else ""
    return (
        f"CREATE OR REPLACE FUNCTION {signature(function)} RETURNS {function.returns}\n"
        f"LANGUAGE plpgsql{security} {settings} AS $penstock${function.body}$penstock$;\n"
        f"REVOKE ALL ON FUNCTION {signature(function)} FROM PUBLIC;\n"
        f"COMMENT ON FUNCTION {signature(function)} IS '{function_stamp()}';"
    )


def _setting(setting: str) -> str:
    name, _, value = setting.partition("=")
    return f"SET {name} = {value if name == 'search_path' else repr(value)}"


def _event_trigger(name: str) -> str:
    event, function = EVENT_TRIGGERS[name]
    tags = ", ".join(f"'{tag}'" for tag in TAGS_OF_EVENT.get(event, ()))
    when = f" WHEN TAG IN ({tags})" if tags else ""
    return (
        f"CREATE EVENT TRIGGER {name} ON {event}{when} EXECUTE FUNCTION penstock.{function}();\n"
        f"ALTER EVENT TRIGGER {name} ENABLE ALWAYS;"
    )
