// N pickers × M keys × crashes: whatever dies in the middle of whatever, no limit is ever exceeded, and nothing of it is ever lost. Real sessions, each with its
// own connection, as the roles of the apps and by the engine's own statements; crashes are cut connections, forgotten claims and transactions that are rolled back.
import { setTimeout as sleep } from 'node:timers/promises'
import type { ProjectId } from '@holdfast/contracts'
import {
  applyGiven,
  applyOutcomes,
  applyRiders,
  type ClaimedRow,
  claim,
  createProject,
  type Executor,
  enqueue,
  isConnectionLoss,
  isLostRace,
  type NewInstance,
  nextWaitedKeys,
  promoteThrottled,
  putGate,
  putRateLimit,
  reapExpired,
  releaseClaims,
  ridersOf,
  ridersOfEnded,
  stageOutcomes,
  type StagedOutcome,
  wakeWaiters,
} from '@holdfast/queries'
import { connect, DatabaseRoles, type Db, engineSessionSettings, type Role } from '@holdfast/schema'
import { testDatabase } from '@holdfast/testbed'
import { sql } from 'kysely'
import { expect, test, vi } from 'vitest'
import { expectInvariants } from '../interleavings/races.ts'

vi.setConfig({ testTimeout: 120_000 })

const PICKERS = 6
const FLUSHERS = 2
const LEASE_MS = 150
const MACHINES = ['m/1']
/** High enough for a job to be lost again and again; a crash loop is another test's subject. */
const NEVER_TOO_OFTEN = 1_000_000
/** A run takes some seconds; one that hangs is told from a busy machine. */
const LIMIT_MS = 100_000

/** Random, and the same again for the same seed: what is printed when a run fails. */
class Dice {
  #state: number
  constructor(seed: number) {
    this.#state = seed >>> 0
  }
  /** In [0, 1). */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296
  }
  upTo(most: number): number {
    return 1 + Math.floor(this.next() * most)
  }
}

/** A session of an app that loses its connection now and then, as when its process is killed: another one takes its place. */
class Session implements AsyncDisposable {
  readonly #url: string
  readonly #role: Role
  readonly #admin: Db
  #db: Db
  constructor(url: string, role: Role, admin: Db) {
    this.#url = url
    this.#role = role
    this.#admin = admin
    this.#db = this.#open()
  }
  get db(): Db {
    return this.#db
  }
  #open(): Db {
    return connect({
      connectionString: this.#url,
      max: 1,
      role: DatabaseRoles[this.#role],
      settings: engineSessionSettings,
      onIdleError: () => {},
    })
  }
  /** Runs `work` in a transaction and cuts the connection before its commit. */
  async dieInside(work: (trx: Executor) => Promise<unknown>): Promise<void> {
    await this.#db
      .transaction()
      .execute(async (trx) => {
        await work(trx)
        const { rows } = await sql<{ pid: number }>`SELECT pg_backend_pid() AS pid`.execute(trx)
        await sql`SELECT pg_terminate_backend(${rows[0]?.pid}::integer)`.execute(this.#admin)
        await sql`SELECT 1`.execute(trx)
      })
      .then(
        () => {
          throw new Error('the connection should have been cut')
        },
        (error: unknown) => {
          if (!isConnectionLoss(error) && !isLostRace(error)) throw error
        },
      )
    await this.#db.destroy().catch(() => undefined)
    this.#db = this.#open()
  }
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#db.destroy().catch(() => undefined)
  }
}

/** What was lost against another session is tried again; anything else fails the test. */
async function retried<Result>(work: () => Promise<Result>): Promise<Result> {
  for (;;) {
    try {
      return await work()
    } catch (error) {
      if (!isLostRace(error)) throw error
    }
  }
}

const done = (row: ClaimedRow): StagedOutcome => ({
  instanceId: row.id,
  claimEpoch: row.claim_epoch,
  fromStep: 'start',
  attempt: 0,
  keepHistory: true,
  claimedAgoUs: 0,
  startedAgoUs: 0,
  finishedAgoUs: 0,
  kind: 'done',
  result: 'null',
  heldKey: row.concurrency_key ?? undefined,
})

interface Run {
  readonly url: string
  readonly admin: Db
  readonly projectId: ProjectId
  readonly seed: number
  /** `direct`: pickers apply their outcomes themselves. */
  readonly flush: 'staged' | 'direct'
  /** Everything that can run has ended. */
  finished(): Promise<boolean>
  /** Looked at again and again while the sessions run; throws when a limit is exceeded. */
  watch(): Promise<void>
  readonly limitMs: number
}

/** Wakes whoever waits for the keys of these rows, as every process does after a commit that ended claims or parked rows. */
const wake = async (db: Db, rows: readonly { project_id: ProjectId; concurrency_key: string | null }[]): Promise<void> => {
  const keys = rows.flatMap(({ project_id: projectId, concurrency_key: key }) => (key === null ? [] : [{ projectId, key }]))
  if (keys.length > 0) await retried(() => wakeWaiters(db, { keys }))
}

async function runToTheEnd(run: Run): Promise<{ crashes: number; claims: number }> {
  await using sessions = new AsyncDisposableStack()
  const open = (role: Role): Session => sessions.use(new Session(run.url, role, run.admin))
  let over = false
  const counts = { crashes: 0, claims: 0 }

  const picker = async (worker: string, dice: Dice): Promise<void> => {
    const session = open(run.flush === 'direct' ? 'direct-scheduler' : 'scheduler')
    while (!over) {
      const take = (db: Executor): Promise<ClaimedRow[]> =>
        claim(db, { queue: 'default', limit: dice.upTo(12), window: 12 + dice.upTo(30), worker, leaseMs: LEASE_MS, machines: MACHINES })
      if (dice.next() < 0.04) {
        counts.crashes += 1
        await session.dieInside(take)
        continue
      }
      const looked = await retried(() => take(session.db))
      const claimed = looked.filter(({ status }) => status === 'executing')
      counts.claims += claimed.length
      const parked = looked.filter(({ status }) => status === 'throttled')
      // Who dies here leaves those that it has parked to the reaper.
      if (dice.next() < 0.95) await wake(session.db, parked)
      if (claimed.length === 0) {
        await sleep(dice.upTo(10))
        continue
      }
      await sleep(dice.upTo(4))
      const fate = dice.next()
      if (fate < 0.15) {
        counts.crashes += 1 // killed: what it had claimed is forgotten, and its leases run out
      } else if (fate < 0.25) {
        // Stopped: what it had not begun is handed back.
        const params = { ids: claimed.map(({ id }) => id), epochs: claimed.map((row) => row.claim_epoch) }
        await wake(session.db, await retried(() => releaseClaims(session.db, params)))
      } else if (fate < 0.3) {
        counts.crashes += 1
        await session.dieInside((trx) => conclude(trx, worker, claimed))
      } else {
        // Slower than its lease now and then, so that what it stages or applies is stale.
        if (fate > 0.95) await sleep(LEASE_MS + dice.upTo(50))
        await retried(() => session.db.transaction().execute((trx) => conclude(trx, worker, claimed)))
        if (run.flush === 'direct') await wake(session.db, claimed)
      }
    }
  }

  const conclude = async (trx: Executor, worker: string, claimed: readonly ClaimedRow[]): Promise<void> => {
    const outcomes = claimed.map(done)
    if (run.flush === 'staged') {
      await stageOutcomes(trx, { worker, outcomes })
      return
    }
    const [applied] = await applyGiven(trx, { worker, outcomes, goesOn: outcomes.map(() => false), leaseMs: LEASE_MS })
    const riders = applied === undefined ? undefined : ridersOf(applied)
    if (riders !== undefined) await applyRiders(trx, riders)
  }

  const flusher = async (dice: Dice): Promise<void> => {
    const session = open('flusher')
    const apply = async (trx: Executor) => {
      const [applied] = await applyOutcomes(trx, { afterSeq: '0', limit: dice.upTo(40) })
      const riders = applied === undefined ? undefined : ridersOf(applied)
      if (riders !== undefined) await applyRiders(trx, riders)
      return applied
    }
    while (!over) {
      if (dice.next() < 0.1) {
        counts.crashes += 1
        await session.dieInside(apply)
        continue
      }
      const applied = await retried(() => session.db.transaction().execute(apply))
      const keys = (applied?.freed ?? []).map(({ project_id, key }) => ({ projectId: project_id as ProjectId, key }))
      // Who dies between its commit and this leaves them to the reaper.
      if (keys.length > 0 && dice.next() < 0.9) await retried(() => wakeWaiters(session.db, { keys }))
      if (applied?.taken === 0) await sleep(dice.upTo(5))
    }
  }

  const reaper = async (dice: Dice): Promise<void> => {
    const session = open('reaper')
    while (!over) {
      const reap = async (trx: Executor) => {
        const reaped = await reapExpired(trx, { limit: 50, defaultMaxReclaims: NEVER_TOO_OFTEN })
        const riders = ridersOfEnded(reaped)
        if (riders !== undefined) await applyRiders(trx, riders)
        return reaped
      }
      if (dice.next() < 0.1) {
        counts.crashes += 1
        await session.dieInside(reap)
      } else await wake(session.db, await retried(() => session.db.transaction().execute(reap)))
      const waited = await nextWaitedKeys(session.db, { projectId: '0' as ProjectId, key: '', limit: 1_000 })
      await wake(
        session.db,
        waited.map(({ project_id, key }) => ({ project_id, concurrency_key: key })),
      )
      await promoteThrottled(session.db, { limit: 100 })
      await sleep(20)
    }
  }

  const untilFinished = async (): Promise<void> => {
    const giveUpAtMs = performance.now() + run.limitMs
    while (!(await run.finished())) {
      await run.watch()
      if (performance.now() > giveUpAtMs) throw new Error(`not finished within ${run.limitMs} ms (seed ${run.seed})`)
    }
    await run.watch()
  }

  const working = [
    ...Array.from({ length: PICKERS }, (_, n) => picker(`picker-${n}`, new Dice(run.seed * 100 + n))),
    ...(run.flush === 'staged' ? Array.from({ length: FLUSHERS }, (_, n) => flusher(new Dice(run.seed * 100 + 50 + n))) : []),
    reaper(new Dice(run.seed * 100 + 90)),
  ]
  // An error of one of them ends the run at once instead of leaving it to its time limit.
  const failing = Promise.all(working)
  try {
    await Promise.race([untilFinished(), failing])
  } finally {
    over = true
    await Promise.allSettled(working)
  }
  await failing
  return counts
}

async function insertAll(admin: Db, projectId: ProjectId, instances: readonly Partial<NewInstance>[]): Promise<void> {
  const [row] = await enqueue(admin, {
    projectId,
    declaredOnly: false,
    instances: instances.map((fields) => ({ machine: 'm', ...fields })),
  })
  expect(row?.inserted).toHaveLength(instances.length)
}

async function rowsOf<Row>(admin: Db, query: ReturnType<typeof sql<Row>>): Promise<readonly Row[]> {
  return (await query.execute(admin)).rows
}

interface Held {
  readonly key: string
  readonly executing: number
  readonly held: number
  readonly astray: number
}

/** By key: what executes, what slots are held, and which of those are held for nobody; in one snapshot. */
const held = (admin: Db): Promise<readonly Held[]> =>
  rowsOf(
    admin,
    sql<Held>`
    SELECT k.key, coalesce(e.executing, 0)::int AS executing, coalesce(s.held, 0)::int AS held, coalesce(s.astray, 0)::int AS astray
    FROM (SELECT DISTINCT concurrency_key AS key FROM holdfast.instance WHERE concurrency_key IS NOT NULL) k
    LEFT JOIN (SELECT concurrency_key AS key, count(*) AS executing FROM holdfast.instance WHERE status = 'executing' GROUP BY 1) e USING (key)
    LEFT JOIN (
      SELECT s.key, count(s.holder_id) AS held, count(s.holder_id) FILTER (WHERE g.id IS NULL) AS astray
      FROM holdfast.gate_slot s
      LEFT JOIN holdfast.instance g ON g.id = s.holder_id AND g.claim_epoch = s.holder_epoch AND g.status = 'executing' AND g.gate_slot = s.slot
      GROUP BY 1
    ) s USING (key)`,
  )

const allDone = async (admin: Db): Promise<boolean> => {
  const [row] = await rowsOf(
    admin,
    sql<{ ok: boolean }>`SELECT NOT EXISTS (SELECT FROM holdfast.instance WHERE status <> 'done')
      AND NOT EXISTS (SELECT FROM holdfast.outcome) AS ok`,
  )
  return row?.ok === true
}

async function onDatabase(work: (parts: { admin: Db; url: string; projectId: ProjectId }) => Promise<void>): Promise<void> {
  await using database = await testDatabase()
  const [project] = await createProject(database.db, { name: 'default' })
  if (project === undefined) throw new Error('no project')
  await work({ admin: database.db, url: database.url, projectId: project.id })
}

test.each([
  ['staged', 1],
  ['direct', 2],
] as const)('gates and serial keys, %s: never over the cap, and after the drain exactly the cap is free', async (flush, seed) => {
  await onDatabase(async ({ admin, url, projectId }) => {
    const caps = new Map([
      ['one', 1],
      ['three', 3],
      ['seven:eu', 7],
      ['seven:us', 7],
      ['serial', 1],
    ])
    for (const [name, capacity] of [
      ['one', 1],
      ['three', 3],
      ['seven', 7],
    ] as const)
      await putGate(admin, { projectId, name, capacity })
    const keys = [...caps.keys()]
    const jobs = Array.from({ length: 200 }, (_, n) => {
      const concurrencyKey = keys[n % (keys.length + 1)]
      return { priority: n % 3, ...(concurrencyKey === undefined ? {} : { concurrencyKey }) }
    })
    await insertAll(admin, projectId, jobs)

    let mostAtOnce = 0
    const { crashes, claims } = await runToTheEnd({
      admin,
      url,
      projectId,
      seed,
      flush,
      limitMs: LIMIT_MS,
      finished: () => allDone(admin),
      watch: async () => {
        for (const { key, executing, held: slots, astray } of await held(admin)) {
          const cap = caps.get(key) ?? 0
          if (executing > cap || slots > cap || astray > 0)
            throw new Error(
              `${key} allows ${cap}: ${executing} execute, ${slots} slots are held, ${astray} of them for nobody (seed ${seed})`,
            )
          mostAtOnce = Math.max(mostAtOnce, executing)
        }
      },
    })
    // Otherwise nothing was tried.
    expect(crashes).toBeGreaterThan(10)
    expect(claims).toBeGreaterThan(jobs.length)
    expect(mostAtOnce).toBeGreaterThan(1)
    await expectInvariants(admin)

    // Everything is free: each key admits exactly its cap, and the one that comes after it waits.
    await insertAll(
      admin,
      projectId,
      keys.flatMap((concurrencyKey) => Array.from({ length: (caps.get(concurrencyKey) ?? 0) + 1 }, () => ({ concurrencyKey }))),
    )
    const looked = await claim(admin, { queue: 'default', limit: 1_000, worker: 'last', leaseMs: 60_000, machines: MACHINES })
    const admitted = Map.groupBy(
      looked.filter(({ status }) => status === 'executing'),
      (row) => row.concurrency_key ?? '',
    )
    expect(new Map([...admitted].map(([key, rows]) => [key, rows.length]))).toEqual(caps)
    const slots = await rowsOf(
      admin,
      sql<{ key: string; slots: number }>`SELECT key, count(*)::int AS slots FROM holdfast.gate_slot GROUP BY key ORDER BY key`,
    )
    // No slot was made beside another, or beyond the cap.
    expect(slots.filter(({ key, slots: made }) => made > (caps.get(key) ?? 0))).toEqual([])
  })
})

test('the watch sees a slot that nobody frees', async () => {
  await onDatabase(async ({ admin, url, projectId }) => {
    await sql`DROP TRIGGER instance_frees_gate_slot ON holdfast.instance`.execute(admin)
    await putGate(admin, { projectId, name: 'g', capacity: 3 })
    await insertAll(
      admin,
      projectId,
      Array.from({ length: 30 }, () => ({ concurrencyKey: 'g' })),
    )
    const watch = async (): Promise<void> => {
      for (const { astray } of await held(admin)) if (astray > 0) throw new Error('held for nobody')
    }
    const run = { admin, url, projectId, seed: 6, flush: 'staged', limitMs: 20_000, finished: () => allDone(admin), watch } as const
    await expect(runToTheEnd(run)).rejects.toThrow('held for nobody')
  })
})

test.each([
  ['staged', 1, 3],
  ['direct', 1, 4],
  ['staged', 5, 5],
] as const)('rate 0, burst b, %s, %i shards: exactly b grants, whoever dies', async (flush, shards, seed) => {
  await onDatabase(async ({ admin, url, projectId }) => {
    const bursts = new Map([
      ['seven', 7],
      ['forty:a', 40],
      ['forty:b', 40],
    ])
    for (const [name, burst] of [
      ['seven', 7],
      ['forty', 40],
    ] as const)
      await putRateLimit(admin, { projectId, name, rate: 0, periodMs: 1_000, burst, shards })
    const keys = [...bursts.keys()]
    // Some have a serial key as well: what that denies must not be debited.
    const jobs = Array.from({ length: 240 }, (_, n) => ({
      rateKey: keys[n % keys.length] ?? '',
      ...(n % 5 === 0 ? { concurrencyKey: `serial-${n % 3}` } : {}),
    }))
    await insertAll(admin, projectId, jobs)

    // Each claim of a job takes a token: also the one after a crash, because nobody knows whether the call was made.
    const grants = (): Promise<readonly { key: string; grants: number }[]> =>
      rowsOf(
        admin,
        sql<{
          key: string
          grants: number
        }>`SELECT rate_key AS key, sum(claim_epoch)::int AS grants FROM holdfast.instance GROUP BY rate_key`,
      )
    const { crashes } = await runToTheEnd({
      admin,
      url,
      projectId,
      seed,
      flush,
      limitMs: LIMIT_MS,
      // All of the burst is spent, and nothing is under way that could still want more of it.
      finished: async () => {
        const [row] = await rowsOf(
          admin,
          sql<{ ok: boolean }>`SELECT NOT EXISTS (SELECT FROM holdfast.instance WHERE status IN ('runnable', 'executing'))
            AND NOT EXISTS (SELECT FROM holdfast.outcome) AS ok`,
        )
        return row?.ok === true
      },
      watch: async () => {
        for (const { key, grants: granted } of await grants()) {
          const burst = bursts.get(key) ?? 0
          if (granted > burst) throw new Error(`${key} allows ${burst} for ever, and ${granted} were granted (seed ${seed})`)
        }
      },
    })
    expect(crashes).toBeGreaterThan(0)
    expect(new Map((await grants()).map(({ key, grants: granted }) => [key, granted]))).toEqual(bursts)
    const left = await rowsOf(
      admin,
      sql<{
        key: string
        tokens: number
      }>`SELECT key, sum(tokens)::int AS tokens FROM holdfast.rate_bucket GROUP BY key HAVING sum(tokens) <> 0`,
    )
    expect(left).toEqual([])
    await expectInvariants(admin)
  })
})
