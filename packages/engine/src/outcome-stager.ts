import { Channels, type InstanceId } from '@holdfast/contracts'
import { type Executor, isConnectionLoss, isLostRace, stageOutcomes } from '@holdfast/queries'
import type { Hints } from './hints.ts'
import type { Logger } from './logger.ts'
import { type RunOutcome, rejectedOutcome } from './run-step.ts'

export interface StagerOptions {
  readonly db: Executor
  readonly worker: string
  readonly hints: Hints
  readonly logger: Logger
  /** Most outcomes in one INSERT. Default 1,000: past some hundreds a larger one gains nothing and holds more in memory. */
  readonly maxBatch?: number
  /** Called when outcomes are durable or known to be stale: their slots and claims are over. */
  readonly onStaged: (outcomes: readonly RunOutcome[], staleIds: readonly InstanceId[]) => void
}

/** Longest pause between two attempts to store outcomes while the database is away. */
const MAX_RETRY_MS = 2_000

/**
 * Collects the outcomes of steps and stores them in multi-row inserts: at once while nothing is under way (leading edge: an idle system
 * answers in milliseconds), else together with everything that finished during the insert before.
 *
 * An outcome that the database refuses is found by halving the batch and becomes its own step's failure; its neighbours are stored. While the
 * database is away outcomes wait here, and go in when it is back if their claims still stand.
 */
export class OutcomeStager {
  readonly #options: StagerOptions
  readonly #maxBatch: number
  #waiting: RunOutcome[] = []
  #running: Promise<void> | undefined
  #scheduled = false
  #abandoned = false

  constructor(options: StagerOptions) {
    this.#options = options
    this.#maxBatch = options.maxBatch ?? 1_000
  }

  /** Outcomes that are not durable yet. */
  get pending(): number {
    return this.#waiting.length + this.#inFlight
  }
  #inFlight = 0

  add(outcome: RunOutcome): void {
    this.#waiting.push(outcome)
    if (this.#scheduled || this.#running !== undefined) return
    this.#scheduled = true
    // After the current turn of the event loop: steps that end together share one insert, and a single one waits for nothing.
    setImmediate(() => {
      this.#scheduled = false
      this.#kick()
    })
  }

  /** Resolves when everything added so far is durable, stale, or abandoned. */
  async drained(): Promise<void> {
    while (this.pending > 0 && !this.#abandoned) {
      this.#kick()
      await this.#running
    }
  }

  /** Gives up what cannot be stored; the leases bring those steps back. For the end of a stop that has run out of time. */
  abandon(): void {
    this.#abandoned = true
  }

  #kick(): void {
    if (this.#running !== undefined || this.#waiting.length === 0) return
    this.#running = this.#run().finally(() => {
      this.#running = undefined
    })
  }

  async #run(): Promise<void> {
    while (this.#waiting.length > 0 && !this.#abandoned) {
      const batch = this.#waiting.length > this.#maxBatch ? this.#waiting.splice(0, this.#maxBatch) : this.#waiting
      if (batch === this.#waiting) this.#waiting = []
      this.#inFlight = batch.length
      await this.#stage(batch)
      this.#inFlight = 0
    }
  }

  async #stage(batch: readonly RunOutcome[]): Promise<void> {
    for (let attempt = 0; !this.#abandoned; attempt += 1) {
      try {
        const stored = await this.#insert(batch)
        const staged = new Set(stored.map((row) => row.instance_id))
        const stale =
          batch.length === staged.size
            ? []
            : batch.filter((outcome) => !staged.has(outcome.instanceId)).map((outcome) => outcome.instanceId)
        if (stale.length > 0)
          this.#options.logger.warn({ stale: stale.length, instance_ids: stale.slice(0, 10) }, 'outcomes dropped: their claims were over')
        if (staged.size > 0) this.#options.hints.send(Channels.outcome, '')
        this.#options.onStaged(batch, stale)
        return
      } catch (error) {
        if (isConnectionLoss(error)) {
          if (attempt === 0) this.#options.logger.warn({ err: error, outcomes: batch.length }, 'the database is away; outcomes wait for it')
          await pause(Math.min(MAX_RETRY_MS, 50 * 2 ** Math.min(attempt, 10)))
        } else if (!isLostRace(error)) {
          await this.#isolate(batch, error)
          return
        }
      }
    }
  }

  async #insert(batch: readonly RunOutcome[]): Promise<{ instance_id: InstanceId }[]> {
    const nowMs = performance.now()
    const ago = (thenMs: number): number => Math.max(0, Math.round((nowMs - thenMs) * 1_000))
    const outcomes = batch.map((outcome) => ({
      ...outcome,
      claimedAgoUs: ago(outcome.claimedAtMs),
      startedAgoUs: ago(outcome.startedAtMs),
      finishedAgoUs: ago(outcome.finishedAtMs),
    }))
    return stageOutcomes(this.#options.db, { worker: this.#options.worker, outcomes })
  }

  /** Halves the batch until the one that the database refuses is alone (digest N2). */
  async #isolate(batch: readonly RunOutcome[], error: unknown): Promise<void> {
    const [only] = batch
    if (batch.length > 1) {
      const half = batch.length >> 1
      await this.#stage(batch.slice(0, half))
      await this.#stage(batch.slice(half))
    } else if (only !== undefined) {
      this.#options.logger.error({ err: error, instance_id: only.instanceId }, 'the database refused an outcome; its instance fails')
      await this.#stage([rejectedOutcome(only, error)])
    }
  }
}

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))
