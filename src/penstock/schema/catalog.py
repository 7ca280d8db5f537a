"""Shapes of tables now, read from the catalog of any Postgres from 14 on. Reads only.

The query is also the body of a function that `init` installs, with which a source describes whole
schemas; its triggers describe one table at a time, in the same words (`penstock.schema.wire`). It needs a search_path on which there is only pg_catalog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.schema.shape import TableShape, read_tables
from penstock.table import TableName, as_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    Connection = psycopg.Connection[Any] | psycopg.Cursor[Any]

_SEQUENCE = """jsonb_build_object(
    'id', s.seqrelid::int8, 'schema_name', sn.nspname, 'name', sc.relname,
    'type', format_type(s.seqtypid, NULL), 'start', s.seqstart, 'increment', s.seqincrement,
    'minimum', s.seqmin, 'maximum', s.seqmax, 'cache', s.seqcache, 'cycles', s.seqcycle)"""

# A serial column is one whose default takes the next value of a sequence that it owns, and does no
# more than that. What rows hold that are older than a column is known only where the server kept it.
_COLUMNS = f"""
SELECT coalesce(jsonb_agg(jsonb_build_object(
    'id', a.attnum, 'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
    'type_id', a.atttypid::int8, 'type_kind', t.typtype::text,
    'type_modifier', a.atttypmod, 'not_null', a.attnotnull,
    'default', CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END,
    'missing', CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END,
    'identity', a.attidentity::text, 'generated', a.attgenerated::text,
    'expression', CASE WHEN a.attgenerated <> '' THEN pg_get_expr(d.adbin, d.adrelid) END,
    'collation', (SELECT format('%I.%I', n.nspname, l.collname) FROM pg_collation l
                  JOIN pg_namespace n ON n.oid = l.collnamespace
                  WHERE l.oid = a.attcollation AND a.attcollation <> t.typcollation),
    'comment', col_description(a.attrelid, a.attnum),
    'sequence', (
        SELECT {_SEQUENCE}
        FROM pg_depend o JOIN pg_sequence s ON s.seqrelid = o.objid
        JOIN pg_class sc ON sc.oid = s.seqrelid JOIN pg_namespace sn ON sn.oid = sc.relnamespace
        WHERE o.classid = 'pg_class'::regclass AND o.refclassid = 'pg_class'::regclass
          AND o.refobjid = a.attrelid AND o.refobjsubid = a.attnum
          AND CASE o.deptype WHEN 'i' THEN true WHEN 'a' THEN pg_get_expr(d.adbin, d.adrelid)
              = format('nextval(''%s''::regclass)', replace(s.seqrelid::regclass::text, '''', ''''''))
              END
        LIMIT 1)
    ) ORDER BY a.attnum), '[]')
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"""

# Fields that not every version has are asked of the row as JSON. What has no definition was dropped
# after the snapshot: the server spells things as they are now.
_CONSTRAINTS = """
SELECT coalesce(jsonb_agg(jsonb_build_object(
    'id', o.oid::int8, 'name', o.conname, 'kind', o.contype::text,
    'definition', pg_get_constraintdef(o.oid), 'columns', coalesce(to_jsonb(o.conkey), '[]'),
    'used', (SELECT coalesce(jsonb_agg(DISTINCT k), '[]') FROM (
        SELECT unnest(o.conkey) UNION
        SELECT unnest(i.indkey::int2[]) FROM pg_index i WHERE i.indexrelid = o.conindid UNION
        SELECT p.refobjsubid::int2 FROM pg_depend p WHERE p.classid = 'pg_class'::regclass
            AND p.objid = o.conindid AND o.contype = 'x' AND p.refobjid = o.conrelid
        ) AS x(k) WHERE k > 0),
    'index_id', o.conindid::int8, 'is_deferrable', o.condeferrable,
    'has_period', coalesce((to_jsonb(o) ->> 'conperiod')::boolean, false)
    ) ORDER BY o.contype, o.conname), '[]')
FROM pg_constraint o WHERE o.conrelid = c.oid AND o.contype IN ('p', 'u', 'x', 'c')
  AND pg_get_constraintdef(o.oid) IS NOT NULL"""

# A foreign key that leads to a partitioned table has rows for its partitions too, whose parent is
# a constraint of the same table.
_FOREIGN_KEYS = """
SELECT coalesce(jsonb_agg(jsonb_build_object(
    'id', o.oid::int8, 'name', o.conname, 'columns', to_jsonb(o.conkey),
    'referenced_id', f.oid::int8, 'referenced_schema', fn.nspname, 'referenced_name', f.relname,
    'referenced_columns', (
        SELECT jsonb_agg(a.attname ORDER BY k.place)
        FROM unnest(o.confkey) WITH ORDINALITY AS k(number, place)
        JOIN pg_attribute a ON a.attrelid = o.confrelid AND a.attnum = k.number),
    'on_update', o.confupdtype::text, 'on_delete', o.confdeltype::text,
    'on_delete_columns', coalesce(nullif(to_jsonb(o) -> 'confdelsetcols', 'null'), '[]'),
    'match', o.confmatchtype::text, 'is_deferrable', o.condeferrable, 'is_deferred', o.condeferred,
    'is_valid', o.convalidated,
    'is_enforced', coalesce((to_jsonb(o) ->> 'conenforced')::boolean, true),
    'has_period', coalesce((to_jsonb(o) ->> 'conperiod')::boolean, false)
    ) ORDER BY o.conname), '[]')
FROM pg_constraint o
LEFT JOIN pg_constraint p ON p.oid = o.conparentid
JOIN pg_class f ON f.oid = o.confrelid JOIN pg_namespace fn ON fn.oid = f.relnamespace
WHERE o.conrelid = c.oid AND o.contype = 'f' AND p.conrelid IS DISTINCT FROM o.conrelid"""

# The start of a definition is computed, not searched for: a name may hold ' USING '.
INDEX_DEFINITION = """substr(pg_get_indexdef(x.oid), 1 + length(format(
        'CREATE %sINDEX %I ON %s%I.%I USING ', CASE WHEN i.indisunique THEN 'UNIQUE ' END, x.relname,
        CASE WHEN x.relkind = 'I' THEN 'ONLY ' END, {schema}, c.relname)))"""

# Columns of expressions and predicates are known from what the index depends on.
_INDEXES = f"""
SELECT coalesce(jsonb_agg(jsonb_build_object(
    'id', x.oid::int8, 'name', x.relname, 'is_unique', i.indisunique,
    'definition', {INDEX_DEFINITION.format(schema="n.nspname")},
    'columns', (SELECT coalesce(jsonb_agg(k.number ORDER BY k.place), '[]')
        FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k(number, place)
        WHERE k.number > 0),
    'used', (SELECT coalesce(jsonb_agg(DISTINCT k), '[]') FROM (
        SELECT unnest(i.indkey::int2[]) UNION
        SELECT p.refobjsubid::int2 FROM pg_depend p WHERE p.classid = 'pg_class'::regclass
            AND p.objid = x.oid AND p.refclassid = 'pg_class'::regclass AND p.refobjid = c.oid
        ) AS u(k) WHERE k > 0),
    'is_valid', i.indisvalid, 'is_immediate', i.indimmediate
    ) ORDER BY x.relname), '[]')
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
WHERE i.indrelid = c.oid AND i.indislive AND pg_get_indexdef(x.oid) IS NOT NULL AND NOT EXISTS (
    SELECT FROM pg_constraint o WHERE o.conindid = x.oid AND o.conrelid = c.oid
    AND o.contype IN ('p', 'u', 'x'))"""

# What a type is made of: array elements, bases of domains, fields of composites, subtypes of ranges.
TYPE_PARTS = """(
        SELECT t.typelem WHERE t.typcategory = 'A'
        UNION ALL SELECT t.typbasetype WHERE t.typtype = 'd'
        UNION ALL SELECT a.atttypid FROM pg_attribute a WHERE t.typtype = 'c'
            AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT rngsubtype FROM pg_range WHERE rngtypid = t.oid
        UNION ALL SELECT rngtypid FROM pg_range WHERE rngmultitypid = t.oid
    )"""

# Every type that columns need, however deep. Tables that need none but Postgres's own are the rule.
_TYPES = """
WITH RECURSIVE needed(oid) AS (
    SELECT a.atttypid FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384
    UNION
    SELECT part.oid FROM needed JOIN pg_type t ON t.oid = needed.oid
    CROSS JOIN LATERAL {type_parts} AS part(oid)
    WHERE part.oid <> 0
)
SELECT coalesce(jsonb_agg({type_document} ORDER BY tn.nspname, t.typname), '[]')
FROM needed JOIN pg_type t ON t.oid = needed.oid JOIN pg_namespace tn ON tn.oid = t.typnamespace
WHERE tn.nspname NOT IN ('pg_catalog', 'information_schema')"""

# Those that defaults count with and no identity or serial column owns: they may be several tables'. One that a
# column owns without being serial, since its default does more than to take the next value, is made like these.
# The owner may be a table that the caller has not locked: a default names no column, and is spelled without it.
FREE_SEQUENCES = f"""
SELECT coalesce(jsonb_agg({_SEQUENCE} ORDER BY sn.nspname, sc.relname), '[]')
FROM pg_sequence s JOIN pg_class sc ON sc.oid = s.seqrelid
JOIN pg_namespace sn ON sn.oid = sc.relnamespace
WHERE s.seqrelid IN (
    SELECT p.refobjid FROM pg_attrdef d JOIN pg_depend p ON p.classid = 'pg_attrdef'::regclass
        AND p.objid = d.oid AND p.refclassid = 'pg_class'::regclass AND p.deptype = 'n'
    WHERE d.adrelid = c.oid)
  AND NOT EXISTS (
    SELECT FROM pg_depend o
    LEFT JOIN pg_attrdef w ON w.adrelid = o.refobjid AND w.adnum = o.refobjsubid
    WHERE o.classid = 'pg_class'::regclass AND o.objid = sc.oid
    AND (o.deptype = 'e' OR o.refclassid = 'pg_class'::regclass AND o.refobjsubid > 0
         AND CASE o.deptype WHEN 'i' THEN true WHEN 'a' THEN pg_get_expr(w.adbin, 0)
             = format('nextval(''%s''::regclass)', replace(s.seqrelid::regclass::text, '''', ''''''))
             END))"""

TYPE_DOCUMENT = """jsonb_build_object(
    'id', t.oid::int8, 'schema_name', tn.nspname, 'name', t.typname,
    'spelled', format_type(t.oid, NULL),
    'kind', CASE WHEN t.typtype = 'e' THEN 'enum' WHEN t.typtype = 'd' THEN 'domain'
        WHEN t.typtype = 'r' THEN 'range'
        WHEN t.typtype = 'c' AND (SELECT relkind = 'c' FROM pg_class WHERE oid = t.typrelid)
        THEN 'composite' ELSE 'other' END,
    'labels', (SELECT coalesce(jsonb_agg(jsonb_build_object('id', e.oid::int8, 'name', e.enumlabel)
                               ORDER BY e.enumsortorder), '[]')
               FROM pg_enum e WHERE e.enumtypid = t.oid),
    'base', coalesce(CASE t.typtype WHEN 'd' THEN format_type(t.typbasetype, t.typtypmod)
        WHEN 'r' THEN (SELECT format_type(rngsubtype, NULL) FROM pg_range WHERE rngtypid = t.oid)
        END, ''),
    'fields', (SELECT coalesce(jsonb_agg(jsonb_build_object(
                   'id', a.attnum, 'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
                   'collation', (SELECT format('%I.%I', cn.nspname, l.collname) FROM pg_type f
                                 JOIN pg_collation l ON l.oid = a.attcollation
                                 JOIN pg_namespace cn ON cn.oid = l.collnamespace
                                 WHERE f.oid = a.atttypid AND a.attcollation <> f.typcollation))
                   ORDER BY a.attnum), '[]')
               FROM pg_attribute a WHERE t.typtype = 'c' AND a.attrelid = t.typrelid
               AND a.attnum > 0 AND NOT a.attisdropped),
    'collation', (SELECT format('%I.%I', cn.nspname, l.collname)
                  FROM (SELECT t.typbasetype, t.typcollation WHERE t.typtype = 'd'
                        UNION ALL SELECT rngsubtype, rngcollation FROM pg_range
                        WHERE rngtypid = t.oid) AS own(base, collated)
                  JOIN pg_type b ON b.oid = own.base JOIN pg_collation l ON l.oid = own.collated
                  JOIN pg_namespace cn ON cn.oid = l.collnamespace
                  WHERE own.collated <> b.typcollation),
    'multirange', (SELECT format('%I.%I', mn.nspname, m.typname)
                   FROM pg_range g JOIN pg_type m ON m.oid = g.rngmultitypid
                   JOIN pg_namespace mn ON mn.oid = m.typnamespace
                   WHERE g.rngtypid = t.oid AND (mn.oid <> t.typnamespace OR m.typname <> CASE
                       WHEN strpos(t.typname, 'range') > 0
                       THEN regexp_replace(t.typname, 'range', 'multirange')
                       ELSE concat(t.typname, '_multirange') END)),
    'not_null', t.typtype = 'd' AND t.typnotnull,
    'default', CASE WHEN t.typtype = 'd' THEN pg_get_expr(t.typdefaultbin, 0) END,
    'extension', (SELECT e.extname FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
                  WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid
                  AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'),
    'is_array', (t.typcategory = 'A' AND t.typelem <> 0) OR t.typtype = 'm',
    'parts', (SELECT coalesce(jsonb_agg(p.oid::int8 ORDER BY p.oid), '[]') FROM (
        SELECT a.atttypid FROM pg_attribute a WHERE t.typtype = 'c' AND a.attrelid = t.typrelid
            AND a.attnum > 0 AND NOT a.attisdropped
        UNION SELECT t.typelem WHERE t.typcategory = 'A'
        UNION SELECT t.typbasetype WHERE t.typtype = 'd'
        UNION SELECT rngsubtype FROM pg_range WHERE rngtypid = t.oid
        UNION SELECT rngtypid FROM pg_range WHERE rngmultitypid = t.oid) AS p(oid)
        WHERE p.oid <> 0))"""

TYPES = _TYPES.replace("{type_parts}", TYPE_PARTS).replace("{type_document}", TYPE_DOCUMENT)

# One JSON array of TableShape documents. {{oids}} is what has the oids: a parameter, or an argument.
# Partitions are their root's; temporary tables are nobody's.
_NO_PARTITION = " AND NOT c.relispartition"
TABLE_DOCUMENTS = f"""
SELECT coalesce(jsonb_agg(jsonb_build_object(
    'id', c.oid::int8, 'schema_name', n.nspname, 'name', c.relname, 'kind', c.relkind::text,
    'replica_identity', c.relreplident::text,
    'identity_index_id', coalesce((SELECT i.indexrelid::int8 FROM pg_index i
                                   WHERE i.indrelid = c.oid AND i.indisreplident LIMIT 1), 0),
    'comment', obj_description(c.oid, 'pg_class'), 'filenode', coalesce(pg_relation_filenode(c.oid)::int8, 0),
    'columns', ({_COLUMNS}),
    'constraints', ({_CONSTRAINTS}),
    'foreign_keys', ({_FOREIGN_KEYS}),
    'indexes', ({_INDEXES}),
    'types', ({TYPES}),
    'sequences', ({FREE_SEQUENCES})
    ) ORDER BY n.nspname, c.relname), '[]')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY ({{oids}}) AND c.relkind IN ('r', 'p'){_NO_PARTITION}
  AND c.relpersistence <> 't'
"""

SEQUENCE_DOCUMENT = _SEQUENCE

_BY_OID = "%s::oid[]"
_BY_NAME = """(ARRAY(
    SELECT w.oid FROM unnest(%s::text[], %s::text[]) AS wanted(schema, name)
    JOIN pg_namespace v ON v.nspname = wanted.schema
    JOIN pg_class w ON w.relnamespace = v.oid AND w.relname = wanted.name))::oid[]"""


def read_shapes(
    connection: Connection,
    names: Sequence[TableName],
    where: str = "",
    *,
    with_partitions: bool = False,
) -> dict[TableName, TableShape]:
    """Those of the tables that are there, as the connection's snapshot sees them.

    A partition is its root's, unless it is followed by its own name (`with_partitions`).

    The search_path is left as it was where the connection is outside of a transaction block;
    inside of one it is the caller's concern that only pg_catalog is on it (`''`).
    """
    documents = TABLE_DOCUMENTS.replace(_NO_PARTITION, "") if with_partitions else TABLE_DOCUMENTS
    query = documents.replace("%", "%%").replace("{oids}", _BY_NAME)
    row = connection.execute(query, as_columns(names)).fetchone()
    assert row is not None
    return {shape.table: shape for shape in read_tables(row[0], where)}


def read_shapes_by_id(
    connection: Connection, ids: Sequence[int], where: str = ""
) -> dict[int, TableShape]:
    """The same, of tables by their ids."""
    query = TABLE_DOCUMENTS.replace("%", "%%").replace("{oids}", _BY_OID)
    row = connection.execute(query, (list(ids),)).fetchone()
    assert row is not None
    return {shape.id: shape for shape in read_tables(row[0], where)}
