-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* tenants.set_project_suspended */ 
UPDATE holdfast.project SET suspended_at = CASE WHEN $1::boolean THEN coalesce(suspended_at, now()) END
WHERE name = $2::text RETURNING id, name, suspended_at, created_at
