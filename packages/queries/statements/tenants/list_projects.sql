-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* tenants.list_projects */ SELECT id, name, suspended_at, created_at FROM holdfast.project ORDER BY name
