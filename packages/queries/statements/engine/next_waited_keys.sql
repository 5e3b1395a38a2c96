-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.next_waited_keys */ 
WITH RECURSIVE skip AS (
  (SELECT w.project_id, w.concurrency_key AS key, 1 AS n FROM holdfast.instance w
    WHERE (w.project_id, w.concurrency_key) > ($1::bigint, $2::text)
      AND w.status IN ('runnable', 'throttled') AND w.concurrency_key IS NOT NULL
    ORDER BY w.project_id, w.concurrency_key LIMIT 1)
  UNION ALL
  SELECT w.project_id, w.key, skip.n + 1 FROM skip
  CROSS JOIN LATERAL (
    SELECT w.project_id, w.concurrency_key AS key FROM holdfast.instance w
    WHERE (w.project_id, w.concurrency_key) > (skip.project_id, skip.key)
      AND w.status IN ('runnable', 'throttled') AND w.concurrency_key IS NOT NULL
    ORDER BY w.project_id, w.concurrency_key LIMIT 1
  ) w
  WHERE skip.n < $3::integer
)
SELECT project_id, key FROM skip
