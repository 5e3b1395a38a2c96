import { join } from 'node:path'
import { createProject, hashToken, issueToken, newToken } from '@holdfast/queries'
import type { Role } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { RoleProcess } from '@holdfast/testbed/role-process'
import pg from 'pg'

const ROOT = join(import.meta.dirname, '../../..')

/** A database of its own, and the roles that a test needs as the processes that they are. */
export class SystemUnderTest {
  readonly database: TestDatabase
  /** What the command finds in its environment. */
  readonly env: Readonly<Record<string, string>>
  readonly apiUrl: string
  readonly #roles: readonly RoleProcess[]

  private constructor(database: TestDatabase, apiUrl: string, env: Readonly<Record<string, string>>, roles: readonly RoleProcess[]) {
    this.database = database
    this.apiUrl = apiUrl
    this.env = env
    this.#roles = roles
  }

  static async start(...others: Role[]): Promise<SystemUnderTest> {
    const database = await testDatabase()
    const [project] = await createProject(database.db, { name: 'default' })
    if (project === undefined) throw new Error('there is a project already')
    const token = newToken('read_write')
    await issueToken(database.db, { projectId: project.id, access: 'read_write', sha256: hashToken(token), label: null })
    const operator = newToken('operator')
    await issueToken(database.db, { projectId: null, access: 'operator', sha256: hashToken(operator), label: null })
    const env = {
      ...process.env,
      HOLDFAST_DATABASE_URL: database.url,
      HOLDFAST_API_PORT: '0',
      HOLDFAST_MANAGE_PORT: '0',
      HOLDFAST_POOL_MAX: '4',
      HOLDFAST_MACHINES: join(ROOT, 'examples'),
    }
    const roles = (['api', ...others] as const).map((role) => new RoleProcess({ role, env }))
    const [api] = await Promise.all(roles.map((role) => role.started()))
    const { api_url: apiUrl = '', manage_url: manageUrl = '' } = api ?? {}
    return new SystemUnderTest(
      database,
      apiUrl,
      {
        HOLDFAST_URL: apiUrl,
        HOLDFAST_TOKEN: token,
        HOLDFAST_MANAGE_URL: manageUrl,
        HOLDFAST_OPERATOR_TOKEN: operator,
        HOLDFAST_DATABASE_URL: database.url,
      },
      roles,
    )
  }

  /** Whether this API has an operation: `has('/v1/limits')`. */
  async has(path: string): Promise<boolean> {
    const { paths } = (await (await fetch(`${this.apiUrl}/openapi.json`)).json()) as { paths: Record<string, unknown> }
    return path in paths
  }

  /** As superuser; the text is the test's own. */
  async query(text: string): Promise<void> {
    const client = new pg.Client({ connectionString: this.database.url })
    await client.connect()
    try {
      await client.query(text)
    } finally {
      await client.end()
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#roles.map((role) => role.end('SIGKILL')))
    await this.database[Symbol.asyncDispose]()
  }
}
