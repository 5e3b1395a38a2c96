import { createHash } from 'node:crypto'
import {
  authenticate,
  beatProcess,
  createProject,
  declareMachines,
  findProject,
  getQueueDepths,
  getSchemaVersion,
  getStatuses,
  issueToken,
  leaveProcess,
  listInstances,
  listProcesses,
  listProjects,
  listTokens,
  registerProcess,
  removeDeadProcesses,
  revokeToken,
  setProjectSuspended,
  setQueuePaused,
} from '@holdfast/queries'
import { testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'
import { expect, test } from 'vitest'
import { EngineRows, newProject, present } from './engine-rows.ts'

const sha256 = (text: string): Uint8Array => createHash('sha256').update(text).digest()

test('a project is made once; its name is checked by the database', async () => {
  await using database = await testDatabase()
  const { db } = database
  const [made] = await createProject(db, { name: 'acme' })
  expect(made).toMatchObject({ name: 'acme', suspended_at: null })
  expect(await createProject(db, { name: 'acme' })).toEqual([])
  expect(await findProject(db, { name: 'acme' })).toEqual([made])
  expect(await findProject(db, { name: 'other' })).toEqual([])
  await createProject(db, { name: 'a-first' })
  expect((await listProjects(db, {})).map((project) => project.name)).toEqual(['a-first', 'acme'])
  for (const name of ['', 'Acme', '-a', 'a'.repeat(64)]) await expect(createProject(db, { name })).rejects.toThrow(/project_name_shape/)
})

test('a token is known by its hash, until it is revoked or its project suspended', async () => {
  await using database = await testDatabase()
  const { db } = database
  const project = await newProject(db, 'acme')
  const [token] = await issueToken(db, { projectId: project, access: 'read_write', sha256: sha256('t'), label: 'ci' })
  const who = () => authenticate(db, { sha256: sha256('t') })
  const principal = { token_id: token?.id, access: 'read_write', project_id: project, project: 'acme' }
  expect(await who()).toEqual([principal])
  expect(await authenticate(db, { sha256: sha256('u') })).toEqual([])

  await setProjectSuspended(db, { name: 'acme', suspended: true })
  expect(await who()).toEqual([])
  const [suspended] = await setProjectSuspended(db, { name: 'acme', suspended: true })
  expect(suspended?.suspended_at).toBeInstanceOf(Date)
  await setProjectSuspended(db, { name: 'acme', suspended: false })
  expect(await who()).toEqual([principal])

  const id = present(token).id
  expect(await revokeToken(db, { projectId: await newProject(db, 'other'), id })).toEqual([])
  const [revoked] = await revokeToken(db, { projectId: project, id })
  expect((await revokeToken(db, { projectId: project, id }))[0]?.revoked_at).toEqual(revoked?.revoked_at)
  expect(await who()).toEqual([])
  expect(await listTokens(db, { projectId: project })).toEqual([revoked])
})

test('an operator has no project, everybody else has one; a hash is 32 bytes and stands once', async () => {
  await using database = await testDatabase()
  const { db } = database
  const project = await newProject(db, 'acme')
  await issueToken(db, { projectId: null, access: 'operator', sha256: sha256('op'), label: null })
  expect(await authenticate(db, { sha256: sha256('op') })).toMatchObject([{ access: 'operator', project_id: null, project: null }])
  const issue = (projectId: typeof project | null, access: 'operator' | 'read_only', hash = sha256('x')) =>
    issueToken(db, { projectId, access, sha256: hash, label: null })
  await expect(issue(project, 'operator')).rejects.toThrow(/api_token_operator_has_no_project/)
  await expect(issue(null, 'read_only')).rejects.toThrow(/api_token_operator_has_no_project/)
  await expect(issue(project, 'read_only', new Uint8Array(31))).rejects.toThrow(/api_token_sha256_length/)
  await expect(issue(project, 'read_only', sha256('op'))).rejects.toThrow(/api_token_sha256/)
})

test('a process registers, beats, leaves; a silent one is removed and told so at its next beat', async () => {
  await using database = await testDatabase()
  const { db } = database
  const register = async (role: string) => present((await registerProcess(db, { role, host: 'h', pid: 7, version: '1', poolMax: 5 }))[0]).id
  const [alive, silent, leaving] = [await register('api'), await register('reaper'), await register('sealer')]
  await sql`UPDATE holdfast.process SET heartbeat_at = now() - interval '1 hour'`.execute(db)
  expect(await beatProcess(db, { id: alive })).toEqual([{ id: alive }])
  await leaveProcess(db, { id: leaving })
  expect(await removeDeadProcesses(db, { silentMs: 60_000 })).toEqual([{ id: silent, role: 'reaper', host: 'h', pid: 7 }])
  expect(await beatProcess(db, { id: silent })).toEqual([])
  const [listed, ...more] = await listProcesses(db, {})
  expect(more).toEqual([])
  expect(listed).toMatchObject({ id: alive, role: 'api' })
  expect(listed?.silent_ms).toBeLessThan(60_000)
})

test('the schema version is told, and whether what is newer lets older processes go on', async () => {
  await using database = await testDatabase()
  const { db } = database
  const [now] = await getSchemaVersion(db, { known: 1_000 })
  expect(now?.newer_are_safe).toBe(true)
  const next = present(now).version + 1
  await sql`INSERT INTO holdfast.schema_migration (version, name, sha256, compatibility) VALUES (${next}, 'x', 'x', 'breaking')`.execute(db)
  expect(await getSchemaVersion(db, { known: next - 1 })).toEqual([{ version: next, newer_are_safe: false }])
  expect(await getSchemaVersion(db, { known: next })).toEqual([{ version: next, newer_are_safe: true }])
})

test('depths: live ones by queue and status, of one project or of all, with what nobody can run', async () => {
  await using rows = await EngineRows.open()
  const { db, projectId } = rows
  await declareMachines(db, { machines: [{ name: 'm', version: 1, queue: 'default', maxReclaims: 5 }] })
  await setQueuePaused(db, { queue: 'idle', paused: true })
  await rows.insert({}, {}, { machine: 'ghost' }, { queue: 'q', delayMs: 60_000 })
  await rows.claim({ limit: 1 })
  const depths = await getQueueDepths(db, { projectId })
  expect(depths.map(({ oldest_ms: _oldest, ...row }) => row)).toEqual([
    { queue: 'default', status: 'runnable', count: 2, unclaimable: 1, paused: false },
    { queue: 'default', status: 'executing', count: 1, unclaimable: 0, paused: false },
    { queue: 'idle', status: null, count: 0, unclaimable: 0, paused: true },
    { queue: 'q', status: 'scheduled', count: 1, unclaimable: 0, paused: false },
  ])
  expect(depths[0]?.oldest_ms).toBeGreaterThanOrEqual(0)
  expect(depths[1]?.oldest_ms).toBeNull()
  expect(await getQueueDepths(db, { projectId: null })).toHaveLength(4)
  expect(await getQueueDepths(db, { projectId: await newProject(db, 'other') })).toMatchObject([{ queue: 'idle' }])
})

test('listing: newest first, by pages, filtered, and never across projects', async () => {
  await using rows = await EngineRows.open()
  const { db, projectId } = rows
  const ids = await rows.insert({}, { queue: 'q' }, { machine: 'n', correlationKey: 'k' }, { delayMs: 60_000 })
  const list = async (filter: object) => (await listInstances(db, { projectId, limit: 10, ...filter })).map((row) => row.id)
  expect(await list({})).toEqual(ids.toReversed())
  const page = await list({ limit: 3 })
  expect(page).toEqual([ids[3], ids[2], ids[1]])
  expect(await list({ limit: 3, after: page.at(-1) })).toEqual([ids[0]])
  expect(await list({ queue: 'q' })).toEqual([ids[1]])
  expect(await list({ machine: 'n', correlationKey: 'k' })).toEqual([ids[2]])
  expect(await list({ status: 'scheduled' })).toEqual([ids[3]])
  expect(await listInstances(db, { projectId: await newProject(db, 'other'), limit: 10 })).toEqual([])
  expect(await getStatuses(db, { ids: [present(ids[3])] })).toEqual([{ id: ids[3], status: 'scheduled' }])
})
