// Cancelling and retrying by a person, against everything that moves an instance at the same time.
import type { InstanceId, OutcomeKind, ProjectId } from '@holdfast/contracts'
import {
  type AppliedRow,
  applyOutcomes,
  applyRiders,
  type CancelledRow,
  cancelInstances,
  cancelOverdue,
  type ClaimedRow,
  deliverSignalById,
  enqueue,
  isLostRace,
  promoteDue,
  reapExpired,
  retryInstances,
  ridersOfEnded,
  type StagedOutcome,
  wakeWaiters,
} from '@holdfast/queries'
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
  flushSteps,
  insert,
  instances,
  outcome,
  project,
  ranBefore,
  retried,
  riders,
  stage,
  take,
  wakeFreed,
} from './races.ts'

let database: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
})
afterAll(async () => {
  await database[Symbol.asyncDispose]()
})

type Cancel = (db: Db, params: Parameters<typeof cancelInstances>[1]) => Promise<CancelledRow[]>
interface One {
  readonly projectId: ProjectId
  readonly id: InstanceId
  readonly claimed?: ClaimedRow | undefined
  applied?: AppliedRow | undefined
}
/** What a cancellation is: its statement and what follows, in a transaction; what its commit frees, after it. */
const cancelSteps = (statement: Cancel = cancelInstances) => {
  let cancelled: readonly CancelledRow[] = []
  return {
    begin: (s: Session) => s.begin(),
    cancel: async (s: Session, { projectId, id }: One) => {
      cancelled = await statement(s.db, { ids: [id], projectId, reason: 'enough' })
      const follow = ridersOfEnded(cancelled)
      if (follow !== undefined) await applyRiders(s.db, follow)
      return cancelled
    },
    commit: (s: Session) => s.commit(),
    wake: async (s: Session) => {
      const keys = cancelled.flatMap(({ status, project_id: projectId, concurrency_key: key }) =>
        status === 'executing' || key === null ? [] : [{ projectId, key }],
      )
      if (keys.length > 0) await wakeWaiters(s.db, { keys })
    },
  }
}
const { wake: _wake, ...cancelOnly } = cancelSteps()
const request = async (db: Db, id: InstanceId) => {
  const { rows } = await sql<{ status: string; asked: boolean; epoch: string }>`
    SELECT status, cancel_requested_at IS NOT NULL AS asked, claim_epoch AS epoch FROM holdfast.instance WHERE id = ${id}::bigint`.execute(
    db,
  )
  return rows[0]
}
const running = async (db: Db, more: Parameters<typeof insert>[2] = {}): Promise<One & { claimed: ClaimedRow }> => {
  const projectId = await project(db)
  const [id] = (await insert(db, projectId, more)) as [InstanceId]
  const [claimed] = (await take(db, 'w')) as [ClaimedRow]
  return { projectId, id, claimed }
}

test('cancel against claim, in every order: it never runs, or it runs and has been asked to stop', async () => {
  const given = (statement: Cancel = cancelInstances): Interleaving<One> => ({
    database,
    setup: async (db) => {
      const projectId = await project(db)
      const [id] = (await insert(db, projectId)) as [InstanceId]
      return { projectId, id }
    },
    sessions: {
      person: { role: 'api', steps: { ...cancelOnly, cancel: cancelSteps(statement).cancel } },
      claimer: { role: 'scheduler', steps: claimSteps('claimer') },
    },
    check: async (db, { id }, done) => {
      expect(done.errors).toEqual([])
      const row = await request(db, id)
      expect(row).toMatchObject(row?.status === 'executing' ? { asked: true, epoch: '1' } : { status: 'cancelled', epoch: '0' })
      await expectInvariants(db)
    },
  })
  const report = await interleave(given())
  expect(report.orders).toBe(35)
  expect(report.withWaits).toBeGreaterThan(0)
  // Decided by what the snapshot shows instead of by the row as it is under the lock: a running step's claim would be taken from under it.
  const bySnapshot = mutated(
    cancelInstances,
    [`status = CASE WHEN g.lease_expires_at IS NULL THEN 'cancelled' ELSE 'executing' END`, `status = target.as_seen`],
    [
      'SELECT t.id\n  FROM (SELECT DISTINCT id',
      `SELECT t.id, (SELECT CASE WHEN x.lease_expires_at IS NULL THEN 'cancelled' ELSE 'executing' END
    FROM holdfast.instance x WHERE x.id = t.id) AS as_seen\n  FROM (SELECT DISTINCT id`,
    ],
  )
  await expectInterleavingToFail({ ...given(bySnapshot), onlyTheRace: true })
})

describe('cancel against the flush of each outcome, in every order', () => {
  const kinds: Readonly<Record<Exclude<OutcomeKind, never>, Partial<StagedOutcome>>> = {
    next: { step: 'more' },
    sleep: { step: 'more', delayMs: 60_000 },
    retry: { delayMs: 0 },
    await_signal: { step: 'woken', awaits: ['go'], timeoutMs: 60_000 },
    spawn: { step: 'joined', children: '[{"machine":"m"},{"machine":"m"}]', timeoutMs: 60_000 },
    continue_as: { step: 'more', version: 2 },
    done: {},
    fail: { error: '{"code":"failed","message":"no"}' },
    cancel: { error: '{"code":"cancelled","message":"by itself"}' },
  }
  const against = (
    kind: OutcomeKind,
    statement: typeof applyOutcomes | ReturnType<typeof mutated<Parameters<typeof applyOutcomes>[1], AppliedRow>> = applyOutcomes,
  ): Interleaving<One> => ({
    database,
    setup: async (db) => {
      const context = await running(db)
      await stage(db, outcome(context.claimed, { kind, ...kinds[kind] }))
      return context
    },
    sessions: {
      flush: {
        role: 'flusher',
        steps: {
          apply: async (s, context) => {
            await s.begin()
            return apply(s, context, statement)
          },
          riders,
          commit: (s) => s.commit(),
        },
      },
      person: { role: 'api', steps: cancelOnly },
    },
    check: async (db, { id }, done) => {
      expect(done.errors).toEqual([])
      const row = await request(db, id)
      // An end by itself counts; everything else ends as cancelled, whichever was first.
      const ends: Partial<Record<OutcomeKind, string>> = { done: 'done', fail: 'failed' }
      expect(row).toMatchObject({ status: ends[kind] ?? 'cancelled', epoch: '1' })
      const found = done.value<CancelledRow[]>('person.cancel').length
      if (ranBefore(done.trace, 'flush.commit', 'person.cancel'))
        expect(found).toBe(kind === 'done' || kind === 'fail' || kind === 'cancel' ? 0 : 1)
      await expectInvariants(db)
    },
  })
  test.each(Object.keys(kinds) as OutcomeKind[])('%s', async (kind) => {
    expect((await interleave(against(kind))).orders).toBe(20)
  })
  test.each(['await_signal', 'spawn'] as const)(
    '%s: were its park applied to one that ends, it would wait for something after its end',
    async (kind) => {
      const leaving = mutated(
        applyOutcomes,
        ['awaits = CASE WHEN g.cancel_requested_at IS NULL AND NOT', 'awaits = CASE WHEN NOT'],
        [
          "children_pending = CASE WHEN o.kind = 'spawn' AND g.cancel_requested_at IS NULL AND NOT",
          "children_pending = CASE WHEN o.kind = 'spawn' AND NOT",
        ],
      )
      const report = await expectInterleavingToFail(against(kind, leaving))
      expect(String(report.failures[0]?.error)).toContain('E14')
    },
  )
  test('without a second look at the request, one that was asked to stop goes on', async () => {
    await expectInterleavingToFail(
      against(
        'next',
        mutated(applyOutcomes, [
          `WHEN o.kind = 'cancel' OR g.cancel_requested_at IS NOT NULL THEN 'cancelled'`,
          `WHEN o.kind = 'cancel' THEN 'cancelled'`,
        ]),
      ),
    )
  })
})

test('cancel against a signal, in every order: delivered before the end and gone with it, or refused', async () => {
  const report = await interleave<One>({
    database,
    setup: async (db) => {
      const context = await running(db)
      await stage(db, outcome(context.claimed, { kind: 'await_signal', step: 'woken', awaits: ['go'] }))
      await flushOnce(db)
      return context
    },
    sessions: {
      person: { role: 'api', steps: cancelOnly },
      sender: {
        role: 'api',
        steps: {
          begin: (s) => s.begin(),
          send: (s, { projectId, id }) => deliverSignalById(s.db, { projectId, id, name: 'go', payload: '{}', dedupKey: 'k' }),
          commit: (s) => s.commit(),
        },
      },
    },
    check: async (db, { id }, done) => {
      expect(done.errors).toEqual([])
      expect(await request(db, id)).toMatchObject({ status: 'cancelled' })
      const [delivered] = done.value<{ target_id: string | null }[]>('sender.send')
      if (ranBefore(done.trace, 'person.commit', 'sender.send')) expect(delivered?.target_id).toBeNull()
      const { rows } = await sql`SELECT FROM holdfast.signal`.execute(db)
      expect(rows).toHaveLength(0)
      await expectInvariants(db)
    },
  })
  expect(report.orders).toBe(20)
})

test('cancel against the reaper and against the end of its grace, in every order: ended once', async () => {
  for (const [name, reap] of [
    ['expired', (db: Db) => reapExpired(db, { limit: 10, defaultMaxReclaims: 5 })],
    ['overdue', (db: Db) => cancelOverdue(db, { graceMs: 0, limit: 10 })],
  ] as const) {
    const report = await interleave<One>({
      database,
      setup: async (db) => {
        const context = await running(db)
        await sql`UPDATE holdfast.instance SET lease_expires_at = now() - interval '1 second'`.execute(db)
        if (name === 'overdue') await cancelInstances(db, { ids: [context.id], projectId: context.projectId, reason: null })
        return context
      },
      sessions: {
        person: { role: 'api', steps: cancelOnly },
        reaper: {
          role: 'reaper',
          steps: {
            begin: (s) => s.begin(),
            reap: async (s) => {
              const ended = await reap(s.db)
              const follow = ridersOfEnded(ended)
              if (follow !== undefined) await applyRiders(s.db, follow)
              return ended
            },
            commit: (s) => s.commit(),
          },
        },
      },
      check: async (db, { id }, done) => {
        expect(done.errors).toEqual([])
        const row = await request(db, id)
        const reaped = done.value<unknown[]>('reaper.reap').length
        // Skipped because the person held it: the next sweep ends it. Otherwise whoever was second has found what the first left.
        expect(row).toMatchObject(reaped === 0 ? { status: 'executing', asked: true } : { status: 'cancelled', epoch: '1' })
        await expectInvariants(db)
      },
    })
    expect(report.orders).toBe(20)
  }
})

test('cancel of the one that stands first for a key, against the end of its holder, in every order: the next is awake', async () => {
  const report = await interleave<One>({
    database,
    setup: async (db) => {
      const { projectId, claimed } = await running(db, { concurrencyKey: 'k' })
      await stage(db, outcome(claimed, { kind: 'done', heldKey: 'k' }))
      const [id] = (await insert(db, projectId, { concurrencyKey: 'k' }, { concurrencyKey: 'k' })) as [InstanceId]
      await take(db, 'w') // parks both
      return { projectId, id }
    },
    sessions: {
      holder: {
        role: 'flusher',
        steps: {
          flush: async (s, context) => (context.applied = await flushOnce(s.db)),
          wake: (s, { applied }) => wakeFreed(s.db, applied),
        },
      },
      person: { role: 'api', steps: cancelSteps() },
    },
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      expect((await instances(db)).map(({ status }) => status)).toEqual(['done', 'cancelled', 'runnable'])
      await expectInvariants(db)
    },
  })
  expect(report.orders).toBe(15)
})

test('cancel of a scheduled one against its promotion, in every order', async () => {
  const report = await interleave<One>({
    database,
    setup: async (db) => {
      const projectId = await project(db)
      const [id] = (await insert(db, projectId, { delayMs: 1 })) as [InstanceId]
      await sql`UPDATE holdfast.instance SET eligible_at = now() - interval '1 second'`.execute(db)
      return { projectId, id }
    },
    sessions: {
      person: { role: 'api', steps: cancelOnly },
      timer: {
        role: 'reaper',
        steps: { begin: (s) => s.begin(), promote: (s) => promoteDue(s.db, { limit: 10 }), commit: (s) => s.commit() },
      },
    },
    check: async (db, { id }, done) => {
      expect(done.errors).toEqual([])
      expect(await request(db, id)).toMatchObject({ status: 'cancelled' })
      await expectInvariants(db)
    },
  })
  expect(report.orders).toBe(20)
})

test('cancel of a parent and its child at once, against the end of that child, in every order: a deadlock is lost by one side, and tried again', async () => {
  interface Both extends One {
    readonly child: ClaimedRow
  }
  const both = retried<Both>(async (db, { projectId, id, child }) => {
    const rows = await cancelInstances(db, { ids: [id, child.id], projectId, reason: null })
    const follow = ridersOfEnded(rows)
    if (follow !== undefined) await applyRiders(db, follow)
  })
  const report = await interleave<Both>({
    database,
    setup: async (db) => {
      const { projectId, id, claimed } = await running(db)
      await stage(db, outcome(claimed, { kind: 'spawn', step: 'joined', children: '[{"machine":"m"}]' }))
      await flushOnce(db)
      const [child] = (await take(db, 'w')) as [ClaimedRow]
      await stage(db, outcome(child, { kind: 'done' }))
      return { projectId, id, child }
    },
    sessions: {
      flush: {
        role: 'flusher',
        steps: { begin: flushSteps.begin, apply: flushSteps.apply, riders: retriedFlush, commit: flushSteps.commit },
      },
      person: { role: 'api', steps: { begin: (s) => s.begin(), cancel: both, commit: (s) => s.commit() } },
    },
    check: async (db, { id, child }, done) => {
      expect(done.errors).toEqual([])
      expect(await request(db, id)).toMatchObject({ status: 'cancelled' })
      expect(await request(db, child.id)).toMatchObject({ status: 'done' })
      await expectInvariants(db)
    },
  })
  expect(report.orders).toBe(35)
})
/** The flusher runs a transaction that has lost a race again from its beginning. */
async function retriedFlush(s: Session, context: { applied?: AppliedRow | undefined }): Promise<void> {
  try {
    await riders(s, context)
  } catch (error) {
    if (!isLostRace(error)) throw error
    await s.rollback()
    await s.begin()
    await apply(s, context)
    await riders(s, context)
  }
}

describe('N1: a retry by a person against a new instance of the same correlation key, in every order', () => {
  type Retry = (db: Db, params: Parameters<typeof retryInstances>[1]) => Promise<unknown[]>
  const isOccupied = (error: unknown) => error instanceof Error && 'constraint' in error && error.constraint === 'instance_correlation'
  let refused = 0
  const meeting = (retry: Retry = retryInstances): Interleaving<One> => ({
    database,
    setup: async (db) => {
      const context = await running(db, { correlationKey: 'order' })
      await stage(db, outcome(context.claimed, { kind: 'fail', error: '{"code":"failed","message":"no"}' }))
      await flushOnce(db)
      return context
    },
    sessions: {
      person: {
        role: 'api',
        steps: {
          begin: (s) => s.begin(),
          retry: async (s, { projectId, id }) => {
            try {
              return await retry(s.db, { ids: [id], projectId })
            } catch (error) {
              // The api's answer to a lost race: once more, from the beginning.
              if (!isOccupied(error)) throw error
              refused += 1
              await s.rollback()
              await s.begin()
              return retry(s.db, { ids: [id], projectId })
            }
          },
          commit: (s) => s.commit(),
        },
      },
      arrival: {
        role: 'api',
        steps: {
          begin: (s) => s.begin(),
          insert: (s, { projectId }) =>
            enqueue(s.db, { projectId, declaredOnly: false, instances: [{ machine: 'm', correlationKey: 'order' }] }),
          commit: (s) => s.commit(),
        },
      },
    },
    check: async (db, { id }, done) => {
      expect(done.errors).toEqual([])
      const rows = await instances(db)
      const live = rows.filter(({ status }) => status === 'runnable')
      expect(live).toHaveLength(1)
      expect(done.value<unknown[]>('person.retry')).toHaveLength(live[0]?.id === id ? 1 : 0)
      await expectInvariants(db)
    },
  })
  test('one of them has the key; the other finds it occupied', async () => {
    const report = await interleave(meeting())
    expect(report.orders).toBe(20)
    expect(report.withWaits).toBeGreaterThan(0)
    expect(refused).toBeGreaterThan(0) // by the unique index, where each had looked before the other was there
  })
  test('without its look at the occupant a retry is refused by the unique index, again and again', async () => {
    const blind = mutated(retryInstances, ['g.correlation_key IS NULL OR NOT EXISTS', 'true OR NOT EXISTS'])
    const report = await expectInterleavingToFail(meeting(blind))
    expect(String(report.failures[0]?.error)).toContain('23505')
  })
})
