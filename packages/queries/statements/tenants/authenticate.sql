-- Written by tools/write-statements.ts from packages/queries/src; not run from here. Change the source and write it again.
/* tenants.authenticate */ 
SELECT t.id AS token_id, t.access, t.project_id, p.name AS project
FROM holdfast.api_token t LEFT JOIN holdfast.project p ON p.id = t.project_id
WHERE t.sha256 = $1::bytea AND t.revoked_at IS NULL AND p.suspended_at IS NULL
