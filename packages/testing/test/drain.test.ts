import { checkInvariants } from '@holdfast/invariants'
import { child, job, machine } from '@holdfast/engine'
import { connect } from '@holdfast/schema'
import { type TestEngine, testEngine } from '@holdfast/testing'
import { expect, test, vi } from 'vitest'
import { z } from 'zod'

const checkout = machine('checkout', {
  state: z.object({ order: z.number() }),
  signals: { payment_confirmed: z.object({ amount: z.number() }) },
  steps: {
    start: (ctx) => ctx.awaitSignal('payment_confirmed', 'ship', { timeout: '3 days' }),
    ship: (ctx) => {
      const [payment] = ctx.awaited
      return payment === undefined ? ctx.fail({ code: 'payment_missing', message: 'not paid' }) : ctx.done({ paid: payment.payload.amount })
    },
  },
})

/** Fails as often as it is told, then answers in which attempt it got through. */
const flaky = job('flaky', {
  input: z.object({ failures: z.number() }),
  retry: { maxAttempts: 10, backoff: 'exponential', delay: '10 minutes', maxDelay: '1 day' },
  run: ({ failures }, ctx) => {
    if (ctx.attempt < failures) throw new Error(`try ${ctx.attempt} went wrong`)
    return { attempt: ctx.attempt }
  },
})

/** Sleeps a day, three times. */
const sleeper = machine('sleeper', {
  state: z.object({ days: z.number().default(0) }),
  steps: {
    start: (ctx) => (ctx.state.days === 3 ? ctx.done({ days: 3 }) : ctx.sleep('1 day', 'start', { state: { days: ctx.state.days + 1 } })),
  },
})

async function expectInvariants(holdfast: TestEngine): Promise<void> {
  const db = connect({ connectionString: holdfast.databaseUrl, max: 1 })
  const broken = await checkInvariants(db)
  await db.destroy()
  expect(broken).toEqual([])
}

test('an instance waits for its signal, and is done with it', async () => {
  await using holdfast = await testEngine({ machines: [checkout] })
  const id = await holdfast.enqueue(checkout, { order: 1 }, { correlationKey: 'order-1' })
  expect(await holdfast.drain()).toEqual({ steps: 1, outcomes: { await_signal: 1 }, crashes: 0, travelledMs: 0 })
  await holdfast.assertAwaiting(id, 'payment_confirmed')
  expect(await holdfast.signal(id, 'payment_confirmed', { amount: 3 }, { dedupKey: 'p1' })).toEqual({ duplicate: false })
  expect(await holdfast.signal({ correlationKey: 'order-1' }, 'payment_confirmed', { amount: 3 }, { dedupKey: 'p1' })).toEqual({
    duplicate: true,
  })
  expect(await holdfast.inbox(id)).toMatchObject([{ name: 'payment_confirmed', payload: { amount: 3 } }])
  expect(await holdfast.drain()).toEqual({ steps: 1, outcomes: { done: 1 }, crashes: 0, travelledMs: 0 })
  await holdfast.assertDone(id, { paid: 3 })
  await holdfast.assertDone({ correlationKey: 'order-1' })
  expect(await holdfast.inbox(id)).toEqual([])
  expect((await holdfast.history(id)).map(({ kind, from_step }) => `${from_step} ${kind}`)).toEqual(['start await_signal', 'ship done'])
  await expect(holdfast.signal(id, 'payment_confirmed', { amount: 3 })).rejects.toMatchObject({ code: 'not_found' })
  expect(await holdfast.drain()).toEqual({ steps: 0, outcomes: {}, crashes: 0, travelledMs: 0 })
  await expectInvariants(holdfast)
})

test('without travel no time passes; with it a deadline does, and only when it is within', async () => {
  await using holdfast = await testEngine({ machines: [checkout] })
  const id = await holdfast.enqueue(checkout, { order: 1 })
  await holdfast.drain()
  expect(await holdfast.drain({ travel: '2 days' })).toMatchObject({ steps: 0, travelledMs: 172_800_000 })
  await holdfast.assertAwaiting(id)
  expect(await holdfast.drain({ travel: '23 hours' })).toMatchObject({ steps: 0 })
  await holdfast.assertAwaiting(id)
  expect(await holdfast.drain({ travel: '1 hour' })).toMatchObject({ steps: 1, outcomes: { fail: 1 }, travelledMs: 3_600_000 })
  await holdfast.assertFailed(id, 'payment_missing')
  expect(holdfast.travelledMs).toBe(3 * 86_400_000)
})

test('a horizon as long as the wait is long enough, however many waits it is made of', async () => {
  await using holdfast = await testEngine({ machines: [sleeper, checkout] })
  const id = await holdfast.enqueue(sleeper)
  const order = await holdfast.enqueue(checkout, { order: 1 })
  expect(await holdfast.drain({ travel: '3 days' })).toMatchObject({
    steps: 6,
    outcomes: { sleep: 3, done: 1, fail: 1, await_signal: 1 },
    travelledMs: 259_200_000,
  })
  await holdfast.assertDone(id, { days: 3 })
  await holdfast.assertFailed(order, /not paid/)
})

test('retries come at the end of their backoff, and travel: true goes from one to the next', async () => {
  await using holdfast = await testEngine({ machines: [flaky] })
  const id = await holdfast.enqueue(flaky, { failures: 4 })
  expect(await holdfast.drain()).toMatchObject({ steps: 1, outcomes: { retry: 1 } })
  expect(await holdfast.instance(id)).toMatchObject({ status: 'scheduled', attempt: 1, error: { message: 'try 0 went wrong' } })
  const drained = await holdfast.drain({ travel: true })
  expect(drained).toMatchObject({ steps: 4, outcomes: { retry: 3, done: 1 } })
  await holdfast.assertDone(id, { attempt: 4 })
  const hopeless = await holdfast.enqueue(flaky, { failures: 99 })
  expect(await holdfast.drain({ travel: true })).toMatchObject({ steps: 10, outcomes: { retry: 9, fail: 1 } })
  await holdfast.assertFailed(hopeless, /try 9 went wrong/)
})

test('what is due first happens first', async () => {
  const order: string[] = []
  const note = job('note', { input: z.object({ name: z.string() }), run: ({ name }) => void order.push(name) })
  await using holdfast = await testEngine({ machines: [note] })
  await holdfast.enqueue(note, { name: 'in two days' }, { delay: '2 days' })
  await holdfast.enqueue(note, { name: 'in an hour' }, { delay: '1 hour' })
  await holdfast.enqueue(note, { name: 'later' })
  await holdfast.enqueue(note, { name: 'now' }, { priority: -1 })
  await holdfast.enqueue(note, { name: 'tomorrow' }, { eligibleAt: new Date(Date.now() + 86_400_000) })
  await holdfast.drain({ travel: true })
  expect(order).toEqual(['now', 'later', 'in an hour', 'tomorrow', 'in two days'])
})

test('advance moves time and nothing else', async () => {
  await using holdfast = await testEngine({ machines: [sleeper] })
  const id = await holdfast.enqueue(sleeper, { days: 2 })
  await holdfast.drain()
  const before = await holdfast.instance(id)
  await holdfast.advance('2 days')
  const after = await holdfast.instance(id)
  expect(after.status).toBe('scheduled')
  expect(before.eligible_at.getTime() - after.eligible_at.getTime()).toBe(172_800_000)
  expect(before.inserted_at.getTime() - after.inserted_at.getTime()).toBe(172_800_000)
  await holdfast.drain()
  await holdfast.assertDone(id, { days: 3 })
})

test('history and signals grow older with their instance', async () => {
  const seen: number[] = []
  const patient = machine('patient', {
    signals: { go: z.object({}) },
    steps: {
      start: (ctx) => ctx.awaitSignal('go', 'wait'),
      wait: (ctx) => {
        seen.push(Date.now() - (ctx.awaited[0]?.receivedAt.getTime() ?? 0))
        return ctx.awaited.length > 0 && seen.length === 1 ? ctx.retry({ delay: '2 days' }) : ctx.done()
      },
    },
  })
  await using holdfast = await testEngine({ machines: [patient] })
  const id = await holdfast.enqueue(patient)
  await holdfast.drain()
  await holdfast.signal(id, 'go', {})
  await holdfast.drain({ travel: true })
  await holdfast.assertDone(id)
  expect(seen[0]).toBeLessThan(60_000)
  expect(seen[1]).toBeGreaterThan(172_700_000)
  const [first, , last] = await holdfast.history(id)
  expect((last?.flushed_at.getTime() ?? 0) - (first?.flushed_at.getTime() ?? 0)).toBeGreaterThan(172_700_000)
})

const square = job('square', {
  input: z.object({ n: z.number() }),
  queue: 'sums',
  retry: { maxAttempts: 1 },
  run: ({ n }) => {
    if (n < 0) throw new Error('no roots of these')
    return { square: n * n }
  },
})
const family = machine('family', {
  state: z.object({ numbers: z.array(z.number()) }),
  steps: {
    start: (ctx) =>
      ctx.spawn(
        ctx.state.numbers.map((n) => child(square, { n })),
        'gathered',
      ),
    gathered: async (ctx) => {
      let sum = 0
      for await (const one of ctx.children.of(square)) sum += one.result?.square ?? 0
      return ctx.done({ sum })
    },
  },
})

test('children run in the same drain, in their own queue, and join', async () => {
  await using holdfast = await testEngine({ machines: [family, square] })
  const id = await holdfast.enqueue(family, { numbers: [1, 2, -3, 4] })
  expect(await holdfast.drain()).toMatchObject({ steps: 6, outcomes: { spawn: 1, done: 4, fail: 1 } })
  await holdfast.assertDone(id, { sum: 21 })
  expect((await holdfast.instances({ parentId: id })).map(({ status }) => status)).toEqual(['done', 'done', 'failed', 'done'])
  expect(await holdfast.instances({ machine: square, status: 'failed', queue: 'sums' })).toHaveLength(1)
  await expectInvariants(holdfast)
})

test('only the queues asked for are worked', async () => {
  await using holdfast = await testEngine({ machines: [family, square] })
  const id = await holdfast.enqueue(family, { numbers: [1] })
  expect(await holdfast.drain({ queues: ['default'] })).toMatchObject({ steps: 1 })
  await holdfast.assertStatus(id, 'awaiting_children')
  expect(await holdfast.drain()).toMatchObject({ steps: 2 })
})

test('a queue that nobody names by a machine is worked as well, and a paused one is not', async () => {
  await using holdfast = await testEngine({ machines: [square] })
  const id = await holdfast.enqueue(square, { n: 3 }, { queue: 'elsewhere' })
  await holdfast.pauseQueue('elsewhere')
  expect(await holdfast.drain({ travel: true })).toMatchObject({ steps: 0 })
  await holdfast.assertStatus(id, 'runnable')
  await holdfast.resumeQueue('elsewhere')
  await holdfast.drain()
  await holdfast.assertDone(id, { square: 9 })
})

test('a rate limit lets time pass, as much as it takes', async () => {
  const mails = machine('mails', {
    steps: { start: (ctx) => ctx.next('send', { rateLimit: 'mail' }), send: (ctx) => ctx.done() },
  })
  await using holdfast = await testEngine({ machines: [mails] })
  await holdfast.putRateLimit('mail', { rate: 1, period: '1 hour', burst: 2 })
  const ids = await holdfast.enqueueMany(Array.from({ length: 6 }, () => ({ machine: mails })))
  await holdfast.drain()
  expect(await holdfast.instances({ status: 'done' })).toHaveLength(2)
  expect(await holdfast.instances({ status: 'throttled' })).toHaveLength(4)
  await holdfast.drain({ travel: '2 hours' })
  expect(await holdfast.instances({ status: 'done' })).toHaveLength(4)
  const drained = await holdfast.drain({ travel: true })
  expect(drained.travelledMs).toBeGreaterThan(7_190_000)
  expect(drained.travelledMs).toBeLessThan(7_210_000)
  for (const id of ids) await holdfast.assertDone(id)
  // Stopped for good: no time helps, and the drain sees that it does not.
  await holdfast.putRateLimit('mail', { rate: 0, period: '1 hour', burst: 1 })
  const stopped = await holdfast.enqueueMany([{ machine: mails }, { machine: mails }, { machine: mails }])
  await holdfast.drain({ travel: true })
  expect(await holdfast.instances({ status: 'throttled' })).not.toHaveLength(0)
  // … until it is changed.
  await holdfast.putRateLimit('mail', { rate: 1, period: '1 hour', burst: 1 })
  await holdfast.drain({ travel: true })
  for (const id of stopped) await holdfast.assertDone(id)
  await expectInvariants(holdfast)
})

test('steps run side by side where concurrency says so, as many as a gate and a key let through', async () => {
  let now = 0
  const most = { gate: 0, key: 0, free: 0 }
  const busy = job('busy', {
    input: z.object({ kind: z.enum(['gate', 'key', 'free']) }),
    run: async ({ kind }) => {
      now += 1
      most[kind] = Math.max(most[kind], now)
      await new Promise((resolve) => setTimeout(resolve, 5))
      now -= 1
    },
  })
  await using holdfast = await testEngine({ machines: [busy], concurrency: 10 })
  await holdfast.putGate('reports', 3)
  for (const [kind, concurrencyKey] of [
    ['gate', 'reports:a'],
    ['key', 'account-1'],
    ['free', undefined],
  ] as const) {
    await holdfast.enqueueMany(
      Array.from({ length: 8 }, () => ({ machine: busy, state: { kind }, ...(concurrencyKey === undefined ? {} : { concurrencyKey }) })),
    )
    expect(await holdfast.drain()).toMatchObject({ steps: 8 })
  }
  expect(most).toEqual({ gate: 3, key: 1, free: 8 })
  await expectInvariants(holdfast)
})

test.each(['staged', 'direct'] as const)('%s: inline steps, retries and signals come to the same', async (flush) => {
  const chain = machine('chain', {
    inline: true,
    state: z.object({ n: z.number().default(0) }),
    steps: {
      start: (ctx) => (ctx.state.n < 5 ? ctx.next('start', { state: { n: ctx.state.n + 1 } }) : ctx.done({ n: 5 })),
    },
  })
  await using holdfast = await testEngine({ machines: [chain, checkout, flaky], flush })
  const ids = [await holdfast.enqueue(chain), await holdfast.enqueue(flaky, { failures: 2 })]
  const order = await holdfast.enqueue(checkout, { order: 1 })
  expect(await holdfast.drain({ travel: '1 day' })).toMatchObject({ steps: 10, outcomes: { next: 5, done: 2, retry: 2, await_signal: 1 } })
  for (const id of ids) await holdfast.assertDone(id)
  await holdfast.signal(order, 'payment_confirmed', { amount: 1 })
  await holdfast.drain()
  await holdfast.assertDone(order, { paid: 1 })
  await expectInvariants(holdfast)
})

test('cancel ends an instance and its children; retry brings back what has failed', async () => {
  await using holdfast = await testEngine({ machines: [family, square, flaky] })
  const id = await holdfast.enqueue(family, { numbers: [1, 2] })
  await holdfast.drain({ queues: ['default'] })
  await holdfast.cancel(id, 'not wanted')
  expect(await holdfast.drain()).toMatchObject({ steps: 0 })
  expect((await holdfast.instances()).map(({ status }) => status)).toEqual(['cancelled', 'cancelled', 'cancelled'])
  expect((await holdfast.instance(id)).error).toMatchObject({ code: 'cancelled', message: 'not wanted' })

  const failed = await holdfast.enqueue(flaky, { failures: 11 })
  await holdfast.drain({ travel: true })
  await holdfast.assertFailed(failed)
  await holdfast.retry(failed)
  await holdfast.assertStatus(failed, 'runnable')
  await expect(holdfast.retry(failed)).rejects.toThrow('only one that has failed')
})

test('an instance of an occupied key is the one that occupies it', async () => {
  await using holdfast = await testEngine({ machines: [checkout] })
  const id = await holdfast.enqueue(checkout, { order: 1 }, { correlationKey: 'k' })
  expect(await holdfast.enqueue(checkout, { order: 2 }, { correlationKey: 'k' })).toBe(id)
  expect(await holdfast.instances()).toHaveLength(1)
})

test('what a step answered and could not be stored counts as what was made of it', async () => {
  const unstorable = job('unstorable', { retry: { maxAttempts: 1 }, run: () => ({ text: 'a\0b' }) })
  await using holdfast = await testEngine({ machines: [unstorable] })
  const id = await holdfast.enqueue(unstorable)
  expect(await holdfast.drain()).toMatchObject({ steps: 1, outcomes: { fail: 1 } })
  await holdfast.assertFailed(id, /NUL|stor/)
})

test('onError of the machine decides, and is counted', async () => {
  const lenient = machine('lenient', {
    steps: {
      start: () => {
        throw new Error('oh')
      },
      after: (ctx) => ctx.done({ mended: true }),
    },
    result: z.object({ mended: z.boolean() }),
    onError: (_error, ctx) => ctx.next('after'),
  })
  await using holdfast = await testEngine({ machines: [lenient] })
  const id = await holdfast.enqueue(lenient)
  expect(await holdfast.drain()).toMatchObject({ steps: 2, outcomes: { next: 1, done: 1 } })
  await holdfast.assertDone(id, { mended: true })
})

test('two versions of a machine run side by side', async () => {
  const of = (version: number) =>
    machine('versioned', { version, steps: { start: (ctx) => (version === 1 ? ctx.continueAs(2) : ctx.done({ version })) } })
  await using holdfast = await testEngine({ machines: [of(1), of(2)] })
  const id = await holdfast.enqueue(of(1))
  await holdfast.drain()
  await holdfast.assertDone(id, { version: 2 })
  await expect(testEngine({ machines: [of(1), of(1)] })).rejects.toThrow('two machines are named versioned with version 1')
})

test('a thousand instances drain in one call', async () => {
  await using holdfast = await testEngine({ machines: [square], concurrency: 100 })
  await holdfast.enqueueMany(Array.from({ length: 1_000 }, (_, n) => ({ machine: square, state: { n } })))
  expect(await holdfast.drain({ maxSteps: 2_000 })).toMatchObject({ steps: 1_000, outcomes: { done: 1_000 } })
})

test('a step sees the real time, or the one that the test gives it', async () => {
  const times: { real: number; given: number }[] = []
  let now = (): Date => new Date()
  const twice = machine('twice', {
    steps: {
      start: (ctx) => {
        times.push({ real: Date.now(), given: now().getTime() })
        return ctx.sleep('1 day', 'end')
      },
      end: (ctx) => {
        times.push({ real: Date.now(), given: now().getTime() })
        return ctx.done()
      },
    },
  })
  await using holdfast = await testEngine({ machines: [twice] })
  now = () => holdfast.now()
  await holdfast.enqueue(twice)
  await holdfast.drain()
  await holdfast.drain({ travel: true })
  const [before, after] = times
  expect((after?.real ?? 0) - (before?.real ?? 0)).toBeLessThan(3_600_000)
  expect((after?.given ?? 0) - (before?.given ?? 0)).toBeGreaterThan(86_000_000)
})

test('a runner may set the date, if it leaves the timers alone', async () => {
  const dated = job('dated', { run: () => ({ year: new Date().getUTCFullYear() }) })
  await using holdfast = await testEngine({ machines: [dated] })
  vi.useFakeTimers({ toFake: ['Date'], now: new Date('2031-05-01') })
  try {
    const id = await holdfast.enqueue(dated, {}, { delay: '1 hour' })
    await holdfast.drain({ travel: true })
    await holdfast.assertDone(id, { year: 2031 })
  } finally {
    vi.useRealTimers()
  }
})
