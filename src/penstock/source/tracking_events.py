"""Functions in schema penstock of the source that event triggers call: what did a statement touch?

What runs inside a user's statement never fails it: an error becomes a warning that names the
SQLSTATE, and no value of a row. Nor does it wait for anybody: it describes the tables that the statement
has locked, and of all else it names what has changed. Which other tables are concerned by that, the
reader of the stream knows (`penstock.schema.cascade`). How things are described: `tracking_documents`.
"""

from __future__ import annotations

from penstock.schema.catalog import INDEX_DEFINITION
from penstock.schema.shape import FORMAT
from penstock.source.tracking_documents import NOT_OURS, Function

# The relations on which this transaction holds a lock: any, or one that keeps others from altering them.
# Who holds any lock gets a weaker one at once, also where others wait for the table.
_HELD = """
BEGIN
    RETURN ARRAY(
        SELECT DISTINCT l.relation FROM pg_locks l
        WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.granted
          AND l.relation >= 16384 AND (NOT is_strong OR l.mode IN ('ShareUpdateExclusiveLock',
              'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')));
END"""

# One message. Types with all types that are made of them; tables that have such a column only where
# the statement has altered them as well (typed tables, say).
_TELL = f"""
DECLARE
    number oid;
    one text;
    documents text[] := '{{}}';
    kinds json;
    alone json;
    owned json;
    made_of oid[];
    needing oid[];
BEGIN
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
        SELECT array_agg(relation) FILTER (WHERE relation IS NOT NULL),
               array_agg(DISTINCT type) FILTER (WHERE type IS NOT NULL)
        INTO needing, made_of FROM needs;
        IF needing IS NOT NULL THEN
            relations := relations || ARRAY(
                SELECT unnest(penstock.held(true)) INTERSECT SELECT unnest(needing));
        END IF;
        kinds := nullif(penstock.type_documents(made_of), '[]');
    END IF;
    IF cardinality(sequences) > 0 THEN
        alone := nullif(penstock.sequence_documents(sequences), '[]');
        owned := penstock.column_sequences(NULL, sequences, relations);
    END IF;
    FOR number IN SELECT DISTINCT r.oid FROM unnest(relations) AS r(oid) LOOP
        one := penstock.describe(number);
        IF one IS NOT NULL THEN
            documents := documents || one;
        END IF;
    END LOOP;
    IF documents = '{{}}' AND coalesce(kinds, alone, owned) IS NULL
       AND gone - 'has_using' = '{{}}' THEN
        RETURN;
    END IF;
    one := json_build_object('format', {FORMAT}, 'tag', tag, 'xid', penstock.own_xid(),
        'types', kinds, 'sequences', alone, 'column_sequences', owned,
        -- The snapshot may be older than what others have changed since.
        'has_old_snapshot', current_setting('transaction_isolation') <> 'read committed')::text;
    IF gone <> '{{}}' THEN
        one := left(one, -1) || ', ' || substr(gone::text, 2);
    END IF;
    PERFORM penstock.say(left(one, -1) || ', "tables": [' || array_to_string(documents, ', ') || ']}}');
END"""

_RULES = """
BEGIN
    RETURN EXISTS (
        SELECT FROM jsonb_array_elements(coalesce(rules, '[]')) AS r(one)
        WHERE coalesce(r.one ->> 'schema', schema_name) = schema_name
          AND coalesce(r.one ->> 'name', table_name) = table_name);
END"""

# Into each publication of penstock's whose rules choose the new table: it is followed from its
# first row on. The publication stays locked until commit: where another transaction has it, nobody waits;
# penstock then enrols the table a little later, and copies it. Between the look and the statement
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
                   SELECT FROM pg_locks l WHERE l.locktype = 'object'
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

# A table that this very transaction has made, and that has lost its key again: as long as it is in a
# publication, Postgres refuses the user's UPDATE of it. The publication is locked by us already.
_RELEASE = """
DECLARE
    entry record;
BEGIN
    FOR entry IN
        SELECT p.pubname, n.nspname, c.relname
        FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
        JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE r.prrelid = ANY (relations) AND age(r.xmin) <= age(pg_current_xact_id()::xid)
          AND p.pubname LIKE 'penstock\\_%' AND p.pubupdate AND c.relreplident <> 'f'
          AND NOT EXISTS (
              SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
              AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident
                  ELSE false END)
    LOOP
        EXECUTE format('ALTER PUBLICATION %I DROP TABLE ONLY %I.%I',
                       entry.pubname, entry.nspname, entry.relname);
    END LOOP;
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

# An index whose table the statement does not describe. Its definition is spelled where the table is
# locked, as by CREATE INDEX; not at the end of CREATE INDEX CONCURRENTLY, nor by ALTER INDEX.
_INDEXES = f"""
DECLARE
    held oid[] := penstock.held(false);
BEGIN
    RETURN (
        SELECT jsonb_agg(jsonb_build_object('id', x.oid::int8, 'table_id', c.oid::int8,
            'name', x.relname, 'is_unique', i.indisunique,
            'definition', CASE WHEN c.oid = ANY (held) THEN
                {INDEX_DEFINITION.format(schema="n.nspname")} END,
            'numbers', i.indkey::int2[], 'key_count', i.indnkeyatts,
            'is_valid', i.indisvalid, 'is_immediate', i.indimmediate,
            'constraint_id', (SELECT o.oid::int8 FROM pg_constraint o WHERE o.conindid = x.oid
                AND o.conrelid = c.oid AND o.contype IN ('p', 'u', 'x')),
            'depends', (SELECT jsonb_agg(p.refobjsubid) FROM pg_depend p
                WHERE p.classid = 'pg_class'::regclass AND p.objid = x.oid
                AND p.refclassid = 'pg_class'::regclass AND p.refobjid = c.oid
                AND p.refobjsubid > 0)))
        FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_class c ON c.oid = i.indrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE i.indexrelid = ANY (oids) AND i.indrelid <> ALL (told) AND i.indislive
          AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND {NOT_OURS.format("n")});
END"""

# What has a schema's new name, as far as no lock is needed for it.
_MEMBERS = f"""
BEGIN
    RETURN (
        SELECT jsonb_agg(jsonb_build_object(
            'id', c.oid::int8, 'schema_name', n.nspname, 'name', c.relname))
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relnamespace = ANY (oids) AND c.relkind IN ('r', 'p') AND NOT c.relispartition
          AND {NOT_OURS.format("n")});
END"""

# Partitions that were made or attached. They are their roots', but where they go to somebody should know.
_PARTITIONS = f"""
BEGIN
    RETURN (
        SELECT jsonb_agg(jsonb_build_object('id', c.oid::int8, 'schema_name', n.nspname,
            'name', c.relname, 'root_id', pg_partition_root(c.oid)::oid::int8))
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = ANY (oids) AND c.relispartition AND c.relpersistence <> 't'
          AND {NOT_OURS.format("n")});
END"""

# One row for each thing that the statement made or altered. By what it is, not by the tag: ALTER
# INDEX renames tables too. A statement's text may be a whole script, of which nobody searches much.
_ON_DDL = f"""
DECLARE
    command record;
    k record;
    statement text;
    context text;
    relations oid[] := '{{}}';
    types oid[] := '{{}}';
    sequences oid[] := '{{}}';
    indexes oid[] := '{{}}';
    schemas oid[] := '{{}}';
    made oid[] := '{{}}';
    partitions oid[] := '{{}}';
    number oid;
    has_heirs boolean := false;
    has_roots boolean := false;
    entered jsonb;
    more jsonb := '{{}}';
BEGIN
    FOR command IN
        SELECT d.classid, d.objid, d.command_tag, d.schema_name
        FROM pg_event_trigger_ddl_commands() d WHERE NOT d.in_extension
    LOOP
        IF command.classid = 'pg_class'::regclass THEN
            SELECT c.relkind, c.relpersistence, c.relispartition, c.relhassubclass, c.reltype INTO k
            FROM pg_class c WHERE c.oid = command.objid;
            IF NOT FOUND OR k.relpersistence = 't' THEN
                CONTINUE;
            ELSIF k.relkind IN ('r', 'p') THEN
                relations := relations || command.objid;
                has_roots := has_roots OR k.relkind = 'p';
                has_heirs := has_heirs OR k.relkind = 'r' AND k.relhassubclass;
                IF command.command_tag = 'CREATE TABLE' AND k.relispartition THEN
                    partitions := partitions || command.objid;
                ELSIF command.command_tag = 'CREATE TABLE'
                   AND k.relpersistence = 'p' AND command.schema_name <> 'penstock' THEN
                    made := made || command.objid;
                END IF;
            ELSIF command.command_tag = 'COMMENT' THEN
                CONTINUE;
            ELSIF k.relkind IN ('i', 'I') THEN
                indexes := indexes || command.objid;
            ELSIF k.relkind = 'S' THEN
                sequences := sequences || command.objid;
            ELSIF k.relkind = 'c' THEN
                types := types || k.reltype;
            END IF;
        ELSIF command.command_tag = 'COMMENT' THEN
            CONTINUE;
        ELSIF command.classid = 'pg_type'::regclass THEN
            types := types || command.objid;
        ELSIF command.classid = 'pg_constraint'::regclass THEN
            SELECT o.conrelid, o.contypid INTO k FROM pg_constraint o WHERE o.oid = command.objid;
            IF k.conrelid <> 0 THEN
                relations := relations || k.conrelid;
            ELSIF k.contypid <> 0 THEN
                types := types || k.contypid;
            END IF;
        ELSIF command.classid = 'pg_attrdef'::regclass THEN
            relations := relations || ARRAY(
                SELECT f.adrelid FROM pg_attrdef f WHERE f.oid = command.objid);
        ELSIF command.classid = 'pg_namespace'::regclass THEN
            schemas := schemas || command.objid;
        END IF;
    END LOOP;
    IF relations || types || sequences || indexes || schemas = '{{}}' THEN
        RETURN;
    END IF;
    IF tg_tag = 'ALTER TABLE' THEN
        PERFORM penstock.release(relations);
        GET DIAGNOSTICS context = PG_CONTEXT;  -- of a statement inside a function, its own text
        statement := concat_ws(' ', current_query(), context);
        IF length(statement) > 65536 OR statement ~* '\\yusing\\y' THEN
            more := '{{"has_using": true}}';
        END IF;
        IF has_roots AND (length(statement) > 65536 OR statement ~* '\\y(at|de)tach\\y') THEN
            -- Nothing names what it was; but its row in the catalog is of this transaction.
            SELECT relations || array_agg(c.oid) FILTER (WHERE NOT c.relispartition),
                   partitions || array_agg(c.oid) FILTER (WHERE c.relispartition)
            INTO relations, partitions
            FROM pg_class c WHERE c.oid = ANY (penstock.held(true)) AND c.relkind IN ('r', 'p')
              AND age(c.xmin) <= age(pg_current_xact_id()::xid);
        END IF;
    END IF;
    IF has_heirs THEN
        -- Those that the statement has altered with their parent are locked by it.
        relations := relations || ARRAY(
            WITH RECURSIVE heirs(oid) AS (
                SELECT unnest(relations)
                UNION
                SELECT i.inhrelid FROM heirs JOIN pg_inherits i ON i.inhparent = heirs.oid)
            SELECT h.oid FROM heirs h JOIN unnest(penstock.held(true)) AS l(oid) ON l.oid = h.oid);
    END IF;
    IF tg_tag = 'ALTER SCHEMA' AND schemas <> '{{}}' THEN
        types := ARRAY(SELECT t.oid FROM pg_type t
                       WHERE t.typnamespace = ANY (schemas) AND t.typtype IN ('e', 'd', 'r', 'c'));
        sequences := ARRAY(SELECT c.oid FROM pg_class c
                           WHERE c.relnamespace = ANY (schemas) AND c.relkind = 'S');
        more := more || jsonb_strip_nulls(
            jsonb_build_object('moved_tables', penstock.members(schemas)));
    END IF;
    IF schemas <> '{{}}' THEN
        more := more || jsonb_strip_nulls(jsonb_build_object('schemas', (
            SELECT jsonb_agg(jsonb_build_object('id', n.oid::int8, 'name', n.nspname))
            FROM pg_namespace n WHERE n.oid = ANY (schemas) AND {NOT_OURS.format("n")})));
    END IF;
    IF indexes <> '{{}}' AND tg_tag <> 'CREATE TABLE' THEN
        more := more || jsonb_strip_nulls(
            jsonb_build_object('indexes', penstock.altered_indexes(indexes, relations)));
    END IF;
    IF partitions <> '{{}}' THEN
        more := more || jsonb_strip_nulls(
            jsonb_build_object('partitions', penstock.partitions(partitions)));
    END IF;
    FOREACH number IN ARRAY made LOOP
        entered := penstock.enrol(number);
        IF entered <> '[]' THEN
            more := more || jsonb_build_object('born', coalesce(more -> 'born', '{{}}')
                || jsonb_build_object(number::text, jsonb_build_object('born_in', entered,
                    'first_entries', (SELECT jsonb_agg(r.oid::int8) FROM pg_publication_rel r
                                      WHERE r.prrelid = number))));
        END IF;
    END LOOP;
    PERFORM penstock.tell(tg_tag, relations, types, sequences, more);
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'penstock could not tell what this % changed (SQLSTATE %)', tg_tag, SQLSTATE
        USING HINT = 'penstock check tells whether its triggers are whole';
END"""

# What ALTER TABLE has dropped of its own table is seen when that is described, at the end of the
# statement; here, what went with it. Tables that have lost something are locked for that.
_ON_DROP = """
DECLARE
    lost record;
    homes text[] := '{}';
    kind text;
    relations oid[] := '{}';
    types oid[] := '{}';
    gone jsonb;
    altered oid;
    is_altering boolean := tg_tag = 'ALTER TABLE';
    names text[] := '{}';
    kinds text[] := '{}';
    numbers oid[] := '{}';
    spaces text[] := '{}';
    tables text[] := '{}';
BEGIN
    FOR lost IN
        SELECT d.classid, d.objid, d.original, d.object_type, d.object_identity, d.address_names,
               coalesce(d.schema_name, '') AS space, d.object_name
        FROM pg_event_trigger_dropped_objects() d
        WHERE NOT d.is_temporary AND coalesce(d.schema_name, d.address_names[1], '') !~ '^pg_'
          AND coalesce(d.schema_name, d.address_names[1], '') NOT IN ('information_schema', 'penstock')
    LOOP
        IF lost.object_type IN ('table column', 'table constraint', 'default value') THEN
            SELECT c.oid INTO altered FROM pg_namespace n
            JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = lost.address_names[2]
            WHERE n.nspname = lost.address_names[1];
            IF FOUND AND is_altering AND lost.original THEN
                homes := homes || altered::text;
            ELSIF FOUND THEN
                relations := relations || altered;
            END IF;
        ELSIF lost.object_type = 'composite type column' THEN
            types := types || ARRAY(
                SELECT t.oid FROM pg_namespace n
                JOIN pg_type t ON t.typnamespace = n.oid AND t.typname = lost.address_names[2]
                WHERE n.nspname = lost.address_names[1]);
        ELSE
            kind := CASE
                WHEN lost.object_type IN ('table', 'sequence', 'schema') THEN lost.object_type || 's'
                WHEN lost.object_type = 'index'
                     AND (lost.original OR tg_tag NOT IN ('ALTER TABLE', 'DROP TABLE')) THEN 'indexes'
                WHEN lost.classid = 'pg_type'::regclass AND lost.object_identity NOT LIKE '%[]'
                THEN 'types' END;
            IF kind IS NOT NULL THEN
                kinds := kinds || kind;
                numbers := numbers || lost.objid;
                spaces := spaces || lost.space::text;
                names := names || coalesce(lost.object_name, '')::text;
            END IF;
            IF lost.classid = 'pg_class'::regclass
               AND lost.object_type NOT IN ('composite type', 'index') THEN
                tables := tables || format('%s.%s', lost.space, lost.object_name);
            END IF;
        END IF;
    END LOOP;
    relations := ARRAY(SELECT unnest(relations) EXCEPT SELECT unnest(homes)::oid);
    IF kinds = '{}' AND relations = '{}' AND types = '{}' THEN
        RETURN;
    END IF;
    -- The row types of tables go with them.
    SELECT coalesce(jsonb_object_agg(w.key, w.list), '{}') INTO gone FROM (
        SELECT 'dropped_' || d.kind AS key, jsonb_agg(jsonb_build_object(
            'id', d.number::int8, 'schema_name', d.space, 'name', d.name)) AS list
        FROM unnest(kinds, numbers, spaces, names) AS d(kind, number, space, name)
        WHERE d.kind <> 'types' OR format('%s.%s', d.space, d.name) <> ALL (tables)
        GROUP BY d.kind) AS w;
    PERFORM penstock.tell(tg_tag, relations, types, '{}', gone);
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'penstock could not tell what this % dropped (SQLSTATE %)', tg_tag, SQLSTATE
        USING HINT = 'penstock check tells whether its triggers are whole';
END"""

EVENT_FUNCTIONS = (
    Function("held", "is_strong boolean", "oid[]", _HELD),
    Function(
        "tell",
        "tag text, relations oid[], types oid[], sequences oid[], gone jsonb",
        "void",
        _TELL,
    ),
    Function("rules_match", "rules jsonb, schema_name text, table_name text", "boolean", _RULES),
    Function("stamp_chooses", "stamp jsonb, named jsonb", "boolean", _STAMP_CHOOSES),
    Function("enrol", "relation oid", "jsonb", _ENROL, settings="lock_timeout=1"),
    Function("release", "relations oid[]", "void", _RELEASE, settings="lock_timeout=1"),
    Function("altered_indexes", "oids oid[], told oid[]", "jsonb", _INDEXES),
    Function("members", "oids oid[]", "jsonb", _MEMBERS),
    Function("partitions", "oids oid[]", "jsonb", _PARTITIONS),
    Function("on_ddl_command_end", "", "event_trigger", _ON_DDL, True),
    Function("on_sql_drop", "", "event_trigger", _ON_DROP, True),
)
