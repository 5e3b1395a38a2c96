-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* doctor.count_waiting_outcomes */ 
SELECT count(*)::integer AS count, (extract(epoch FROM now() - min(o.staged_at)) * 1000)::float8 AS oldest_ms,
  ARRAY(
    SELECT o.instance_id::text FROM holdfast.outcome o WHERE true
    AND o.staged_at < now() - $1::bigint * interval '1 millisecond' ORDER BY o.staged_at, o.instance_id LIMIT 3
  ) AS sample
FROM holdfast.outcome o WHERE true
  AND o.staged_at < now() - $2::bigint * interval '1 millisecond'
