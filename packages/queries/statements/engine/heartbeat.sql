-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.heartbeat */ 
WITH claims AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[]) AS c (id, claim_epoch)
), standing AS MATERIALIZED (
  SELECT c.id FROM (SELECT * FROM claims ORDER BY id) c
  CROSS JOIN LATERAL (
    SELECT FROM holdfast.instance g
    WHERE g.id = c.id AND g.claim_epoch = c.claim_epoch AND g.lease_expires_at IS NOT NULL
    FOR NO KEY UPDATE SKIP LOCKED
  ) held
), renewed AS (
  UPDATE holdfast.instance g SET lease_expires_at = now() + $3::integer * interval '1 millisecond'
  FROM standing WHERE g.id = ANY (ARRAY[standing.id])
)
SELECT claims.id, claims.claim_epoch, claim.cancelling IS NOT NULL AS cancelling FROM claims
LEFT JOIN LATERAL (
  SELECT true AS stands, g.cancel_requested_at IS NOT NULL AS cancelling FROM holdfast.instance g
  WHERE g.id = claims.id AND g.claim_epoch = claims.claim_epoch AND g.lease_expires_at IS NOT NULL
  OFFSET 0
) claim ON true
WHERE claim.stands IS NULL OR claim.cancelling
