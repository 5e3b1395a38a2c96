-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* doctor.count_overdue_throttled */ 
SELECT count(*)::integer AS count, (extract(epoch FROM now() - min((to_jsonb(g) ->> 'throttled_until')::timestamptz)) * 1000)::float8 AS oldest_ms,
  ARRAY(
    SELECT g.id::text FROM holdfast.instance g WHERE g.status = 'throttled'
    AND (to_jsonb(g) ->> 'throttled_until')::timestamptz < now() - $1::bigint * interval '1 millisecond' ORDER BY (to_jsonb(g) ->> 'throttled_until')::timestamptz, g.id LIMIT 3
  ) AS sample
FROM holdfast.instance g WHERE g.status = 'throttled'
  AND (to_jsonb(g) ->> 'throttled_until')::timestamptz < now() - $2::bigint * interval '1 millisecond'
