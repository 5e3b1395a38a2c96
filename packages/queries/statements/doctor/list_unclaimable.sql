-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* doctor.list_unclaimable */ 
SELECT g.machine, g.version, count(*)::integer AS count, (extract(epoch FROM now() - min(g.eligible_at)) * 1000)::float8 AS oldest_ms
FROM holdfast.instance g
WHERE g.status = 'runnable' AND g.eligible_at < now() - $1::bigint * interval '1 millisecond'
  AND NOT EXISTS (
    SELECT FROM holdfast.machine m WHERE m.name = g.machine AND m.version = g.version AND m.seen_at > now() - interval '5 minutes'
  )
GROUP BY g.machine, g.version ORDER BY 3 DESC, 1, 2 LIMIT 100
