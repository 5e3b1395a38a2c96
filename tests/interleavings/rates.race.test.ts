// Rate limits: claims that meet at a key's shards, policies that change between, buckets that are swept.
import type { ProjectId } from '@holdfast/contracts'
import { type ClaimedRow, claim, type putRateLimit, releaseChangedRateLines, releaseRateLine, removeIdleBuckets } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { expectInterleavingToFail, type Interleaving, interleave, mutated } from '@holdfast/testbed/interleave'
import { sql } from 'kysely'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { claimSteps, expectInvariants, insert, instances, MACHINES, project, rate, take, tokens } from './races.ts'

let database: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
})
afterAll(async () => {
  await database[Symbol.asyncDispose]()
})

type Claim = (db: Db, worker: string) => Promise<ClaimedRow[]>
type ClaimStatement = (db: Db, params: Parameters<typeof claim>[1]) => Promise<ClaimedRow[]>
interface Limited {
  readonly projectId: ProjectId
}
const of =
  (statement: ClaimStatement, limit: number): Claim =>
  (db, worker) =>
    statement(db, { queue: 'default', limit, worker, leaseMs: 60_000, machines: MACHINES })
const count = async (db: Db, status: string): Promise<number> => (await instances(db)).filter((row) => row.status === status).length
const some = (howMany: number) => Array.from({ length: howMany }, () => ({ rateKey: 'r:x' }))
describe('R8, R9: two claims of one cold bucket, in every order', () => {
  /** Each looks at two; the burst is three. */
  const cold = (claimOnce: Claim, shards: number, on = database): Interleaving<Limited> => ({
    database: on,
    setup: async (db) => {
      const projectId = await project(db)
      await rate(db, projectId, { burst: 3, shards })
      await insert(db, projectId, ...some(4))
      return { projectId }
    },
    sessions: {
      a: { role: 'scheduler', steps: claimSteps('a', claimOnce) },
      b: { role: 'scheduler', steps: claimSteps('b', claimOnce) },
    },
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      expect([await count(db, 'executing'), await count(db, 'throttled')]).toEqual([3, 1])
      expect((await tokens(db)).reduce((sum, held) => sum + held, 0)).toBe(0)
      await expectInvariants(db)
    },
  })

  test.each([1, 2])('made once, debited already; the later claim tries again and gets what is left (%i shards)', async (shards) => {
    const report = await interleave(cold(of(claim, 2), shards))
    expect(report.orders).toBe(70)
    expect(report.withWaits).toBeGreaterThan(0)
  })
  test('without the primary key of buckets, both make it full', async () => {
    await using other = await testDatabase()
    await sql`ALTER TABLE holdfast.rate_bucket DROP CONSTRAINT rate_bucket_pkey`.execute(other.db)
    await expectInterleavingToFail({ ...cold(of(claim, 2), 1, other), onlyTheRace: true })
  })
})

describe('R18, N24, N25: a claim meets shards that another one holds, in every order', () => {
  const warm = (claimOnce: Claim): Interleaving<Limited> => ({
    database,
    setup: async (db) => {
      const projectId = await project(db)
      await rate(db, projectId, { burst: 4, shards: 2 })
      await insert(db, projectId, { rateKey: 'r:x' })
      await take(db, 'before')
      await insert(db, projectId, ...some(2))
      return { projectId }
    },
    sessions: {
      a: { role: 'scheduler', steps: claimSteps('a', claimOnce) },
      b: { role: 'scheduler', steps: claimSteps('b', claimOnce) },
    },
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      expect(done.waits.size).toBe(0)
      // There are tokens for all: who could not look at them is left as he is, and is not told that the limit is used up.
      expect(await count(db, 'throttled')).toBe(0)
      await take(db, 'after')
      expect(await count(db, 'executing')).toBe(3)
      expect((await tokens(db)).reduce((sum, held) => sum + held, 0)).toBe(1)
      await expectInvariants(db)
    },
  })
  test('it does not wait, and parks nobody for what it could not see', async () => {
    await interleave(warm(of(claim, 1)))
  })
  test('without the look at whether some shard was held, it parks a row beside tokens', async () => {
    const blind = mutated(claim, ['WHEN NOT r.contended THEN', 'WHEN true THEN'])
    await expectInterleavingToFail({ ...warm(of(blind, 1)), onlyTheRace: true })
  })
  test('without SKIP LOCKED a claim waits for another', async () => {
    const waiting = mutated(claim, ['ORDER BY b.shard FOR NO KEY UPDATE SKIP LOCKED', 'ORDER BY b.shard FOR NO KEY UPDATE'])
    await expectInterleavingToFail({ ...warm(of(waiting, 1)), onlyTheRace: true })
  })
  test('two claims that take two keys in opposite order of urgency do not deadlock', async () => {
    const report = await interleave<Limited>({
      database,
      setup: async (db) => {
        const projectId = await project(db)
        await rate(db, projectId, { burst: 4, shards: 2 })
        await insert(
          db,
          projectId,
          ...['a', 'b'].flatMap((queue) =>
            ['x', 'y'].map((partition, at) => ({ queue, rateKey: `r:${partition}`, priority: queue === 'a' ? at : -at })),
          ),
        )
        return { projectId }
      },
      sessions: Object.fromEntries(
        ['a', 'b'].map((queue) => [
          queue,
          {
            role: 'scheduler' as const,
            steps: claimSteps(queue, (db, worker) => claim(db, { queue, limit: 2, worker, leaseMs: 60_000, machines: MACHINES })),
          },
        ]),
      ),
      check: async (db, _context, done) => {
        expect(done.errors).toEqual([])
        // The later one met what the first had made and not committed, tried again, and had enough of both.
        expect(await count(db, 'executing')).toBe(4)
        expect((await tokens(db)).reduce((sum, held) => sum + held, 0)).toBe(4)
      },
    })
    expect(report.withWaits).toBeGreaterThan(0)
  })
})

describe('N6: the policy changes between claims, in every order', () => {
  // Nothing is refilled within the test: what is granted is what the buckets held.
  const changing = (
    changes: readonly Partial<Parameters<typeof putRateLimit>[1]>[],
    burst: number,
    claimOnce: Claim = of(claim, 20),
  ): Interleaving<Limited> => ({
    database,
    setup: async (db) => {
      const projectId = await project(db)
      await rate(db, projectId, { burst, shards: 4 })
      await insert(db, projectId, { rateKey: 'r:x' })
      await take(db, 'before') // the bucket exists, one short of full
      await insert(db, projectId, ...some(20))
      return { projectId }
    },
    sessions: {
      policy: {
        role: 'api',
        steps: Object.fromEntries(
          changes.map((change, at) => [
            `put${at}`,
            async (s, { projectId }) => {
              await rate(s.db, projectId, { burst, shards: 4, ...change })
              await releaseRateLine(s.db, { projectId, name: 'r' })
            },
          ]),
        ),
      },
      claimer: {
        role: 'scheduler',
        steps: { first: (s) => claimOnce(s.db, 'w'), second: (s) => claimOnce(s.db, 'w'), third: (s) => claimOnce(s.db, 'w') },
      },
    },
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      expect(await count(db, 'executing')).toBeLessThanOrEqual(burst)
      await expectInvariants(db)
    },
  })

  test('4, 2 and again 4 shards: no more than the burst is ever granted', async () => {
    expect((await interleave(changing([{ shards: 2 }, { shards: 4 }], 8))).orders).toBe(10)
  })
  test('a larger and a smaller burst', async () => {
    const given = changing([{ burst: 12 }, { burst: 4 }], 8)
    await interleave({
      ...given,
      check: async (db, _context, done) => {
        expect(done.errors).toEqual([])
        // At most what it held, and what the larger one let it make of that: nothing comes of a change by itself.
        expect(await count(db, 'executing')).toBeLessThanOrEqual(8)
        await expectInvariants(db)
      },
    })
  })
  /** The burst is spent on four shards; on two it is refilled in an hour and spent again; what then is there on four? */
  async function grantedAfterReturn(claimOnce: Claim): Promise<number> {
    const { db } = database
    await sql`DELETE FROM holdfast.instance`.execute(db)
    const projectId = await project(db).catch(
      async () => (await sql<{ id: ProjectId }>`SELECT id FROM holdfast.project`.execute(db)).rows[0]!.id,
    )
    const limit = { name: 'again', rate: 8, periodMs: 3_600_000, burst: 8 }
    await rate(db, projectId, { ...limit, shards: 4 })
    await insert(db, projectId, ...Array.from({ length: 30 }, () => ({ rateKey: 'again' })))
    const everyoneDue = () => releaseRateLine(db, { projectId, name: 'again' })
    await claimOnce(db, 'w')
    await rate(db, projectId, { ...limit, shards: 2 })
    await sql`UPDATE holdfast.rate_bucket SET refilled_at = refilled_at - interval '1 hour'`.execute(db)
    await everyoneDue()
    await claimOnce(db, 'w')
    expect(await count(db, 'executing')).toBe(16)
    await rate(db, projectId, { ...limit, shards: 4 })
    await everyoneDue()
    await claimOnce(db, 'w')
    const granted = await count(db, 'executing')
    await sql`DELETE FROM holdfast.rate_bucket`.execute(db)
    return granted - 16
  }
  test('what is refilled on two shards is not refilled on two others beside them', async () => {
    expect(await grantedAfterReturn(of(claim, 30))).toBe(0)
    // Were shards that have missed a revision to count, it would be.
    expect(await grantedAfterReturn(of(mutated(claim, ['CASE WHEN b.revision < r.revision - 1 THEN', 'CASE WHEN false THEN']), 30))).toBe(4)
  })
  test('were new shards of a key that has some full, the burst would be granted again', async () => {
    const full = mutated(claim, ['CASE WHEN r.buckets_made = 0 THEN c.cap ELSE 0 END', 'c.cap'])
    await expectInterleavingToFail(changing([{ shards: 8 }], 8, of(full, 20)))
  })
})

describe('a rate limit is changed while a claim parks somebody for it, in every order', () => {
  const parking = (more: Partial<Interleaving<Limited>> = {}): Interleaving<Limited> => ({
    database,
    setup: async (db) => {
      const projectId = await project(db)
      await rate(db, projectId, { rate: 0, burst: 1 })
      await insert(db, projectId, { rateKey: 'r:x' }, { rateKey: 'r:x' })
      return { projectId }
    },
    sessions: {
      // Until now nothing would ever have come of it.
      policy: {
        role: 'api',
        steps: {
          put: (s, { projectId }) => rate(s.db, projectId, { rate: 1_000_000, burst: 1 }),
          release: (s, { projectId }) => releaseRateLine(s.db, { projectId, name: 'r' }),
        },
      },
      claimer: { role: 'scheduler', steps: claimSteps('claimer') },
    },
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      // The floor: a reaper's look at limits that have changed lately.
      await releaseChangedRateLines(db, { limit: 100 })
      const { rows } = await sql<{ n: number }>`
        SELECT count(*)::integer AS n FROM holdfast.instance WHERE status = 'throttled' AND throttled_until > now() + interval '1 second'`.execute(
        db,
      )
      expect(rows[0]?.n, 'rows that wait for what the old limit said').toBe(0)
      await expectInvariants(db)
    },
    ...more,
  })

  test('nobody waits by the old one', async () => {
    expect((await interleave(parking())).orders).toBe(15)
  })
  test('without the look at limits that have changed, a row that was just being parked waits for ever', async () => {
    await expectInterleavingToFail(
      parking({
        check: async (db) => {
          expect(await count(db, 'throttled')).toBe(0)
        },
        // With the change before the commit of the park, and nothing that looks again.
        only: 'claimer.begin, claimer.claim, policy.put, policy.release, claimer.commit, claimer.wake',
      }),
    )
  })
  test('what is parked under the new one is released once at most', async () => {
    const { db } = database
    const projectId = await project(db)
    await rate(db, projectId, { rate: 0, burst: 1 })
    await insert(db, projectId, { rateKey: 'r:x' }, { rateKey: 'r:x' })
    await take(db, 'w')
    await sql`UPDATE holdfast.limit_policy SET updated_at = now() - interval '1 minute'`.execute(db)
    expect(await releaseChangedRateLines(db, { limit: 100 })).toMatchObject([{ count: 0 }])
    await sql`UPDATE holdfast.instance SET updated_at = now() - interval '1 minute' WHERE status = 'throttled'`.execute(db)
    expect(await releaseChangedRateLines(db, { limit: 100 })).toMatchObject([{ count: 1, queues: ['default'] }])
    await take(db, 'w')
    expect(await releaseChangedRateLines(db, { limit: 100 })).toMatchObject([{ count: 0 }])
  })
})

describe('a sweep of idle buckets against claims, in every order', () => {
  type Remove = (db: Db, params: { idleMs: number; limit: number }) => Promise<unknown>
  /** The sweep stops between its look and its locks, at an advisory lock that the claimer holds: see `stop`. */
  const sweeping = (remove: Remove): Interleaving<Limited> => ({
    database,
    setup: async (db) => {
      const projectId = await project(db)
      await rate(db, projectId, { rate: 1, periodMs: 3_600_000, burst: 4, shards: 2 })
      await insert(db, projectId, { rateKey: 'r:x' })
      await take(db, 'before')
      await sql`UPDATE holdfast.rate_bucket SET tokens = capacity, refilled_at = now() - interval '2 days'`.execute(db)
      await insert(db, projectId, ...some(8))
      return { projectId }
    },
    sessions: {
      reaper: { steps: { remove: (s) => remove(s.db, { idleMs: 3_600_000, limit: 10 }) } },
      claimer: {
        steps: {
          hold: (s) => sql`SELECT pg_advisory_lock(1)`.execute(s.db),
          claim: (s) => take(s.db, 'claimer', 3),
          release: (s) => sql`SELECT pg_advisory_unlock(1)`.execute(s.db),
          again: (s) => take(s.db, 'claimer'),
        },
      },
    },
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      await take(db, 'after')
      expect(await count(db, 'executing')).toBe(1 + 4)
      await expectInvariants(db)
    },
  })
  const stop = [
    'LIMIT $2::integer\n)',
    `LIMIT $2::integer\n), stopped AS MATERIALIZED (SELECT pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1) FROM (SELECT count(*) FROM idle) looked)`,
  ] as const
  const after = ['FROM idle i\n', 'FROM stopped CROSS JOIN idle i\n'] as const

  test('a bucket that was used since the sweep looked stays, with what it has left', async () => {
    const report = await interleave(sweeping(mutated(removeIdleBuckets, stop, after)))
    expect(report.withWaits).toBeGreaterThan(0)
  })
  test('without a second look under the lock, what was granted is forgotten and granted again', async () => {
    const once = mutated(removeIdleBuckets, stop, after, [/ AND s\.refilled_at < i\.before/, ''])
    await expectInterleavingToFail({ ...sweeping(once), onlyTheRace: true })
  })
})
