-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.find_occupants */ 
SELECT id, correlation_guard AS correlation_key FROM holdfast.instance
WHERE project_id = $1::bigint AND correlation_guard = ANY ($2::text[])
