// R19: between a claim, which has committed, and the read of its inbox anything may fail. What was claimed then has a lease and nobody to run it.
import { machine } from '@holdfast/engine'
import type { Db } from '@holdfast/schema'
import { sql } from 'kysely'
import { describe, expect, test } from 'vitest'
import { z } from 'zod'
import { EngineUnderTest, FLUSH } from './engine-under-test.ts'

/** Parks, and says how many signals its second step was handed. */
const counts = machine('counts', {
  signals: { go: z.object({}) },
  steps: { start: (ctx) => ctx.awaitSignal('go', 'end'), end: (ctx) => ctx.done(ctx.awaited.length) },
})

const role = FLUSH === 'direct' ? 'direct-scheduler' : 'scheduler'
const READERS = 'holdfast_scheduler, holdfast_flusher'

/** Ten instances that a signal has woken, and a scheduler with the rights of its role. */
async function woken(): Promise<{
  engine: EngineUnderTest
  ids: readonly string[]
  scheduler: EngineUnderTest['scheduler']
  superuser: Db
}> {
  const engine = await EngineUnderTest.on([counts])
  const ids = await Promise.all(Array.from({ length: 10 }, () => engine.insert('counts')))
  await engine.drain()
  await Promise.all(ids.map((id) => engine.signal(id, 'go')))
  const superuser = engine.database.db
  return { engine, ids, scheduler: engine.another([counts], { db: engine.database.connectAs(role) }), superuser }
}

const claims = async (db: Db): Promise<unknown[]> =>
  (await sql`SELECT DISTINCT status, claimed_by, lease_expires_at, attempt, reclaims, claim_epoch FROM holdfast.instance`.execute(db)).rows
/** Claimed twice, the second time in vain: runnable at once, and neither an attempt nor a reclaim is counted. */
const handedBack = [{ status: 'runnable', claimed_by: null, lease_expires_at: null, attempt: 0, reclaims: 0, claim_epoch: '2' }]

describe('R19: an exception between the claim and the read of its inbox hands the batch back', () => {
  test('the database refuses the read', async () => {
    const { engine, ids, scheduler, superuser } = await woken()
    await using _engine = engine
    await sql.raw(`REVOKE SELECT ON holdfast.signal FROM ${READERS}`).execute(superuser)
    await expect(scheduler.runOnce()).rejects.toMatchObject({ code: '42501' })
    await expect.poll(() => claims(superuser)).toEqual(handedBack)

    await sql.raw(`GRANT SELECT ON holdfast.signal TO ${READERS}`).execute(superuser)
    expect(await scheduler.runOnce()).toBe(10)
    await engine.flushAll()
    for (const id of ids) expect(await engine.get(id as never)).toMatchObject({ status: 'done', result: 1 }) // with its signal, all the same
    await scheduler.stop()
  })

  test('the connection dies under the read', async () => {
    const { engine, ids, scheduler, superuser } = await woken()
    await using _engine = engine
    const locked = await superuser.startTransaction().execute()
    await sql`LOCK TABLE holdfast.signal IN ACCESS EXCLUSIVE MODE`.execute(locked)
    const failure = scheduler.runOnce().catch((error: unknown) => error)
    // Held up by the lock, it is killed there: the claim has committed, the inbox is not read.
    await expect
      .poll(async () => {
        const { rows } = await sql<{ ended: boolean }>`SELECT pg_terminate_backend(pid) AS ended FROM pg_stat_activity
          WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '/* engine.load_inbox */%'`.execute(superuser)
        return rows.length
      })
      .toBe(1)
    expect(await failure).toMatchObject({ code: '57P01' })
    await locked.rollback().execute()
    await expect.poll(() => claims(superuser)).toEqual(handedBack)
    expect(await scheduler.runOnce()).toBe(10)
    await engine.flushAll()
    for (const id of ids) expect(await engine.get(id as never)).toMatchObject({ status: 'done', result: 1 })
    await scheduler.stop()
  })

  test('a scheduler that runs hands back every time, without waiting for a lease, and goes on by itself when it can read again', async () => {
    const { engine, ids, scheduler, superuser } = await woken()
    await using _engine = engine
    await sql.raw(`REVOKE SELECT ON holdfast.signal FROM ${READERS}`).execute(superuser)
    await scheduler.start()
    const epochs = async (): Promise<number> =>
      (await sql<{ n: number }>`SELECT min(claim_epoch)::integer AS n FROM holdfast.instance`.execute(superuser)).rows[0]?.n ?? 0
    await expect.poll(epochs).toBeGreaterThanOrEqual(3) // claimed and handed back at least twice
    await sql.raw(`GRANT SELECT ON holdfast.signal TO ${READERS}`).execute(superuser)
    await expect
      .poll(
        async () => {
          await engine.flushAll()
          return Promise.all(ids.map(async (id) => (await engine.get(id as never)).result))
        },
        { timeout: 20_000 },
      )
      .toEqual(ids.map(() => 1))
    await scheduler.stop()
  })
})
