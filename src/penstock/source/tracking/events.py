"""Functions in schema penstock of the source that event triggers call: what did a statement touch?

What runs inside a user's statement never fails it: an error becomes a warning that names the
SQLSTATE, and no value of a row. Nor does it wait for anybody: it describes the tables that the statement
has locked, and of all else it names what has changed. Which other tables are concerned by that, the
reader of the stream knows (`penstock.schema.cascade`). How things are described: `documents`.
"""

from __future__ import annotations

from penstock.schema.catalog import INDEX_DEFINITION
from penstock.schema.shape import FORMAT
from penstock.source.tracking.documents import NOT_OURS, Function
from penstock.source.tracking.members import MEMBER_FUNCTIONS
from penstock.source.tracking.message import MESSAGE_FUNCTIONS

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
        SELECT concat('{{"format": {FORMAT}, "tag": "COMMENT", "comments": ' || json_agg(
            json_build_object('table_id', c.oid::int8, 'column', d.objsubid, 'text', w.description))
            || '}}')
        FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid
        LEFT JOIN pg_description w ON w.objoid = d.objid AND w.classoid = d.classid
            AND w.objsubid = d.objsubid
        WHERE d.object_type IN ('table', 'table column') AND NOT d.in_extension
          AND NOT c.relispartition AND d.schema_name !~ '^pg_'
          AND d.schema_name NOT IN ('information_schema', 'penstock'));
END"""

# Partitions that were made or attached. They are their roots', but where they go to somebody should know. Of those
# that have rows by then (what is attached may be partitioned itself) none is reported by a change of the root's;
# the statement has locked all of them.
_PARTITIONS = f"""
BEGIN
    RETURN (
        WITH RECURSIVE parts(oid) AS (
            SELECT unnest(oids)
            UNION
            SELECT i.inhrelid FROM parts JOIN pg_inherits i ON i.inhparent = parts.oid)
        SELECT jsonb_agg(jsonb_build_object('id', c.oid::int8, 'schema_name', n.nspname,
            'name', c.relname, 'root_id', pg_partition_root(c.oid)::oid::int8,
            'came_filled', CASE WHEN x.is_filled THEN true END))
        FROM parts JOIN pg_class c ON c.oid = parts.oid JOIN pg_namespace n ON n.oid = c.relnamespace
        CROSS JOIN LATERAL (
            SELECT c.relkind = 'r' AND pg_relation_size(c.oid) > 0 AS is_filled OFFSET 0) AS x
        WHERE (c.oid = ANY (oids) OR x.is_filled) AND c.relispartition AND c.relpersistence <> 't'
          AND {NOT_OURS.format("n")});
END"""

# One row for each thing that the statement made or altered. By what it is, not by the tag: ALTER
# INDEX renames tables too. Where the statement's text is not known, it may be any.
_TOUCHED = """
DECLARE
    command record;
    relations oid[];
    types oid[];
    sequences oid[];
    indexes oid[];
    schemas oid[];
    made oid[];
    partitions oid[];
    more jsonb;
BEGIN
    FOR command IN
        SELECT d.classid, d.objid, d.object_type, d.command_tag, d.schema_name
        FROM pg_event_trigger_ddl_commands() d
        WHERE NOT d.in_extension AND d.schema_name IS DISTINCT FROM 'pg_temp'
          AND d.command_tag <> 'COMMENT'
    LOOP
        CASE command.object_type
        WHEN 'table', 'table column' THEN
            relations := relations || command.objid;
            IF command.command_tag = 'CREATE TABLE' AND command.schema_name <> 'penstock' THEN
                made := made || command.objid;
            END IF;
        WHEN 'index', 'index column' THEN
            indexes := indexes || command.objid;
        WHEN 'sequence' THEN
            sequences := sequences || command.objid;
        WHEN 'schema' THEN
            schemas := schemas || command.objid;
        WHEN 'composite type', 'composite type column' THEN
            types := types || (SELECT c.reltype FROM pg_class c WHERE c.oid = command.objid);
        ELSE
            IF command.classid = 'pg_type'::regclass THEN
                types := types || command.objid;
            ELSIF command.classid = 'pg_constraint'::regclass THEN
                SELECT relations || nullif(o.conrelid, 0), types || nullif(o.contypid, 0)
                INTO relations, types FROM pg_constraint o WHERE o.oid = command.objid;
            ELSIF command.classid = 'pg_attrdef'::regclass THEN
                relations := relations || (
                    SELECT f.adrelid FROM pg_attrdef f WHERE f.oid = command.objid);
            END IF;
            relations := nullif(array_remove(relations, NULL), '{}');
            types := nullif(array_remove(types, NULL), '{}');
        END CASE;
    END LOOP;
    IF coalesce(relations, types, sequences, indexes, schemas) IS NULL THEN
        RETURN false;
    END IF;
    IF tag = 'ALTER TABLE' THEN
        IF statement IS NULL OR statement ~* '\\y(using|attach|detach)\\y' THEN
            IF statement IS NULL OR statement ~* '\\yusing\\y' THEN
                more := '{"has_using": true}';
            END IF;
            -- Nothing names what has come or gone; but its row in the catalog is of this transaction.
            SELECT relations || array_agg(c.oid) FILTER (WHERE NOT c.relispartition),
                   array_agg(c.oid) FILTER (WHERE c.relispartition)
            INTO relations, partitions
            FROM pg_class c WHERE c.oid = ANY (penstock.held(true)) AND c.relkind IN ('r', 'p')
              AND age(c.xmin) <= age(pg_current_xact_id()::xid)
              AND EXISTS (SELECT FROM pg_class r WHERE r.oid = ANY (relations) AND r.relkind = 'p')
              AND (statement IS NULL OR statement ~* '\\y(at|de)tach\\y');
        END IF;
    ELSIF made IS NOT NULL THEN
        SELECT array_agg(c.oid) FILTER (WHERE c.relispartition),
               array_agg(c.oid) FILTER (WHERE NOT c.relispartition AND c.relpersistence = 'p')
        INTO partitions, made FROM pg_class c WHERE c.oid = ANY (made);
        relations := nullif(relations, partitions);
        more := penstock.enrolled(made);
    END IF;
    IF schemas IS NOT NULL THEN
        more := coalesce(more, '{}') || penstock.altered_schemas(schemas, tag = 'ALTER SCHEMA');
        IF tag = 'ALTER SCHEMA' THEN
            types := (SELECT array_agg(t.oid) FROM pg_type t
                      WHERE t.typnamespace = ANY (schemas) AND t.typtype IN ('e', 'd', 'r', 'c'));
            sequences := (SELECT array_agg(c.oid) FROM pg_class c
                          WHERE c.relnamespace = ANY (schemas) AND c.relkind = 'S');
        END IF;
    END IF;
    IF indexes IS NOT NULL AND tag <> 'CREATE TABLE' THEN
        more := coalesce(more, '{}') || jsonb_strip_nulls(jsonb_build_object(
            'indexes', penstock.altered_indexes(indexes, coalesce(relations, '{}'))));
    END IF;
    IF partitions IS NOT NULL THEN
        more := coalesce(more, '{}') || jsonb_strip_nulls(
            jsonb_build_object('partitions', penstock.partitions(partitions)));
    END IF;
    RETURN penstock.tell_all(tag, relations, types, sequences, more);
END"""

# Postgres refuses to make a published table UNLOGGED before anybody is told which table it is. So tables that
# this transaction has made, and a trigger has published, are let go before the statement, unless its text is
# there and says nothing of the kind. Once: later statements find nothing to let go, however many there are.
#
# The text is the client's or, of a statement inside a function, in the context, whose first line is this
# function's; the context of a function in SQL names the function alone, in the server's language.
_BEFORE_DDL = """
DECLARE
    statement text;
BEGIN
    IF pg_current_xact_id_if_assigned() IS NULL THEN
        RETURN;
    END IF;
    BEGIN
        GET DIAGNOSTICS statement = PG_CONTEXT;
        statement := CASE WHEN strpos(statement, chr(10)) > 0
            THEN substr(statement, strpos(statement, chr(10))) ELSE current_query() END;
        IF statement IS NULL OR length(statement) > 65536 OR statement ~* 'unlogged(?!\\s+table\\y)'
           OR statement !~* '\\yalter\\s+table\\y' THEN
            PERFORM penstock.release_held(true);
        END IF;
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'penstock could not let go of new tables before this % (SQLSTATE %)', tg_tag, SQLSTATE
            USING HINT = 'penstock check says whether its triggers are whole';
    END;
END"""

# Most statements alter a table or two, and nothing else. One inside a function is known by its context; but
# that of a function in SQL names the function alone, and a worker has no text. Nor is a whole script searched.
_ON_DDL = """
DECLARE
    context text;
    statement text;
    relations oid[];
    are_all boolean;
    is_told boolean;
BEGIN
    IF tg_tag = 'COMMENT' THEN
        PERFORM penstock.say(more) FROM penstock.altered_comments() AS c(more) WHERE more <> '';
        RETURN;
    END IF;
    GET DIAGNOSTICS context = PG_CONTEXT;
    SELECT array_agg(DISTINCT d.objid), s.text,
           tg_tag = 'ALTER TABLE' AND bool_and(d.object_type IN ('table', 'table column')
               AND NOT d.in_extension AND d.schema_name <> 'pg_temp')
           AND s.text !~* '\\y(using|attach|detach)\\y'
    INTO relations, statement, are_all FROM pg_event_trigger_ddl_commands() d, (
        SELECT CASE WHEN length(concat(current_query(), context)) < 65536
                    AND CASE WHEN strpos(context, chr(10)) > 0
                        THEN substr(context, strpos(context, chr(10))) ELSE current_query() END
                        ~* '\\yalter\\s+table\\y'
               THEN concat(current_query(), ' ', context) END AS text OFFSET 0) AS s
    GROUP BY s.text;
    IF are_all THEN
        is_told := penstock.tell(tg_tag, relations, NULL);
    ELSIF relations IS NOT NULL THEN
        is_told := penstock.touched(tg_tag, statement);
    END IF;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'penstock could not describe what this % changed (SQLSTATE %)', tg_tag, SQLSTATE
        USING HINT = 'penstock check says whether its triggers are whole';
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
    is_told boolean;
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
    IF 'indexes' = ANY (kinds) THEN
        PERFORM penstock.release_held(false);
    END IF;
    -- The row types of tables go with them.
    SELECT jsonb_object_agg(w.key, w.list) INTO gone FROM (
        SELECT 'dropped_' || d.kind AS key, jsonb_agg(jsonb_build_object(
            'id', d.number::int8, 'schema_name', d.space, 'name', d.name)) AS list
        FROM unnest(kinds, numbers, spaces, names) AS d(kind, number, space, name)
        WHERE d.kind <> 'types' OR format('%s.%s', d.space, d.name) <> ALL (tables)
        GROUP BY d.kind) AS w;
    is_told := penstock.tell_all(tg_tag, relations, types, NULL, gone);
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'penstock could not describe what this % dropped (SQLSTATE %)', tg_tag, SQLSTATE
        USING HINT = 'penstock check says whether its triggers are whole';
END"""

# A trigger finds single rows, each by an index. How small a catalog was when a session planned its
# queries, or that nobody has analyzed it, must not make a trigger read all of it.
_BY_INDEX = (
    *("enable_seqscan=off", "enable_bitmapscan=off"),
    *("enable_hashjoin=off", "enable_mergejoin=off"),
)

EVENT_FUNCTIONS = (
    *MESSAGE_FUNCTIONS,
    *MEMBER_FUNCTIONS,
    Function("altered_indexes", "oids oid[], told oid[]", "jsonb", _INDEXES),
    Function("altered_schemas", "oids oid[], are_altered boolean", "jsonb", _SCHEMAS),
    Function("partitions", "oids oid[]", "jsonb", _PARTITIONS),
    Function("altered_comments", "", "text", _COMMENTS),
    Function("touched", "tag text, statement text", "boolean", _TOUCHED),
    Function("on_ddl_command_start", "", "event_trigger", _BEFORE_DDL, True, _BY_INDEX),
    Function("on_ddl_command_end", "", "event_trigger", _ON_DDL, True, _BY_INDEX),
    Function("on_sql_drop", "", "event_trigger", _ON_DROP, True, _BY_INDEX),
)
