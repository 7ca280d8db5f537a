"""Functions in schema penstock of the source that write documents and number their versions.

Bodies in PL/pgSQL and ASCII; `tracking_sql` makes statements of them.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.schema.catalog import SEQUENCE_DOCUMENT, TABLE_DOCUMENTS, TYPE_DOCUMENT
from penstock.schema.shape import CHANGE_PREFIX, FORMAT, REFRESH, VERSION_PREFIX


class Function(NamedTuple):
    """One function. A definer's function runs with the rights of who installed it."""

    name: str
    arguments: str
    returns: str
    body: str
    is_definers: bool = False
    settings: str = ""


NOT_OURS = "{0}.nspname !~ '^pg_' AND {0}.nspname NOT IN ('information_schema', 'penstock')"

# PL/pgSQL, because it keeps the plan of these large queries for the whole session.
_TABLES = f"""
BEGIN
    RETURN ({TABLE_DOCUMENTS.replace("{oids}", "oids")});
END"""

# Not the row types of tables, not arrays, not what an extension brings.
_TYPES = f"""
BEGIN
    RETURN (
        SELECT coalesce(jsonb_agg({TYPE_DOCUMENT} ORDER BY tn.nspname, t.typname), '[]')
        FROM pg_type t JOIN pg_namespace tn ON tn.oid = t.typnamespace
        WHERE t.oid = ANY (oids) AND {NOT_OURS.format("tn")}
          AND (t.typtype IN ('e', 'd', 'r') OR EXISTS (
              SELECT FROM pg_class k WHERE k.oid = t.typrelid AND k.relkind = 'c'))
          AND NOT EXISTS (SELECT FROM pg_depend x WHERE x.classid = 'pg_type'::regclass
                          AND x.objid = t.oid AND x.deptype = 'e'));
END"""

# A sequence that a column owns is told with its table.
_SEQUENCES = f"""
BEGIN
    RETURN (
        SELECT coalesce(jsonb_agg({SEQUENCE_DOCUMENT} ORDER BY sn.nspname, sc.relname), '[]')
        FROM pg_sequence s JOIN pg_class sc ON sc.oid = s.seqrelid
        JOIN pg_namespace sn ON sn.oid = sc.relnamespace
        WHERE s.seqrelid = ANY (oids) AND sc.relpersistence <> 't' AND {NOT_OURS.format("sn")}
          AND NOT EXISTS (
              SELECT FROM pg_depend o WHERE o.classid = 'pg_class'::regclass AND o.objid = sc.oid
              AND (o.deptype = 'e' OR o.refclassid = 'pg_class'::regclass AND o.refobjsubid > 0
                   AND o.deptype IN ('a', 'i'))));
END"""

_SCHEMA_TYPES = """
BEGIN
    RETURN penstock.type_documents(ARRAY(
        SELECT t.oid FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
        WHERE n.nspname = name AND t.typtype IN ('e', 'd', 'r', 'c')));
END"""

_SCHEMA_SEQUENCES = """
BEGIN
    RETURN penstock.sequence_documents(ARRAY(
        SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = name AND c.relkind = 'S'));
END"""

_SCHEMA = f"""
BEGIN
    RETURN jsonb_build_object(
        'format', {FORMAT},
        'tables', penstock.table_documents(ARRAY(
            SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = name AND c.relkind IN ('r', 'p'))),
        'types', penstock.schema_types(name),
        'sequences', penstock.schema_sequences(name));
END"""

# The document of the earlier version, with all anew that this transaction touched. What is there and
# what has gone the catalog tells; a file that is another (TRUNCATE, VACUUM FULL) no event tells, so
# it is compared. Types are in the documents of tables too, and so is a table's row type, where a
# column has it; a sequence, in that of the table that owned it. Null: the document does not fit.
_PATCHED = f"""
DECLARE
    fits boolean := base @> '{{"format": {FORMAT}}}';
    parts oid[] := touched || ARRAY(SELECT reltype FROM pg_class WHERE oid = ANY (touched));
    has_sequences boolean := EXISTS (SELECT FROM pg_sequence WHERE seqrelid = ANY (touched));
    found record;
    earlier jsonb := base -> 'tables';  -- base itself is unpacked anew at each use
    tables jsonb := '[]';
    types jsonb := base -> 'types';
    sequences jsonb := penstock.schema_sequences(name);
BEGIN
    IF fits IS NOT TRUE THEN
        RETURN NULL;
    END IF;
    SELECT array_agg(now.oid) FILTER (WHERE NOT x.is_same) AS anew,
           array_agg(now.oid) FILTER (WHERE x.is_same) AS kept,
           bool_and(now.oid IS NOT NULL AND e.oid IS NOT NULL) AS has_same_tables,
           min(e.place) FILTER (WHERE NOT x.is_same) - 1 AS first_place,
           bool_or(e.table_name <> now.relname) AS has_new_names
    INTO found
    FROM (
        SELECT c.oid, c.relname, coalesce(pg_relation_filenode(c.oid)::int8, 0) AS filenode
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = name AND c.relkind IN ('r', 'p') AND NOT c.relispartition
          AND c.relpersistence <> 't') AS now
    FULL JOIN (
        -- OFFSET, so that the join has these to carry and no documents.
        SELECT (t.one ->> 'id')::oid AS oid, t.one ->> 'name' AS table_name, t.place,
               (t.one ->> 'filenode')::int8 AS filenode, t.one -> 'types' AS types,
               CASE WHEN has_sequences THEN t.one -> 'columns' END AS columns
        FROM jsonb_array_elements(earlier) WITH ORDINALITY AS t(one, place) OFFSET 0) AS e
      ON e.oid = now.oid
    CROSS JOIN LATERAL (SELECT coalesce(
        now.oid <> ALL (touched) AND e.filenode = now.filenode
        AND (e.types = '[]' OR NOT EXISTS (
            SELECT FROM jsonb_array_elements(e.types) AS p(one)
            WHERE (p.one ->> 'id')::oid = ANY (parts)))
        AND NOT (has_sequences AND EXISTS (
            SELECT FROM jsonb_array_elements(e.columns) AS k(one)
            WHERE (k.one -> 'sequence' ->> 'id')::oid = ANY (touched))), false)) AS x(is_same);
    IF found.has_new_names THEN
        RETURN NULL;
    END IF;
    IF EXISTS (
        SELECT FROM (
            SELECT t.oid, t.typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
            LEFT JOIN pg_class k ON k.oid = t.typrelid
            WHERE n.nspname = name AND (t.typtype IN ('e', 'd', 'r') OR k.relkind = 'c')
              AND NOT EXISTS (SELECT FROM pg_depend x WHERE x.classid = 'pg_type'::regclass
                              AND x.objid = t.oid AND x.deptype = 'e')) AS now
        FULL JOIN (SELECT (t.one ->> 'id')::oid, t.one ->> 'name'
                   FROM jsonb_array_elements(types) AS t(one)) AS e(oid, typname)
          ON e.oid = now.oid AND e.typname = now.typname
        WHERE now.oid IS NULL OR e.oid IS NULL OR now.oid = ANY (touched))
    THEN
        types := penstock.schema_types(name);
    END IF;
    IF cardinality(found.anew) > 0 THEN
        tables := penstock.table_documents(found.anew);
    END IF;
    -- To copy a large document takes most of the time: the rule, one table altered, copies it once.
    IF found.has_same_tables AND jsonb_array_length(tables) = 1 AND types = base -> 'types'
       AND sequences = base -> 'sequences' THEN
        RETURN jsonb_set(base, ARRAY['tables', found.first_place::text], tables -> 0);
    END IF;
    -- An array, because jsonb_agg() takes twice the time.
    RETURN jsonb_build_object('format', {FORMAT}, 'types', types, 'sequences', sequences,
        'tables', ARRAY(
            SELECT d.one FROM (
                SELECT t.one FROM jsonb_array_elements(earlier) AS t(one)
                WHERE (t.one ->> 'id')::oid = ANY (found.kept)
                UNION ALL SELECT jsonb_array_elements(tables)) AS d(one)
            ORDER BY (d.one ->> 'name')::name));
END"""

# One row without version for each schema and transaction; write_versions() ends it at commit. Rows
# without version are this transaction's own, or were left by one whose commit could not number them.
# What was touched is kept in the row, so that a savepoint takes back its share; null: everything, and
# that too when it is so much that to look for it would cost more.
_NOTE = """
BEGIN
    UPDATE penstock.schema_log l
    SET touched = CASE WHEN cardinality(oids) + cardinality(l.touched) <= 1000 THEN ARRAY(
        SELECT unnest(l.touched) UNION SELECT unnest(oids)) END
    WHERE l.schema_name = ANY (names) AND l.version IS NULL AND l.created_at = now()
      AND l.touched IS NOT NULL AND (l.touched @> oids) IS NOT TRUE;
    INSERT INTO penstock.schema_log (schema_name, touched)
    SELECT DISTINCT noted.name, oids FROM unnest(names) AS noted(name)
    WHERE NOT EXISTS (
        SELECT FROM penstock.schema_log l
        WHERE l.schema_name = noted.name AND l.version IS NULL AND l.created_at = now())
    ORDER BY 1;
END"""

# Locks are taken here, at commit, and in the order of names: nobody waits for a migration that is
# under way, and two never for each other. A version that this snapshot does not see (REPEATABLE
# READ) shows as a duplicate key. Such a one may lack what others have changed, and new names may be in
# documents of other schemas: nothing is made of these or of older ones. Every hundredth is made of
# the catalog alone, for what no event tells, like a function's new name in a default. The lock
# timeout is for a prepared transaction that is left.
_WRITE_VERSIONS = f"""
DECLARE
    waiting record;
    more record;
    document jsonb;
    wanted bigint;
    written boolean;
    oids oid[] := '{{}}';
    is_whole boolean := current_setting('transaction_isolation') <> 'read committed';
BEGIN
    BEGIN
        FOR waiting IN
            SELECT l.id, l.schema_name FROM penstock.schema_log l
            WHERE l.version IS NULL ORDER BY l.schema_name, l.id
        LOOP
            PERFORM pg_advisory_xact_lock(
                hashtextextended('penstock schema ' || waiting.schema_name, 0));
            FOR more IN SELECT l.touched FROM penstock.schema_log l WHERE l.version IS NULL LOOP
                is_whole := is_whole OR more.touched IS NULL;
                oids := oids || more.touched;
            END LOOP;
            SELECT coalesce(max(l.version), 0) + 1 INTO wanted FROM penstock.schema_log l
            WHERE l.schema_name = waiting.schema_name;
            document := NULL;
            IF NOT is_whole AND wanted % 100 <> 0 THEN
                SELECT penstock.patched_document(l.schema_name, l.schema, oids) INTO document
                FROM penstock.schema_log l
                WHERE l.schema_name = waiting.schema_name AND l.version = wanted - 1
                  AND NOT EXISTS (
                      SELECT FROM penstock.schema_log m WHERE m.lsn >= l.lsn
                      AND m.version IS NOT NULL AND m.touched IS NOT NULL);
            END IF;
            IF document IS NULL THEN
                document := penstock.schema_document(waiting.schema_name);
            END IF;
            LOOP
                BEGIN
                    UPDATE penstock.schema_log l
                    SET version = wanted, schema = document, lsn = pg_current_wal_insert_lsn(),
                        touched = CASE WHEN is_whole THEN '{{}}'::oid[] END
                    WHERE l.id = waiting.id AND l.version IS NULL;
                    written := FOUND;
                    EXIT;
                EXCEPTION WHEN unique_violation THEN
                    wanted := wanted + 1;
                END;
            END LOOP;
            IF written THEN
                PERFORM pg_logical_emit_message(true, '{VERSION_PREFIX}', penstock.sealed(
                    jsonb_build_object('format', {FORMAT}, 'id', waiting.id,
                        'schema_name', waiting.schema_name, 'version', wanted)));
            END IF;
        END LOOP;
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'penstock could not number this schema change (SQLSTATE %)', SQLSTATE
            USING HINT = 'the next one will be numbered for both; penstock check tells more';
    END;
    RETURN NULL;
END"""

# Anybody may write logical messages, so that penstock's own are signed: a hash with a secret, twice.
# In UTF-8, because a message is not converted on its way.
_SEALED = """
DECLARE
    content bytea := convert_to(document::text, 'UTF8');
    secret bytea;
BEGIN
    SELECT s.secret INTO STRICT secret FROM penstock.seal s;
    RETURN convert_to(encode(sha256(secret || sha256(secret || content)), 'hex'), 'UTF8') || content;
END"""

# Tables in portions, so that no message is large.
_SAY = f"""
DECLARE
    part jsonb := change;
    tables jsonb := coalesce(change -> 'tables', '[]');
    start integer := 0;
BEGIN
    LOOP
        part := part || jsonb_build_object('tables', coalesce((
            SELECT jsonb_agg(t.one ORDER BY t.place) FROM jsonb_array_elements(tables)
            WITH ORDINALITY AS t(one, place) WHERE t.place > start AND t.place <= start + 100), '[]'));
        PERFORM pg_logical_emit_message(true, '{CHANGE_PREFIX}', penstock.sealed(part));
        start := start + 100;
        EXIT WHEN start >= jsonb_array_length(tables);
        part := jsonb_build_object('format', {FORMAT}, 'tag', change ->> 'tag',
            'loose', coalesce(change -> 'loose', '[]'),
            'has_using', coalesce((change ->> 'has_using')::boolean, false),
            'has_old_snapshot', coalesce((change ->> 'has_old_snapshot')::boolean, false));
    END LOOP;
    -- A message is ordered by the end of its record, a row by its start. This block is a
    -- subtransaction: without a record between, the row after it could come first.
    PERFORM pg_logical_emit_message(true, 'penstock', '');
END"""

_REFRESH = f"""
BEGIN
    PERFORM penstock.say(penstock.schema_document(name) || jsonb_build_object('tag', '{REFRESH}',
        'schemas', (
            SELECT coalesce(jsonb_agg(jsonb_build_object('id', n.oid::int8, 'name', n.nspname)), '[]')
            FROM pg_namespace n WHERE n.nspname = name)));
    PERFORM penstock.note_schemas(ARRAY[name], NULL);
    DELETE FROM penstock.schema_log l
    WHERE l.schema_name = name AND l.acked AND l.created_at < now() - interval '90 days'
      AND EXISTS (SELECT FROM penstock.schema_log m
                  WHERE m.schema_name = l.schema_name AND m.version > l.version);
END"""

DOCUMENT_FUNCTIONS = (
    Function("table_documents", "oids oid[]", "jsonb", _TABLES),
    Function("type_documents", "oids oid[]", "jsonb", _TYPES),
    Function("sequence_documents", "oids oid[]", "jsonb", _SEQUENCES),
    Function("schema_types", "name text", "jsonb", _SCHEMA_TYPES),
    Function("schema_sequences", "name text", "jsonb", _SCHEMA_SEQUENCES),
    Function("schema_document", "name text", "jsonb", _SCHEMA),
    Function("patched_document", "name text, base jsonb, touched oid[]", "jsonb", _PATCHED),
    Function("note_schemas", "names text[], oids oid[]", "void", _NOTE),
    Function("write_versions", "", "trigger", _WRITE_VERSIONS, True, "lock_timeout=5000"),
    Function("sealed", "document jsonb", "bytea", _SEALED),
    Function("say", "change jsonb", "void", _SAY),
    Function("refresh_schema", "name text", "void", _REFRESH, True),
)
