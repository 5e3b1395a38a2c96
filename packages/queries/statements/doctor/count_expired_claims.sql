-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* doctor.count_expired_claims */ 
SELECT count(*)::integer AS count, (extract(epoch FROM now() - min(g.lease_expires_at)) * 1000)::float8 AS oldest_ms,
  ARRAY(
    SELECT g.id::text FROM holdfast.instance g WHERE g.status = 'executing'
  AND NOT EXISTS (SELECT FROM holdfast.outcome o WHERE o.instance_id = g.id AND o.claim_epoch = g.claim_epoch)
    AND g.lease_expires_at < now() - $1::bigint * interval '1 millisecond' ORDER BY g.lease_expires_at, g.id LIMIT 3
  ) AS sample
FROM holdfast.instance g WHERE g.status = 'executing'
  AND NOT EXISTS (SELECT FROM holdfast.outcome o WHERE o.instance_id = g.id AND o.claim_epoch = g.claim_epoch)
  AND g.lease_expires_at < now() - $2::bigint * interval '1 millisecond'
