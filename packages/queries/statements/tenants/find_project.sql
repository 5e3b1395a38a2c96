-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* tenants.find_project */ SELECT id, name, suspended_at, created_at FROM holdfast.project WHERE name = $1::text
