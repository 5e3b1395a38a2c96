import { afterAll, beforeAll, expect, test } from 'vitest'
import { ApiUnderTest, refused } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await ApiUnderTest.start()
})
afterAll(() => api[Symbol.asyncDispose]())

const put = (path: string, body: object) => api.api('PUT', path, { body })

test('a rate limit and a gate are declared, changed and listed with their use', async () => {
  expect((await put('/v1/limits/rate/mail', { rate: 10 })).body).toMatchObject({
    kind: 'rate',
    name: 'mail',
    rate: 10,
    period_ms: 1_000,
    burst: 10,
    shards: 1,
  })
  expect((await put('/v1/limits/rate/mail', { rate: 5, period: 60_000, burst: 20, shards: 2 })).body).toMatchObject({
    rate: 5,
    burst: 20,
  })
  expect((await put('/v1/limits/gate/reports', { capacity: 4 })).body).toMatchObject({ kind: 'gate', capacity: 4 })
  const [{ id: project }] = (await api.query(`SELECT id FROM holdfast.project WHERE name = 'default'`)) as [{ id: string }]
  await api.query(`INSERT INTO holdfast.gate_slot (project_id, key, slot, holder_id, holder_epoch) VALUES ($1, 'reports:eu', 0, 1, 1)`, [
    project,
  ])
  expect((await api.api('GET', '/v1/limits')).body).toMatchObject({
    limits: [
      { kind: 'gate', name: 'reports', keys: [{ key: 'reports:eu', held: 1, waiting: 0 }] },
      { kind: 'rate', name: 'mail', keys: [] },
    ],
  })
})

test('a gate that lets nobody in shows who waits for it, by partition', async () => {
  await api.api('PUT', '/v1/limits/gate/closed', { body: { capacity: 0 } })
  for (const concurrency_key of ['closed', 'closed:eu', 'closed:eu']) await api.enqueue({ concurrency_key })
  await api.query(`UPDATE holdfast.instance SET status = 'throttled' WHERE concurrency_key LIKE 'closed%'`)
  const { limits } = (await api.api('GET', '/v1/limits')).body as { limits: { name: string; keys: unknown[] }[] }
  expect(limits.find(({ name }) => name === 'closed')).toMatchObject({
    capacity: 0,
    keys: [
      { key: 'closed', held: 0, waiting: 1 },
      { key: 'closed:eu', held: 0, waiting: 2 },
    ],
  })
})

test('who waits for a gate is let go when it grows', async () => {
  await put('/v1/limits/gate/g', { capacity: 0 })
  const id = await api.enqueue({ concurrency_key: 'g' })
  await api.query(`UPDATE holdfast.instance SET status = 'throttled' WHERE id = $1`, [id])
  await put('/v1/limits/gate/g', { capacity: 1 })
  expect((await api.api('GET', `/v1/instances/${id}`)).body).toMatchObject({ status: 'runnable' })
})

test('an instance names the rate limit of its first step; one that is not there, or too small, is refused and nothing inserted', async () => {
  await put('/v1/limits/rate/api', { rate: 2 })
  const id = await api.enqueue({ rate_limit: { name: 'api', partition: 'eu', weight: 2 } })
  expect((await api.api('GET', `/v1/instances/${id}`)).body).toMatchObject({ rate_limit: { key: 'api:eu', weight: 2 } })
  const before = await api.rows()
  for (const limit of [{ name: 'nobody' }, { name: 'api', weight: 3 }])
    refused(await api.api('POST', '/v1/instances', { body: { machine: 'm', rate_limit: limit } }), 400, 'invalid_limit')
  refused(await api.api('POST', '/v1/instances', { body: { machine: 'm', rate_limit: { name: 'a:b' } } }), 400, 'invalid_instance')
  refused(
    await api.api('POST', '/v1/instances/batch', {
      body: { instances: [{ machine: 'm' }, { machine: 'm', rate_limit: { name: 'nobody' } }] },
    }),
    400,
    'invalid_limit',
  )
  expect(await api.rows()).toEqual(before)
})

test('a limit that cannot be is refused, and nothing is stored', async () => {
  const before = await api.query('SELECT * FROM holdfast.limit_policy')
  for (const [path, body] of [
    ['/v1/limits/rate/a:b', { rate: 1 }],
    ['/v1/limits/rate/x', {}],
    ['/v1/limits/rate/x', { rate: -1 }],
    ['/v1/limits/rate/x', { rate: 1, burst: 0 }],
    ['/v1/limits/rate/x', { rate: 1, shards: 65 }],
    ['/v1/limits/gate/x', { capacity: -1 }],
    ['/v1/limits/gate/x', { capacity: 1.5 }],
  ] as const)
    refused(await put(path, body), 400, 'invalid_limit')
  expect(await api.query('SELECT * FROM holdfast.limit_policy')).toEqual(before)
})

test('the limits of the project `system` are the operator’s', async () => {
  const answer = await api.manage('PUT', '/manage/v1/limits/rate/gpt', { body: { rate: 100, period: 60_000 } })
  expect([answer.status, answer.body]).toMatchObject([200, { kind: 'rate', rate: 100 }])
  expect((await api.manage('GET', '/manage/v1/limits')).body).toMatchObject({ limits: [{ name: 'gpt' }] })
  refused(await api.manage('PUT', '/manage/v1/limits/gate/a:b', { body: { capacity: 1 } }), 400, 'invalid_limit')
})
