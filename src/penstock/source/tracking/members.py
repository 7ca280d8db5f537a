"""Functions in schema penstock of the source that put new tables into penstock's publications, and take them out."""

from __future__ import annotations

from penstock.source.tracking.documents import Function

_RULES = """
BEGIN
    RETURN EXISTS (
        SELECT FROM jsonb_array_elements(coalesce(rules, '[]')) AS r(one)
        WHERE coalesce(r.one ->> 'schema', schema_name) = schema_name
          AND coalesce(r.one ->> 'name', table_name) = table_name);
END"""

# Into each publication of penstock's whose rules choose the new table: it is followed from its
# first row on. The publication stays locked until commit: where another transaction has it, nobody waits;
# penstock then publishes the table a little later, and copies it. Between the check and the statement
# another may come first, so that the wait is limited to the least there is.
# Anybody who may create publications can give one our name and a stamp. It is ours if its owner may
# read the seal: nobody else gets tables of others into a publication by our rights.
_ENROL = """
DECLARE
    made record;
    publication record;
    named jsonb;
    entered text[] := '{}';
BEGIN
    SELECT n.nspname, c.relname INTO made
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = relation AND EXISTS (
        SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid
        AND i.indimmediate AND NOT EXISTS (
            SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated <> ''
            AND a.attnum = ANY (i.indkey::int2[])));
    IF NOT FOUND THEN
        RETURN '[]';
    END IF;
    named := jsonb_build_array(made.nspname, made.relname);
    FOR publication IN
        SELECT p.oid, p.pubname, obj_description(p.oid, 'pg_publication') AS stamp
        FROM pg_publication p
        WHERE p.pubname LIKE 'penstock\\_%' AND p.pubupdate
          AND has_table_privilege(p.pubowner, 'penstock.seal', 'SELECT') ORDER BY p.pubname
    LOOP
        BEGIN
            IF publication.stamp LIKE '{"penstock": 1,%' AND publication.stamp::jsonb ? 'rules'
               AND penstock.stamp_chooses(publication.stamp::jsonb, named)
               AND NOT EXISTS (
                   SELECT FROM pg_lock_status() l WHERE l.locktype = 'object'
                   AND l.classid = 'pg_publication'::regclass AND l.objid = publication.oid
                   AND l.pid IS DISTINCT FROM pg_backend_pid()) THEN
                EXECUTE format('ALTER PUBLICATION %I ADD TABLE ONLY %I.%I',
                               publication.pubname, made.nspname, made.relname);
                entered := entered || publication.pubname::text;
            END IF;
        EXCEPTION WHEN OTHERS THEN
            NULL;
        END;
    END LOOP;
    RETURN to_jsonb(entered);
END"""

# Whether this very transaction has made an entry: it is seen, and its transaction has not ended. An id alone
# does not tell, since a transaction that began later may have ended before.
IS_OWN_ENTRY = """CASE WHEN age(r.xmin) <= age(pg_current_xact_id()::xid) THEN penstock.is_running(
              (pg_current_xact_id()::text::int8 + age(pg_current_xact_id()::xid) - age(r.xmin))::text::xid8)
              END"""

# A frozen entry keeps its id, which is one of the future once it is 2^31 transactions old; Postgres raises
# an error for that.
_IS_RUNNING = """
BEGIN
    RETURN pg_xact_status(id) = 'in progress';
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN false;
END"""

# A table that this very transaction has made, and that has lost its key again: as long as it is in a
# publication, Postgres refuses the user's UPDATE of it. Since 18 also where a computed column, which is not
# published, is part of the replica identity. Or (`is_any`) one with a key, which Postgres refuses to make
# UNLOGGED. The publication is locked by us already. Penstock publishes the table again after the commit
# if it may, and copies it.
_RELEASE = f"""
DECLARE
    entry record;
BEGIN
    PERFORM FROM pg_publication_rel r WHERE r.prrelid = relation AND {IS_OWN_ENTRY};
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR entry IN
        SELECT p.pubname, n.nspname, c.relname
        FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
        JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE r.prrelid = relation AND {IS_OWN_ENTRY}
          AND p.pubname LIKE 'penstock\\_%' AND p.pubupdate
          AND has_table_privilege(p.pubowner, 'penstock.seal', 'SELECT')
          AND (is_any OR CASE c.relreplident WHEN 'f' THEN
              current_setting('server_version_num')::int >= 180000 AND EXISTS (
                  SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated <> '')
          ELSE NOT EXISTS (
              SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
              AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident
                  ELSE false END
              AND NOT EXISTS (
                  SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated <> ''
                  AND a.attnum = ANY (i.indkey::int2[]))) END)
    LOOP
        EXECUTE format('ALTER PUBLICATION %I DROP TABLE ONLY %I.%I',
                       entry.pubname, entry.nspname, entry.relname);
    END LOOP;
END"""

# The same for whatever tables a statement has taken an index from, or is about to alter: it does not say which.
# Asked for the entries first: there are none most of the time, and locks take the longer the more of them are held.
_RELEASE_HELD = f"""
BEGIN
    PERFORM FROM pg_publication_rel r WHERE {IS_OWN_ENTRY};
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM penstock.release(h.oid, is_any) FROM unnest(penstock.held(true)) AS h(oid)
    WHERE EXISTS (SELECT FROM pg_publication_rel r WHERE r.prrelid = h.oid);
END"""

# As TableRules.chooses says it.
_STAMP_CHOOSES = """
DECLARE
    rules jsonb := stamp -> 'rules';
    schema_name text := named ->> 0;
    table_name text := named ->> 1;
BEGIN
    IF penstock.rules_match(rules -> 'insert_only', schema_name, table_name) THEN
        RETURN false;
    ELSIF named IN (SELECT jsonb_array_elements(coalesce(stamp -> 'added', '[]'))) THEN
        RETURN true;
    END IF;
    RETURN (jsonb_array_length(rules -> 'include') = 0
            OR penstock.rules_match(rules -> 'include', schema_name, table_name))
        AND NOT penstock.rules_match(rules -> 'exclude', schema_name, table_name)
        AND NOT named IN (SELECT jsonb_array_elements(coalesce(stamp -> 'removed', '[]')));
END"""

# New tables, each with the publications that it is in.
_ENROLLED = """
DECLARE
    number oid;
    entered jsonb;
    found jsonb;
BEGIN
    FOREACH number IN ARRAY coalesce(made, '{}') LOOP
        entered := penstock.enrol(number);
        IF entered <> '[]' THEN
            found := coalesce(found, '{}') || jsonb_build_object(
                number::text, jsonb_build_object('born_in', entered, 'first_entries', (
                    SELECT jsonb_agg(r.oid::int8) FROM pg_publication_rel r
                    WHERE r.prrelid = number)));
        END IF;
    END LOOP;
    RETURN CASE WHEN found IS NOT NULL THEN jsonb_build_object('born', found) END;
END"""

MEMBER_FUNCTIONS = (
    Function("rules_match", "rules jsonb, schema_name text, table_name text", "boolean", _RULES),
    Function("stamp_chooses", "stamp jsonb, named jsonb", "boolean", _STAMP_CHOOSES),
    Function("is_running", "id xid8", "boolean", _IS_RUNNING),
    Function("enrol", "relation oid", "jsonb", _ENROL, settings=("lock_timeout=1",)),
    Function(
        "release", "relation oid, is_any boolean", "void", _RELEASE, settings=("lock_timeout=1",)
    ),
    Function("release_held", "is_any boolean", "void", _RELEASE_HELD),
    Function("enrolled", "made oid[]", "jsonb", _ENROLLED),
)
