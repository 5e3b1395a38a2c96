import { job, machine } from '@holdfast/engine'
import { claim, type ClaimedRow, putGate, putRateLimit, wakeWaiters } from '@holdfast/queries'
import { sql } from 'kysely'
import { describe, expect, test } from 'vitest'
import { z } from 'zod'
import { EngineUnderTest } from './engine-under-test.ts'

const work = job('work', { input: z.unknown(), run: () => 'worked' })

const claimed = (engine: EngineUnderTest, limit = 100, more: { window?: number; worker?: string } = {}): Promise<ClaimedRow[]> =>
  claim(engine.database.db, { queue: 'default', limit, worker: 'by-hand', leaseMs: 60_000, machines: ['work/1'], ...more })
const ids = (rows: readonly ClaimedRow[], status: ClaimedRow['status']): string[] =>
  rows.filter((row) => row.status === status).map(({ id }) => id)
async function slots(engine: EngineUnderTest): Promise<{ slot: number; holder: string | null }[]> {
  const { rows } = await sql<{ slot: number; holder: string | null }>`
    SELECT slot, holder_id AS holder FROM holdfast.gate_slot ORDER BY key, slot`.execute(engine.database.db)
  return rows
}
const statuses = async (engine: EngineUnderTest): Promise<string[]> => {
  const { rows } = await sql<{ status: string }>`SELECT status FROM holdfast.instance ORDER BY id`.execute(engine.database.db)
  return rows.map(({ status }) => status)
}

describe('serial keys', () => {
  test('one executes, the others are parked out of the pick window, and each end wakes the first of the line', async () => {
    await using engine = await EngineUnderTest.on([work])
    for (let n = 0; n < 3; n += 1) await engine.insert('work', n, { concurrencyKey: 'account-1' })
    await engine.insert('work')
    const looked = await claimed(engine)
    expect([ids(looked, 'executing'), ids(looked, 'throttled')]).toEqual([
      ['1', '4'],
      ['2', '3'],
    ])
    await engine.release(looked)
    expect(await statuses(engine)).toEqual(['runnable', 'throttled', 'throttled', 'runnable'])
    await engine.drain()
    expect(await statuses(engine)).toEqual(['done', 'done', 'done', 'done'])
    const { rows } = await sql<{
      id: string
    }>`SELECT instance_id AS id FROM holdfast.transition WHERE instance_id <> 4 ORDER BY flushed_at`.execute(engine.database.db)
    expect(rows.map(({ id }) => id)).toEqual(['1', '2', '3'])
  })

  test('a more urgent one that arrives later goes first; within a priority the order is that of arrival', async () => {
    await using engine = await EngineUnderTest.on([work])
    await engine.insert('work', 1, { concurrencyKey: 'k' })
    await engine.insert('work', 2, { concurrencyKey: 'k' })
    await engine.insert('work', 3, { concurrencyKey: 'k', priority: -1 })
    expect(ids(await claimed(engine), 'executing')).toEqual(['3'])
  })
})

describe('gates', () => {
  test('R9: the first claim of a key makes its slots, held already, and admits as many as there are', async () => {
    await using engine = await EngineUnderTest.on([work])
    await putGate(engine.database.db, { projectId: engine.projectId, name: 'reports', capacity: 2 })
    for (let n = 0; n < 5; n += 1) await engine.insert('work', n, { concurrencyKey: 'reports:eu' })
    const looked = await claimed(engine)
    expect([ids(looked, 'executing'), ids(looked, 'throttled')]).toEqual([
      ['1', '2'],
      ['3', '4', '5'],
    ])
    expect(await slots(engine)).toEqual([
      { slot: 0, holder: '1' },
      { slot: 1, holder: '2' },
    ])
    await engine.release(looked)
    expect(await slots(engine)).toEqual([
      { slot: 0, holder: null },
      { slot: 1, holder: null },
    ])
    expect(await statuses(engine)).toEqual(['runnable', 'runnable', 'throttled', 'throttled', 'throttled'])
    await engine.drain()
    expect(await statuses(engine)).toEqual(['done', 'done', 'done', 'done', 'done'])
    expect(await slots(engine)).toEqual([
      { slot: 0, holder: null },
      { slot: 1, holder: null },
    ])
  })

  test('a larger capacity makes slots and wakes as many; a smaller one takes none away', async () => {
    await using engine = await EngineUnderTest.on([work])
    const gate = (capacity: number) => putGate(engine.database.db, { projectId: engine.projectId, name: 'g', capacity })
    await gate(1)
    for (let n = 0; n < 4; n += 1) await engine.insert('work', n, { concurrencyKey: 'g' })
    expect(ids(await claimed(engine), 'executing')).toEqual(['1'])
    await gate(3)
    expect(await wakeWaiters(engine.database.db, { keys: [{ projectId: engine.projectId, key: 'g' }] })).toEqual([{ queue: 'default' }])
    expect(await statuses(engine)).toEqual(['executing', 'runnable', 'runnable', 'throttled'])
    expect(ids(await claimed(engine), 'executing')).toEqual(['2', '3'])
    await gate(1)
    expect(await slots(engine)).toHaveLength(3)
    expect((await slots(engine)).every(({ holder }) => holder !== null)).toBe(true)
  })

  test('a claim that may take few looks on behind the denied', async () => {
    await using engine = await EngineUnderTest.on([work])
    await putGate(engine.database.db, { projectId: engine.projectId, name: 'g', capacity: 1 })
    for (let n = 0; n < 10; n += 1) await engine.insert('work', n, { concurrencyKey: 'g' })
    for (let n = 0; n < 5; n += 1) await engine.insert('work', n)
    const looked = await claimed(engine, 3, { window: 100 })
    expect(ids(looked, 'executing')).toEqual(['1', '11', '12'])
    expect(ids(looked, 'throttled')).toHaveLength(9)
    expect(await statuses(engine)).toEqual([
      'executing',
      ...Array(9).fill('throttled'),
      'executing',
      'executing',
      ...Array(3).fill('runnable'),
    ])
  })
})

describe('rate limits', () => {
  test('the burst is granted at once, the rest waits for its place, and no token is lost or made', async () => {
    await using engine = await EngineUnderTest.on([work])
    await putRateLimit(engine.database.db, { projectId: engine.projectId, name: 'mail', rate: 10, periodMs: 1_000, burst: 3, shards: 2 })
    for (let n = 0; n < 6; n += 1) await engine.insert('work', n, { rateKey: 'mail' })
    const looked = await claimed(engine)
    expect(ids(looked, 'executing')).toEqual(['1', '2', '3'])
    const waits = looked.filter((row) => row.status === 'throttled').map((row) => row.throttled_ms)
    expect(waits).toEqual([100, 200, 300])
    const { rows } = await sql`SELECT shard, tokens::int, capacity::int FROM holdfast.rate_bucket ORDER BY shard`.execute(
      engine.database.db,
    )
    expect(rows).toEqual([
      { shard: 0, tokens: 0, capacity: 1_500_000 },
      { shard: 1, tokens: 0, capacity: 1_500_000 },
    ])
  })

  test('R8: rate 0, burst b: exactly b, ever', async () => {
    await using engine = await EngineUnderTest.on([work])
    await putRateLimit(engine.database.db, { projectId: engine.projectId, name: 'once', rate: 0, periodMs: 1_000, burst: 5, shards: 3 })
    for (let n = 0; n < 10; n += 1) await engine.insert('work', n, { rateKey: 'once:a' })
    const looked = await claimed(engine)
    expect([ids(looked, 'executing').length, ids(looked, 'throttled').length]).toEqual([5, 5])
    expect(await claimed(engine)).toEqual([])
  })

  test('N5: a burst that no shard count divides is spent to the last token', async () => {
    for (const [burst, shards] of [
      [13, 5],
      [19, 5],
      [26, 5],
      [38, 5],
      [52, 5],
    ] as const) {
      await using engine = await EngineUnderTest.on([work])
      await putRateLimit(engine.database.db, { projectId: engine.projectId, name: 'r', rate: 0, periodMs: 1_000, burst, shards })
      for (let n = 0; n < burst + 1; n += 1) await engine.insert('work', n, { rateKey: 'r' })
      const looked = await claimed(engine)
      expect([ids(looked, 'executing').length, ids(looked, 'throttled').length]).toEqual([burst, 1])
    }
  })

  test('neither limit is debited without the other', async () => {
    await using engine = await EngineUnderTest.on([work])
    const { db } = engine.database
    await putGate(db, { projectId: engine.projectId, name: 'g', capacity: 1 })
    await putRateLimit(db, { projectId: engine.projectId, name: 'r', rate: 0, periodMs: 1_000, burst: 5, shards: 1 })
    for (let n = 0; n < 3; n += 1) await engine.insert('work', n, { rateKey: 'r', concurrencyKey: 'g' })
    expect(ids(await claimed(engine), 'executing')).toEqual(['1'])
    const { rows } = await sql<{ tokens: number }>`SELECT (tokens / 1000000)::int AS tokens FROM holdfast.rate_bucket`.execute(db)
    expect(rows).toEqual([{ tokens: 4 }])
    // And the other way round: no token, no slot.
    await putRateLimit(db, { projectId: engine.projectId, name: 'none', rate: 0, periodMs: 1_000, burst: 1, shards: 1 })
    await engine.insert('work', 0, { rateKey: 'none' })
    await engine.insert('work', 1, { rateKey: 'none', concurrencyKey: 'g2' })
    await putGate(db, { projectId: engine.projectId, name: 'g2', capacity: 1 })
    await claimed(engine)
    expect(await slots(engine)).toEqual([{ slot: 0, holder: '1' }])
  })

  test('a limit is taken for the step it is declared for, and let go with it', async () => {
    const flow = machine('flow', {
      steps: {
        start: (ctx) => ctx.next('call', { rateLimit: 'api', weight: 2 }),
        call: (ctx) => ctx.next('end'),
        end: (ctx) => ctx.done(),
      },
    })
    await using engine = await EngineUnderTest.on([flow])
    await putRateLimit(engine.database.db, { projectId: engine.projectId, name: 'api', rate: 0, periodMs: 1_000, burst: 3, shards: 1 })
    const id = await engine.insert('flow')
    await engine.insert('flow')
    await engine.drain()
    expect(await engine.get(id)).toMatchObject({ status: 'done' })
    expect(await statuses(engine)).toEqual(['done', 'throttled'])
  })

  test('a next step with a limit that is not there, or too small, fails its instance and says so', async () => {
    const flow = machine('flow', {
      steps: { start: (ctx) => ctx.next('end', { rateLimit: { name: 'api', partition: 'eu' }, weight: 9 }), end: (ctx) => ctx.done() },
    })
    await using engine = await EngineUnderTest.on([flow])
    const id = await engine.insert('flow')
    await engine.drain()
    expect(await engine.get(id)).toMatchObject({
      status: 'failed',
      error: { code: 'invalid_limit', message: expect.stringContaining('api:eu') },
    })
  })
})
