import type { ProjectId, TokenAccess } from '@holdfast/contracts'
import { sql } from 'kysely'
import { statement } from '../statement.ts'

export interface PrincipalRow {
  readonly token_id: string
  readonly access: TokenAccess
  /** null for an operator. */
  readonly project_id: ProjectId | null
  readonly project: string | null
}

/**
 * Who a bearer token is, by its SHA-256. Nothing for an unknown or revoked token and for a suspended project, which the caller answers alike.
 * Asked on every request, so that a revocation holds from the next one on. Served by: api_token_sha256, project_pkey.
 */
export const authenticate = statement<{ sha256: Uint8Array }, PrincipalRow>(
  'tenants.authenticate',
  ({ sha256 }) => sql<PrincipalRow>`
SELECT t.id AS token_id, t.access, t.project_id, p.name AS project
FROM holdfast.api_token t LEFT JOIN holdfast.project p ON p.id = t.project_id
WHERE t.sha256 = ${sha256}::bytea AND t.revoked_at IS NULL AND p.suspended_at IS NULL`,
  { sha256: new Uint8Array(32) },
)

export interface TokenRow {
  readonly id: string
  readonly access: TokenAccess
  readonly label: string | null
  readonly created_at: Date
  readonly revoked_at: Date | null
}

export const issueToken = statement<
  { projectId: ProjectId | null; access: TokenAccess; sha256: Uint8Array; label: string | null },
  TokenRow
>(
  'tenants.issue_token',
  ({ projectId, access, sha256, label }) => sql<TokenRow>`
INSERT INTO holdfast.api_token (project_id, access, sha256, label)
VALUES (${projectId}::bigint, ${access}::text, ${sha256}::bytea, ${label}::text)
RETURNING id, access, label, created_at, revoked_at`,
  { projectId: '1' as ProjectId, access: 'read_write', sha256: new Uint8Array(32), label: null },
)

export const listTokens = statement<{ projectId: ProjectId }, TokenRow>(
  'tenants.list_tokens',
  ({ projectId }) => sql<TokenRow>`
SELECT id, access, label, created_at, revoked_at FROM holdfast.api_token WHERE project_id = ${projectId}::bigint ORDER BY id`,
  { projectId: '1' as ProjectId },
)

/** Answers nothing for a token of another project; revoking twice keeps the first time. */
export const revokeToken = statement<{ projectId: ProjectId; id: string }, TokenRow>(
  'tenants.revoke_token',
  ({ projectId, id }) => sql<TokenRow>`
UPDATE holdfast.api_token SET revoked_at = coalesce(revoked_at, now())
WHERE id = ${id}::bigint AND project_id = ${projectId}::bigint
RETURNING id, access, label, created_at, revoked_at`,
  { projectId: '1' as ProjectId, id: '1' },
)
