-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.lock_claim */ 
SELECT id FROM holdfast.instance
WHERE id = $1::bigint AND claim_epoch = $2::bigint AND lease_expires_at IS NOT NULL AND cancel_requested_at IS NULL
FOR NO KEY UPDATE
