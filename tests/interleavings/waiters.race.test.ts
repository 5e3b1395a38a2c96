// Parked for a key while it becomes free (docs/locks.md): the claim that parks a row, against the end of whoever holds the key.
import type { InstanceId, ProjectId } from '@holdfast/contracts'
import { type AppliedRow, type ClaimedRow, type Key, wakeWaiters } from '@holdfast/queries'
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

  // The claim's own wake is for what lies inside a statement: a snapshot from before the end of the holder, and a lock from after its wake.
  test('in every order of statements the wake of the one that ended is enough', async () => {
    const { wake: _wake, ...parks } = claimSteps('claimer')
    expect((await interleave(meeting({ claimer: { role: 'scheduler', steps: parks } }))).orders).toBe(10)
  })

  test('if it passed by the heads that a claim is parking, and the claim did not look itself, it would sleep', async () => {
    const skips = mutated(wakeWaiters, ['LIMIT 1 FOR NO KEY UPDATE', 'LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED'])
    const { wake: _wake, ...parks } = claimSteps('claimer')
    const passesBy = {
      flush: holder.flush,
      wake: (s: Session, { projectId }: Held) => skips(s.db, { keys: [{ projectId, key: 'g' }] }),
    }
    await expectInterleavingToFail(meeting({ holder: { role: 'flusher', steps: passesBy }, claimer: { role: 'scheduler', steps: parks } }))
  })

  test('without the wake of the one that ended, it sleeps beside a free key', async () => {
    const { wake: _wake, ...ends } = holder
    await expectInterleavingToFail(meeting({ holder: { role: 'flusher', steps: ends } }))
  })

  /**
   * The wake of the holder is held up on its way, at the head of another key with a lower id, so that it has its view from before the park and takes the row's lock after it.
   * It goes by what it has locked and wakes; the claimer's wake waits for it.
   */
  const heldUp = (claimersWake: Wake): Interleaving<Held> => ({
    database,
    setup: async (db) => {
      const projectId = await project(db)
      await insert(db, projectId, { concurrencyKey: 'a', queue: 'other' })
      return held(capacity)(db, projectId)
    },
    sessions: {
      other: {
        steps: {
          hold: async (s, { projectId }) => {
            await s.begin()
            await sql`SELECT FROM holdfast.instance WHERE project_id = ${projectId}::bigint AND concurrency_key = 'a' FOR NO KEY UPDATE`.execute(
              s.db,
            )
          },
          release: (s) => s.commit(),
        },
      },
      holder: {
        role: 'flusher',
        steps: {
          flush: holder.flush,
          wake: async (s, { projectId }) => {
            await s.begin()
            await wakeWaiters(s.db, { keys: ['a', 'g'].map((key) => ({ projectId, key })) })
          },
          commit: (s) => s.commit(),
        },
      },
      claimer: {
        role: 'scheduler',
        steps: {
          claim: async (s) => {
            await s.begin()
            await take(s.db, 'claimer')
          },
          commit: (s) => s.commit(),
          wake: (s, { projectId }) => claimersWake(s.db, { keys: [{ projectId, key: 'g' }] }),
        },
      },
    },
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      await expectInvariants(db)
    },
  })
  const FATAL = 'claimer.claim, holder.flush, other.hold, holder.wake, claimer.commit, other.release, claimer.wake, holder.commit'

  test('a wake that is held up and has an old view does not keep another from waking', async () => {
    expect((await interleave({ ...heldUp(wakeWaiters), only: FATAL })).withWaits).toBe(1)
    const { holder: holdsLong, claimer } = heldUp(wakeWaiters).sessions
    expect((await interleave({ ...heldUp(wakeWaiters), sessions: { holder: holdsLong!, claimer: claimer! } })).orders).toBe(20)
  })
})

/**
 * Two looks at one line at different moments see it in different orders. That both lock by id is what keeps them from a deadlock; whole statements cannot
 * show it, so: the same rows woken one by one in the order of either view do deadlock.
 */
test('those who are woken are locked in the order of their ids', async () => {
  expect(wakeWaiters.compile(wakeWaiters.sample).sql).toContain('FROM (SELECT id FROM head ORDER BY id) h')
  interface Two {
    readonly ids: readonly InstanceId[]
  }
  const wake = (db: Db, id: InstanceId | undefined) =>
    sql`UPDATE holdfast.instance SET status = 'runnable' WHERE id = ${id}::bigint AND status = 'throttled'`.execute(db)
  const oneByOne = (first: number, second: number) => ({
    steps: {
      first: async (s: Session, { ids }: Two) => {
        await s.begin()
        await wake(s.db, ids[first])
      },
      second: (s: Session, { ids }: Two) => wake(s.db, ids[second]),
      commit: (s: Session) => s.commit(),
    },
  })
  const report = await expectInterleavingToFail<Two>({
    database,
    onlyTheRace: true,
    setup: async (db) => {
      const ids = await insert(db, await project(db), { concurrencyKey: 'g' }, { concurrencyKey: 'g' })
      await sql`UPDATE holdfast.instance SET status = 'throttled'`.execute(db)
      return { ids }
    },
    sessions: { a: oneByOne(0, 1), b: oneByOne(1, 0) },
    check: async (_db, _context, done) => expect(done.errors).toEqual([]),
  })
  expect(report.failures.some(({ error }) => String(error).includes('40P01'))).toBe(true)
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
