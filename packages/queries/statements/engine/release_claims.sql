-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.release_claims */ 
WITH standing AS MATERIALIZED (
  SELECT c.id
  FROM (SELECT * FROM unnest($1::bigint[], $2::bigint[]) AS claims (id, claim_epoch) ORDER BY id) c
  CROSS JOIN LATERAL (
    SELECT FROM holdfast.instance g
    WHERE g.id = c.id AND g.claim_epoch = c.claim_epoch AND g.lease_expires_at IS NOT NULL
      AND NOT EXISTS (SELECT FROM holdfast.outcome o WHERE o.instance_id = g.id AND o.claim_epoch = g.claim_epoch)
    FOR NO KEY UPDATE OF g SKIP LOCKED
  ) held
)
UPDATE holdfast.instance g SET status = 'runnable', claimed_by = NULL, lease_expires_at = NULL, updated_at = now()
FROM standing WHERE g.id = ANY (ARRAY[standing.id])
RETURNING g.id, g.queue, g.project_id, g.concurrency_key
