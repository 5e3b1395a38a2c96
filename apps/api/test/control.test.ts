import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ApiUnderTest, refused } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await ApiUnderTest.start()
})
afterAll(() => api[Symbol.asyncDispose]())

const post = (path: string, body: object = {}) => api.api('POST', path, { body })
const get = async (id: string) => (await api.api('GET', `/v1/instances/${id}`)).body
/** As a scheduler would. */
const execute = (id: string) =>
  api.query(
    `UPDATE holdfast.instance SET status = 'executing', claim_epoch = 1, claimed_by = 'w', lease_expires_at = now() + interval '1 hour' WHERE id = $1`,
    [id],
  )

describe('cancel', () => {
  test('what does not execute ends at once and says why; what has ended is a conflict', async () => {
    const id = await api.enqueue()
    const answer = await post(`/v1/instances/${id}/cancel`, { reason: 'withdrawn' })
    expect([answer.status, answer.body]).toMatchObject([200, { status: 'cancelled', error: { code: 'cancelled', message: 'withdrawn' } }])
    const before = await api.rows()
    expect(refused(await post(`/v1/instances/${id}/cancel`), 409, 'instance_conflict')).toContain('is cancelled')
    expect(await api.rows()).toEqual(before)
  })

  test('one that executes is asked, and whoever runs it is told', async () => {
    const heard = await api.listenTo('holdfast_cancel')
    const id = await api.enqueue()
    await execute(id)
    expect((await post(`/v1/instances/${id}/cancel`)).body).toMatchObject({ status: 'executing', cancel_requested_at: expect.any(String) })
    await expect.poll(() => heard).toContain(`holdfast_cancel:${id}`)
  })

  test('an instance that is not there, or of another project, is 404', async () => {
    expect(refused(await post('/v1/instances/999999/cancel'), 404, 'not_found')).toContain('999999')
    expect(refused(await post('/v1/instances/999999/retry'), 404, 'not_found')).toContain('999999')
  })
})

describe('retry', () => {
  test('a cancelled one goes on as a first attempt; a live one is a conflict', async () => {
    const id = await api.enqueue()
    refused(await post(`/v1/instances/${id}/retry`), 409, 'instance_conflict')
    await post(`/v1/instances/${id}/cancel`)
    expect((await post(`/v1/instances/${id}/retry`)).body).toMatchObject({ status: 'runnable', attempt: 0, error: null })
  })

  test('not where a newer instance has its correlation key', async () => {
    const id = await api.enqueue({ correlation_key: 'order-7' })
    await post(`/v1/instances/${id}/cancel`)
    await api.enqueue({ correlation_key: 'order-7' })
    expect(refused(await post(`/v1/instances/${id}/retry`), 409, 'instance_conflict')).toContain('order-7')
    expect(await get(id)).toMatchObject({ status: 'cancelled' })
  })
})

test('in bulk: what matches and can be, no more than the limit, and it says whether there is more', async () => {
  const ids: string[] = []
  for (let n = 0; n < 5; n += 1) ids.push(await api.enqueue({ queue: 'bulk' }))
  const first = await post('/v1/instances/cancel', { filter: { queue: 'bulk' }, limit: 3 })
  expect(first.body).toMatchObject({ matched: 3, more: true })
  const second = await post('/v1/instances/cancel', { filter: { queue: 'bulk' }, after: first.body.next })
  expect(second.body).toMatchObject({ matched: 2, more: false })
  expect([...(first.body.ids as string[]), ...(second.body.ids as string[])].toSorted()).toEqual(ids.toSorted())
  const retried = await post('/v1/instances/retry', { filter: { queue: 'bulk', status: 'cancelled' } })
  expect(retried.body).toMatchObject({ matched: 5, more: false })
  expect(await get(ids[0] as string)).toMatchObject({ status: 'runnable' })
})

test('in bulk: what was asked to stop is not matched again', async () => {
  const id = await api.enqueue({ queue: 'asked' })
  await execute(id)
  expect((await post('/v1/instances/cancel', { filter: { queue: 'asked' } })).body).toMatchObject({ matched: 1, ids: [id] })
  expect((await post('/v1/instances/cancel', { filter: { queue: 'asked' } })).body).toMatchObject({ matched: 0, ids: [], more: false })
})

test('the reason of a retry is in the history', async () => {
  const id = await api.enqueue()
  await post(`/v1/instances/${id}/cancel`)
  await post(`/v1/instances/${id}/retry`, { reason: 'the mail server is back' })
  const { transitions } = (await api.api('GET', `/v1/instances/${id}/history`)).body as { transitions: unknown[] }
  expect(transitions.at(-1)).toMatchObject({ kind: 'retry', worker: null, error: { code: 'retried', message: 'the mail server is back' } })
})

test.each(['/v1/instances/cancel', '/v1/instances/retry'])('%s without saying which is refused, and changes nothing', async (path) => {
  await api.enqueue()
  const before = await api.rows()
  for (const body of [{}, { filter: {} }, { all: true, filter: { queue: 'q' } }, { all: true, limit: 1_001 }])
    refused(await post(path, body), 400, 'invalid_instance')
  expect(await api.rows()).toEqual(before)
})
