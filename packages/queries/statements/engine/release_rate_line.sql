-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.release_rate_line */ 
WITH line AS MATERIALIZED (
  SELECT id FROM holdfast.instance
  WHERE project_id = $1::bigint AND status = 'throttled' AND throttled_until IS NOT NULL AND rate_key IS NOT NULL
    AND split_part(rate_key, ':', 1) = $2::text
  FOR NO KEY UPDATE SKIP LOCKED
), due AS (
  UPDATE holdfast.instance g SET status = 'runnable', throttled_until = NULL, updated_at = now()
  FROM line WHERE g.id = ANY (ARRAY[line.id])
  RETURNING 1
)
SELECT count(*)::integer AS count FROM due
