import { machine } from '@holdfast/engine'
import { z } from 'zod'

/** Waits for a payment, then ships; gives up after three days without one. */
export const checkout = machine('checkout', {
  state: z.object({ order: z.number() }),
  signals: { payment_confirmed: z.object({ amount: z.number() }) },
  steps: {
    start: (ctx) => ctx.awaitSignal('payment_confirmed', 'ship', { timeout: '3 days' }),
    ship: (ctx) => {
      const payment = ctx.awaited[0]
      if (payment === undefined)
        return ctx.fail({ code: 'payment_missing', message: `order ${ctx.state.order} was not paid within three days` })
      return ctx.done({ order: ctx.state.order, paid: payment.payload.amount })
    },
  },
})
