-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.quarantine_outcome */ 
WITH taken AS (
  DELETE FROM holdfast.outcome WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.outcome WHERE seq > $1::bigint ORDER BY seq LIMIT 1 FOR UPDATE SKIP LOCKED
  ))
  RETURNING *
), kept AS (
  INSERT INTO holdfast.outcome_quarantine (instance_id, claim_epoch, outcome, error)
  SELECT instance_id, claim_epoch, to_jsonb(taken), $2::jsonb FROM taken
), failed AS (
  UPDATE holdfast.instance g SET status = 'failed', error = $3::jsonb, result = NULL, claimed_by = NULL, lease_expires_at = NULL,
    awaits = NULL, await_deadline = NULL, children_pending = 0, updated_at = now()
  WHERE g.id = (SELECT instance_id FROM taken) AND g.claim_epoch = (SELECT claim_epoch FROM taken) AND g.lease_expires_at IS NOT NULL
  RETURNING g.id, g.project_id, g.concurrency_key, g.parent_id, g.parent_epoch
), recorded AS (
  INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, worker, error)
  SELECT taken.instance_id, taken.claim_epoch, taken.attempt, 'fail', 'failed', taken.from_step, taken.worker, $4::jsonb
  FROM taken JOIN failed ON failed.id = taken.instance_id
)
SELECT taken.instance_id, taken.claim_epoch, failed.id IS NOT NULL AS failed, failed.project_id, failed.concurrency_key AS held_key,
  failed.parent_id, failed.parent_epoch
FROM taken LEFT JOIN failed ON true
