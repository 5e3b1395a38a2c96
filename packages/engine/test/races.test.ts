// Races and faults by their numbers (docs/races.md), where one engine meets trouble; where sessions meet, in every order, is tests/interleavings.
import { setTimeout as sleep } from 'node:timers/promises'
import { child, job, machine } from '@holdfast/engine'
import {
  applyRiders,
  cancelInstances,
  claim,
  isConnectionLoss,
  putGate,
  putRateLimit,
  removeIdleBuckets,
  removeIdleSlots,
  retryInstances,
  ridersOfEnded,
} from '@holdfast/queries'
import { sql } from 'kysely'
import { afterEach, describe, expect, test, vi } from 'vitest'
import { z } from 'zod'
import { EngineUnderTest, FLUSH } from './engine-under-test.ts'

const noop = job('noop', { input: z.unknown(), run: () => 'ran' })
const claimed = (engine: EngineUnderTest, machines: readonly string[], limit = 100) =>
  claim(engine.database.db, { queue: 'default', limit, worker: 'by-hand', leaseMs: 60_000, machines })
const executing = async (engine: EngineUnderTest) => {
  const { rows } = await sql<{ n: number }>`SELECT count(*)::integer AS n FROM holdfast.instance WHERE status = 'executing'`.execute(
    engine.database.db,
  )
  return rows[0]?.n
}
const held = async (engine: EngineUnderTest) => {
  const { rows } = await sql<{ slot: string; holder: string | null }>`
    SELECT key || '/' || slot AS slot, holder_id AS holder FROM holdfast.gate_slot ORDER BY key, slot`.execute(engine.database.db)
  return rows
}
const gate = (engine: EngineUnderTest, name: string, capacity: number) =>
  putGate(engine.database.db, { projectId: engine.projectId, name, capacity })

afterEach(() => vi.useRealTimers())

describe('R9: the first look at a key admits', () => {
  test('also after its slots and buckets were swept', async () => {
    await using engine = await EngineUnderTest.on([noop])
    const { db } = engine.database
    await gate(engine, 'g', 2)
    await putRateLimit(db, { projectId: engine.projectId, name: 'r', rate: 1_000, periodMs: 1_000, burst: 2, shards: 2 })
    const both = { concurrencyKey: 'g', rateKey: 'r' }
    await engine.insert('noop', 0, both)
    await engine.drain()
    await sql`UPDATE holdfast.gate_slot SET changed_at = now() - interval '1 day'`.execute(db)
    await sql`UPDATE holdfast.rate_bucket SET refilled_at = now() - interval '1 day'`.execute(db)
    expect(await removeIdleSlots(db, { idleMs: 3_600_000, limit: 10 })).toEqual([{ count: 1 }])
    expect(await removeIdleBuckets(db, { idleMs: 3_600_000, limit: 10 })).toEqual([{ count: 2 }])
    for (let n = 0; n < 2; n += 1) await engine.insert('noop', n, both)
    expect((await claimed(engine, ['noop/1'])).map(({ status }) => status)).toEqual(['executing', 'executing'])
  })

  test('also where an instance comes to it with a later step', async () => {
    const flow = machine('flow', {
      steps: { start: (ctx) => ctx.next('limited', { concurrencyKey: 'g:new', rateLimit: 'r' }), limited: (ctx) => ctx.done() },
    })
    await using engine = await EngineUnderTest.on([flow])
    await gate(engine, 'g', 1)
    await putRateLimit(engine.database.db, { projectId: engine.projectId, name: 'r', rate: 0, periodMs: 1_000, burst: 1, shards: 1 })
    await engine.insert('flow')
    expect(await engine.scheduler.runOnce()).toBe(1)
    await engine.flushAll()
    expect((await claimed(engine, ['flow/1'])).map(({ status, step }) => [status, step])).toEqual([['executing', 'limited']])
  })
})

describe.runIf(FLUSH === 'direct')('inline', () => {
  test('R10: a chain that keeps its key holds its slot from the first step to the last, and frees it once', async () => {
    const seen: string[] = []
    const chain = machine('chain', {
      inline: true,
      state: z.object({ name: z.string() }),
      steps: {
        start: async (ctx) => {
          seen.push(`${ctx.state.name} start`)
          await sleep(2)
          return ctx.next('middle')
        },
        middle: async (ctx) => {
          seen.push(`${ctx.state.name} middle`)
          await sleep(2)
          return ctx.next('end')
        },
        end: (ctx) => {
          seen.push(`${ctx.state.name} end`)
          return ctx.done()
        },
      },
    })
    await using engine = await EngineUnderTest.on([chain])
    const other = engine.another([chain])
    await gate(engine, 'g', 1)
    for (const name of ['a', 'b', 'c']) await engine.insert('chain', { name }, { concurrencyKey: 'g' })
    for (let round = 0; round < 30; round += 1) await Promise.all([engine.scheduler.runOnce(), other.runOnce(), engine.reaper.waiters()])
    expect(seen).toEqual(['a', 'b', 'c'].flatMap((name) => ['start', 'middle', 'end'].map((step) => `${name} ${step}`)))
    expect(await held(engine)).toEqual([{ slot: 'g/0', holder: null }])
  })

  test('R11: a chain that changes its key holds the new one and has let go of the old; where the new one is taken it waits for it in its queue', async () => {
    const seen: (readonly [string, unknown, unknown])[] = []
    const look = async (step: string, key: unknown): Promise<void> => void seen.push([step, key, await held(engine)])
    const keyOf = async () => {
      const { rows } = await sql<{ key: string | null }>`SELECT concurrency_key AS key FROM holdfast.instance ORDER BY id LIMIT 1`.execute(
        engine.database.db,
      )
      return rows[0]?.key
    }
    const chain = machine('chain', {
      inline: true,
      steps: {
        start: async (ctx) => {
          await look('start', await keyOf())
          return ctx.next('free', { concurrencyKey: null })
        },
        free: async (ctx) => {
          await look('free', await keyOf())
          return ctx.next('other', { concurrencyKey: 'b' })
        },
        other: async (ctx) => {
          await look('other', await keyOf())
          return ctx.next('serial', { concurrencyKey: 'one-at-a-time' })
        },
        serial: async (ctx) => {
          await look('serial', await keyOf())
          return ctx.next('full', { concurrencyKey: 'c' })
        },
        full: async (ctx) => {
          await look('full', await keyOf())
          return ctx.done()
        },
      },
    })
    await using engine = await EngineUnderTest.on([chain, noop])
    for (const name of ['a', 'b', 'c']) await gate(engine, name, 1)
    const id = await engine.insert('chain', {}, { concurrencyKey: 'a' })
    const inTheWay = await engine.insert('noop', 0, { concurrencyKey: 'c' })
    const blocker = await claimed(engine, ['noop/1'])
    await engine.scheduler.runOnce()
    const slots = (...holders: (string | null)[]) =>
      holders.map((holder, at) => ({ slot: `${'abc'[at]}/0`, holder })).filter(({ slot }) => slot !== 'b/0' || holders.length === 3)
    expect(seen).toEqual([
      [
        'start',
        'a',
        [
          { slot: 'a/0', holder: id },
          { slot: 'c/0', holder: inTheWay },
        ],
      ],
      [
        'free',
        null,
        [
          { slot: 'a/0', holder: null },
          { slot: 'c/0', holder: inTheWay },
        ],
      ],
      ['other', 'b', slots(null, id, inTheWay)],
      ['serial', 'one-at-a-time', slots(null, null, inTheWay)],
    ])
    expect(await engine.get(id)).toMatchObject({ status: 'throttled', step: 'full', concurrency_key: 'c' })
    await engine.release(blocker)
    await engine.drain()
    expect(seen.at(-1)).toMatchObject(['full', 'c', slots(null, null, id)])
    expect(await held(engine)).toEqual(slots(null, null, null))
  })
})

test('R19: claims whose inboxes cannot be loaded are handed back at once', async () => {
  await using engine = await EngineUnderTest.on([noop])
  const { db } = engine.database
  for (let n = 0; n < 3; n += 1) await engine.insert('noop', n, n === 0 ? { concurrencyKey: 'k' } : {})
  await sql`ALTER TABLE holdfast.signal RENAME TO signal_away`.execute(db)
  await expect(engine.scheduler.runOnce()).rejects.toThrow('holdfast.signal')
  await expect.poll(() => executing(engine), { interval: 10 }).toBe(0)
  await sql`ALTER TABLE holdfast.signal_away RENAME TO signal`.execute(db)
  await engine.drain()
  const { rows } = await sql`SELECT status, reclaims, attempt FROM holdfast.instance`.execute(db)
  expect(rows).toEqual(Array(3).fill({ status: 'done', reclaims: 0, attempt: 0 }))
})

test('R21: a second process of the same worker name takes nothing from the first: claims are known by their epoch, and by their lease', async () => {
  const gateOfFirst = Promise.withResolvers<void>()
  const slow = job('slow', { run: async () => (await gateOfFirst.promise, 'first') })
  await using engine = await EngineUnderTest.on([slow], { listen: false })
  const id = await engine.insert('slow')
  const running = engine.scheduler.runOnce()
  await expect.poll(() => executing(engine), { interval: 10 }).toBe(1)
  const second = engine.another([slow], { worker: 'worker-1', listen: false, maxIdleMs: 20 })
  await second.start()
  await engine.reaper.reap()
  await sleep(100)
  expect(await engine.get(id)).toMatchObject({ status: 'executing', attempt: 0 })
  await second.stop()
  gateOfFirst.resolve()
  await running
  await engine.flushAll()
  expect(await engine.get(id)).toMatchObject({ status: 'done', result: 'first' })
  expect((await engine.history(id)).map((row) => row.claim_epoch)).toEqual(['1'])
})

test('R22: a child that cannot be stored is the failure of its own step, by its retry policy, and no crash loop', async () => {
  const parent = machine('parent', {
    retry: { maxAttempts: 1 },
    steps: { start: (ctx) => ctx.spawn([child(noop, 1n as unknown as object)], 'end'), end: (ctx) => ctx.done() },
  })
  await using engine = await EngineUnderTest.on([parent, noop])
  const id = await engine.insert('parent')
  const neighbour = await engine.insert('noop')
  await engine.drain()
  expect(await engine.get(id)).toMatchObject({ status: 'failed', error: { message: expect.stringContaining('child noop') } })
  expect((await engine.get(neighbour)).status).toBe('done')
})

test('R24: a key whose name is that of a rate limit and of no gate is serial', async () => {
  await using engine = await EngineUnderTest.on([noop])
  await putRateLimit(engine.database.db, { projectId: engine.projectId, name: 'mail', rate: 0, periodMs: 1_000, burst: 10, shards: 1 })
  for (let n = 0; n < 3; n += 1) await engine.insert('noop', n, { concurrencyKey: 'mail:eu' })
  expect((await claimed(engine, ['noop/1'])).map(({ status }) => status)).toEqual(['executing', 'throttled', 'throttled'])
  expect(await held(engine)).toEqual([])
})

test('R28: a name becomes a gate while its serial key is held: beside that one the gate admits as many as it may, and nothing more', async () => {
  await using engine = await EngineUnderTest.on([noop])
  for (let n = 0; n < 6; n += 1) await engine.insert('noop', n, { concurrencyKey: 'k' })
  const first = await claimed(engine, ['noop/1'])
  expect(await executing(engine)).toBe(1)
  await gate(engine, 'k', 2)
  await engine.reaper.waiters()
  const looked = [...(await claimed(engine, ['noop/1'])), ...(await claimed(engine, ['noop/1']))]
  expect(await executing(engine)).toBe(3)
  await engine.release(first)
  expect(await claimed(engine, ['noop/1'])).not.toContainEqual(expect.objectContaining({ status: 'executing' }))
  await engine.release(looked)
  await engine.drain()
  expect(await engine.get('6' as never)).toMatchObject({ status: 'done' })
})

test('N7: an onError that waits again after a woken step has failed sleeps, and does not spin on what was shown', async () => {
  let runs = 0
  const stubborn = machine('stubborn', {
    signals: { go: z.object({}) },
    steps: {
      start: (ctx) => ctx.awaitSignal('go', 'work'),
      work: (ctx) => {
        runs += 1
        if (ctx.awaited.length < 2) throw new Error('not yet')
        return ctx.done({ seen: ctx.awaited.length })
      },
    },
    onError: (_error, ctx) => ctx.awaitSignal('go', 'work'),
  })
  await using engine = await EngineUnderTest.on([stubborn])
  const id = await engine.insert('stubborn')
  await engine.drain()
  await engine.signal(id, 'go')
  await engine.drain({ maxSteps: 20 })
  expect([runs, (await engine.get(id)).status]).toEqual([1, 'awaiting_signal'])
  await engine.signal(id, 'go')
  await engine.drain({ maxSteps: 20 })
  expect(await engine.get(id)).toMatchObject({ status: 'done', result: { seen: 2 } })
})

test('N13: an outcome that waits for the database longer than its lease keeps its claim, and is applied once', async () => {
  await using engine = await EngineUnderTest.on([noop], { leaseMs: 1_500, heartbeatMs: 100, listen: false })
  const id = await engine.insert('noop')
  const { db } = engine.database
  // Whoever writes the outcome is held up.
  await sql
    .raw(`CREATE FUNCTION public.hold_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$;
    CREATE TRIGGER hold_up BEFORE INSERT ON holdfast.${FLUSH === 'direct' ? 'transition' : 'outcome'} FOR EACH ROW EXECUTE FUNCTION public.hold_up()`)
    .execute(db)
  const blocker = await db.startTransaction().execute()
  try {
    await sql`SELECT pg_advisory_xact_lock(1)`.execute(blocker)
    await engine.scheduler.start()
    await expect.poll(() => engine.scheduler.stats().unstaged, { interval: 10, timeout: 5_000 }).toBe(1)
    // The thread that renews leases needs a moment to be up; where the write holds the instance itself, nobody can take it back.
    const renewed = async (): Promise<boolean> => {
      const { rows } = await sql<{ renewed: boolean }>`
        SELECT lease_expires_at > updated_at + interval '1.6 seconds' AS renewed FROM holdfast.instance`.execute(db)
      return rows[0]?.renewed === true
    }
    if (FLUSH === 'staged') await expect.poll(renewed, { interval: 20, timeout: 20_000 }).toBe(true)
    for (let round = 0; round < 10; round += 1) {
      await sleep(200)
      expect(await engine.reaper.reap()).toBe(0)
    }
    expect(engine.scheduler.stats().unstaged).toBe(1)
  } finally {
    await blocker.rollback().execute()
  }
  await expect.poll(async () => (await engine.flushAll(), (await engine.get(id)).status), { interval: 20 }).toBe('done')
  expect((await engine.history(id)).map((row) => row.claim_epoch)).toEqual(['1'])
})

test('N15: what follows a commit may fail and takes nothing back: the slot is free with the commit, and the reaper wakes who waits', async () => {
  await using engine = await EngineUnderTest.on([noop])
  const { db } = engine.database
  await gate(engine, 'g', 1)
  const [first, second] = [await engine.insert('noop', 1, { concurrencyKey: 'g' }), await engine.insert('noop', 2, { concurrencyKey: 'g' })]
  await sql
    .raw(`CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'nobody is woken today'; END $$;
    CREATE TRIGGER refuse BEFORE UPDATE OF status ON holdfast.instance FOR EACH ROW
      WHEN (OLD.status = 'throttled' AND NEW.status = 'runnable') EXECUTE FUNCTION public.refuse()`)
    .execute(db)
  await sql`UPDATE holdfast.instance SET status = 'throttled' WHERE id = ${second}::bigint`.execute(db) // as by a claim while the first held the slot
  await engine.scheduler.runOnce()
  await engine.flushAll()
  expect([(await engine.get(first)).status, (await engine.get(second)).status]).toEqual(['done', 'throttled'])
  expect(await held(engine)).toEqual([{ slot: 'g/0', holder: null }])
  expect(engine.log.filter(({ message }) => message.includes('could not be woken'))).not.toEqual([])
  await sql`DROP TRIGGER refuse ON holdfast.instance`.execute(db)
  await engine.drain()
  expect((await engine.get(second)).status).toBe('done')
})

test('N17: no clock but that of the database decides anything', async () => {
  const flow = machine('flow', {
    signals: { go: z.object({}) },
    retry: { maxAttempts: 3, delay: '1 hour', maxDelay: '1 hour' },
    state: z.object({ kind: z.string() }),
    steps: {
      start: (ctx) => {
        if (ctx.state.kind === 'sleep') return ctx.sleep('1 hour', 'end')
        if (ctx.state.kind === 'await') return ctx.awaitSignal('go', 'end', { timeout: '1 hour' })
        throw new Error('once more')
      },
      end: (ctx) => ctx.done(),
    },
  })
  await using engine = await EngineUnderTest.on([flow])
  await putRateLimit(engine.database.db, { projectId: engine.projectId, name: 'r', rate: 1, periodMs: 3_600_000, burst: 1, shards: 1 })
  vi.useFakeTimers({ toFake: ['Date'], now: new Date('2051-01-01') })
  for (const kind of ['sleep', 'await', 'retry']) await engine.insert('flow', { kind })
  await engine.insert('flow', { kind: 'delayed' }, { delayMs: 3_600_000 })
  for (let n = 0; n < 2; n += 1) await engine.insert('flow', { kind: 'sleep' }, { rateKey: 'r' })
  await engine.drain()
  const { rows } = await sql<{ minutes: number }>`
    SELECT round(extract(epoch FROM coalesce(await_deadline, throttled_until, eligible_at) - now()) / 60)::integer AS minutes
    FROM holdfast.instance ORDER BY id`.execute(engine.database.db)
  const minutes = rows.map((row) => row.minutes)
  expect(minutes.toSpliced(2, 1)).toEqual([60, 60, 60, 60, 60])
  expect(minutes[2]).toBeLessThanOrEqual(60) // the retry, somewhere within its hour
  const { rows: leased } = await sql<{ seconds: number }>`
    SELECT round(extract(epoch FROM max(claimed_at) - now()))::integer AS seconds FROM holdfast.transition`.execute(engine.database.db)
  expect(Math.abs(leased[0]?.seconds ?? 1e9)).toBeLessThan(60)
})

test('N19: an await ends within milliseconds of its deadline, with no poll in between', async () => {
  const waiting = machine('waiting', {
    signals: { go: z.object({}) },
    steps: { start: (ctx) => ctx.awaitSignal('go', 'end', { timeout: '400 ms' }), end: (ctx) => ctx.done({ awaited: ctx.awaited.length }) },
  })
  await using engine = await EngineUnderTest.on([waiting])
  engine.reaper.start()
  await sleep(50) // its first look is over; the next by itself is 5 s away
  const id = await engine.insert('waiting')
  await engine.scheduler.runOnce()
  await engine.flushAll()
  const hint = engine.hinted.find((line) => line.startsWith('holdfast_timer:'))
  await sql`SELECT pg_notify('holdfast_timer', ${hint?.split(':')[1] ?? 'no hint was sent'})`.execute(engine.database.db)
  const { rows } = await sql<{ at: Date }>`SELECT await_deadline AS at FROM holdfast.instance`.execute(engine.database.db)
  await expect.poll(async () => (await engine.get(id)).status, { interval: 5, timeout: 4_000 }).toBe('runnable')
  const lateMs = (await engine.get(id)).eligible_at.getTime() - (rows[0]?.at.getTime() ?? 0)
  expect(lateMs).toBeGreaterThanOrEqual(0)
  expect(lateMs).toBeLessThan(250) // generous for a loaded machine; the floor would be 5,000
})

test('N20: an outcome that ends alone is written at once; nothing waits for a batch to fill or for a time', async () => {
  const chain = machine('chain', {
    state: z.object({ n: z.number() }),
    steps: { start: (ctx) => (ctx.state.n < 20 ? ctx.next('start', { state: { n: ctx.state.n + 1 } }) : ctx.done()) },
  })
  await using engine = await EngineUnderTest.on([chain], { listen: false })
  const id = await engine.insert('chain', { n: 0 })
  await engine.drain()
  const waits = (await engine.history(id)).map((row) => (row.flushed_at?.getTime() ?? 0) - (row.finished_at?.getTime() ?? 0))
  expect(waits).toHaveLength(21)
  // Of a busy machine's twenty, the middle one: its write began within a few milliseconds. With a time to wait for it would be that time.
  expect(waits.toSorted((a, b) => a - b)[10]).toBeLessThan(50)
})

test('N21: every session is killed again and again: the engine goes on by itself, and nothing is lost or done twice', async () => {
  const runs = new Map<string, number>()
  const counted = job('counted', {
    input: z.number(),
    run: async (_n, ctx) => {
      runs.set(ctx.id, (runs.get(ctx.id) ?? 0) + 1)
      await sleep(3)
      return 'ran'
    },
  })
  await using engine = await EngineUnderTest.on([counted], { leaseMs: 2_000, heartbeatMs: 200, maxIdleMs: 50, queues: { default: 5 } })
  const { db } = engine.database
  const n = 150
  for (let at = 0; at < n; at += 1) await engine.insert('counted', at)
  await engine.scheduler.start()
  engine.reaper.start()
  const running = { over: false }
  const flushing = (async () => {
    while (!running.over) {
      await engine.flushAll().catch((error: unknown) => {
        if (!isConnectionLoss(error)) throw error
      })
      await sleep(5)
    }
  })()
  const kill = sql`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`
  for (let kills = 0; kills < 8; kills += 1) {
    await kill.execute(db).catch(() => undefined)
    await sleep(80)
  }
  const left = async (): Promise<number> => {
    const { rows } = await sql<{ n: number }>`SELECT count(*)::integer AS n FROM holdfast.instance WHERE status <> 'done'`.execute(db)
    return rows[0]?.n ?? -1
  }
  await expect.poll(left, { timeout: 30_000, interval: 50 }).toBe(0)
  running.over = true
  await flushing
  const { rows } = await sql<{
    endings: number
  }>`SELECT count(*)::integer AS endings FROM holdfast.transition GROUP BY instance_id`.execute(db)
  expect(rows).toEqual(Array(n).fill({ endings: 1 }))
  expect(runs.size).toBe(n)
})

test('a parent that a person retries after it was cancelled keeps the children that it spawns then', async () => {
  const parent = machine('parent', {
    steps: { start: (ctx) => ctx.spawn([child(waiting)], 'end'), end: (ctx) => ctx.done() },
  })
  const waiting = machine('waiting', {
    signals: { go: z.object({}) },
    steps: { start: (ctx) => ctx.awaitSignal('go', 'end'), end: (ctx) => ctx.done() },
  })
  await using engine = await EngineUnderTest.on([parent, waiting])
  const { db } = engine.database
  const id = await engine.insert('parent')
  await engine.scheduler.runOnce()
  await engine.flushAll()
  // Cancelled and retried, before a reaper has worked off the note of its children.
  await db.transaction().execute(async (trx) => {
    const rows = await cancelInstances(trx, { ids: [id], projectId: engine.projectId, reason: null })
    await applyRiders(trx, ridersOfEnded(rows)!)
  })
  await sql`UPDATE holdfast.instance SET step = 'start' WHERE id = ${id}::bigint`.execute(db)
  await retryInstances(db, { ids: [id], projectId: engine.projectId })
  await engine.scheduler.runOnce()
  await engine.flushAll()
  await engine.drain()
  const { rows } = await sql<{ status: string }>`SELECT status FROM holdfast.instance ORDER BY id`.execute(db)
  expect(rows.map(({ status }) => status)).toEqual(['awaiting_children', 'cancelled', 'awaiting_signal'])
})

test('one that nobody has been able to run for five minutes does not keep those behind it from a gate that has room', async () => {
  const v2 = job('noop', { version: 2, run: () => 'v2' })
  await using engine = await EngineUnderTest.on([noop])
  await engine.another([v2]).declare()
  await gate(engine, 'g', 1)
  await engine.insert('noop', 0, { version: 2, concurrencyKey: 'g' })
  const others = [
    await engine.insert('noop', 1, { version: 1, concurrencyKey: 'g' }),
    await engine.insert('noop', 2, { version: 1, concurrencyKey: 'g' }),
  ]
  await sql`UPDATE holdfast.instance SET status = 'throttled' WHERE id = ANY (${others}::bigint[])`.execute(engine.database.db) // as parked while another held the slot
  await engine.drain()
  const statuses = () => Promise.all(others.map(async (id) => (await engine.get(id)).status))
  // Its scheduler may only be restarting: for so long the slot is kept for it.
  expect(await statuses()).toEqual(['throttled', 'throttled'])
  await sql`UPDATE holdfast.machine SET seen_at = now() - interval '5 minutes' WHERE version = 2`.execute(engine.database.db)
  await engine.drain()
  expect(await statuses()).toEqual(['done', 'done'])
})
