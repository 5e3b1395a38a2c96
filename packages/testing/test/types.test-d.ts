import { job, machine } from '@holdfast/engine'
import { testEngine } from '@holdfast/testing'
import { expectTypeOf, test } from 'vitest'
import { z } from 'zod'

const checkout = machine('checkout', {
  state: z.object({ order: z.number() }),
  signals: { paid: z.object({ amount: z.number() }) },
  steps: { start: (ctx) => ctx.awaitSignal('paid', 'end'), end: (ctx) => ctx.done({ shipped: true }) },
})
const email = job('email', { input: z.object({ to: z.string() }), run: ({ to }) => ({ sent: to }) })

test('what is known of a machine is known of its instance', async () => {
  const holdfast = await testEngine({ machines: [checkout, email] })
  const id = await holdfast.enqueue(checkout, { order: 1 })
  // @ts-expect-error the state has a number
  await holdfast.enqueue(checkout, { order: 'one' })

  await holdfast.signal(id, 'paid', { amount: 1 })
  // @ts-expect-error no such signal
  await holdfast.signal(id, 'unpaid', {})
  // @ts-expect-error the payload has an amount
  await holdfast.signal(id, 'paid', {})
  const mail = await holdfast.enqueue(email, { to: 'a@b.example' })
  // @ts-expect-error a job takes no signals
  await holdfast.signal(mail, 'paid', {})

  await holdfast.assertDone(id, { shipped: true })
  // @ts-expect-error the result is another
  await holdfast.assertDone(id, { shipped: 'yes' })
  // @ts-expect-error no such signal
  await holdfast.assertAwaiting(id, 'unpaid')

  const instance = await holdfast.instance(id)
  expectTypeOf(instance.state).toEqualTypeOf<{ order: number }>()
  expectTypeOf(instance.result).toEqualTypeOf<{ shipped: boolean } | null>()
  expectTypeOf((await holdfast.assertDone(mail)).result).toEqualTypeOf<{ sent: string } | null>()

  // By a text or a key nothing is known, and anything goes.
  await holdfast.signal({ correlationKey: 'order-1' }, 'paid', { amount: 1 })
  await holdfast.signal('12', 'whatever', [1])
  await holdfast.assertDone('12', 'a result')

  // @ts-expect-error one of the six points
  await holdfast.drain({ crashAt: 'after-lunch' })
  // @ts-expect-error a duration
  await holdfast.drain({ travel: '3 fortnights' })
})
