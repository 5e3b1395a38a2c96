-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.promote_throttled */ 
WITH due AS MATERIALIZED (
  SELECT id FROM holdfast.instance WHERE status = 'throttled' AND throttled_until IS NOT NULL AND throttled_until <= now()
  ORDER BY throttled_until LIMIT $1::integer FOR NO KEY UPDATE SKIP LOCKED
), promoted AS (
  UPDATE holdfast.instance g SET status = 'runnable', throttled_until = NULL, updated_at = now() FROM due WHERE g.id = ANY (ARRAY[due.id])
  RETURNING g.queue
)
SELECT count(*)::integer AS count, array_agg(DISTINCT queue) AS queues,
  (SELECT ceil(extract(epoch FROM throttled_until - now()) * 1000)::float8 FROM holdfast.instance
    WHERE status = 'throttled' AND throttled_until IS NOT NULL AND throttled_until > now() AND throttled_until < 'infinity'
    ORDER BY throttled_until LIMIT 1) AS next_in_ms
FROM promoted
