-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.remove_idle_buckets */ 
WITH idle AS MATERIALIZED (
  SELECT b.project_id, b.key, count(*) AS shards, c.before FROM holdfast.rate_bucket b
  LEFT JOIN holdfast.limit_policy p ON p.project_id = b.project_id AND p.kind = 'rate' AND p.name = split_part(b.key, ':', 1)
  CROSS JOIN LATERAL (
    SELECT now() - greatest($1::bigint, coalesce(p.burst * p.period_ms / nullif(p.rate, 0), 0) + 1000) * interval '1 millisecond' AS before
  ) c
  GROUP BY b.project_id, b.key, p.rate, c.before
  HAVING (p.rate IS NULL OR p.rate > 0) AND max(b.refilled_at) < c.before
  LIMIT $2::integer
), locked AS MATERIALIZED (
  SELECT i.project_id, i.key, i.shards, s.shard FROM idle i
  CROSS JOIN LATERAL (
    SELECT shard FROM holdfast.rate_bucket s WHERE s.project_id = i.project_id AND s.key = i.key AND s.refilled_at < i.before FOR UPDATE SKIP LOCKED
  ) s
), whole AS (
  SELECT project_id, key FROM locked GROUP BY project_id, key, shards HAVING count(*) = shards
), removed AS (
  DELETE FROM holdfast.rate_bucket s USING whole w WHERE s.project_id = w.project_id AND s.key = ANY (ARRAY[w.key])
  RETURNING 1
)
SELECT count(*)::integer AS count FROM removed
