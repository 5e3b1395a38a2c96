-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* doctor.count_quarantined */ 
SELECT count(*)::integer AS count, (extract(epoch FROM now() - min(q.quarantined_at)) * 1000)::float8 AS oldest_ms,
  ARRAY(
    SELECT q.instance_id::text FROM holdfast.outcome_quarantine q WHERE true
    AND q.quarantined_at < now() - $1::bigint * interval '1 millisecond' ORDER BY q.quarantined_at, q.instance_id LIMIT 3
  ) AS sample
FROM holdfast.outcome_quarantine q WHERE true
  AND q.quarantined_at < now() - $2::bigint * interval '1 millisecond'
