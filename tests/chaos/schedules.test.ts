import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { checkInvariants } from '@holdfast/invariants'
import { createProject, putSchedule } from '@holdfast/queries'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { RoleProcess } from '@holdfast/testbed/role-process'
import { sql } from 'kysely'
import { afterAll, beforeAll, expect, test } from 'vitest'

let database: TestDatabase
const schedulers: RoleProcess[] = []
beforeAll(async () => {
  database = await testDatabase()
})
afterAll(async () => {
  await Promise.all(schedulers.map((scheduler) => scheduler.end('SIGKILL')))
  await database[Symbol.asyncDispose]()
})

async function startScheduler(): Promise<RoleProcess> {
  const env = {
    PATH: process.env['PATH'],
    HOLDFAST_DATABASE_URL: database.url,
    HOLDFAST_POOL_MAX: '3',
    HOLDFAST_MACHINES: join(import.meta.dirname, '../../examples'),
  }
  const scheduler = new RoleProcess({ role: 'scheduler', env })
  schedulers.push(scheduler)
  await scheduler.started()
  return scheduler
}

interface Run {
  readonly tick_at: Date
  readonly instance_id: string | null
  readonly instances: number
}
const runs = async (): Promise<readonly Run[]> =>
  (
    await sql<Run>`SELECT r.tick_at, r.instance_id,
      (SELECT count(*)::integer FROM holdfast.instance g WHERE g.state ->> 'to' = to_char(r.tick_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) AS instances
      FROM holdfast.schedule_run r ORDER BY r.tick_at`.execute(database.db)
  ).rows

test('two schedulers, each killed in turn, their connections cut as well: every second has its run, and none has two', async () => {
  const [project] = await createProject(database.db, { name: 'default' })
  if (project === undefined) throw new Error('no project')
  let pair = await Promise.all([startScheduler(), startScheduler()])
  await putSchedule(database.db, {
    projectId: project.id,
    name: 'every-second',
    cron: '* * * * * *',
    timezone: 'UTC',
    machine: 'send-email',
    version: undefined,
    input: '{"to":"{{tick}}","subject":"now"}',
    queue: undefined,
    priority: 0,
    concurrencyKey: undefined,
    catchUp: 'all',
    overlap: 'allow',
    nextAt: new Date(Math.ceil(Date.now() / 1_000 + 1) * 1_000),
  })
  for (const killed of [0, 1, 0]) {
    await sleep(1_500)
    await sql`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
      WHERE datname = current_database() AND query LIKE '/* schedules.%' AND pid <> pg_backend_pid()`.execute(database.db)
    await pair[killed]?.end('SIGKILL')
    pair = pair.with(killed, await startScheduler()) as typeof pair
  }
  await expect.poll(async () => (await runs()).length, { timeout: 20_000 }).toBeGreaterThan(8)
  await Promise.all(pair.map((scheduler) => scheduler.end('SIGTERM')))

  const fired = await runs()
  for (const [index, run] of fired.entries()) {
    expect(run).toMatchObject({ instance_id: expect.any(String) as string, instances: 1 })
    if (index > 0) expect(run.tick_at.getTime() - (fired[index - 1] as Run).tick_at.getTime()).toBe(1_000)
  }
  const { rows } = await sql<{ n: number }>`SELECT count(*)::integer AS n FROM holdfast.instance`.execute(database.db)
  expect(rows).toEqual([{ n: fired.length }])
  expect((await checkInvariants(database.db, { graceMs: 600_000 })).filter(({ severity }) => severity === 'broken')).toEqual([])
}, 120_000)
