// The races of a signal and of an insert once more, for the SQL functions: their statements are others than those of packages/queries.
import type { InstanceId } from '@holdfast/contracts'
import { type AppliedRow, applyOutcomes, type ClaimedRow, enqueue, fireAwaitDeadlines } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { expectInterleavingToFail, type Interleaving, interleave, MutationError, type Session } from '@holdfast/testbed/interleave'
import { sql } from 'kysely'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { expectInvariants, flushSteps, insert, instances, outcome, project, stage, take } from './races.ts'

let database: TestDatabase
/** Where a function has a part taken out. */
let unlocked: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
  unlocked = await testDatabase()
  await mutate(unlocked.db, 'signal', 'FOR NO KEY UPDATE', '')
})
afterAll(async () => {
  await database[Symbol.asyncDispose]()
  await unlocked[Symbol.asyncDispose]()
})

async function mutate(db: Db, name: string, from: string, to: string): Promise<void> {
  const { rows } = await sql<{ text: string }>`SELECT pg_get_functiondef(p.oid) AS text FROM pg_proc p
    WHERE p.pronamespace = 'holdfast'::regnamespace AND p.proname = ${name}`.execute(db)
  const text = rows[0]?.text ?? ''
  if (!text.includes(from)) throw new MutationError(`${JSON.stringify(from)} is nowhere in holdfast.${name}`)
  await sql.raw(text.replaceAll(from, () => to)).execute(db)
}

interface Target {
  readonly id: InstanceId
  applied?: AppliedRow | undefined
}
interface Delivered {
  readonly delivered: boolean
  readonly duplicate: boolean
}

/** A caller who has the right to call, and no right on any table. */
const begin = async (s: Session): Promise<void> => {
  await s.begin()
  await sql`SET LOCAL ROLE holdfast_sql`.execute(s.db)
}
const signal = async (s: Session, target: Target | 'by key', dedupKey: string | null = null): Promise<Delivered> => {
  const [id, key] = target === 'by key' ? [null, 'k'] : [target.id, null]
  const { rows } =
    await sql<Delivered>`SELECT * FROM holdfast.signal('default', 'go', '{}', id => ${id}::bigint, correlation_key => ${key}::text,
    dedup_key => ${dedupKey}::text, missing_ok => true)`.execute(s.db)
  return rows[0] as Delivered
}

/** An instance with the key `k` whose outcome is staged. */
const staged = async (db: Db, kind: 'await_signal' | 'done'): Promise<Target> => {
  const [id] = (await insert(db, await project(db), { correlationKey: 'k' })) as [InstanceId]
  const [claimed] = (await take(db, 'w')) as [ClaimedRow]
  await stage(db, outcome(claimed, kind === 'done' ? { kind } : { kind, step: 'woken', awaits: ['go'], timeoutMs: 1 }))
  return { id }
}

describe.each(['by id', 'by key'] as const)('holdfast.signal %s', (by) => {
  const target = (context: Target): Target | 'by key' => (by === 'by id' ? context : 'by key')

  const againstPark = (on: TestDatabase): Interleaving<Target> => ({
    database: on,
    setup: (db) => staged(db, 'await_signal'),
    sessions: {
      park: { role: 'flusher', steps: flushSteps },
      deliver: { steps: { begin, send: (s, context) => signal(s, target(context)), commit: (s) => s.commit() } },
    },
    check: async (db, { id }, done) => {
      expect(done.errors).toEqual([])
      expect(await instances(db)).toMatchObject([{ id, status: 'runnable', step: 'woken', claimed_by: null }])
      await expectInvariants(db)
    },
  })

  test('R1: against a park, in every order: the instance is awake in the end', async () => {
    const report = await interleave(againstPark(database))
    expect(report.orders).toBe(35)
    expect(report.withWaits).toBeGreaterThan(5)
  })

  test('R1: without the lock on the target a wake-up is lost', async () => {
    await expectInterleavingToFail({ ...againstPark(unlocked), onlyTheRace: true })
  })

  const againstEnd = (on: TestDatabase): Interleaving<Target> => ({
    database: on,
    setup: (db) => staged(db, 'done'),
    sessions: {
      end: { role: 'flusher', steps: flushSteps },
      deliver: { steps: { begin, send: (s, context) => signal(s, target(context), 'd'), commit: (s) => s.commit() } },
    },
    check: async (db, { id }, done) => {
      expect(done.errors).toEqual([])
      expect(await instances(db)).toMatchObject([{ id, status: 'done' }])
      const { delivered } = done.value<Delivered>('deliver.send')
      const { rows } = await sql<{
        receipts: number
        inbox: number
      }>`SELECT (SELECT count(*) FROM holdfast.signal_receipt)::integer AS receipts,
        (SELECT count(*) FROM holdfast.signal)::integer AS inbox`.execute(db)
      expect(rows).toEqual([{ receipts: delivered ? 1 : 0, inbox: 0 }])
      const [ended, sent] = ['end.commit', 'deliver.send'].map((step) => done.trace.findIndex((each) => each.startsWith(step))) as [
        number,
        number,
      ]
      if (ended < sent) expect(delivered).toBe(false)
      await expectInvariants(db)
    },
  })

  test('N11: against the end of its target, in every order: taken along or refused, and nothing is left behind', async () => {
    expect((await interleave(againstEnd(database))).orders).toBe(35)
  })

  test('N11: without the lock on the target a signal is accepted that nobody will read', async () => {
    await expectInterleavingToFail({ ...againstEnd(unlocked), onlyTheRace: true })
  })

  test('two deliveries of one dedup key, in every order: one signal, and one is told that it is a duplicate', async () => {
    const deliver = {
      steps: { begin, send: (s: Session, context: Target) => signal(s, target(context), 'd'), commit: (s: Session) => s.commit() },
    }
    const report = await interleave<Target>({
      database,
      setup: (db) => staged(db, 'await_signal'),
      sessions: { one: deliver, two: deliver },
      check: async (db, _context, done) => {
        expect(done.errors).toEqual([])
        const answers = ['one.send', 'two.send'].map((step) => done.value<Delivered>(step).duplicate)
        expect(answers.filter(Boolean)).toHaveLength(1)
        const { rows } = await sql<{ n: number }>`SELECT count(*)::integer AS n FROM holdfast.signal`.execute(db)
        expect(rows).toEqual([{ n: 1 }])
      },
    })
    expect(report.orders).toBe(20)
  })
})

test('R29: holdfast.signal against a deadline and a claim, in every order: woken once, and the signal is in the inbox', async () => {
  const report = await interleave<Target>({
    database,
    setup: async (db) => {
      const context = await staged(db, 'await_signal')
      await applyOutcomes(db, { afterSeq: '0', limit: 10 })
      await sql`UPDATE holdfast.instance SET await_deadline = now() - interval '1 second'`.execute(db)
      return context
    },
    sessions: {
      reaper: {
        role: 'reaper',
        steps: { begin: (s) => s.begin(), fire: (s) => fireAwaitDeadlines(s.db, { limit: 10 }), commit: (s) => s.commit() },
      },
      deliver: { steps: { begin, send: (s, context) => signal(s, context), commit: (s) => s.commit() } },
      scheduler: { role: 'scheduler', steps: { claim: (s) => take(s.db, 'w2') } },
    },
    check: async (db, { id }, done) => {
      expect(done.errors).toEqual([])
      const [row] = await instances(db)
      expect(row?.id).toBe(id)
      expect(['runnable', 'executing']).toContain(row?.status)
      expect(row?.claim_epoch).toBe(row?.status === 'executing' ? '2' : '1')
      const { rows } = await sql<{ n: number }>`SELECT count(*)::integer AS n FROM holdfast.signal`.execute(db)
      expect(rows).toEqual([{ n: 1 }])
      await expectInvariants(db)
    },
  })
  expect(report.orders).toBe(140)
})

test('at REPEATABLE READ a signal that would decide on an old snapshot fails with 40001, and is never lost', async () => {
  const report = await interleave<Target>({
    database,
    setup: (db) => staged(db, 'await_signal'),
    sessions: {
      park: { role: 'flusher', steps: flushSteps },
      deliver: {
        stopOnError: true,
        steps: {
          begin: async (s) => {
            await s.begin('repeatable read')
            await sql`SET LOCAL ROLE holdfast_sql`.execute(s.db)
          },
          look: (s) => sql`SELECT now()`.execute(s.db), // takes the snapshot
          send: (s, context) => signal(s, context),
          commit: (s) => s.commit(),
        },
      },
    },
    check: async (db, { id }, done) => {
      const failed = done.errors.length > 0
      if (failed) expect(done.errors).toEqual(['deliver.send: 40001'])
      expect(await instances(db)).toMatchObject([{ id, status: failed ? 'awaiting_signal' : 'runnable' }])
      const { rows } = await sql<{ n: number }>`SELECT count(*)::integer AS n FROM holdfast.signal`.execute(db)
      expect(rows).toEqual([{ n: failed ? 0 : 1 }])
      await expectInvariants(db)
    },
  })
  expect(report.failures).toEqual([])
  expect(report.carriedOut.length).toBeGreaterThan(1)
})

describe('R15: two batches with the same new keys in opposite order', () => {
  const many = (db: Db, keys: readonly string[]) =>
    sql<{ id: string; created: boolean }>`SELECT id, created FROM holdfast.enqueue_many('default',
      ${JSON.stringify(keys.map((key) => ({ machine: 'm', correlation_key: key })))}::jsonb)`
      .execute(db)
      .then(({ rows }) => rows)
  const keys = ['k1', 'k2', 'k3']

  test('in every order: each key is inserted once, both are told the same ids, and nobody deadlocks', async () => {
    const batch = (order: readonly string[]) => ({
      steps: { begin, insert: (s: Session) => many(s.db, order), commit: (s: Session) => s.commit() },
    })
    const report = await interleave<unknown>({
      database,
      setup: project,
      sessions: {
        forward: batch(keys),
        backward: batch(keys.toReversed()),
        // The statement of the API, which meets the function on the same index.
        api: {
          role: 'api',
          steps: {
            insert: (s, projectId) =>
              enqueue(s.db, {
                projectId: projectId as never,
                declaredOnly: false,
                instances: keys.map((key) => ({ machine: 'm', correlationKey: key })),
              }),
          },
        },
      },
      check: async (db, _context, done) => {
        expect(done.errors).toEqual([])
        const ids = (await instances(db)).map((row) => row.id)
        expect(ids).toHaveLength(3)
        const [forward, backward] = ['forward.insert', 'backward.insert'].map((step) =>
          done.value<{ id: string; created: boolean }[]>(step),
        )
        expect(forward?.map(({ id }) => id)).toEqual(backward?.map(({ id }) => id).toReversed())
        const created = [...(forward ?? []), ...(backward ?? [])].filter((row) => row.created)
        expect([0, 3]).toContain(created.length)
        await expectInvariants(db)
      },
    })
    expect(report.orders).toBe(140)
    expect(report.withWaits).toBeGreaterThan(0)
  })

  test('in flight at once, many times over: a deadlock would reject one of them', async () => {
    await using other = await testDatabase()
    await project(other.db)
    const rounds = async (backwards: boolean): Promise<number> => {
      let created = 0
      for (let round = 0; round < 10; round += 1) {
        const fresh = Array.from({ length: 200 }, (_value, index) => `r${round}-${index}`)
        created += (await many(other.db, backwards ? fresh.toReversed() : fresh)).filter((row) => row.created).length
      }
      return created
    }
    const counts = await Promise.all([rounds(false), rounds(true), rounds(false)])
    expect(counts.reduce((sum, count) => sum + count, 0)).toBe(2_000)
  })

  test('without the order in which rows go in, the same keys deadlock', async () => {
    await using other = await testDatabase()
    const { db } = other
    await project(db)
    await mutate(db, 'insert_instances', 'ORDER BY g.correlation_key, g.ord', '')
    // A trigger that waits makes the rows of one batch go in one by one beside those of the other.
    await sql
      .raw(`CREATE FUNCTION public.slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.05); RETURN NEW; END $$;
      CREATE TRIGGER slowly BEFORE INSERT ON holdfast.instance FOR EACH ROW EXECUTE FUNCTION public.slowly()`)
      .execute(db)
    const ended = await Promise.allSettled([many(db, keys), many(db, keys.toReversed())])
    expect(ended.filter(({ status }) => status === 'rejected')).toMatchObject([{ reason: { code: '40P01' } }])
    await mutate(db, 'insert_instances', 'WHERE still_open[g.ord]\n', 'WHERE still_open[g.ord] ORDER BY g.correlation_key, g.ord\n')
    const both = await Promise.all([many(db, ['a', 'b', 'c']), many(db, ['c', 'b', 'a'])])
    expect(both.flat().filter((row) => row.created)).toHaveLength(3)
  })
})
