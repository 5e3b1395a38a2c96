import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { createProject, hashToken, issueToken, newToken } from '@holdfast/queries'
import { connectOne } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { RoleProcess } from '@holdfast/testbed/role-process'
import { afterAll, beforeAll, expect, test } from 'vitest'

let database: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
})
afterAll(() => database[Symbol.asyncDispose]())

const env = (more: Record<string, string> = {}): Record<string, string | undefined> => ({
  PATH: process.env['PATH'],
  HOLDFAST_DATABASE_URL: database.url,
  HOLDFAST_API_PORT: '0',
  HOLDFAST_MANAGE_PORT: '0',
  ...more,
})

/** A port that is taken, as long as `work` lasts. */
async function withTakenPort(work: (port: string) => Promise<void>): Promise<void> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  try {
    await work(String((server.address() as AddressInfo).port))
  } finally {
    server.close()
  }
}

test.each(['HOLDFAST_API_PORT', 'HOLDFAST_MANAGE_PORT', 'HOLDFAST_HEALTH_PORT'])('a taken %s is a clear line and exit code 1', (name) =>
  withTakenPort(async (port) => {
    const lines: string[] = []
    const api = new RoleProcess({ role: 'api', env: env({ [name]: port }), onLine: (line) => lines.push(line) })
    const [code] = await once(api.child, 'exit')
    expect(code).toBe(1)
    const fatal = lines.filter((line) => line.includes('"level":"fatal"')).map((line) => (JSON.parse(line) as { msg: string }).msg)
    expect(fatal).toEqual([expect.stringMatching(new RegExp(`a port is taken: .*${port}; choose another`))])
    await expect(api.started()).rejects.toThrow(/ended before it was up/)
  }),
)

test('a setting that does not fit is named, and the process ends with code 78', async () => {
  const lines: string[] = []
  const api = new RoleProcess({ role: 'api', env: env({ HOLDFAST_API_PORT: 'http' }), onLine: (line) => lines.push(line) })
  const [code] = await once(api.child, 'exit')
  expect(code).toBe(78)
  expect(lines.join('\n')).toMatch(/HOLDFAST_API_PORT is "http"/)
})

test('runs as its role with a statement time-out of its own, and stops on SIGTERM though a client waits on a kept-alive connection', async () => {
  const token = newToken('read_write')
  const [project] = await createProject(database.db, { name: 'default' })
  await issueToken(database.db, { projectId: project?.id ?? null, access: 'read_write', sha256: hashToken(token), label: null })
  const api = new RoleProcess({ role: 'api', env: env() })
  const { api_url: url = '', manage_url: manageUrl = '', health_url: healthUrl } = await api.started()
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' }
  const ask = (path: string, body: object) => fetch(url + path, { method: 'POST', headers, body: JSON.stringify(body) })

  for (const ready of [url, manageUrl, healthUrl]) expect((await fetch(`${ready}/health/ready`)).status).toBe(200)
  const { id } = (await (await ask('/v1/instances', { machine: 'm' })).json()) as { id: string }

  // A statement that hangs is ended by the database for the api's sessions, and the client is told to come again.
  const admin = await connectOne({ connectionString: database.url })
  await admin.query('BEGIN; LOCK TABLE holdfast.instance IN ACCESS EXCLUSIVE MODE')
  const begun = performance.now()
  const hung = await fetch(`${url}/v1/instances/${id}`, { headers })
  expect(hung.status).toBe(503)
  expect(hung.headers.get('retry-after')).toBe('1')
  expect(await hung.json()).toMatchObject({ error: { code: 'no_database_capacity' } })
  expect(performance.now() - begun).toBeLessThan(8_000)
  await admin.query('ROLLBACK')
  const { rows } = await admin.query<{ name: string }>(
    `SELECT DISTINCT application_name AS name FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'holdfast-%'`,
  )
  expect(rows).toEqual([{ name: 'holdfast-api' }])
  expect((await admin.query('SELECT role FROM holdfast.process')).rows).toEqual([{ role: 'api' }])

  const waiting = ask(`/v1/instances/${id}/wait`, { timeout_ms: 30_000 })
  await expect
    .poll(async () => (await admin.query(`SELECT FROM pg_stat_activity WHERE query LIKE '/* engine.get_statuses */%'`)).rowCount)
    .toBeGreaterThan(0)
  const stopping = performance.now()
  expect(await api.end('SIGTERM')).toBe(0)
  expect(performance.now() - stopping).toBeLessThan(10_000)
  expect((await waiting).status).toBe(408)
  expect((await admin.query('SELECT FROM holdfast.process')).rowCount).toBe(0)
  await admin.end()
})
