import { once } from 'node:events'
import { connect } from 'node:net'
import { Instance, NotSettled } from '@holdfast/contracts'
import { countStatements } from '@holdfast/testbed'
import { sql } from 'kysely'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { ApiUnderTest, refused } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await ApiUnderTest.start()
})
afterAll(() => api[Symbol.asyncDispose]())

const wait = (id: string, body: object = {}, ask: object = {}) => api.api('POST', `/v1/instances/${id}/wait`, { body, ...ask })
/** Statements that ask for statuses, while `work` lasts. */
const looks = async (work: () => Promise<unknown>): Promise<number> =>
  (await countStatements(api.db, work)).names.filter((name) => name === 'engine.get_statuses').length
const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

test('R26: answers the instance when it ends, whoever ends it, and at once when it has ended', async () => {
  const id = await api.enqueue()
  const waiting = wait(id, { timeout_ms: 20_000 })
  await pause(100)
  await api.finish(id, { paid: 12 })
  const answer = await waiting
  expect(answer.status).toBe(200)
  expect(Instance.parse(answer.body)).toMatchObject({ id, status: 'done', result: { paid: 12 } })
  expect(await looks(async () => expect((await wait(id, { timeout_ms: 0 })).status).toBe(200))).toBe(0)
})

test('a park ends a wait for settled, and none for terminal', async () => {
  const id = await api.enqueue()
  await api.park(id, 'payment')
  expect((await wait(id, { until: 'settled' })).body).toMatchObject({ status: 'awaiting_signal', awaits: ['payment'] })
  const answer = await wait(id, { until: 'terminal', timeout_ms: 50 })
  expect(answer.status).toBe(408)
  const { error, instance } = NotSettled.parse(answer.body)
  expect(error.code).toBe('not_settled')
  expect(instance).toMatchObject({ id, status: 'awaiting_signal' })
})

test('a wait is a read: a read_only token may', async () => {
  const id = await api.enqueue()
  await api.finish(id)
  expect((await wait(id, {}, { token: api.readOnly })).status).toBe(200)
  refused(await wait(id, { timeout_ms: 0 }, { token: await api.tokenFor('others') }), 404, 'not_found')
})

test.each([{ timeout_ms: -1 }, { timeout_ms: 30_001 }, { timeout_ms: '5' }, { until: 'later' }])('%j is refused', async (body) => {
  const id = await api.enqueue()
  expect(refused(await wait(id, body), 400, 'invalid_instance')).toMatch(/timeout_ms|until/)
  refused(await wait(id, { ...body, surprise: true }), 400, 'invalid_body')
})

test('many waiters, however they arrive, share one statement a tick', async () => {
  const ids = await Promise.all(Array.from({ length: 30 }, () => api.enqueue()))
  const begun = performance.now()
  const asked = await looks(async () => {
    const waits: Promise<{ status: number }>[] = []
    for (const id of ids) {
      waits.push(wait(id, { timeout_ms: 20_000 }), wait(id, { timeout_ms: 20_000 }))
      await pause(7) // arrivals between ticks and during looks
    }
    for (const id of ids) await api.finish(id)
    expect((await Promise.all(waits)).map(({ status }) => status)).toEqual(waits.map(() => 200))
  })
  expect(asked).toBeGreaterThan(0)
  expect(asked).toBeLessThanOrEqual(Math.ceil((performance.now() - begun) / 25))
})

test('a long wait is looked at less often', async () => {
  const id = await api.enqueue()
  const controller = new AbortController()
  const waiting = wait(id, { timeout_ms: 20_000 }, { signal: controller.signal }).catch(() => undefined)
  await pause(2_100)
  expect(await looks(() => pause(1_000))).toBeLessThanOrEqual(5)
  controller.abort()
  await waiting
})

test('nobody waits, nothing is asked; a client that goes away ends its wait', async () => {
  const id = await api.enqueue()
  const controller = new AbortController()
  const waiting = wait(id, { timeout_ms: 20_000 }, { signal: controller.signal }).catch(() => undefined)
  expect(await looks(() => pause(200))).toBeGreaterThan(1)
  controller.abort()
  await waiting
  await pause(100) // the server hears of it, and a look may be under way
  expect(await looks(() => pause(300))).toBe(0)
})

test('R26: one that is deleted while somebody waits for it is not found, at once', async () => {
  const id = await api.enqueue()
  const waiting = wait(id, { timeout_ms: 20_000 })
  await pause(100)
  const begun = performance.now()
  await sql`DELETE FROM holdfast.instance WHERE id = ${id}::bigint`.execute(api.database.db)
  refused(await waiting, 404, 'not_found')
  expect(performance.now() - begun).toBeLessThan(2_000)
})

test('R26: a database that is away for a moment does not end a wait', async () => {
  const id = await api.enqueue()
  const waiting = wait(id, { timeout_ms: 20_000 })
  for (let kills = 0; kills < 3; kills += 1) {
    await pause(50)
    await sql`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
      WHERE datname = current_database() AND query LIKE '%engine.get_statuses%' AND pid <> pg_backend_pid()`.execute(api.database.db)
  }
  await api.finish(id, { paid: 12 })
  expect((await waiting).status).toBe(200)
})

test('R26: a stop ends the waits with 408, at once', async () => {
  const own = await ApiUnderTest.start()
  const id = await own.enqueue()
  const waiting = own.api('POST', `/v1/instances/${id}/wait`, { body: { timeout_ms: 30_000 } })
  const begun = performance.now()
  await expect.poll(() => countStatements(own.db, () => pause(60)).then(({ names }) => names.includes('engine.get_statuses'))).toBe(true)
  await own[Symbol.asyncDispose]()
  expect((await waiting).status).toBe(408)
  expect(performance.now() - begun).toBeLessThan(10_000)
})

test('a stop is not held up by a connection that has never sent anything', async () => {
  const own = await ApiUnderTest.start()
  const sockets = [own.listeners.apiUrl, own.listeners.manageUrl].map((url) => connect(Number(new URL(url).port), '127.0.0.1'))
  await Promise.all(sockets.map((socket) => once(socket, 'connect')))
  await own.enqueue() // whoever was let in before has been seen by now
  const closed = Promise.all(sockets.map((socket) => once(socket.resume(), 'close')))
  const begun = performance.now()
  await own[Symbol.asyncDispose]()
  await closed
  expect(performance.now() - begun).toBeLessThan(5_000)
})
