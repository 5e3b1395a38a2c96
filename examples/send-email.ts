import { setTimeout as sleep } from 'node:timers/promises'
import { job, TerminalError } from '@holdfast/engine'
import { z } from 'zod'

/**
 * Sends one e-mail, with retries. The idempotency key is the same on every try: a mail service that knows it sends the mail once, however often this runs.
 * This one only pretends to have a mail service; addresses at fail.example are refused for good, those at flaky.example once.
 */
export const sendEmail = job('send-email', {
  input: z.object({ to: z.email(), subject: z.string().min(1) }),
  queue: 'mail',
  retry: { maxAttempts: 20, backoff: 'exponential', delay: '1 second', maxDelay: '10 minutes' },
  timeout: '30 seconds',
  run: async ({ to, subject }, ctx) => {
    if (to.endsWith('@fail.example')) throw new TerminalError(`${to} does not exist`, { code: 'no_such_address' })
    if (to.endsWith('@flaky.example') && ctx.attempt === 0) throw new Error('the mail service is busy')
    await sleep(5, undefined, { signal: ctx.signal })
    ctx.log.info('sent', { subject, idempotency_key: ctx.idempotencyKey })
    return { to, message_id: `<${ctx.idempotencyKey}@holdfast.example>` }
  },
})
