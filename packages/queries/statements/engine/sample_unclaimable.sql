-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.sample_unclaimable */ 
WITH RECURSIVE skip AS (
  (SELECT w.queue FROM holdfast.instance w WHERE w.status = 'runnable' ORDER BY w.queue LIMIT 1)
  UNION ALL
  SELECT (SELECT w.queue FROM holdfast.instance w WHERE w.status = 'runnable' AND w.queue > skip.queue ORDER BY w.queue LIMIT 1)
  FROM skip WHERE skip.queue IS NOT NULL
)
SELECT g.queue, g.machine, g.version, count(*)::integer AS count
FROM skip
CROSS JOIN LATERAL (
  SELECT w.queue, w.machine, w.version FROM holdfast.instance w
  WHERE w.status = 'runnable' AND w.queue = skip.queue ORDER BY w.priority, w.eligible_at, w.id LIMIT $1::integer
) g
WHERE NOT EXISTS (
    SELECT FROM holdfast.machine m WHERE m.name = g.machine AND m.version = g.version AND m.seen_at > now() - interval '5 minutes'
  )
GROUP BY g.queue, g.machine, g.version
