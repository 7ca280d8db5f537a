"""The statements that put penstock's triggers and their log on a source, and take them off again.

One text, for `init` and for an admin alike. Safe to run again: it puts right what was altered.
"""

from __future__ import annotations

from penstock.source.tracking_documents import DOCUMENT_FUNCTIONS, Function
from penstock.source.tracking_events import EVENT_FUNCTIONS

# Goes up with every change of the functions or the table: an older penstock leaves newer ones alone.
TRACKING_VERSION = 3

FUNCTIONS = (*DOCUMENT_FUNCTIONS, *EVENT_FUNCTIONS)

# Event trigger, its event, its function.
EVENT_TRIGGERS = {
    "penstock_ddl_command_end": ("ddl_command_end", "on_ddl_command_end"),
    "penstock_sql_drop": ("sql_drop", "on_sql_drop"),
}
VERSION_TRIGGER = "penstock_write_versions"

# Others cannot change a table, so that functions, views and grants cost nothing.
TAGS = (
    *("CREATE TABLE", "CREATE TABLE AS", "SELECT INTO", "ALTER TABLE"),
    *("CREATE INDEX", "ALTER INDEX", "COMMENT"),
    *("CREATE TYPE", "ALTER TYPE", "CREATE DOMAIN", "ALTER DOMAIN"),
    *("CREATE SEQUENCE", "ALTER SEQUENCE", "CREATE SCHEMA", "ALTER SCHEMA"),
)

# The functions run with the rights of who installs them. Whoever owns the schema, or something in it that
# they use, could put something else in its place.
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
END
$penstock$;
"""

_TABLE = """
CREATE SCHEMA IF NOT EXISTS penstock;
CREATE TABLE IF NOT EXISTS penstock.schema_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    version bigint,
    schema_name text NOT NULL,
    schema jsonb,
    created_at timestamptz NOT NULL DEFAULT now(),
    acked boolean NOT NULL DEFAULT false,
    lsn pg_lsn,
    touched oid[],
    UNIQUE (schema_name, version)
);
ALTER TABLE penstock.schema_log ADD COLUMN IF NOT EXISTS touched oid[];
CREATE INDEX IF NOT EXISTS schema_log_waiting ON penstock.schema_log (schema_name) WHERE version IS NULL;
CREATE INDEX IF NOT EXISTS schema_log_barriers ON penstock.schema_log (lsn)
WHERE version IS NOT NULL AND touched IS NOT NULL;
CREATE TABLE IF NOT EXISTS penstock.seal (
    id boolean PRIMARY KEY DEFAULT true CHECK (id),
    secret bytea NOT NULL
);
DROP FUNCTION IF EXISTS penstock.note_schemas(text[]);
INSERT INTO penstock.seal (secret)
SELECT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')
ON CONFLICT DO NOTHING;
REVOKE ALL ON penstock.schema_log, penstock.seal FROM PUBLIC;
"""

# Values and expressions are spelled as every other session of penstock's reads them, whatever the user's
# session is set to. JIT would compile the large queries for longer than they run.
_SETTINGS = {
    "search_path=pg_catalog, pg_temp",
    "jit=off",
    "DateStyle=ISO, MDY",
    "IntervalStyle=postgres",
    "TimeZone=UTC",
    "bytea_output=hex",
    "extra_float_digits=1",
    "lc_monetary=C",
    "quote_all_identifiers=off",
    "xmloption=content",
}

LOG_COLUMNS = ("id", "version", "schema_name", "schema", "created_at", "acked", "lsn", "touched")


def signature(function: Function) -> str:
    """The function as DROP and GRANT name it."""
    return f"penstock.{function.name}({function.arguments})"


def settings_of(function: Function) -> set[str]:
    """What the function runs under, as the catalog spells it."""
    return _SETTINGS | ({function.settings} if function.settings else set())


def function_stamp() -> str:
    """The comment of each function."""
    return f"penstock tracking {TRACKING_VERSION}"


def tracking_statements(role: str) -> str:
    """All of it, for `role` (quoted) to read the log, and to mark in it what was delivered.

    Who runs it must be allowed to create event triggers. The triggers fire in sessions of replicas
    too (ALWAYS): what those change in a followed table is changed like anything else.
    """
    parts = [_OWNERS, _drop_event_triggers(), _TABLE, *map(_create, FUNCTIONS), _version_trigger()]
    parts += [_event_trigger(name) for name in EVENT_TRIGGERS]
    parts.append(grant_statements(role))
    return "\n".join(part.strip() for part in parts) + "\n"


def grant_statements(role: str) -> str:
    """What a role needs that did not install the triggers itself."""
    return (
        f"GRANT USAGE ON SCHEMA penstock TO {role};\n"
        f"GRANT SELECT ON penstock.seal TO {role};\n"
        f"GRANT SELECT, UPDATE (acked) ON penstock.schema_log TO {role};\n"
        f"GRANT EXECUTE ON FUNCTION penstock.refresh_schema(text) TO {role};\n"
    )


def drop_statements() -> str:
    """What takes all of it off, but for the schema, in which a target's tables may be."""
    functions = [f"DROP FUNCTION IF EXISTS {signature(each)};" for each in reversed(FUNCTIONS)]
    return "\n".join(
        (
            _drop_event_triggers(),
            "DROP TABLE IF EXISTS penstock.schema_log, penstock.seal;",
            *functions,
        )
    )


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


def _version_trigger() -> str:
    return (
        f"DROP TRIGGER IF EXISTS {VERSION_TRIGGER} ON penstock.schema_log;\n"
        f"CREATE CONSTRAINT TRIGGER {VERSION_TRIGGER} AFTER INSERT ON penstock.schema_log\n"
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION penstock.write_versions();\n"
        f"ALTER TABLE penstock.schema_log ENABLE ALWAYS TRIGGER {VERSION_TRIGGER};"
    )


def _event_trigger(name: str) -> str:
    event, function = EVENT_TRIGGERS[name]
    tags = ", ".join(f"'{tag}'" for tag in TAGS)
    when = f" WHEN TAG IN ({tags})" if event == "ddl_command_end" else ""
    return (
        f"CREATE EVENT TRIGGER {name} ON {event}{when} EXECUTE FUNCTION penstock.{function}();\n"
        f"ALTER EVENT TRIGGER {name} ENABLE ALWAYS;"
    )
