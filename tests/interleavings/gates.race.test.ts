// Gates: claims that meet at a key's slots, policies that change between, slots that are freed by whatever ends a claim and swept when idle.
import type { InstanceId, ProjectId } from '@holdfast/contracts'
import {
  type AppliedRow,
  type ClaimedRow,
  claim,
  putGate,
  reapExpired,
  releaseClaims,
  removeIdleSlots,
  wakeWaiters,
} from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { expectInterleavingToFail, type Interleaving, interleave, mutated, type Session } from '@holdfast/testbed/interleave'
import { sql } from 'kysely'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import {
  applyDirectly,
  claimSteps,
  expectInvariants,
  flushOnce,
  flushSteps,
  gate,
  insert,
  instances,
  MACHINES,
  outcome,
  project,
  ranBefore,
  type Row,
  slots,
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

type Claim = (db: Db, worker: string) => Promise<ClaimedRow[]>
interface Gated {
  readonly projectId: ProjectId
}
const executing = (rows: readonly Row[]): Row[] => rows.filter(({ status }) => status === 'executing')
const oneAtATime =
  (statement: typeof claim | ReturnType<typeof mutated<Parameters<typeof claim>[1], ClaimedRow>>): Claim =>
  (db, worker) =>
    statement(db, { queue: 'default', limit: 1, worker, leaseMs: 60_000, machines: MACHINES })

/** Two claims that each find a row of the gate's key, of which `free` may execute beside the `before` that do. */
const twoClaims = (claimOnce: Claim, { before, capacity }: { before: number; capacity: number }, on = database): Interleaving<Gated> => ({
  database: on,
  setup: async (db) => {
    const projectId = await project(db)
    await gate(db, projectId, capacity)
    if (before > 0) {
      await insert(db, projectId, ...Array.from({ length: before }, () => ({ concurrencyKey: 'g:x' })))
      await take(db, 'before')
    }
    await insert(db, projectId, { concurrencyKey: 'g:x' }, { concurrencyKey: 'g:x' })
    return { projectId }
  },
  sessions: {
    a: { role: 'scheduler', steps: claimSteps('a', claimOnce) },
    b: { role: 'scheduler', steps: claimSteps('b', claimOnce) },
  },
  check: async (db, _context, done) => {
    expect(done.errors).toEqual([])
    const rows = await instances(db)
    expect(executing(rows)).toHaveLength(capacity)
    expect((await slots(db)).map(({ slot, holder_id }) => [slot, holder_id !== null])).toEqual(
      Array.from({ length: capacity }, (_, slot) => [slot, true]),
    )
    await expectInvariants(db)
  },
})

describe('R7, R9: two claims at one gate, in every order', () => {
  test('cold, one may: the slot is made once, with its holder in it', async () => {
    const report = await interleave(twoClaims(oneAtATime(claim), { before: 0, capacity: 1 }))
    expect(report.orders).toBe(70)
    expect(report.withWaits).toBeGreaterThan(0) // for the entry that the other has made and not committed
  })
  test('cold, both may: each gets a slot', async () => {
    await interleave(twoClaims(oneAtATime(claim), { before: 0, capacity: 2 }))
  })
  test('warm, with one slot free', async () => {
    const freed: Interleaving<Gated> = twoClaims(oneAtATime(claim), { before: 2, capacity: 2 })
    const report = await interleave({
      ...freed,
      setup: async (db) => {
        const context = await freed.setup(db)
        const [first] = await instances(db)
        await releaseClaims(db, { ids: [first!.id], epochs: ['1'] })
        return context
      },
    })
    expect(report.orders).toBe(70)
  })

  test('without the primary key of slots, both make the same one', async () => {
    await using other = await testDatabase()
    await sql`ALTER TABLE holdfast.gate_slot DROP CONSTRAINT gate_slot_pkey`.execute(other.db)
    await expectInterleavingToFail({ ...twoClaims(oneAtATime(claim), { before: 0, capacity: 1 }, other), onlyTheRace: true })
  })
  test('without the lock on free slots, both take the same one', async () => {
    const unlocked = mutated(claim, ['LIMIT l.wanted + above.held FOR NO KEY UPDATE SKIP LOCKED', 'LIMIT l.wanted + above.held'])
    const given = twoClaims(oneAtATime(unlocked), { before: 2, capacity: 2 })
    await expectInterleavingToFail({
      ...given,
      onlyTheRace: true,
      setup: async (db) => {
        const context = await given.setup(db)
        const [first] = await instances(db)
        await releaseClaims(db, { ids: [first!.id], epochs: ['1'] })
        return context
      },
    })
  })
})

describe('R7, R28: the capacity changes while claims race, in every order', () => {
  /** `held` execute, all of capacity `from`, and the first of them ends; then it becomes `to`. */
  const changing = (from: number, to: number, claimOnce: Claim = take): Interleaving<Gated> => ({
    database,
    setup: async (db) => {
      const projectId = await project(db)
      await gate(db, projectId, from)
      await insert(db, projectId, ...Array.from({ length: from }, () => ({ concurrencyKey: 'g' })))
      const [first] = await take(db, 'before')
      await releaseClaims(db, { ids: [first!.id], epochs: [first!.claim_epoch] })
      await insert(db, projectId, ...Array.from({ length: 4 }, () => ({ concurrencyKey: 'g' })))
      return { projectId }
    },
    sessions: {
      policy: {
        role: 'api',
        steps: {
          put: (s, { projectId }) => putGate(s.db, { projectId, name: 'g', capacity: to }),
          wake: (s, { projectId }) => wakeWaiters(s.db, { keys: [{ projectId, key: 'g' }] }),
        },
      },
      a: { role: 'scheduler', steps: claimSteps('a', claimOnce) },
      b: { role: 'scheduler', steps: { claim: (s) => claimOnce(s.db, 'b') } },
    },
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      const now = executing(await instances(db)).length
      const [beforeA, beforeB] = ['a.claim', 'b.claim'].map((step) => ranBefore(done.trace, step, 'policy.put'))
      expect(now).toBeLessThanOrEqual(Math.max(from, to))
      if (!beforeA && !beforeB) expect(now).toBe(Math.max(from - 1, to)) // what executed goes on, and nothing beyond the new one is added
      await expectInvariants(db)
    },
  })

  test('lowered: what executes goes on, and nothing is admitted beside it', async () => {
    expect((await interleave(changing(3, 1))).orders).toBe(105)
  })
  test('raised: as many more', async () => {
    await interleave(changing(2, 4))
  })
  test('without counting those that hold a slot beyond the new capacity, one more is admitted beside them', async () => {
    const blind = mutated(claim, [' - g.held_above', ''])
    await expectInterleavingToFail(
      changing(3, 1, (db, worker) => blind(db, { queue: 'default', limit: 10, worker, leaseMs: 60_000, machines: MACHINES })),
    )
  })
})

describe('N3, N4, N12: whatever ends a claim frees its slot once, in every order', () => {
  interface Held extends Gated {
    readonly claimed: ClaimedRow
    applied?: AppliedRow | undefined
  }
  const setup =
    (staged: boolean) =>
    async (db: Db): Promise<Held> => {
      const projectId = await project(db)
      await gate(db, projectId, 1)
      await insert(db, projectId, { concurrencyKey: 'g' })
      const [claimed] = (await take(db, 'w')) as [ClaimedRow]
      await sql`UPDATE holdfast.instance SET lease_expires_at = now() - interval '1 second'`.execute(db)
      if (staged) await stage(db, outcome(claimed, { kind: 'next', step: 'more', heldKey: 'g' }))
      await insert(db, projectId, { concurrencyKey: 'g' })
      return { projectId, claimed }
    }
  const sides = {
    reaper: {
      role: 'reaper' as const,
      steps: {
        begin: (s: Session) => s.begin(),
        reap: (s: Session) => reapExpired(s.db, { limit: 10, defaultMaxReclaims: 5 }),
        commit: (s: Session) => s.commit(),
      },
    },
    release: {
      role: 'scheduler' as const,
      steps: {
        begin: (s: Session) => s.begin(),
        release: (s: Session, { claimed }: Held) => releaseClaims(s.db, { ids: [claimed.id], epochs: [claimed.claim_epoch] }),
        commit: (s: Session) => s.commit(),
      },
    },
    flush: { role: 'flusher' as const, steps: flushSteps },
    /** Takes the slot as soon as it is free; its hold is not to be ended by those that come late to the first. */
    next: { role: 'scheduler' as const, steps: { claim: (s: Session) => take(s.db, 'next') } },
  }
  const meet = (names: readonly (keyof typeof sides)[], staged: boolean): Interleaving<Held> => ({
    database,
    setup: setup(staged),
    sessions: Object.fromEntries(names.map((name) => [name, sides[name]])) as Interleaving<Held>['sessions'],
    check: async (db, { claimed }, done) => {
      expect(done.errors).toEqual([])
      const rows = await instances(db)
      const holders = executing(rows)
      expect(holders.length).toBeLessThanOrEqual(1)
      expect(await slots(db)).toMatchObject([{ slot: 0, holder_id: holders[0]?.id ?? null, holder_epoch: holders[0]?.claim_epoch ?? null }])
      // The first claim is over, once: by whoever it was.
      expect(rows.find(({ id }) => id === claimed.id)).not.toMatchObject({ claimed_by: 'w' })
      const { broken } = await violationsBut(db, 'E26')
      expect(broken).toEqual([])
    },
  })
  /** The waking that follows the commits is not part of these. */
  const violationsBut = async (db: Db, ignored: string): Promise<{ broken: unknown[] }> => {
    try {
      await expectInvariants(db)
      return { broken: [] }
    } catch (error) {
      const text = String(error)
      return { broken: [...text.matchAll(/"broken_invariant":"(E\d+)"/g)].map((match) => match[1]).filter((id) => id !== ignored) }
    }
  }

  test('reaper against release, with the next claim between', async () => {
    expect((await interleave(meet(['reaper', 'release', 'next'], false))).orders).toBe(140)
  })
  test('flush against reaper', async () => {
    await interleave(meet(['flush', 'reaper'], true))
  })
  test('flush against release', async () => {
    await interleave(meet(['flush', 'release'], true))
  })
  test('flush against the next claim', async () => {
    await interleave(meet(['flush', 'next'], true))
  })

  test('without the trigger a slot stays held by a claim that is over', async () => {
    await using other = await testDatabase()
    await sql`DROP TRIGGER instance_frees_gate_slot ON holdfast.instance`.execute(other.db)
    await expectInterleavingToFail({ ...meet(['flush', 'next'], true), database: other })
  })
  test('freed without a look at its holder, the slot of the next claim is freed by one that comes late', async () => {
    await using other = await testDatabase()
    const { rows } = await sql<{ source: string }>`SELECT pg_get_functiondef('holdfast.free_gate_slot'::regproc) AS source`.execute(
      other.db,
    )
    const looks = 'AND holder_id OPERATOR(pg_catalog.=) OLD.id AND holder_epoch OPERATOR(pg_catalog.=) OLD.claim_epoch'
    const blind = rows[0]!.source.replaceAll(looks, '')
    expect(blind).not.toBe(rows[0]!.source)
    await sql.raw(blind).execute(other.db)
    // An old image of the row, as a reconciler would have it: the first instance, executing with slot 0, when the slot is another's already.
    const given = meet(['reaper', 'release', 'next'], false)
    await expectInterleavingToFail({
      ...given,
      database: other,
      setup: async (db) => {
        const context = await given.setup(db)
        await sql`UPDATE holdfast.gate_slot SET holder_id = 0, holder_epoch = 1`.execute(db)
        return context
      },
      check: async (db) => expect(await slots(db)).toMatchObject([{ holder_id: '0' }]),
    })
  })
})

describe('a sweep of idle slots against claims, in every order', () => {
  const sweeping = (claimOnce: Claim): Interleaving<Gated> => ({
    database,
    setup: async (db) => {
      const projectId = await project(db)
      await gate(db, projectId, 4)
      await insert(db, projectId, { concurrencyKey: 'g' }, { concurrencyKey: 'g' })
      const claimed = await take(db, 'before')
      await stage(db, ...claimed.map((row) => outcome(row, { kind: 'done', heldKey: 'g' })))
      await flushOnce(db)
      await sql`UPDATE holdfast.gate_slot SET changed_at = now() - interval '1 day'`.execute(db)
      await insert(db, projectId, ...Array.from({ length: 6 }, () => ({ concurrencyKey: 'g' })))
      return { projectId }
    },
    sessions: {
      reaper: {
        role: 'reaper',
        steps: {
          begin: (s) => s.begin(),
          remove: (s) => removeIdleSlots(s.db, { idleMs: 3_600_000, limit: 10 }),
          commit: (s) => s.commit(),
        },
      },
      claimer: { role: 'scheduler', steps: claimSteps('claimer', claimOnce) },
    },
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      await expectInvariants(db) // E23: no gap is left, by which the gate would be smaller from then on
      await wakeFreed(db, undefined)
      await take(db, 'after')
      expect(executing(await instances(db))).toHaveLength(4)
    },
  })
  const all: Claim = (db, worker) => take(db, worker)

  test('the gate has its capacity afterwards', async () => {
    expect((await interleave(sweeping(all))).orders).toBe(35)
  })
  test('without the lock on the highest slot, slots are made above those that the sweep is removing, and the gate stays smaller', async () => {
    const unlocked = mutated(claim, ['LIMIT 1 FOR KEY SHARE SKIP LOCKED', 'LIMIT 1'])
    const report = await expectInterleavingToFail({
      ...sweeping((db, worker) => unlocked(db, { queue: 'default', limit: 10, worker, leaseMs: 60_000, machines: MACHINES })),
      onlyTheRace: true,
    })
    expect(String(report.failures[0]?.error)).toContain('E23')
  })
})

describe('a claim reaches a row that was claimed and moved on since it began, in every order', () => {
  type ClaimStatement = (db: Db, params: Parameters<typeof claim>[1]) => Promise<ClaimedRow[]>
  /** The claim has its snapshot, and stops before it looks at the rows while another session holds an advisory lock. */
  const stop = [
    /FROM holdfast\.instance g\n {2}WHERE g\.status = 'runnable' AND g\.queue/,
    `FROM (SELECT pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1) OFFSET 0) stopped CROSS JOIN holdfast.instance g
  WHERE g.status = 'runnable' AND g.queue`,
  ] as const
  const reaching = (statement: ClaimStatement): Interleaving<Gated> => ({
    database,
    setup: async (db) => {
      const projectId = await project(db)
      await gate(db, projectId, 1)
      await insert(db, projectId, { concurrencyKey: 'g' })
      await claimAndMoveOn(db) // the slot is there, and free
      return { projectId }
    },
    sessions: {
      other: {
        steps: {
          hold: (s) => sql`SELECT pg_advisory_lock(1)`.execute(s.db),
          step: (s) => claimAndMoveOn(s.db),
          release: (s) => sql`SELECT pg_advisory_unlock(1)`.execute(s.db),
        },
      },
      claimer: {
        steps: { claim: (s) => statement(s.db, { queue: 'default', limit: 10, worker: 'claimer', leaseMs: 60_000, machines: MACHINES }) },
      },
    },
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      expect(await slots(db)).toMatchObject([{ slot: 0, holder_id: executing(await instances(db))[0]?.id ?? null }])
      await expectInvariants(db)
    },
  })
  /** One step of the instance, after which it is runnable again, with its key. */
  const claimAndMoveOn = async (db: Db): Promise<void> => {
    const rows = await take(db, 'other')
    await db.transaction().execute((trx) =>
      applyDirectly(
        trx,
        rows.filter(({ status }) => status === 'executing').map((row) => outcome(row, { kind: 'next', step: 'more', heldKey: 'g' })),
      ),
    )
  }

  test('it claims its newest version, with its slot', async () => {
    const report = await interleave(reaching(mutated(claim, stop)))
    expect(report.orders).toBe(4)
    expect(report.withWaits).toBeGreaterThan(0)
  })
  test('were the version updated that its snapshot shows, the row would be passed over and its slot held by nobody', async () => {
    const byVersion = mutated(claim, stop, [
      'FROM decided d WHERE g.id = ANY (ARRAY[d.id])',
      'FROM (SELECT d.*, (SELECT x.ctid FROM holdfast.instance x WHERE x.id = d.id) AS seen FROM decided d OFFSET 0) d WHERE g.ctid = d.seen',
    ])
    const report = await expectInterleavingToFail({ ...reaching(byVersion), onlyTheRace: true })
    expect(report.failures).toHaveLength(1)
  })
})

test('R10: a worker that goes on inline keeps its slot, under the epoch of the next step; a claim between does not get it', async () => {
  interface Chain extends Gated {
    readonly id: InstanceId
    readonly claimed: ClaimedRow
  }
  const report = await interleave<Chain>({
    database,
    setup: async (db) => {
      const projectId = await project(db)
      await gate(db, projectId, 1)
      const [id] = (await insert(db, projectId, { concurrencyKey: 'g' })) as [InstanceId]
      const [claimed] = (await take(db, 'w')) as [ClaimedRow]
      await insert(db, projectId, { concurrencyKey: 'g' })
      return { projectId, id, claimed }
    },
    sessions: {
      chain: {
        role: 'direct-scheduler',
        steps: {
          begin: (s) => s.begin(),
          goOn: (s, { claimed }) => applyDirectly(s.db, [outcome(claimed, { kind: 'next', step: 'more', heldKey: 'g' })], [true]),
          commit: (s) => s.commit(),
        },
      },
      other: { role: 'scheduler', steps: claimSteps('other') },
    },
    check: async (db, { id }, done) => {
      expect(done.errors).toEqual([])
      expect(executing(await instances(db))).toMatchObject([{ id, claim_epoch: '2', step: 'more' }])
      expect(await slots(db)).toMatchObject([{ slot: 0, holder_id: id, holder_epoch: '2' }])
      await expectInvariants(db)
    },
  })
  expect(report.orders).toBe(35)
})
