-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* doctor.count_overdue_awaits */ 
SELECT count(*)::integer AS count, (extract(epoch FROM now() - min(g.await_deadline)) * 1000)::float8 AS oldest_ms,
  ARRAY(
    SELECT g.id::text FROM holdfast.instance g WHERE g.status = 'awaiting_signal' AND g.await_deadline IS NOT NULL
    AND g.await_deadline < now() - $1::bigint * interval '1 millisecond' ORDER BY g.await_deadline, g.id LIMIT 3
  ) AS sample
FROM holdfast.instance g WHERE g.status = 'awaiting_signal' AND g.await_deadline IS NOT NULL
  AND g.await_deadline < now() - $2::bigint * interval '1 millisecond'
