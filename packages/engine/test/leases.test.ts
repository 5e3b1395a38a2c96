import { setTimeout as sleep } from 'node:timers/promises'
import { Channels } from '@holdfast/contracts'
import { job, LeaseLostError, machine, ShutdownError } from '@holdfast/engine'
import { claim, releaseClaims, stageOutcomes, type StagedOutcome } from '@holdfast/queries'
import { sql } from 'kysely'
import { describe, expect, test } from 'vitest'
import { z } from 'zod'
import { EngineUnderTest, FLUSH } from './engine-under-test.ts'

const noop = job('noop', { run: () => null })
const blocked = (until: Promise<unknown>) =>
  job('blocked', {
    run: async () => {
      await until
      return 'ran'
    },
  })

const outcomeOf = (row: { id: string; claim_epoch: string }, more: Partial<StagedOutcome>): StagedOutcome => ({
  instanceId: row.id as StagedOutcome['instanceId'],
  claimEpoch: row.claim_epoch,
  kind: 'done',
  fromStep: 'start',
  attempt: 0,
  result: 'null',
  keepHistory: true,
  claimedAgoUs: 0,
  startedAgoUs: 0,
  finishedAgoUs: 0,
  ...more,
})

describe('R4: a stale worker changes nothing, with any outcome', () => {
  const kinds: Partial<StagedOutcome>[] = [
    { kind: 'next', step: 'other', result: undefined },
    { kind: 'sleep', step: 'other', delayMs: 5, result: undefined },
    { kind: 'retry', delayMs: 0, result: undefined },
    { kind: 'await_signal', step: 'other', awaits: ['go'], result: undefined },
    { kind: 'done' },
    { kind: 'fail', result: undefined, error: '{"code":"failed","message":"x"}' },
    { kind: 'cancel', result: undefined, error: '{"code":"cancelled","message":"x"}' },
  ]
  const waits = machine('waits', {
    signals: { go: z.object({}) },
    steps: { start: (ctx) => ctx.awaitSignal('go', 'other'), other: (ctx) => ctx.done(ctx.awaited.length) },
  })

  test.each(kinds)('$kind', async (kind) => {
    await using engine = await EngineUnderTest.on([waits])
    const { db } = engine.database
    const id = await engine.insert('waits')
    await engine.drain()
    await engine.signal(id, 'go')
    const take = () => claim(db, { queue: 'default', limit: 1, worker: 'worker-1', leaseMs: 60_000, machines: ['waits/1'] })

    const [orphan] = await take()
    const inbox = await engine.inboxSize(id)
    // Staged in time but applied after the claim was lost and taken again, by the very same worker: only the epoch can tell.
    await stageOutcomes(db, { worker: 'worker-1', outcomes: [outcomeOf(orphan!, { ...kind, consumed: ['1'] })] })
    await sql`UPDATE holdfast.instance SET status = 'runnable', claimed_by = NULL, lease_expires_at = NULL`.execute(db)
    const [current] = await take()
    expect(BigInt(current!.claim_epoch)).toBe(BigInt(orphan!.claim_epoch) + 1n)
    const before = await engine.get(id)
    expect(await engine.flushAll()).toEqual({ applied: 0, stale: 1, quarantined: 0 })
    expect(await engine.get(id)).toEqual(before)
    expect(await engine.inboxSize(id)).toBe(inbox)

    // Staged too late: it does not even get in.
    await sql`UPDATE holdfast.instance SET claim_epoch = claim_epoch + 1`.execute(db)
    expect(await stageOutcomes(db, { worker: 'worker-1', outcomes: [outcomeOf(current!, kind)] })).toEqual([])
  })
})

describe('reaper', () => {
  test('takes back an expired claim; the step runs again, and no attempt is counted', async () => {
    await using engine = await EngineUnderTest.on([noop])
    const id = await engine.insert('noop')
    await claim(engine.database.db, { queue: 'default', limit: 1, worker: 'dead', leaseMs: 60_000, machines: ['noop/1'] })
    expect(await engine.reaper.reap()).toBe(0)
    await engine.expireLeases()
    expect(await engine.reaper.reap()).toBe(1)
    expect(engine.hinted).toContain(`${Channels.runnable}:default`)
    await engine.drain()
    expect(await engine.get(id)).toMatchObject({ status: 'done', attempt: 0 })
  })

  test.runIf(FLUSH === 'staged')('R16: a claim whose outcome is staged is left alone, however long the flusher is away', async () => {
    await using engine = await EngineUnderTest.on([noop])
    const id = await engine.insert('noop')
    await engine.scheduler.runOnce()
    await engine.expireLeases()
    expect(await engine.reaper.reap()).toBe(0)
    expect(await engine.flushAll()).toMatchObject({ applied: 1, stale: 0 })
    expect((await engine.get(id)).status).toBe('done')
  })

  test('N8: a step that keeps killing its process ends as crash_loop, in the history too', async () => {
    const killer = job('killer', { maxReclaims: 2, run: () => null })
    await using engine = await EngineUnderTest.on([killer])
    const id = await engine.insert('killer')
    for (let died = 0; died < 3; died += 1) {
      const rows = await claim(engine.database.db, {
        queue: 'default',
        limit: 1,
        worker: `w${died}`,
        leaseMs: 60_000,
        machines: ['killer/1'],
      })
      expect(rows).toMatchObject([{ reclaims: died }])
      await engine.expireLeases()
      expect(await engine.reaper.reap()).toBe(1)
    }
    const row = await engine.get(id)
    expect(row).toMatchObject({ status: 'failed', error: { code: 'crash_loop' } })
    expect(row.error?.message).toContain('lost 3 times')
    expect(await engine.history(id)).toMatchObject([{ kind: 'fail', to_status: 'failed', worker: 'w2' }])
  })

  test('a step that moves on starts with a clean count of lost claims', async () => {
    await using engine = await EngineUnderTest.on([
      machine('two', { steps: { start: (ctx) => ctx.next('end'), end: (ctx) => ctx.done(ctx.reclaims) } }),
    ])
    const id = await engine.insert('two')
    await claim(engine.database.db, { queue: 'default', limit: 1, worker: 'dead', leaseMs: 60_000, machines: ['two/1'] })
    await engine.expireLeases()
    await engine.reaper.reap()
    await engine.drain()
    expect((await engine.get(id)).result).toBe(0)
  })

  test('retention deletes what is finished and old, in bounded batches, and nothing else', async () => {
    await using engine = await EngineUnderTest.on([noop])
    const done = await engine.insert('noop')
    await engine.drain()
    const live = await engine.insert('noop')
    await sql`UPDATE holdfast.instance SET updated_at = now() - interval '8 days'`.execute(engine.database.db)
    expect(await engine.reaper.sweep()).toBe(1)
    await expect(engine.get(done)).rejects.toThrow('no instance')
    expect((await engine.get(live)).status).toBe('runnable')
  })
})

describe('leases', () => {
  test('R20: a step that blocks the event loop for longer than its lease keeps it, by the thread', async () => {
    const blocking = job('blocking', {
      run: () => {
        const until = performance.now() + 1_500
        while (performance.now() < until) Math.sqrt(until)
        return 'kept'
      },
    })
    await using engine = await EngineUnderTest.on([blocking], { leaseMs: 500, heartbeatMs: 100, listen: false })
    const id = await engine.insert('blocking')
    await engine.scheduler.start()
    await expect.poll(async () => (await engine.flushAll(), (await engine.get(id)).status), { timeout: 10_000, interval: 50 }).toBe('done')
    expect(await engine.get(id)).toMatchObject({ result: 'kept' })
    expect((await engine.history(id)).map((row) => row.claim_epoch)).toEqual(['1'])
  })

  test('a claim that was lost aborts its step, whose outcome is then dropped and counted', async () => {
    const reasons: unknown[] = []
    const watcher = job('watcher', {
      run: async (_input, ctx) => {
        await new Promise((resolve) => ctx.signal.addEventListener('abort', resolve))
        reasons.push(ctx.signal.reason)
        return 'too late'
      },
    })
    await using engine = await EngineUnderTest.on([watcher], { leaseMs: 400, heartbeatMs: 50, listen: false })
    const id = await engine.insert('watcher')
    await engine.scheduler.start()
    await expect.poll(async () => (await engine.get(id)).status, { interval: 20 }).toBe('executing')
    await sql`UPDATE holdfast.instance SET claim_epoch = claim_epoch + 1, claimed_by = 'somebody else', lease_expires_at = now() + interval '1 hour'`.execute(
      engine.database.db,
    )
    await expect.poll(() => reasons.length, { timeout: 5_000, interval: 20 }).toBe(1)
    expect(reasons[0]).toBeInstanceOf(LeaseLostError)
    await expect.poll(() => engine.log.filter((line) => line.message.startsWith('outcomes dropped')).length, { interval: 20 }).toBe(1)
    expect((await engine.get(id)).status).toBe('executing')
  })

  test('a step that blocks past its timeout loses its lease, because nobody renews it', async () => {
    const seen: unknown[] = []
    const stuck = job('stuck', {
      timeout: '200 ms',
      run: async () => {
        const until = performance.now() + 1_600
        while (performance.now() < until) Math.sqrt(until)
        // The event loop was blocked all the time; only the thread could have renewed the lease, and it knows the timeout.
        const { rows } = await sql<{ over_ms: number }>`
          SELECT (extract(epoch FROM now() - lease_expires_at) * 1000)::float8 AS over_ms FROM holdfast.instance`.execute(
          engine.database.db,
        )
        seen.push(rows[0]?.over_ms)
        return 'late'
      },
    })
    await using engine = await EngineUnderTest.on([stuck], { leaseMs: 400, heartbeatMs: 100, listen: false })
    await engine.insert('stuck')
    await engine.scheduler.start()
    await expect.poll(() => seen.length, { timeout: 10_000, interval: 20 }).toBe(1)
    // Renewed for the last time before 200 ms, for 400 ms more.
    expect(seen[0]).toBeGreaterThan(500)
  })
})

describe('stop', () => {
  test('R27: claims that were not started are handed back, running steps finish and are staged, nothing is left claimed', async () => {
    const gate = Promise.withResolvers<void>()
    await using engine = await EngineUnderTest.on([blocked(gate.promise)], { queues: { default: 2 }, listen: false })
    for (let n = 0; n < 5; n += 1) await engine.insert('blocked')
    await engine.scheduler.start()
    await expect.poll(() => engine.scheduler.stats().running, { interval: 10 }).toBe(2)
    const stopping = engine.scheduler.stop()
    gate.resolve()
    await stopping
    expect(engine.scheduler.stats()).toEqual({ running: 0, buffered: 0, unstaged: 0 })
    await engine.flushAll()
    const { rows } = await sql<{
      status: string
      n: number
    }>`SELECT status, count(*)::integer AS n FROM holdfast.instance GROUP BY status ORDER BY 1`.execute(engine.database.db)
    expect(rows).toEqual([
      { status: 'runnable', n: 3 },
      { status: 'done', n: 2 },
    ])
    await engine.scheduler.stop() // again: nothing happens
  })

  test('a step that does not end is told, then its claim is handed back and what it answers later is dropped', async () => {
    const told: unknown[] = []
    const gate = Promise.withResolvers<void>()
    const stubborn = job('stubborn', {
      run: async (_input, ctx) => {
        ctx.signal.addEventListener('abort', () => told.push(ctx.signal.reason))
        await gate.promise
        return 'late'
      },
    })
    await using engine = await EngineUnderTest.on([stubborn], { drainMs: 100, listen: false })
    const id = await engine.insert('stubborn')
    await engine.scheduler.start()
    await expect.poll(() => engine.scheduler.stats().running, { interval: 10 }).toBe(1)
    await engine.scheduler.stop()
    expect(told[0]).toBeInstanceOf(ShutdownError)
    expect(await engine.get(id)).toMatchObject({ status: 'runnable', attempt: 0 })
    gate.resolve()
    await sleep(20)
    await engine.flushAll()
    expect((await engine.get(id)).status).toBe('runnable')
  })

  test('a claim with a staged outcome is not handed back', async () => {
    await using engine = await EngineUnderTest.on([noop])
    const id = await engine.insert('noop')
    await engine.scheduler.runOnce()
    expect(await releaseClaims(engine.database.db, { ids: [id], epochs: ['1'] })).toEqual([])
  })
})

describe('what runs where', () => {
  test('N9: a scheduler claims only machines and versions that it knows', async () => {
    const v2 = job('noop', { version: 2, run: () => 'v2' })
    await using engine = await EngineUnderTest.on([noop])
    const newer = engine.another([v2])
    await newer.declare()
    const [old, fresh] = [await engine.insert('noop', {}, { version: 1 }), await engine.insert('noop')]
    await engine.drain()
    expect((await engine.get(old)).status).toBe('done')
    expect(await engine.get(fresh)).toMatchObject({ status: 'runnable', version: 2, attempt: 0 })
    await newer.runOnce()
    await engine.flushAll()
    expect((await engine.get(fresh)).result).toBe('v2')
  })

  test('R6: of one serial key one executes at a time, over two schedulers, and all of them in the end', async () => {
    let executing = 0
    let most = 0
    const serial = job('serial', {
      run: async () => {
        most = Math.max(most, (executing += 1))
        await sleep(1)
        executing -= 1
        return null
      },
    })
    await using engine = await EngineUnderTest.on([serial])
    const other = engine.another([serial])
    for (let n = 0; n < 12; n += 1) await engine.insert('serial', {}, { concurrencyKey: 'account-1' })
    for (let round = 0; round < 40; round += 1) {
      await Promise.all([engine.scheduler.runOnce(), other.runOnce()])
      await engine.flushAll()
    }
    const { rows } = await sql<{ n: number }>`SELECT count(*)::integer AS n FROM holdfast.instance WHERE status = 'done'`.execute(
      engine.database.db,
    )
    expect(rows).toEqual([{ n: 12 }])
    expect(most).toBe(1)
  })

  test('priority first, then age', async () => {
    const order: number[] = []
    const noted = job('noted', { input: z.number(), run: (n) => void order.push(n) })
    await using engine = await EngineUnderTest.on([noted], { queues: { default: 1 } })
    for (const [n, priority] of [0, 5, -5, 0].entries()) await engine.insert('noted', n, { priority })
    await engine.drain()
    expect(order).toEqual([2, 0, 3, 1])
  })

  test('R25: a running scheduler hears of new work, and finds it without being told', async () => {
    await using engine = await EngineUnderTest.on([noop], { maxIdleMs: 50 })
    await engine.scheduler.start()
    const id = await engine.insert('noop')
    await expect.poll(async () => (await engine.flushAll(), (await engine.get(id)).status), { interval: 20 }).toBe('done')
  })

  test('N18: a delayed instance starts within milliseconds of its time, with no poll in between', async () => {
    await using engine = await EngineUnderTest.on([noop], { maxIdleMs: 60_000 })
    await engine.scheduler.start()
    const id = await engine.insert('noop', {}, { delayMs: 300 })
    await sql`SELECT pg_notify('holdfast_timer', '300')`.execute(engine.database.db)
    await expect.poll(async () => (await engine.flushAll(), (await engine.get(id)).status), { interval: 10 }).toBe('done')
    const [only] = await engine.history(id)
    const lateMs = (only?.claimed_at?.getTime() ?? 0) - (await engine.get(id)).eligible_at.getTime()
    expect(lateMs).toBeLessThan(250) // generous for a loaded machine; the poll floor would be 5,000
  })
})
