-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.get_queue_depths */ 
SELECT coalesce(live.queue, q.name) AS queue, live.status, coalesce(live.count, 0) AS count, live.oldest_ms,
  coalesce(live.unclaimable, 0) AS unclaimable, q.paused_at IS NOT NULL AS paused
FROM (
  SELECT g.queue, g.status, count(*)::integer AS count,
    (extract(epoch FROM now() - min(g.eligible_at) FILTER (WHERE g.status = 'runnable')) * 1000)::float8 AS oldest_ms,
    (count(*) FILTER (WHERE g.status = 'runnable' AND NOT EXISTS (
    SELECT FROM holdfast.machine m WHERE m.name = g.machine AND m.version = g.version AND m.seen_at > now() - interval '5 minutes'
  )))::integer AS unclaimable
  FROM holdfast.instance g
  WHERE g.status NOT IN ('done', 'failed', 'cancelled')
    AND ($1::bigint IS NULL OR g.project_id = $2::bigint)
  GROUP BY g.queue, g.status
) live
FULL JOIN holdfast.queue q ON q.name = live.queue
ORDER BY 1, 2
