// Nothing is made and nothing is lost: pickers race for the slots and tokens of many keys, and die.
// `HOLDFAST_CONSERVATION=10` makes it ten times as large.
import { setTimeout as sleep } from 'node:timers/promises'
import type { ProjectId } from '@holdfast/contracts'
import { checkInvariants } from '@holdfast/invariants'
import { claim, createProject, enqueue, putGate, putRateLimit } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'
import { type TestDatabase, testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { workOff } from './workers.ts'

const SIZE = Number(process.env['HOLDFAST_CONSERVATION'] ?? '1')
const limit = { timeout: 60_000 * SIZE }

let database: TestDatabase
let projectId: ProjectId
beforeEach(async () => {
  database = await testDatabase()
  const [project] = await createProject(database.db, { name: 'default' })
  projectId = project!.id
})
afterEach(async () => {
  await database[Symbol.asyncDispose]()
})

async function insertAll(instances: readonly object[]): Promise<void> {
  for (let at = 0; at < instances.length; at += 5_000)
    await enqueue(database.db, {
      projectId,
      declaredOnly: false,
      instances: instances.slice(at, at + 5_000).map((fields) => ({ machine: 'm', ...fields })),
    })
}
const allBroken = async (db: Db) => (await checkInvariants(db, { graceMs: 600_000 })).filter(({ severity }) => severity === 'broken')

/** Looks, for as long as `work` takes, at what executes. Answers how often it looked, and every key of which it saw more than it may. */
async function watched(
  work: Promise<unknown>,
): Promise<{ readonly looks: number; readonly most: ReadonlyMap<string, number>; readonly over: readonly unknown[] }> {
  const running = { over: false }
  const ended = work.finally(() => (running.over = true))
  const most = new Map<string, number>()
  const over: unknown[] = []
  let looks = 0
  while (!running.over) {
    const { rows } = await sql<{ key: string; executing: number; capacity: number; held: number }>`
      SELECT g.concurrency_key AS key, count(*)::integer AS executing, coalesce(p.capacity, 1) AS capacity,
        (SELECT count(*)::integer FROM holdfast.gate_slot s WHERE s.key = g.concurrency_key AND s.holder_id IS NOT NULL) AS held
      FROM holdfast.instance g
      LEFT JOIN holdfast.limit_policy p ON p.kind = 'gate' AND p.name = split_part(g.concurrency_key, ':', 1)
      WHERE g.status = 'executing' GROUP BY g.concurrency_key, p.capacity`.execute(database.db)
    looks += 1
    for (const row of rows) {
      most.set(row.key, Math.max(most.get(row.key) ?? 0, row.executing))
      if (row.executing > row.capacity || (row.held > 0 && row.held !== row.executing)) over.push(row)
    }
    await sleep(1)
  }
  await ended
  return { looks, most, over }
}

test('R7: pickers × keys × crashes: never over a cap, and after the drain exactly the cap is free', limit, async () => {
  const capacities = [1, 2, 3, 5]
  for (const capacity of capacities) await putGate(database.db, { projectId, name: `gate${capacity}`, capacity })
  const gates = capacities.flatMap((capacity) => ['a', 'b'].map((partition) => ({ key: `gate${capacity}:${partition}`, capacity })))
  const serial = ['serial-1', 'serial-2'].map((key) => ({ key, capacity: 1 }))
  const keys = [...gates, ...serial]
  const jobs = 20 * SIZE
  await insertAll(Array.from({ length: jobs }, () => keys.map(({ key }) => ({ concurrencyKey: key }))).flat())

  const work = workOff({ url: database.url, workers: 6, crashPercent: 4, leaseMs: 150, steps: 3, stepMs: 3, seed: 20_260 })
  const { looks, most, over } = await watched(work)
  const report = await work
  expect(over).toEqual([])
  expect(looks).toBeGreaterThan(20)
  expect(report.crashes).toBeGreaterThan(5)
  // It was worth looking: of each larger gate more than one was seen at once.
  for (const { key, capacity } of gates) if (capacity > 1) expect(most.get(key), key).toBeGreaterThan(1)
  expect(await allBroken(database.db)).toEqual([])

  const { rows } = await sql<{
    status: string
    n: number
  }>`SELECT status, count(*)::integer AS n FROM holdfast.instance GROUP BY status`.execute(database.db)
  expect(rows).toEqual([{ status: 'done', n: jobs * keys.length }])
  const { rows: held } = await sql`SELECT FROM holdfast.gate_slot WHERE holder_id IS NOT NULL`.execute(database.db)
  expect(held).toEqual([])
  // Exactly the cap is to be had.
  for (const { key, capacity } of keys) {
    await insertAll(Array.from({ length: capacity + 2 }, () => ({ concurrencyKey: key, queue: key })))
    const looked = await claim(database.db, { queue: key, limit: 100, worker: 'afterwards', leaseMs: 60_000, machines: ['m/1'] })
    expect([key, looked.filter(({ status }) => status === 'executing').length]).toEqual([key, capacity])
  }
})

test(
  'R8, N5: rate 0, burst b, many cold keys, racing workers, crashes: exactly b grants for each key, and no token left',
  limit,
  async () => {
    const limits = [
      { name: 'r5', burst: 5, shards: 1 },
      { name: 'r13', burst: 13, shards: 5 },
      { name: 'r7', burst: 7, shards: 3 },
    ]
    for (const policy of limits) await putRateLimit(database.db, { projectId, rate: 0, periodMs: 1_000, ...policy })
    const partitions = 12 * SIZE
    const keys = limits.flatMap(({ name, burst }) => Array.from({ length: partitions }, (_, n) => ({ key: `${name}:${n}`, burst })))
    // In turn, so that each claim meets many keys.
    await insertAll(Array.from({ length: 16 }, () => keys.map(({ key }) => ({ rateKey: key }))).flat())

    const report = await workOff({ url: database.url, workers: 8, crashPercent: 3, leaseMs: 150, steps: 1, stepMs: 1, seed: 47 })
    expect(report.crashes).toBeGreaterThan(5)
    // A claim is a grant, also of one that was taken back and claimed again.
    const { rows } = await sql<{ key: string; grants: number; tokens: number; least: number }>`
    SELECT g.rate_key AS key, sum(g.claim_epoch)::integer AS grants,
      (SELECT sum(b.tokens)::integer FROM holdfast.rate_bucket b WHERE b.key = g.rate_key) AS tokens,
      (SELECT min(b.tokens)::integer FROM holdfast.rate_bucket b WHERE b.key = g.rate_key) AS least
    FROM holdfast.instance g GROUP BY g.rate_key`.execute(database.db)
    const found = new Map(rows.map(({ key, ...row }) => [key, row]))
    for (const { key, burst } of keys) expect([key, found.get(key)]).toEqual([key, { grants: burst, tokens: 0, least: 0 }])
    expect(await allBroken(database.db)).toEqual([])
  },
)
