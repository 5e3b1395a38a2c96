-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.next_cascade */ 
WITH note AS MATERIALIZED (
  SELECT parent_id, requested_at FROM holdfast.cascade ORDER BY parent_id LIMIT 1 FOR UPDATE SKIP LOCKED
)
SELECT note.parent_id, (
  SELECT array_agg(id) FROM (
    SELECT c.id FROM holdfast.instance c
    WHERE c.parent_id = note.parent_id AND c.inserted_at <= note.requested_at AND c.status NOT IN ('done', 'failed', 'cancelled')
      AND (c.status <> 'executing' OR c.cancel_requested_at IS NULL)
    ORDER BY c.id LIMIT $1::integer
  ) live
) AS children
FROM note
