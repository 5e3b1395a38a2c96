import { Flusher, job, type Limiter, PostgresLimiter, Reaper } from '@holdfast/engine'
import { putGate } from '@holdfast/queries'
import { expect, test } from 'vitest'
import { z } from 'zod'
import { EngineUnderTest } from './engine-under-test.ts'

/** Another backend, as far as its callers can tell: it decides more strictly than the one below it, and keeps count of what it was asked. */
class Strict implements Limiter {
  readonly asked: string[] = []
  readonly #below: PostgresLimiter
  readonly #most: number
  constructor(below: PostgresLimiter, most: number) {
    this.#below = below
    this.#most = most
  }
  claim(params: Parameters<Limiter['claim']>[0]) {
    this.asked.push('claim')
    return this.#below.claim({ ...params, limit: Math.min(params.limit, this.#most) })
  }
  claimById(params: Parameters<Limiter['claimById']>[0]) {
    this.asked.push('claimById')
    return this.#below.claimById(params)
  }
  wake(keys: Parameters<Limiter['wake']>[0]) {
    this.asked.push(`wake ${keys.map(({ key }) => key).join(' ')}`)
    return this.#below.wake(keys)
  }
  waitedKeys(...given: Parameters<Limiter['waitedKeys']>) {
    this.asked.push('waitedKeys')
    return this.#below.waitedKeys(...given)
  }
  promote(limit: number) {
    this.asked.push('promote')
    return this.#below.promote(limit)
  }
  releaseChanged(limit: number) {
    this.asked.push('releaseChanged')
    return this.#below.releaseChanged(limit)
  }
  removeIdle(idleMs: number, limit: number) {
    this.asked.push('removeIdle')
    return this.#below.removeIdle(idleMs, limit)
  }
}

test('everything about limits is asked of the limiter that the processes were given', async () => {
  const noop = job('noop', { input: z.unknown(), run: () => 'ran' })
  await using engine = await EngineUnderTest.on([noop])
  const { db, url: connectionString } = engine.database
  await putGate(db, { projectId: engine.projectId, name: 'g', capacity: 1 })
  const limiter = new Strict(new PostgresLimiter(db), 1)
  const hints = { send() {} }
  const scheduler = engine.another([noop], { limiter })
  const flusher = new Flusher({ db, hints, limiter })
  const reaper = new Reaper({ db, connection: { connectionString }, hints, limiter })

  const free = [await engine.insert('noop'), await engine.insert('noop')]
  expect(await scheduler.runOnce()).toBe(1) // one at a time, says this one
  expect(await scheduler.runOnce()).toBe(1)
  await flusher.flush()
  for (const id of free) expect(await engine.get(id)).toMatchObject({ status: 'done' })
  expect(new Set(limiter.asked)).toEqual(new Set(['claim']))

  const held = await engine.insert('noop', 0, { concurrencyKey: 'g' })
  const parked = await engine.insert('noop', 0, { concurrencyKey: 'g' })
  await scheduler.runOnce()
  await scheduler.runOnce()
  await flusher.flush()
  await scheduler.runOnce()
  await flusher.flush()
  for (const id of [held, parked]) expect(await engine.get(id)).toMatchObject({ status: 'done' })
  expect(limiter.asked).toContain('wake g')

  limiter.asked.splice(0)
  await reaper.waiters()
  await reaper.promoteThrottled()
  await reaper.changedLimits()
  await reaper.idleLimits()
  expect(limiter.asked).toEqual(['waitedKeys', 'wake ', 'promote', 'releaseChanged', 'removeIdle'])

  // An end that the reaper brings about frees keys as well.
  const lost = await engine.insert('noop', 0, { concurrencyKey: 'g', version: 1 })
  await engine.scheduler.declare()
  await limiter.claim({ queue: 'default', limit: 1, worker: 'died', leaseMs: 60_000, machines: ['noop/1'] })
  await engine.expireLeases()
  limiter.asked.splice(0)
  expect(await reaper.reap()).toBe(1)
  expect(await engine.get(lost)).toMatchObject({ status: 'runnable' })
  expect(limiter.asked).toEqual(['wake g'])
  await scheduler.stop()
})
