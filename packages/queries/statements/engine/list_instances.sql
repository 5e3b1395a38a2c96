-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.list_instances */ 
SELECT id, machine, version, step, status, state, result, error, attempt, queue, priority, eligible_at, awaits, await_deadline, parent_id,
  children_pending, correlation_key, concurrency_key, traceparent, inserted_at, updated_at FROM holdfast.instance
WHERE project_id = $1::bigint
  AND id < coalesce($2::bigint, 9223372036854775807)
  AND ($3::text IS NULL OR machine = $4::text)
  AND ($5::holdfast.instance_status IS NULL OR status = $6::holdfast.instance_status)
  AND ($7::text IS NULL OR queue = $8::text)
  AND ($9::text IS NULL OR correlation_key = $10::text)
  AND ($11::bigint IS NULL OR parent_id = $12::bigint)
ORDER BY id DESC LIMIT $13::integer
