-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* engine.end_cascade */ DELETE FROM holdfast.cascade WHERE parent_id = $1::bigint RETURNING parent_id
