-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.apply_riders */ 
WITH purged AS (
  DELETE FROM holdfast.signal WHERE target_id = ANY ($1::bigint[])
), spent AS (
  DELETE FROM holdfast.signal WHERE id = ANY ($2::bigint[])
), woken AS (
  UPDATE holdfast.instance g SET status = 'runnable', eligible_at = now(), await_deadline = NULL, updated_at = now()
  FROM unnest($3::bigint[], $4::text[]) AS p (id, presented)
  WHERE g.id = ANY (ARRAY[p.id]) AND (
    SELECT true FROM holdfast.signal s
    WHERE s.target_id = p.id AND s.name = ANY (g.awaits) AND s.id <> ALL (coalesce(p.presented::bigint[], '{}'))
    LIMIT 1
  )
  RETURNING g.queue
)
SELECT array_agg(DISTINCT queue) AS queues FROM woken
