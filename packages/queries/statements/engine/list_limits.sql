-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.list_limits */ 
SELECT p.kind, p.name, p.rate, p.period_ms, p.burst, p.shards, p.capacity, p.updated_at, k.key, k.held, k.tokens,
  coalesce(CASE p.kind
    WHEN 'gate' THEN (SELECT count(*) FROM holdfast.instance w
      WHERE w.project_id = p.project_id AND w.concurrency_key = k.key AND w.status IN ('runnable', 'throttled') AND w.concurrency_key IS NOT NULL
        AND w.status = 'throttled')
    ELSE (SELECT count(*) FROM holdfast.instance w
      WHERE w.project_id = p.project_id AND w.rate_key = k.key AND w.status = 'throttled' AND w.throttled_until IS NOT NULL)
  END, 0)::integer AS waiting
FROM holdfast.limit_policy p
LEFT JOIN LATERAL (
  SELECT key, count(holder_id)::integer AS held, NULL::bigint AS tokens FROM (
    SELECT s.key, s.holder_id FROM holdfast.gate_slot s
    WHERE p.kind = 'gate' AND s.project_id = p.project_id AND split_part(s.key, ':', 1) = p.name
    UNION ALL
    -- A gate that lets nobody in has no slots: its keys are those of who waits, found one by one, however many wait for each.
    SELECT waited.key, NULL FROM (
      WITH RECURSIVE seen AS (
        (
  SELECT w.concurrency_key AS key FROM holdfast.instance w
  WHERE w.project_id = p.project_id AND w.status IN ('runnable', 'throttled') AND w.concurrency_key IS NOT NULL AND p.capacity = 0
  ORDER BY w.concurrency_key LIMIT 1)
        UNION ALL
        SELECT (
  SELECT w.concurrency_key AS key FROM holdfast.instance w
  WHERE w.project_id = p.project_id AND w.status IN ('runnable', 'throttled') AND w.concurrency_key IS NOT NULL AND w.concurrency_key > seen.key
  ORDER BY w.concurrency_key LIMIT 1) FROM seen WHERE seen.key IS NOT NULL
      ) SELECT key FROM seen
    ) waited
    WHERE p.kind = 'gate' AND split_part(waited.key, ':', 1) = p.name
  ) s
  GROUP BY key
  UNION ALL
  SELECT key, NULL, (sum(tokens) / 1000000)::bigint FROM holdfast.rate_bucket b
  WHERE p.kind = 'rate' AND b.project_id = p.project_id AND split_part(b.key, ':', 1) = p.name
  GROUP BY key
  ORDER BY key LIMIT $1::integer
) k ON true
WHERE p.project_id = $2::bigint
ORDER BY p.kind, p.name, k.key
