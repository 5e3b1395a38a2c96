-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.release_changed_rate_lines */ 
WITH changed AS MATERIALIZED (
  SELECT project_id, name, updated_at FROM holdfast.limit_policy WHERE kind = 'rate' AND updated_at > now() - interval '10 minutes'
), line AS MATERIALIZED (
  SELECT w.id FROM changed c
  CROSS JOIN LATERAL (
    SELECT g.id FROM holdfast.instance g
    WHERE g.project_id = c.project_id AND g.status = 'throttled' AND g.throttled_until IS NOT NULL AND g.rate_key IS NOT NULL
      AND split_part(g.rate_key, ':', 1) = c.name AND g.updated_at < c.updated_at + interval '5 seconds'
    LIMIT $1::integer FOR NO KEY UPDATE SKIP LOCKED
  ) w
), due AS (
  UPDATE holdfast.instance g SET status = 'runnable', throttled_until = NULL, updated_at = now()
  FROM line WHERE g.id = ANY (ARRAY[line.id])
  RETURNING g.queue
)
SELECT count(*)::integer AS count, array_agg(DISTINCT queue) AS queues FROM due
