import {
  HoldfastApiError,
  HoldfastClient,
  InstanceFailedError,
  type MachineRef,
  type ScheduleDefinition,
  WaitTimeoutError,
} from '@holdfast/client'
import { afterAll, beforeAll, describe, expect, expectTypeOf, test } from 'vitest'
import { ApiUnderTest } from './api-under-test.ts'

let api: ApiUnderTest
let client: HoldfastClient
beforeAll(async () => {
  api = await ApiUnderTest.start()
  client = new HoldfastClient({ url: `${api.listeners.apiUrl}/`, token: api.token })
})
afterAll(() => api[Symbol.asyncDispose]())

type Checkout = MachineRef<{ order: number }, { paid: number }, { payment_confirmed: { amount: number } }>
const checkout: Checkout = { name: 'checkout', version: 2 }
const code = (wanted: string) => expect.objectContaining({ name: 'HoldfastApiError', code: wanted })

test('enqueue pins the version of a definition and sends every option', async () => {
  const { id, created } = await client.enqueue(
    checkout,
    { order: 7 },
    {
      queue: 'shop',
      priority: 3,
      delay: '2 hours',
      correlationKey: 'order-7',
      correlationScope: ['done'],
      concurrencyKey: 'customer-1',
    },
  )
  expect(created).toBe(true)
  const instance = await client.get(id)
  expect(instance).toMatchObject({
    machine: 'checkout',
    version: 2,
    state: { order: 7 },
    queue: 'shop',
    priority: 3,
    status: 'scheduled',
    correlation_key: 'order-7',
    concurrency_key: 'customer-1',
  })
  expect(Date.parse(instance.eligible_at) - Date.parse(instance.inserted_at)).toBe(7_200_000)
  expect(await client.enqueue('checkout', {}, { correlationKey: 'order-7' })).toEqual({ id, created: false })
  const at = new Date(Date.now() + 60_000)
  expect((await client.get((await client.enqueue('other', undefined, { eligibleAt: at, version: 5 })).id)).eligible_at).toBe(
    at.toISOString(),
  )
})

test('enqueueMany answers ids in order', async () => {
  const { ids, created } = await client.enqueueMany<Checkout>([
    { machine: checkout, state: { order: 1 } },
    { machine: 'checkout', state: { order: 2 }, queue: 'shop' },
  ])
  expect(created).toBe(2)
  expect(await Promise.all(ids.map(async (id) => (await client.get(id)).state))).toEqual([{ order: 1 }, { order: 2 }])
})

test('signal by id and by key, and again with its dedup key', async () => {
  const { id } = await client.enqueue(checkout, { order: 8 }, { correlationKey: 'order-8' })
  const pay = (target: { id: string } | { correlationKey: string }) =>
    client.signal<Checkout, 'payment_confirmed'>(target, 'payment_confirmed', { amount: 5 }, { dedupKey: 'p' })
  expect(await pay({ id })).toEqual({ delivered: true, duplicate: false })
  expect(await pay({ correlationKey: 'order-8' })).toEqual({ delivered: true, duplicate: true })
  await api.finish(id)
  await expect(pay({ id })).rejects.toEqual(code('not_found'))
})

describe('waitFor', () => {
  test('answers the result, typed, over several polls', async () => {
    const { id } = await client.enqueue(checkout, { order: 9 })
    const waiting = client.waitFor<Checkout>(id, { timeoutMs: 10_000 })
    setTimeout(() => void api.finish(id, { paid: 12 }), 60)
    const result = await waiting
    expectTypeOf(result).toEqualTypeOf<{ paid: number }>()
    expect(result).toEqual({ paid: 12 })
  })

  test('throws the failure of one that failed, and says when one was cancelled', async () => {
    const { id } = await client.enqueue('checkout')
    await api.query(
      `UPDATE holdfast.instance SET status = 'failed', error = '{"code":"card_declined","message":"no money"}' WHERE id = $1`,
      [id],
    )
    const error = await client.waitFor(id).catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(InstanceFailedError)
    expect((error as InstanceFailedError).failure).toEqual({ code: 'card_declined', message: 'no money' })
    expect(String(error)).toMatch(new RegExp(`${id} \\(checkout\\) failed: no money`))
    await api.query(`UPDATE holdfast.instance SET status = 'cancelled', error = NULL WHERE id = $1`, [id])
    await expect(client.waitFor(id)).rejects.toThrow(/cancelled/)
  })

  test('gives up at its own deadline and shows where the instance is', async () => {
    const { id } = await client.enqueue('checkout')
    const error = await client.waitFor(id, { timeoutMs: 120 }).catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(WaitTimeoutError)
    expect((error as WaitTimeoutError).instance).toMatchObject({ id, status: 'runnable' })
  })

  test('of something that is not there says so at once', () => expect(client.waitFor('999999')).rejects.toEqual(code('not_found')))

  test('until settled answers the parked instance, and one that failed', async () => {
    const { id } = await client.enqueue('checkout')
    await api.park(id, 'payment')
    expect(await client.waitUntilSettled(id)).toMatchObject({ status: 'awaiting_signal', awaits: ['payment'] })
    await api.query(`UPDATE holdfast.instance SET status = 'failed' WHERE id = $1`, [id])
    expect(await client.waitUntilSettled(id)).toMatchObject({ status: 'failed' })
  })
})

test('list goes through the pages, page gives one, history and queues what there is', async () => {
  const own = new HoldfastClient({ url: api.listeners.apiUrl, token: await api.tokenFor('pages') })
  const { ids } = await own.enqueueMany(Array.from({ length: 7 }, (_, n) => ({ machine: n === 3 ? 'odd' : 'even', queue: 'q/ü&' })))
  const seen: string[] = []
  for await (const { id } of own.list({ pageSize: 3 })) seen.push(id)
  expect(seen).toEqual(ids.toReversed())
  expect((await own.page({ machine: 'odd' })).instances.map(({ id }) => id)).toEqual([ids[3]])
  const first = await own.page({ pageSize: 5, status: 'runnable', queue: 'q/ü&' })
  expect((await own.page({ pageSize: 5 }, first.next)).instances.map(({ id }) => id)).toEqual([ids[1], ids[0]])
  expect(await own.history(ids[0] ?? '')).toEqual([])
  expect(await own.queues()).toMatchObject([{ queue: 'q/ü&', depth: { runnable: 7 } }])
})

test('a refusal is an error with the code of the API and its words', async () => {
  await expect(client.enqueue('m', {}, { priority: 1e9 })).rejects.toEqual(code('invalid_instance'))
  const reader = new HoldfastClient({ url: api.listeners.apiUrl, token: api.readOnly })
  const error = await reader.enqueue('m').catch((thrown: unknown) => thrown)
  expect(error).toBeInstanceOf(HoldfastApiError)
  expect(error).toMatchObject({ code: 'forbidden', status: 403, message: expect.stringMatching(/may only read/) })
  const nobody = new HoldfastClient({ url: api.listeners.apiUrl, token: 'x' })
  await expect(nobody.queues()).rejects.toEqual(code('unauthenticated'))
})

test('schedules: put, typed by their machine; get; list, page after page; delete', async () => {
  type Report = MachineRef<{ day: string }, null>
  const report: Report = { name: 'report', version: 3 }
  const own = new HoldfastClient({ url: api.listeners.apiUrl, token: await api.tokenFor('schedules') })
  const made = await own.schedules.put(report.name, {
    machine: report,
    cron: '30 2 * * *',
    timezone: 'Europe/Berlin',
    input: { day: '{{tick}}' },
    queue: 'reports',
    priority: 2,
    concurrencyKey: 'k',
    catchUp: 'one',
    overlap: 'skip',
  })
  expect(made).toMatchObject({
    name: 'report',
    machine: 'report',
    version: 3,
    cron: '30 2 * * *',
    timezone: 'Europe/Berlin',
    input: { day: '{{tick}}' },
    queue: 'reports',
    priority: 2,
    concurrency_key: 'k',
    catch_up: 'one',
    overlap: 'skip',
    paused: false,
  })
  expectTypeOf<ScheduleDefinition<Report>['input']>().toEqualTypeOf<{ day: string } | undefined>()
  expect(await own.schedules.put('report', { machine: 'report', cron: '@hourly', paused: true })).toMatchObject({
    version: null,
    paused: true,
    next_at: null,
  })
  expect(await own.schedules.get('report')).toMatchObject({ cron: '@hourly' })
  await api.query(`INSERT INTO holdfast.schedule (project_id, name, cron, machine, paused_at)
    SELECT project_id, 's' || to_char(i, 'FM0000'), '@daily', 'm', now() FROM holdfast.schedule, generate_series(1, 600) i WHERE name = 'report'`)
  const names: string[] = []
  for await (const { name } of own.schedules.list()) names.push(name)
  expect([names.length, names[0], names.at(-1), new Set(names).size]).toEqual([601, 'report', 's0600', 601])

  expect(await own.schedules.delete('report')).toBe(true)
  expect(await own.schedules.delete('report')).toBe(false)
  await expect(own.schedules.get('report')).rejects.toEqual(code('not_found'))
  await expect(own.schedules.put('x', { machine: 'm', cron: '99 * * * *' })).rejects.toThrow(/the minute field cannot be "99"/)
})
