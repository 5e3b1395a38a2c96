// Parked for a key while it becomes free (docs/locks.md): the claim that parks a row, against the end of whoever holds the key.
import type { InstanceId, ProjectId } from '@holdfast/contracts'
import { type AppliedRow, type ClaimedRow, type Key, wakeLines, wakeWaiters } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { expectInterleavingToFail, type Interleaving, interleave, mutated, type Session } from '@holdfast/testbed/interleave'
import { sql } from 'kysely'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import {
  apply,
  claimSteps,
  expectInvariants,
  flushOnce,
  gate,
  insert,
  instances,
  outcome,
  project,
  ranBefore,
  rate,
  riders,
  stage,
  take,
  wakeFreed,
  wakeParked,
} from './races.ts'

let database: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
})
afterAll(async () => {
  await database[Symbol.asyncDispose]()
})

interface Held {
  readonly projectId: ProjectId
  readonly holder: InstanceId
  readonly waiting: InstanceId
  applied?: AppliedRow | undefined
}
type Wake = (db: Db, params: { keys: readonly Key[] }) => Promise<unknown>

const statusOf = async (db: Db, id: InstanceId) => (await instances(db)).find((row) => row.id === id)?.status

/** One that executes with key `g` and whose end is staged, and one behind it. */
const held =
  (capacity: number | undefined) =>
  async (db: Db, given?: ProjectId): Promise<Held> => {
    const projectId = given ?? (await project(db))
    if (capacity !== undefined) await gate(db, projectId, capacity)
    const [holder] = (await insert(db, projectId, { concurrencyKey: 'g' })) as [InstanceId]
    const [claimed] = (await take(db, 'holder')) as [ClaimedRow]
    await stage(db, outcome(claimed, { kind: 'done', heldKey: 'g' }))
    const [waiting] = (await insert(db, projectId, { concurrencyKey: 'g' })) as [InstanceId]
    return { projectId, holder, waiting }
  }

describe.each([
  { what: 'a serial key', capacity: undefined },
  { what: 'a gate', capacity: 1 },
])('parked for $what while its holder ends, in every order', ({ capacity }) => {
  const holder = {
    flush: async (s: Session, context: Held) => (context.applied = await flushOnce(s.db)),
    wake: (s: Session, { applied }: Held) => wakeFreed(s.db, applied),
  }
  const meeting = (more: Partial<Interleaving<Held>['sessions']> = {}): Interleaving<Held> => ({
    database,
    setup: (db) => held(capacity)(db),
    sessions: {
      holder: { role: 'flusher', steps: holder },
      claimer: { role: 'scheduler', steps: claimSteps('claimer') },
      ...more,
    } as Interleaving<Held>['sessions'],
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      await expectInvariants(db) // E26 among them: nobody sleeps beside a free key
    },
  })

  test('it is awake in the end, or executes', async () => {
    const given = meeting()
    const report = await interleave({
      ...given,
      check: async (db, context, done) => {
        await given.check(db, context, done)
        const first = ranBefore(done.trace, 'holder.flush', 'claimer.claim')
        expect(await statusOf(db, context.waiting)).toBe(first ? 'executing' : 'runnable')
      },
    })
    expect(report.orders).toBe(15)
  })

  test('with the flush as its statements', async () => {
    const given = meeting({
      holder: {
        role: 'flusher',
        steps: {
          begin: (s) => s.begin(),
          flush: async (s, context) => {
            await apply(s, context)
            await riders(s, context)
          },
          commit: (s) => s.commit(),
          wake: holder.wake,
        },
      },
    })
    const report = await interleave(given)
    expect(report.orders).toBe(70)
  })

  test('with another that arrives between, more urgent', async () => {
    const report = await interleave({
      ...meeting({
        arrival: { role: 'api', steps: { insert: (s, { projectId }) => insert(s.db, projectId, { concurrencyKey: 'g', priority: -1 }) } },
      }),
    })
    expect(report.orders).toBe(105)
  })

  test('without the wake of the one that parked it, it sleeps beside a free key', async () => {
    const { wake: _wake, ...parks } = claimSteps('claimer')
    await expectInterleavingToFail(meeting({ claimer: { role: 'scheduler', steps: parks } }))
  })

  test('without the wake of the one that ended, it sleeps beside a free key', async () => {
    const { wake: _wake, ...ends } = holder
    await expectInterleavingToFail(meeting({ holder: { role: 'flusher', steps: ends } }))
  })

  /** Two looks as transactions that last: the later one passes by what the earlier one holds. */
  const twoLooks = (look: Wake): Interleaving<Held> => {
    const lasting = {
      begin: (s: Session) => s.begin(),
      wake: (s: Session, { projectId }: Held) => look(s.db, { keys: [{ projectId, key: 'g' }] }),
      commit: (s: Session) => s.commit(),
    }
    return {
      database,
      setup: async (db) => {
        const context = await held(capacity)(db)
        await take(db, 'claimer') // parks
        await flushOnce(db)
        return context
      },
      sessions: { holder: { role: 'flusher', steps: lasting }, claimer: { role: 'scheduler', steps: lasting } },
      check: async (db, { waiting }, done) => {
        expect(done.errors).toEqual([])
        expect(await statusOf(db, waiting)).toBe('runnable')
        await expectInvariants(db)
      },
    }
  }

  test('no look waits for another', async () => {
    const report = await interleave(twoLooks(wakeWaiters))
    expect(report.orders).toBe(20)
    expect(report.withWaits).toBe(0)
  })
  test('a look that took locks would', async () => {
    const waits = mutated(wakeWaiters, ['FOR NO KEY UPDATE SKIP LOCKED', 'FOR NO KEY UPDATE'])
    expect((await interleave(twoLooks(waits))).withWaits).toBeGreaterThan(0)
  })

  test('a look says that it has passed by somebody, and is repeated', async () => {
    const { projectId, waiting } = await twoLooks(wakeWaiters).setup(database.db)
    const keys = [{ projectId, key: 'g' }]
    let looking: Promise<string[]> | undefined
    await database.db.transaction().execute(async (trx) => {
      await sql`SELECT FROM holdfast.instance WHERE id = ${waiting}::bigint FOR NO KEY UPDATE`.execute(trx) // as by a signal
      expect(await wakeWaiters(database.db, { keys })).toEqual([{ queue: null }])
      looking = wakeLines(database.db, keys)
    })
    expect(await looking).toEqual(['default'])
  })
})

describe('parked by a rate limit at the head of a gate that has room, in every order', () => {
  interface Line {
    readonly projectId: ProjectId
    applied?: AppliedRow | undefined
  }
  /** The bucket is spent; the gate is held, and one waits for it. */
  const line = (claimer: ReturnType<typeof claimSteps>): Interleaving<Line> => ({
    database,
    setup: async (db) => {
      const projectId = await project(db)
      await gate(db, projectId, 1)
      await rate(db, projectId)
      await insert(db, projectId, { rateKey: 'r' }, { concurrencyKey: 'g' })
      const claimed = await take(db, 'w')
      await stage(db, ...claimed.map((row) => outcome(row, { kind: 'done', heldKey: 'g' })))
      await insert(db, projectId, { concurrencyKey: 'g' })
      await take(db, 'w')
      return { projectId }
    },
    sessions: {
      // More urgent than the one that waits, and not to be had before its time.
      arrival: {
        role: 'api',
        steps: { insert: (s, { projectId }) => insert(s.db, projectId, { concurrencyKey: 'g', rateKey: 'r', priority: -1 }) },
      },
      holder: {
        role: 'flusher',
        steps: {
          flush: async (s, context) => (context.applied = await flushOnce(s.db)),
          wake: (s, { applied }) => wakeFreed(s.db, applied),
        },
      },
      claimer: { role: 'scheduler', steps: claimer },
    },
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      await expectInvariants(db)
    },
  })

  test('the one behind it is woken: it stood where the last wake-up counted on it', async () => {
    expect((await interleave(line(claimSteps('claimer')))).orders).toBe(105)
  })

  test('were only those looked after whom the key has denied, it would sleep', async () => {
    let looked: ClaimedRow[] = []
    const given = line({
      ...claimSteps('claimer', async (db, worker) => (looked = await take(db, worker))),
      wake: (s) =>
        wakeParked(
          s.db,
          looked.filter((row) => row.throttled_ms === null),
        ),
    })
    const report = await expectInterleavingToFail(given)
    expect(String(report.failures[0]?.error)).toContain('E26')
  })
})
