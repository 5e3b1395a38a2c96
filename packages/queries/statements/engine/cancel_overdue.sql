-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.cancel_overdue */ 
WITH overdue AS MATERIALIZED (
  SELECT g.id, g.claimed_by
  FROM holdfast.instance g
  LEFT JOIN LATERAL (
    SELECT true AS staged FROM holdfast.outcome o WHERE o.instance_id = g.id AND o.claim_epoch = g.claim_epoch OFFSET 0
  ) outcome ON true
  WHERE g.status = 'executing' AND g.cancel_requested_at IS NOT NULL
    AND g.cancel_requested_at < now() - $1::bigint * interval '1 millisecond' AND outcome.staged IS NULL
  ORDER BY g.cancel_requested_at LIMIT $2::integer FOR NO KEY UPDATE OF g SKIP LOCKED
), cancelled AS (
  UPDATE holdfast.instance g SET status = 'cancelled', claimed_by = NULL, lease_expires_at = NULL, awaits = NULL, await_deadline = NULL,
    children_pending = 0, error = jsonb_build_object('code', 'cancelled', 'message',
      format('%s Its step did not end within the grace and was left behind.', coalesce(g.cancel_reason, 'Cancelled.'))),
    updated_at = now()
  FROM overdue WHERE g.id = ANY (ARRAY[overdue.id])
  RETURNING g.id, g.project_id, g.status, g.concurrency_key, g.parent_id, g.parent_epoch, g.claim_epoch, g.attempt, g.step, g.error, overdue.claimed_by
), recorded AS (
  INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, worker, error)
  SELECT id, claim_epoch, attempt, 'cancel', status, step, claimed_by, error FROM cancelled
)
SELECT id, project_id, status, concurrency_key, parent_id, parent_epoch FROM cancelled
