"""Functions in schema penstock of the source that event triggers call: what did a statement touch?

What runs inside a user's statement never fails it: an error becomes a warning that names the
SQLSTATE, and no value of a row. Documents and versions: `tracking_documents`.
"""

from __future__ import annotations

from penstock.schema.shape import FORMAT
from penstock.source.tracking_documents import NOT_OURS, Function

# What a statement touched, and all whose documents hold a part of that: tables that need a type,
# however deep; heirs of a table; tables whose foreign keys lead to one that may have a new name.
_TELL = f"""
DECLARE
    change jsonb;
    names text[];
    loose jsonb;
    mark text;
BEGIN
    IF tag = 'ALTER SCHEMA' THEN
        relations := relations || ARRAY(SELECT oid FROM pg_class WHERE relnamespace = ANY (schemas));
        sequences := sequences || relations;
        types := types || ARRAY(SELECT oid FROM pg_type WHERE typnamespace = ANY (schemas));
    END IF;
    IF cardinality(types) > 0 THEN
        WITH RECURSIVE needs(type, relation) AS (
            SELECT unnest(types), NULL::oid
            UNION
            SELECT CASE WHEN k.oid IS NULL THEN d.objid WHEN k.relkind = 'c' THEN k.reltype END,
                   CASE WHEN k.relkind IN ('r', 'p') THEN k.oid END
            FROM needs JOIN pg_depend d
              ON d.refclassid = 'pg_type'::regclass AND d.refobjid = needs.type
            LEFT JOIN pg_class k ON d.classid = 'pg_class'::regclass AND k.oid = d.objid
            WHERE d.classid = 'pg_type'::regclass OR k.oid IS NOT NULL)
        SELECT relations || coalesce(array_agg(relation) FILTER (WHERE relation IS NOT NULL), '{{}}'),
               coalesce(array_agg(DISTINCT type) FILTER (WHERE type IS NOT NULL), '{{}}')
        INTO relations, types FROM needs;
    END IF;
    IF tag IN ('ALTER TABLE', 'ALTER SCHEMA') AND statement ~* '\\y(rename|schema)\\y' THEN
        relations := relations || ARRAY(
            SELECT conrelid FROM pg_constraint WHERE contype = 'f' AND confrelid = ANY (relations));
    END IF;
    WITH RECURSIVE heirs(oid) AS (
        SELECT unnest(relations)
        UNION
        SELECT i.inhrelid FROM heirs JOIN pg_inherits i ON i.inhparent = heirs.oid
        JOIN pg_class k ON k.oid = i.inhrelid AND NOT k.relispartition)
    SELECT coalesce(array_agg(c.oid), '{{}}') INTO relations
    FROM heirs JOIN pg_class c ON c.oid = heirs.oid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
      AND {NOT_OURS.format("n")};

    change := gone || jsonb_build_object(
        'tables', CASE WHEN cardinality(relations) > 0 THEN penstock.table_documents(relations)
                  ELSE '[]' END,
        'types', CASE WHEN cardinality(types) > 0 THEN penstock.type_documents(types) ELSE '[]' END,
        'sequences', CASE WHEN cardinality(sequences) > 0
                     THEN penstock.sequence_documents(sequences) ELSE '[]' END,
        'schemas', (
            SELECT coalesce(jsonb_agg(jsonb_build_object('id', n.oid::int8, 'name', n.nspname)), '[]')
            FROM pg_namespace n WHERE n.oid = ANY (schemas) AND {NOT_OURS.format("n")}));
    SELECT jsonb_object_agg(key, value) INTO change
    FROM jsonb_each(change) AS e(key, value) WHERE value <> '[]';
    IF change IS NULL THEN
        RETURN;
    END IF;
    IF born <> '{{}}' THEN
        change := change || jsonb_build_object('tables', (
            SELECT jsonb_agg(t.one || CASE WHEN born ? (t.one ->> 'id') THEN
                jsonb_build_object('born_in', born -> (t.one ->> 'id'), 'first_entries', (
                    SELECT jsonb_agg(r.oid::int8) FROM pg_publication_rel r
                    WHERE r.prrelid = (t.one ->> 'id')::oid)) ELSE '{{}}' END
                ORDER BY t.place)
            FROM jsonb_array_elements(change -> 'tables') WITH ORDINALITY AS t(one, place)));
    END IF;
    SELECT array_agg(DISTINCT name) INTO names FROM (
        SELECT one ->> 'schema_name' FROM jsonb_each(change) AS e(key, value)
        CROSS JOIN jsonb_array_elements(value) AS x(one) WHERE key NOT LIKE '%schemas'
        UNION ALL
        SELECT one ->> 'name' FROM jsonb_each(change) AS e(key, value)
        CROSS JOIN jsonb_array_elements(value) AS x(one) WHERE key LIKE '%schemas'
    ) AS touched(name);
    IF statement ~* '\\yschema\\y' THEN
        names := names || penstock.former_schemas(relations || types || sequences);
    END IF;

    -- What is told beside the statement's own tables is not locked: others may change it before we
    -- commit. Every statement that alters a table takes one of these locks; CREATE INDEX does not.
    SELECT coalesce(jsonb_agg(r.oid::int8), '[]') INTO loose FROM unnest(relations) AS r(oid)
    WHERE NOT EXISTS (
        SELECT FROM pg_locks l WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation'
        AND l.relation = r.oid AND l.granted AND l.mode IN ('ShareUpdateExclusiveLock',
            'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'));
    change := change || jsonb_build_object('format', {FORMAT}, 'tag', tag, 'loose', loose,
        'has_using', tag = 'ALTER TABLE' AND statement ~* '\\yusing\\y',
        -- The snapshot may be older than what others have changed since.
        'has_old_snapshot', current_setting('transaction_isolation') <> 'read committed');
    -- sql_drop and ddl_command_end come both for one ALTER TABLE; the same twice is said once.
    mark := hashtextextended(change::text, pg_current_xact_id()::text::int8)::text;
    IF mark IS DISTINCT FROM current_setting('penstock.said', true) THEN
        PERFORM penstock.say(change);
        PERFORM set_config('penstock.said', mark, true);
    END IF;
    BEGIN
        -- A new name may be in the documents of all; and so where the text is not to be had.
        PERFORM penstock.note_schemas(names, CASE
            WHEN tag LIKE 'ALTER %' AND (statement ~* '\\y(rename|schema)\\y'
                                         OR statement !~* '\\yalter\\y') THEN NULL
            ELSE relations || types || sequences END);
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'penstock could not note this schema change in its log (SQLSTATE %)', SQLSTATE
            USING HINT = 'penstock init puts penstock.schema_log right';
    END;
END"""

# Where things stood by the last versions: a move to another schema changes that one as well.
_FORMER_SCHEMAS = """
BEGIN
    RETURN ARRAY(
        SELECT s.name FROM (SELECT DISTINCT schema_name FROM penstock.schema_log) AS s(name)
        CROSS JOIN LATERAL (
            SELECT l.schema FROM penstock.schema_log l
            WHERE l.schema_name = s.name AND l.version IS NOT NULL
            ORDER BY l.version DESC LIMIT 1) AS last
        WHERE EXISTS (
            SELECT FROM jsonb_array_elements((last.schema -> 'tables') || (last.schema -> 'types')
                                             || (last.schema -> 'sequences')) AS t(one)
            WHERE (t.one ->> 'id')::oid = ANY (oids)));
EXCEPTION WHEN undefined_table THEN
    RETURN '{}';
END"""

_RULES = """
BEGIN
    RETURN EXISTS (
        SELECT FROM jsonb_array_elements(coalesce(rules, '[]')) AS r(one)
        WHERE coalesce(r.one ->> 'schema', schema_name) = schema_name
          AND coalesce(r.one ->> 'name', table_name) = table_name);
END"""

# Into each publication of penstock's whose rules choose the new table: it is followed from its
# first row on. The publication stays locked until commit, so another who waits gives up soon, before
# the two could wait for each other; penstock then enrols the table a little later, and copies it.
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
        SELECT p.pubname, obj_description(p.oid, 'pg_publication') AS stamp FROM pg_publication p
        WHERE p.pubname LIKE 'penstock\\_%' AND p.pubupdate
          AND has_table_privilege(p.pubowner, 'penstock.seal', 'SELECT') ORDER BY p.pubname
    LOOP
        BEGIN
            IF publication.stamp LIKE '{"penstock": 1,%' AND publication.stamp::jsonb ? 'rules'
               AND penstock.stamp_chooses(publication.stamp::jsonb, named) THEN
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

# One row for each thing that the statement made or altered. By what it is, not by the tag: ALTER
# INDEX renames tables too.
_ON_DDL = """
DECLARE
    statement text;
    relations oid[];
    types oid[];
    sequences oid[];
    schemas oid[];
    made oid[];
    has_roots boolean;
    born jsonb := '{}';
BEGIN
    GET DIAGNOSTICS statement = PG_CONTEXT;  -- of a statement inside a function, its own text
    statement := concat_ws(' ', current_query(), statement);
    SELECT array_remove(array_agg(DISTINCT
               CASE WHEN k.relkind IN ('r', 'p') THEN k.oid
                    WHEN k.relkind IN ('i', 'I') THEN i.indrelid
                    WHEN k.relkind = 'S' THEN owner.refobjid
                    WHEN d.classid = 'pg_constraint'::regclass THEN o.conrelid
                    WHEN d.classid = 'pg_attrdef'::regclass THEN f.adrelid END), NULL),
           array_remove(array_agg(DISTINCT
               CASE WHEN k.relkind = 'c' THEN k.reltype
                    WHEN d.classid = 'pg_type'::regclass THEN d.objid
                    WHEN d.classid = 'pg_constraint'::regclass THEN nullif(o.contypid, 0) END), NULL),
           array_remove(array_agg(DISTINCT CASE WHEN k.relkind = 'S' THEN k.oid END), NULL),
           array_remove(array_agg(DISTINCT
               CASE WHEN d.classid = 'pg_namespace'::regclass AND d.command_tag <> 'COMMENT'
                    THEN d.objid END), NULL),
           array_remove(array_agg(DISTINCT
               CASE WHEN d.command_tag = 'CREATE TABLE' AND k.relkind IN ('r', 'p')
                    AND NOT k.relispartition AND k.relpersistence = 'p'
                    AND d.schema_name <> 'penstock' THEN k.oid END), NULL),
           coalesce(bool_or(k.relkind = 'p'), false)
    INTO relations, types, sequences, schemas, made, has_roots
    FROM pg_event_trigger_ddl_commands() d
    LEFT JOIN pg_class k ON d.classid = 'pg_class'::regclass AND k.oid = d.objid
    LEFT JOIN pg_index i ON i.indexrelid = k.oid
    LEFT JOIN pg_constraint o ON d.classid = 'pg_constraint'::regclass AND o.oid = d.objid
    LEFT JOIN pg_attrdef f ON d.classid = 'pg_attrdef'::regclass AND f.oid = d.objid
    LEFT JOIN pg_depend owner ON k.relkind = 'S' AND owner.classid = 'pg_class'::regclass
        AND owner.objid = k.oid AND owner.refclassid = 'pg_class'::regclass
        AND owner.refobjsubid > 0 AND owner.deptype IN ('a', 'i')
    WHERE NOT d.in_extension AND coalesce(k.relpersistence, 'p') <> 't';
    IF relations IS NULL THEN
        RETURN;
    END IF;
    IF has_roots AND statement ~* '\\ydetach\\y' THEN
        -- Nothing names what was detached; but its row in the catalog is of this transaction.
        relations := relations || ARRAY(
            SELECT oid FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition
            AND age(xmin) <= age(pg_current_xact_id()::xid));
    END IF;
    IF cardinality(made) > 0 THEN
        SELECT coalesce(jsonb_object_agg(b.relation, b.entered) FILTER (WHERE b.entered <> '[]'), '{}')
        INTO born FROM (SELECT m AS relation, penstock.enrol(m) AS entered FROM unnest(made) m) b;
    END IF;
    PERFORM penstock.tell(tg_tag, relations, types, sequences, schemas, '{}', born, statement);
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'penstock could not tell what this % changed (SQLSTATE %)', tg_tag, SQLSTATE
        USING HINT = 'penstock check tells whether its triggers are whole';
END"""

# The table of a dropped index is not named: it is looked up in the last version, and where it is not
# there, every table of the schema is told. Dropped with a table or a column, it needs no telling.
_ON_DROP = """
DECLARE
    statement text;
    gone jsonb;
    relations oid[];
    types oid[];
    lost record;
    home oid;
BEGIN
    GET DIAGNOSTICS statement = PG_CONTEXT;
    statement := concat_ws(' ', current_query(), statement);
    WITH dropped AS MATERIALIZED (
        SELECT * FROM pg_event_trigger_dropped_objects()
        WHERE NOT is_temporary AND coalesce(schema_name, address_names[1], '') !~ '^pg_'
          AND coalesce(schema_name, address_names[1], '') NOT IN ('information_schema', 'penstock')
    ), named AS (
        SELECT jsonb_build_object('id', d.objid::int8, 'schema_name', coalesce(d.schema_name, ''),
                                  'name', d.object_name) AS one,
               CASE WHEN d.classid = 'pg_type'::regclass THEN 'type' ELSE d.object_type END AS kind
        FROM dropped d
        WHERE d.object_type IN ('table', 'sequence', 'schema')
           OR d.classid = 'pg_type'::regclass AND d.object_identity NOT LIKE '%[]' AND NOT EXISTS (
               SELECT FROM dropped r WHERE r.classid = 'pg_class'::regclass AND r.objsubid = 0
               AND r.object_type <> 'composite type' AND r.object_type <> 'index'
               AND r.schema_name = d.schema_name AND r.object_name = d.object_name)
    )
    SELECT jsonb_build_object(
               'dropped_tables', coalesce(jsonb_agg(one) FILTER (WHERE kind = 'table'), '[]'),
               'dropped_types', coalesce(jsonb_agg(one) FILTER (WHERE kind = 'type'), '[]'),
               'dropped_sequences', coalesce(jsonb_agg(one) FILTER (WHERE kind = 'sequence'), '[]'),
               'dropped_schemas', coalesce(jsonb_agg(one) FILTER (WHERE kind = 'schema'), '[]')),
           ARRAY(SELECT c.oid FROM dropped d
                 JOIN pg_namespace n ON n.nspname = d.address_names[1]
                 JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = d.address_names[2]
                 WHERE d.object_type IN ('table column', 'table constraint', 'default value')),
           ARRAY(SELECT t.oid FROM dropped d
                 JOIN pg_namespace n ON n.nspname = d.address_names[1]
                 JOIN pg_type t ON t.typnamespace = n.oid AND t.typname = d.address_names[2]
                 WHERE d.object_type = 'composite type column')
    INTO gone, relations, types FROM named;
    FOR lost IN
        SELECT d.objid, d.schema_name FROM pg_event_trigger_dropped_objects() d
        WHERE d.object_type = 'index' AND NOT d.is_temporary
          AND (d.original OR tg_tag NOT IN ('ALTER TABLE', 'DROP TABLE'))
          AND EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = d.schema_name)
    LOOP
        home := penstock.table_of_index(lost.objid, lost.schema_name);
        relations := relations || CASE WHEN home IS NOT NULL THEN ARRAY[home] ELSE ARRAY(
            SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = lost.schema_name AND c.relkind IN ('r', 'p')) END;
    END LOOP;
    PERFORM penstock.tell(tg_tag, relations, types, '{}', '{}', gone, '{}', statement);
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'penstock could not tell what this % dropped (SQLSTATE %)', tg_tag, SQLSTATE
        USING HINT = 'penstock check tells whether its triggers are whole';
END"""

_TABLE_OF_INDEX = """
BEGIN
    RETURN (
        SELECT (t.one ->> 'id')::oid FROM (
            SELECT l.schema FROM penstock.schema_log l
            WHERE l.schema_name = home AND l.version IS NOT NULL
            ORDER BY l.version DESC LIMIT 1) AS last
        CROSS JOIN jsonb_array_elements(last.schema -> 'tables') AS t(one)
        CROSS JOIN jsonb_array_elements(t.one -> 'indexes') AS i(one)
        WHERE (i.one ->> 'id')::oid = number LIMIT 1);
EXCEPTION WHEN undefined_table THEN
    RETURN NULL;
END"""

_TOLD = (
    "tag text, relations oid[], types oid[], sequences oid[], schemas oid[], gone jsonb, born jsonb,"
    " statement text"
)

EVENT_FUNCTIONS = (
    Function("tell", _TOLD, "void", _TELL),
    Function("former_schemas", "oids oid[]", "text[]", _FORMER_SCHEMAS),
    Function("table_of_index", "number oid, home text", "oid", _TABLE_OF_INDEX),
    Function("rules_match", "rules jsonb, schema_name text, table_name text", "boolean", _RULES),
    Function("stamp_chooses", "stamp jsonb, named jsonb", "boolean", _STAMP_CHOOSES),
    Function("enrol", "relation oid", "jsonb", _ENROL, settings="lock_timeout=500"),
    Function("on_ddl_command_end", "", "event_trigger", _ON_DDL, True),
    Function("on_sql_drop", "", "event_trigger", _ON_DROP, True),
)
