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


# Rows of text: to build a JSON object takes longer than to find what it says. `penstock.schema.wire` has the
# names of the fields, in the same order.
def _rows(*fields: str, where: str = "true") -> str:
    return f"array_to_json(array_agg(ARRAY[{', '.join(fields)}]) FILTER (WHERE {where}))::text"


# Fields of pg_constraint that Postgres has since 18: PL/pgSQL parses a query when it is first run.
def _per_version(query: str) -> str:
    is_new, is_old = (query.format(enforced=e, period=p) for e, p in _SINCE_18)
    return f"IF is_18 THEN {is_new} ELSE {is_old} END IF;"


_SINCE_18 = (("o.conenforced::text", "o.conperiod::text"), ("'true'", "'false'"))

_CONSTRAINTS = _rows(
    *("o.oid::text", "o.conname::text", "o.contype::text", "pg_get_constraintdef(o.oid)"),
    *("o.conkey::text", "o.conindid::text", "o.condeferrable::text", "{period}"),
    where="o.contype <> 'f'",
)
_READ_CONSTRAINTS = f"""
        SELECT {_CONSTRAINTS},
               array_agg(o.conindid) FILTER (WHERE o.contype IN ('p', 'u', 'x')),
               bool_or(o.contype = 'f')
        INTO constraints, own_indexes, has_foreign_keys
        FROM pg_constraint o WHERE o.conrelid = number AND o.contype IN ('p', 'u', 'x', 'c', 'f');"""

_REFERENCED_COLUMNS = """(
            SELECT array_to_json(array_agg(a.attname::text
                                           ORDER BY array_position(o.confkey, a.attnum)))::text
            FROM pg_attribute a WHERE a.attrelid = o.confrelid AND a.attnum = ANY (o.confkey))"""
_FOREIGN_KEYS = _rows(
    *("o.oid::text", "o.conname::text", "o.conkey::text"),
    *("f.oid::text", "fn.nspname::text", "f.relname::text", _REFERENCED_COLUMNS),
    *("o.confupdtype::text", "o.confdeltype::text"),
    # Postgres 14 has no such field.
    "CASE WHEN o.confdeltype IN ('n', 'd') THEN to_jsonb(o) ->> 'confdelsetcols' END",
    *("o.confmatchtype::text", "o.condeferrable::text", "o.condeferred::text"),
    *("o.convalidated::text", "{enforced}", "{period}"),
)
_READ_FOREIGN_KEYS = f"""
        SELECT {_FOREIGN_KEYS} INTO foreign_keys
        FROM pg_constraint o
        JOIN pg_class f ON f.oid = o.confrelid JOIN pg_namespace fn ON fn.oid = f.relnamespace
        WHERE o.conrelid = number AND o.contype = 'f' AND CASE WHEN o.conparentid = 0 THEN true ELSE
            (SELECT p.conrelid FROM pg_constraint p WHERE p.oid = o.conparentid)
            IS DISTINCT FROM o.conrelid END;"""

# Enums, domains and an extension's types, which are not made of others than Postgres's own.
_SIMPLE_TYPES = _rows(
    *("t.oid::text", "tn.nspname::text", "t.typname::text", "format_type(t.oid, NULL)"),
    "t.typtype::text",
    """CASE WHEN t.typtype = 'e' THEN (
            SELECT array_to_json(array_agg(ARRAY[e.oid::text, e.enumlabel::text]
                                           ORDER BY e.enumsortorder))::text
            FROM pg_enum e WHERE e.enumtypid = t.oid) END""",
    "CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod) END",
    "t.typbasetype::text",
    """(SELECT e.extname::text FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
            WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid
            AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e')""",
)
_READ_SIMPLE_TYPES = f"""
        SELECT bool_and(t.typtype = 'e' OR t.typtype = 'b' AND t.typcategory <> 'A'
                        OR t.typtype = 'd' AND t.typbasetype < 16384) AS are_all,
               {_SIMPLE_TYPES} AS rows
        INTO simple FROM pg_type t JOIN pg_namespace tn ON tn.oid = t.typnamespace
        WHERE t.oid = ANY (has.types)
          AND tn.nspname NOT IN ('pg_catalog', 'information_schema');"""

_COLUMNS = _rows(
    *("a.attnum::text", "a.attname::text", "format_type(a.atttypid, a.atttypmod)"),
    *("a.atttypid::text", "t.typtype::text", "a.atttypmod::text", "a.attnotnull::text"),
)
_DETAILS = _rows("x.number::text", "x.value", "x.missing", "x.identity", "x.generated")
_OWNED_SEQUENCES = _rows(
    *("o.refobjsubid::text", "o.deptype::text", "s.seqrelid::regclass::text"),
    *("s.seqrelid::text", "sn.nspname::text", "sc.relname::text"),
    *("format_type(s.seqtypid, NULL)", "s.seqstart::text", "s.seqincrement::text"),
    *("s.seqmin::text", "s.seqmax::text", "s.seqcache::text", "s.seqcycle::text"),
)
_COMMENTS = _rows("w.objsubid::text", "w.description")
_HAS_EXPRESSIONS = "(i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)"
_INDEXES = _rows(
    *("x.oid::text", "x.relname::text", "i.indisunique::text"),
    "CASE WHEN x.oid <> ALL (coalesce(own_indexes, '{}')) THEN "
    + INDEX_DEFINITION.format(schema="c.nspname")
    + " END",
    *("i.indkey::text", "i.indnkeyatts::text", "i.indisvalid::text"),
    *("i.indimmediate::text", "i.indisreplident::text", f"{_HAS_EXPRESSIONS}::text"),
)

# One table, for a trigger: within a user's statement every hundredth of a millisecond counts, so that it is
# asked for in small pieces, and only for those that it has. Where an index, an expression or a
# constraint is spelled, Postgres locks the table for a moment: the caller's transaction has it locked
# already. `penstock.schema.wire` makes of it what TABLE_DOCUMENTS says of the same table.
_DESCRIBED = f"""
#variable_conflict use_column
DECLARE
    c record;
    has record;
    simple record;
    details text;
    counting text[];
    collations text;
    sequences text;
    owned text[];
    free_sequences text;
    comments text;
    constraints text;
    own_indexes oid[];
    has_foreign_keys boolean;
    foreign_keys text;
    indexes text;
    expression_indexes oid[];
    depends text;
    types text;
    is_18 boolean := current_setting('server_version_num')::int >= 180000;
BEGIN
    SELECT k.oid, k.relname, n.nspname, k.relkind, k.relreplident, k.relhasindex, k.reltype,
           pg_relation_filenode(k.oid) AS filenode
    INTO c FROM pg_class k JOIN pg_namespace n ON n.oid = k.relnamespace
    WHERE k.oid = number AND k.relkind IN ('r', 'p') AND NOT k.relispartition
      AND k.relpersistence <> 't' AND {NOT_OURS.format("n")};
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT {_COLUMNS} AS columns,
           bool_or(a.atthasdef OR a.atthasmissing OR a.attidentity <> '') AS details,
           bool_or(a.attidentity <> '') AS sequences,
           bool_or(a.attcollation <> t.typcollation) AS collations,
           array_agg(a.atttypid) FILTER (WHERE a.atttypid >= 16384) AS types
    INTO has FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = number AND a.attnum > 0 AND NOT a.attisdropped;
    IF has.details THEN
        SELECT {_DETAILS}, array_agg(x.value) FILTER (WHERE x.value LIKE '%nextval(%') INTO details, counting FROM (
            SELECT a.attnum AS number, pg_get_expr(d.adbin, d.adrelid) AS value,
                   CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END AS missing,
                   a.attidentity::text AS identity, a.attgenerated::text AS generated
            FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = number AND d.adnum = a.attnum
            WHERE a.attrelid = number AND a.attnum > 0 AND NOT a.attisdropped
              AND (a.atthasdef OR a.atthasmissing OR a.attidentity <> '')
            OFFSET 0) AS x;
        IF has.sequences OR counting IS NOT NULL THEN
            SELECT {_OWNED_SEQUENCES}, array_agg(format('nextval(%L::regclass)', s.seqrelid::regclass)) INTO sequences, owned
            FROM pg_depend o JOIN pg_sequence s ON s.seqrelid = o.objid
            JOIN pg_class sc ON sc.oid = s.seqrelid JOIN pg_namespace sn ON sn.oid = sc.relnamespace
            WHERE o.classid = 'pg_class'::regclass AND o.refclassid = 'pg_class'::regclass
              AND o.refobjid = number AND o.refobjsubid > 0 AND o.deptype IN ('a', 'i');
        END IF;
        -- Where each default counts with what its table owns, there is no other sequence.
        IF NOT counting <@ coalesce(owned, '{{}}') THEN
            free_sequences := ({FREE_SEQUENCES});
        END IF;
    END IF;
    IF has.collations THEN
        SELECT json_object_agg(a.attnum, format('%I.%I', n.nspname, l.collname)) INTO collations
        FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        JOIN pg_collation l ON l.oid = a.attcollation JOIN pg_namespace n ON n.oid = l.collnamespace
        WHERE a.attrelid = number AND a.attnum > 0 AND NOT a.attisdropped
          AND a.attcollation <> t.typcollation;
    END IF;
    SELECT {_COMMENTS} INTO comments FROM pg_description w
    WHERE w.objoid = number AND w.classoid = 'pg_class'::regclass;
    {_per_version(_READ_CONSTRAINTS)}
    IF has_foreign_keys THEN
        {_per_version(_READ_FOREIGN_KEYS)}
    END IF;
    IF c.relhasindex THEN
        SELECT {_INDEXES}, array_agg(x.oid) FILTER (WHERE {_HAS_EXPRESSIONS})
        INTO indexes, expression_indexes
        FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
        WHERE i.indrelid = number AND i.indislive;
    END IF;
    IF expression_indexes IS NOT NULL THEN
        -- Which columns their expressions and predicates use.
        SELECT array_to_json(array_agg(ARRAY[p.objid::int8, p.refobjsubid::int8]))::text INTO depends
        FROM pg_depend p WHERE p.classid = 'pg_class'::regclass AND p.objid = ANY (expression_indexes)
          AND p.refclassid = 'pg_class'::regclass AND p.refobjid = number AND p.refobjsubid > 0;
    END IF;
    IF has.types IS NOT NULL THEN
        {_READ_SIMPLE_TYPES}
        IF simple.are_all THEN
            types := simple.rows;
        ELSE
            types := ({TYPES});
        END IF;
    END IF;
    RETURN concat('{{"id": ', number, ', "schema_name": ', to_json(c.nspname::text),
        ', "name": ', to_json(c.relname::text), ', "kind": "', c.relkind,
        '", "replica_identity": "', c.relreplident, '", "filenode": ', coalesce(c.filenode, 0),
        ', "row_type_id": ', c.reltype, ', "row_type": ', to_json(format_type(c.reltype, NULL)),
        ', "columns": ' || has.columns, ', "details": ' || details, ', "collations": ' || collations,
        ', "sequences": ' || sequences, ', "free_sequences": ' || free_sequences,
        ', "comments": ' || comments, ', "constraints": ' || constraints,
        ', "foreign_keys": ' || foreign_keys, ', "indexes": ' || indexes,
        ', "types": ' || types, ', "depends": ' || coalesce(depends, '[]'), '}}');
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

# The id of the subtransaction that is open now, which a message gives it. A decoder that sends a
# transaction before its end says by such ids what was rolled back since; but a message it gives the
# id of the whole transaction, so that penstock's carry their own. No function returns it, but each open
# subtransaction holds a lock on its id, and the innermost has the newest.
_OWN_XID = """
DECLARE
    sent pg_lsn := pg_logical_emit_message(true, 'penstock', '');
    found xid;
BEGIN
    SELECT l.transactionid INTO STRICT found FROM pg_locks l
    WHERE l.pid = pg_backend_pid() AND l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock'
    ORDER BY age(l.transactionid) LIMIT 1;
    RETURN found::text::int8;
END"""

# Anybody may write logical messages, so that penstock's own are signed: a hash with a secret, twice.
# In UTF-8, because a message is not converted on its way. An assignment takes less time than PERFORM.
#
# A message is ordered by the end of its record, a row by its start. A trigger's block is a
# subtransaction: without a record between, the row after it could come first.
_SAY = f"""
DECLARE
    content bytea := convert_to(document, 'UTF8');
    secret bytea;
    sent pg_lsn;
BEGIN
    SELECT s.secret INTO STRICT secret FROM penstock.seal s;
    sent := pg_logical_emit_message(true, '{CHANGE_PREFIX}',
        convert_to(encode(sha256(secret || sha256(secret || content)), 'hex'), 'UTF8') || content);
    sent := pg_logical_emit_message(true, 'penstock', '');
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
    Function("column_sequences", "oids oid[], told oid[]", "json", _COLUMN_SEQUENCES),
    Function("described", "number oid", "text", _DESCRIBED),
    Function("own_xid", "", "bigint", _OWN_XID),
    Function("say", "document text", "void", _SAY),
    Function("refresh_schema", "name text", "void", _REFRESH, True),
)
