-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* tenants.revoke_token */ 
UPDATE holdfast.api_token SET revoked_at = coalesce(revoked_at, now())
WHERE id = $1::bigint AND project_id = $2::bigint
RETURNING id, access, label, created_at, revoked_at
