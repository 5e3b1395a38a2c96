-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.list_instances */ 
SELECT id, machine, version, step, status, state, result, error, attempt, queue, priority, eligible_at, awaits, await_deadline, parent_id,
  children_pending, correlation_key, concurrency_key, rate_key, rate_weight, throttled_until, cancel_requested_at, traceparent, inserted_at, updated_at FROM holdfast.instance WHERE id = ANY (ARRAY(
  SELECT id FROM (
    (
  SELECT id FROM holdfast.instance
  WHERE project_id = $1::bigint AND status <> 'executing'
    AND id < coalesce($2::bigint, 9223372036854775807)
    AND ($3::text IS NULL OR machine = $4::text)
    AND ($5::holdfast.instance_status IS NULL OR status = $6::holdfast.instance_status)
    AND ($7::text IS NULL OR queue = $8::text)
    AND ($9::text IS NULL OR correlation_key = $10::text)
    AND ($11::bigint IS NULL OR parent_id = $12::bigint)
  ORDER BY id DESC LIMIT $13::integer)
    UNION ALL
    (
  SELECT id FROM holdfast.instance
  WHERE project_id = $14::bigint AND status = 'executing' AND lease_expires_at IS NOT NULL
    AND id < coalesce($15::bigint, 9223372036854775807)
    AND ($16::text IS NULL OR machine = $17::text)
    AND ($18::holdfast.instance_status IS NULL OR status = $19::holdfast.instance_status)
    AND ($20::text IS NULL OR queue = $21::text)
    AND ($22::text IS NULL OR correlation_key = $23::text)
    AND ($24::bigint IS NULL OR parent_id = $25::bigint)
  ORDER BY id DESC LIMIT $26::integer)
  ) both_pages ORDER BY id DESC LIMIT $27::integer
)) ORDER BY id DESC
