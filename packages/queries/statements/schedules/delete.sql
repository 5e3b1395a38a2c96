-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* schedules.delete */ 
DELETE FROM holdfast.schedule WHERE project_id = $1::bigint AND name = $2::text RETURNING name
