// Workers without an engine around them: the statements a scheduler sends, on sessions of their own, that crash where it hurts.
import { setTimeout as sleep } from 'node:timers/promises'
import {
  applyGiven,
  applyRiders,
  type ClaimedRow,
  claim,
  endInstances,
  type Executor,
  isConnectionLoss,
  isLostRace,
  keysToWake,
  nextWaitedKeys,
  promoteThrottled,
  reapExpired,
  ridersOf,
  wakeWaiters,
} from '@holdfast/queries'
import { connect, type Db, engineSessionSettings } from '@holdfast/schema'
import { sql } from 'kysely'

export interface RunOptions {
  readonly url: string
  readonly workers: number
  /** Of a hundred claims: those whose worker dies before it has answered, and those whose session ends within the transaction of the answer. */
  readonly crashPercent: number
  readonly leaseMs: number
  /** Steps of each instance, all under its key; after each it is runnable again. */
  readonly steps: number
  /** Most milliseconds that a step takes. */
  readonly stepMs: number
  readonly seed: number
}

export interface RunReport {
  readonly claims: number
  readonly crashes: number
  /** Claims that met another one and tried again. */
  readonly lostRaces: number
}

/** Works off what is there with several workers and a reaper, until nothing can run any more. */
export async function workOff(options: RunOptions): Promise<RunReport> {
  const { url, workers } = options
  await using opened = new AsyncDisposableStack()
  const open = (): Db => opened.adopt(connect({ connectionString: url, max: 1, settings: engineSessionSettings }), (db) => db.destroy())
  const over = new AbortController()
  const crew = Array.from({ length: workers }, (_, index) => new Worker(open(), `worker-${index}`, options, options.seed + index))
  const healing = heal(open(), over.signal)
  const watching = untilAtRest(open(), over)
  await Promise.all([watching, healing, ...crew.map((worker) => worker.run(over.signal))])
  const sum = (of: (worker: Worker) => number): number => crew.reduce((total, worker) => total + of(worker), 0)
  return { claims: sum((worker) => worker.claims), crashes: sum((worker) => worker.crashes), lostRaces: sum((worker) => worker.lostRaces) }
}

class Worker {
  readonly #db: Db
  readonly #name: string
  readonly #options: RunOptions
  #random: number
  claims = 0
  crashes = 0
  lostRaces = 0

  constructor(db: Db, name: string, options: RunOptions, seed: number) {
    this.#db = db
    this.#name = name
    this.#options = options
    this.#random = seed
  }

  async run(over: AbortSignal): Promise<void> {
    while (!over.aborted) {
      try {
        const looked = await this.#claim()
        const keys = keysToWake(looked)
        // Who dies here leaves it to the reaper.
        if (keys.length > 0 && !this.#crashes()) await wakeWaiters(this.#db, { keys })
        const running = looked.filter(({ status }) => status === 'executing')
        if (running.length === 0) await sleep(2)
        await Promise.all(running.map(() => sleep(this.#below(this.#options.stepMs + 1))))
        if (running.length > 0) await this.#answer(running)
      } catch (error) {
        // A session that was ended; the pool makes another.
        if (!isConnectionLoss(error) && !isLostRace(error)) throw error
      }
    }
  }

  async #claim(): Promise<ClaimedRow[]> {
    const limit = 1 + this.#below(4)
    for (;;) {
      try {
        const looked = await claim(this.#db, {
          queue: 'default',
          limit,
          window: limit + this.#below(20),
          worker: this.#name,
          leaseMs: this.#options.leaseMs,
          machines: ['m/1'],
        })
        this.claims += looked.filter(({ status }) => status === 'executing').length
        return looked
      } catch (error) {
        if (!isLostRace(error)) throw error
        this.lostRaces += 1
      }
    }
  }

  async #answer(running: readonly ClaimedRow[]): Promise<void> {
    if (this.#crashes()) return // their leases run out
    const dies = this.#crashes()
    const applied = await this.#db.transaction().execute(async (trx) => {
      const outcomes = running.map((row) => ({
        instanceId: row.id,
        claimEpoch: row.claim_epoch,
        // Most go on under the same key and are runnable again at once: a claim that is on its way to such a row meets another version of it.
        ...(stepsDone(row) < this.#options.steps - 1
          ? { kind: 'next' as const, step: `step-${stepsDone(row) + 1}` }
          : { kind: 'done' as const, result: 'null' }),
        fromStep: row.step,
        attempt: row.attempt,
        heldKey: row.concurrency_key ?? undefined,
        keepHistory: true,
        claimedAgoUs: 0,
        startedAgoUs: 0,
        finishedAgoUs: 0,
      }))
      const [row] = await applyGiven(trx, { worker: this.#name, outcomes, goesOn: [], leaseMs: this.#options.leaseMs })
      const follow = row === undefined ? undefined : ridersOf(row)
      if (follow !== undefined) await applyRiders(trx, follow)
      if (dies) await sql`SELECT pg_terminate_backend(pg_backend_pid())`.execute(trx)
      return row
    })
    if (applied?.freed != null && !this.#crashes())
      await wakeWaiters(this.#db, {
        keys: applied.freed.map(({ project_id, key }) => ({ projectId: project_id as ClaimedRow['project_id'], key })),
      })
  }

  #crashes(): boolean {
    if (this.#below(100) >= this.#options.crashPercent) return false
    this.crashes += 1
    return true
  }

  /** A whole number from 0 to below `limit`; the same sequence for the same seed. */
  #below(limit: number): number {
    this.#random = (Math.imul(this.#random, 1_664_525) + 1_013_904_223) >>> 0
    return Math.floor((this.#random / 2 ** 32) * limit)
  }
}

/** They are named `start`, `step-1`, `step-2` … */
const stepsDone = ({ step }: ClaimedRow): number => (step === 'start' ? 0 : Number(step.slice('step-'.length)))

async function heal(db: Db, over: AbortSignal): Promise<void> {
  while (!over.aborted) {
    await endInstances(db, (trx: Executor) => reapExpired(trx, { limit: 1_000, defaultMaxReclaims: 1_000_000 }))
    await promoteThrottled(db, { limit: 1_000 })
    const keys = await nextWaitedKeys(db, { projectId: '0' as ClaimedRow['project_id'], key: '', limit: 1_000 })
    if (keys.length > 0) await wakeWaiters(db, { keys: keys.map(({ project_id: projectId, key }) => ({ projectId, key })) })
    await sleep(20)
  }
}

/** Ends the run when nothing executes and nothing may: all that is left waits for ever. */
async function untilAtRest(db: Db, over: AbortController): Promise<void> {
  for (;;) {
    const { rows } = await sql<{ busy: boolean }>`SELECT EXISTS (
      SELECT FROM holdfast.instance WHERE status IN ('runnable', 'executing') OR (status = 'throttled' AND throttled_until IS DISTINCT FROM 'infinity')
    ) AS busy`.execute(db)
    if (rows[0]?.busy === false) break
    await sleep(10)
  }
  over.abort()
}
