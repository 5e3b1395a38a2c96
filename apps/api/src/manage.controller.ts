import {
  CreateProjectRequest,
  type Credential,
  type CredentialList,
  HoldfastError,
  IssueCredentialRequest,
  type IssuedCredential,
  type ProcessList,
  type Project,
  type ProjectId,
  type ProjectList,
} from '@holdfast/contracts'
import { WirePipe } from '@holdfast/host'
import {
  createProject,
  findProject,
  hashToken,
  issueToken,
  listProcesses,
  listProjects,
  listTokens,
  newToken,
  type ProjectRow,
  revokeToken,
  setProjectSuspended,
  type TokenRow,
} from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { Body, Controller, Get, HttpCode, Inject, Param, Post, UseGuards } from '@nestjs/common'
import { OperatorGuard } from './principal.ts'
import { DB } from './tokens.ts'

const toProject = (row: ProjectRow): Project => ({
  name: row.name,
  suspended: row.suspended_at !== null,
  created_at: row.created_at.toISOString(),
})
/** What a path may name; anything else is the name of nothing, and not asked for. */
const PROJECT_NAME = /^[a-z0-9][a-z0-9_-]{0,62}$/

const noProject = (name: string): HoldfastError =>
  new HoldfastError('not_found', `there is no project ${JSON.stringify(name.slice(0, 64))}`)

/** Projects, their credentials and the running processes; for operators. */
@Controller('manage/v1')
@UseGuards(OperatorGuard)
export class ManageController {
  readonly #db: Db
  constructor(@Inject(DB) db: Db) {
    this.#db = db
  }

  @Post('projects')
  async create(@Body(new WirePipe(CreateProjectRequest, 'invalid_project')) { name }: CreateProjectRequest): Promise<Project> {
    const [row] = await createProject(this.#db, { name })
    if (row === undefined) throw new HoldfastError('project_conflict', `there is a project named ${name} already`)
    return toProject(row)
  }

  @Get('projects')
  async projects(): Promise<ProjectList> {
    return { projects: (await listProjects(this.#db, {})).map(toProject) }
  }

  @Post('projects/:name/suspend')
  @HttpCode(200)
  suspend(@Param('name') name: string): Promise<Project> {
    return this.#setSuspended(name, true)
  }

  @Post('projects/:name/resume')
  @HttpCode(200)
  resume(@Param('name') name: string): Promise<Project> {
    return this.#setSuspended(name, false)
  }

  @Post('projects/:name/credentials')
  async issue(
    @Param('name') name: string,
    @Body(new WirePipe(IssueCredentialRequest, 'invalid_credential')) { access, label }: IssueCredentialRequest,
  ): Promise<IssuedCredential> {
    const token = newToken(access)
    const [row] = await issueToken(this.#db, {
      projectId: await this.#projectId(name),
      access,
      sha256: hashToken(token),
      label: label ?? null,
    })
    if (row === undefined) throw new Error('a credential was not stored')
    return { id: row.id, access, token }
  }

  @Get('projects/:name/credentials')
  async credentials(@Param('name') name: string): Promise<CredentialList> {
    return { credentials: (await listTokens(this.#db, { projectId: await this.#projectId(name) })).map(toCredential) }
  }

  @Post('projects/:name/credentials/:id/revoke')
  @HttpCode(200)
  async revoke(@Param('name') name: string, @Param('id') id: string): Promise<Credential> {
    const projectId = await this.#projectId(name)
    const [row] = /^[1-9]\d{0,17}$/.test(id) ? await revokeToken(this.#db, { projectId, id }) : []
    if (row === undefined) throw new HoldfastError('not_found', `project ${name} has no credential ${id.slice(0, 40)}`)
    return toCredential(row)
  }

  @Get('processes')
  async processes(): Promise<ProcessList> {
    const rows = await listProcesses(this.#db, {})
    return {
      processes: rows.map((row) => ({
        id: row.id,
        role: row.role,
        host: row.host,
        pid: row.pid,
        version: row.version,
        started_at: row.started_at.toISOString(),
        silent_ms: Math.max(0, Math.round(row.silent_ms)),
      })),
    }
  }

  async #setSuspended(name: string, suspended: boolean): Promise<Project> {
    if (!PROJECT_NAME.test(name)) throw noProject(name)
    const [row] = await setProjectSuspended(this.#db, { name, suspended })
    if (row === undefined) throw noProject(name)
    return toProject(row)
  }

  async #projectId(name: string): Promise<ProjectId> {
    const [row] = PROJECT_NAME.test(name) ? await findProject(this.#db, { name }) : []
    if (row === undefined) throw noProject(name)
    return row.id
  }
}

const toCredential = (row: TokenRow): Credential => ({
  id: row.id,
  access: row.access as Credential['access'],
  label: row.label,
  created_at: row.created_at.toISOString(),
  revoked_at: row.revoked_at?.toISOString() ?? null,
})
