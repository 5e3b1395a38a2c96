-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* tenants.create_project */ 
INSERT INTO holdfast.project (name) VALUES ($1::text) ON CONFLICT (name) DO NOTHING RETURNING id, name, suspended_at, created_at
