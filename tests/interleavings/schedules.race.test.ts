import type { ProjectId } from '@holdfast/contracts'
import {
  type FiredRow,
  type Firing,
  findDueSchedules,
  fireTicks,
  lookBeforePut,
  putSchedule,
  recordScheduleFailures,
} from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { expectInterleavingToFail, type Interleaving, interleave, mutated, type Session } from '@holdfast/testbed/interleave'
import { sql } from 'kysely'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { expectInvariants, insert, project } from './races.ts'

let database: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
})
afterAll(async () => {
  await database[Symbol.asyncDispose]()
})

const TICK = new Date('2026-01-01T00:00:00Z')
const NEXT = new Date('2099-01-01T00:00:00Z')

interface Due {
  readonly projectId: ProjectId
  /** What each ticker has computed from what it read. */
  readonly computed: Record<string, readonly Firing[]>
}
const define = (db: Db, projectId: ProjectId, nextAt: Date, overlap: 'allow' | 'skip' = 'allow') =>
  putSchedule(db, {
    projectId,
    name: 'nightly',
    cron: '0 0 1 1 *',
    timezone: 'UTC',
    machine: 'm',
    version: undefined,
    input: '{}',
    queue: undefined,
    priority: 0,
    concurrencyKey: undefined,
    catchUp: 'one',
    overlap,
    nextAt,
  })

/** One schedule with a tick that is due. */
async function due(db: Db, overlap: 'allow' | 'skip' = 'allow'): Promise<Due> {
  await sql`INSERT INTO holdfast.machine (name, version, queue) VALUES ('m', 1, 'default')`.execute(db)
  const projectId = await project(db)
  await define(db, projectId, TICK, overlap)
  return { projectId, computed: {} }
}

type Fire = (db: Db, params: { firings: readonly Firing[] }) => Promise<FiredRow[]>

/** What a scheduler does: it reads, computes with nothing open, and fires. The firing is a transaction here, so that another can come between it and its commit. */
const ticker = (name: string, fire: Fire = fireTicks): Interleaving<Due>['sessions'][string] => ({
  role: 'scheduler',
  steps: {
    read: async (s, { computed }) => {
      const rows = await findDueSchedules(s.db, { limit: 10 })
      computed[name] = rows.flatMap((row) =>
        row.name === null
          ? []
          : [{ projectId: row.project_id, name: row.name, revision: row.revision, ticks: [row.next_at], nextAt: NEXT }],
      )
    },
    begin: (s) => s.begin(),
    fire: async (s, { computed }) => fired(await fire(s.db, { firings: computed[name] ?? [] })),
    commit: (s) => s.commit(),
  },
})
const fired = (rows: readonly FiredRow[]): number => rows.reduce((sum, row) => sum + row.fired, 0)

const count = async (db: Db, table: 'instance' | 'schedule_run'): Promise<number> =>
  (await sql<{ n: number }>`SELECT count(*)::integer AS n FROM ${sql.table(`holdfast.${table}`)}`.execute(db)).rows[0]?.n ?? -1
async function schedule(db: Db): Promise<{ next_at: Date; last_at: Date | null; revision: string } | undefined> {
  return (
    await sql<{ next_at: Date; last_at: Date | null; revision: string }>`SELECT next_at, last_at, revision FROM holdfast.schedule`.execute(
      db,
    )
  ).rows[0]
}

describe('two schedulers on one tick, in every order', () => {
  const twoTickers = (fire: Fire, on: TestDatabase = database): Interleaving<Due> => ({
    database: on,
    setup: (db) => due(db),
    sessions: { a: ticker('a', fire), b: ticker('b', fire) },
    check: async (db, _context, done) => {
      // Nobody waits for the other, and nobody fails.
      expect(done.errors).toEqual([])
      expect(done.value<number>('a.fire') + done.value<number>('b.fire')).toBe(1)
      expect([await count(db, 'instance'), await count(db, 'schedule_run')]).toEqual([1, 1])
      expect(await schedule(db)).toMatchObject({ next_at: NEXT, last_at: TICK })
      if (on === database) await expectInvariants(db)
    },
  })
  const blind: Fire = mutated(fireTicks, ['AND s.revision = given.revision', 'AND (s.revision = given.revision OR true)'])
  const blindToRuns: Fire = mutated(
    fireTicks,
    ['AND s.revision = given.revision', 'AND (s.revision = given.revision OR true)'],
    [/AND NOT EXISTS \(\s+SELECT FROM holdfast\.schedule_run r [^)]*\)/, ''],
  )

  test('one instance and one record of it; nobody waits', async () => {
    const report = await interleave(twoTickers(fireTicks))
    expect([report.orders, report.withWaits]).toEqual([70, 0])
  })

  test('the guard is enough without the primary key', async () => {
    await using other = await testDatabase()
    await sql`ALTER TABLE holdfast.schedule_run DROP CONSTRAINT schedule_run_pkey`.execute(other.db)
    await interleave(twoTickers(fireTicks, other))
  })

  test('the primary key is enough without the guard: the later one cannot commit', async () => {
    const given = twoTickers(blindToRuns)
    const report = await interleave({
      ...given,
      check: async (db, _context, done) => {
        const refused = ['a.fire', 'b.fire'].flatMap((step) => done.error(step) ?? [])
        expect(refused.map(({ code, constraint }) => [code, constraint])).toEqual(refused.map(() => ['23505', 'schedule_run_pkey']))
        expect([await count(db, 'instance'), await count(db, 'schedule_run')]).toEqual([1, 1])
      },
    })
    expect(report.orders).toBe(70)
  })

  test('without both, a tick is fired twice', async () => {
    await using other = await testDatabase()
    await sql`ALTER TABLE holdfast.schedule_run DROP CONSTRAINT schedule_run_pkey`.execute(other.db)
    await expectInterleavingToFail(twoTickers(blindToRuns, other))
  })

  test('without the guard alone, what was fired is seen and left out', async () => {
    const given = twoTickers(blind)
    await interleave({
      ...given,
      check: async (db) => expect([await count(db, 'instance'), await count(db, 'schedule_run')]).toEqual([1, 1]),
    })
  })
})

describe('a definition against a firing, in every order', () => {
  /** What the api does; it computes from a clock that it has read before, so the tick that is being fired may be its next one. */
  const definition: Interleaving<Due>['sessions'][string] = {
    role: 'api',
    steps: {
      look: (s, { projectId }) => lookBeforePut(s.db, { projectId, name: 'nightly', machine: 'm', version: undefined }),
      begin: (s) => s.begin(),
      put: (s, { projectId }) => define(s.db, projectId, TICK),
      commit: (s) => s.commit(),
    },
  }
  const meet = (on: TestDatabase): Interleaving<Due> => ({
    database: on,
    setup: (db) => due(db),
    sessions: { define: definition, a: ticker('a') },
    check: async (db, _context, done) => {
      const refused = done.error('define.put')
      // Refused if the tick is behind: the api computes again. Otherwise the firing finds another row than it has read, or comes before.
      if (refused !== undefined) expect([refused.code, refused.constraint]).toEqual(['23514', 'schedule_next_is_after_last'])
      expect(await count(db, 'instance')).toBe(done.value<number>('a.fire'))
      const row = await schedule(db)
      if (done.value<number>('a.fire') === 1) expect(row).toMatchObject({ next_at: NEXT, last_at: TICK })
      else expect(row).toMatchObject({ next_at: TICK, last_at: null })
      // Whoever fires next does not fire it twice.
      const [again] = await findDueSchedules(db, { limit: 1 })
      if (again?.name != null)
        await fireTicks(db, {
          firings: [{ projectId: again.project_id, name: again.name, revision: again.revision, ticks: [again.next_at], nextAt: NEXT }],
        })
      expect([await count(db, 'instance'), await count(db, 'schedule_run')]).toEqual([1, 1])
      await expectInvariants(db)
    },
  })

  test('the tick is fired once, and the definition is refused or comes first', async () => {
    const report = await interleave(meet(database))
    expect(report.orders).toBe(70)
    expect(report.withWaits).toBeGreaterThan(0)
  })

  test('without the check a definition brings back a tick that was fired', async () => {
    await using other = await testDatabase()
    await sql`ALTER TABLE holdfast.schedule DROP CONSTRAINT schedule_next_is_after_last`.execute(other.db)
    await expectInterleavingToFail(meet(other))
  })

  test('a deletion against a firing: fired or not, and nothing fails', async () => {
    await interleave<Due>({
      ...meet(database),
      sessions: {
        remove: {
          role: 'api',
          steps: {
            begin: (s) => s.begin(),
            remove: (s, { projectId }) => sql`DELETE FROM holdfast.schedule WHERE project_id = ${projectId}::bigint`.execute(s.db),
            commit: (s) => s.commit(),
          },
        },
        a: ticker('a'),
      },
      check: async (db, _context, done) => {
        expect(done.errors).toEqual([])
        expect(await schedule(db)).toBe(undefined)
        expect(await count(db, 'instance')).toBe(done.value('a.fire'))
        await expectInvariants(db)
      },
    })
  })
})

describe('overlap skip against somebody who takes its key, in every order', () => {
  test('one live instance has the key, and the record says whether the tick made one', async () => {
    const report = await interleave<Due>({
      database,
      setup: (db) => due(db, 'skip'),
      sessions: {
        a: ticker('a'),
        other: {
          role: 'api',
          steps: {
            begin: (s) => s.begin(),
            insert: async (s, { projectId }) => {
              await insert(s.db, projectId, { correlationKey: 'schedule:nightly' })
            },
            commit: (s) => s.commit(),
          },
        },
      },
      check: async (db, _context, done) => {
        expect(done.errors).toEqual([])
        expect(await count(db, 'instance')).toBe(1)
        const { rows } = await sql<{ made: boolean; skipped_why: string | null }>`
          SELECT r.instance_id IS NOT NULL AS made, s.skipped_why FROM holdfast.schedule_run r, holdfast.schedule s`.execute(db)
        const made = done.value<number>('a.fire') === 1
        expect(rows).toEqual([{ made, skipped_why: made ? null : 'overlap' }])
        await expectInvariants(db)
      },
    })
    expect(report.withWaits).toBeGreaterThan(0)
  })
})

test('two schedulers that meet the same fault count it once, in every order', async () => {
  const fails = (name: string): Interleaving<Due>['sessions'][string] => ({
    role: 'scheduler',
    steps: {
      begin: (s: Session) => s.begin(),
      record: (s, { projectId }) =>
        recordScheduleFailures(s.db, {
          failures: [{ projectId, name: 'nightly', revision: '1', error: { code: 'unknown_machine', message: name } }],
        }),
      commit: (s) => s.commit(),
    },
  })
  await interleave<Due>({
    database,
    setup: (db) => due(db),
    sessions: { a: fails('a'), b: fails('b') },
    check: async (db, _context, done) => {
      expect(done.errors).toEqual([])
      const { rows } = await sql<{ failures: number }>`SELECT failures FROM holdfast.schedule`.execute(db)
      expect(rows).toEqual([{ failures: 1 }])
      expect(await schedule(db)).toMatchObject({ next_at: TICK })
    },
  })
})
