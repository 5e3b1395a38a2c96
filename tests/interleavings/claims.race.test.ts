import type { InstanceId, ProjectId } from '@holdfast/contracts'
import {
  type AppliedRow,
  applyOutcomes,
  type ClaimedRow,
  claim,
  enqueue,
  heartbeat,
  isLostRace,
  reapExpired,
  releaseClaims,
  stageOutcomes,
} from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { expectInterleavingToFail, type Interleaving, interleave, mutated } from '@holdfast/testbed/interleave'
import { sql } from 'kysely'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { apply, expectInvariants, flushSteps, insert, instances, MACHINES, outcome, project, riders, stage, take } from './races.ts'

let database: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
})
afterAll(async () => {
  await database[Symbol.asyncDispose]()
})

const expire = (db: Db) =>
  sql`UPDATE holdfast.instance SET lease_expires_at = now() - interval '1 second' WHERE status = 'executing'`.execute(db)
const reap = (db: Db) => reapExpired(db, { limit: 10, defaultMaxReclaims: 5 })

interface Claimed {
  readonly id: InstanceId
  readonly claimed: ClaimedRow
  applied?: AppliedRow | undefined
}
/** One instance that executes, its lease over. */
async function expiredClaim(db: Db): Promise<Claimed> {
  const projectId = await project(db)
  const [id] = (await insert(db, projectId)) as [InstanceId]
  const [claimed] = (await take(db, 'w')) as [ClaimedRow]
  await expire(db)
  return { id, claimed }
}

describe('R6: two claims of one serial key, in every order', () => {
  type Claim = (db: Db, worker: string) => Promise<ClaimedRow[]>
  interface Keyed {
    readonly ids: readonly InstanceId[]
  }
  const twoClaims = (claimOnce: Claim): Interleaving<Keyed> => ({
    database,
    setup: async (db) => ({
      ids: await insert(db, await project(db), { concurrencyKey: 'k' }, { concurrencyKey: 'k' }, {}, {}),
    }),
    sessions: Object.fromEntries(
      ['a', 'b'].map((name) => [
        name,
        {
          role: 'scheduler' as const,
          steps: {
            begin: (s) => s.begin(),
            // What the scheduler does: a lost race is tried again, and meets what the winner committed.
            claim: async (s) => {
              try {
                return await claimOnce(s.db, name)
              } catch (error) {
                if (!isLostRace(error)) throw error
                await s.rollback()
                await s.begin()
                return claimOnce(s.db, name)
              }
            },
            commit: (s) => s.commit(),
          },
        },
      ]),
    ),
    check: async (db, { ids }, done) => {
      expect(done.errors).toEqual([])
      const rows = await instances(db)
      const executing = rows.filter((row) => row.status === 'executing')
      expect(executing.filter((row) => ids.slice(0, 2).includes(row.id))).toHaveLength(1)
      // The rows without a key are all claimed, each by one: the race has cost nobody else anything.
      expect(executing.filter((row) => ids.slice(2).includes(row.id))).toHaveLength(2)
      expect(executing.every((row) => row.claim_epoch === '1')).toBe(true)
      await expectInvariants(db)
    },
  })
  // Two rows at a time, so that each claim gets one of the key's.
  const real: Claim = (db, worker) => claim(db, { queue: 'default', limit: 10, worker, leaseMs: 60_000, machines: MACHINES })

  test('one executes; nothing else of either batch is lost', async () => {
    const report = await interleave(twoClaims(real))
    expect(report.orders).toBe(20)
  })

  // A queue for each, so that both rows are the first of their line: only the unique index stands between the two.
  const oneEach = (on: TestDatabase): Interleaving<Keyed> => ({
    ...twoClaims((db, worker) => claim(db, { queue: worker, limit: 1, worker, leaseMs: 60_000, machines: MACHINES })),
    database: on,
    setup: async (db) => ({
      ids: await insert(db, await project(db), { concurrencyKey: 'k', queue: 'a' }, { concurrencyKey: 'k', queue: 'b' }),
    }),
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      expect((await instances(db)).filter((row) => row.status === 'executing')).toHaveLength(1)
    },
  })

  test('with a row of the key for each, the later claim loses on the unique index, tries again and finds the key held', async () => {
    const report = await interleave(oneEach(database))
    expect(report.withWaits).toBeGreaterThan(0)
  })

  test('without the unique index two of one key execute', async () => {
    await using other = await testDatabase()
    await sql`DROP INDEX holdfast.instance_concurrency_active`.execute(other.db)
    await expectInterleavingToFail({ ...oneEach(other), onlyTheRace: true })
  })
})

describe('R15: two batches with the same new keys in opposite order, in every order', () => {
  interface Batches {
    readonly projectId: ProjectId
  }
  const batches = (
    insertBatch: typeof enqueue | ReturnType<typeof mutated<Parameters<typeof enqueue>[1], unknown>>,
  ): Interleaving<Batches> => ({
    database,
    setup: async (db) => ({ projectId: await project(db) }),
    sessions: Object.fromEntries(
      (
        [
          ['forward', ['k1', 'k2', 'k3']],
          ['backward', ['k3', 'k2', 'k1']],
        ] as const
      ).map(([name, keys]) => [
        name,
        {
          role: 'api' as const,
          steps: {
            begin: (s) => s.begin(),
            first: (s, { projectId }) =>
              insertBatch(s.db, {
                projectId,
                declaredOnly: false,
                instances: keys.map((correlationKey) => ({ machine: 'm', correlationKey })),
              }),
            commit: (s) => s.commit(),
          },
        },
      ]),
    ),
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      const { rows } = await sql<{
        key: string
        n: number
      }>`SELECT correlation_key AS key, count(*)::integer AS n FROM holdfast.instance GROUP BY 1 ORDER BY 1`.execute(db)
      expect(rows).toEqual(['k1', 'k2', 'k3'].map((key) => ({ key, n: 1 })))
    },
  })

  test('each key is inserted once and nobody deadlocks', async () => {
    expect((await interleave(batches(enqueue))).orders).toBe(20)
  })
  // That the statement sorts is what keeps it so; two single statements only deadlock when they overlap in time, which an order of whole statements
  // cannot show. So: the order in which the rows go in, looked at itself.
  test('rows go in ordered by key', async () => {
    const { sql: text } = enqueue.compile(enqueue.sample)
    expect(text).toContain('ORDER BY correlation_key, ord')
  })
  test('inserted one by one in opposite orders, the same keys deadlock', async () => {
    const oneByOne = (keys: readonly string[]) => ({
      role: 'api' as const,
      steps: Object.fromEntries([
        ['begin', (s: { begin(): Promise<void> }) => s.begin()],
        ...keys.map((correlationKey) => [
          correlationKey,
          (s: { db: Db }, { projectId }: Batches) =>
            enqueue(s.db, { projectId, declaredOnly: false, instances: [{ machine: 'm', correlationKey }] }),
        ]),
        ['commit', (s: { commit(): Promise<void> }) => s.commit()],
      ]),
    })
    const report = await expectInterleavingToFail<Batches>({
      ...batches(enqueue),
      onlyTheRace: true,
      check: async (_db, _context, done) => expect(done.errors).toEqual([]),
      sessions: { forward: oneByOne(['k1', 'k2']), backward: oneByOne(['k2', 'k1']) } as never,
    })
    expect(report.failures.some(({ error }) => String(error).includes('40P01'))).toBe(true)
  })
})

describe('R16, R20: reaper, heart-beat, stage, flush and release on one claim, in every order', () => {
  const sides: Readonly<Record<string, Interleaving<Claimed>['sessions'][string]>> = {
    reaper: { role: 'reaper', steps: { begin: (s) => s.begin(), reap: (s) => reap(s.db), commit: (s) => s.commit() } },
    heartbeat: {
      role: 'scheduler',
      steps: {
        begin: (s) => s.begin(),
        beat: (s, { id, claimed }) => heartbeat(s.db, { ids: [id], epochs: [claimed.claim_epoch], leaseMs: 60_000 }),
        commit: (s) => s.commit(),
      },
    },
    stage: {
      role: 'scheduler',
      steps: {
        begin: (s) => s.begin(),
        stage: (s, { claimed }) => stage(s.db, outcome(claimed, { kind: 'done' })),
        commit: (s) => s.commit(),
      },
    },
    release: {
      role: 'scheduler',
      steps: {
        begin: (s) => s.begin(),
        release: (s, { id, claimed }) => releaseClaims(s.db, { ids: [id], epochs: [claimed.claim_epoch] }),
        commit: (s) => s.commit(),
      },
    },
    flush: { role: 'flusher', steps: flushSteps },
  }
  const meet = (names: readonly string[], check: Interleaving<Claimed>['check'], setup = expiredClaim): Interleaving<Claimed> => ({
    database,
    setup,
    sessions: Object.fromEntries(names.map((name) => [name, sides[name]!])),
    check: async (db, context, done) => {
      expect(done.errors).toEqual([])
      await check(db, context, done)
      await expectInvariants(db)
    },
  })
  /** Committed before the other began to look. */
  const before = (trace: readonly string[], a: string, b: string): boolean => {
    const [first, second] = [trace.findIndex((step) => step.startsWith(a)), trace.findIndex((step) => step.startsWith(b))]
    return first >= 0 && second >= 0 && first < second
  }

  test('heart-beat against reaper: renewed or taken back, never both, and nobody waits', async () => {
    const report = await interleave(
      meet(['reaper', 'heartbeat'], async (db, { id }, done) => {
        const [row] = await instances(db)
        const reaped = done.value<unknown[]>('reaper.reap').length
        expect(row).toMatchObject({ id, status: reaped === 1 ? 'runnable' : 'executing' })
        if (before(done.trace, 'heartbeat.commit', 'reaper.reap')) expect(reaped).toBe(0)
        if (before(done.trace, 'reaper.commit', 'heartbeat.beat')) expect(done.value('heartbeat.beat')).toHaveLength(1) // told that it is lost
      }),
    )
    expect([report.orders, report.withWaits]).toEqual([20, 0])
  })

  test('stage against reaper: a committed outcome is never run again; one that comes too late changes nothing', async () => {
    await interleave(
      meet(['reaper', 'stage'], async (db, { claimed }, done) => {
        const reaped = done.value<unknown[]>('reaper.reap').length
        if (before(done.trace, 'stage.commit', 'reaper.reap')) expect(reaped).toBe(0)
        if (before(done.trace, 'reaper.commit', 'stage.stage')) expect(done.value('stage.stage')).toEqual([])
        const [applied] = await applyOutcomes(db, { afterSeq: '0', limit: 10 })
        const [row] = await instances(db)
        expect(row?.status).toBe(reaped === 1 ? 'runnable' : 'done')
        expect(applied?.applied).toBe(reaped === 1 ? 0 : 1)
        expect(row?.claim_epoch).toBe(claimed.claim_epoch)
      }),
    )
  })

  test('without the look at staged outcomes the reaper runs a finished step again', async () => {
    const blind = mutated(reapExpired, ['AND outcome.staged IS NULL', ''])
    const given = meet(['reaper', 'stage'], async (_db, _context, done) => {
      if (before(done.trace, 'stage.commit', 'reaper.reap')) expect(done.value('reaper.reap')).toEqual([])
    })
    await expectInterleavingToFail({
      ...given,
      sessions: {
        ...given.sessions,
        reaper: {
          steps: { begin: (s) => s.begin(), reap: (s) => blind(s.db, { limit: 10, defaultMaxReclaims: 5 }), commit: (s) => s.commit() },
        },
      },
    })
  })

  const staged = async (db: Db): Promise<Claimed> => {
    const context = await expiredClaim(db)
    await stage(db, outcome(context.claimed, { kind: 'done' }))
    return context
  }

  const applied: Interleaving<Claimed>['check'] = async (db, { id }) =>
    expect(await instances(db)).toMatchObject([{ id, status: 'done', claim_epoch: '1' }])

  test('flush against reaper, and against heart-beat: the staged outcome is applied, once, in every order', async () => {
    expect((await interleave(meet(['reaper', 'flush'], applied, staged))).orders).toBe(35)
    expect((await interleave(meet(['heartbeat', 'flush'], applied, staged))).orders).toBe(35)
  })

  test('flush against reaper and heart-beat at once, each of these as the one statement that it is', async () => {
    const given = meet(['flush'], applied, staged)
    const report = await interleave({
      ...given,
      sessions: {
        ...given.sessions,
        reaper: { role: 'reaper', steps: { reap: (s) => reap(s.db) } },
        heartbeat: {
          role: 'scheduler',
          steps: { beat: (s, { id, claimed }) => heartbeat(s.db, { ids: [id], epochs: [claimed.claim_epoch], leaseMs: 60_000 }) },
        },
      },
    })
    expect(report.orders).toBe(30)
  })

  test('release against reaper and stage: handed back, taken back or staged, and one of them only', async () => {
    await interleave(
      meet(['release', 'stage'], async (db, _context, done) => {
        const released = done.value<unknown[]>('release.release').length
        if (before(done.trace, 'stage.commit', 'release.release')) expect(released).toBe(0)
        const [applied] = await applyOutcomes(db, { afterSeq: '0', limit: 10 })
        expect((await instances(db))[0]?.status).toBe(released === 1 ? 'runnable' : 'done')
        expect(applied?.applied).toBe(released === 1 ? 0 : 1)
      }),
    )
    await interleave(
      meet(['release', 'reaper'], async (db) => expect((await instances(db))[0]).toMatchObject({ status: 'runnable', claimed_by: null })),
    )
  })
})

describe('R4: the same worker claims again while its orphan finishes, in every order', () => {
  const orphan = (
    applyStatement: typeof applyOutcomes | ((db: Db, params: { afterSeq: string; limit: number }) => Promise<AppliedRow[]>),
  ): Interleaving<Claimed> => ({
    database,
    setup: async (db) => {
      const context = await expiredClaim(db)
      // In time to be staged; the claim is lost before it is applied.
      await stageOutcomes(db, { worker: 'w', outcomes: [outcome(context.claimed, { kind: 'done' })] })
      await sql`UPDATE holdfast.instance SET status = 'runnable', claimed_by = NULL, lease_expires_at = NULL`.execute(db)
      return context
    },
    sessions: {
      flush: {
        steps: {
          begin: (s) => s.begin(),
          apply: (s, context) => apply(s, context, applyStatement),
          riders: (s, context) => riders(s, context),
          commit: (s) => s.commit(),
        },
      },
      again: { role: 'scheduler', steps: { begin: (s) => s.begin(), claim: (s) => take(s.db, 'w'), commit: (s) => s.commit() } },
    },
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      expect(await instances(db)).toMatchObject([{ status: 'executing', claim_epoch: '2', claimed_by: 'w' }])
      expect(done.value<AppliedRow>('flush.apply')).toMatchObject({ taken: 1, applied: 0 })
      await expectInvariants(db)
    },
  })

  test('the orphan outcome is stale and the new claim stands', async () => {
    expect((await interleave(orphan(applyOutcomes))).orders).toBe(35)
  })
  test('fenced by the lease alone, as a worker name would, the orphan ends an instance that is being run again', async () => {
    await expectInterleavingToFail(orphan(mutated(applyOutcomes, ['AND g.claim_epoch = o.claim_epoch ', ''])))
  })
})
