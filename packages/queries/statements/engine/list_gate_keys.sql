-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.list_gate_keys */ 
SELECT key FROM holdfast.gate_slot WHERE project_id = $1::bigint AND split_part(key, ':', 1) = $2::text
UNION
SELECT concurrency_key FROM holdfast.instance
WHERE project_id = $3::bigint AND status IN ('runnable', 'throttled') AND concurrency_key IS NOT NULL
  AND split_part(concurrency_key, ':', 1) = $4::text
