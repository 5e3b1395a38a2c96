import { job, machine } from '@holdfast/engine'
import { expectTypeOf, test } from 'vitest'
import { z } from 'zod'

const order = machine('order', {
  state: z.object({ n: z.number() }),
  signals: { go: z.object({ x: z.string() }), stop: z.object({ why: z.number() }) },
  steps: {
    start: (ctx) => ctx.next('wait', { state: { n: ctx.state.n + 1 } }),
    wait: async (ctx) => ctx.awaitSignal(['go', 'stop'], 'end', { timeout: '1 day' }),
    end: {
      timeout: '5 s',
      run: (ctx) => {
        const [first] = ctx.awaited
        if (first === undefined) return ctx.done('timed out')
        return first.name === 'go' ? ctx.done({ x: first.payload.x }) : ctx.next('start')
      },
    },
  },
  onError: (_error, ctx) => ctx.next('end'),
})
type Order = NonNullable<(typeof order)['$types']>

test('state, signals and result are known from the one definition', () => {
  expectTypeOf<Order['state']>().toEqualTypeOf<{ n: number }>()
  expectTypeOf<Order['signals']>().toEqualTypeOf<{ go: { x: string }; stop: { why: number } }>()
  expectTypeOf<Order['result']>().toEqualTypeOf<string | { x: string }>()
})

test('a job takes its input and gives its result', () => {
  const send = job('send', { input: z.object({ to: z.string() }), run: async ({ to }) => ({ sent: to }) })
  type Send = NonNullable<(typeof send)['$types']>
  expectTypeOf<Send['state']>().toEqualTypeOf<{ to: string }>()
  expectTypeOf<Send['result']>().toEqualTypeOf<{ sent: string }>()
})

test('what does not exist does not compile', () => {
  machine('a', {
    steps: {
      // @ts-expect-error there is no step `nowhere`
      start: (ctx) => ctx.next('nowhere'),
    },
  })
  machine('b', {
    signals: { go: z.string() },
    steps: {
      // @ts-expect-error there is no signal `gone`
      start: (ctx) => ctx.awaitSignal('gone', 'start'),
    },
  })
  machine('c', {
    state: z.object({ n: z.number() }),
    steps: {
      // @ts-expect-error the state has a number
      start: (ctx) => ctx.next('start', { state: { n: 'one' } }),
    },
  })
  machine('d', {
    steps: {
      // @ts-expect-error a step answers an outcome
      start: () => 42,
    },
  })
  machine('e', {
    result: z.object({ paid: z.number() }),
    steps: {
      // @ts-expect-error the result is declared otherwise
      start: (ctx) => ctx.done({ paid: 'much' }),
    },
  })
  expectTypeOf(machine).toBeFunction()
})
