-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.list_gate_keys */ 
SELECT DISTINCT key FROM holdfast.gate_slot WHERE project_id = $1::bigint AND split_part(key, ':', 1) = $2::text
