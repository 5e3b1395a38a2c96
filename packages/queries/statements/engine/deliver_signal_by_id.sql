-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.deliver_signal_by_id */ 
WITH target AS MATERIALIZED (
  SELECT id, status, awaits, queue FROM holdfast.instance
  WHERE id = $1::bigint AND project_id = $2::bigint AND status NOT IN ('done', 'failed', 'cancelled')
  FOR NO KEY UPDATE
), receipt AS (
  INSERT INTO holdfast.signal_receipt (target_id, dedup_key)
  SELECT id, $3::text FROM target WHERE $4::text IS NOT NULL
  ON CONFLICT (target_id, dedup_key) DO NOTHING
  RETURNING target_id
), fresh AS MATERIALIZED (
  SELECT target.* FROM target
  WHERE $5::text IS NULL OR EXISTS (SELECT FROM receipt)
), delivered AS (
  INSERT INTO holdfast.signal (target_id, name, payload, dedup_key, traceparent)
  SELECT id, $6::text, $7::jsonb, $8::text, $9::text FROM fresh
), woken AS (
  UPDATE holdfast.instance g SET
    status = CASE WHEN g.status = 'awaiting_signal' THEN 'runnable'::holdfast.instance_status ELSE g.status END,
    eligible_at = now(), updated_at = now()
  WHERE g.id = (SELECT id FROM fresh)
    AND (SELECT status FROM fresh) = 'awaiting_signal' AND $10::text = ANY ((SELECT awaits FROM fresh)::text[])
  RETURNING g.queue
)
SELECT (SELECT id FROM target) AS target_id,
  EXISTS (SELECT FROM target) AND NOT EXISTS (SELECT FROM fresh) AS duplicate,
  (SELECT queue FROM woken) AS queue
