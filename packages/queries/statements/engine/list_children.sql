-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.list_children */ 
SELECT id, machine, version, status, correlation_key, result, error FROM holdfast.instance
WHERE parent_id = $1::bigint AND id > $2::bigint
  AND ($3::text IS NULL OR machine = $4::text)
  AND ($5::holdfast.instance_status IS NULL OR status = $6::holdfast.instance_status)
ORDER BY id LIMIT $7::integer
