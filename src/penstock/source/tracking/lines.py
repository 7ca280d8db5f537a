"""One table as a trigger describes it: what the catalogs say of it, in lines of text.

Within a user's statement every hundredth of a millisecond counts. So one query reads all catalogs, each
once and by an index alone, without a join where a name can be had from a cache; and a line is a row as
Postgres writes rows, because nothing else that it can write takes less time. What a definition says
already is not asked for again. `penstock.schema.lines` has the names of the fields, in the same order,
and makes of them what TABLE_DOCUMENTS says of the same table.

Where an index, an expression or a constraint is spelled, Postgres locks the table for a moment: the
caller's transaction has it locked already.
"""

from __future__ import annotations

import re

from penstock.schema.catalog import FREE_SEQUENCES, TYPES
from penstock.schema.lines import FIRST_UNFIXED_ID


def _for_number(query: str) -> str:
    return re.sub(r"\bc\.oid\b", "number", query)


# Their names follow from how a server spells them, so that pg_namespace needs no join.
_SCHEMA = "k.relnamespace::regnamespace"

# Letters say what else there is to do: the replica identity in capitals, g for a computed column, h for
# heirs, l for a collation, p for a primary key, r for an index that is the replica identity.
_TABLE = f"""
    SELECT ROW('t', k.relname, {_SCHEMA}, k.relkind, k.relreplident, pg_relation_filenode(k.oid),
               k.reltype, format_type(k.reltype, NULL))::text AS line,
           CASE WHEN k.relkind = 'r' AND k.relhassubclass THEN 'h' ELSE '' END
           || upper(k.relreplident::text) AS mark, NULL::oid AS type, NULL::text AS counting,
           NULL::text AS owned
    FROM pg_class k WHERE k.oid = number AND k.relkind IN ('r', 'p') AND NOT k.relispartition
      AND k.relpersistence <> 't' AND {_SCHEMA}::text !~ '^"?pg_'
      AND {_SCHEMA}::text NOT IN ('information_schema', 'penstock')"""

# The collation of Postgres's own types is the database's, 100, but for those of type name.
_COLUMNS = f"""
    SELECT ROW('c', a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.atttypid,
               a.atttypmod, a.attnotnull, a.attidentity, a.attgenerated,
               CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END)::text,
           CASE WHEN a.attcollation <> 0 AND (a.attcollation <> 100 OR a.atttypid IN (19, 1003)
               OR a.atttypid >= {FIRST_UNFIXED_ID})
               THEN CASE WHEN a.attgenerated <> '' THEN 'gl' ELSE 'l' END
               WHEN a.attgenerated <> '' THEN 'g' END,
           CASE WHEN a.atttypid >= {FIRST_UNFIXED_ID} THEN a.atttypid END, NULL, NULL
    FROM pg_attribute a WHERE a.attrelid = number AND a.attnum > 0 AND NOT a.attisdropped"""

# One that names no column is spelled without its table, which need not be opened for it then.
_DEFAULTS = """
    SELECT ROW('d', y.number, y.value)::text, NULL, NULL,
           CASE WHEN strpos(y.value, 'nextval(') > 0 THEN y.value END, NULL
    FROM (SELECT d.adnum AS number, pg_get_expr(d.adbin, CASE
              WHEN strpos(d.adbin::text, '{VAR ') > 0 THEN d.adrelid ELSE 0 END) AS value
          FROM pg_attrdef d WHERE d.adrelid = number OFFSET 0) AS y"""

_COMMENTS = """
    SELECT ROW('w', w.objsubid, w.description)::text, NULL, NULL, NULL, NULL
    FROM pg_description w WHERE w.objoid = number AND w.classoid = 'pg_class'::regclass"""

_CONSTRAINTS = """
    SELECT ROW('o', o.oid, o.conname, o.contype, pg_get_constraintdef(o.oid), o.conkey, o.conindid,
               o.condeferrable, o.condeferred, o.convalidated, o.conparentid, o.confrelid,
               o.confupdtype, o.confdeltype, o.confmatchtype)::text, NULL, NULL, NULL, NULL
    FROM pg_constraint o WHERE o.conrelid = number AND o.contype IN ('p', 'u', 'x', 'c', 'f')"""

# The definition of one that is a constraint's is the constraint's.
_INDEXES = """
    SELECT ROW('i', i.indexrelid, i.indisunique, CASE WHEN NOT (i.indisprimary OR i.indisexclusion)
               THEN pg_get_indexdef(i.indexrelid) END, i.indkey, i.indnkeyatts, i.indisvalid,
               i.indimmediate, i.indisreplident,
               i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)::text,
           CASE WHEN i.indisvalid AND i.indimmediate THEN CASE
               WHEN i.indisprimary AND i.indisreplident THEN 'pr'
               WHEN i.indisprimary THEN 'p' WHEN i.indisreplident THEN 'r' END END, NULL, NULL, NULL
    FROM pg_index i WHERE i.indrelid = number AND i.indislive"""

# What depends on columns: indexes, whose expressions and predicates name columns that nothing else
# says, and sequences that a column owns.
_DEPENDENTS = """
    SELECT ROW('e', p.refobjsubid, p.objid, p.deptype, s.seqrelid::regclass,
               format_type(s.seqtypid, NULL), s.seqstart, s.seqincrement, s.seqmin, s.seqmax,
               s.seqcache, s.seqcycle)::text, NULL, NULL, NULL,
           'nextval(' || quote_literal(s.seqrelid::regclass) || '::regclass)'
    FROM pg_depend p LEFT JOIN pg_sequence s ON s.seqrelid = p.objid
    WHERE p.refclassid = 'pg_class'::regclass AND p.refobjid = number AND p.refobjsubid > 0
      AND p.classid = 'pg_class'::regclass AND p.deptype IN ('a', 'i')"""

_LINES = "\n    UNION ALL".join(
    (_TABLE, _COLUMNS, _DEFAULTS, _COMMENTS, _CONSTRAINTS, _INDEXES, _DEPENDENTS)
)

# Of the table `number`, into variables of the caller's. `is_odd`: there is more to say or to do than of
# a table with a key and nothing special, or of one whose replica identity is the whole row. Where each
# default counts with what its table owns, it names no other sequence.
READ_LINES = f"""
SELECT ', "lines": ' || to_json(string_agg(x.line, '')), string_agg(x.mark, ''),
       array_agg(x.type) FILTER (WHERE x.type IS NOT NULL),
       NOT coalesce(array_agg(x.counting) FILTER (WHERE x.counting IS NOT NULL)
           <@ array_agg(x.owned) FILTER (WHERE x.owned IS NOT NULL), count(x.counting) = 0),
       string_agg(x.mark, '') NOT IN ('Dp', 'F', 'Fp')
INTO lines, marks, needed, names_sequence, is_odd FROM ({_LINES}) AS x;"""

# Enums, domains and an extension's types, which are not made of others than Postgres's own: they are
# described by their lines alone. A domain with a collation, a default or NOT NULL is not.
READ_TYPE_LINES = """
SELECT ', "type_lines": ' || to_json(string_agg(ROW(t.oid, t.typtype, format_type(t.oid, NULL),
           CASE WHEN t.typtype = 'e' THEN (
               SELECT string_agg(ROW(e.oid, e.enumsortorder, e.enumlabel)::text, '')
               FROM pg_enum e WHERE e.enumtypid = t.oid) END,
           CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod) END,
           t.typbasetype, (
               SELECT e.extname FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
               WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid
               AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'))::text, '')),
       bool_and(t.typtype = 'e' OR t.typtype = 'b' AND t.typcategory <> 'A'
                OR t.typtype = 'd' AND t.typbasetype < 16384 AND t.typcollation IN (0, 100)
                   AND NOT t.typnotnull AND t.typdefault IS NULL)
INTO type_lines, are_simple FROM pg_type t WHERE t.oid = ANY ({oids});"""

COLLATIONS = """
BEGIN
    RETURN (
        SELECT json_object_agg(a.attnum, format('%I.%I', n.nspname, l.collname))
        FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        JOIN pg_collation l ON l.oid = a.attcollation JOIN pg_namespace n ON n.oid = l.collnamespace
        WHERE a.attrelid = number AND a.attnum > 0 AND NOT a.attisdropped
          AND a.attcollation <> t.typcollation);
END"""

TABLE_TYPES = f"""
BEGIN
    RETURN ({_for_number(TYPES)});
END"""

TABLE_SEQUENCES = f"""
BEGIN
    RETURN ({_for_number(FREE_SEQUENCES)});
END"""
