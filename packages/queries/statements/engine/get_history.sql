-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.get_history */ 
SELECT kind, from_step, to_step, to_status, attempt, claim_epoch, worker, error, claimed_at, started_at, finished_at, flushed_at
FROM holdfast.transition WHERE instance_id = $1::bigint ORDER BY claim_epoch, flushed_at LIMIT $2::integer
