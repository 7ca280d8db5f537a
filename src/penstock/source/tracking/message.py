"""Functions in schema penstock of the source that make one message of what a statement has touched.

How a table is described: `lines`.
"""

from __future__ import annotations

from penstock.schema.shape import FORMAT
from penstock.source.tracking.documents import SAY, Function
from penstock.source.tracking.lines import READ_LINES, READ_TYPE_LINES

# The relations on which this transaction holds a lock: any, or one that keeps others from altering them.
# Who holds any lock gets a weaker one at once, also where others wait for the table.
_HELD = """
BEGIN
    RETURN ARRAY(
        SELECT DISTINCT l.relation FROM pg_lock_status() l
        WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.granted
          AND l.relation >= 16384 AND (NOT is_strong OR l.mode IN ('ShareUpdateExclusiveLock',
              'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')));
END"""

# Those that a statement has altered with their parents are locked by it.
_WITH_HEIRS = """
BEGIN
    RETURN relations || ARRAY(
        WITH RECURSIVE heirs(oid) AS (
            SELECT unnest(relations)
            UNION
            SELECT i.inhrelid FROM heirs JOIN pg_inherits i ON i.inhparent = heirs.oid)
        SELECT h.oid FROM heirs h JOIN unnest(penstock.held(true)) AS l(oid) ON l.oid = h.oid
        WHERE h.oid <> ALL (relations));
END"""

# Types with all types that are made of them, and the tables with a column of one that the statement has
# altered as well (typed tables, say).
_MADE_OF_TYPES = """
BEGIN
    WITH RECURSIVE needs(type, relation) AS (
        SELECT unnest(oids), NULL::oid
        UNION
        SELECT CASE WHEN k.oid IS NULL THEN d.objid WHEN k.relkind = 'c' THEN k.reltype END,
               CASE WHEN k.relkind IN ('r', 'p') THEN k.oid END
        FROM needs JOIN pg_depend d
          ON d.refclassid = 'pg_type'::regclass AND d.refobjid = needs.type
        LEFT JOIN pg_class k ON d.classid = 'pg_class'::regclass AND k.oid = d.objid
        WHERE d.classid = 'pg_type'::regclass OR k.oid IS NOT NULL)
    SELECT array_agg(relation) FILTER (WHERE relation IS NOT NULL),
           array_agg(DISTINCT type) FILTER (WHERE type IS NOT NULL)
    INTO relations, types FROM needs;
    IF relations IS NOT NULL THEN
        relations := ARRAY(SELECT unnest(penstock.held(true)) INTERSECT SELECT unnest(relations));
    END IF;
END"""

# What few tables have, in words of its own. A table that has lost its key may have to leave a publication.
_ODD = """
DECLARE
    found text := '';
BEGIN
    IF strpos(marks, 'l') > 0 THEN
        found := concat(', "collations": ' || penstock.table_collations(number));
    END IF;
    IF names_sequence THEN
        found := concat(found, ', "free_sequences": ', penstock.table_sequences(number));
    END IF;
    IF tag NOT LIKE 'CREATE %' AND (strpos(marks, 'g') > 0 OR NOT (strpos(marks, 'F') > 0
            OR strpos(marks, 'D') > 0 AND strpos(marks, 'p') > 0
            OR strpos(marks, 'I') > 0 AND strpos(marks, 'r') > 0)) THEN
        PERFORM penstock.release(number, false);
    END IF;
    RETURN found;
END"""

# One message: tables, each once, and whatever else there is, as the text of JSON. Whether there was
# anything to say: PERFORM, which void functions need, takes longer than an assignment.
#
# Postgres prepares every expression of PL/pgSQL anew in each transaction, which takes longer than to
# evaluate it. So there are few here, and what most statements do not need is in functions of its own.
_TELL = f"""
DECLARE
    number oid;
    lines text;
    marks text;
    needed oid[];
    names_sequence boolean;
    is_odd boolean;
    type_lines text;
    are_simple boolean;
    odd text;
    tables text;
    all_of_them oid[];
    document text;
    sent pg_lsn[];
BEGIN
    FOREACH number IN ARRAY relations LOOP
        {READ_LINES}
        CONTINUE WHEN lines NOT LIKE ', "lines": "(t,%' OR lines IS NULL;
        type_lines := NULL;
        odd := NULL;
        IF needed IS NOT NULL THEN
            {READ_TYPE_LINES.replace("{oids}", "needed")}
            IF NOT are_simple THEN
                odd := concat(', "types": ', penstock.table_types(number));
            END IF;
        END IF;
        IF is_odd OR names_sequence THEN
            odd := concat(odd, penstock.odd(tag, number, marks, names_sequence));
            IF strpos(marks, 'h') > 0 THEN
                all_of_them := penstock.with_heirs(relations);
                IF all_of_them <> relations THEN
                    RETURN penstock.tell(tag, all_of_them, more);
                END IF;
            END IF;
        END IF;
        tables := concat(tables || ', ', '{{"id": ', number, lines, type_lines, odd, '}}');
    END LOOP;
    IF coalesce(tables, nullif(more, ', "has_using": true')) IS NULL THEN
        RETURN false;
    END IF;
    document := concat('{{"format": {FORMAT}, "tag": "', tag, '"', more,
        ', "tables": [', tables, ']}}');
    {SAY}
    RETURN true;
END"""

# Tables, and whatever else a statement has touched. Of a new type nothing is made so far.
_TELL_ALL = f"""
DECLARE
    type_lines text;
    are_simple boolean;
    made_of record;
    kinds json;
    alone json;
    owned json;
    parts text;
BEGIN
    IF types IS NOT NULL AND tag IN ('CREATE TYPE', 'CREATE DOMAIN') THEN
        {READ_TYPE_LINES.replace("{oids}", "types")}
        IF are_simple IS NOT true THEN
            type_lines := NULL;
            kinds := nullif(penstock.type_documents(types), '[]');
        END IF;
    ELSIF types IS NOT NULL THEN
        made_of := penstock.made_of_types(types);
        relations := relations || made_of.relations;
        kinds := nullif(penstock.type_documents(made_of.types), '[]');
    END IF;
    IF sequences IS NOT NULL THEN
        alone := nullif(penstock.sequence_documents(sequences), '[]');
        owned := penstock.column_sequences(sequences, coalesce(relations, '{{}}'));
    END IF;
    parts := nullif(concat(', "types": ' || kinds, type_lines, ', "sequences": ' || alone,
        ', "column_sequences": ' || owned, ', ' || nullif(substr(left(more::text, -1), 2), '')), '');
    IF relations <> '{{}}' THEN
        RETURN penstock.tell(tag, ARRAY(SELECT DISTINCT unnest(relations)), parts);
    ELSIF parts IS NOT NULL THEN
        PERFORM penstock.say(concat('{{"format": {FORMAT}, "tag": "', tag, '"', parts, '}}'));
    END IF;
    RETURN parts IS NOT NULL;
END"""

MESSAGE_FUNCTIONS = (
    Function("held", "is_strong boolean", "oid[]", _HELD),
    Function("with_heirs", "relations oid[]", "oid[]", _WITH_HEIRS),
    Function(
        "made_of_types",
        "oids oid[], OUT relations oid[], OUT types oid[]",
        "record",
        _MADE_OF_TYPES,
    ),
    Function("odd", "tag text, number oid, marks text, names_sequence boolean", "text", _ODD),
    Function("tell", "tag text, relations oid[], more text", "boolean", _TELL),
    Function(
        "tell_all",
        "tag text, relations oid[], types oid[], sequences oid[], more jsonb",
        "boolean",
        _TELL_ALL,
    ),
)
