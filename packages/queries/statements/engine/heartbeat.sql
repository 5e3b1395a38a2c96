-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.heartbeat */ 
WITH claims AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[]) AS c (id, claim_epoch)
), standing AS MATERIALIZED (
  SELECT g.id FROM claims JOIN holdfast.instance g
    ON g.id = claims.id AND g.claim_epoch = claims.claim_epoch AND g.lease_expires_at IS NOT NULL
  ORDER BY g.id FOR NO KEY UPDATE OF g SKIP LOCKED
), renewed AS (
  UPDATE holdfast.instance g SET lease_expires_at = now() + $3::integer * interval '1 millisecond'
  FROM standing WHERE g.id = standing.id
)
SELECT claims.id, claims.claim_epoch FROM claims
WHERE NOT EXISTS (
  SELECT FROM holdfast.instance g
  WHERE g.id = claims.id AND g.claim_epoch = claims.claim_epoch AND g.lease_expires_at IS NOT NULL
)
