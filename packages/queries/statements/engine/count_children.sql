-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.count_children */ 
SELECT status, count(*)::integer AS count FROM holdfast.instance WHERE parent_id = $1::bigint GROUP BY status
