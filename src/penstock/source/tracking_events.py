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
    done oid[];
    tables text;
    kinds json;
    alone json;
    owned json;
    made_of oid[];
    needing oid[];
BEGIN
    IF types IS NOT NULL THEN
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
    IF sequences IS NOT NULL THEN
        alone := nullif(penstock.sequence_documents(sequences), '[]');
        owned := penstock.column_sequences(sequences, coalesce(relations, '{{}}'));
    END IF;
    IF relations IS NOT NULL THEN
        FOREACH number IN ARRAY relations LOOP
            CONTINUE WHEN number = ANY (done);
            done := done || number;
            tables := concat_ws(', ', nullif(tables, ''), penstock.described(number));
        END LOOP;
    END IF;
    IF coalesce(tables, '') = '' AND coalesce(kinds, alone, owned) IS NULL
       AND coalesce(more - 'has_using', '{{}}') = '{{}}' THEN
        RETURN;
    END IF;
    -- The snapshot may be older than what others have changed since.
    PERFORM penstock.say(concat('{{"format": {FORMAT}, "tag": "', tag, '", "xid": ', penstock.own_xid(),
        ', "types": ' || kinds, ', "sequences": ' || alone, ', "column_sequences": ' || owned,
        CASE WHEN current_setting('transaction_isolation') <> 'read committed'
             THEN ', "has_old_snapshot": true' END,
        ', ' || nullif(substr(left(more::text, -1), 2), ''), ', "tables": [', tables, ']}}'));
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
          AND has_table_privilege(p.pubowner, 'penstock.seal', 'SELECT')
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

# Schemas that were made or altered; and what has a new name with them, as far as no lock is needed for it.
_SCHEMAS = f"""
BEGIN
    RETURN jsonb_strip_nulls(jsonb_build_object(
        'schemas', (
            SELECT jsonb_agg(jsonb_build_object('id', n.oid::int8, 'name', n.nspname))
            FROM pg_namespace n WHERE n.oid = ANY (oids) AND {NOT_OURS.format("n")}),
        'moved_tables', CASE WHEN are_altered THEN (
            SELECT jsonb_agg(jsonb_build_object(
                'id', c.oid::int8, 'schema_name', n.nspname, 'name', c.relname))
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relnamespace = ANY (oids) AND c.relkind IN ('r', 'p') AND NOT c.relispartition
              AND {NOT_OURS.format("n")}) END));
END"""

# A comment is all that COMMENT has changed. Called by the trigger, whose commands it asks for.
_COMMENTS = f"""
BEGIN
    RETURN (
        SELECT jsonb_build_object('comments', jsonb_agg(jsonb_build_object(
            'table_id', c.oid::int8, 'column', d.objsubid, 'text', w.description)))
        FROM pg_event_trigger_ddl_commands() d
        JOIN pg_class c ON c.oid = d.objid JOIN pg_namespace n ON n.oid = c.relnamespace
        LEFT JOIN pg_description w ON w.objoid = d.objid AND w.classoid = d.classid
            AND w.objsubid = d.objsubid
        WHERE d.classid = 'pg_class'::regclass AND NOT d.in_extension AND c.relkind IN ('r', 'p')
          AND NOT c.relispartition AND c.relpersistence <> 't' AND {NOT_OURS.format("n")}
        HAVING count(*) > 0);
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
_ON_DDL = """
DECLARE
    command record;
    relations oid[];
    types oid[];
    sequences oid[];
    indexes oid[];
    schemas oid[];
    made oid[];
    partitions oid[];
    number oid;
    has_roots boolean;
    has_heirs boolean;
    has_others boolean;
    statement text;
    context text;
    entered jsonb;
    more jsonb;
BEGIN
    SELECT array_agg(c.oid) FILTER (WHERE c.is_table),
           array_agg(c.oid) FILTER (WHERE c.is_table AND d.command_tag = 'CREATE TABLE'
               AND c.relispartition),
           array_agg(c.oid) FILTER (WHERE c.is_table AND d.command_tag = 'CREATE TABLE'
               AND NOT c.relispartition AND c.relpersistence = 'p' AND d.schema_name <> 'penstock'),
           array_agg(c.oid) FILTER (WHERE c.relkind IN ('i', 'I') AND d.command_tag <> 'COMMENT'),
           array_agg(c.oid) FILTER (WHERE c.relkind = 'S' AND d.command_tag <> 'COMMENT'),
           array_agg(c.reltype) FILTER (WHERE c.relkind = 'c' AND d.command_tag <> 'COMMENT'),
           bool_or(c.relkind = 'p'), bool_or(c.relkind = 'r' AND c.relhassubclass),
           bool_or(d.classid <> 'pg_class'::regclass AND d.command_tag <> 'COMMENT')
    INTO relations, partitions, made, indexes, sequences, types, has_roots, has_heirs, has_others
    FROM pg_event_trigger_ddl_commands() d LEFT JOIN LATERAL (
        SELECT k.oid, k.relkind, k.relpersistence, k.relispartition, k.relhassubclass, k.reltype,
               k.relkind IN ('r', 'p') AS is_table
        FROM pg_class k
        WHERE d.classid = 'pg_class'::regclass AND k.oid = d.objid AND k.relpersistence <> 't'
        OFFSET 0) AS c ON true
    WHERE NOT d.in_extension;
    IF has_others THEN
        FOR command IN
            SELECT d.classid, d.objid FROM pg_event_trigger_ddl_commands() d
            WHERE NOT d.in_extension AND d.classid <> 'pg_class'::regclass
              AND d.command_tag <> 'COMMENT'
        LOOP
            IF command.classid = 'pg_type'::regclass THEN
                types := types || command.objid;
            ELSIF command.classid = 'pg_constraint'::regclass THEN
                SELECT relations || nullif(o.conrelid, 0), types || nullif(o.contypid, 0)
                INTO relations, types FROM pg_constraint o WHERE o.oid = command.objid;
            ELSIF command.classid = 'pg_attrdef'::regclass THEN
                relations := relations || (
                    SELECT f.adrelid FROM pg_attrdef f WHERE f.oid = command.objid);
            ELSIF command.classid = 'pg_namespace'::regclass THEN
                schemas := schemas || command.objid;
            END IF;
        END LOOP;
        relations := nullif(array_remove(relations, NULL), '{}');
        types := nullif(array_remove(types, NULL), '{}');
    END IF;
    IF coalesce(relations, types, sequences, indexes, schemas) IS NULL THEN
        RETURN;
    END IF;
    IF tg_tag = 'COMMENT' THEN
        more := penstock.comments();
        IF more IS NOT NULL THEN
            PERFORM penstock.tell(tg_tag, NULL, NULL, NULL, more);
        END IF;
        RETURN;
    ELSIF tg_tag = 'ALTER TABLE' THEN
        PERFORM FROM pg_publication_rel r
        WHERE r.prrelid = ANY (relations) AND age(r.xmin) <= age(pg_current_xact_id()::xid);
        IF FOUND THEN
            PERFORM penstock.release(relations);
        END IF;
        GET DIAGNOSTICS context = PG_CONTEXT;  -- of a statement inside a function, its own text
        statement := concat_ws(' ', current_query(), context);
        IF length(statement) > 65536 OR statement ~* '\\yusing\\y' THEN
            more := '{"has_using": true}';
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
    IF schemas IS NOT NULL THEN
        more := penstock.altered_schemas(schemas, tg_tag = 'ALTER SCHEMA');
        IF tg_tag = 'ALTER SCHEMA' THEN
            types := (SELECT array_agg(t.oid) FROM pg_type t
                      WHERE t.typnamespace = ANY (schemas) AND t.typtype IN ('e', 'd', 'r', 'c'));
            sequences := (SELECT array_agg(c.oid) FROM pg_class c
                          WHERE c.relnamespace = ANY (schemas) AND c.relkind = 'S');
        END IF;
    END IF;
    IF indexes IS NOT NULL AND tg_tag <> 'CREATE TABLE' THEN
        more := coalesce(more, '{}') || jsonb_strip_nulls(jsonb_build_object(
            'indexes', penstock.altered_indexes(indexes, coalesce(relations, '{}'))));
    END IF;
    IF partitions IS NOT NULL THEN
        more := coalesce(more, '{}') || jsonb_strip_nulls(
            jsonb_build_object('partitions', penstock.partitions(partitions)));
    END IF;
    IF made IS NOT NULL THEN
        FOREACH number IN ARRAY made LOOP
            entered := penstock.enrol(number);
            IF entered <> '[]' THEN
                more := coalesce(more, '{}') || jsonb_build_object(
                    'born', coalesce(more -> 'born', '{}') || jsonb_build_object(
                        number::text, jsonb_build_object('born_in', entered, 'first_entries', (
                            SELECT jsonb_agg(r.oid::int8) FROM pg_publication_rel r
                            WHERE r.prrelid = number))));
            END IF;
        END LOOP;
    END IF;
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
    kind text;
    relations oid[];
    types oid[];
    gone jsonb;
    names text[];
    kinds text[];
    numbers oid[];
    spaces text[];
    tables text[] := '{}';
BEGIN
    FOR lost IN
        SELECT d.classid, d.objid, d.original, d.object_type, d.object_identity, d.address_names,
               coalesce(d.schema_name, '') AS space, d.object_name
        FROM pg_event_trigger_dropped_objects() d
        WHERE NOT d.is_temporary AND coalesce(d.schema_name, d.address_names[1], '') !~ '^pg_'
          AND coalesce(d.schema_name, d.address_names[1], '') NOT IN ('information_schema', 'penstock')
          AND (d.object_type IN ('table', 'sequence', 'schema', 'index', 'composite type column')
               OR d.object_type IN ('table column', 'table constraint', 'default value')
                  AND NOT (tg_tag = 'ALTER TABLE' AND d.original)
               OR d.classid IN ('pg_type'::regclass, 'pg_class'::regclass))
    LOOP
        IF lost.object_type IN ('table column', 'table constraint', 'default value') THEN
            relations := relations || (
                SELECT c.oid FROM pg_namespace n
                JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = lost.address_names[2]
                WHERE n.nspname = lost.address_names[1]);
        ELSIF lost.object_type = 'composite type column' THEN
            types := types || (
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
    relations := nullif(array_remove(relations, NULL), '{}');
    types := nullif(array_remove(types, NULL), '{}');
    IF tg_tag = 'ALTER TABLE' AND relations IS NOT NULL THEN
        -- But for those that the statement itself alters.
        relations := (SELECT array_agg(r.oid) FROM unnest(relations) AS r(oid) WHERE NOT EXISTS (
            SELECT FROM pg_event_trigger_dropped_objects() d
            JOIN pg_namespace n ON n.nspname = d.address_names[1]
            JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = d.address_names[2]
            WHERE c.oid = r.oid AND d.original
              AND d.object_type IN ('table column', 'table constraint', 'default value')));
    END IF;
    IF coalesce(kinds::text, relations::text, types::text) IS NULL THEN
        RETURN;
    END IF;
    -- The row types of tables go with them.
    SELECT jsonb_object_agg(w.key, w.list) INTO gone FROM (
        SELECT 'dropped_' || d.kind AS key, jsonb_agg(jsonb_build_object(
            'id', d.number::int8, 'schema_name', d.space, 'name', d.name)) AS list
        FROM unnest(kinds, numbers, spaces, names) AS d(kind, number, space, name)
        WHERE d.kind <> 'types' OR format('%s.%s', d.space, d.name) <> ALL (tables)
        GROUP BY d.kind) AS w;
    PERFORM penstock.tell(tg_tag, relations, types, NULL, gone);
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'penstock could not tell what this % dropped (SQLSTATE %)', tg_tag, SQLSTATE
        USING HINT = 'penstock check tells whether its triggers are whole';
END"""

# A trigger finds single rows, each by an index. How small a catalog was when a session planned its
# queries, or that nobody has analyzed it, must not make a trigger read all of it.
_BY_INDEX = (
    *("enable_seqscan=off", "enable_bitmapscan=off"),
    *("enable_hashjoin=off", "enable_mergejoin=off"),
)

EVENT_FUNCTIONS = (
    Function("held", "is_strong boolean", "oid[]", _HELD),
    Function(
        "tell",
        "tag text, relations oid[], types oid[], sequences oid[], more jsonb",
        "void",
        _TELL,
    ),
    Function("rules_match", "rules jsonb, schema_name text, table_name text", "boolean", _RULES),
    Function("stamp_chooses", "stamp jsonb, named jsonb", "boolean", _STAMP_CHOOSES),
    Function("enrol", "relation oid", "jsonb", _ENROL, settings=("lock_timeout=1",)),
    Function("release", "relations oid[]", "void", _RELEASE, settings=("lock_timeout=1",)),
    Function("altered_indexes", "oids oid[], told oid[]", "jsonb", _INDEXES),
    Function("altered_schemas", "oids oid[], are_altered boolean", "jsonb", _SCHEMAS),
    Function("partitions", "oids oid[]", "jsonb", _PARTITIONS),
    Function("comments", "", "jsonb", _COMMENTS),
    Function("on_ddl_command_end", "", "event_trigger", _ON_DDL, True, _BY_INDEX),
    Function("on_sql_drop", "", "event_trigger", _ON_DROP, True, _BY_INDEX),
)
