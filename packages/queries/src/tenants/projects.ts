import type { ProjectId } from '@holdfast/contracts'
import { sql } from 'kysely'
import { statement } from '../statement.ts'

export interface ProjectRow {
  readonly id: ProjectId
  readonly name: string
  readonly suspended_at: Date | null
  readonly created_at: Date
}

/** Answers nothing if the name is taken. */
export const createProject = statement<{ name: string }, ProjectRow>(
  'tenants.create_project',
  ({ name }) => sql<ProjectRow>`
INSERT INTO holdfast.project (name) VALUES (${name}::text) ON CONFLICT (name) DO NOTHING RETURNING id, name, suspended_at, created_at`,
  { name: 'default' },
)

export const findProject = statement<{ name: string }, ProjectRow>(
  'tenants.find_project',
  ({ name }) => sql<ProjectRow>`SELECT id, name, suspended_at, created_at FROM holdfast.project WHERE name = ${name}::text`,
  { name: 'default' },
)

export const listProjects = statement<Record<never, never>, ProjectRow>(
  'tenants.list_projects',
  () => sql<ProjectRow>`SELECT id, name, suspended_at, created_at FROM holdfast.project ORDER BY name`,
  {},
)

/** A suspended project's tokens are refused from the next request on; what is queued goes on running. */
export const setProjectSuspended = statement<{ name: string; suspended: boolean }, ProjectRow>(
  'tenants.set_project_suspended',
  ({ name, suspended }) => sql<ProjectRow>`
UPDATE holdfast.project SET suspended_at = CASE WHEN ${suspended}::boolean THEN coalesce(suspended_at, now()) END
WHERE name = ${name}::text RETURNING id, name, suspended_at, created_at`,
  { name: 'default', suspended: true },
)
