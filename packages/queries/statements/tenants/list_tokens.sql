-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* tenants.list_tokens */ 
SELECT id, access, label, created_at, revoked_at FROM holdfast.api_token WHERE project_id = $1::bigint ORDER BY id
