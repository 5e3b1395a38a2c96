import { EnqueueBatchResponse, EnqueueResponse, History, Instance, InstanceList } from '@holdfast/contracts'
import { countStatements } from '@holdfast/testbed'
import { sql } from 'kysely'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ApiUnderTest, refused } from './api-under-test.ts'

let api: ApiUnderTest
beforeAll(async () => {
  api = await ApiUnderTest.start()
})
afterAll(() => api[Symbol.asyncDispose]())

const get = async (id: string): Promise<Instance> => Instance.parse((await api.api('GET', `/v1/instances/${id}`)).body)

describe('POST /v1/instances', () => {
  test('inserts with the defaults, and the answer is what GET shows', async () => {
    const answer = await api.api('POST', '/v1/instances', { body: { machine: 'm' } })
    expect(answer.status).toBe(201)
    const { id, created } = EnqueueResponse.parse(answer.body)
    expect(created).toBe(true)
    expect(await get(id)).toMatchObject({
      id,
      machine: 'm',
      version: 1,
      step: 'start',
      status: 'runnable',
      state: {},
      queue: 'default',
      priority: 0,
      attempt: 0,
      result: null,
      error: null,
      awaits: null,
      correlation_key: null,
    })
  })

  test('N16: what is answered is committed: nothing is collected first, that could be lost or overflow', async () => {
    const ids = await Promise.all(
      Array.from({ length: 20 }, async () => {
        const id = await api.enqueue()
        const { rows } = await sql`SELECT FROM holdfast.instance WHERE id = ${id}::bigint`.execute(api.database.db) // another session
        expect(rows, `the row of ${id}, when its id was answered`).toHaveLength(1)
        return id
      }),
    )
    expect(new Set(ids).size).toBe(20)
  })

  test('stores every field that it takes', async () => {
    const id = await api.enqueue({
      machine: 'm',
      version: 3,
      state: { order: 7, 'ünïcode 😀': [null, true, 1.5, { deep: [] }] },
      queue: 'mail',
      priority: -5,
      delay_ms: 60_000,
      correlation_key: 'order-7',
      correlation_scope: ['done'],
      concurrency_key: 'customer-1',
    })
    const instance = await get(id)
    expect(instance).toMatchObject({
      version: 3,
      state: { order: 7, 'ünïcode 😀': [null, true, 1.5, { deep: [] }] },
      queue: 'mail',
      priority: -5,
      status: 'scheduled',
      correlation_key: 'order-7',
      concurrency_key: 'customer-1',
    })
    expect(Date.parse(instance.eligible_at) - Date.parse(instance.inserted_at)).toBe(60_000)
    const [row] = await api.query('SELECT correlation_scope::text FROM holdfast.instance WHERE id = $1', [id])
    expect(row).toEqual({ correlation_scope: '{done}' })
  })

  test('an instant of the past runs at once, one with an offset is the same instant', async () => {
    expect(await get(await api.enqueue({ eligible_at: '2020-01-01T00:00:00Z' }))).toMatchObject({ status: 'runnable' })
    expect(await get(await api.enqueue({ eligible_at: '2999-06-01T12:00:00+02:00' }))).toMatchObject({
      status: 'scheduled',
      eligible_at: '2999-06-01T10:00:00.000Z',
    })
  })

  test('nothing of a state is dropped: input by its other name, null, and keys that JavaScript minds', async () => {
    expect((await get(await api.enqueue({ input: { to: 'ada' } }))).state).toEqual({ to: 'ada' })
    expect((await get(await api.enqueue({ state: null }))).state).toBe(null)
    const raw = '{"machine":"m","state":{"__proto__":{"a":1},"constructor":2,"list":[{"__proto__":3}]}}'
    const one = await api.api('POST', '/v1/instances', { raw })
    const many = await api.api('POST', '/v1/instances/batch', { raw: `{"instances":[${raw}]}` })
    for (const id of [one.body.id as string, many.body.ids[0] as string]) {
      const [row] = await api.query('SELECT state::text FROM holdfast.instance WHERE id = $1', [id])
      expect(JSON.parse(String(row?.['state']))).toEqual(JSON.parse('{"__proto__":{"a":1},"constructor":2,"list":[{"__proto__":3}]}'))
    }
  })

  test('an occupied key answers 200 with its occupant; after its end the key is free, unless its scope says otherwise', async () => {
    const first = await api.enqueue({ correlation_key: 'k' })
    const again = await api.api('POST', '/v1/instances', { body: { machine: 'other', correlation_key: 'k' } })
    expect([again.status, again.body]).toEqual([200, { id: first, created: false }])
    await api.finish(first)
    const second = await api.enqueue({ correlation_key: 'k', correlation_scope: ['done'] })
    expect(second).not.toBe(first)
    await api.finish(second)
    const third = await api.api('POST', '/v1/instances', { body: { machine: 'm', correlation_key: 'k' } })
    expect([third.status, third.body]).toEqual([200, { id: second, created: false }])
    // Another project has keys of its own.
    const other = await api.api('POST', '/v1/instances', {
      body: { machine: 'm', correlation_key: 'k' },
      token: await api.tokenFor('keys'),
    })
    expect(other.status).toBe(201)
  })

  test('many at once with one key: one is created, all answer it', async () => {
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => api.api('POST', '/v1/instances', { body: { machine: 'm', correlation_key: 'together' } })),
    )
    expect(answers.filter(({ status }) => status === 201)).toHaveLength(1)
    expect(answers.filter(({ status }) => status === 200)).toHaveLength(19)
    expect(new Set(answers.map(({ body }) => body.id)).size).toBe(1)
  })

  test('costs one statement beside the look-up of the token', async () => {
    await api.hints.close() // nothing waits to be sent
    const { names } = await countStatements(api.db, () => api.enqueue({ delay_ms: 0, queue: 'counted' }))
    expect(names.filter((name) => name !== 'engine.notify')).toEqual(['tenants.authenticate', 'engine.enqueue'])
  })
})

test('hints go out after the commit: the queue that has work, and when the first delayed one is due', async () => {
  await using own = await ApiUnderTest.start()
  const heard = await own.listenTo('holdfast_runnable')
  const due = await own.listenTo('holdfast_timer')
  await own.enqueue({ queue: 'mail' })
  await expect.poll(() => heard).toContain('holdfast_runnable:mail')
  await own.enqueue({ delay_ms: 5_000, queue: 'later' })
  await expect.poll(() => due.some((line) => /^holdfast_timer:\d+$/.test(line))).toBe(true)
  const ms = Number(due.find((line) => line.startsWith('holdfast_timer:'))?.split(':')[1])
  expect(ms).toBeGreaterThan(4_000)
  expect(ms).toBeLessThanOrEqual(5_000)
  expect(heard).not.toContain('holdfast_runnable:later')
})

test('a deployment that has declared machines refuses others, and their names and nothing else are in the way', async () => {
  await using own = await ApiUnderTest.start()
  expect((await own.api('POST', '/v1/instances', { body: { machine: 'early' } })).status).toBe(201) // nobody has declared anything
  await own.declare('checkout')
  expect(Instance.parse((await own.api('GET', `/v1/instances/${await own.enqueue({ machine: 'checkout' })}`)).body).queue).toBe(
    'checkout-queue',
  )
  const before = await own.rows()
  const one = await own.api('POST', '/v1/instances', { body: { machine: 'chekout' } })
  expect(refused(one, 404, 'unknown_machine')).toMatch(/chekout/)
  const version = await own.api('POST', '/v1/instances', { body: { machine: 'checkout', version: 9 } })
  expect(refused(version, 404, 'unknown_machine')).toMatch(/checkout/)
  const batch = await own.api('POST', '/v1/instances/batch', { body: { instances: [{ machine: 'checkout' }, { machine: 'nope' }] } })
  expect(refused(batch, 404, 'unknown_machine')).toMatch(/nope.*nothing was inserted/)
  expect(await own.rows()).toEqual(before)
})

describe('POST /v1/instances/batch', () => {
  test('ids come in the order of the request; duplicates answer their occupants, also within the batch', async () => {
    const occupant = await api.enqueue({ correlation_key: 'b2' })
    const answer = await api.api('POST', '/v1/instances/batch', {
      body: {
        instances: [
          { machine: 'm', state: { n: 0 } },
          { machine: 'm', state: { n: 1 }, correlation_key: 'b1' },
          { machine: 'm', state: { n: 2 }, correlation_key: 'b2' },
          { machine: 'm', state: { n: 3 }, correlation_key: 'b1' },
        ],
      },
    })
    expect(answer.status).toBe(201)
    const { ids, created, duplicates } = EnqueueBatchResponse.parse(answer.body)
    expect({ created, duplicates }).toEqual({ created: 2, duplicates: 2 })
    expect(ids[2]).toBe(occupant)
    expect(ids[3]).toBe(ids[1])
    expect((await get(ids[0] ?? '')).state).toEqual({ n: 0 })
    expect((await get(ids[1] ?? '')).state).toEqual({ n: 1 })
  })

  test('takes 10,000 in one request and one statement, 10,001 not', async () => {
    const instances = Array.from({ length: 10_000 }, (_, n) => ({ machine: 'm', state: { n, pad: 'x'.repeat(500) } }))
    const { names, result } = await countStatements(api.db, () => api.api('POST', '/v1/instances/batch', { body: { instances } }))
    expect(result.status).toBe(201)
    expect(result.body).toMatchObject({ created: 10_000, duplicates: 0 })
    expect(names.filter((name) => name === 'engine.enqueue')).toHaveLength(1)
    const before = await api.rows()
    const more = await api.api('POST', '/v1/instances/batch', { body: { instances: [...instances, { machine: 'm' }] } })
    refused(more, 400, 'invalid_instance')
    refused(await api.api('POST', '/v1/instances/batch', { body: { instances: [] } }), 400, 'invalid_instance')
    expect(await api.rows()).toEqual(before)
  })

  test('one bad instance refuses the whole batch and is named', async () => {
    const before = await api.rows()
    const answer = await api.api('POST', '/v1/instances/batch', {
      body: { instances: [{ machine: 'm' }, { machine: 'm', priority: 1e9 }] },
    })
    expect(refused(answer, 400, 'invalid_instance')).toMatch(/instances\.1\.priority/)
    expect(await api.rows()).toEqual(before)
  })
})

describe('GET /v1/instances', () => {
  test('filters, pages newest first, and ends', async () => {
    const token = await api.tokenFor('lists')
    const put = async (body: object): Promise<string> => (await api.api('POST', '/v1/instances', { body, token })).body.id as string
    const ids: string[] = []
    for (let n = 0; n < 5; n += 1)
      ids.push(await put({ machine: n % 2 === 0 ? 'even' : 'odd', queue: `q${n}`, correlation_key: `key-${n}` }))
    await api.finish(ids[0] ?? '')
    await api.query('UPDATE holdfast.instance SET parent_id = $1 WHERE id = $2', [ids[0], ids[1]])
    const list = async (query: string): Promise<InstanceList> =>
      InstanceList.parse((await api.api('GET', `/v1/instances?${query}`, { token })).body)
    const seen = async (query: string): Promise<string[]> => (await list(query)).instances.map(({ id }) => id)

    expect(await seen('')).toEqual(ids.toReversed())
    expect(await seen('machine=odd')).toEqual([ids[3], ids[1]])
    expect(await seen('status=done')).toEqual([ids[0]])
    expect(await seen('queue=q2')).toEqual([ids[2]])
    expect(await seen('correlation_key=key-4')).toEqual([ids[4]])
    expect(await seen(`parent_id=${ids[0]}`)).toEqual([ids[1]])
    expect(await seen('machine=even&status=runnable')).toEqual([ids[4], ids[2]])
    expect(await seen('machine=nobody')).toEqual([])

    const first = await list('limit=2')
    expect(first.instances.map(({ id }) => id)).toEqual([ids[4], ids[3]])
    const second = await list(`limit=2&after=${first.next}`)
    expect(second.instances.map(({ id }) => id)).toEqual([ids[2], ids[1]])
    const third = await list(`limit=2&after=${second.next}`)
    expect(third).toEqual({ instances: [expect.objectContaining({ id: ids[0] })] })
  })

  test.each([
    'status=over',
    'limit=0',
    'limit=501',
    'limit=x',
    'after=abc',
    'after=0',
    'parent_id=-1',
    'parent_id=abc',
    'machine=a&machine=b',
    'machine=',
  ])('?%s is refused', async (query) => {
    const message = refused(await api.api('GET', `/v1/instances?${query}`), 400, 'invalid_instance')
    expect(message.startsWith(query.split('=')[0] ?? '?')).toBe(true)
  })
  test('an unknown filter is refused instead of being ignored', async () => {
    expect(refused(await api.api('GET', '/v1/instances?state=done'), 400, 'invalid_body')).toMatch(/state/)
    refused(await api.api('GET', '/v1/instances?machine=%00'), 400, 'invalid_body')
  })
})

test('an id that is none, unknown or of another project is the same 404, everywhere', async () => {
  const foreign = (await api.api('POST', '/v1/instances', { body: { machine: 'm' }, token: await api.tokenFor('foreign') })).body
    .id as string
  for (const id of [
    '999999',
    foreign,
    'abc',
    '0',
    '-1',
    '1.5',
    '01',
    '9223372036854775808',
    '99999999999999999999',
    '%00',
    'x'.repeat(200),
  ]) {
    refused(await api.api('GET', `/v1/instances/${id}`), 404, 'not_found')
    refused(await api.api('GET', `/v1/instances/${id}/history`), 404, 'not_found')
    refused(await api.api('POST', `/v1/instances/${id}/wait`, { body: { timeout_ms: 0 } }), 404, 'not_found')
  }
  expect(api.log).toEqual([])
})

test('history is the transitions, oldest first', async () => {
  const id = await api.enqueue()
  expect((await api.api('GET', `/v1/instances/${id}/history`)).body).toEqual({ transitions: [] })
  await api.query(
    `INSERT INTO holdfast.transition (flushed_at, claimed_at, instance_id, claim_epoch, attempt, kind, to_status, from_step, to_step, worker, error)
     VALUES (now(), now(), $1, 2, 1, 'done', 'done', 'ship', NULL, 'w', NULL),
            (now() - interval '1 second', NULL, $1, 1, 0, 'retry', 'scheduled', 'start', 'ship', 'w', '{"code":"step_failed","message":"no"}')`,
    [id],
  )
  const { transitions } = History.parse((await api.api('GET', `/v1/instances/${id}/history`)).body)
  expect(transitions).toMatchObject([
    { kind: 'retry', claim_epoch: '1', from_step: 'start', to_step: 'ship', claimed_at: null, error: { code: 'step_failed' } },
    { kind: 'done', claim_epoch: '2', to_status: 'done', error: null, finished_at: null },
  ])
})

test('a valid traceparent is kept with the instance and the signal, and its trace shown; another is not', async () => {
  const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
  const send = (value: string) => api.api('POST', '/v1/instances', { body: { machine: 'm' }, headers: { traceparent: value } })
  const { id } = (await send(traceparent)).body as { id: string }
  expect((await get(id)).trace_id).toBe('0af7651916cd43dd8448eb211c80319c')
  await api.api('POST', '/v1/signals', { body: { id, name: 'go' }, headers: { traceparent } })
  expect(await api.query('SELECT traceparent FROM holdfast.signal WHERE target_id = $1', [id])).toEqual([{ traceparent }])
  for (const bad of [
    '00-00000000000000000000000000000000-b7ad6b7169203331-01',
    '00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01',
    'ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
    'nonsense',
  ]) {
    const answer = await send(bad)
    expect(answer.status).toBe(201)
    expect((await get((answer.body as { id: string }).id)).trace_id).toBe(null)
  }
})

test('what does not exist is not there and not pretended', async () => {
  const id = await api.enqueue()
  for (const [method, path] of [
    ['DELETE', `/v1/instances/${id}`],
    ['GET', '/manage/v1/projects'],
  ] as const) {
    expect(refused(await api.api(method, path), 404, 'not_found')).toMatch(/there is no/)
  }
})
