"""The statements by which a copy is recorded, in penstock.tables and penstock.ranges."""

# Not those that wait until the stream has come to a position.
DUE = """
SELECT schema_name, table_name, coalesce(source_oid, 0) FROM penstock.tables t
WHERE pipeline = %s AND source = %s AND needs_copy
  AND (state = 'copying' OR state = 'pending' AND NOT EXISTS (
      SELECT FROM penstock.progress p WHERE (p.pipeline, p.source) = (t.pipeline, t.source)
        AND p.delivered_lsn < t.delivered_lsn))
ORDER BY schema_name, table_name
"""
POSTPONE = """
UPDATE penstock.tables SET state = 'pending', copy_id = NULL, delivered_lsn = %s::pg_lsn, changed_at = now()
WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s
  AND needs_copy AND state IN ('pending', 'copying')
"""
# Waits for ranges that are still under way, of a process that was killed, say.
BEGIN = """
UPDATE penstock.tables SET state = 'copying', copy_id = %s, error = NULL, ranges_total = %s,
       snapshot_at = now(), changed_at = now()
WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s AND needs_copy
RETURNING filled, copy_way, made_by_us
"""
# The row before the table: who alters tables takes them in this order, too.
HOLD = """
SELECT FROM penstock.tables
WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s
  AND state = 'copying' AND copy_id = %s FOR UPDATE
"""
# The same while something is made of the table, which may take long: whoever renames or forgets it waits,
# who only asks for something does not.
KEEP_NAME = HOLD.replace("FOR UPDATE", "FOR KEY SHARE")
ROOM = """
UPDATE penstock.tables SET copy_way = %s, filled = %s
WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s
"""
MERGED = """
UPDATE penstock.tables SET copy_way = 'merged'
WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s
"""
FORGET_RANGES = """
DELETE FROM penstock.ranges
WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s
"""
# For many tables at once.
CLAIM_NEW = """
SELECT schema_name, table_name FROM penstock.tables
WHERE pipeline = %s AND source = %s
  AND (schema_name, table_name) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
  AND needs_copy AND NOT filled AND NOT made_by_us AND copy_way IS NULL
  AND shape IS NULL AND mapping IS NULL
ORDER BY schema_name, table_name FOR UPDATE SKIP LOCKED
"""
BEGIN_NEW = """
UPDATE penstock.tables t SET state = 'copying', copy_id = %s, error = NULL,
       ranges_total = n.range_count, snapshot_at = now(), changed_at = now(),
       source_oid = n.source_oid, shape = n.shape::jsonb, shape_lsn = %s::pg_lsn,
       made_by_us = true, copy_way = 'direct', target_oid = n.target_oid
FROM unnest(%s::text[], %s::text[], %s::int[], %s::int8[], %s::text[], %s::int8[])
    AS n(schema_name, table_name, range_count, source_oid, shape, target_oid)
WHERE t.pipeline = %s AND t.source = %s
  AND t.schema_name = n.schema_name AND t.table_name = n.table_name
"""
FORGET_RANGES_OF = """
DELETE FROM penstock.ranges WHERE pipeline = %s AND source = %s
  AND (schema_name, table_name) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
"""
STAND_TOGETHER = """
SELECT schema_name, table_name, made_by_us FROM penstock.tables
WHERE pipeline = %s AND source = %s
  AND (schema_name, table_name) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
  AND state = 'copying' AND copy_id = %s AND copy_way = 'direct' AND constraints_of IS NULL
ORDER BY schema_name, table_name FOR UPDATE SKIP LOCKED
"""
RECORDED_OF = """
SELECT schema_name, table_name, count(*)::int FROM penstock.ranges
WHERE pipeline = %s AND source = %s
  AND (schema_name, table_name) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
  AND copy_id = %s GROUP BY 1, 2
"""
STANDS = """
SELECT copy_way, made_by_us, filled, snapshot_at FROM penstock.tables
WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s
  AND state = 'copying' AND copy_id = %s
"""
RECORDED = """
SELECT count(*)::int, coalesce(sum(rows), 0)::bigint FROM penstock.ranges
WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s AND copy_id = %s
"""
# Of whichever copy: what an earlier one has brought is forgotten when its rows are taken out.
ROWS = """
SELECT coalesce(sum(rows), 0)::bigint FROM penstock.ranges
WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s
"""
FINISH = """
UPDATE penstock.tables t SET state = 'catching_up', needs_copy = false, filled = true, error = NULL,
       delivered_lsn = %s::pg_lsn, attempts = 0, retry_at = NULL, copied_at = now(),
       changed_at = now(), notes = %s, foreign_keys_due = made_by_us AND %s, constraints_of = NULL,
       (rows_copied, bytes_copied) = (
           SELECT coalesce(sum(rows), 0), coalesce(sum(bytes), 0) FROM penstock.ranges r
           WHERE (r.pipeline, r.source, r.schema_name, r.table_name, r.copy_id)
               = (t.pipeline, t.source, t.schema_name, t.table_name, t.copy_id))
WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s
  AND state = 'copying' AND copy_id = %s
RETURNING rows_copied
"""
FINISH_TOGETHER = """
UPDATE penstock.tables t SET state = 'catching_up', needs_copy = false, filled = true, error = NULL,
       delivered_lsn = %s::pg_lsn, attempts = 0, retry_at = NULL, copied_at = now(),
       changed_at = now(), notes = n.notes, foreign_keys_due = made_by_us AND %s,
       rows_copied = n.row_count, bytes_copied = n.byte_count
FROM (SELECT w.schema_name, w.table_name, w.notes, coalesce(sum(r.rows), 0) AS row_count,
             coalesce(sum(r.bytes), 0) AS byte_count
      FROM unnest(%s::text[], %s::text[], %s::text[]) AS w(schema_name, table_name, notes)
      LEFT JOIN penstock.ranges r ON r.schema_name = w.schema_name AND r.table_name = w.table_name
       AND r.pipeline = %s AND r.source = %s AND r.copy_id = %s GROUP BY 1, 2, 3) AS n
WHERE t.pipeline = %s AND t.source = %s
  AND t.schema_name = n.schema_name AND t.table_name = n.table_name
"""
# 5 s, 10 s, 20 s … up to 10 minutes. A copy that has begun speaks for its own attempt alone.
FAIL = """
UPDATE penstock.tables SET state = 'failed', delivered_lsn = NULL, error = %s,
       attempts = attempts + 1,
       retry_at = now() + least(600, 5 * 2 ^ least(attempts, 10)) * interval '1 second',
       changed_at = now()
WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s AND needs_copy
  AND (%s::text IS NULL OR (state = 'copying' AND copy_id = %s))
"""
BEGIN_AGAIN = """
UPDATE penstock.tables SET state = 'pending', copy_id = NULL, changed_at = now()
WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s AND needs_copy
  AND (%s::text IS NULL OR (state = 'copying' AND copy_id = %s))
"""
ARRIVED = """
SELECT schema_name, table_name, array_agg(number), sum(rows)::bigint, sum(bytes)::bigint
FROM penstock.ranges
WHERE pipeline = %s AND source = %s AND copy_id = %s GROUP BY 1, 2
"""
KEYS_DUE = """
SELECT schema_name, table_name FROM penstock.tables t
WHERE pipeline = %s AND source = %s AND state = 'streaming' AND foreign_keys_due
  -- Both sides must stand at the same position.
  AND NOT EXISTS (
      SELECT FROM jsonb_array_elements(t.shape -> 'foreign_keys') AS k(document)
      WHERE (k.document ->> 'referenced_id')::int8 IN (
          SELECT source_oid FROM penstock.tables
          WHERE pipeline = %s AND source = %s AND state IN ('pending', 'copying', 'failed')
            AND source_oid IS NOT NULL))
"""
# All that are due, or none: what is left of names is decided for all of them at once.
NAMES_DUE = """
SELECT schema_name, table_name, shape, mapping FROM penstock.tables
WHERE pipeline = %s AND source = %s AND names_due AND state = 'streaming' AND shape IS NOT NULL
ORDER BY schema_name, table_name FOR UPDATE SKIP LOCKED
"""
# Tables that stand elsewhere in the stream, or that somebody changes at this moment.
MAY_GIVE_NAMES = """
WITH at_rest AS (
    SELECT state FROM penstock.tables WHERE pipeline = %s AND source = %s AND state <> 'removed'
    FOR KEY SHARE SKIP LOCKED)
SELECT EXISTS (SELECT FROM at_rest WHERE state <> 'streaming')
"""
NAMES_DONE = """
UPDATE penstock.tables SET names_due = false
WHERE pipeline = %s AND source = %s
  AND (schema_name, table_name) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
"""
# A table without any is done with as it is.
NO_KEYS_DUE = """
UPDATE penstock.tables t SET foreign_keys_due = false, changed_at = now()
WHERE pipeline = %s AND source = %s AND state = 'streaming' AND foreign_keys_due
  AND jsonb_array_length(coalesce(shape -> 'foreign_keys', '[]')) = 0
"""
KEYS_TOGETHER = """
SELECT schema_name, table_name, shape, mapping FROM penstock.tables
WHERE pipeline = %s AND source = %s
  AND (schema_name, table_name) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
  AND foreign_keys_due AND state = 'streaming' AND shape IS NOT NULL
ORDER BY schema_name, table_name FOR UPDATE SKIP LOCKED
"""
# What was said of foreign keys before is said anew, or is not so any more.
_OTHER_NOTES = """array_to_string(ARRAY(
    SELECT line FROM unnest(string_to_array(notes, E'\\n')) WITH ORDINALITY AS l(line, place)
    WHERE line NOT LIKE 'foreign key%%' ORDER BY place), E'\\n')"""
KEYS_DONE_OF = f"""
UPDATE penstock.tables SET foreign_keys_due = false, changed_at = now(), notes = nullif({_OTHER_NOTES}, '')
WHERE pipeline = %s AND source = %s
  AND (schema_name, table_name) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
"""
KEYS_DONE = f"""
UPDATE penstock.tables SET foreign_keys_due = false, changed_at = now(),
       notes = nullif(concat_ws(E'\\n', nullif({_OTHER_NOTES}, ''), %s::text), '')
WHERE pipeline = %s AND source = %s AND schema_name = %s AND table_name = %s
"""
