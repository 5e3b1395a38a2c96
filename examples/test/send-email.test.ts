import { sendEmail } from '@holdfast/examples'
import { testEngine } from '@holdfast/testing'
import { expect, test } from 'vitest'

test('a busy mail service is tried again, an address that does not exist is not', async () => {
  await using holdfast = await testEngine({ machines: [sendEmail] })
  const flaky = await holdfast.enqueue(sendEmail, { to: 'ada@flaky.example', subject: 'Hello' })
  const unknown = await holdfast.enqueue(sendEmail, { to: 'nobody@fail.example', subject: 'Hello' })
  const { outcomes } = await holdfast.drain({ travel: true })
  expect(outcomes).toEqual({ retry: 1, done: 1, fail: 1 })
  await holdfast.assertDone(flaky)
  await holdfast.assertFailed(unknown, 'no_such_address')
})

test('every try has the same idempotency key, also after a crash', async () => {
  await using holdfast = await testEngine({ machines: [sendEmail] })
  const id = await holdfast.enqueue(sendEmail, { to: 'ada@example.com', subject: 'Hello' })
  await holdfast.drain({ crashAt: 'after-step' })
  await holdfast.assertDone(id, { to: 'ada@example.com', message_id: `<${id}:start@holdfast.example>` })
})
