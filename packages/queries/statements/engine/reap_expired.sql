-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.reap_expired */ 
WITH expired AS MATERIALIZED (
  SELECT g.id, g.claimed_by, CASE
      WHEN g.cancel_requested_at IS NOT NULL THEN 'cancelled'
      WHEN g.reclaims >= coalesce(
        (SELECT m.max_reclaims FROM holdfast.machine m WHERE m.name = g.machine AND m.version = g.version),
        $1::integer
      ) THEN 'failed'
      ELSE 'runnable'
    END::holdfast.instance_status AS to_status
  FROM holdfast.instance g
  LEFT JOIN LATERAL (
    SELECT true AS staged FROM holdfast.outcome o WHERE o.instance_id = g.id AND o.claim_epoch = g.claim_epoch OFFSET 0
  ) outcome ON true
  WHERE g.status = 'executing' AND g.lease_expires_at < now() AND outcome.staged IS NULL
  ORDER BY g.lease_expires_at LIMIT $2::integer FOR NO KEY UPDATE OF g SKIP LOCKED
), reaped AS (
  UPDATE holdfast.instance g SET
    status = expired.to_status,
    reclaims = g.reclaims + 1,
    eligible_at = CASE WHEN expired.to_status = 'runnable' THEN now() ELSE g.eligible_at END,
    error = CASE expired.to_status WHEN 'failed' THEN jsonb_build_object(
      'code', 'crash_loop',
      'message', format('The claim of step %s was lost %s times in a row, last by %s. The step seems to end its process; retry the instance when that is mended.',
        g.step, g.reclaims + 1, g.claimed_by)
    ) WHEN 'cancelled' THEN jsonb_build_object('code', 'cancelled', 'message', coalesce(g.cancel_reason, 'Cancelled while its step ran.'))
    ELSE g.error END,
    awaits = CASE expired.to_status WHEN 'runnable' THEN g.awaits END,
    children_pending = CASE expired.to_status WHEN 'runnable' THEN g.children_pending ELSE 0 END,
    await_deadline = NULL, claimed_by = NULL, lease_expires_at = NULL, updated_at = now()
  FROM expired WHERE g.id = ANY (ARRAY[expired.id])
  RETURNING g.id, g.project_id, g.queue, g.status, g.reclaims, g.claim_epoch, g.attempt, g.step, g.error, g.concurrency_key, g.parent_id, g.parent_epoch,
    expired.claimed_by
), recorded AS (
  INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, worker, error)
  SELECT id, claim_epoch, attempt, CASE status WHEN 'failed' THEN 'fail' ELSE 'cancel' END::holdfast.outcome_kind, status, step, claimed_by, error
  FROM reaped WHERE status <> 'runnable'
)
SELECT id, project_id, queue, status, reclaims, claimed_by, concurrency_key, parent_id, parent_epoch FROM reaped
