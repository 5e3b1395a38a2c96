// A step's own transaction (`ctx.commit`), and outcomes that a scheduler applies itself: sent twice, too late, beside a reaper or a person.
import type { InstanceId, OutcomeKind, ProjectId } from '@holdfast/contracts'
import {
  type AppliedRow,
  applyGiven,
  applyRiders,
  cancelInstances,
  type ClaimedRow,
  deliverSignalById,
  lockClaim,
  reapExpired,
  ridersOf,
  ridersOfEnded,
  type StagedOutcome,
} from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { expectInterleavingToFail, type Interleaving, interleave, mutated, type Session } from '@holdfast/testbed/interleave'
import { sql } from 'kysely'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  applyDirectly,
  expectInvariants,
  flushOnce,
  gate,
  insert,
  instances,
  outcome,
  project,
  ranBefore,
  rate,
  slots,
  stage,
  take,
} from './races.ts'

let database: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
  // What a developer's step writes.
  await sql`CREATE TABLE public.effect (instance_id bigint NOT NULL, note text NOT NULL)`.execute(database.db)
  await sql`GRANT SELECT, INSERT ON public.effect TO holdfast_scheduler`.execute(database.db)
})
afterAll(async () => {
  await database[Symbol.asyncDispose]()
})

interface Running {
  readonly projectId: ProjectId
  readonly id: InstanceId
  readonly claimed: ClaimedRow
}
const running = async (db: Db): Promise<Running> => {
  await sql`DELETE FROM public.effect`.execute(db)
  const projectId = await project(db)
  const [id] = (await insert(db, projectId)) as [InstanceId]
  const [claimed] = (await take(db, 'w')) as [ClaimedRow]
  await sql`UPDATE holdfast.instance SET lease_expires_at = now() - interval '1 second'`.execute(db)
  return { projectId, id, claimed }
}
const effects = async (db: Db) => (await sql`SELECT FROM public.effect`.execute(db)).rows.length

describe.each(['staged', 'direct'] as const)('R4, N22: a step commits its own writes (%s), in every order', (flush) => {
  /** `ctx.commit`: nothing is written where the claim is over; the step hears of it. */
  const committing = (
    lock: typeof lockClaim | ReturnType<typeof mutated<Parameters<typeof lockClaim>[1], { id: InstanceId }>> = lockClaim,
  ) => {
    let lost = false
    return {
      lock: async (s: Session, { id, claimed }: Running) => {
        await s.begin()
        lost = (await lock(s.db, { id, claimEpoch: claimed.claim_epoch })).length === 0
        return !lost
      },
      write: async (s: Session, { id }: Running) => {
        if (!lost) await sql`INSERT INTO public.effect VALUES (${id}::bigint, 'written')`.execute(s.db)
      },
      answer: async (s: Session, { claimed }: Running) => {
        if (lost) return false
        const done = outcome(claimed, { kind: 'done' })
        const landed = flush === 'direct' ? (await applyDirectly(s.db, [done])).applied : (await stage(s.db, done)).length
        lost = landed === 0
        return !lost
      },
      commit: (s: Session) => (lost ? s.rollback() : s.commit()),
    }
  }
  const role = flush === 'direct' ? ('direct-scheduler' as const) : ('scheduler' as const)
  const against = (other: Interleaving<Running>['sessions'][string], lock?: Parameters<typeof committing>[0]): Interleaving<Running> => ({
    database,
    setup: running,
    sessions: { step: { role, steps: committing(lock) }, other },
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      await flushOnce(db)
      const [row] = await instances(db)
      // Both or neither, and once: who runs it again where it was taken back will write then.
      expect([await effects(db), row?.status === 'done']).toEqual(row?.status === 'done' ? [1, true] : [0, false])
      expect(done.value('step.answer')).toBe(row?.status === 'done')
      await expectInvariants(db)
    },
  })
  const reaper = {
    role: 'reaper' as const,
    steps: {
      reap: (s: Session) => s.begin().then(() => reapExpired(s.db, { limit: 10, defaultMaxReclaims: 5 })),
      commit: (s: Session) => s.commit(),
    },
  }
  const person = {
    role: 'api' as const,
    steps: {
      cancel: async (s: Session, { projectId, id }: Running) => {
        await s.begin()
        const rows = await cancelInstances(s.db, { ids: [id], projectId, reason: null })
        const follow = ridersOfEnded(rows)
        if (follow !== undefined) await applyRiders(s.db, follow)
      },
      commit: (s: Session) => s.commit(),
    },
  }

  test('beside a reaper that takes its claim back', async () => {
    expect((await interleave(against(reaper))).orders).toBe(15)
  })
  test('beside somebody who cancels it', async () => {
    const given = against(person)
    const report = await interleave({
      ...given,
      check: async (db, context, done) => {
        await given.check(db, context, done)
        // Asked to stop first, it writes nothing; later, the person finds it ended, or about to.
        if (ranBefore(done.trace, 'other.commit', 'step.lock')) expect(await effects(db)).toBe(0)
      },
    })
    expect(report.orders).toBe(15)
    expect(report.withWaits).toBeGreaterThan(0)
  })
  test('without the lock on its claim its writes may be committed, and its answer not', async () => {
    // Staged, a reaper that has looked before the outcome was there runs the step again.
    const unlocked = mutated(lockClaim, ['FOR NO KEY UPDATE', ''])
    const given = against(reaper, unlocked)
    await expectInterleavingToFail({
      ...given,
      check: async (db, context, done) => {
        // A step that does not look at whether its answer has landed, as one with a connection of its own would.
        if (flush === 'direct') expect(done.value('step.answer')).toBe(done.value('step.lock'))
        await given.check(db, context, done)
      },
    })
  })
})

describe('N22: outcomes of a scheduler that applies them itself, sent twice because a commit was not answered, in every order', () => {
  const kinds: Readonly<Record<OutcomeKind, Partial<StagedOutcome>>> = {
    next: { step: 'more' },
    sleep: { step: 'more', delayMs: 60_000 },
    retry: { delayMs: 0 },
    await_signal: { step: 'woken', awaits: ['go'] },
    spawn: { step: 'joined', children: '[{"machine":"m"},{"machine":"m"}]' },
    continue_as: { step: 'more', version: 2 },
    done: {},
    fail: { error: '{"code":"failed","message":"no"}' },
    cancel: { error: '{"code":"cancelled","message":"by itself"}' },
  }
  interface Sent {
    readonly id: InstanceId
    readonly parent: InstanceId
    readonly answer: StagedOutcome
  }
  const results = new Map<string, AppliedRow>()
  beforeEach(() => results.clear())
  type Apply = (db: Db, params: Parameters<typeof applyGiven>[1]) => Promise<AppliedRow[]>
  /** A child with a slot, an inbox of which it was shown one signal, and a parent that waits for it and one other. */
  const twice = (
    answer: Partial<StagedOutcome> & { kind: OutcomeKind },
    goesOn: boolean,
    statement: Apply = applyGiven,
  ): Interleaving<Sent> => {
    const send = (name: string) => ({
      role: 'direct-scheduler' as const,
      steps: {
        apply: async (s: Session, context: Sent) => {
          await s.begin()
          const [applied] = await statement(s.db, { worker: 'w', outcomes: [context.answer], goesOn: [goesOn], leaseMs: 60_000 })
          results.set(name, applied!)
        },
        riders: async (s: Session) => {
          const follow = ridersOf(results.get(name)!)
          if (follow !== undefined) await applyRiders(s.db, follow)
        },
        commit: (s: Session) => s.commit(),
      },
    })
    return {
      database,
      setup: async (db) => {
        const projectId = await project(db)
        await gate(db, projectId, 1)
        const [parent] = (await insert(db, projectId)) as [InstanceId]
        const [spawning] = (await take(db, 'w')) as [ClaimedRow]
        const children = JSON.stringify([
          { machine: 'm', concurrency_key: 'g' },
          { machine: 'm', queue: 'other' },
        ])
        await stage(db, outcome(spawning, { kind: 'spawn', step: 'joined', children }))
        await flushOnce(db)
        const [claimed] = (await take(db, 'w')) as [ClaimedRow]
        await deliverSignalById(db, { projectId, id: claimed.id, name: 'seen', payload: '{}' })
        await deliverSignalById(db, { projectId, id: claimed.id, name: 'later', payload: '{}' })
        const { rows } = await sql<{ id: string }>`SELECT id FROM holdfast.signal ORDER BY id LIMIT 1`.execute(db)
        const consumed = ['next', 'sleep', 'spawn', 'continue_as'].includes(answer.kind) ? [rows[0]!.id] : undefined
        return { id: claimed.id, parent, answer: outcome(claimed, { heldKey: 'g', consumed, ...answer }) }
      },
      sessions: { first: send('first'), second: send('second') },
      check: async (db, { id, parent, answer: sent }, done) => {
        expect(done.errors).toEqual([])
        expect([...results.values()].reduce((sum, { applied }) => sum + applied, 0)).toBe(1)
        const ends = ['done', 'fail', 'cancel'].includes(sent.kind)
        const rows = await instances(db)
        const row = rows.find((each) => each.id === id)
        expect(row?.claim_epoch).toBe(goesOn ? '2' : '1')
        // Counted once, spawned once, consumed once, freed once.
        const { rows: pending } = await sql<{
          n: number
        }>`SELECT children_pending AS n FROM holdfast.instance WHERE id = ${parent}::bigint`.execute(db)
        expect(pending[0]?.n).toBe(ends ? 1 : 2)
        expect(rows).toHaveLength(sent.kind === 'spawn' ? 5 : 3)
        const { rows: inbox } = await sql`SELECT FROM holdfast.signal`.execute(db)
        expect(inbox).toHaveLength(ends ? 0 : sent.consumed === undefined ? 2 : 1)
        expect((await slots(db)).map(({ holder_id, holder_epoch }) => [holder_id, holder_epoch])).toEqual([
          goesOn ? [id, '2'] : [null, null],
        ])
        const { rows: history } = await sql`SELECT FROM holdfast.transition WHERE instance_id = ${id}::bigint`.execute(db)
        expect(history).toHaveLength(1)
        await expectInvariants(db)
      },
    }
  }
  test.each(Object.keys(kinds) as OutcomeKind[])('%s: applied once', async (kind) => {
    expect((await interleave(twice({ kind, ...kinds[kind] }, false))).orders).toBe(20)
  })
  test('R10: a step that goes on inline: it goes on once, with its slot', async () => {
    await interleave(twice({ kind: 'next', step: 'more' }, true))
  })
  test('without the fence it is applied twice', async () => {
    const unfenced = mutated(applyGiven, [
      /AND g\.claim_epoch = o\.claim_epoch AND g\.lease_expires_at IS NOT NULL\n {4}AND NOT/,
      'AND NOT',
    ])
    await expectInterleavingToFail(twice({ kind: 'next', step: 'more' }, true, unfenced))
  })
})

describe('R4: an outcome that comes after its claim was taken back and made again, applied directly', () => {
  const late: Readonly<Record<OutcomeKind, Partial<StagedOutcome>>> = {
    next: { step: 'more' },
    sleep: { step: 'more', delayMs: 60_000 },
    retry: { delayMs: 0 },
    await_signal: { step: 'woken', awaits: ['go'] },
    spawn: { step: 'joined', children: '[{"machine":"m"}]' },
    continue_as: { step: 'more', version: 2 },
    done: { discard: true },
    fail: { error: '{"code":"failed","message":"no"}' },
    cancel: { error: '{"code":"cancelled","message":"by itself"}' },
  }
  test.each(Object.keys(late) as OutcomeKind[])('%s: commits, consumes, counts down, spawns and frees nothing', async (kind) => {
    const { db } = database
    await sql`DELETE FROM holdfast.cascade; DELETE FROM holdfast.signal; DELETE FROM holdfast.signal_receipt; DELETE FROM holdfast.instance; DELETE FROM holdfast.transition; DELETE FROM holdfast.gate_slot;
      DELETE FROM holdfast.limit_policy; DELETE FROM holdfast.project`.execute(db)
    const projectId = await project(db)
    await gate(db, projectId, 1)
    await rate(db, projectId)
    const [id] = (await insert(db, projectId, { concurrencyKey: 'g' })) as [InstanceId]
    const [orphan] = (await take(db, 'w')) as [ClaimedRow]
    await deliverSignalById(db, { projectId, id, name: 'seen', payload: '{}' })
    await sql`UPDATE holdfast.instance SET lease_expires_at = now() - interval '1 second'`.execute(db)
    await reapExpired(db, { limit: 10, defaultMaxReclaims: 5 })
    await take(db, 'w') // the same worker, again
    const { rows: signals } = await sql<{ id: string }>`SELECT id FROM holdfast.signal`.execute(db)
    const before = await sql`SELECT g.*, s.holder_epoch FROM holdfast.instance g, holdfast.gate_slot s`.execute(db)
    const applied = await db
      .transaction()
      .execute((trx) =>
        applyDirectly(trx, [outcome(orphan, { kind, heldKey: 'g', consumed: [signals[0]!.id], ...late[kind] })], [kind === 'next']),
      )
    expect(applied).toMatchObject({
      taken: 1,
      applied: 0,
      continued: null,
      ended: null,
      consumed: null,
      spawned: null,
      joined: null,
      freed: null,
    })
    expect((await sql`SELECT g.*, s.holder_epoch FROM holdfast.instance g, holdfast.gate_slot s`.execute(db)).rows).toEqual(before.rows)
    expect((await sql`SELECT FROM holdfast.signal`.execute(db)).rows).toHaveLength(1)
    expect((await sql`SELECT FROM holdfast.transition`.execute(db)).rows).toHaveLength(0)
    await expectInvariants(db)
  })
})
