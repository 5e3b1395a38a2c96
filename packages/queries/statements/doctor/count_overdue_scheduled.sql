-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* doctor.count_overdue_scheduled */ 
SELECT count(*)::integer AS count, (extract(epoch FROM now() - min(g.eligible_at)) * 1000)::float8 AS oldest_ms,
  ARRAY(
    SELECT g.id::text FROM holdfast.instance g WHERE g.status = 'scheduled'
    AND g.eligible_at < now() - $1::bigint * interval '1 millisecond' ORDER BY g.eligible_at, g.id LIMIT 3
  ) AS sample
FROM holdfast.instance g WHERE g.status = 'scheduled'
  AND g.eligible_at < now() - $2::bigint * interval '1 millisecond'
