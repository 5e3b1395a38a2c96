import { checkout } from '@holdfast/examples'
import { testEngine } from '@holdfast/testing'
import { expect, test } from 'vitest'

test('a paid order is shipped', async () => {
  await using holdfast = await testEngine({ machines: [checkout] })
  const id = await holdfast.enqueue(checkout, { order: 1 })
  await holdfast.drain()
  await holdfast.assertAwaiting(id, 'payment_confirmed')

  await holdfast.signal(id, 'payment_confirmed', { amount: 30 })
  await holdfast.drain()
  await holdfast.assertDone(id, { order: 1, paid: 30 })
})

test('one that is not paid within three days fails', async () => {
  await using holdfast = await testEngine({ machines: [checkout] })
  const id = await holdfast.enqueue(checkout, { order: 2 })
  await holdfast.drain({ travel: '2 days' })
  await holdfast.assertAwaiting(id)
  await holdfast.drain({ travel: '1 day' })
  await holdfast.assertFailed(id, 'payment_missing')
})

test('a crash after the order was shipped does not lose its payment', async () => {
  await using holdfast = await testEngine({ machines: [checkout] })
  const id = await holdfast.enqueue(checkout, { order: 3 })
  await holdfast.signal(id, 'payment_confirmed', { amount: 10 })
  const { steps, crashes } = await holdfast.drain({ crashAt: { at: 'after-step', step: 'ship' } })
  expect({ steps, crashes }).toEqual({ steps: 3, crashes: 1 }) // start, ship, and ship again
  await holdfast.assertDone(id, { order: 3, paid: 10 })
})
