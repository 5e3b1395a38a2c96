import { checkInvariants } from '@holdfast/invariants'
import { job, machine } from '@holdfast/engine'
import { connect } from '@holdfast/schema'
import { CrashPoints, type TestEngine, testEngine } from '@holdfast/testing'
import { expect, test } from 'vitest'
import { z } from 'zod'

/** Two steps that leave a mark outside of the database each time they run. */
function marking() {
  const marks: string[] = []
  const two = machine('two', {
    steps: {
      start: (ctx) => {
        marks.push(`start ${ctx.reclaims}`)
        return ctx.next('end')
      },
      end: (ctx) => {
        marks.push(`end ${ctx.reclaims}`)
        return ctx.done({ ended: true })
      },
    },
  })
  return { two, marks }
}

async function expectInvariants(holdfast: TestEngine): Promise<void> {
  const db = connect({ connectionString: holdfast.databaseUrl, max: 1 })
  expect(await checkInvariants(db)).toEqual([])
  await db.destroy()
}

const marksAfter = {
  'after-claim': ['start 1', 'end 0'],
  'before-step': ['start 1', 'end 0'],
  'after-step': ['start 0', 'start 1', 'end 0'],
  'after-stage': ['start 0', 'end 0'],
  'before-flush': ['start 0', 'end 0'],
  'after-flush': ['start 0', 'end 0'],
} as const

test.each(CrashPoints)('staged, %s: only what was not stored runs twice', async (crashAt) => {
  const { two, marks } = marking()
  await using holdfast = await testEngine({ machines: [two] })
  const id = await holdfast.enqueue(two)
  const drained = await holdfast.drain({ crashAt })
  expect(drained.crashes).toBe(1)
  await holdfast.assertDone(id, { ended: true })
  expect(marks).toEqual(marksAfter[crashAt])
  // The time in which a lost lease runs out, and none where no lease was lost.
  if (['after-stage', 'before-flush', 'after-flush'].includes(crashAt)) expect(drained.travelledMs).toBe(0)
  else expect(drained.travelledMs).toBeGreaterThan(50_000)
  await expectInvariants(holdfast)
})

test.each(CrashPoints.filter((point) => point !== 'after-stage'))('direct, %s', async (crashAt) => {
  const { two, marks } = marking()
  await using holdfast = await testEngine({ machines: [two], flush: 'direct' })
  const id = await holdfast.enqueue(two)
  expect(await holdfast.drain({ crashAt })).toMatchObject({ crashes: 1 })
  await holdfast.assertDone(id, { ended: true })
  // The worker applies by itself, so with it the outcome is lost until the commit.
  expect(marks).toEqual(crashAt === 'before-flush' ? marksAfter['after-step'] : marksAfter[crashAt])
  await expectInvariants(holdfast)
})

test('direct has no after-stage', async () => {
  const { two } = marking()
  await using holdfast = await testEngine({ machines: [two], flush: 'direct' })
  await expect(holdfast.drain({ crashAt: 'after-stage' })).rejects.toThrow(TypeError)
})

test.each(['before-step', 'after-step', 'after-stage', 'before-flush', 'after-flush'] as const)(
  '%s at a step, of an instance',
  async (at) => {
    const { two, marks } = marking()
    await using holdfast = await testEngine({ machines: [two] })
    const [, second] = await holdfast.enqueueMany([{ machine: two }, { machine: two }])
    const ids = (await holdfast.instances()).map(({ id }) => id)
    expect(await holdfast.drain({ crashAt: { at, machine: two, step: 'end', instance: second ?? '' } })).toMatchObject({ crashes: 1 })
    for (const id of ids) await holdfast.assertDone(id)
    const twice = at === 'after-step' ? ['end 0', 'end 1'] : at === 'before-step' ? ['end 1'] : ['end 0']
    expect(marks.filter((mark) => mark.startsWith('end'))).toEqual(['end 0', ...twice])
    expect(marks.filter((mark) => mark.startsWith('start'))).toEqual(['start 0', 'start 0'])
  },
)

test('inline steps crash under the claim that they go on with', async () => {
  const marks: string[] = []
  const chain = machine('chain', {
    inline: true,
    steps: {
      start: (ctx) => ctx.next('middle'),
      middle: (ctx) => {
        marks.push(`middle ${ctx.reclaims}`)
        return ctx.next('end')
      },
      end: (ctx) => ctx.done(),
    },
  })
  for (const [at, expected] of [
    ['before-step', ['middle 1']],
    ['after-step', ['middle 0', 'middle 1']],
    ['before-flush', ['middle 0', 'middle 1']],
    ['after-flush', ['middle 0']],
  ] as const) {
    marks.length = 0
    await using holdfast = await testEngine({ machines: [chain], flush: 'direct' })
    const id = await holdfast.enqueue(chain)
    await holdfast.drain({ crashAt: { at, step: 'middle' } })
    await holdfast.assertDone(id)
    expect(marks).toEqual(expected)
  }
})

test("a step's own transaction is written once, wherever its process dies", async () => {
  const transfer = machine('transfer', {
    state: z.object({ amount: z.number() }),
    steps: {
      start: (ctx) =>
        ctx.commit(async (trx) => {
          await trx.insertInto('booking').values({ amount: ctx.state.amount }).execute()
          return ctx.done({ booked: ctx.state.amount })
        }),
    },
  })
  for (const flush of ['staged', 'direct'] as const) {
    for (const crashAt of CrashPoints) {
      if (flush === 'direct' && crashAt === 'after-stage') continue
      await using holdfast = await testEngine({ machines: [transfer], flush })
      await holdfast.query('CREATE TABLE booking (amount integer NOT NULL)')
      await holdfast.query('GRANT ALL ON booking TO PUBLIC')
      const id = await holdfast.enqueue(transfer, { amount: 7 })
      expect(await holdfast.drain({ crashAt }), `${flush} ${crashAt}`).toMatchObject({ crashes: 1 })
      await holdfast.assertDone(id, { booked: 7 })
      expect(await holdfast.query('SELECT amount FROM booking'), `${flush} ${crashAt}`).toEqual([{ amount: 7 }])
      await expectInvariants(holdfast)
    }
  }
})

test('a step that is not safe to run twice is found out', async () => {
  let charged = 0
  const charge = job('charge', { run: () => void (charged += 1) })
  await using holdfast = await testEngine({ machines: [charge] })
  await holdfast.enqueue(charge)
  await holdfast.drain({ crashAt: 'after-step' })
  expect(charged).toBe(2)
})

test('as often as it is told; past maxReclaims that is a crash loop', async () => {
  const { two, marks } = marking()
  await using holdfast = await testEngine({ machines: [two] })
  const patient = await holdfast.enqueue(two)
  expect(await holdfast.drain({ crashAt: { at: 'after-step', step: 'start' }, times: 5 })).toMatchObject({ crashes: 5 })
  await holdfast.assertDone(patient)
  expect(marks).toEqual(['start 0', 'start 1', 'start 2', 'start 3', 'start 4', 'start 5', 'end 0'])

  const looping = await holdfast.enqueue(two)
  expect(await holdfast.drain({ crashAt: 'after-claim', times: 6 })).toMatchObject({ crashes: 6 })
  await holdfast.assertFailed(looping, 'crash_loop')
})

test('a crash that does not happen is a failure', async () => {
  const { two } = marking()
  await using holdfast = await testEngine({ machines: [two] })
  await holdfast.enqueue(two)
  await expect(holdfast.drain({ crashAt: { at: 'after-step', machine: 'two', step: 'nowhere' } })).rejects.toThrow(
    /did not crash: nothing came to after-step of machine two at step nowhere; 2 steps ran/,
  )
  await holdfast.enqueue(two)
  await expect(holdfast.drain({ crashAt: 'after-flush', times: 3 })).rejects.toThrow(
    /crashed 2 times at after-flush and should have 3 times/,
  )
  await expect(holdfast.drain({ crashAt: 'after-step', times: 0 })).rejects.toThrow(TypeError)
})

test('a crash lets pass the lease and no more; with travel the rest as well', async () => {
  const lazy = machine('lazy', {
    steps: { start: (ctx) => ctx.sleep('2 hours', 'end'), end: (ctx) => ctx.done() },
  })
  await using holdfast = await testEngine({ machines: [lazy] })
  const id = await holdfast.enqueue(lazy)
  const crashed = await holdfast.drain({ crashAt: 'after-step' })
  expect(crashed.travelledMs).toBeGreaterThan(50_000)
  expect(crashed.travelledMs).toBeLessThanOrEqual(60_000)
  await holdfast.assertStatus(id, 'scheduled')
  expect(await holdfast.drain({ travel: true, crashAt: { at: 'before-step', step: 'end' } })).toMatchObject({ crashes: 1 })
  await holdfast.assertDone(id)
})

test('keys, slots and tokens of the dead come back, and who waits for them goes on', async () => {
  const keyed = job('keyed', { input: z.object({ n: z.number() }), run: ({ n }) => ({ n }) })
  for (const crashAt of CrashPoints) {
    await using holdfast = await testEngine({ machines: [keyed], concurrency: 4 })
    await holdfast.putGate('gate', 1)
    const ids = await holdfast.enqueueMany(
      Array.from({ length: 6 }, (_, n) => ({ machine: keyed, state: { n }, concurrencyKey: n % 2 === 0 ? 'serial' : 'gate:a' })),
    )
    expect(await holdfast.drain({ crashAt, times: 2 }), crashAt).toMatchObject({ crashes: 2 })
    for (const [n, id] of ids.entries()) await holdfast.assertDone(id, { n })
    await expectInvariants(holdfast)
  }
})

test('the dead leave no session behind', async () => {
  const { two } = marking()
  await using holdfast = await testEngine({ machines: [two], concurrency: 3 })
  const sessions = (): Promise<{ name: string }[]> =>
    holdfast.query(
      "SELECT application_name AS name FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'test-%'",
    )
  for (const crashAt of CrashPoints) {
    await holdfast.enqueueMany([{ machine: two }, { machine: two }, { machine: two }])
    await holdfast.drain({ crashAt, times: 2 })
  }
  const names = (await sessions()).map(({ name }) => name)
  expect(new Set(names).size).toBeLessThanOrEqual(2)
})

test('a step that the crash of its worker has left behind reaches the database no more', async () => {
  const released = Promise.withResolvers<void>()
  const ran: string[] = []
  const slow = job('slow', {
    timeout: '10 minutes',
    run: async (_input, ctx) => {
      ran.push(`slow ${ctx.reclaims}`)
      if (ctx.reclaims === 0) await released.promise
      else released.resolve()
      return { reclaims: ctx.reclaims }
    },
  })
  const fast = job('fast', { run: (_input, ctx) => void ran.push(`fast ${ctx.reclaims}`) })
  await using holdfast = await testEngine({ machines: [slow, fast], concurrency: 2 })
  const left = await holdfast.enqueue(slow)
  await holdfast.enqueue(fast)
  expect(await holdfast.drain({ crashAt: { at: 'after-step', machine: fast } })).toMatchObject({ crashes: 1, steps: 4 })
  expect(ran.toSorted()).toEqual(['fast 0', 'fast 1', 'slow 0', 'slow 1'])
  await released.promise
  await holdfast.assertDone(left, { reclaims: 1 })
  expect(await holdfast.drain()).toMatchObject({ steps: 0, outcomes: {} })
  await expectInvariants(holdfast)
})

test('an instance that was cancelled before its worker died ends when the grace is over', async () => {
  const stopped: string[] = []
  const stubborn = job('stubborn', {
    run: async (_input, ctx) => {
      await holdfast.cancel(ctx.id, 'not wanted')
      stopped.push(ctx.id)
    },
  })
  await using holdfast = await testEngine({ machines: [stubborn] })
  const id = await holdfast.enqueue(stubborn)
  const { travelledMs } = await holdfast.drain({ crashAt: 'after-step' })
  expect(travelledMs).toBeGreaterThan(25_000)
  expect(travelledMs).toBeLessThanOrEqual(30_000)
  expect(await holdfast.assertStatus(id, 'cancelled')).toMatchObject({ error: { code: 'cancelled' } })
  expect(stopped).toEqual([id])
})
