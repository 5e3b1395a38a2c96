-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* doctor.count_finished_joins */ 
SELECT count(*)::integer AS count, (extract(epoch FROM now() - min(p.updated_at)) * 1000)::float8 AS oldest_ms,
  ARRAY(
    SELECT p.id::text FROM holdfast.instance p WHERE p.status = 'awaiting_children' AND NOT EXISTS (
    SELECT FROM holdfast.instance c WHERE c.parent_id = p.id AND c.status NOT IN ('done', 'failed', 'cancelled')
  )
    AND p.updated_at < now() - $1::bigint * interval '1 millisecond' ORDER BY p.updated_at, p.id LIMIT 3
  ) AS sample
FROM holdfast.instance p WHERE p.status = 'awaiting_children' AND NOT EXISTS (
    SELECT FROM holdfast.instance c WHERE c.parent_id = p.id AND c.status NOT IN ('done', 'failed', 'cancelled')
  )
  AND p.updated_at < now() - $2::bigint * interval '1 millisecond'
