"""Functions in schema penstock of the source that describe tables, types and sequences, and sign that.

Nothing is written but logical messages, and nothing is read but the system catalogs and the secret: what
runs in a user's transaction takes no lock that another transaction could wait for. Bodies in PL/pgSQL and ASCII; `tracking_sql` makes statements of them.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.schema.catalog import (
    FREE_SEQUENCES,
    INDEX_DEFINITION,
    SEQUENCE_DOCUMENT,
    TABLE_DOCUMENTS,
    TYPE_DOCUMENT,
    TYPES,
)
from penstock.schema.shape import CHANGE_PREFIX, FORMAT, REFRESH


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

# Not the row types of tables, not what an extension brings; arrays and multiranges where they are asked
# for: their names follow those of what they are made of.
_TYPES = f"""
BEGIN
    RETURN (
        SELECT coalesce(jsonb_agg({TYPE_DOCUMENT} ORDER BY tn.nspname, t.typname), '[]')
        FROM pg_type t JOIN pg_namespace tn ON tn.oid = t.typnamespace
        WHERE t.oid = ANY (oids) AND {NOT_OURS.format("tn")}
          AND (t.typtype IN ('e', 'd', 'r', 'm') OR t.typcategory = 'A' OR EXISTS (
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

# As FOREIGN_KEYS, with fewer of the fields that must be asked of the row as JSON: that takes longer than
# all the rest.
_FOREIGN_KEYS_FAST = """SELECT json_agg(x) INTO foreign_keys FROM (
            SELECT o.oid::int8 AS id, o.conname AS name, o.conkey AS columns,
                   f.oid::int8 AS referenced_id, fn.nspname AS referenced_schema,
                   f.relname AS referenced_name, (
                       SELECT json_agg(a.attname ORDER BY array_position(o.confkey, a.attnum))
                       FROM pg_attribute a
                       WHERE a.attrelid = o.confrelid AND a.attnum = ANY (o.confkey)
                   ) AS referenced_columns,
                   o.confupdtype::text AS on_update, o.confdeltype::text AS on_delete,
                   coalesce(CASE WHEN o.confdeltype IN ('n', 'd') THEN
                       nullif(to_jsonb(o) -> 'confdelsetcols', 'null') END, '[]') AS on_delete_columns,
                   o.confmatchtype::text AS match, o.condeferrable AS is_deferrable,
                   o.condeferred AS is_deferred, o.convalidated AS is_valid,
                   CASE WHEN is_18 THEN (to_jsonb(o) ->> 'conenforced')::boolean ELSE true END
                       AS is_enforced,
                   CASE WHEN is_18 THEN (to_jsonb(o) ->> 'conperiod')::boolean ELSE false END
                       AS has_period
            FROM pg_constraint o
            LEFT JOIN pg_constraint p ON p.oid = o.conparentid
            JOIN pg_class f ON f.oid = o.confrelid JOIN pg_namespace fn ON fn.oid = f.relnamespace
            WHERE o.conrelid = number AND o.contype = 'f' AND p.conrelid IS DISTINCT FROM o.conrelid
            ORDER BY o.conname) AS x;"""

# One table, for a trigger: within a user's statement every tenth of a millisecond counts, so that it is
# asked for in small pieces, and only for those that it has. Where an index, an expression or a
# constraint is spelled, Postgres locks the table for a moment: the caller's transaction has it locked
# already. `penstock.schema.wire` makes of it what TABLE_DOCUMENTS says of the same table.
_DESCRIBE = f"""
#variable_conflict use_column
DECLARE
    c record;
    has record;
    details json;
    collations json;
    sequences json;
    free_sequences json;
    comments json;
    constraints json;
    own_indexes oid[];
    has_foreign_keys boolean;
    foreign_keys json;
    indexes json;
    has_expressions boolean;
    depends json;
    types json;
    is_18 boolean := current_setting('server_version_num')::int >= 180000;
BEGIN
    SELECT k.oid, k.relname, n.nspname, k.relkind, k.relreplident, k.relhasindex, k.reltype,
           coalesce(pg_relation_filenode(k.oid)::int8, 0) AS filenode
    INTO c FROM pg_class k JOIN pg_namespace n ON n.oid = k.relnamespace
    WHERE k.oid = number AND k.relkind IN ('r', 'p') AND NOT k.relispartition
      AND k.relpersistence <> 't' AND {NOT_OURS.format("n")};
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT json_agg(json_build_object('id', a.attnum, 'name', a.attname,
               'type', format_type(a.atttypid, a.atttypmod), 'type_id', a.atttypid::int8,
               'type_kind', t.typtype::text, 'type_modifier', a.atttypmod,
               'not_null', a.attnotnull) ORDER BY a.attnum) AS columns,
           bool_or(a.atthasdef OR a.atthasmissing OR a.attidentity <> '') AS details,
           bool_or(a.attidentity <> '') AS sequences,
           bool_or(a.attcollation <> t.typcollation) AS collations,
           bool_or(a.atttypid >= 16384) AS types
    INTO has FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = number AND a.attnum > 0 AND NOT a.attisdropped;
    IF has.details THEN
        SELECT json_agg(x) INTO details FROM (
            SELECT a.attnum AS id, pg_get_expr(d.adbin, d.adrelid) AS value,
                   CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END AS missing,
                   a.attidentity::text AS identity, a.attgenerated::text AS generated
            FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = number AND d.adnum = a.attnum
            WHERE a.attrelid = number AND a.attnum > 0 AND NOT a.attisdropped
              AND (a.atthasdef OR a.atthasmissing OR a.attidentity <> '')) AS x;
    END IF;
    IF has.sequences OR details::text LIKE '%"nextval(%' THEN
        sequences := penstock.column_sequences(number, NULL, NULL);
    END IF;
    IF details::text LIKE '%nextval(%' THEN
        free_sequences := ({FREE_SEQUENCES});
    END IF;
    IF has.collations THEN
        SELECT json_object_agg(a.attnum, format('%I.%I', n.nspname, l.collname)) INTO collations
        FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        JOIN pg_collation l ON l.oid = a.attcollation JOIN pg_namespace n ON n.oid = l.collnamespace
        WHERE a.attrelid = number AND a.attnum > 0 AND NOT a.attisdropped
          AND a.attcollation <> t.typcollation;
    END IF;
    SELECT json_object_agg(w.objsubid, w.description) INTO comments FROM pg_description w
    WHERE w.objoid = number AND w.classoid = 'pg_class'::regclass;
    SELECT json_agg(json_build_object('id', o.oid::int8, 'name', o.conname, 'kind', o.contype::text,
               'definition', pg_get_constraintdef(o.oid), 'columns', o.conkey,
               'index_id', o.conindid::int8, 'is_deferrable', o.condeferrable,
               'has_period', CASE WHEN is_18 AND o.contype IN ('p', 'u')
                   THEN (to_jsonb(o) ->> 'conperiod')::boolean ELSE false END)
               ORDER BY o.contype, o.conname) FILTER (WHERE o.contype <> 'f'),
           array_agg(o.conindid) FILTER (WHERE o.contype IN ('p', 'u', 'x')),
           bool_or(o.contype = 'f')
    INTO constraints, own_indexes, has_foreign_keys
    FROM pg_constraint o WHERE o.conrelid = number AND o.contype IN ('p', 'u', 'x', 'c', 'f');
    IF has_foreign_keys THEN
        {_FOREIGN_KEYS_FAST}
    END IF;
    IF c.relhasindex THEN
        SELECT json_agg(x), bool_or(x.has_expressions) INTO indexes, has_expressions FROM (
            SELECT x.oid::int8 AS id, x.relname AS name, i.indisunique AS is_unique,
                   CASE WHEN x.oid <> ALL (coalesce(own_indexes, '{{}}')) THEN
                   {INDEX_DEFINITION.format(schema="c.nspname")}
                   END AS definition,
                   i.indkey::int2[] AS numbers, i.indnkeyatts AS key_count,
                   i.indisvalid AS is_valid, i.indimmediate AS is_immediate,
                   i.indisreplident AS is_identity,
                   i.indexprs IS NOT NULL OR i.indpred IS NOT NULL AS has_expressions
            FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
            WHERE i.indrelid = number AND i.indislive ORDER BY x.relname) AS x;
    END IF;
    IF has_expressions THEN
        depends := penstock.index_columns(number);
    END IF;
    IF has.types THEN
        types := ({TYPES});
    END IF;
    RETURN json_build_object('id', number::int8, 'schema_name', c.nspname, 'name', c.relname,
        'kind', c.relkind::text, 'replica_identity', c.relreplident::text, 'filenode', c.filenode,
        'row_type_id', c.reltype::int8, 'row_type', format_type(c.reltype, NULL),
        'columns', has.columns, 'details', details, 'collations', collations, 'sequences', sequences,
        'free_sequences', free_sequences,
        'comments', comments, 'constraints', constraints, 'foreign_keys', foreign_keys,
        'indexes', indexes, 'depends', depends, 'types', types);
END"""

# Sequences that columns own: those of one table, or these. Nothing is locked for it.
_OWNED_SEQUENCES = f"""
        SELECT json_agg(json_build_object('table_id', o.refobjid::int8, 'column', o.refobjsubid,
            'kind', o.deptype::text, 'spelled', s.seqrelid::regclass::text,
            'sequence', {SEQUENCE_DOCUMENT}))
        FROM pg_depend o JOIN pg_sequence s ON s.seqrelid = o.objid
        JOIN pg_class sc ON sc.oid = s.seqrelid JOIN pg_namespace sn ON sn.oid = sc.relnamespace
        WHERE o.classid = 'pg_class'::regclass AND o.refclassid = 'pg_class'::regclass
          AND o.refobjsubid > 0 AND o.deptype IN ('a', 'i')"""
_COLUMN_SEQUENCES = f"""
BEGIN
    IF oids IS NULL THEN
        RETURN ({_OWNED_SEQUENCES} AND o.refobjid = relation);
    END IF;
    RETURN ({_OWNED_SEQUENCES} AND o.objid = ANY (oids) AND o.refobjid <> ALL (told));
END"""

# Which columns the expressions and predicates of a table's indexes use.
_INDEX_COLUMNS = """
BEGIN
    RETURN (
        SELECT json_agg(json_build_array(p.objid::int8, p.refobjsubid))
        FROM pg_index i JOIN pg_depend p ON p.classid = 'pg_class'::regclass
            AND p.objid = i.indexrelid AND p.refclassid = 'pg_class'::regclass
            AND p.refobjid = i.indrelid AND p.refobjsubid > 0
        WHERE i.indrelid = relation);
END"""

# Anybody may write logical messages, so that penstock's own are signed: a hash with a secret, twice.
# In UTF-8, because a message is not converted on its way.
_SEALED = """
DECLARE
    content bytea := convert_to(document, 'UTF8');
    secret bytea;
BEGIN
    SELECT s.secret INTO STRICT secret FROM penstock.seal s;
    RETURN convert_to(encode(sha256(secret || sha256(secret || content)), 'hex'), 'UTF8') || content;
END"""

# The id of the subtransaction that is open now, which a message gives it. A decoder that sends a
# transaction before its end tells by such ids what was rolled back since; but a message it gives the
# id of the whole transaction, so that penstock's carry their own. No function tells it, but each open
# subtransaction holds a lock on its id, and the innermost has the newest.
_OWN_XID = """
DECLARE
    found xid;
BEGIN
    PERFORM pg_logical_emit_message(true, 'penstock', '');
    SELECT l.transactionid INTO STRICT found FROM pg_locks l
    WHERE l.pid = pg_backend_pid() AND l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock'
    ORDER BY age(l.transactionid) LIMIT 1;
    RETURN found::text::int8;
END"""

# A message is ordered by the end of its record, a row by its start. A trigger's block is a
# subtransaction: without a record between, the row after it could come first.
_SAY = f"""
BEGIN
    PERFORM pg_logical_emit_message(true, '{CHANGE_PREFIX}', penstock.sealed(document));
    PERFORM pg_logical_emit_message(true, 'penstock', '');
END"""

# Tables in portions, so that no message is large.
_REFRESH = f"""
DECLARE
    change jsonb := penstock.schema_document(name) || jsonb_build_object('tag', '{REFRESH}',
        'xid', penstock.own_xid(), 'schemas', (
            SELECT coalesce(jsonb_agg(jsonb_build_object('id', n.oid::int8, 'name', n.nspname)), '[]')
            FROM pg_namespace n WHERE n.nspname = name));
    tables jsonb := change -> 'tables';
    start integer := 0;
BEGIN
    LOOP
        change := change || jsonb_build_object('tables', coalesce((
            SELECT jsonb_agg(t.one ORDER BY t.place) FROM jsonb_array_elements(tables)
            WITH ORDINALITY AS t(one, place) WHERE t.place > start AND t.place <= start + 100), '[]'));
        PERFORM penstock.say(change::text);
        start := start + 100;
        EXIT WHEN start >= jsonb_array_length(tables);
        change := jsonb_build_object('format', {FORMAT}, 'tag', '{REFRESH}',
            'xid', penstock.own_xid());
    END LOOP;
END"""

DOCUMENT_FUNCTIONS = (
    Function("table_documents", "oids oid[]", "jsonb", _TABLES),
    Function("type_documents", "oids oid[]", "jsonb", _TYPES),
    Function("sequence_documents", "oids oid[]", "jsonb", _SEQUENCES),
    Function("schema_types", "name text", "jsonb", _SCHEMA_TYPES),
    Function("schema_sequences", "name text", "jsonb", _SCHEMA_SEQUENCES),
    Function("schema_document", "name text", "jsonb", _SCHEMA),
    Function("column_sequences", "relation oid, oids oid[], told oid[]", "json", _COLUMN_SEQUENCES),
    Function("index_columns", "relation oid", "json", _INDEX_COLUMNS),
    Function("describe", "number oid", "json", _DESCRIBE),
    Function("sealed", "document text", "bytea", _SEALED),
    Function("own_xid", "", "bigint", _OWN_XID),
    Function("say", "document text", "void", _SAY),
    Function("refresh_schema", "name text", "void", _REFRESH, True),
)
