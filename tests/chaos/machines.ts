// What the scheduler of a chaos run executes: the checkout of the examples, with an effect outside the engine that is counted by its idempotency key.
import { machine } from '@holdfast/engine'
import pg from 'pg'
import { z } from 'zod'

const effects = new pg.Pool({ connectionString: process.env['CHAOS_EFFECTS_URL'], max: 4 })
effects.on('error', () => {}) // the server is killed on purpose; the next query opens another connection

export const checkout = machine('checkout', {
  state: z.object({ order: z.number() }),
  signals: { payment_confirmed: z.object({ amount: z.number() }) },
  retry: { maxAttempts: 1_000, delay: '50 ms', maxDelay: '1 s' },
  steps: {
    start: (ctx) => ctx.awaitSignal('payment_confirmed', 'ship', { timeout: '1 hour' }),
    ship: async (ctx) => {
      const payment = ctx.awaited[0]
      if (payment === undefined) return ctx.fail({ code: 'payment_missing', message: 'woken without a payment' })
      // A run that is cut short after this line is repeated: the key is the same, so the parcel is sent once and only the tries add up.
      await effects.query(
        'INSERT INTO chaos.effect (key, order_id) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET tries = effect.tries + 1',
        [ctx.idempotencyKey, ctx.state.order],
      )
      return ctx.done({ order: ctx.state.order, paid: payment.payload.amount })
    },
  },
})
