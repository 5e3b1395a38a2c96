import { child, job, machine } from '@holdfast/engine'
import { cancelInstances, countChildren, endInstances } from '@holdfast/queries'
import { sql } from 'kysely'
import { describe, expect, test } from 'vitest'
import { z } from 'zod'
import { EngineUnderTest } from './engine-under-test.ts'

const square = job('square', {
  input: z.object({ n: z.number() }),
  retry: { maxAttempts: 1 },
  run: ({ n }) => {
    if (n < 0) throw new Error('no roots of these')
    return { square: n * n }
  },
})

/** Spawns what its state says, and ends with what it sees of them. */
const family = machine('family', {
  state: z.object({ numbers: z.array(z.number()), join: z.union([z.literal('all'), z.literal('any'), z.number()]).default('all') }),
  steps: {
    start: (ctx) =>
      ctx.spawn(
        ctx.state.numbers.map((n) => child(square, { n })),
        'gathered',
        { join: ctx.state.join, timeout: '1 hour' },
      ),
    gathered: async (ctx) => {
      const results: unknown[] = []
      for await (const one of ctx.children.of(square)) results.push(one.result?.square ?? one.error?.message ?? one.status)
      return ctx.done({ results, counts: await ctx.children.counts() })
    },
  },
})

describe('join on all', () => {
  test('the parent waits for each and sees what became of it, a failure as well', async () => {
    await using engine = await EngineUnderTest.on([family, square])
    const id = await engine.insert('family', { numbers: [2, -1, 3] })
    await engine.scheduler.runOnce()
    await engine.flushAll()
    expect(await engine.get(id)).toMatchObject({ status: 'awaiting_children', children_pending: 3 })
    await engine.drain()
    expect(await engine.get(id)).toMatchObject({
      status: 'done',
      children_pending: 0,
      result: { results: [4, 'no roots of these', 9], counts: { done: 2, failed: 1 } },
    })
  })

  test('R14: no children, or only such as exist already, are not waited for', async () => {
    const keyed = machine('keyed', {
      steps: {
        start: (ctx) => ctx.spawn([child(square, { n: 1 }, { correlationKey: 'taken' })], 'end'),
        end: (ctx) => ctx.done('went on'),
      },
    })
    await using engine = await EngineUnderTest.on([family, square, keyed])
    const none = await engine.insert('family', { numbers: [] })
    await engine.insert('square', { n: 1 }, { correlationKey: 'taken', delayMs: 3_600_000 })
    const taken = await engine.insert('keyed')
    await engine.drain()
    expect(await engine.get(none)).toMatchObject({ status: 'done', result: { results: [], counts: {} } })
    expect(await engine.get(taken)).toMatchObject({ status: 'done', result: 'went on' })
  })

  test('R13: children that end in several flushes count their parent down to exactly 0, and wake it once', async () => {
    await using engine = await EngineUnderTest.on([family, square])
    const id = await engine.insert('family', { numbers: Array.from({ length: 7 }, (_, n) => n) })
    await engine.scheduler.runOnce()
    await engine.flushAll()
    const pending: number[] = []
    for (let n = 0; n < 7; n += 1) {
      const [row] = (
        await sql<{ id: string }>`UPDATE holdfast.instance SET queue = 'one' WHERE id = (
          SELECT id FROM holdfast.instance WHERE parent_id = ${id}::bigint AND status = 'runnable' AND queue = 'default' ORDER BY id LIMIT 1) RETURNING id`.execute(
          engine.database.db,
        )
      ).rows
      if (row === undefined) throw new Error('no child')
      const one = engine.another([square], { queues: { one: 1 }, worker: `w${n}` })
      await one.runOnce()
      await engine.flushAll()
      await one.stop()
      pending.push((await engine.get(id)).children_pending)
    }
    expect(pending).toEqual([6, 5, 4, 3, 2, 1, 0])
    expect((await engine.get(id)).status).toBe('runnable')
  })
})

describe('join on some', () => {
  test.each([
    ['any', 1],
    [2, 2],
  ] as const)('join %s: the parent goes on when %i have ended; the rest goes on too, and counts towards nothing', async (join, quorum) => {
    const rounds = machine('rounds', {
      steps: {
        start: (ctx) =>
          ctx.spawn(
            [1, 2, 3].map((n) => child(square, { n }, { queue: `q${n}` })),
            'second',
            { join },
          ),
        second: (ctx) => ctx.spawn([child(square, { n: 4 }, { queue: 'late' })], 'end'),
        end: async (ctx) => ctx.done(await ctx.children.counts()),
      },
    })
    await using engine = await EngineUnderTest.on([rounds, square])
    const id = await engine.insert('rounds')
    await engine.drain()
    expect(await engine.get(id)).toMatchObject({ status: 'awaiting_children', children_pending: quorum })
    const queues = engine.another([square], { queues: { q1: 1, q2: 1, q3: 1, late: 1 } })
    const first = engine.another([square], { queues: Object.fromEntries(Array.from({ length: quorum }, (_, n) => [`q${n + 1}`, 1])) })
    await first.runOnce()
    await engine.flushAll()
    await engine.drain()
    // The second round waits for one of its own; stragglers of the first must not release it.
    expect(await engine.get(id)).toMatchObject({ status: 'awaiting_children', children_pending: 1 })
    const stragglers = engine.another([square], { queues: { q2: 1, q3: 1 } })
    await stragglers.runOnce()
    await engine.flushAll()
    expect(await engine.get(id)).toMatchObject({ status: 'awaiting_children', children_pending: 1 })
    await queues.runOnce()
    await engine.flushAll()
    await engine.drain()
    expect(await engine.get(id)).toMatchObject({ status: 'done', result: { done: 4 } })
    await Promise.all([queues.stop(), first.stop(), stragglers.stop()])
  })

  test('a deadline lets the parent go on with those that have ended', async () => {
    await using engine = await EngineUnderTest.on([family])
    const id = await engine.insert('family', { numbers: [1, 2] })
    await engine.drain()
    await sql`UPDATE holdfast.instance SET await_deadline = now() - interval '1 second' WHERE id = ${id}::bigint`.execute(
      engine.database.db,
    )
    expect(await engine.reaper.fireDeadlines()).toMatchObject({ count: 1 })
    expect(await engine.get(id)).toMatchObject({ status: 'runnable', children_pending: 2 })
    await engine.drain()
    expect(await engine.get(id)).toMatchObject({ status: 'done', result: { counts: { runnable: 2 } } })
    // They end later, and there is nobody to tell.
    const late = engine.another([square])
    await late.runOnce()
    await engine.flushAll()
    expect(await engine.get(id)).toMatchObject({ status: 'done', children_pending: 0 })
    await late.stop()
  })
})

test('cancelling a parent cancels its children, and theirs', async () => {
  const waits = machine('waits', {
    signals: { go: z.unknown() },
    steps: { start: (ctx) => ctx.awaitSignal('go', 'end'), end: (ctx) => ctx.done() },
  })
  const middle = machine('middle', {
    steps: { start: (ctx) => ctx.spawn([child(waits), child(waits)], 'end'), end: (ctx) => ctx.done() },
  })
  const top = machine('top', {
    steps: { start: (ctx) => ctx.spawn([child(middle), child(middle), child(waits)], 'end'), end: (ctx) => ctx.done() },
  })
  await using engine = await EngineUnderTest.on([top, middle, waits])
  const id = await engine.insert('top')
  await engine.drain()
  const { rows } = await endInstances(engine.database.db, (trx) =>
    cancelInstances(trx, { ids: [id], projectId: engine.projectId, reason: 'no longer wanted' }),
  )
  expect(rows).toMatchObject([{ id, status: 'cancelled' }])
  await engine.drain()
  for (let pass = 0; pass < 4; pass += 1) await engine.reaper.cancellations()
  const { rows: left } = await sql<{
    status: string
    n: number
  }>`SELECT status, count(*)::int AS n FROM holdfast.instance GROUP BY status`.execute(engine.database.db)
  expect(left).toEqual([{ status: 'cancelled', n: 8 }])
  const { rows: notes } = await sql`SELECT FROM holdfast.cascade`.execute(engine.database.db)
  expect(notes).toEqual([])
})

test('ten thousand children: one flush to spawn, pages to read, and a parent that is woken once', async () => {
  const wide = machine('wide', {
    steps: {
      start: (ctx) =>
        ctx.spawn(
          Array.from({ length: 10_000 }, (_, n) => child(square, { n })),
          'gathered',
        ),
      gathered: async (ctx) => {
        let sum = 0
        for await (const one of ctx.children.of(square)) sum += one.result === null ? 0 : 1
        return ctx.done({ sum, first: (await ctx.children.page({ limit: 2 })).map(({ result }) => result) })
      },
    },
  })
  await using engine = await EngineUnderTest.on([wide, square], { queues: { default: 1_000 } })
  const id = await engine.insert('wide')
  await engine.drain({ maxSteps: 20_000 })
  expect(await engine.get(id)).toMatchObject({ status: 'done', result: { sum: 10_000, first: [{ square: 0 }, { square: 1 }] } })
  expect(await countChildren(engine.database.db, { parentId: id })).toEqual([{ status: 'done', count: 10_000 }])
}, 120_000)
