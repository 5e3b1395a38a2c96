import { newToken } from '@holdfast/queries'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Answer, ApiUnderTest, refused } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await ApiUnderTest.start()
})
afterAll(() => api[Symbol.asyncDispose]())

const enqueueAs = (token: string | null, headers: Record<string, string> = {}): Promise<Answer> =>
  api.api('POST', '/v1/instances', { body: { machine: 'm' }, token, headers })

test('whatever is wrong with a token, the answer is the same and nothing is changed', async () => {
  const revoked = await api.tokenFor('revoked')
  await api.query(
    `UPDATE holdfast.api_token t SET revoked_at = now() FROM holdfast.project p WHERE p.id = t.project_id AND p.name = 'revoked'`,
  )
  const suspended = await api.tokenFor('suspended')
  await api.manage('POST', '/manage/v1/projects/suspended/suspend')
  const before = await api.rows()
  const answers = [
    await enqueueAs(null),
    await enqueueAs(newToken('read_write')),
    await enqueueAs(api.token.slice(0, -1)),
    await enqueueAs(`${api.token}x`),
    await enqueueAs(api.token.toUpperCase()),
    await enqueueAs(''),
    await enqueueAs(revoked),
    await enqueueAs(suspended),
    await enqueueAs(api.operator),
    await enqueueAs(null, { authorization: `Basic ${btoa(`x:${api.token}`)}` }),
    await enqueueAs(null, { authorization: api.token }),
    await enqueueAs(null, { authorization: `Bearer  ${api.token}` }),
    await api.manage('GET', '/manage/v1/projects', { token: api.token }),
    await api.manage('GET', '/manage/v1/projects', { token: api.readOnly }),
    await api.manage('GET', '/manage/v1/projects', { token: null }),
    await api.manage('POST', '/manage/v1/queues/default/pause', { token: api.token }),
  ]
  for (const answer of answers) refused(answer, 401, 'unauthenticated')
  expect(new Set(answers.map(({ body }) => JSON.stringify(body))).size).toBe(1)
  expect(await api.rows()).toEqual(before)
})

test('every route of both listeners asks for a token', async () => {
  const before = await api.rows()
  for (const [method, path] of [
    ['POST', '/v1/instances'],
    ['POST', '/v1/instances/batch'],
    ['GET', '/v1/instances'],
    ['GET', '/v1/instances/1'],
    ['GET', '/v1/instances/1/history'],
    ['POST', '/v1/instances/1/wait'],
    ['POST', '/v1/signals'],
    ['GET', '/v1/queues'],
    ['PUT', '/v1/schedules/s'],
    ['GET', '/v1/schedules'],
    ['GET', '/v1/schedules/s'],
    ['DELETE', '/v1/schedules/s'],
  ] as const) {
    refused(
      await api.api(method, path, { token: null, ...(method === 'POST' || method === 'PUT' ? { body: {} } : {}) }),
      401,
      'unauthenticated',
    )
  }
  for (const [method, path] of [
    ['POST', '/manage/v1/projects'],
    ['GET', '/manage/v1/projects'],
    ['POST', '/manage/v1/projects/default/suspend'],
    ['POST', '/manage/v1/projects/default/resume'],
    ['POST', '/manage/v1/projects/default/credentials'],
    ['GET', '/manage/v1/projects/default/credentials'],
    ['POST', '/manage/v1/projects/default/credentials/1/revoke'],
    ['GET', '/manage/v1/queues'],
    ['POST', '/manage/v1/queues/default/pause'],
    ['POST', '/manage/v1/queues/default/resume'],
    ['GET', '/manage/v1/processes'],
  ] as const) {
    refused(await api.manage(method, path, { token: api.token, ...(method === 'POST' ? { body: {} } : {}) }), 401, 'unauthenticated')
  }
  expect(await api.rows()).toEqual(before)
})

test('the scheme is written in any case', async () => {
  expect((await enqueueAs(null, { authorization: `bearer ${api.token}` })).status).toBe(201)
})

describe('read_only', () => {
  test('may read and wait', async () => {
    const id = await api.enqueue()
    for (const path of ['', `/${id}`, `/${id}/history`])
      expect((await api.api('GET', `/v1/instances${path}`, { token: api.readOnly })).status).toBe(200)
    expect((await api.api('GET', '/v1/queues', { token: api.readOnly })).status).toBe(200)
    expect((await api.api('POST', `/v1/instances/${id}/wait`, { body: { timeout_ms: 0 }, token: api.readOnly })).status).toBe(408)
  })
  test('may not write, whatever it sends', async () => {
    const id = await api.enqueue()
    const before = await api.rows()
    for (const [path, body] of [
      ['/v1/instances', { machine: 'm' }],
      ['/v1/instances', { machine: 5 }],
      ['/v1/instances/batch', { instances: [{ machine: 'm' }] }],
      ['/v1/signals', { id, name: 'go' }],
    ] as const) {
      refused(await api.api('POST', path, { body, token: api.readOnly }), 403, 'forbidden')
    }
    expect(await api.rows()).toEqual(before)
  })
})

test('a revocation, a suspension and a resumption hold from the next request on', async () => {
  const issued = await api.manage('POST', '/manage/v1/projects/default/credentials', { body: { access: 'read_write' } })
  const { id, token } = issued.body as { id: string; token: string }
  expect((await enqueueAs(token)).status).toBe(201)
  await api.manage('POST', `/manage/v1/projects/default/credentials/${id}/revoke`)
  refused(await enqueueAs(token), 401, 'unauthenticated')
  await api.manage('POST', '/manage/v1/projects/default/suspend')
  refused(await enqueueAs(api.token), 401, 'unauthenticated')
  await api.manage('POST', '/manage/v1/projects/default/resume')
  expect((await enqueueAs(api.token)).status).toBe(201)
})

test('only the hash of a token is stored, and no token is in the log', async () => {
  const { body } = await api.manage('POST', '/manage/v1/projects/default/credentials', { body: { access: 'read_only', label: 'ci' } })
  const rows = JSON.stringify(await api.query('SELECT id, access, label, encode(sha256, $1) AS hash FROM holdfast.api_token', ['escape']))
  expect(rows).toContain('ci')
  expect(rows).not.toContain((body as { token: string }).token)
  expect(api.log.join('')).not.toMatch(/hf_(rw|ro|op)_/)
})
