import { expect, test } from 'vitest'
import { ApiUnderTest, refused } from './api-under-test.ts'

test('what does not fit is refused at once; waits, health and operators are let in; what has ended makes room', async () => {
  await using api = await ApiUnderTest.start({ maxRequests: 3 })
  const parked = await api.enqueue()
  // Holds the table, so that inserts hang in the database.
  await api.query('BEGIN')
  await api.query('LOCK TABLE holdfast.instance IN EXCLUSIVE MODE')
  const controller = new AbortController()
  const hanging = Array.from({ length: 3 }, (_, n) =>
    api.api('POST', '/v1/instances', { body: { machine: 'm' }, ...(n === 0 ? { signal: controller.signal } : {}) }),
  )
  hanging[0]?.catch(() => undefined)
  const full = async (): Promise<boolean> => (await api.api('GET', '/v1/queues')).status === 429
  await expect.poll(full).toBe(true)

  const begun = performance.now()
  const answer = await api.api('GET', `/v1/instances/${parked}`)
  expect(performance.now() - begun).toBeLessThan(1_000)
  refused(answer, 429, 'rate_limited')
  expect(answer.headers.get('retry-after')).toBe('1')

  // The table lock lets reads through, and these are counted apart or not at all.
  expect((await api.api('POST', `/v1/instances/${parked}/wait`, { body: { timeout_ms: 0 } })).status).toBe(408)
  expect((await api.api('GET', '/health/live', { token: null })).status).toBe(200)
  expect((await api.api('GET', '/openapi.json', { token: null })).status).toBe(200)
  expect((await api.manage('GET', '/manage/v1/projects')).status).toBe(200)

  // A client that goes away gives its place back.
  controller.abort()
  await expect.poll(full).toBe(false)

  await api.query('ROLLBACK')
  for (const { status } of await Promise.all(hanging.slice(1))) expect(status).toBe(201)
  for (let n = 0; n < 10; n += 1) expect((await api.api('GET', `/v1/instances/${parked}`)).status).toBe(200)
})

test('a database that is away is 503, not 500, and served again when it is back', async () => {
  await using api = await ApiUnderTest.start()
  const id = await api.enqueue()
  const [before] = await api.query('SELECT current_database() AS name')
  await api.query(`ALTER DATABASE ${String(before?.['name'])} ALLOW_CONNECTIONS false`).catch(() => undefined)
  const [limit] = await api.query(
    `SELECT count(pg_terminate_backend(pid)) AS n FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`,
  )
  expect(Number(limit?.['n'])).toBeGreaterThan(0)
  const answer = await api.api('GET', `/v1/instances/${id}`)
  expect([200, 503]).toContain(answer.status)
  if (answer.status === 503) {
    refused(answer, 503, 'no_database_capacity')
    expect(answer.headers.get('retry-after')).toBe('1')
  }
  await api.query(`ALTER DATABASE ${String(before?.['name'])} ALLOW_CONNECTIONS true`).catch(() => undefined)
  await expect.poll(async () => (await api.api('GET', `/v1/instances/${id}`)).status, { timeout: 10_000 }).toBe(200)
})
