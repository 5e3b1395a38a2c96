import { checkInvariants, scheduleInvariants } from '@holdfast/invariants'
import { allStatements } from '@holdfast/queries'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'

let database: TestDatabase
beforeAll(async () => {
  database = await testDatabase()
  // 's' has fired twice and skipped once; a run's instance is past its retention; 'p' is paused and keeps its last tick; a run of a schedule that was deleted.
  await sql
    .raw(`
    INSERT INTO holdfast.project (name) VALUES ('default'), ('other');
    INSERT INTO holdfast.instance (project_id, machine) VALUES (1, 'm'), (2, 'm');
    INSERT INTO holdfast.schedule (project_id, name, cron, machine, next_at, due_at, last_at, last_instance_id, created_at)
      VALUES (1, 's', '* * * * *', 'm', '2026-01-01T00:05Z', '2026-01-01T00:05Z', '2026-01-01T00:03Z', 1, '2025-12-31T00:00Z');
    INSERT INTO holdfast.schedule (project_id, name, cron, machine, paused_at, last_at) VALUES (1, 'p', '* * * * *', 'm', now(), '2026-01-01T00:03Z');
    INSERT INTO holdfast.schedule_run (project_id, schedule, tick_at, instance_id) VALUES
      (1, 's', '2026-01-01T00:02Z', 99), (1, 's', '2026-01-01T00:03Z', 1), (1, 's', '2026-01-01T00:04Z', NULL), (2, 's', '2026-01-01T00:03Z', 2),
      (1, 'gone', '2026-01-01T00:03Z', NULL);
  `)
    .execute(database.db)
})
afterAll(() => database[Symbol.asyncDispose]())

const violations: Readonly<Record<string, readonly { readonly what: string; readonly how: string }[]>> = {
  S1: [
    {
      what: 'a tick that was fired twice',
      how: `ALTER TABLE holdfast.schedule_run DROP CONSTRAINT schedule_run_pkey; INSERT INTO holdfast.schedule_run (project_id, schedule, tick_at, instance_id) VALUES (1, 's', '2026-01-01T00:03Z', 55)`,
    },
  ],
  S2: [
    { what: 'an instance of two ticks', how: `UPDATE holdfast.schedule_run SET instance_id = 1 WHERE instance_id = 99` },
    { what: 'an instance of another project', how: `UPDATE holdfast.instance SET project_id = 1 WHERE id = 2` },
  ],
  S3: [
    {
      what: 'a next tick that was fired',
      how: `ALTER TABLE holdfast.schedule DROP CONSTRAINT schedule_next_is_after_last; UPDATE holdfast.schedule SET next_at = last_at WHERE name = 's'`,
    },
    {
      what: 'a tick that was fired without moving its schedule',
      how: `UPDATE holdfast.schedule SET last_at = '2026-01-01T00:02Z' WHERE name = 's'`,
    },
  ],
}

test('a healthy database has no violation', async () => {
  expect(await checkInvariants(database.db, { graceMs: 0 })).toEqual([])
})

test('every invariant has a violation here, a number and a text of its own', () => {
  const ids = scheduleInvariants.map((invariant) => invariant.id)
  expect(Object.keys(violations)).toEqual(ids)
  expect(ids).toEqual(ids.map((_id, index) => `S${index + 1}`))
  for (const id of ids) {
    const statement = allStatements.get(`invariant.${id.toLowerCase()}`)
    expect(statement?.compile(statement.sample).sql).toMatch(/LIMIT 100$/)
  }
})

const cases = scheduleInvariants.flatMap(({ id, severity }) => (violations[id] ?? []).map(({ what, how }) => ({ id, severity, what, how })))

describe('what no process of ours can do is found when it has been done', () => {
  test.each(cases)('$id: $what', async ({ id, severity, how }) => {
    const trx = await database.db.startTransaction().execute()
    try {
      await sql.raw(how).execute(trx)
      expect(await checkInvariants(trx)).toMatchObject([{ id, severity, rows: [expect.anything()] }])
    } finally {
      await trx.rollback().execute()
    }
  })
})
