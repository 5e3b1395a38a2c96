import { setTimeout as sleep } from 'node:timers/promises'
import type { InstanceId } from '@holdfast/contracts'
import { job, machine, ShutdownError, WaitTimeoutError } from '@holdfast/engine'
import { expect, test } from 'vitest'
import { z } from 'zod'
import { EngineUnderTest, FLUSH } from './engine-under-test.ts'

const double = job('double', { input: z.number(), run: (n) => n * 2 })
const fail = job('fail', { input: z.unknown(), retry: { maxAttempts: 1 }, run: () => Promise.reject(new Error('no such account')) })
const asks = machine('asks', {
  signals: { answer: z.unknown() },
  steps: { start: (ctx) => ctx.awaitSignal('answer', 'told'), told: (ctx) => ctx.done('told') },
})

/** Flushes as a flusher beside would, until it is disposed of. */
function flushing(engine: EngineUnderTest): AsyncDisposable {
  let over = false
  const loop = (async () => {
    while (!over) {
      await engine.flushAll()
      await sleep(5)
    }
  })()
  return {
    async [Symbol.asyncDispose]() {
      over = true
      await loop
    },
  }
}

test('answers how an instance has ended, in result or in failure, while the scheduler runs it', async () => {
  await using engine = await EngineUnderTest.on([double, fail])
  await using _flusher = flushing(engine)
  await engine.scheduler.start()
  const id = await engine.insert('double', 21)
  expect(await engine.scheduler.waitFor(id, { timeoutMs: 10_000 })).toEqual({ id, status: 'done', result: 42, error: null })
  const failed = await engine.insert('fail')
  expect(await engine.scheduler.waitFor(failed)).toMatchObject({ status: 'failed', result: null, error: { message: 'no such account' } })
})

test('many waits at once are one statement a look', async () => {
  await using engine = await EngineUnderTest.on([double])
  await using _flusher = flushing(engine)
  const ids = await Promise.all(Array.from({ length: 50 }, (_, n) => engine.insert('double', n)))
  const waits = ids.map((id) => engine.scheduler.waitFor(id, { timeoutMs: 10_000 }))
  await engine.scheduler.runOnce()
  expect((await Promise.all(waits)).map(({ result }) => result)).toEqual(ids.map((_, n) => n * 2))
})

test('until settled, one that is parked for a signal is an answer', async () => {
  await using engine = await EngineUnderTest.on([asks])
  const id = await engine.insert('asks')
  await engine.drain()
  expect(await engine.scheduler.waitFor(id, { until: 'settled' })).toMatchObject({ status: 'awaiting_signal' })
  await expect(engine.scheduler.waitFor(id, { timeoutMs: 60 })).rejects.toThrow(
    new WaitTimeoutError(`instance ${id} was still awaiting_signal after 60 ms; it goes on, and can be waited for again`),
  )
})

test('an instance that is not there is said to be so at once', async () => {
  await using engine = await EngineUnderTest.on([double])
  await expect(engine.scheduler.waitFor('12345' as InstanceId)).rejects.toThrow('there is no instance 12345')
})

test('a scheduler that stops ends its waits, and one that is started again waits again', async () => {
  await using engine = await EngineUnderTest.on([double])
  await engine.scheduler.start()
  const id = await engine.insert('double', 1, { delayMs: 3_600_000 })
  const ended = engine.scheduler.waitFor(id).catch((error: unknown) => error)
  await sleep(50)
  await engine.scheduler.stop()
  expect(await ended).toBeInstanceOf(ShutdownError)
  await engine.scheduler.start()
  await expect(engine.scheduler.waitFor(id, { timeoutMs: 40 })).rejects.toThrow(WaitTimeoutError)
})

test.runIf(FLUSH === 'direct')('what this process has applied itself is seen without waiting for the next look', async () => {
  await using engine = await EngineUnderTest.on([double])
  // A wait is looked at every 250 ms when it has lasted two seconds.
  const id = await engine.insert('double', 4, { delayMs: 3_600_000 })
  const waiting = engine.scheduler.waitFor(id, { timeoutMs: 20_000 })
  await sleep(2_300)
  await engine.drain({ travel: true })
  const endedMs = performance.now()
  expect((await waiting).result).toBe(8)
  expect(performance.now() - endedMs).toBeLessThan(200)
})
