import { AssertionError } from 'node:assert'
import { child, job, machine } from '@holdfast/engine'
import { testEngine } from '@holdfast/testing'
import { expect, test } from 'vitest'
import { z } from 'zod'

const approval = machine('approval', {
  state: z.object({ document: z.string() }),
  signals: { approved: z.object({ by: z.string() }), rejected: z.object({}) },
  steps: {
    start: (ctx) => ctx.awaitSignal(['approved', 'rejected'], 'decide', { timeout: '2 days' }),
    decide: (ctx) =>
      ctx.awaited[0]?.name === 'approved' ? ctx.done({ by: 'somebody' }) : ctx.fail({ code: 'rejected', message: 'not this one' }),
  },
})
const broken = job('broken', {
  retry: { maxAttempts: 3, delay: '1 hour' },
  run: () => {
    throw new Error('the mail service is busy')
  },
})

async function messageOf(promise: Promise<unknown>): Promise<string> {
  const error = await promise.then(
    () => undefined,
    (reason: unknown) => reason,
  )
  expect(error).toBeInstanceOf(AssertionError)
  return (error as Error).message
}

test('a failure shows where the instance is, and what would move it', async () => {
  await using holdfast = await testEngine({ machines: [approval] })
  const id = await holdfast.enqueue(approval, { document: 'plan.pdf' })
  expect(await messageOf(holdfast.assertDone(id))).toBe(
    `instance ${id} of approval version 1 is runnable and not done
  step     start
  state    { document: 'plan.pdf' }
  history  no step has ended (or the machine keeps no history)
  hint     it waits to be claimed: drain() runs it, unless its queue is paused or left out by drain({ queues })`,
  )
  await holdfast.drain()
  await holdfast.advance('36 hours')
  expect(await messageOf(holdfast.assertDone(id))).toBe(
    `instance ${id} of approval version 1 is awaiting_signal and not done, after 1.5 days of time travel
  step     decide
  state    { document: 'plan.pdf' }
  awaits   approved, rejected, at most for 12 hours more
  history  start: await_signal → awaiting_signal at decide
  hint     a signal can move it, or drain({ travel: true }), which lets its deadline pass`,
  )
  expect(await messageOf(holdfast.assertAwaiting(id, ['approved', 'paid' as never]))).toMatch(/does not wait for paid/)
  await holdfast.signal(id, 'approved', { by: 'me' })
  expect(await messageOf(holdfast.assertFailed(id))).toMatch(/is runnable and not failed[^]*inbox {4}approved \{ by: 'me' \}/)
  await holdfast.drain()
  expect(await messageOf(holdfast.assertDone(id, { by: 'me' }))).toMatch(/is done with another result[^]*result {3}\{ by: 'somebody' \}/)
})

test('an error is shown with its place, and the attempts before it', async () => {
  await using holdfast = await testEngine({ machines: [broken] })
  const id = await holdfast.enqueue(broken)
  await holdfast.drain()
  expect(await messageOf(holdfast.assertDone(id))).toMatch(
    /is scheduled and not done\n {2}step {5}start, attempt 1\n {2}error {4}step_failed: the mail service is busy\n {11}at .*failures\.test\.ts[^]*start: retry → scheduled \(the mail service is busy\)[^]*it is due in [^]*drain\(\{ travel: true \}\) lets the time pass/,
  )
  await holdfast.drain({ travel: true })
  await holdfast.assertFailed(id, 'step_failed')
  await holdfast.assertFailed(id, 'the mail service is busy')
  await holdfast.assertFailed(id, /service/)
  expect(await messageOf(holdfast.assertFailed(id, 'busy'))).toMatch(/failed for another reason than busy/)
  expect(await messageOf(holdfast.assertFailed(id, /unknown/))).toMatch(/failed for another reason than \/unknown\//)
})

test('the values of an assertion are on its error, for runners that show a difference', async () => {
  await using holdfast = await testEngine({ machines: [approval] })
  const id = await holdfast.enqueue(approval, { document: 'a' })
  await expect(holdfast.assertStatus(id, 'done')).rejects.toMatchObject({ actual: 'runnable', expected: 'done', code: 'ERR_ASSERTION' })
  expect(await messageOf(holdfast.instance('999'))).toMatch(/there is no instance 999/)
  expect(await messageOf(holdfast.assertDone({ correlationKey: 'nobody' }))).toMatch(/there is no instance with the correlation key nobody/)
})

test('what nobody can run is said: at the enqueue, and of a child', async () => {
  const lonely = job('lonely', { version: 2, run: () => null })
  const parent = machine('parent', { steps: { start: (ctx) => ctx.spawn([child(lonely, null)], 'end'), end: (ctx) => ctx.done() } })
  await using holdfast = await testEngine({ machines: [parent] })
  await expect(holdfast.enqueue(lonely, null)).rejects.toThrow(
    'testEngine() was not given machine lonely version 2, so nobody would run it; it has parent version 1',
  )
  await expect(holdfast.enqueue('parent', {}, { version: 3 })).rejects.toThrow(TypeError)
  const id = await holdfast.enqueue('parent')
  await holdfast.drain({ travel: '1 day' })
  expect(await messageOf(holdfast.assertDone(id))).toMatch(/children 1 have not ended[^]*instances\(\{ parentId \}\) shows them/)
  const [orphan] = await holdfast.instances({ parentId: id })
  expect(await messageOf(holdfast.assertDone(orphan?.id ?? ''))).toMatch(
    /testEngine\(\) was not given machine lonely version 2, so nobody runs it/,
  )
})

test('a drain that goes round in a circle names those that do', async () => {
  const circle = machine('circle', { steps: { start: (ctx) => ctx.next('again'), again: (ctx) => ctx.next('start') } })
  const poller = machine('poller', { steps: { start: (ctx) => ctx.sleep('1 hour', 'start') } })
  await using holdfast = await testEngine({ machines: [circle, poller, approval] })
  await holdfast.enqueue(approval, { document: 'a' })
  const polling = await holdfast.enqueue(poller)
  expect(await holdfast.drain({ travel: '1 day' })).toMatchObject({ steps: 26 })
  await expect(holdfast.drain({ travel: true, maxSteps: 50 })).rejects.toThrow(
    new RegExp(
      `gave up after 5\\d steps \\(maxSteps 50\\)[^]*\\d+ of instance ${polling} \\(poller\\), the last one at step start[^]*They answered`,
    ),
  )
  const id = await holdfast.enqueue(circle)
  await expect(holdfast.drain({ maxSteps: 100 })).rejects.toThrow(
    new RegExp(`gave up after 100 steps[^]*100 of instance ${id} \\(circle\\)`),
  )
  expect(holdfast.travelledMs).toBeGreaterThan(86_400_000)
})

test('options that mean nothing are refused', async () => {
  await using holdfast = await testEngine({ machines: [approval] })
  await expect(holdfast.drain({ maxSteps: 0 })).rejects.toThrow(TypeError)
  await expect(holdfast.drain({ travel: '3 fortnights' as never })).rejects.toThrow(/not a duration/)
  await expect(holdfast.advance(-1)).rejects.toThrow(/not a duration/)
  await expect(testEngine({ machines: [], concurrency: 0 })).rejects.toThrow(TypeError)
})

test('one drain at a time, and none on a closed engine', async () => {
  const holdfast = await testEngine({ machines: [approval] })
  const first = holdfast.drain()
  await expect(holdfast.advance('1 hour')).rejects.toThrow('advance() while drain() is under way; await that first')
  await first
  await holdfast.close()
  await holdfast.close()
  await expect(holdfast.drain()).rejects.toThrow('drain() on a test engine that is closed')
})
