-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.cancel_instances */ 
WITH target AS MATERIALIZED (
  SELECT t.id
  FROM (SELECT DISTINCT id FROM unnest($1::bigint[]) AS t (id) ORDER BY id) t
  CROSS JOIN LATERAL (
    SELECT FROM holdfast.instance g
    WHERE g.id = t.id AND ($2::bigint IS NULL OR g.project_id = $3::bigint)
      AND g.status NOT IN ('done', 'failed', 'cancelled')
      AND ($4::holdfast.instance_status IS NULL OR g.status = $5::holdfast.instance_status)
    FOR NO KEY UPDATE
  ) live
), cancelled AS (
  UPDATE holdfast.instance g SET
    status = CASE WHEN g.lease_expires_at IS NULL THEN 'cancelled' ELSE 'executing' END::holdfast.instance_status,
    cancel_requested_at = coalesce(g.cancel_requested_at, now()),
    cancel_reason = coalesce(g.cancel_reason, $6::text),
    error = CASE WHEN g.lease_expires_at IS NULL
      THEN jsonb_build_object('code', 'cancelled', 'message', coalesce($7::text, 'Cancelled.')) ELSE g.error END,
    awaits = CASE WHEN g.lease_expires_at IS NOT NULL THEN g.awaits END,
    children_pending = CASE WHEN g.lease_expires_at IS NOT NULL THEN g.children_pending ELSE 0 END,
    await_deadline = NULL, throttled_until = NULL, updated_at = now()
  FROM target WHERE g.id = ANY (ARRAY[target.id])
  RETURNING g.id, g.project_id, g.status, g.concurrency_key, g.parent_id, g.parent_epoch, g.claim_epoch, g.attempt, g.step, g.error
), recorded AS (
  INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, error)
  SELECT id, claim_epoch, attempt, 'cancel', status, step, error FROM cancelled WHERE status = 'cancelled'
)
SELECT id, project_id, status, concurrency_key, parent_id, parent_epoch FROM cancelled
