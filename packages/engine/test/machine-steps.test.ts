import { MAX_JSON_BYTES } from '@holdfast/contracts'
import { job, machine, type Machine, type Outcome, TerminalError } from '@holdfast/engine'
import { describe, expect, test } from 'vitest'
import { z } from 'zod'
import { EngineUnderTest } from './engine-under-test.ts'

const on = (...machines: Machine[]) => EngineUnderTest.on(machines)

describe('next, sleep, done, fail, cancel', () => {
  test('a typed state goes from step to step, each committed before the next, and the history says so', async () => {
    const counter = machine('counter', {
      state: z.object({ n: z.number().default(0) }),
      steps: {
        start: (ctx) => ctx.next('count', { state: { n: ctx.state.n + 1 } }),
        count: (ctx) => (ctx.state.n < 3 ? ctx.next('count', { state: { n: ctx.state.n + 1 } }) : ctx.done({ n: ctx.state.n })),
      },
    })
    await using engine = await on(counter)
    const id = await engine.insert('counter')
    expect(await engine.drain()).toBe(4)
    expect(await engine.get(id)).toMatchObject({
      status: 'done',
      result: { n: 3 },
      state: { n: 3 },
      step: 'count',
      attempt: 0,
      error: null,
    })
    const history = await engine.history(id)
    expect(history.map((row) => [row.kind, row.from_step, row.to_step, row.to_status, row.claim_epoch])).toEqual([
      ['next', 'start', 'count', 'runnable', '1'],
      ['next', 'count', 'count', 'runnable', '2'],
      ['next', 'count', 'count', 'runnable', '3'],
      ['done', 'count', null, 'done', '4'],
    ])
    const [first] = history
    expect(first?.worker).toBe('worker-1')
    expect(first?.claimed_at?.getTime()).toBeLessThanOrEqual(first?.started_at?.getTime() ?? 0)
    expect(first?.started_at?.getTime()).toBeLessThanOrEqual(first?.finished_at?.getTime() ?? 0)
    expect(first?.finished_at?.getTime()).toBeLessThanOrEqual(first?.flushed_at.getTime() ?? 0)
  })

  test('sleep schedules the next step, out of the pick index until it is due', async () => {
    const napper = machine('napper', { steps: { start: (ctx) => ctx.sleep('1 hour', 'wake'), wake: (ctx) => ctx.done('rested') } })
    await using engine = await on(napper)
    const id = await engine.insert('napper')
    expect(await engine.drain()).toBe(1)
    const asleep = await engine.get(id)
    expect([asleep.status, asleep.step]).toEqual(['scheduled', 'wake'])
    expect(asleep.eligible_at.getTime() - asleep.updated_at.getTime()).toBe(3_600_000)
    expect(await engine.drain({ travel: true })).toBe(1)
    expect(await engine.get(id)).toMatchObject({ status: 'done', result: 'rested' })
  })

  test('fail and cancel end the instance with what was said', async () => {
    const ends = machine('ends', {
      state: z.object({ how: z.string() }),
      steps: {
        start: (ctx) =>
          ctx.state.how === 'cancel'
            ? ctx.cancel('no longer wanted')
            : ctx.fail({ code: 'card_declined', message: 'the card was declined' }),
      },
    })
    await using engine = await on(ends)
    const failed = await engine.insert('ends', { how: 'fail' })
    const cancelled = await engine.insert('ends', { how: 'cancel' })
    await engine.drain()
    expect(await engine.get(failed)).toMatchObject({ status: 'failed', error: { code: 'card_declined', message: 'the card was declined' } })
    expect(await engine.get(cancelled)).toMatchObject({ status: 'cancelled', error: { code: 'cancelled', message: 'no longer wanted' } })
  })
})

describe('signals', () => {
  const checkout = machine('checkout', {
    signals: { paid: z.object({ amount: z.number() }), withdrawn: z.object({}) },
    steps: {
      start: (ctx) => ctx.awaitSignal(['paid', 'withdrawn'], 'decide', { timeout: '3 days' }),
      decide: (ctx) => {
        const [first] = ctx.awaited
        if (first === undefined) return ctx.done('timed out')
        return ctx.done(first.name === 'paid' ? { paid: first.payload.amount } : 'withdrawn')
      },
    },
  })

  test('a park is woken by a signal it names, and by no other', async () => {
    await using engine = await on(checkout)
    const id = await engine.insert('checkout')
    await engine.drain()
    expect(await engine.get(id)).toMatchObject({ status: 'awaiting_signal', awaits: ['paid', 'withdrawn'], step: 'decide' })
    await engine.signal(id, 'something_else')
    expect(await engine.drain()).toBe(0)
    await engine.signal(id, 'paid', { amount: 12 })
    expect(await engine.drain()).toBe(1)
    expect(await engine.get(id)).toMatchObject({ status: 'done', result: { paid: 12 }, awaits: null, await_deadline: null })
    expect(await engine.inboxSize(id)).toBe(0)
    expect(await engine.signal(id, 'paid', { amount: 1 })).toEqual({ delivered: false, duplicate: false })
  })

  test('R3: a signal that arrives before the instance has ever run is waiting for it', async () => {
    await using engine = await on(checkout)
    const id = await engine.insert('checkout')
    await engine.signal(id, 'paid', { amount: 7 })
    await engine.drain()
    expect(await engine.get(id)).toMatchObject({ status: 'done', result: { paid: 7 } })
  })

  test('R29: a timeout wakes with nothing awaited; a signal that comes before the claim is still delivered as awaited', async () => {
    await using engine = await on(checkout)
    const [late, never] = [await engine.insert('checkout'), await engine.insert('checkout')]
    await engine.drain()
    const { sql } = await import('kysely')
    await sql`UPDATE holdfast.instance SET await_deadline = now() WHERE status = 'awaiting_signal'`.execute(engine.database.db)
    expect((await engine.reaper.fireDeadlines()).count).toBe(2)
    await engine.signal(late, 'paid', { amount: 3 })
    await engine.drain()
    expect(await engine.get(late)).toMatchObject({ status: 'done', result: { paid: 3 } })
    expect(await engine.get(never)).toMatchObject({ status: 'done', result: 'timed out' })
  })

  test('N10: a redelivery is a no-op, also after the first delivery was consumed', async () => {
    const seen: number[] = []
    const listener = machine('listener', {
      signals: { tick: z.object({ n: z.number() }) },
      steps: {
        start: (ctx) => ctx.awaitSignal('tick', 'hear'),
        hear: (ctx) => {
          for (const { payload } of ctx.awaited) seen.push(payload.n)
          return ctx.next('start')
        },
      },
    })
    await using engine = await on(listener)
    const id = await engine.insert('listener')
    await engine.drain()
    expect(await engine.signal(id, 'tick', { n: 1 }, 'tick-1')).toEqual({ delivered: true, duplicate: false })
    expect(await engine.signal(id, 'tick', { n: 1 }, 'tick-1')).toEqual({ delivered: true, duplicate: true })
    await engine.drain()
    expect(await engine.signal(id, 'tick', { n: 1 }, 'tick-1')).toEqual({ delivered: true, duplicate: true })
    await engine.drain()
    expect(seen).toEqual([1])
    expect((await engine.get(id)).status).toBe('awaiting_signal')
  })

  test('R2: a pack is collected over several signals; what was presented does not wake it again', async () => {
    let runs = 0
    const pack = machine('pack', {
      signals: { a: z.object({}), b: z.object({}), c: z.object({}) },
      steps: {
        start: (ctx) => ctx.awaitSignal(['a', 'b', 'c'], 'collect', { timeout: '1 day' }),
        collect: (ctx) => {
          runs += 1
          const names = new Set(ctx.awaited.map((signal) => signal.name))
          return names.size === 3 ? ctx.done([...names].sort()) : ctx.awaitSignal(['a', 'b', 'c'], 'collect', { timeout: '1 day' })
        },
      },
    })
    await using engine = await on(pack)
    const id = await engine.insert('pack')
    await engine.drain()
    for (const [count, name] of ['c', 'a', 'b'].entries()) {
      await engine.signal(id, name)
      await engine.drain()
      expect(runs).toBe(count + 1)
    }
    expect(await engine.get(id)).toMatchObject({ status: 'done', result: ['a', 'b', 'c'] })
  })

  test('a retried step is shown its awaited signals again; they are consumed once it moves on, others stay', async () => {
    let tries = 0
    const flaky = machine('flaky', {
      signals: { go: z.object({}), other: z.object({}) },
      retry: { delay: 0 },
      steps: {
        start: (ctx) => ctx.awaitSignal('go', 'work'),
        work: (ctx) => {
          tries += 1
          expect(ctx.awaited).toHaveLength(1)
          if (tries < 3) throw new Error('not yet')
          return ctx.next('after')
        },
        after: (ctx) => ctx.awaitSignal('other', 'end'),
        end: (ctx) => ctx.done(ctx.awaited.length),
      },
    })
    await using engine = await on(flaky)
    const id = await engine.insert('flaky')
    await engine.drain()
    await engine.signal(id, 'other')
    await engine.signal(id, 'go')
    await engine.drain({ travel: true })
    expect(tries).toBe(3)
    expect(await engine.get(id)).toMatchObject({ status: 'done', result: 1 })
  })

  test('a payload that does not satisfy its schema fails the instance and says which signal', async () => {
    await using engine = await on(checkout)
    const id = await engine.insert('checkout')
    await engine.drain()
    await engine.signal(id, 'paid', { amount: 'twelve' })
    await engine.drain()
    const row = await engine.get(id)
    expect([row.status, row.error?.code]).toEqual(['failed', 'invalid_signal'])
    expect(row.error?.message).toMatch(/signal paid \(id \d+\).*amount/)
  })
})

describe('failures', () => {
  test('a throwing step is retried with its error visible, and fails when its tries are used up', async () => {
    const failing = job('failing', {
      retry: { maxAttempts: 3, delay: '1 s', jitter: false },
      run: () => {
        throw new Error('no luck')
      },
    })
    await using engine = await on(failing)
    const id = await engine.insert('failing')
    await engine.drain()
    const waiting = await engine.get(id)
    expect(waiting).toMatchObject({ status: 'scheduled', attempt: 1, error: { code: 'step_failed', message: 'no luck' } })
    expect(waiting.eligible_at.getTime() - waiting.updated_at.getTime()).toBe(1_000)
    expect(await engine.drain({ travel: true })).toBe(2)
    expect(await engine.get(id)).toMatchObject({ status: 'failed', attempt: 2, error: { message: 'no luck' } })
    expect((await engine.history(id)).map((row) => [row.kind, row.attempt])).toEqual([
      ['retry', 0],
      ['retry', 1],
      ['fail', 2],
    ])
  })

  test('a TerminalError fails at once with its code; onError may decide otherwise', async () => {
    const terminal = job('terminal', {
      run: () => {
        throw new TerminalError('the account is closed', { code: 'account_closed' })
      },
    })
    const decided = machine('decided', {
      steps: {
        start: () => {
          throw new Error('broken')
        },
        repair: (ctx) => ctx.done('repaired'),
      },
      onError: (error, ctx) => (error instanceof Error && error.message === 'broken' ? ctx.next('repair') : undefined),
    })
    await using engine = await on(terminal, decided)
    const [a, b] = [await engine.insert('terminal'), await engine.insert('decided')]
    await engine.drain()
    expect(await engine.get(a)).toMatchObject({ status: 'failed', error: { code: 'account_closed' } })
    expect(await engine.get(b)).toMatchObject({ status: 'done', result: 'repaired' })
  })

  test('R22: what cannot be stored is the failure of its own step, and its neighbours in the batch are stored', async () => {
    const results: Record<string, () => unknown> = {
      nul: () => ({ text: 'a\u0000b' }),
      surrogate: () => ({ text: '\ud800' }),
      cycle: () => {
        const self: Record<string, unknown> = {}
        self['self'] = self
        return self
      },
      bigint: () => 10n,
      huge: () => 'x'.repeat(MAX_JSON_BYTES),
      deep: () => JSON.parse('['.repeat(200) + ']'.repeat(200)) as unknown,
      thrown_text: () => {
        throw 'just text'
      },
      nothing_returned: () => undefined,
      escaped_backslash: () => ({ text: String.raw`\u0000 is how NUL is written` }),
      fine: () => ({ fine: true }),
    }
    const odd = job('odd', {
      input: z.object({ name: z.string() }),
      retry: { maxAttempts: 1 },
      run: ({ name }) => results[name]?.(),
    })
    await using engine = await on(odd)
    const ids = new Map<string, Awaited<ReturnType<typeof engine.insert>>>()
    for (const name of Object.keys(results)) ids.set(name, await engine.insert('odd', { name }))
    await engine.drain()
    const ends: Record<string, unknown> = {}
    for (const [name, id] of ids) {
      const row = await engine.get(id)
      ends[name] = row.status === 'done' ? row.result : row.error?.code
    }
    expect(ends).toEqual({
      nul: 'not_storable',
      surrogate: 'not_storable',
      cycle: 'not_storable',
      bigint: 'not_storable',
      huge: 'not_storable',
      deep: 'not_storable',
      thrown_text: 'step_failed',
      nothing_returned: null,
      escaped_backslash: { text: String.raw`\u0000 is how NUL is written` },
      fine: { fine: true },
    })
  })

  test('a state that its schema refuses, a step that its machine lacks, a step that answers nothing: failed, with a message to act on', async () => {
    const strict = machine('strict', {
      state: z.object({ n: z.number() }),
      steps: { start: (ctx) => ctx.done(ctx.state.n), silent: (() => undefined) as never as () => Outcome<never> },
    })
    await using engine = await on(strict)
    const [bad, lost, silent] = [
      await engine.insert('strict', { n: 'one' }),
      await engine.insert('strict', { n: 1 }),
      await engine.insert('strict', { n: 1 }),
    ]
    const { sql } = await import('kysely')
    await sql`UPDATE holdfast.instance SET step = 'gone' WHERE id = ${lost}::bigint`.execute(engine.database.db)
    await sql`UPDATE holdfast.instance SET step = 'silent' WHERE id = ${silent}::bigint`.execute(engine.database.db)
    await engine.drain()
    expect((await engine.get(bad)).error).toMatchObject({ code: 'invalid_state', message: expect.stringMatching(/state of strict.*n: /) })
    expect((await engine.get(lost)).error).toMatchObject({ code: 'unknown_step', message: expect.stringContaining('it has start, silent') })
    expect((await engine.get(silent)).error).toMatchObject({ message: expect.stringContaining('answered nothing instead of an outcome') })
  })

  test('a step that outruns its timeout is told and counted as failed', async () => {
    let told: unknown
    const slow = machine('slow', {
      retry: { maxAttempts: 1 },
      steps: {
        start: {
          timeout: '20 ms',
          run: (ctx) =>
            new Promise<never>((_resolve, reject) => {
              ctx.signal.addEventListener('abort', () => {
                told = ctx.signal.reason
                reject(new Error('stopped because I was told'))
              })
            }),
        },
      },
    })
    await using engine = await on(slow)
    const id = await engine.insert('slow')
    await engine.drain()
    expect(told).toMatchObject({ code: 'step_timeout' })
    expect(await engine.get(id)).toMatchObject({ status: 'failed', error: { code: 'step_timeout' } })
  })
})

describe('jobs', () => {
  test('input is checked, the result kept, the idempotency key the same on every try', async () => {
    const keys: string[] = []
    const send = job('send', {
      input: z.object({ to: z.string() }),
      retry: { delay: 0 },
      run: async ({ to }, ctx) => {
        keys.push(ctx.idempotencyKey)
        if (ctx.attempt === 0) throw new Error('again')
        return { to }
      },
    })
    await using engine = await on(send)
    const id = await engine.insert('send', { to: 'a@example.org' })
    await engine.drain({ travel: true })
    expect(await engine.get(id)).toMatchObject({ status: 'done', result: { to: 'a@example.org' } })
    expect(keys).toEqual([`${id}:start`, `${id}:start`])
  })

  test('history: off records nothing, failures records only those', async () => {
    const off = job('off', { history: 'off', run: () => 1 })
    const failures = job('failures', {
      history: 'failures',
      retry: { delay: 0 },
      run: (_input, ctx) => {
        if (ctx.attempt === 0) throw new Error('once')
        return 1
      },
    })
    await using engine = await on(off, failures)
    const [a, b] = [await engine.insert('off'), await engine.insert('failures')]
    await engine.drain({ travel: true })
    expect(await engine.history(a)).toEqual([])
    expect((await engine.history(b)).map((row) => row.kind)).toEqual(['retry'])
  })
})
