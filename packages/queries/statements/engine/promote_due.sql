-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.promote_due */ 
WITH due AS MATERIALIZED (
  SELECT id FROM holdfast.instance WHERE status = 'scheduled' AND eligible_at <= now()
  ORDER BY eligible_at LIMIT $1::integer FOR NO KEY UPDATE SKIP LOCKED
), promoted AS (
  UPDATE holdfast.instance g SET status = 'runnable', updated_at = now() FROM due WHERE g.id = ANY (ARRAY[due.id])
  RETURNING g.queue
)
SELECT count(*)::integer AS count, array_agg(DISTINCT queue) AS queues,
  (SELECT ceil(extract(epoch FROM eligible_at - now()) * 1000)::float8 FROM holdfast.instance
    WHERE status = 'scheduled' AND eligible_at > now() ORDER BY eligible_at LIMIT 1) AS next_in_ms
FROM promoted
