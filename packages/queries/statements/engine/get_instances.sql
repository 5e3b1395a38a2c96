-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.get_instances */ 
SELECT id, machine, version, step, status, state, result, error, attempt, queue, priority, eligible_at, awaits, await_deadline, parent_id,
  children_pending, correlation_key, concurrency_key, rate_key, rate_weight, throttled_until, cancel_requested_at, traceparent, inserted_at, updated_at FROM holdfast.instance WHERE id = ANY ($1::bigint[]) AND project_id = $2::bigint
