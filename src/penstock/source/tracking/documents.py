"""Functions in schema penstock of the source that describe tables, types and sequences, and sign that.

Nothing is written but logical messages, and nothing is read but the system catalogs and the secret: these
functions take no lock that another transaction could wait for in a user's transaction. (`members` locks
penstock's own publications, for which no user's statement waits.) Bodies in PL/pgSQL and ASCII; `sql` makes statements of them.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.schema.catalog import SEQUENCE_DOCUMENT, TABLE_DOCUMENTS, TYPE_DOCUMENT
from penstock.schema.shape import CHANGE_PREFIX, FORMAT, REFRESH
from penstock.source.tracking.lines import COLLATIONS, TABLE_SEQUENCES, TABLE_TYPES


class Function(NamedTuple):
    """One function. A definer's function runs with the rights of who installed it, and calls the others."""

    name: str
    arguments: str
    returns: str
    body: str
    is_definers: bool = False
    settings: tuple[str, ...] = ()


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

# A sequence that a column owns is described with its table.
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

# Sequences that columns own of tables that are not described. Nothing is locked for it.
_COLUMN_SEQUENCES = f"""
BEGIN
    RETURN (
        SELECT json_agg(json_build_object('table_id', o.refobjid::int8, 'column', o.refobjsubid,
            'kind', o.deptype::text, 'spelled', s.seqrelid::regclass::text,
            'sequence', {SEQUENCE_DOCUMENT}))
        FROM pg_depend o JOIN pg_sequence s ON s.seqrelid = o.objid
        JOIN pg_class sc ON sc.oid = s.seqrelid JOIN pg_namespace sn ON sn.oid = sc.relnamespace
        WHERE o.classid = 'pg_class'::regclass AND o.refclassid = 'pg_class'::regclass
          AND o.refobjsubid > 0 AND o.deptype IN ('a', 'i')
          AND o.objid = ANY (oids) AND o.refobjid <> ALL (told));
END"""

# A message is signed, because anybody may write logical messages: a hash with a secret, twice. It is in
# UTF-8, because a message is not converted on its way.
#
# It carries the id of the subtransaction that is open now. A decoder that sends a transaction before its
# end says by such ids what was rolled back since; but a message it gives the id of the whole transaction.
# No function returns that id, but each open subtransaction holds a lock on its own once it has written
# something, and the innermost has the newest. pg_locks is a view of pg_lock_status.
#
# It says when its snapshot may be older than what others have changed since, and which transactions that shows.
#
# A message is ordered by the end of its record, a row by its start. A trigger's block is a
# subtransaction: without a record between, the row after it could come first.
#
# One query, in the order of its steps: whoever refers to another comes after it.
SAY = f"""
    SELECT ARRAY[
        pg_logical_emit_message(true, '{CHANGE_PREFIX}', convert_to(encode(sha256(
            s.secret || sha256(s.secret || d.content)), 'hex'), 'UTF8') || d.content),
        pg_logical_emit_message(true, 'penstock', '')]
    INTO STRICT sent
    FROM (SELECT pg_logical_emit_message(true, 'penstock', '') AS lsn OFFSET 0) AS begun
    CROSS JOIN LATERAL (
        SELECT l.transactionid AS own_xid FROM pg_lock_status() l
        WHERE l.pid = pg_backend_pid() AND l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock'
          AND begun.lsn IS NOT NULL
        ORDER BY age(l.transactionid) LIMIT 1) AS x
    CROSS JOIN LATERAL (
        SELECT convert_to(concat('{{"xid": ', x.own_xid,
            CASE WHEN current_setting('transaction_isolation') <> 'read committed'
                 THEN concat(', "has_old_snapshot": true, "snapshot": "', pg_current_snapshot(), '"') END,
            ', ', substr(document, 2)), 'UTF8')
        AS content OFFSET 0) AS d
    CROSS JOIN penstock.seal s;"""

_SAY = f"""
DECLARE
    sent pg_lsn[];
BEGIN{SAY}
END"""

# Tables in portions, so that no message is large.
_REFRESH = f"""
DECLARE
    change jsonb := penstock.schema_document(name) || jsonb_build_object('tag', '{REFRESH}',
        'schemas', (
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
        change := jsonb_build_object('format', {FORMAT}, 'tag', '{REFRESH}');
    END LOOP;
END"""

DOCUMENT_FUNCTIONS = (
    Function("table_documents", "oids oid[]", "jsonb", _TABLES),
    Function("type_documents", "oids oid[]", "jsonb", _TYPES),
    Function("sequence_documents", "oids oid[]", "jsonb", _SEQUENCES),
    Function("schema_types", "name text", "jsonb", _SCHEMA_TYPES),
    Function("schema_sequences", "name text", "jsonb", _SCHEMA_SEQUENCES),
    Function("schema_document", "name text", "jsonb", _SCHEMA),
    Function("column_sequences", "oids oid[], told oid[]", "json", _COLUMN_SEQUENCES),
    Function("table_collations", "number oid", "json", COLLATIONS),
    Function("table_types", "number oid", "jsonb", TABLE_TYPES),
    Function("table_sequences", "number oid", "jsonb", TABLE_SEQUENCES),
    Function("say", "document text", "void", _SAY),
    Function("refresh_schema", "name text", "void", _REFRESH, True),
)
