-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* doctor.count_overdue_throttled */ 
SELECT count(*)::integer AS count, (extract(epoch FROM now() - min(g.throttled_until)) * 1000)::float8 AS oldest_ms,
  ARRAY(
    SELECT g.id::text FROM holdfast.instance g WHERE g.status = 'throttled' AND g.throttled_until IS NOT NULL
    AND g.throttled_until < now() - $1::bigint * interval '1 millisecond' ORDER BY g.throttled_until, g.id LIMIT 3
  ) AS sample
FROM holdfast.instance g WHERE g.status = 'throttled' AND g.throttled_until IS NOT NULL
  AND g.throttled_until < now() - $2::bigint * interval '1 millisecond'
