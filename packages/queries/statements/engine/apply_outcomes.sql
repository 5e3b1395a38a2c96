-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.apply_outcomes */ 
WITH taken AS (
  DELETE FROM holdfast.outcome WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.outcome WHERE seq > $1::bigint ORDER BY seq LIMIT $2::integer FOR UPDATE SKIP LOCKED
  ))
  RETURNING *
), moved AS (
  UPDATE holdfast.instance g SET
    status = CASE o.kind
      WHEN 'next' THEN 'runnable'
      WHEN 'await_signal' THEN 'awaiting_signal'
      WHEN 'done' THEN 'done'
      WHEN 'fail' THEN 'failed'
      WHEN 'cancel' THEN 'cancelled'
      ELSE CASE WHEN o.delay_ms > 0 THEN 'scheduled' ELSE 'runnable' END
    END::holdfast.instance_status,
    step = coalesce(o.step, g.step),
    state = coalesce(o.state, g.state),
    result = o.result,
    error = o.error,
    attempt = CASE WHEN o.kind IN ('next', 'sleep', 'await_signal') THEN 0 WHEN o.kind = 'retry' THEN g.attempt + 1 ELSE g.attempt END,
    reclaims = 0,
    eligible_at = CASE
      WHEN o.kind IN ('done', 'fail', 'cancel') THEN g.eligible_at
      ELSE now() + coalesce(o.delay_ms, 0) * interval '1 millisecond'
    END,
    awaits = CASE o.kind WHEN 'await_signal' THEN o.awaits WHEN 'retry' THEN g.awaits END,
    await_deadline = CASE o.kind WHEN 'await_signal' THEN now() + o.timeout_ms * interval '1 millisecond' END,
    claimed_by = NULL,
    lease_expires_at = NULL,
    updated_at = now()
  FROM (SELECT * FROM taken ORDER BY instance_id) o
  WHERE g.id = ANY (ARRAY[o.instance_id]) AND g.claim_epoch = o.claim_epoch AND g.lease_expires_at IS NOT NULL
  RETURNING g.id, g.status, g.queue, g.eligible_at, g.await_deadline, o.*
), recorded AS (
  INSERT INTO holdfast.transition (
    flushed_at, claimed_at, started_at, finished_at, instance_id, claim_epoch, attempt, kind, to_status, from_step, to_step, worker, error
  )
  SELECT now(), staged_at - claimed_ago_us * interval '1 microsecond', staged_at - started_ago_us * interval '1 microsecond',
    staged_at - finished_ago_us * interval '1 microsecond', instance_id, claim_epoch, attempt, kind, status, from_step, step, worker, error
  FROM moved WHERE keep_history
)
SELECT
  (SELECT count(*)::integer FROM taken) AS taken,
  (SELECT max(seq) FROM taken) AS max_seq,
  count(*)::integer AS applied,
  array_agg(id) FILTER (WHERE status IN ('done', 'failed', 'cancelled')) AS ended,
  (SELECT array_agg(c) FROM moved m, unnest(m.consumed) c WHERE m.kind IN ('next', 'sleep')) AS consumed,
  array_agg(id) FILTER (WHERE status = 'awaiting_signal') AS parked,
  array_agg(presented::text) FILTER (WHERE status = 'awaiting_signal') AS presented,
  array_agg(DISTINCT queue) FILTER (WHERE status = 'runnable') AS queues,
  ceil(extract(epoch FROM
    least(min(eligible_at) FILTER (WHERE status = 'scheduled'), min(await_deadline)) - now()) * 1000)::float8 AS due_in_ms
FROM moved
