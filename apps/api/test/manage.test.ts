import { Credential, CredentialList, IssuedCredential, ProcessList, Project, ProjectList, QueueList, QueueState } from '@holdfast/contracts'
import { registerProcess } from '@holdfast/queries'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { ApiUnderTest, refused } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await ApiUnderTest.start()
})
afterAll(() => api[Symbol.asyncDispose]())

test('projects: created once, listed, suspended, resumed', async () => {
  const made = await api.manage('POST', '/manage/v1/projects', { body: { name: 'acme' } })
  expect(made.status).toBe(201)
  expect(Project.parse(made.body)).toMatchObject({ name: 'acme', suspended: false })
  const before = await api.rows()
  expect(refused(await api.manage('POST', '/manage/v1/projects', { body: { name: 'acme' } }), 409, 'project_conflict')).toMatch(/acme/)
  for (const name of ['', 'Acme', '-a', 'a b', 'a'.repeat(64), 5, null]) {
    refused(await api.manage('POST', '/manage/v1/projects', { body: { name } }), 400, 'invalid_project')
  }
  refused(await api.manage('POST', '/manage/v1/projects', { body: { name: 'ok', extra: 1 } }), 400, 'invalid_body')
  expect(await api.rows()).toEqual(before)

  const { projects } = ProjectList.parse((await api.manage('GET', '/manage/v1/projects')).body)
  expect(projects.map(({ name }) => name)).toEqual(['acme', 'default'])
  expect(Project.parse((await api.manage('POST', '/manage/v1/projects/acme/suspend')).body).suspended).toBe(true)
  expect(Project.parse((await api.manage('POST', '/manage/v1/projects/acme/suspend')).body).suspended).toBe(true)
  expect(Project.parse((await api.manage('POST', '/manage/v1/projects/acme/resume')).body).suspended).toBe(false)
  for (const name of ['nobody', 'NOBODY', '%00', 'x'.repeat(500)]) {
    refused(await api.manage('POST', `/manage/v1/projects/${name}/suspend`), 404, 'not_found')
    refused(await api.manage('POST', `/manage/v1/projects/${name}/resume`), 404, 'not_found')
    refused(await api.manage('GET', `/manage/v1/projects/${name}/credentials`), 404, 'not_found')
    refused(await api.manage('POST', `/manage/v1/projects/${name}/credentials`, { body: { access: 'read_only' } }), 404, 'not_found')
  }
})

test('credentials: shown once, listed without their token, revoked for good, and nobody else can', async () => {
  await api.manage('POST', '/manage/v1/projects', { body: { name: 'keys' } })
  await api.manage('POST', '/manage/v1/projects', { body: { name: 'thieves' } })
  const issued = await api.manage('POST', '/manage/v1/projects/keys/credentials', { body: { access: 'read_write', label: 'ci' } })
  expect(issued.status).toBe(201)
  const { id, token } = IssuedCredential.parse(issued.body)
  expect(token).toMatch(/^hf_rw_[\w-]{43}$/)
  const reader = IssuedCredential.parse(
    (await api.manage('POST', '/manage/v1/projects/keys/credentials', { body: { access: 'read_only' } })).body,
  )
  expect(reader.token).toMatch(/^hf_ro_/)

  const before = await api.rows()
  for (const body of [{}, { access: 'operator' }, { access: 'read_only', label: '' }, { access: 'read_only', label: 'x'.repeat(201) }]) {
    refused(await api.manage('POST', '/manage/v1/projects/keys/credentials', { body }), 400, 'invalid_credential')
  }
  refused(await api.manage('POST', `/manage/v1/projects/thieves/credentials/${id}/revoke`), 404, 'not_found')
  for (const none of ['0', 'abc', '%00', '999999', '9'.repeat(30)])
    refused(await api.manage('POST', `/manage/v1/projects/keys/credentials/${none}/revoke`), 404, 'not_found')
  expect(await api.rows()).toEqual(before)

  const revoked = Credential.parse((await api.manage('POST', `/manage/v1/projects/keys/credentials/${id}/revoke`)).body)
  expect(revoked.revoked_at).not.toBe(null)
  expect((await api.manage('POST', `/manage/v1/projects/keys/credentials/${id}/revoke`)).body).toEqual(revoked)
  const list = await api.manage('GET', '/manage/v1/projects/keys/credentials')
  expect(CredentialList.parse(list.body).credentials).toMatchObject([
    { id, access: 'read_write', label: 'ci', revoked_at: revoked.revoked_at },
    { id: reader.id, access: 'read_only', label: null, revoked_at: null },
  ])
  expect(JSON.stringify(list.body)).not.toContain('hf_')
})

test('queues: depth by status for the project, all of them for the operator, paused and resumed', async () => {
  await using own = await ApiUnderTest.start()
  const other = await own.tokenFor('other')
  await own.enqueue({ queue: 'mail' })
  await own.enqueue({ queue: 'mail' })
  await own.enqueue({ queue: 'mail', delay_ms: 60_000 })
  await own.finish(await own.enqueue({ queue: 'mail' }))
  await own.api('POST', '/v1/instances', { body: { machine: 'm', queue: 'secret' }, token: other })

  const mine = async () => QueueList.parse((await own.api('GET', '/v1/queues')).body).queues
  const all = async () => QueueList.parse((await own.manage('GET', '/manage/v1/queues')).body).queues
  expect(await mine()).toEqual([
    { queue: 'mail', paused: false, depth: { runnable: 2, scheduled: 1 }, oldest_runnable_ms: expect.any(Number), unclaimable: 2 },
  ])
  expect((await all()).map(({ queue }) => queue)).toEqual(['mail', 'secret'])

  const paused = await own.manage('POST', '/manage/v1/queues/mail/pause')
  expect([paused.status, QueueState.parse(paused.body)]).toEqual([200, { queue: 'mail', paused: true }])
  expect((await mine())[0]?.paused).toBe(true)
  expect(QueueState.parse((await own.manage('POST', '/manage/v1/queues/mail/resume')).body)).toEqual({ queue: 'mail', paused: false })
  expect((await mine())[0]?.paused).toBe(false)

  // A queue may be paused before anything is in it; the operator sees it, a project that has nothing there does not.
  await own.manage('POST', `/manage/v1/queues/${encodeURIComponent('to come/ü')}/pause`)
  expect((await all()).map(({ queue, paused }) => [queue, paused])).toContainEqual(['to come/ü', true])
  expect((await mine()).map(({ queue }) => queue)).toEqual(['mail'])

  const before = await own.rows()
  for (const name of ['q'.repeat(201), '%00']) refused(await own.manage('POST', `/manage/v1/queues/${name}/pause`), 400, 'invalid_queue')
  expect(await own.rows()).toEqual(before)
})

test('processes are listed with how long each has been silent', async () => {
  await registerProcess(api.database.db, { role: 'flusher', host: 'h1', pid: 42, version: '1.2.3', poolMax: 5 })
  await api.query(`UPDATE holdfast.process SET heartbeat_at = now() - interval '7 seconds'`)
  const { processes } = ProcessList.parse((await api.manage('GET', '/manage/v1/processes')).body)
  expect(processes).toMatchObject([{ role: 'flusher', host: 'h1', pid: 42, version: '1.2.3' }])
  expect(processes[0]?.silent_ms).toBeGreaterThanOrEqual(7_000)
})
