import { deliverSignalById, enqueue, isLostRace, loadInbox, putGate, putRateLimit, setQueuePaused, wakeWaiters } from '@holdfast/queries'
import { sql } from 'kysely'
import { expect, test } from 'vitest'
import { EngineRows, newProject, present, untilBlocked } from './engine-rows.ts'

test('most urgent first: priority, then time, then id; no more than the limit; nothing twice', async () => {
  await using rows = await EngineRows.open()
  const [late, urgent, early, other] = await rows.insert(
    { priority: 5 },
    { priority: -1 },
    { priority: 5, eligibleAt: '2001-01-01T00:00:00Z' },
    { priority: 9 },
  )
  expect((await rows.claim({ limit: 3 })).map((row) => row.id)).toEqual([urgent, early, late])
  expect((await rows.claim({ limit: 3 })).map((row) => row.id)).toEqual([other])
  expect(await rows.claim()).toEqual([])
})

test('a claim leases the row, counts the epoch and hands over what the step needs', async () => {
  await using rows = await EngineRows.open()
  const [id] = await rows.insert({ state: '{"n":1}', traceparent: '00-a' })
  const [claimed] = await rows.claim({ worker: 'w7', leaseMs: 30_000 })
  expect(claimed).toEqual({
    id,
    project_id: rows.projectId,
    claim_epoch: '1',
    machine: 'm',
    version: 1,
    step: 'start',
    state: { n: 1 },
    attempt: 0,
    reclaims: 0,
    awaits: null,
    concurrency_key: null,
    status: 'executing',
    throttled_ms: null,
    traceparent: '00-a',
  })
  const row = await rows.raw(present(id))
  expect(row).toMatchObject({ status: 'executing', claimed_by: 'w7' })
  expect(row.lease_in_ms).toBeGreaterThan(25_000)
  expect(row.lease_in_ms).toBeLessThanOrEqual(30_000)
  await rows.answer(present(id), 'next', { step: 'second' })
  expect((await rows.claim())[0]).toMatchObject({ claim_epoch: '2', step: 'second' })
})

test('only its own queue, only what is due, only machines and versions it knows (N9)', async () => {
  await using rows = await EngineRows.open()
  const [, , , known, newer] = await rows.insert(
    { queue: 'other' },
    { delayMs: 60_000 },
    { machine: 'unknown' },
    { machine: 'm', version: 1 },
    { machine: 'm', version: 2 },
  )
  expect((await rows.claim({ machines: ['m/1', 'n/1'] })).map((row) => row.id)).toEqual([known])
  expect((await rows.claim({ machines: ['m/2'] })).map((row) => row.id)).toEqual([newer])
  expect(await rows.claim({ machines: [] })).toEqual([])
})

test('a paused queue gives nothing until it is resumed', async () => {
  await using rows = await EngineRows.open()
  await rows.insert({}, { queue: 'other' })
  expect(await setQueuePaused(rows.db, { queue: 'default', paused: true })).toEqual([{ name: 'default', paused: true }])
  expect(await rows.claim()).toEqual([])
  expect(await rows.claim({ queue: 'other' })).toHaveLength(1)
  expect(await setQueuePaused(rows.db, { queue: 'default', paused: false })).toEqual([{ name: 'default', paused: false }])
  expect(await rows.claim()).toHaveLength(1)
})

test('a serial key gives one per claim, in order, and none while it executes; keys are of a project', async () => {
  await using rows = await EngineRows.open()
  const other = await newProject(rows.db, 'other')
  const [a1, a2, b1, free] = await rows.insert({ concurrencyKey: 'a' }, { concurrencyKey: 'a' }, { concurrencyKey: 'b' }, {})
  await enqueue(rows.db, { projectId: other, declaredOnly: false, instances: [{ machine: 'm', concurrencyKey: 'a' }] })
  const looked = await rows.claim()
  expect(looked.filter((row) => row.status === 'throttled').map((row) => row.id)).toEqual([a2])
  const first = looked.filter((row) => row.status === 'executing')
  expect(first.map((row) => row.id).slice(0, 3)).toEqual([a1, b1, free])
  expect(first[3]?.project_id).toBe(other)
  expect(await rows.claim()).toEqual([])
  await rows.answer(present(a1), 'done')
  expect(await wakeWaiters(rows.db, { keys: [{ projectId: rows.projectId, key: 'a' }] })).toEqual([{ queue: 'default' }])
  expect((await rows.claim()).map((row) => row.id)).toEqual([a2])
})

test('R6: two claims of one serial key, in two queues: the second waits for the first, loses, and parks', async () => {
  await using rows = await EngineRows.open()
  const [first, second, free] = await rows.insert(
    { concurrencyKey: 'a' },
    { concurrencyKey: 'a', queue: 'other' },
    { queue: 'other', priority: 1 },
  )
  const one = await rows.db.startTransaction().execute()
  expect((await rows.claim({}, one)).map((row) => row.id)).toEqual([first])
  // The second one cannot see the first executing, and it is the first of its own queue's line: the unique index stops it.
  const two = rows.claim({ queue: 'other' }).then(
    () => 'committed',
    (error: unknown) => (isLostRace(error) ? 'lost' : `unexpected: ${String(error)}`),
  )
  await untilBlocked(rows.db, 'engine.claim')
  await one.commit().execute()
  expect(await two).toBe('lost')
  expect((await rows.raw(present(second))).status).toBe('runnable')
  const again = await rows.claim({ queue: 'other' })
  expect(again.map((row) => [row.id, row.status])).toEqual([
    [second, 'throttled'],
    [free, 'executing'], // nothing else of the loser's batch was lost
  ])
})

test('R6: within a queue the order is strict: a row that another claim holds is still ahead of those behind it', async () => {
  await using rows = await EngineRows.open()
  const [first, second, third] = await rows.insert({ concurrencyKey: 'a' }, { concurrencyKey: 'a' }, { concurrencyKey: 'a' })
  const one = await rows.db.startTransaction().execute()
  await rows.claim({ limit: 1 }, one)
  // It skips the first, which is locked, and takes neither of the others: they are not the first of their line.
  expect((await rows.claim()).map((row) => [row.id, row.status])).toEqual([
    [second, 'throttled'],
    [third, 'throttled'],
  ])
  await one.rollback().execute()
  expect((await rows.claim()).map((row) => [row.id, row.status])).toEqual([[first, 'executing']])
})

test('a claim never waits: rows that another holds are skipped', async () => {
  await using rows = await EngineRows.open()
  const [held, next] = await rows.insert({}, {})
  const holder = await rows.db.startTransaction().execute()
  await sql`SELECT FROM holdfast.instance WHERE id = ${held}::bigint FOR NO KEY UPDATE`.execute(holder)
  expect((await rows.claim()).map((row) => row.id)).toEqual([next])
  await holder.rollback().execute()
  expect((await rows.claim()).map((row) => row.id)).toEqual([held])
})

test('R17: a key-share lock, as a foreign key would take it, does not make a claim skip the row', async () => {
  await using rows = await EngineRows.open()
  const [id] = await rows.insert({})
  const holder = await rows.db.startTransaction().execute()
  await sql`SELECT FROM holdfast.instance WHERE id = ${id}::bigint FOR KEY SHARE`.execute(holder)
  expect((await rows.claim()).map((row) => row.id)).toEqual([id])
  await holder.commit().execute()
})

test('the inbox of a batch comes oldest first, with payloads', async () => {
  await using rows = await EngineRows.open()
  const [a, b] = await rows.insert({}, {})
  await rows.signal(present(b), 'two', { payload: '{"n":2}' })
  await deliverSignalById(rows.db, { projectId: rows.projectId, id: present(a), name: 'one', payload: '[]' })
  const inbox = await loadInbox(rows.db, { ids: [present(a), present(b)] })
  expect(inbox.map(({ target_id, name, payload }) => ({ target_id, name, payload }))).toEqual([
    { target_id: b, name: 'two', payload: { n: 2 } },
    { target_id: a, name: 'one', payload: [] },
  ])
  expect(inbox[0]?.inserted_at).toBeInstanceOf(Date)
})

test('slots still held above a smaller capacity take none of its room: what is free below it is looked at behind them', async () => {
  await using rows = await EngineRows.open()
  await putGate(rows.db, { projectId: rows.projectId, name: 'g', capacity: 4 })
  const [first, second] = await rows.insert({ concurrencyKey: 'g' }, { concurrencyKey: 'g' }, { concurrencyKey: 'g' })
  expect(await rows.claim()).toHaveLength(3)
  await rows.answer(present(first), 'done')
  await rows.answer(present(second), 'done')
  // The third holds slot 2, which is above; of the two below one is its and one is free.
  await putGate(rows.db, { projectId: rows.projectId, name: 'g', capacity: 2 })
  const [fourth, fifth] = await rows.insert({ concurrencyKey: 'g' }, { concurrencyKey: 'g' })
  expect((await rows.claim({ limit: 1 })).map((row) => [row.id, row.status])).toEqual([[fourth, 'executing']])
  expect((await rows.claim({ limit: 1 })).map((row) => [row.id, row.status])).toEqual([[fifth, 'throttled']])
})

test('of those that wait for ever at a rate of 0 the most urgent is the first in the line, and gets what a release gives', async () => {
  await using rows = await EngineRows.open()
  await putRateLimit(rows.db, { projectId: rows.projectId, name: 'r', rate: 0, periodMs: 1_000, burst: 2, shards: 1 })
  await rows.insert({ rateKey: 'r' })
  await rows.claim()
  const park = async (instance: { rateWeight: number; priority: number }): Promise<void> => {
    const [id] = await rows.insert({ rateKey: 'r', ...instance })
    expect((await rows.claim()).map((row) => [row.id, row.status])).toEqual([[id, 'throttled']])
  }
  await park({ rateWeight: 2, priority: 9 })
  await park({ rateWeight: 2, priority: 4 })
  // One token is left. It is kept for the first in the line; the more urgent newcomer is ahead of it, the less urgent one is not.
  const [behind] = await rows.insert({ rateKey: 'r', priority: 6 })
  expect((await rows.claim()).map((row) => [row.id, row.status])).toEqual([[behind, 'throttled']])
  const [ahead] = await rows.insert({ rateKey: 'r', priority: 3 })
  expect((await rows.claim()).map((row) => [row.id, row.status])).toEqual([[ahead, 'executing']])
})
