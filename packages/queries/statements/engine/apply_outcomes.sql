-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.apply_outcomes */ 
WITH taken AS (
  DELETE FROM holdfast.outcome WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.outcome WHERE seq > $1::bigint ORDER BY seq LIMIT $2::integer FOR UPDATE SKIP LOCKED
  ))
  RETURNING *, false AS goes_on
), discarded AS (
  DELETE FROM holdfast.instance g
  USING (SELECT * FROM taken WHERE discard AND kind = 'done' ORDER BY instance_id) o
  WHERE g.id = ANY (ARRAY[o.instance_id]) AND g.claim_epoch = o.claim_epoch AND g.lease_expires_at IS NOT NULL
    AND g.parent_id IS NULL AND NOT 'done' = ANY (g.correlation_scope)
  RETURNING g.id, g.project_id, o.held_key
), moved AS (
  UPDATE holdfast.instance g SET
    status = CASE
      WHEN o.kind = 'done' THEN 'done'
      WHEN o.kind = 'fail' THEN 'failed'
      WHEN o.kind = 'cancel' OR g.cancel_requested_at IS NOT NULL THEN 'cancelled'
      WHEN o.rate_key IS NOT NULL AND coalesce((
        SELECT o.rate_weight > p.burst FROM holdfast.limit_policy p
        WHERE p.project_id = g.project_id AND p.kind = 'rate' AND p.name = split_part(o.rate_key, ':', 1)), true) THEN 'failed'
      WHEN o.goes_on THEN 'executing'
      WHEN o.kind IN ('next', 'continue_as') THEN 'runnable'
      WHEN o.kind = 'await_signal' THEN 'awaiting_signal'
      WHEN o.kind = 'spawn' THEN CASE WHEN jsonb_array_length(o.children) > 0 THEN 'awaiting_children' ELSE 'runnable' END
      ELSE CASE WHEN o.delay_ms > 0 THEN 'scheduled' ELSE 'runnable' END
    END::holdfast.instance_status,
    step = coalesce(o.step, g.step),
    version = coalesce(o.version, g.version),
    state = coalesce(o.state, g.state),
    result = o.result,
    error = CASE
      WHEN o.kind IN ('done', 'fail', 'cancel') THEN o.error
      WHEN g.cancel_requested_at IS NOT NULL
        THEN jsonb_build_object('code', 'cancelled', 'message', coalesce(g.cancel_reason, 'Cancelled while its step ran.'))
      WHEN o.rate_key IS NOT NULL AND coalesce((
        SELECT o.rate_weight > p.burst FROM holdfast.limit_policy p
        WHERE p.project_id = g.project_id AND p.kind = 'rate' AND p.name = split_part(o.rate_key, ':', 1)), true)
        THEN jsonb_build_object('code', 'invalid_limit', 'message', format(
          'Step %s asks for %s of the rate limit %s, which its project does not have or whose burst is smaller. Make the limit larger, or the weight smaller, and retry the instance.',
          o.step, o.rate_weight, o.rate_key))
      ELSE o.error
    END,
    attempt = CASE WHEN o.kind = 'retry' THEN g.attempt + 1 WHEN o.kind IN ('done', 'fail', 'cancel') THEN g.attempt ELSE 0 END,
    reclaims = 0,
    eligible_at = CASE
      WHEN o.kind IN ('done', 'fail', 'cancel') THEN g.eligible_at
      ELSE now() + coalesce(o.delay_ms, 0) * interval '1 millisecond'
    END,
    awaits = CASE WHEN g.cancel_requested_at IS NULL AND NOT (o.rate_key IS NOT NULL AND coalesce((
        SELECT o.rate_weight > p.burst FROM holdfast.limit_policy p
        WHERE p.project_id = g.project_id AND p.kind = 'rate' AND p.name = split_part(o.rate_key, ':', 1)), true)) THEN CASE o.kind WHEN 'await_signal' THEN o.awaits WHEN 'retry' THEN g.awaits END END,
    await_deadline = CASE WHEN o.kind IN ('await_signal', 'spawn') AND g.cancel_requested_at IS NULL AND NOT (o.rate_key IS NOT NULL AND coalesce((
        SELECT o.rate_weight > p.burst FROM holdfast.limit_policy p
        WHERE p.project_id = g.project_id AND p.kind = 'rate' AND p.name = split_part(o.rate_key, ':', 1)), true)) THEN now() + o.timeout_ms * interval '1 millisecond' END,
    children_pending = CASE WHEN o.kind = 'spawn' AND g.cancel_requested_at IS NULL AND NOT (o.rate_key IS NOT NULL AND coalesce((
        SELECT o.rate_weight > p.burst FROM holdfast.limit_policy p
        WHERE p.project_id = g.project_id AND p.kind = 'rate' AND p.name = split_part(o.rate_key, ':', 1)), true)) THEN jsonb_array_length(o.children) ELSE 0 END,
    concurrency_key = CASE WHEN o.key_change THEN o.concurrency_key ELSE g.concurrency_key END,
    rate_key = CASE WHEN o.kind IN ('retry', 'done', 'fail', 'cancel') THEN g.rate_key ELSE o.rate_key END,
    rate_weight = CASE WHEN o.kind IN ('retry', 'done', 'fail', 'cancel') THEN g.rate_weight ELSE coalesce(o.rate_weight, 1) END,
    claimed_by = NULL, lease_expires_at = NULL,
    gate_slot = CASE WHEN NOT o.key_change THEN g.gate_slot END,
    updated_at = now()
  FROM (SELECT * FROM taken ORDER BY instance_id) o
  WHERE g.id = ANY (ARRAY[o.instance_id]) AND g.claim_epoch = o.claim_epoch AND g.lease_expires_at IS NOT NULL
    AND NOT (o.discard AND o.kind = 'done' AND g.parent_id IS NULL AND NOT 'done' = ANY (g.correlation_scope))
  RETURNING g.id, g.project_id, g.status, g.queue, g.eligible_at, g.await_deadline, g.parent_id, g.parent_epoch, g.claim_epoch AS epoch_now,
    g.error AS error_now, o.claim_epoch, o.attempt, o.kind, o.keep_history, o.worker, o.from_step, o.step, o.presented, o.consumed, o.held_key, o.key_change,
    o.children, o.join_count, o.traceparent, o.staged_at, o.claimed_ago_us, o.started_ago_us, o.finished_ago_us
), born AS (
  INSERT INTO holdfast.instance (
    project_id, machine, version, queue, state, priority, status, eligible_at, correlation_key, correlation_scope, concurrency_key,
    rate_key, rate_weight, parent_id, parent_epoch, traceparent
  )
  SELECT m.project_id, c.machine, coalesce(c.version, declared.version, 1), coalesce(c.queue, declared.queue, 'default'), coalesce(c.state, '{}'),
    coalesce(c.priority, 0::smallint), CASE WHEN c.delay_ms > 0 THEN 'scheduled' ELSE 'runnable' END::holdfast.instance_status,
    now() + coalesce(c.delay_ms, 0) * interval '1 millisecond', c.correlation_key, coalesce(c.correlation_scope, '{}')::holdfast.instance_status[],
    c.concurrency_key, c.rate_key, coalesce(c.rate_weight, 1), m.id, m.claim_epoch, m.traceparent
  FROM moved m
  CROSS JOIN LATERAL ROWS FROM (jsonb_to_recordset(m.children) AS (
    machine text, version integer, queue text, state jsonb, priority smallint, delay_ms bigint, correlation_key text, correlation_scope text[],
    concurrency_key text, rate_key text, rate_weight integer
  )) WITH ORDINALITY AS c (
    machine, version, queue, state, priority, delay_ms, correlation_key, correlation_scope, concurrency_key, rate_key, rate_weight, ord
  )
  LEFT JOIN LATERAL (
    SELECT d.version, d.queue FROM holdfast.machine d
    WHERE d.name = c.machine AND (c.version IS NULL OR d.version = c.version)
    ORDER BY d.version DESC LIMIT 1
  ) declared ON true
  WHERE m.status = 'awaiting_children'
  ORDER BY c.correlation_key, m.id, c.ord
  ON CONFLICT (project_id, correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING
  RETURNING parent_id, queue, status, eligible_at
), recorded AS (
  INSERT INTO holdfast.transition (
    flushed_at, claimed_at, started_at, finished_at, instance_id, claim_epoch, attempt, kind, to_status, from_step, to_step, worker, error
  )
  SELECT now(), staged_at - claimed_ago_us * interval '1 microsecond', staged_at - started_ago_us * interval '1 microsecond',
    staged_at - finished_ago_us * interval '1 microsecond', id, claim_epoch, attempt, kind, status, from_step, step, worker, error_now
  FROM moved WHERE keep_history
)
SELECT
  (SELECT count(*)::integer FROM taken) AS taken,
  (SELECT max(seq) FROM taken) AS max_seq, NULL::bigint[] AS applied_ids,
  count(*)::integer + (SELECT count(*)::integer FROM discarded) AS applied,
  array_agg(id) FILTER (WHERE status = 'executing') AS continued,
  array_agg(epoch_now) FILTER (WHERE status = 'executing') AS continued_epochs,
  array_agg(id) FILTER (WHERE status IN ('done', 'failed', 'cancelled')) AS ended,
  (SELECT array_agg(id) FROM discarded) AS removed,
  (SELECT array_agg(c) FROM moved m, unnest(m.consumed) c WHERE m.kind IN ('next', 'sleep', 'spawn', 'continue_as')) AS consumed,
  array_agg(id) FILTER (WHERE status = 'awaiting_signal') AS parked,
  array_agg(presented::text) FILTER (WHERE status = 'awaiting_signal') AS presented,
  CASE WHEN bool_or(parent_epoch IS NOT NULL AND status IN ('done', 'failed', 'cancelled')) THEN (
    SELECT jsonb_agg(jsonb_build_object('id', parent_id::text, 'epoch', parent_epoch::text, 'ended', ended)) FROM (
      SELECT parent_id, parent_epoch, count(*) AS ended FROM moved
      WHERE parent_epoch IS NOT NULL AND status IN ('done', 'failed', 'cancelled') GROUP BY parent_id, parent_epoch
    ) p
  ) END AS joined,
  CASE WHEN bool_or(status = 'awaiting_children') THEN (
    SELECT jsonb_agg(jsonb_build_object('id', m.id::text, 'landed', (SELECT count(*) FROM born b WHERE b.parent_id = m.id), 'join_count', m.join_count))
    FROM moved m WHERE m.status = 'awaiting_children'
  ) END AS spawned,
  array_agg(id) FILTER (WHERE status = 'cancelled') AS cancelled,
  CASE WHEN bool_or(held_key IS NOT NULL) OR EXISTS (SELECT FROM discarded WHERE held_key IS NOT NULL) THEN (
    SELECT jsonb_agg(jsonb_build_object('project_id', project_id::text, 'key', held_key)) FROM (
      SELECT project_id, held_key FROM moved WHERE held_key IS NOT NULL AND (status <> 'executing' OR key_change)
      UNION
      SELECT project_id, held_key FROM discarded WHERE held_key IS NOT NULL
    ) f
  ) END AS freed,
  (SELECT array_agg(DISTINCT q) FROM (
    SELECT queue AS q FROM moved WHERE status = 'runnable' UNION SELECT queue FROM born WHERE status = 'runnable'
  ) runnable) AS queues,
  ceil(extract(epoch FROM least(
    min(eligible_at) FILTER (WHERE status = 'scheduled'), min(await_deadline), (SELECT min(eligible_at) FROM born WHERE status = 'scheduled')
  ) - now()) * 1000)::float8 AS due_in_ms
FROM moved
