import type { InstanceId, ProjectId } from '@holdfast/contracts'
import { type AppliedRow, applyOutcomes, type ClaimedRow, deliverSignalById, fireAwaitDeadlines } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { expectInterleavingToFail, type Interleaving, interleave, mutated } from '@holdfast/testbed/interleave'
import { sql } from 'kysely'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { expectInvariants, flushSteps, insert, instances, outcome, project, stage, take } from './races.ts'

let database: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
})
afterAll(async () => {
  await database[Symbol.asyncDispose]()
})

type Deliver = (
  db: Db,
  params: { projectId: ProjectId; id: InstanceId; name: string; payload: string; dedupKey?: string },
) => Promise<unknown>
interface Parking {
  readonly projectId: ProjectId
  readonly id: InstanceId
  applied?: AppliedRow | undefined
}

/** An executing instance whose outcome, to wait for `go`, is staged; and a signal `go` on its way. */
const parkAgainstDeliver = (deliver: Deliver, more: Partial<Interleaving<Parking>> = {}): Interleaving<Parking> => ({
  database,
  setup: async (db) => {
    const projectId = await project(db)
    const [id] = (await insert(db, projectId)) as [InstanceId]
    const [claimed] = (await take(db, 'w')) as [ClaimedRow]
    await stage(db, outcome(claimed, { kind: 'await_signal', step: 'woken', awaits: ['go'] }))
    return { projectId, id }
  },
  sessions: {
    park: { role: 'flusher', steps: flushSteps },
    deliver: {
      role: 'api',
      steps: {
        begin: (s) => s.begin(),
        send: (s, { projectId, id }) => deliver(s.db, { projectId, id, name: 'go', payload: '{}' }),
        commit: (s) => s.commit(),
      },
    },
  },
  check: async (db, { id }, done) => {
    expect(done.errors).toEqual([])
    // Whoever was first: the signal is there and the instance is awake.
    expect(await instances(db)).toMatchObject([{ id, status: 'runnable', step: 'woken', claimed_by: null }])
    await expectInvariants(db)
  },
  ...more,
})

describe('R1: a park against a delivery, in every order', () => {
  test('the instance is awake in the end', async () => {
    const report = await interleave(parkAgainstDeliver(deliverSignalById))
    expect(report.orders).toBe(35) // 7! / (4! 3!)
    expect(report.withWaits).toBeGreaterThan(5)
  })

  test('without the lock on the target a wake-up is lost', async () => {
    await expectInterleavingToFail(parkAgainstDeliver(mutated(deliverSignalById, ['FOR NO KEY UPDATE', ''])))
  })

  test('without the CASE a delivery fails on the version from before the park', async () => {
    const withoutCase = mutated(deliverSignalById, [
      `CASE WHEN g.status = 'awaiting_signal' THEN 'runnable'::holdfast.instance_status ELSE g.status END`,
      `'runnable'`,
    ])
    const report = await expectInterleavingToFail(parkAgainstDeliver(withoutCase))
    expect(String(report.failures[0]?.error)).toContain('23514')
  })

  test('without the recheck after the park a wake-up is lost', async () => {
    const { riders: _riders, ...withoutRecheck } = flushSteps
    const given = parkAgainstDeliver(deliverSignalById)
    await expectInterleavingToFail({ ...given, sessions: { ...given.sessions, park: { role: 'flusher', steps: withoutRecheck } } })
  })
})

test('R2: a re-await is not woken by what its step was shown, and is by a lower id that commits later', async () => {
  interface Pack extends Parking {
    readonly shown: string
    readonly early: string
  }
  const report = await interleave<Pack>({
    database,
    setup: async (db) => {
      const projectId = await project(db)
      const [id] = (await insert(db, projectId)) as [InstanceId]
      // The id that commits late is drawn first.
      const { rows } = await sql<{ id: string }>`SELECT nextval('holdfast.signal_id_seq') AS id`.execute(db)
      await deliverSignalById(db, { projectId, id, name: 'go', payload: '{}' })
      const { rows: shown } = await sql<{ id: string }>`SELECT id FROM holdfast.signal`.execute(db)
      const [claimed] = (await take(db, 'w')) as [ClaimedRow]
      await stage(db, outcome(claimed, { kind: 'await_signal', step: 'pack', awaits: ['go'], presented: [shown[0]!.id] }))
      return { projectId, id, shown: shown[0]!.id, early: rows[0]!.id }
    },
    sessions: {
      park: { role: 'flusher', steps: flushSteps },
      // The statement of deliver with its id drawn beforehand.
      deliver: {
        steps: {
          begin: (s) => s.begin(),
          lock: (s, { id }) => sql`SELECT FROM holdfast.instance WHERE id = ${id}::bigint FOR NO KEY UPDATE`.execute(s.db),
          send: async (s, { id, early }) => {
            await sql`INSERT INTO holdfast.signal (id, target_id, name) OVERRIDING SYSTEM VALUE VALUES (${early}::bigint, ${id}::bigint, 'go')`.execute(
              s.db,
            )
            await sql`UPDATE holdfast.instance SET status = 'runnable' WHERE id = ${id}::bigint AND status = 'awaiting_signal'`.execute(
              s.db,
            )
          },
          commit: (s) => s.commit(),
        },
      },
    },
    check: async (db, { id, shown, early }, done) => {
      expect(done.errors).toEqual([])
      expect(BigInt(early)).toBeLessThan(BigInt(shown))
      expect(await instances(db)).toMatchObject([{ id, status: 'runnable', step: 'pack' }])
    },
  })
  expect(report.orders).toBe(70)
  // And with nothing new it stays asleep.
  await interleave<Parking>({
    ...parkAgainstDeliver(deliverSignalById),
    setup: async (db) => {
      const projectId = await project(db)
      const [id] = (await insert(db, projectId)) as [InstanceId]
      await deliverSignalById(db, { projectId, id, name: 'go', payload: '{}' })
      const { rows } = await sql<{ id: string }>`SELECT id FROM holdfast.signal`.execute(db)
      const [claimed] = (await take(db, 'w')) as [ClaimedRow]
      await stage(db, outcome(claimed, { kind: 'await_signal', step: 'pack', awaits: ['go'], presented: [rows[0]!.id] }))
      return { projectId, id }
    },
    sessions: { park: { role: 'flusher', steps: flushSteps } },
    check: async (db, { id }) => expect(await instances(db)).toMatchObject([{ id, status: 'awaiting_signal' }]),
  })
})

describe('N11: a signal against the end of its target, in every order', () => {
  const endAgainstDeliver = (deliver: Deliver): Interleaving<Parking> => ({
    database,
    setup: async (db) => {
      const projectId = await project(db)
      const [id] = (await insert(db, projectId)) as [InstanceId]
      const [claimed] = (await take(db, 'w')) as [ClaimedRow]
      await stage(db, outcome(claimed, { kind: 'done' }))
      return { projectId, id }
    },
    sessions: {
      end: { role: 'flusher', steps: flushSteps },
      deliver: {
        role: 'api',
        steps: {
          begin: (s) => s.begin(),
          send: (s, { projectId, id }) => deliver(s.db, { projectId, id, name: 'go', payload: '{}', dedupKey: 'k' }),
          commit: (s) => s.commit(),
        },
      },
    },
    check: async (db, { id }, done) => {
      expect(done.errors).toEqual([])
      expect(await instances(db)).toMatchObject([{ id, status: 'done' }])
      const [delivered] = done.value<{ target_id: string | null }[]>('deliver.send')
      const { rows } = await sql<{ n: number }>`SELECT count(*)::integer AS n FROM holdfast.signal_receipt`.execute(db)
      // Accepted while it lived, or refused: never thanked for a signal to something that had ended already.
      expect(rows[0]?.n).toBe(delivered?.target_id === null ? 0 : 1)
      if (
        done.trace.indexOf('end.commit') >= 0 &&
        done.trace.indexOf('end.commit') < done.trace.findIndex((step) => step.startsWith('deliver.send'))
      ) {
        expect(delivered?.target_id).toBeNull()
      }
      const { rows: inbox } = await sql<{ n: number }>`SELECT count(*)::integer AS n FROM holdfast.signal`.execute(db)
      expect(inbox[0]?.n).toBe(0) // what was accepted went with the inbox of the one that ended
      await expectInvariants(db)
    },
  })

  test('it is accepted before the end or refused after it, and nothing is left behind', async () => {
    expect((await interleave(endAgainstDeliver(deliverSignalById))).orders).toBe(35)
  })

  test('without the lock on the target a signal is accepted that nobody will read', async () => {
    await expectInterleavingToFail(endAgainstDeliver(mutated(deliverSignalById, ['FOR NO KEY UPDATE', ''])))
  })
})

describe('R29: a deadline against a signal, in every order', () => {
  const deadlineAgainstDeliver = (
    fire: (db: Db, params: { limit: number }) => Promise<unknown>,
    deliver: Deliver,
  ): Interleaving<Parking> => ({
    database,
    setup: async (db) => {
      const projectId = await project(db)
      const [id] = (await insert(db, projectId)) as [InstanceId]
      const [claimed] = (await take(db, 'w')) as [ClaimedRow]
      await stage(db, outcome(claimed, { kind: 'await_signal', step: 'woken', awaits: ['go'], timeoutMs: 1 }))
      await applyOutcomes(db, { afterSeq: '0', limit: 10 })
      await sql`UPDATE holdfast.instance SET await_deadline = now() - interval '1 second'`.execute(db)
      return { projectId, id }
    },
    sessions: {
      reaper: { role: 'reaper', steps: { begin: (s) => s.begin(), fire: (s) => fire(s.db, { limit: 10 }), commit: (s) => s.commit() } },
      deliver: {
        role: 'api',
        steps: {
          begin: (s) => s.begin(),
          send: (s, { projectId, id }) => deliver(s.db, { projectId, id, name: 'go', payload: '{}' }),
          commit: (s) => s.commit(),
        },
      },
      scheduler: { role: 'scheduler', steps: { claim: (s) => take(s.db, 'w2') } },
    },
    check: async (db, { id }, done) => {
      expect(done.errors).toEqual([])
      const [row] = await instances(db)
      // Woken once: runnable, or claimed by the scheduler exactly once more.
      expect(row?.id).toBe(id)
      expect(['runnable', 'executing']).toContain(row?.status)
      expect(row?.claim_epoch).toBe(row?.status === 'executing' ? '2' : '1')
      const { rows } = await sql<{ n: number }>`SELECT count(*)::integer AS n FROM holdfast.signal`.execute(db)
      expect(rows[0]?.n).toBe(1) // the signal is in the inbox either way, and awaited by the step that runs next
      await expectInvariants(db)
    },
  })

  test('the instance is woken once and the signal is in its inbox', async () => {
    expect((await interleave(deadlineAgainstDeliver(fireAwaitDeadlines, deliverSignalById))).orders).toBe(140)
  })

  test('without the lock of the reaper an instance that was woken and claimed meanwhile is pulled from under its claim', async () => {
    const given = deadlineAgainstDeliver(mutated(fireAwaitDeadlines, ['FOR NO KEY UPDATE SKIP LOCKED', '']), deliverSignalById)
    const { reaper } = given.sessions
    await expectInterleavingToFail({
      ...given,
      sessions: {
        reaper: reaper!,
        // Delivery and claim in one transaction, so that the reaper waits for both at once.
        deliver: {
          steps: {
            begin: (s) => s.begin(),
            send: (s, { projectId, id }) => deliverSignalById(s.db, { projectId, id, name: 'go', payload: '{}' }),
            claim: (s) => take(s.db, 'w2'),
            commit: (s) => s.commit(),
          },
        },
      },
    })
  })
})
