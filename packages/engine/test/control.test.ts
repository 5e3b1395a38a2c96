import type { InstanceId } from '@holdfast/contracts'
import { CancelledError, LeaseLostError, job, machine } from '@holdfast/engine'
import { cancelInstances, endInstances, retryInstances } from '@holdfast/queries'
import { sql } from 'kysely'
import { describe, expect, test } from 'vitest'
import { z } from 'zod'
import { EngineUnderTest, FLUSH } from './engine-under-test.ts'

const cancel = (engine: EngineUnderTest, id: string, reason: string | null = null) =>
  endInstances(engine.database.db, (trx) => cancelInstances(trx, { ids: [id as never], projectId: engine.projectId, reason }))

const parks = machine('parks', {
  signals: { go: z.unknown() },
  steps: { start: (ctx) => ctx.awaitSignal('go', 'end', { timeout: '1 hour' }), end: (ctx) => ctx.done() },
})

describe('cancel', () => {
  test('what does not execute ends at once, with its inbox, and says why', async () => {
    await using engine = await EngineUnderTest.on([parks])
    const id = await engine.insert('parks')
    await engine.drain()
    await engine.signal(id, 'other')
    expect((await cancel(engine, id, 'the order was withdrawn')).rows).toMatchObject([{ status: 'cancelled' }])
    expect(await engine.get(id)).toMatchObject({
      status: 'cancelled',
      error: { code: 'cancelled', message: 'the order was withdrawn' },
      await_deadline: null,
    })
    expect(await engine.inboxSize(id)).toBe(0)
    expect((await cancel(engine, id)).rows).toEqual([])
    expect((await engine.history(id)).at(-1)).toMatchObject({ kind: 'cancel', to_status: 'cancelled' })
  })

  test.each([
    ['goes on', 'cancelled'],
    ['ends', 'done'],
  ] as const)('a step that is running is told; if it %s, the instance is %s', async (what, status) => {
    let told: unknown
    const running = Promise.withResolvers<void>()
    const runs = machine('runs', {
      steps: {
        start: async (ctx) => {
          running.resolve()
          await new Promise<void>((resolve) => ctx.signal.addEventListener('abort', () => resolve()))
          told = ctx.signal.reason
          return what === 'ends' ? ctx.done('cleaned up') : ctx.next('end')
        },
        end: (ctx) => ctx.done('went on'),
      },
    })
    await using engine = await EngineUnderTest.on([runs], { leaseMs: 2_000, heartbeatMs: 100 })
    const id = await engine.insert('runs')
    await engine.scheduler.start()
    await running.promise
    expect((await cancel(engine, id, 'enough')).rows).toMatchObject([{ id, status: 'executing' }])
    await expect.poll(async () => (await engine.flushAll(), (await engine.get(id)).status), { timeout: 5_000 }).toBe(status)
    expect(told).toBeInstanceOf(CancelledError)
    expect(await engine.get(id)).toMatchObject(
      status === 'done' ? { result: 'cleaned up', error: null } : { error: { code: 'cancelled', message: 'enough' } },
    )
  })

  test('one that does not listen loses its claim when the grace is over, and its answer is stale', async () => {
    const answer = Promise.withResolvers<void>()
    const deaf = job('deaf', { run: () => answer.promise })
    await using engine = await EngineUnderTest.on([deaf])
    const id = await engine.insert('deaf')
    const ran = engine.scheduler.runOnce()
    await expect.poll(async () => (await engine.get(id)).status).toBe('executing')
    await cancel(engine, id)
    expect(await engine.reaper.cancellations()).toBe(0)
    await sql`UPDATE holdfast.instance SET cancel_requested_at = now() - interval '1 minute'`.execute(engine.database.db)
    expect(await engine.reaper.cancellations()).toBe(1)
    expect(await engine.get(id)).toMatchObject({ status: 'cancelled', error: { code: 'cancelled' } })
    answer.resolve()
    await ran
    await engine.flushAll()
    expect((await engine.get(id)).status).toBe('cancelled')
  })

  test('with a status, only those that are still in it; the same for a cancellation', async () => {
    await using engine = await EngineUnderTest.on([parks])
    const [failed, cancelled, live] = [await engine.insert('parks'), await engine.insert('parks'), await engine.insert('parks')]
    await cancel(engine, failed)
    await cancel(engine, cancelled)
    const { db } = engine.database
    await sql`UPDATE holdfast.instance SET status = 'failed' WHERE id = ${failed}::bigint`.execute(db)
    const ids = [failed, cancelled, live]
    const retried = await retryInstances(db, { ids, projectId: engine.projectId, status: 'failed' })
    expect(retried.map((row) => row.id)).toEqual([failed])
    const both = { ids: [failed, live], projectId: engine.projectId, reason: null }
    expect((await endInstances(db, (trx) => cancelInstances(trx, { ...both, status: 'scheduled' }))).rows).toEqual([])
    expect((await endInstances(db, (trx) => cancelInstances(trx, { ...both, status: 'runnable' }))).rows).toHaveLength(2)
  })

  test('of several that want one correlation key the youngest gets it, and the others stay as they are', async () => {
    await using engine = await EngineUnderTest.on([parks])
    const ids: InstanceId[] = []
    for (const correlationKey of ['order-1', 'order-1', 'order-2', 'order-1', undefined, undefined]) {
      const id = await engine.insert('parks', {}, { correlationKey })
      await cancel(engine, id)
      ids.push(id)
    }
    const retried = await retryInstances(engine.database.db, { ids, projectId: engine.projectId })
    expect(retried.map((row) => row.id).toSorted((a, b) => Number(a) - Number(b))).toEqual(ids.slice(2))
  })
})

describe('retry by a person', () => {
  test('a failed or cancelled instance goes on at its step, as a first attempt; a done one does not', async () => {
    let broken = true
    const flaky = job('flaky', {
      retry: { maxAttempts: 1 },
      run: () => {
        if (broken) throw new Error('broken')
        return 'mended'
      },
    })
    await using engine = await EngineUnderTest.on([flaky])
    const id = await engine.insert('flaky')
    await engine.drain()
    expect((await engine.get(id)).status).toBe('failed')
    broken = false
    expect(await retryInstances(engine.database.db, { ids: [id], projectId: engine.projectId })).toMatchObject([{ id, queue: 'default' }])
    expect(await engine.get(id)).toMatchObject({ status: 'runnable', attempt: 0, error: null })
    await engine.drain()
    expect(await engine.get(id)).toMatchObject({ status: 'done', result: 'mended' })
    expect(await retryInstances(engine.database.db, { ids: [id], projectId: engine.projectId })).toEqual([])
  })

  test('not where a live instance has taken its correlation key', async () => {
    await using engine = await EngineUnderTest.on([parks])
    const id = await engine.insert('parks', {}, { correlationKey: 'order-1' })
    await cancel(engine, id)
    await engine.insert('parks', {}, { correlationKey: 'order-1' })
    expect(await retryInstances(engine.database.db, { ids: [id], projectId: engine.projectId })).toEqual([])
    expect((await engine.get(id)).status).toBe('cancelled')
  })
})

describe('versions', () => {
  test('an instance finishes on its own version, goes on as another where it says so, and is claimed by who knows it', async () => {
    const v1 = machine('order', {
      version: 1,
      steps: {
        start: (ctx) => (ctx.state === 'stay' ? ctx.next('end') : ctx.continueAs(2, { step: 'moved', state: 'from 1' })),
        end: (ctx) => ctx.done('as 1'),
      },
    })
    const v2 = machine('order', {
      version: 2,
      steps: { start: (ctx) => ctx.done('as 2'), moved: (ctx) => ctx.done(`moved ${JSON.stringify(ctx.state)}`) },
    })
    await using engine = await EngineUnderTest.on([v1])
    const stays = await engine.insert('order', 'stay', { version: 1 })
    const moves = await engine.insert('order', 'move', { version: 1 })
    await engine.drain()
    expect(await engine.get(stays)).toMatchObject({ status: 'done', version: 1, result: 'as 1' })
    expect(await engine.get(moves)).toMatchObject({ status: 'runnable', version: 2, step: 'moved' })
    const newer = engine.another([v2])
    await newer.runOnce()
    await engine.flushAll()
    expect(await engine.get(moves)).toMatchObject({ status: 'done', version: 2, result: 'moved "from 1"' })
    await newer.stop()
  })
})

describe("a step's own transaction", () => {
  const tables = sql`CREATE TABLE IF NOT EXISTS public.effect (id bigint PRIMARY KEY, n integer NOT NULL)`

  test('what it wrote and its outcome are committed together', async () => {
    const pays = machine('pays', {
      steps: {
        start: (ctx) =>
          ctx.commit(async (trx) => {
            await trx.insertInto('effect').values({ id: ctx.id, n: 1 }).execute()
            return ctx.next('end')
          }),
        end: (ctx) => ctx.done(),
      },
    })
    await using engine = await EngineUnderTest.on([pays])
    await tables.execute(engine.database.db)
    const id = await engine.insert('pays')
    await engine.drain()
    expect(await engine.get(id)).toMatchObject({ status: 'done' })
    expect((await sql`SELECT n FROM public.effect`.execute(engine.database.db)).rows).toEqual([{ n: 1 }])
  })

  test('what throws inside writes nothing and is retried', async () => {
    let tries = 0
    const pays = machine('pays', {
      retry: { delay: 0 },
      steps: {
        start: (ctx) =>
          ctx.commit(async (trx) => {
            await trx
              .insertInto('effect')
              .values({ id: ctx.id, n: (tries += 1) })
              .execute()
            if (tries === 1) throw new Error('after the write')
            return ctx.done(tries)
          }),
      },
    })
    await using engine = await EngineUnderTest.on([pays])
    await tables.execute(engine.database.db)
    const id = await engine.insert('pays')
    await engine.drain()
    expect(await engine.get(id)).toMatchObject({ status: 'done', result: 2 })
    expect((await sql`SELECT n FROM public.effect`.execute(engine.database.db)).rows).toEqual([{ n: 2 }])
  })

  test('one whose claim is over writes nothing, and hears of it', async () => {
    const claimed = Promise.withResolvers<void>()
    const reaped = Promise.withResolvers<void>()
    let heard: unknown
    const pays = machine('pays', {
      steps: {
        start: async (ctx) => {
          if (ctx.reclaims > 0) return ctx.done('again')
          claimed.resolve()
          await reaped.promise
          try {
            return await ctx.commit(async (trx) => {
              await trx.insertInto('effect').values({ id: ctx.id, n: 1 }).execute()
              return ctx.done('late')
            })
          } catch (error) {
            heard = error
            throw error
          }
        },
      },
    })
    await using engine = await EngineUnderTest.on([pays])
    await tables.execute(engine.database.db)
    const id = await engine.insert('pays')
    const ran = engine.scheduler.runOnce()
    await claimed.promise
    await engine.expireLeases()
    await engine.reaper.reap()
    reaped.resolve()
    await ran
    expect(heard).toBeInstanceOf(LeaseLostError)
    expect((await sql`SELECT n FROM public.effect`.execute(engine.database.db)).rows).toEqual([])
    await engine.drain()
    expect(await engine.get(id)).toMatchObject({ status: 'done', result: 'again' })
  })
})

describe('keep: failures', () => {
  test('what is done is gone, what failed stays, and children and reserved keys stay too', async () => {
    const light = job('light', {
      keep: 'failures',
      retry: { maxAttempts: 1 },
      input: z.object({ fails: z.boolean() }),
      run: ({ fails }) => {
        if (fails) throw new Error('kept')
      },
    })
    await using engine = await EngineUnderTest.on([light])
    await engine.insert('light', { fails: false })
    const failed = await engine.insert('light', { fails: true })
    const reserved = await engine.insert('light', { fails: false }, { correlationKey: 'k', correlationScope: ['done'] })
    await engine.drain()
    const { rows } = await sql<{ id: string; status: string }>`SELECT id, status FROM holdfast.instance ORDER BY id`.execute(
      engine.database.db,
    )
    expect(rows).toEqual([
      { id: failed, status: 'failed' },
      { id: reserved, status: 'done' },
    ])
  })
})

describe.runIf(FLUSH === 'direct')('inline', () => {
  const chain = machine('chain', {
    inline: true,
    state: z.object({ n: z.number() }),
    steps: {
      start: (ctx) => ctx.next('count', { state: { n: 1 } }),
      count: (ctx) => (ctx.state.n < 5 ? ctx.next('count', { state: { n: ctx.state.n + 1 } }) : ctx.done(ctx.state)),
    },
  })

  test('a chain runs under one claim, each step committed before the next', async () => {
    await using engine = await EngineUnderTest.on([chain])
    const id = await engine.insert('chain', { n: 0 })
    expect(await engine.scheduler.runOnce()).toBe(1)
    expect(await engine.get(id)).toMatchObject({ status: 'done', result: { n: 5 } })
    const history = await engine.history(id)
    expect(history.map((row) => [row.from_step, row.claim_epoch])).toEqual([
      ['start', '1'],
      ['count', '2'],
      ['count', '3'],
      ['count', '4'],
      ['count', '5'],
      ['count', '6'],
    ])
  })

  test('its length is bounded: then it goes through the queue', async () => {
    await using engine = await EngineUnderTest.on([chain], { maxChain: 2 })
    const id = await engine.insert('chain', { n: 0 })
    await engine.scheduler.runOnce()
    expect(await engine.get(id)).toMatchObject({ status: 'runnable', step: 'count', state: { n: 3 } })
    await engine.drain()
    expect(await engine.get(id)).toMatchObject({ status: 'done', result: { n: 5 } })
  })
})
