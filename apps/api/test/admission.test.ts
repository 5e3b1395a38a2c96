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

test('a connection that the database ends under a request is 503, not 500, and the next request is served', async () => {
  await using api = await ApiUnderTest.start()
  const id = await api.enqueue()
  const get = () => api.api('GET', `/v1/instances/${id}`)
  await api.query('BEGIN')
  await api.query('LOCK TABLE holdfast.instance IN ACCESS EXCLUSIVE MODE')
  const hanging = get()
  const terminated = async (): Promise<number> => {
    // This session is in a transaction, in which the first look at the activity would be shown again and again.
    await api.query('SELECT pg_stat_clear_snapshot()')
    return (
      await api.query(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '/* engine.get_instances */%'`)
    ).length
  }
  await expect.poll(terminated).toBe(1)
  const answer = await hanging
  refused(answer, 503, 'no_database_capacity')
  expect(answer.headers.get('retry-after')).toBe('1')
  await api.query('ROLLBACK')
  expect((await get()).status).toBe(200)
  expect(api.log.filter((line) => line.includes('"level":"error"'))).toEqual([])
})
