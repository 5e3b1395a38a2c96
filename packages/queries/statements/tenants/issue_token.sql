-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* tenants.issue_token */ 
INSERT INTO holdfast.api_token (project_id, access, sha256, label)
VALUES ($1::bigint, $2::text, $3::bytea, $4::text)
RETURNING id, access, label, created_at, revoked_at
