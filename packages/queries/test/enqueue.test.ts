import { declareMachines, enqueue, findOccupants, insertInstances } from '@holdfast/queries'
import { expect, test } from 'vitest'
import { EngineRows, newProject, present, untilBlocked } from './engine-rows.ts'

test('queue and version come from the newest declaration of the machine; what is given wins', async () => {
  await using rows = await EngineRows.open()
  await declareMachines(rows.db, {
    machines: [
      { name: 'checkout', version: 1, queue: 'old', maxReclaims: 5 },
      { name: 'checkout', version: 2, queue: 'orders', maxReclaims: 5 },
    ],
  })
  const ids = await rows.insert(
    { machine: 'checkout' },
    { machine: 'checkout', version: 1 },
    { machine: 'checkout', queue: 'mine', priority: -3, state: '{"a":[1,"ü"]}' },
    { machine: 'nobody' },
  )
  const found = await Promise.all(ids.map((id) => rows.get(id)))
  expect(found.map(({ version, queue, priority, state, status, step }) => [version, queue, priority, state, status, step])).toEqual([
    [2, 'orders', 0, {}, 'runnable', 'start'],
    [1, 'old', 0, {}, 'runnable', 'start'],
    [2, 'mine', -3, { a: [1, 'ü'] }, 'runnable', 'start'],
    [1, 'default', 0, {}, 'runnable', 'start'],
  ])
})

test('ids ascend in the order given, whatever the order of their keys; queues are those with something to run', async () => {
  await using rows = await EngineRows.open()
  const row = await rows.insertRow(
    { correlationKey: 'z', queue: 'a' },
    { queue: 'a' },
    { correlationKey: 'b', queue: 'b' },
    { delayMs: 60_000, queue: 'later' },
  )
  const ids = present(row.ids)
  expect(ids.map(Number)).toEqual(ids.map(Number).toSorted((a, b) => a - b))
  expect((await Promise.all(ids.map((id) => rows.get(id)))).map((found) => found.correlation_key)).toEqual(['z', null, 'b', null])
  expect(row.queues).toEqual(['a', 'b'])
})

test('delayed ones are scheduled, by the clock of the database, and the first due time is told', async () => {
  await using rows = await EngineRows.open()
  const row = await rows.insertRow({ delayMs: 90_000 }, { delayMs: 60_000 }, { delayMs: 0 }, { eligibleAt: '2001-01-01T00:00:00Z' })
  expect(row.due_in_ms).toBe(60_000)
  const found = await Promise.all(present(row.ids).map((id) => rows.raw(id)))
  expect(found.map((instance) => instance.status)).toEqual(['scheduled', 'scheduled', 'runnable', 'runnable'])
  expect((await rows.insertRow({})).due_in_ms).toBeNull()
})

test('a key that is occupied costs its row and no other, within the batch and against what is there', async () => {
  await using rows = await EngineRows.open()
  const [first] = await rows.insert({ correlationKey: 'order-1' })
  const row = await rows.insertRow({ correlationKey: 'order-1' }, { correlationKey: 'order-2' }, { correlationKey: 'order-2' }, {})
  const [, second, , last] = present(row.ids)
  expect(new Set(row.inserted)).toEqual(new Set([second, last])) // the earlier of two equal ones is the one that is in
  const occupants = await findOccupants(rows.db, { projectId: rows.projectId, correlationKeys: ['order-1', 'order-2', 'order-3'] })
  expect(Object.fromEntries(occupants.map((o) => [o.correlation_key, o.id]))).toEqual({ 'order-1': first, 'order-2': second })
})

test('keys are of a project, and of nobody else', async () => {
  await using rows = await EngineRows.open()
  await rows.insert({ correlationKey: 'order-1' })
  const other = await newProject(rows.db, 'other')
  const [row] = await enqueue(rows.db, { projectId: other, declaredOnly: false, instances: [{ machine: 'm', correlationKey: 'order-1' }] })
  expect(row?.inserted).toHaveLength(1)
})

test('a live instance holds its key; the scope says which ends hold it too (N1)', async () => {
  await using rows = await EngineRows.open()
  const free = await rows.executing({ correlationKey: 'free' })
  expect((await rows.insertRow({ correlationKey: 'free' })).inserted).toBeNull()
  await rows.answer(free, 'done')
  expect((await rows.insertRow({ correlationKey: 'free' })).inserted).toHaveLength(1)

  const [kept] = await rows.insert({ correlationKey: 'kept', correlationScope: ['done'] })
  await rows.claim()
  expect((await rows.answer(present(kept), 'done')).status).toBe('done')
  expect((await rows.insertRow({ correlationKey: 'kept' })).inserted).toBeNull()
  expect(await findOccupants(rows.db, { projectId: rows.projectId, correlationKeys: ['kept'] })).toEqual([
    { id: kept, correlation_key: 'kept' },
  ])
})

test('a scope holds the key in its own ends only', async () => {
  await using rows = await EngineRows.open()
  const id = await rows.executing({ correlationKey: 'k', correlationScope: ['done', 'cancelled'] })
  expect((await rows.answer(id, 'fail')).status).toBe('failed')
  expect((await rows.insertRow({ correlationKey: 'k' })).inserted).toHaveLength(1)
})

test('an undeclared machine refuses the batch whole, once anybody has declared one', async () => {
  await using rows = await EngineRows.open()
  const send = () =>
    enqueue(rows.db, {
      projectId: rows.projectId,
      declaredOnly: true,
      instances: [{ machine: 'm' }, { machine: 'typo' }, { machine: 'typo' }, { machine: 'm', version: 9 }],
    })
  expect((await send())[0]?.inserted).toHaveLength(4) // a deployment without schedulers yet
  await declareMachines(rows.db, { machines: [{ name: 'm', version: 1, queue: 'default', maxReclaims: 5 }] })
  const [row] = await send()
  expect(row).toMatchObject({ inserted: null, unknown: ['m', 'typo'], queues: null, due_in_ms: null })
  expect(await rows.count('instance')).toBe(4)
})

test('the refusal of an unknown machine shows what is declared: versions of that name first, and no more than can be read', async () => {
  await using rows = await EngineRows.open()
  const { db, projectId } = rows
  const refusal = async (...instances: { machine: string; version?: number }[]): Promise<string> =>
    insertInstances(db, { projectId, instances, declaredOnly: true }).then(
      () => 'accepted',
      (error: Error) => error.message,
    )
  await declareMachines(db, { machines: ['checkout', 'send-email'].map((name) => ({ name, version: 1, queue: 'q', maxReclaims: 5 })) })
  expect(await refusal({ machine: 'chekout' })).toBe(
    'no scheduler has declared the machine chekout (in that version); nothing was inserted. Declared are: checkout/1, send-email/1. Deploy a scheduler that exports it, or mend the name',
  )
  expect(await refusal({ machine: 'send-email', version: 2 })).toContain('Declared are: send-email/1, checkout/1.')

  const many = Array.from({ length: 40 }, (_value, index) => `m${String(index).padStart(2, '0')}`)
  await declareMachines(db, { machines: many.map((name) => ({ name, version: 1, queue: 'q', maxReclaims: 5 })) })
  const shown = await refusal(...many.map((name) => ({ machine: `${name}x` })))
  expect(shown).toContain('m19x and 20 more (in that version)')
  expect(shown).toContain('Declared are, among others: checkout/1, m00/1')
  expect(shown).not.toContain('m20')
})

test('R15: two batches with the same new keys in opposite order make one wait, not a deadlock', async () => {
  await using rows = await EngineRows.open()
  const keys = Array.from({ length: 50 }, (_, index) => ({ machine: 'm', correlationKey: `k${index}` }))
  const first = await rows.db.startTransaction().execute()
  const [one] = await enqueue(first, { projectId: rows.projectId, declaredOnly: false, instances: keys })
  const second = enqueue(rows.db, { projectId: rows.projectId, declaredOnly: false, instances: keys.toReversed() })
  await untilBlocked(rows.db, 'engine.enqueue')
  await first.commit().execute()
  expect(one?.inserted).toHaveLength(50)
  expect((await second)[0]?.inserted).toBeNull()
  expect(await rows.count('instance')).toBe(50)

  // And in flight at once, many times over: a deadlock would reject one of them.
  for (let round = 0; round < 5; round += 1) {
    const fresh = Array.from({ length: 200 }, (_, index) => ({ machine: 'm', correlationKey: `r${round}-${index}` }))
    const both = await Promise.all(
      [fresh, fresh.toReversed()].map((instances) => enqueue(rows.db, { projectId: rows.projectId, declaredOnly: false, instances })),
    )
    expect(both.reduce((sum, [row]) => sum + (row?.inserted?.length ?? 0), 0)).toBe(200)
  }
})

test('a key freed by a rollback is taken by the one that waited', async () => {
  await using rows = await EngineRows.open()
  const first = await rows.db.startTransaction().execute()
  const instances = [{ machine: 'm', correlationKey: 'k' }]
  await enqueue(first, { projectId: rows.projectId, declaredOnly: false, instances })
  const second = enqueue(rows.db, { projectId: rows.projectId, declaredOnly: false, instances })
  await untilBlocked(rows.db, 'engine.enqueue')
  await first.rollback().execute()
  expect((await second)[0]?.inserted).toHaveLength(1)
})

test('values outside what the schema allows are refused by it, not cut', async () => {
  await using rows = await EngineRows.open()
  const { db, projectId } = rows
  const bad = [
    { correlationKey: 'x'.repeat(501) },
    { concurrencyKey: 'x'.repeat(501) },
    { queue: '' },
    { priority: 40_000 },
    { state: '{"a":"\\u0000"}' },
    { correlationKey: 'k', correlationScope: ['runnable' as never] },
  ]
  for (const instance of bad) {
    await expect(enqueue(db, { projectId, declaredOnly: false, instances: [{ machine: 'm', ...instance }] })).rejects.toThrow(
      /instance_keys_length|instance_words_length|instance_correlation_scope_is_terminal|out of range|Unicode/,
    )
  }
  expect(await rows.count('instance')).toBe(0)
})
