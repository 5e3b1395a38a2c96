-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.release_claims */ 
WITH standing AS MATERIALIZED (
  SELECT g.id FROM unnest($1::bigint[], $2::bigint[]) AS claims (id, claim_epoch)
  JOIN holdfast.instance g ON g.id = claims.id AND g.claim_epoch = claims.claim_epoch AND g.lease_expires_at IS NOT NULL
  WHERE NOT EXISTS (SELECT FROM holdfast.outcome o WHERE o.instance_id = g.id AND o.claim_epoch = g.claim_epoch)
  ORDER BY g.id FOR NO KEY UPDATE OF g SKIP LOCKED
)
UPDATE holdfast.instance g SET status = 'runnable', claimed_by = NULL, lease_expires_at = NULL, updated_at = now()
FROM standing WHERE g.id = standing.id
RETURNING g.id, g.queue
