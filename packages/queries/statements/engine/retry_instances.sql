-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.retry_instances */ 
WITH target AS MATERIALIZED (
  SELECT t.id, ended.correlation_key
  FROM (SELECT DISTINCT id FROM unnest($1::bigint[]) AS t (id) ORDER BY id) t
  CROSS JOIN LATERAL (
    SELECT g.correlation_key FROM holdfast.instance g
    WHERE g.id = t.id AND g.project_id = $2::bigint AND g.status IN ('failed', 'cancelled')
      AND ($3::holdfast.instance_status IS NULL OR g.status = $4::holdfast.instance_status)
      AND (g.correlation_key IS NULL OR NOT EXISTS (
        SELECT FROM holdfast.instance o
        WHERE o.project_id = g.project_id AND o.correlation_guard = g.correlation_key AND o.id <> g.id
      ))
    FOR NO KEY UPDATE OF g
  ) ended
), winner AS MATERIALIZED (
  SELECT id FROM (SELECT id, correlation_key, row_number() OVER (PARTITION BY correlation_key ORDER BY id DESC) AS place FROM target) t
  WHERE place = 1 OR correlation_key IS NULL
), retried AS (
  UPDATE holdfast.instance g SET status = 'runnable', attempt = 0, reclaims = 0, error = NULL, cancel_requested_at = NULL, cancel_reason = NULL,
    children_pending = 0, parent_epoch = NULL, eligible_at = now(), updated_at = now()
  FROM winner WHERE g.id = ANY (ARRAY[winner.id]) AND g.status IN ('failed', 'cancelled')
  RETURNING g.id, g.queue, g.claim_epoch, g.step
), recorded AS (
  INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, to_step, error)
  SELECT id, claim_epoch, 0, 'retry', 'runnable', step, step, jsonb_build_object('code', 'retried', 'message', coalesce($5::text, 'Retried.'))
  FROM retried
)
SELECT id, queue FROM retried
