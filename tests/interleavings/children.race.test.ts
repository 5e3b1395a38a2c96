// Spawns, joins and what races with them: reapers, deadlines, quorums, cancellations, retries.
import type { InstanceId, ProjectId } from '@holdfast/contracts'
import {
  type AppliedRow,
  applyGiven,
  applyRiders,
  cancelInstances,
  type ClaimedRow,
  claimById,
  fireAwaitDeadlines,
  reapExpired,
  retryInstances,
  ridersOf,
  ridersOfEnded,
} from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { expectInterleavingToFail, type Interleaving, interleave, mutated, type Session } from '@holdfast/testbed/interleave'
import { sql } from 'kysely'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import {
  applyDirectly,
  expectInvariants,
  flushOnce,
  flushSteps,
  insert,
  instances,
  MACHINES,
  outcome,
  project,
  ranBefore,
  stage,
  take,
} from './races.ts'

let database: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
})
afterAll(async () => {
  await database[Symbol.asyncDispose]()
})

interface Family {
  readonly projectId: ProjectId
  readonly parents: readonly InstanceId[]
  /** Claimed, in the order of their ids. */
  readonly children: readonly ClaimedRow[]
  applied?: AppliedRow | undefined
}
interface SpawnOptions {
  readonly parents?: number
  readonly each?: number
  readonly joinCount?: number
  readonly timeoutMs?: number
}
const childrenOf = (howMany: number) => JSON.stringify(Array.from({ length: howMany }, () => ({ machine: 'm' })))

/** Parents that wait for their children, which execute. */
async function family(db: Db, { parents = 1, each = 2, joinCount, timeoutMs }: SpawnOptions = {}): Promise<Family> {
  const projectId = await project(db)
  const ids = await insert(db, projectId, ...Array.from({ length: parents }, () => ({})))
  const claimed = await take(db, 'parents')
  await stage(
    db,
    ...claimed.map((row) => outcome(row, { kind: 'spawn', step: 'joined', children: childrenOf(each), joinCount, timeoutMs })),
  )
  await flushOnce(db)
  return { projectId, parents: ids, children: await take(db, 'children') }
}
const parent = async (db: Db, id: InstanceId) => {
  const { rows } = await sql<{ status: string; children_pending: number; claim_epoch: string }>`
    SELECT status, children_pending, claim_epoch FROM holdfast.instance WHERE id = ${id}::bigint`.execute(db)
  return rows[0]
}
const done = (row: ClaimedRow) => outcome(row, { kind: 'done' })
const begun = (step: (s: Session, context: Family) => Promise<unknown>) => async (s: Session, context: Family) => {
  await s.begin()
  return step(s, context)
}
const reap = (s: Session) => reapExpired(s.db, { limit: 10, defaultMaxReclaims: 5 })
/** A whole transaction of its own, of a scheduler that applies its outcomes itself; as its statements, so that others come between. */
const ending = (of: (context: Family) => readonly ClaimedRow[], ridersStatement: Riders = applyRiders) => {
  let applied: AppliedRow | undefined
  return {
    apply: async (s: Session, context: Family) => {
      await s.begin()
      ;[applied] = await applyGiven(s.db, { worker: 'w', outcomes: of(context).map(done), goesOn: [], leaseMs: 60_000 })
    },
    riders: async (s: Session) => {
      const follow = applied === undefined ? undefined : ridersOf(applied)
      if (follow !== undefined) await ridersStatement(s.db, follow)
    },
    commit: (s: Session) => s.commit(),
  }
}
type Riders = (db: Db, params: Parameters<typeof applyRiders>[1]) => Promise<unknown>

describe('R12: a spawn against the reaper on its parent, in every order', () => {
  interface Spawning {
    readonly parent: InstanceId
    applied?: AppliedRow | undefined
  }
  const spawning = (staged: boolean): Interleaving<Spawning> => ({
    database,
    setup: async (db) => {
      const projectId = await project(db)
      const [id] = (await insert(db, projectId)) as [InstanceId]
      const [claimed] = (await take(db, 'w')) as [ClaimedRow]
      await sql`UPDATE holdfast.instance SET lease_expires_at = now() - interval '1 second'`.execute(db)
      if (staged) await stage(db, outcome(claimed, { kind: 'spawn', step: 'joined', children: childrenOf(2) }))
      return { parent: id }
    },
    sessions: {
      reaper: { role: 'reaper', steps: { begin: (s) => s.begin(), reap, commit: (s) => s.commit() } },
      flush: staged
        ? { role: 'flusher', steps: flushSteps }
        : {
            role: 'direct-scheduler',
            steps: {
              begin: (s) => s.begin(),
              spawn: (s, context) =>
                applyDirectly(s.db, [
                  outcome({ id: context.parent, claim_epoch: '1' }, { kind: 'spawn', step: 'joined', children: childrenOf(2) }),
                ]),
              commit: (s) => s.commit(),
            },
          },
    },
    check: async (db, context, ended) => {
      expect(ended.errors).toEqual([])
      const rows = await instances(db)
      const spawned = rows.length - 1
      // All of it or nothing: no orphans of a parent that was taken back, no parent that waits for nobody.
      const [row] = rows
      expect([spawned, row?.status]).toEqual(spawned === 2 ? [2, 'awaiting_children'] : [0, 'runnable'])
      if (staged) expect(spawned).toBe(2)
      else if (ranBefore(ended.trace, 'reaper.reap', 'flush.spawn') && ended.value<unknown[]>('reaper.reap').length > 0)
        expect(spawned).toBe(0)
      expect(await parent(db, context.parent)).toMatchObject({ children_pending: spawned })
      await expectInvariants(db)
    },
  })
  test('staged: the parent waits for its children', async () => {
    expect((await interleave(spawning(true))).orders).toBe(35)
  })
  test('direct: the parent waits for its children, or is taken back and has none', async () => {
    expect((await interleave(spawning(false))).orders).toBe(20)
  })
})

describe('R13, N14: children that end in two flushes, in every order', () => {
  const twoEnds = (
    given: SpawnOptions,
    split: (children: readonly ClaimedRow[]) => readonly (readonly ClaimedRow[])[],
    riders?: Riders,
  ): Interleaving<Family> => ({
    database,
    setup: (db) => family(db, given),
    sessions: {
      a: { role: 'direct-scheduler', steps: ending(({ children }) => split(children)[0] ?? [], riders) },
      b: { role: 'direct-scheduler', steps: ending(({ children }) => split(children)[1] ?? [], riders) },
    },
    check: async (db, { parents }, ended) => {
      expect(ended.errors).toEqual([])
      for (const id of parents) expect(await parent(db, id)).toMatchObject({ status: 'runnable', children_pending: 0, claim_epoch: '1' })
      await expectInvariants(db)
    },
  })
  test('one parent: counted down to exactly 0, and woken once', async () => {
    const report = await interleave(twoEnds({ each: 2 }, ([first, second]) => [[first!], [second!]]))
    expect(report.orders).toBe(20)
    expect(report.withWaits).toBeGreaterThan(0)
  })
  test('two parents, one child of each in each flush: no deadlock', async () => {
    // Their children in turn: first of the one, first of the other.
    const split = (children: readonly ClaimedRow[]) => [
      children.filter((_, at) => at % 2 === 0),
      children.filter((_, at) => at % 2 === 1).toReversed(),
    ]
    await interleave(twoEnds({ parents: 2, each: 2 }, split))
  })
  test('a value carried over from before the lock instead of what the row holds: one end is lost', async () => {
    const carried = mutated(
      applyRiders,
      [
        'SELECT j.id, j.ended\n',
        'SELECT j.id, j.ended, (SELECT x.children_pending FROM holdfast.instance x WHERE x.id = j.id) AS pending\n',
      ],
      [
        'children_pending = greatest(g.children_pending - parent.ended, 0)',
        'children_pending = greatest(parent.pending - parent.ended, 0)',
      ],
      ['AND g.children_pending <= parent.ended THEN', 'AND parent.pending <= parent.ended THEN'],
    )
    await expectInterleavingToFail({ ...twoEnds({ each: 2 }, ([first, second]) => [[first!], [second!]], carried), onlyTheRace: true })
  })
})

describe('R14: the first child may be claimed and end while the flush of its spawn goes on, in every order', () => {
  test('it cannot end before its parent waits', async () => {
    const report = await interleave<Family>({
      database,
      setup: async (db) => {
        const projectId = await project(db)
        const parents = await insert(db, projectId)
        const claimed = await take(db, 'w')
        await stage(db, ...claimed.map((row) => outcome(row, { kind: 'spawn', step: 'joined', children: childrenOf(1) })))
        return { projectId, parents, children: [] }
      },
      sessions: {
        spawn: { role: 'flusher', steps: flushSteps },
        child: {
          role: 'direct-scheduler',
          steps: {
            claim: async (s, context) => void Object.assign(context, { children: await take(s.db, 'w') }),
            end: (s, { children }) => s.db.transaction().execute((trx) => applyDirectly(trx, children.map(done))),
          },
        },
      },
      check: async (db, { parents, children }, ended) => {
        expect(ended.errors).toEqual([])
        expect(await parent(db, parents[0]!)).toMatchObject(
          children.length === 1 ? { status: 'runnable', children_pending: 0 } : { status: 'awaiting_children', children_pending: 1 },
        )
        await expectInvariants(db)
      },
    })
    expect(report.orders).toBe(15)
  })
})

describe('a join: its deadline, its quorum and its last child, in every order', () => {
  test('a deadline against the last child: woken once, and the claim that follows is not disturbed', async () => {
    const report = await interleave<Family>({
      database,
      setup: async (db) => {
        const context = await family(db, { each: 1, timeoutMs: 1 })
        await sql`UPDATE holdfast.instance SET await_deadline = now() - interval '1 second' WHERE await_deadline IS NOT NULL`.execute(db)
        return context
      },
      sessions: {
        reaper: { role: 'reaper', steps: { fire: begun((s) => fireAwaitDeadlines(s.db, { limit: 10 })), commit: (s) => s.commit() } },
        child: { role: 'direct-scheduler', steps: ending(({ children }) => children) },
        next: { role: 'scheduler', steps: { claim: (s) => take(s.db, 'next') } },
      },
      check: async (db, { parents }, ended) => {
        expect(ended.errors).toEqual([])
        const row = await parent(db, parents[0]!)
        expect(row?.claim_epoch).toBe(row?.status === 'executing' ? '2' : '1')
        expect(['runnable', 'executing']).toContain(row?.status)
        await expectInvariants(db)
      },
    })
    expect(report.orders).toBe(60)
  })

  test('a quorum of two of three, reached by two flushes of which one brings two: woken once, and the late one changes nothing', async () => {
    const given: Interleaving<Family> = {
      database,
      setup: (db) => family(db, { each: 3, joinCount: 2 }),
      sessions: {
        a: { role: 'direct-scheduler', steps: ending(({ children }) => children.slice(0, 2)) },
        b: { role: 'direct-scheduler', steps: ending(({ children }) => children.slice(2)) },
        next: { role: 'scheduler', steps: { claim: (s) => take(s.db, 'next') } },
      },
      check: async (db, { parents }, ended) => {
        expect(ended.errors).toEqual([])
        const row = await parent(db, parents[0]!)
        expect(row).toMatchObject({ children_pending: 0 })
        expect(row?.claim_epoch).toBe(row?.status === 'executing' ? '2' : '1')
        expect(['runnable', 'executing']).toContain(row?.status)
        await expectInvariants(db)
      },
    }
    expect((await interleave(given)).orders).toBe(140)
  })

  test('a child of a spawn that its parent has left behind does not count towards the next', async () => {
    const late = (riders: Riders = applyRiders): Interleaving<Family> => ({
      database,
      setup: async (db) => {
        const context = await family(db, { each: 2, joinCount: 1 })
        const [first] = context.children
        await db.transaction().execute((trx) => applyDirectly(trx, [done(first!)]))
        const again = await take(db, 'again')
        await stage(db, ...again.map((row) => outcome(row, { kind: 'spawn', step: 'joined', children: childrenOf(1) })))
        return context
      },
      sessions: {
        spawn: { role: 'flusher', steps: flushSteps },
        late: { role: 'direct-scheduler', steps: ending(({ children }) => children.slice(1), riders) },
      },
      check: async (db, { parents }, ended) => {
        expect(ended.errors).toEqual([])
        expect(await parent(db, parents[0]!)).toMatchObject({ status: 'awaiting_children', children_pending: 1, claim_epoch: '2' })
        await expectInvariants(db)
      },
    })
    expect((await interleave(late())).orders).toBe(35)
    const unfenced = mutated(applyRiders, ['p.claim_epoch = j.epoch AND', 'j.epoch IS NOT NULL AND'])
    await expectInterleavingToFail(late(unfenced))
  })
})

describe('a child that failed and is retried by a person, against the end of its siblings, in every order', () => {
  /** One of two has failed; its parent waits for the other. */
  type Retry = (db: Db, params: Parameters<typeof retryInstances>[1]) => Promise<unknown>
  const retrying = (retry: Retry = retryInstances): Interleaving<Family> => ({
    database,
    setup: async (db) => {
      const context = await family(db, { each: 2 })
      const [first] = context.children
      await db
        .transaction()
        .execute((trx) => applyDirectly(trx, [outcome(first!, { kind: 'fail', error: '{"code":"failed","message":"no"}' })]))
      return context
    },
    sessions: {
      person: {
        role: 'direct-scheduler',
        steps: {
          retry: async (s, { projectId, children }) => {
            await asApi(s, (db) => retry(db, { ids: [children[0]!.id], projectId }))
          },
          run: (s, { children }) => claimById(s.db, { id: children[0]!.id, worker: 'again', leaseMs: 60_000, machines: MACHINES }),
          end: async (s, context) => {
            await s.db
              .transaction()
              .execute((trx) => applyDirectly(trx, [outcome({ id: context.children[0]!.id, claim_epoch: '2' }, { kind: 'done' })]))
          },
        },
      },
      sibling: { role: 'direct-scheduler', steps: ending(({ children }) => children.slice(1)) },
    },
    check: async (db, { parents }, ended) => {
      expect(ended.errors).toEqual([])
      expect(await parent(db, parents[0]!)).toMatchObject({ children_pending: 0 })
      await expectInvariants(db)
    },
  })
  /** Retrying is the api's. */
  const asApi = async (s: Session, work: (db: Db) => Promise<unknown>): Promise<void> => {
    await sql`SET ROLE holdfast_api`.execute(s.db)
    await work(s.db)
    await sql`SET ROLE holdfast_direct_scheduler`.execute(s.db)
  }

  test('it is counted once: its parent is woken by the other and not by its second end', async () => {
    const given = retrying()
    const report = await interleave({
      ...given,
      check: async (db, context, ended) => {
        await given.check(db, context, ended)
        // Before the sibling has ended the parent waits, whatever the retried one does.
        expect(await parent(db, context.parents[0]!)).toMatchObject({ status: 'runnable' })
      },
    })
    expect(report.orders).toBe(20)
    const alone = (one: Interleaving<Family>): Interleaving<Family> => ({
      ...one,
      sessions: { person: one.sessions['person']! },
      check: async (db, { parents }, ended) => {
        expect(ended.errors).toEqual([])
        expect(await parent(db, parents[0]!)).toMatchObject({ status: 'awaiting_children', children_pending: 1 })
        await expectInvariants(db)
      },
    })
    await interleave(alone(given))
    await expectInterleavingToFail(alone(retrying(mutated(retryInstances, [', parent_epoch = NULL', '']))))
  })
})

describe('a parent is cancelled while it spawns and while its children end, in every order', () => {
  const cancel = (role: Session, { projectId, parents }: Family) => cancelOnce(role.db, projectId, parents)
  const cancelOnce = async (db: Db, projectId: ProjectId, ids: readonly InstanceId[]) => {
    const rows = await cancelInstances(db, { ids, projectId, reason: 'enough' })
    const follow = ridersOfEnded(rows)
    if (follow !== undefined) await applyRiders(db, follow)
    return rows
  }
  const cancelling = { cancel: begun(cancel), commit: (s: Session) => s.commit() }
  const noted = async (db: Db) => (await sql`SELECT FROM holdfast.cascade`.execute(db)).rows.length

  test('against the flush of its spawn: no child is left that nobody cancels', async () => {
    const report = await interleave<Family>({
      database,
      setup: async (db) => {
        const projectId = await project(db)
        const parents = await insert(db, projectId)
        const claimed = await take(db, 'w')
        await stage(
          db,
          ...claimed.map((row) => outcome(row, { kind: 'spawn', step: 'joined', children: childrenOf(2), timeoutMs: 60_000 })),
        )
        return { projectId, parents, children: [] }
      },
      sessions: { flush: { role: 'flusher', steps: flushSteps }, person: { role: 'api', steps: cancelling } },
      check: async (db, { parents }, ended) => {
        expect(ended.errors).toEqual([])
        expect(await parent(db, parents[0]!)).toMatchObject({ status: 'cancelled', children_pending: 0 })
        const rows = await instances(db)
        // Asked to stop before its answer was applied, it spawns nothing; afterwards, its children are noted.
        expect([rows.length, await noted(db)]).toEqual(rows.length === 1 ? [1, 0] : [3, 1])
        await expectInvariants(db)
      },
    })
    expect(report.orders).toBe(15)
  })

  test('against the end of its children: counted or not, it is cancelled, and what is live of them is noted', async () => {
    const report = await interleave<Family>({
      database,
      setup: (db) => family(db, { each: 2 }),
      sessions: {
        child: { role: 'direct-scheduler', steps: ending(({ children }) => children.slice(0, 1)) },
        person: { role: 'api', steps: cancelling },
      },
      check: async (db, { parents }, ended) => {
        expect(ended.errors).toEqual([])
        expect(await parent(db, parents[0]!)).toMatchObject({ status: 'cancelled', children_pending: 0 })
        expect(await noted(db)).toBe(1)
        await expectInvariants(db)
      },
    })
    expect(report.orders).toBe(10)
  })
})
