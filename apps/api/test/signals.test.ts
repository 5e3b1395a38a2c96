import { countStatements } from '@holdfast/testbed'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { ApiUnderTest, refused } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await ApiUnderTest.start()
})
afterAll(() => api[Symbol.asyncDispose]())

const signal = (body: object, ask: object = {}) => api.api('POST', '/v1/signals', { body, ...ask })
const inbox = (id: string) => api.query('SELECT name, payload, dedup_key FROM holdfast.signal WHERE target_id = $1 ORDER BY id', [id])

test('by id and by key: stored, in order, and the payload as it was sent', async () => {
  const id = await api.enqueue({ correlation_key: 'order-1' })
  expect((await signal({ id, name: 'a', payload: { amount: 1 } })).body).toEqual({ delivered: true, duplicate: false })
  const answer = await signal({ correlation_key: 'order-1', name: 'b', dedup_key: 'd' })
  expect(answer.status).toBe(202)
  await api.api('POST', '/v1/signals', { raw: `{"id":"${id}","name":"c","payload":null}` })
  expect(await inbox(id)).toEqual([
    { name: 'a', payload: { amount: 1 }, dedup_key: null },
    { name: 'b', payload: {}, dedup_key: 'd' },
    { name: 'c', payload: null, dedup_key: null },
  ])
})

test('a dedup key is good for one delivery, also after it was consumed', async () => {
  const id = await api.enqueue()
  const send = () => signal({ id, name: 'paid', dedup_key: 'payment-1' })
  expect((await send()).body).toEqual({ delivered: true, duplicate: false })
  expect((await send()).body).toEqual({ delivered: true, duplicate: true })
  await api.query('DELETE FROM holdfast.signal WHERE target_id = $1', [id])
  const answer = await send()
  expect([answer.status, answer.body]).toEqual([202, { delivered: true, duplicate: true }])
  expect(await inbox(id)).toEqual([])
})

test('wakes who waits for that name and hints its queue; another name wakes nobody', async () => {
  const heard = await api.listenTo('holdfast_runnable')
  const id = await api.enqueue({ queue: 'payments', delay_ms: 60_000 })
  await api.park(id, 'paid')
  await signal({ id, name: 'refunded' })
  expect((await api.api('GET', `/v1/instances/${id}`)).body).toMatchObject({ status: 'awaiting_signal' })
  await signal({ id, name: 'paid' })
  expect((await api.api('GET', `/v1/instances/${id}`)).body).toMatchObject({ status: 'runnable', awaits: ['paid'] })
  await expect.poll(() => heard).toContain('holdfast_runnable:payments')
})

test('no live target is 404 and nothing is stored: ended, never there, of another project', async () => {
  const ended = await api.enqueue({ correlation_key: 'ended', correlation_scope: ['done'] })
  await api.finish(ended)
  const foreign = (
    await api.api('POST', '/v1/instances', { body: { machine: 'm', correlation_key: 'theirs' }, token: await api.tokenFor('other') })
  ).body.id as string
  const before = await api.rows()
  for (const target of [
    { id: ended },
    { correlation_key: 'ended' }, // the key is occupied, by what has ended
    { id: '999999' },
    { correlation_key: 'nobody' },
    { id: foreign },
    { correlation_key: 'theirs' },
  ]) {
    expect(refused(await signal({ ...target, name: 'go', dedup_key: 'd' }), 404, 'not_found')).toMatch(/no live instance.*not stored/)
  }
  expect(await api.rows()).toEqual(before)
})

test('one request is one statement beside the look-up of the token', async () => {
  const id = await api.enqueue({ correlation_key: 'counted' })
  const names = async (body: object): Promise<string[]> =>
    (await countStatements(api.db, () => signal(body))).names.filter((name) => name !== 'engine.notify')
  expect(await names({ id, name: 'go', dedup_key: 'x' })).toEqual(['tenants.authenticate', 'engine.deliver_signal_by_id'])
  expect(await names({ correlation_key: 'counted', name: 'go' })).toEqual(['tenants.authenticate', 'engine.deliver_signal_by_key'])
})
