import type { InstanceId } from '@holdfast/contracts'
import { type ClaimedRow, claim, type Executor, type InboxRow, isConnectionLoss, isLostRace, loadInbox } from '@holdfast/queries'
import { ClaimPace, MAX_AHEAD } from './claim-pace.ts'
import type { HeldClaim } from './lease-keeper.ts'
import type { Logger } from './logger.ts'
import type { MachineRegistry } from './machine-registry.ts'
import { type Claimed, type RunnerResources, type RunOutcome, runStep } from './run-step.ts'
import { LazyAbort } from './step-context.ts'

export interface QueueWorkerOptions extends RunnerResources {
  readonly db: Executor
  readonly queue: string
  /** Steps of this queue that execute at once in this process. */
  readonly concurrency: number
  readonly worker: string
  readonly leaseMs: number
  readonly machines: MachineRegistry
  readonly logger: Logger
  /** Longest pause between two looks at an empty queue that nobody hints at. */
  readonly maxIdleMs: number
  /** Outcomes that may wait to be staged before this queue stops claiming. */
  readonly maxUnstaged: number
  readonly unstaged: () => number
  readonly onClaimed: (claims: readonly Claimed[]) => void
  /** Claimed, and not going to be run by us: hand them back. */
  readonly onUnrun: (claims: readonly HeldClaim[]) => void
  /** A step with a timeout has started: its lease is not to be renewed for ever. */
  readonly onTimed: (claimed: Claimed, timeoutMs: number) => void
  readonly onOutcome: (outcome: RunOutcome) => void
}

/** Most claims in one statement; past some hundreds a larger one gains nothing (11–16 µs a row either way). */
const MAX_CLAIM = 1_000
/** Claims that a queue may hold beyond those that execute: its buffer, and one claim on its way. */
export const MOST_CLAIMED_AHEAD: number = MAX_AHEAD + MAX_CLAIM
/** First pause after an empty claim; doubles up to `maxIdleMs`. Short, because hints are coalesced and the next one may be under way. */
const FIRST_IDLE_MS = 10
/** How long a small demand may wait for more to come together, so that busy queues claim in batches. */
const GATHER_MS = 5
/** A claim that lost the race for a serial key sees the winner at once. */
const CLAIM_ATTEMPTS = 3
const MAX_ERROR_PAUSE_MS = 5_000

/**
 * Claims from one queue and runs what it has claimed: as many steps at once as `concurrency` allows, with a small buffer ahead when steps are
 * fast (see {@link ClaimPace}).
 */
export class QueueWorker {
  readonly #options: QueueWorkerOptions
  readonly #pace = new ClaimPace()
  readonly #running = new Set<Claimed>()
  #buffer: Claimed[] = []
  #stopped = true
  #claiming: Promise<void> | undefined
  #wakeDuringClaim = false
  #timer: NodeJS.Timeout | undefined
  #timerAtMs = Number.POSITIVE_INFINITY
  #idleMs = FIRST_IDLE_MS
  #errors = 0
  #onEmpty: (() => void)[] = []
  lastProgressMs = performance.now()

  constructor(options: QueueWorkerOptions) {
    this.#options = options
  }

  get running(): number {
    return this.#running.size
  }
  get buffered(): number {
    return this.#buffer.length
  }

  start(): void {
    if (!this.#stopped) return
    this.#stopped = false
    this.wake()
  }

  /** Something may be runnable: look now. */
  wake(): void {
    if (this.#stopped) return
    if (this.#claiming !== undefined) {
      this.#wakeDuringClaim = true
      return
    }
    this.#idleMs = FIRST_IDLE_MS
    this.#refill(true)
  }

  /** Outcomes have been staged: there may be room again. */
  refill(): void {
    if (!this.#stopped) this.#refill(false)
  }

  /** Claims once and runs everything claimed; answers how many. For tests and drains; not while started. */
  async runOnce(): Promise<number> {
    const rows = await this.#claim(Math.min(MAX_CLAIM, this.#options.concurrency))
    this.#startBuffered()
    await this.#whenEmpty()
    return rows
  }

  /** Claims no more; answers what was claimed and not started, to be handed back. */
  async stop(): Promise<HeldClaim[]> {
    this.#stopped = true
    this.#clearTimer()
    await this.#claiming
    const left = this.#buffer
    this.#buffer = []
    return left.map(({ row }) => ({ id: row.id, epoch: row.claim_epoch }))
  }

  /** Resolves when no step runs; never rejects. */
  async idle(): Promise<void> {
    if (this.#running.size > 0) await this.#whenEmpty()
  }

  abortAll(reason: Error): void {
    for (const claimed of this.#running) claimed.abort.abort(reason)
  }
  stillRunning(): HeldClaim[] {
    return [...this.#running].map(({ row }) => ({ id: row.id, epoch: row.claim_epoch }))
  }
  lose(id: InstanceId, epoch: string, reason: Error): void {
    for (const claimed of this.#running) if (claimed.row.id === id && claimed.row.claim_epoch === epoch) claimed.abort.abort(reason)
    // Not started yet: its outcome would be dropped, so it is not even run.
    this.#buffer = this.#buffer.filter(({ row }) => row.id !== id || row.claim_epoch !== epoch)
  }

  #refill(woken: boolean): void {
    if (this.#stopped || this.#claiming !== undefined) return
    const nowMs = performance.now()
    const { concurrency, maxUnstaged, unstaged } = this.#options
    if (unstaged() >= maxUnstaged) return // staging calls refill()
    const target = concurrency + this.#pace.ahead(nowMs)
    const want = Math.min(MAX_CLAIM, target - this.#running.size - this.#buffer.length)
    if (want <= 0) return // the next end calls refill()
    if (!woken && this.#timerAtMs !== Number.POSITIVE_INFINITY && this.#timerAtMs - nowMs > GATHER_MS) return // empty at the last look; wait for the timer or a hint
    if (!woken && want < target / 2 && this.#running.size + this.#buffer.length > 0) {
      this.#after(GATHER_MS)
      return
    }
    this.#clearTimer()
    this.#claiming = this.#claimAndStart(want).finally(() => {
      this.#claiming = undefined
      if (this.#stopped) return
      if (this.#wakeDuringClaim) {
        this.#wakeDuringClaim = false
        this.wake()
      } else if (this.#timerAtMs === Number.POSITIVE_INFINITY) this.#refill(false)
    })
  }

  async #claimAndStart(want: number): Promise<void> {
    try {
      const claimed = await this.#claim(want)
      this.#errors = 0
      this.lastProgressMs = performance.now()
      if (claimed === 0) {
        this.#after(this.#idleMs)
        this.#idleMs = Math.min(this.#options.maxIdleMs, this.#idleMs * 2)
        return
      }
      this.#idleMs = FIRST_IDLE_MS
      if (claimed < want) this.#after(FIRST_IDLE_MS) // that was all there is; another look at once would find nothing
      if (!this.#stopped) this.#startBuffered()
    } catch (error) {
      this.#errors += 1
      const pauseMs = Math.min(MAX_ERROR_PAUSE_MS, 50 * 2 ** Math.min(this.#errors, 10)) * (0.5 + Math.random() / 2)
      if (this.#errors === 1 || this.#errors % 20 === 0 || !isConnectionLoss(error)) {
        this.#options.logger.warn({ err: error, queue: this.#options.queue, consecutive: this.#errors }, 'claim failed; trying again')
      }
      this.#after(pauseMs)
    }
  }

  async #claim(limit: number): Promise<number> {
    const { db, queue, worker, leaseMs, machines } = this.#options
    const rows = await this.#claimRows({ queue, limit, worker, leaseMs, machines: machines.keys() })
    if (rows.length === 0) return 0
    const claimedAtMs = performance.now()
    const claims: Claimed[] = rows.map((row) => ({ row, inbox: NOTHING, abort: new LazyAbort(), claimedAtMs }))
    this.#options.onClaimed(claims)
    try {
      // After the claim has committed, so that it holds every signal that woke one of these rows.
      const inbox = await loadInbox(db, { ids: rows.map((row) => row.id) })
      if (inbox.length > 0) attachInbox(claims, inbox)
    } catch (error) {
      // Leased to us with nobody to run them (R19): back with them, and if that fails too their leases run out.
      this.#options.onUnrun(rows.map((row) => ({ id: row.id, epoch: row.claim_epoch })))
      throw error
    }
    this.#buffer.push(...claims)
    return rows.length
  }

  async #claimRows(params: Parameters<typeof claim>[1]): Promise<ClaimedRow[]> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await claim(this.#options.db, params)
      } catch (error) {
        if (!isLostRace(error) || attempt === CLAIM_ATTEMPTS) throw error
      }
    }
  }

  #startBuffered(): void {
    const { concurrency, machines, onTimed } = this.#options
    while (this.#running.size < concurrency) {
      const claimed = this.#buffer.shift()
      if (claimed === undefined) return
      const timeoutMs = machines.get(claimed.row.machine, claimed.row.version)?.steps.get(claimed.row.step)?.timeoutMs
      if (timeoutMs !== undefined) onTimed(claimed, timeoutMs)
      this.#running.add(claimed)
      void this.#run(claimed)
    }
  }

  async #run(claimed: Claimed): Promise<void> {
    const { row } = claimed
    const machine = this.#options.machines.get(row.machine, row.version)
    // The claim statement takes only what the registry has.
    if (machine === undefined) throw new Error(`claimed ${row.machine} version ${row.version}, which this process does not know`)
    const outcome = await runStep(claimed, machine, this.#options)
    this.#running.delete(claimed)
    this.#pace.finished(1, performance.now())
    this.#options.onOutcome(outcome)
    this.#startBuffered()
    if (this.#running.size === 0 && this.#buffer.length === 0) for (const resolve of this.#onEmpty.splice(0)) resolve()
    if (!this.#stopped) this.#refill(false)
  }

  async #whenEmpty(): Promise<void> {
    if (this.#running.size === 0 && this.#buffer.length === 0) return
    await new Promise<void>((resolve) => this.#onEmpty.push(resolve))
  }

  #after(ms: number): void {
    const atMs = performance.now() + ms
    if (atMs >= this.#timerAtMs) return
    this.#clearTimer()
    this.#timerAtMs = atMs
    this.#timer = setTimeout(() => {
      this.#clearTimer()
      this.#refill(true)
    }, ms)
  }
  #clearTimer(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    this.#timerAtMs = Number.POSITIVE_INFINITY
  }
}

const NOTHING: readonly InboxRow[] = []

function attachInbox(claims: Claimed[], inbox: readonly InboxRow[]): void {
  const byTarget = Map.groupBy(inbox, (signal) => signal.target_id)
  for (const [index, claimed] of claims.entries()) {
    const signals = byTarget.get(claimed.row.id)
    if (signals !== undefined) claims[index] = { ...claimed, inbox: signals }
  }
}
