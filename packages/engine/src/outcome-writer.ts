import type { InstanceId } from '@holdfast/contracts'
import { isLostRace, isRefusedData } from '@holdfast/queries'
import type { Logger } from './logger.ts'
import type { OutcomeSink, Written } from './outcome-sink.ts'
import { type RunOutcome, rejectedOutcome } from './run-step.ts'

export interface WriterOptions {
  readonly sink: OutcomeSink
  readonly logger: Logger
  /** Most outcomes in one write. Default 1,000: past some hundreds a larger one gains nothing and holds more in memory. */
  readonly maxBatch?: number
  /** Called when outcomes are durable or known to be stale: their slots and claims are over. */
  readonly onWritten: (outcomes: readonly RunOutcome[]) => void
}

/** What became of one outcome: the epoch under which its worker goes on, if it does. */
export interface Verdict {
  readonly landed: boolean
  readonly continuedAs: string | undefined
}

interface Waiting {
  readonly outcome: RunOutcome
  readonly settle: ((verdict: Verdict) => void) | undefined
}

/** Longest pause between two attempts to store outcomes while the database is away. */
const MAX_RETRY_MS = 2_000

/**
 * Collects the outcomes of steps and writes them in batches, through its sink: at once while nothing is under way (leading edge: an idle system
 * answers in milliseconds), else together with everything that finished during the write before.
 *
 * An outcome that the database refuses is found by halving the batch and becomes its own step's failure; its neighbours are stored. While the
 * database is away outcomes wait here, and go in when it is back if their claims still stand.
 */
export class OutcomeWriter {
  readonly #options: WriterOptions
  readonly #maxBatch: number
  #waiting: Waiting[] = []
  #running: Promise<void> | undefined
  #scheduled = false
  #abandoned = false
  #inFlight = 0

  constructor(options: WriterOptions) {
    this.#options = options
    this.#maxBatch = options.maxBatch ?? 1_000
  }

  /** Outcomes that are not durable yet. */
  get pending(): number {
    return this.#waiting.length + this.#inFlight
  }

  add(outcome: RunOutcome, settle?: (verdict: Verdict) => void): void {
    this.#waiting.push({ outcome, settle })
    if (this.#scheduled || this.#running !== undefined) return
    this.#scheduled = true
    // After the current turn of the event loop: steps that end together share one write, and a single one waits for nothing.
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
    for (const { settle } of this.#waiting.splice(0)) settle?.(DROPPED)
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
      await this.#write(batch)
      this.#inFlight = 0
    }
  }

  async #write(batch: readonly Waiting[]): Promise<void> {
    const outcomes = batch.map(({ outcome }) => outcome)
    for (let attempt = 0; !this.#abandoned; attempt += 1) {
      try {
        const written = await this.#options.sink.write(outcomes)
        if (written.landed.size < batch.length) this.#reportStale(outcomes, written)
        this.#options.onWritten(outcomes)
        for (const { outcome, settle } of batch) {
          settle?.({ landed: written.landed.has(outcome.instanceId), continuedAs: written.continued.get(outcome.instanceId) })
        }
        return
      } catch (error) {
        if (isLostRace(error)) continue
        if (isRefusedData(error)) {
          await this.#isolate(batch, error)
          return
        }
        // Away, or not as its migrations left it: no outcome's fault.
        if (attempt % 20 === 0)
          this.#options.logger.warn(
            { err: error, outcomes: batch.length, attempt },
            'outcomes could not be stored; they wait for the database',
          )
        await pause(Math.min(MAX_RETRY_MS, 50 * 2 ** Math.min(attempt, 10)))
      }
    }
    for (const { settle } of batch) settle?.(DROPPED)
  }

  #reportStale(outcomes: readonly RunOutcome[], { landed }: Written): void {
    const stale: InstanceId[] = outcomes.filter(({ instanceId }) => !landed.has(instanceId)).map(({ instanceId }) => instanceId)
    this.#options.logger.warn({ stale: stale.length, instance_ids: stale.slice(0, 10) }, 'outcomes dropped: their claims were over')
  }

  /** Halves the batch until the one that the database refuses is alone (digest N2). */
  async #isolate(batch: readonly Waiting[], error: unknown): Promise<void> {
    const [only] = batch
    if (batch.length > 1) {
      const half = batch.length >> 1
      await this.#write(batch.slice(0, half))
      await this.#write(batch.slice(half))
    } else if (only !== undefined) {
      const { outcome, settle } = only
      this.#options.logger.error({ err: error, instance_id: outcome.instanceId }, 'the database refused an outcome; its instance fails')
      await this.#write([{ outcome: rejectedOutcome(outcome, error), settle }])
    }
  }
}

const DROPPED: Verdict = { landed: false, continuedAs: undefined }
const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))
