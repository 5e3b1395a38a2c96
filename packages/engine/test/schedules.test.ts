import { setTimeout as sleep } from 'node:timers/promises'
import { Channels, type JsonValue } from '@holdfast/contracts'
import { job } from '@holdfast/engine'
import { checkInvariants } from '@holdfast/invariants'
import { findDueSchedules, fireTicks, getSchedule, type PutSchedule, putSchedule, type ScheduleRow } from '@holdfast/queries'
import { sql } from 'kysely'
import { describe, expect, test } from 'vitest'
import { EngineUnderTest } from './engine-under-test.ts'

const noop = job('noop', { run: () => null })

interface Run {
  readonly tick_at: Date
  readonly instance_id: string | null
}

async function put(engine: EngineUnderTest, more: Partial<PutSchedule> & { readonly name?: string } = {}): Promise<void> {
  await putSchedule(engine.database.db, {
    projectId: engine.projectId,
    name: 'often',
    cron: '* * * * * *',
    timezone: 'UTC',
    machine: 'noop',
    version: undefined,
    input: '{}',
    queue: undefined,
    priority: 0,
    concurrencyKey: undefined,
    catchUp: 'none',
    overlap: 'allow',
    nextAt: new Date('2100-01-01T00:00:00Z'),
    ...more,
  })
}
/** As if nothing had run since. Answers the tick that is due first, by the clock of the database. */
async function downSince(engine: EngineUnderTest, seconds: number, name = 'often'): Promise<Date> {
  const { rows } = await sql<{ next_at: Date }>`UPDATE holdfast.schedule SET revision = revision + 1, last_at = NULL,
    next_at = date_trunc('second', now()) - ${seconds} * interval '1 second', due_at = date_trunc('second', now()) - ${seconds} * interval '1 second'
    WHERE name = ${name} RETURNING next_at`.execute(engine.database.db)
  if (rows[0] === undefined) throw new Error(`no schedule ${name}`)
  return rows[0].next_at
}
async function get(engine: EngineUnderTest, name = 'often'): Promise<ScheduleRow & { due_at: Date | null; failures: number }> {
  const [row] = await getSchedule(engine.database.db, { projectId: engine.projectId, name })
  const { rows } = await sql<{
    due_at: Date | null
    failures: number
  }>`SELECT due_at, failures FROM holdfast.schedule WHERE name = ${name}`.execute(engine.database.db)
  if (row === undefined || rows[0] === undefined) throw new Error(`no schedule ${name}`)
  return { ...row, ...rows[0] }
}
const runs = async (engine: EngineUnderTest): Promise<readonly Run[]> =>
  (await sql<Run>`SELECT tick_at, instance_id FROM holdfast.schedule_run ORDER BY schedule, tick_at`.execute(engine.database.db)).rows
const states = async (engine: EngineUnderTest): Promise<readonly JsonValue[]> =>
  (await sql<{ state: JsonValue }>`SELECT state FROM holdfast.instance ORDER BY id`.execute(engine.database.db)).rows.map(
    ({ state }) => state,
  )
/** Passes until nothing is due any more. */
async function tickAll(engine: EngineUnderTest): Promise<number> {
  for (let passes = 0; ; passes += 1) if ((await engine.scheduler.tickOnce()) === 0) return passes
}
const expectConsecutive = (ticks: readonly Run[], everyMs = 1_000): void => {
  for (const [index, { tick_at }] of ticks.entries())
    if (index > 0) expect(tick_at.getTime() - (ticks[index - 1] as Run).tick_at.getTime()).toBe(everyMs)
}
const healthy = async (engine: EngineUnderTest): Promise<void> => expect(await checkInvariants(engine.database.db)).toEqual([])

test('a tick that is due becomes an instance, which runs; the schedule says what it was and what comes next', async () => {
  await using engine = await EngineUnderTest.on([noop])
  await put(engine, {
    cron: '0 0 1 1 *',
    queue: 'default',
    priority: 3,
    concurrencyKey: 'k',
    input: '{"of":"{{tick}}","list":["{{tick}}","at {{tick}}"]}',
  })
  expect(await engine.scheduler.tickOnce()).toBe(0)
  const tick = await downSince(engine, 2)
  expect(await engine.scheduler.tickOnce()).toBe(1)
  expect(await engine.scheduler.tickOnce()).toBe(0)

  const schedule = await get(engine)
  expect(schedule).toMatchObject({ last_at: tick, skipped_at: null, last_error: null, failures: 0 })
  expect(schedule.next_at?.toISOString()).toMatch(/-01-01T00:00:00.000Z$/)
  expect(schedule.due_at).toEqual(schedule.next_at)
  const id = schedule.last_instance_id ?? ('0' as never)
  const instant = tick.toISOString().replace('.000Z', 'Z')
  expect(await engine.get(id)).toMatchObject({
    machine: 'noop',
    version: 1,
    queue: 'default',
    priority: 3,
    concurrency_key: 'k',
    status: 'runnable',
    state: { of: instant, list: [instant, 'at {{tick}}'] },
  })
  expect(await runs(engine)).toEqual([{ tick_at: tick, instance_id: id }])
  expect(engine.hinted).toContain(`${Channels.runnable}:default`)
  await engine.drain()
  expect((await engine.get(id)).status).toBe('done')
  await healthy(engine)
})

test('an input that only looks like the tick is left alone', async () => {
  await using engine = await EngineUnderTest.on([noop])
  const input = {
    a: '"{{tick}}"',
    b: '\\"{{tick}}',
    c: '{{tick}}\\',
    d: { e: 'x{{tick}}' },
    f: '{{ tick }}',
    g: ['"', '{{tick}}"'],
    '{{tick}}': 1,
  }
  await put(engine, { input: JSON.stringify(input) })
  await downSince(engine, 0)
  await engine.scheduler.tickOnce()
  expect(await states(engine)).toEqual([input])
})

describe('after a downtime', () => {
  test('none: the newest tick if it is at most a minute late, and nothing of what was before', async () => {
    await using engine = await EngineUnderTest.on([noop])
    await put(engine)
    const since = await downSince(engine, 600)
    expect(await engine.scheduler.tickOnce()).toBe(1)
    const ticks = await runs(engine)
    expect(ticks).toHaveLength(1)
    const [{ tick_at }] = ticks as [Run]
    expect(tick_at.getTime() - since.getTime()).toBeGreaterThanOrEqual(599_000)
    expect(await get(engine)).toMatchObject({ skipped_at: new Date(tick_at.getTime() - 1_000), skipped_why: 'missed' })
  })

  test('none: nothing at all if the newest is older, and the schedule goes on', async () => {
    await using engine = await EngineUnderTest.on([noop])
    await put(engine, { cron: '0 0 1 1 *' })
    const since = await downSince(engine, 61)
    expect(await engine.scheduler.tickOnce()).toBe(1)
    expect(await runs(engine)).toEqual([])
    const schedule = await get(engine)
    expect(schedule).toMatchObject({ last_at: null, skipped_at: since, skipped_why: 'missed' })
    expect(schedule.next_at?.getTime()).toBeGreaterThan(Date.now())
    await healthy(engine)
  })

  test('one: the newest, however old', async () => {
    await using engine = await EngineUnderTest.on([noop])
    await put(engine, { cron: '0 0 1 1 *', catchUp: 'one' })
    const since = await downSince(engine, 7_200)
    expect(await engine.scheduler.tickOnce()).toBe(1)
    expect((await runs(engine)).map(({ tick_at }) => tick_at)).toEqual([since])
    expect((await get(engine)).skipped_at).toBe(null)
  })

  test('all: every one of them, oldest first, in bounded passes, none lost and none twice', async () => {
    await using engine = await EngineUnderTest.on([noop])
    await put(engine, { catchUp: 'all', input: '{"tick":"{{tick}}"}' })
    const since = await downSince(engine, 180)
    expect(await engine.scheduler.tickOnce()).toBe(1)
    const bounded = (await runs(engine)).length
    expect(bounded).toBeGreaterThan(10)
    expect(bounded).toBeLessThan(100)
    expect((await get(engine)).next_at).toEqual(new Date(since.getTime() + bounded * 1_000)) // the rest is still due
    expect(await tickAll(engine)).toBeGreaterThanOrEqual(3)

    const ticks = await runs(engine)
    expect(ticks.length).toBeGreaterThanOrEqual(181)
    expect(ticks[0]?.tick_at).toEqual(since)
    expectConsecutive(ticks)
    // By id, which is their order in the queue.
    expect(await states(engine)).toEqual(ticks.map(({ tick_at }) => ({ tick: tick_at.toISOString().replace('.000Z', 'Z') })))
    await healthy(engine)
  })

  test('all: many schedules share what one pass fires', async () => {
    await using engine = await EngineUnderTest.on([noop])
    for (let index = 0; index < 60; index += 1) await put(engine, { name: `s${index}`, catchUp: 'all' })
    for (let index = 0; index < 60; index += 1) await downSince(engine, 30, `s${index}`)
    expect(await engine.scheduler.tickOnce()).toBe(50)
    expect((await runs(engine)).length).toBeLessThanOrEqual(200)
    await tickAll(engine)
    const { rows } = await sql<{ n: number }>`SELECT count(*)::integer AS n FROM holdfast.schedule_run GROUP BY schedule`.execute(
      engine.database.db,
    )
    expect(rows).toHaveLength(60)
    for (const { n } of rows) expect(n).toBeGreaterThanOrEqual(31)
    await healthy(engine)
  })
})

describe('overlap', () => {
  test('allow: a run starts beside the one that is live', async () => {
    await using engine = await EngineUnderTest.on([noop])
    await put(engine, { catchUp: 'all' })
    await downSince(engine, 2)
    await engine.scheduler.tickOnce()
    expect((await runs(engine)).every(({ instance_id }) => instance_id !== null)).toBe(true)
    expect((await states(engine)).length).toBeGreaterThanOrEqual(3)
  })

  test('skip: while a run is live a tick makes none, and says so; the next one after its end does', async () => {
    await using engine = await EngineUnderTest.on([noop])
    await put(engine, { overlap: 'skip', cron: '0 0 1 1 *' })
    const first = await downSince(engine, 5)
    await engine.scheduler.tickOnce()
    const second = await downSince(engine, 3)
    await sql`UPDATE holdfast.schedule SET last_at = ${first.toISOString()}::timestamptz`.execute(engine.database.db)
    expect(await engine.scheduler.tickOnce()).toBe(1)
    expect(await runs(engine)).toEqual([
      { tick_at: first, instance_id: expect.any(String) as string },
      { tick_at: second, instance_id: null },
    ])
    expect(await get(engine)).toMatchObject({ last_at: first, skipped_at: second, skipped_why: 'overlap' })
    expect(await states(engine)).toHaveLength(1)

    await engine.drain()
    const third = await downSince(engine, 1)
    await engine.scheduler.tickOnce()
    expect((await runs(engine)).at(-1)).toEqual({ tick_at: third, instance_id: expect.any(String) as string })
    expect((await get(engine)).last_at).toEqual(third)
    await healthy(engine)
  })

  test('skip: of the ticks of one pass the first runs', async () => {
    await using engine = await EngineUnderTest.on([noop])
    await put(engine, { overlap: 'skip', catchUp: 'all' })
    const since = await downSince(engine, 5)
    await engine.scheduler.tickOnce()
    const ticks = await runs(engine)
    expect(ticks.length).toBeGreaterThanOrEqual(6)
    expect(ticks.filter(({ instance_id }) => instance_id !== null)).toEqual([{ tick_at: since, instance_id: expect.any(String) as string }])
  })

  test('queue: steps of two runs never execute at once, and the runs start in their order', async () => {
    let executing = 0
    let most = 0
    const order: JsonValue[] = []
    const slow = job('slow', {
      run: async (input: JsonValue) => {
        most = Math.max(most, (executing += 1))
        order.push(input)
        await sleep(20)
        executing -= 1
      },
    })
    await using engine = await EngineUnderTest.on([slow])
    await put(engine, { overlap: 'queue', catchUp: 'all', machine: 'slow', input: '"{{tick}}"' })
    await downSince(engine, 4)
    await engine.scheduler.tickOnce()
    const ticks = await runs(engine)
    expect(ticks.length).toBeGreaterThanOrEqual(5)
    await engine.drain()
    expect(most).toBe(1)
    expect(order).toEqual(ticks.map(({ tick_at }) => tick_at.toISOString().replace('.000Z', 'Z')))
  })

  test('queue: a gate that somebody names schedule changes nothing', async () => {
    await using engine = await EngineUnderTest.on([noop])
    await sql`INSERT INTO holdfast.limit_policy (project_id, kind, name, capacity) VALUES (${engine.projectId}::bigint, 'gate', 'schedule', 9)`.execute(
      engine.database.db,
    )
    await put(engine, { overlap: 'queue', catchUp: 'all' })
    await downSince(engine, 3)
    await engine.scheduler.tickOnce()
    const claimed = await engine.scheduler.runOnce()
    expect(claimed).toBe(1)
  })
})

describe('what cannot be fired is told on the schedule, is not tried again and again, and holds up no other', () => {
  /** Two schedules that are due, of which `broken` is made so by `how`. */
  async function broken(engine: EngineUnderTest, how: string): Promise<Date> {
    await put(engine, { name: 'broken', cron: '0 0 1 1 *', catchUp: 'one' })
    await put(engine, { name: 'sound', cron: '0 0 1 1 *' })
    await sql.raw(how).execute(engine.database.db)
    await downSince(engine, 30, 'sound')
    return downSince(engine, 40, 'broken')
  }
  test.each([
    [
      'an unknown machine',
      `UPDATE holdfast.schedule SET machine = 'gone' WHERE name = 'broken'`,
      'unknown_machine',
      `UPDATE holdfast.schedule SET machine = 'noop'`,
    ],
    [
      'an unknown version',
      `UPDATE holdfast.schedule SET version = 7 WHERE name = 'broken'`,
      'unknown_machine',
      `UPDATE holdfast.schedule SET version = 1`,
    ],
    [
      'a cron text that became invalid',
      `UPDATE holdfast.schedule SET cron = '61 * * * *' WHERE name = 'broken'`,
      'invalid_schedule',
      `UPDATE holdfast.schedule SET cron = '0 0 1 1 *'`,
    ],
    [
      'a time zone that is no more',
      `UPDATE holdfast.schedule SET timezone = 'Mars/Base' WHERE name = 'broken'`,
      'invalid_schedule',
      `UPDATE holdfast.schedule SET timezone = 'UTC'`,
    ],
    [
      'an insert that is refused',
      `UPDATE holdfast.schedule SET input = '"refused"' WHERE name = 'broken'; ALTER TABLE holdfast.instance ADD CONSTRAINT not_this CHECK (state <> '"refused"')`,
      'refused',
      `ALTER TABLE holdfast.instance DROP CONSTRAINT not_this`,
    ],
  ])('%s', async (_what, how, code, mend) => {
    await using engine = await EngineUnderTest.on([noop])
    const tick = await broken(engine, how)
    expect(await engine.scheduler.tickOnce()).toBe(1)
    expect(await get(engine, 'sound')).toMatchObject({ last_error: null, last_instance_id: expect.any(String) as string })
    const failing = await get(engine, 'broken')
    expect(failing).toMatchObject({ next_at: tick, last_at: null, failures: 1, last_error: { code } })
    expect(failing.last_error?.message).toMatch(/\w{4}/)
    expect(failing.due_at!.getTime() - failing.last_error_at!.getTime()).toBe(10_000)
    expect(engine.log.filter(({ message }) => message.startsWith('a schedule cannot be fired'))).toHaveLength(1)

    // Not looked at before its time; then once more, and put off for twice as long.
    expect(await engine.scheduler.tickOnce()).toBe(0)
    expect((await get(engine, 'broken')).failures).toBe(1)
    await sql`UPDATE holdfast.schedule SET due_at = now() WHERE name = 'broken'`.execute(engine.database.db)
    expect(await engine.scheduler.tickOnce()).toBe(0)
    const again = await get(engine, 'broken')
    expect([again.failures, again.due_at!.getTime() - again.last_error_at!.getTime()]).toEqual([2, 20_000])
    await sql`UPDATE holdfast.schedule SET due_at = now(), failures = 1000 WHERE name = 'broken'`.execute(engine.database.db)
    await engine.scheduler.tickOnce()
    const later = await get(engine, 'broken')
    expect(later.due_at!.getTime() - later.last_error_at!.getTime()).toBe(300_000)

    // Mended, it fires what its policy wants of what was missed, and the error is gone.
    await sql.raw(mend).execute(engine.database.db)
    await sql`UPDATE holdfast.schedule SET due_at = now() WHERE name = 'broken'`.execute(engine.database.db)
    expect(await engine.scheduler.tickOnce()).toBe(1)
    expect(await get(engine, 'broken')).toMatchObject({ last_at: tick, last_error: null, last_error_at: null, failures: 0 })
    await healthy(engine)
  })

  test('schedulers that meet the same fault count it once', async () => {
    await using engine = await EngineUnderTest.on([noop])
    await broken(engine, `UPDATE holdfast.schedule SET machine = 'gone' WHERE name = 'broken'`)
    const other = engine.another([noop])
    await Promise.all([engine.scheduler.tickOnce(), other.tickOnce(), engine.scheduler.tickOnce()])
    expect((await get(engine, 'broken')).failures).toBe(1)
  })
})

test('a paused schedule is not looked at, one of a suspended project rests', async () => {
  await using engine = await EngineUnderTest.on([noop])
  await put(engine, { name: 'paused', nextAt: undefined })
  await put(engine, { catchUp: 'one' })
  await sql`UPDATE holdfast.project SET suspended_at = now()`.execute(engine.database.db)
  await downSince(engine, 100)
  expect(await engine.scheduler.tickOnce()).toBe(0)
  await sql`UPDATE holdfast.project SET suspended_at = NULL`.execute(engine.database.db)
  expect(await engine.scheduler.tickOnce()).toBe(1)
  expect(await get(engine, 'paused')).toMatchObject({ next_at: null, last_at: null })
})

describe('once', () => {
  test('what was computed from a row that has changed since fires nothing; what was fired is not fired again', async () => {
    await using engine = await EngineUnderTest.on([noop])
    const { db } = engine.database
    await put(engine)
    const tick = await downSince(engine, 1)
    const [due] = await findDueSchedules(db, { limit: 1 })
    if (due?.name == null) throw new Error('it is not due')
    const firing = { projectId: engine.projectId, name: 'often', ticks: [tick], nextAt: new Date('2100-01-01T00:00:00Z') }
    const fire = (revision: string) => fireTicks(db, { firings: [{ ...firing, revision }] })
    expect(await fire(due.revision)).toMatchObject([{ fired: 1, overlapped: 0 }])
    expect(await fire(due.revision)).toEqual([])
    // Another definition, computed before: the row is a new one, and the tick is known.
    await downSince(engine, 1)
    const { rows } = await sql<{ revision: string }>`SELECT revision FROM holdfast.schedule`.execute(db)
    expect(await fire(rows[0]?.revision ?? '')).toMatchObject([{ fired: 0, overlapped: 0, queue: null }])
    expect(await states(engine)).toHaveLength(1)
    expect((await get(engine)).next_at).toEqual(firing.nextAt)
  })

  test('schedules that were read and deleted since fire nothing', async () => {
    await using engine = await EngineUnderTest.on([noop])
    const { db } = engine.database
    await put(engine)
    const tick = await downSince(engine, 1)
    const [due] = await findDueSchedules(db, { limit: 1 })
    if (due?.name == null) throw new Error('it is not due')
    await sql`DELETE FROM holdfast.schedule`.execute(db)
    const firing = {
      projectId: engine.projectId,
      name: 'often',
      revision: due.revision,
      ticks: [tick],
      nextAt: new Date('2100-01-01T00:00:00Z'),
    }
    expect(await fireTicks(db, { firings: [firing] })).toEqual([])
    expect(await states(engine)).toEqual([])
  })

  test('however many fire at the same moment', async () => {
    await using engine = await EngineUnderTest.on([noop])
    const others = [1, 2, 3].map(() => engine.another([noop]))
    for (let round = 0; round < 20; round += 1) {
      await put(engine, { name: `r${round}`, cron: '0 0 1 1 *' })
      await downSince(engine, 1, `r${round}`)
      await Promise.all([engine.scheduler, ...others].map((scheduler) => scheduler.tickOnce()))
    }
    expect(await runs(engine)).toHaveLength(20)
    expect(await states(engine)).toHaveLength(20)
    await healthy(engine)
  })

  test('schedulers that run: each second has its instance, within moments of its time, and no second has two', async () => {
    await using engine = await EngineUnderTest.on([noop])
    const schedulers = [engine.scheduler, engine.another([noop], { worker: 'w2' }), engine.another([noop], { worker: 'w3' })]
    await put(engine, { catchUp: 'all', nextAt: new Date(Math.ceil(Date.now() / 1_000 + 0.5) * 1_000) })
    for (const scheduler of schedulers) await scheduler.start()
    try {
      await sleep(4_500)
    } finally {
      await Promise.all(schedulers.map((scheduler) => scheduler.stop()))
    }
    const ticks = await runs(engine)
    expect(ticks.length).toBeGreaterThanOrEqual(3)
    expectConsecutive(ticks)
    expect(await states(engine)).toHaveLength(ticks.length)
    const { rows } = await sql<{
      late_ms: number
    }>`SELECT (extract(epoch FROM fired_at - tick_at) * 1000)::float8 AS late_ms FROM holdfast.schedule_run`.execute(engine.database.db)
    const late = rows.map(({ late_ms: ms }) => ms).toSorted((a, b) => a - b)
    expect(late[0]).toBeGreaterThanOrEqual(0)
    expect(late[Math.floor(late.length / 2)]).toBeLessThan(250)
    await healthy(engine)
  })
})

test('records of fired ticks go with the retention, but not within a day', async () => {
  await using engine = await EngineUnderTest.on([noop])
  await put(engine, { catchUp: 'all' })
  await downSince(engine, 3)
  await engine.scheduler.tickOnce()
  expect(await engine.reaper.scheduleRuns()).toBe(0)
  await sql`UPDATE holdfast.schedule_run SET fired_at = now() - interval '8 days' WHERE tick_at = (SELECT min(tick_at) FROM holdfast.schedule_run)`.execute(
    engine.database.db,
  )
  const before = (await runs(engine)).length
  expect(await engine.reaper.scheduleRuns()).toBe(1)
  expect(await runs(engine)).toHaveLength(before - 1)
})
