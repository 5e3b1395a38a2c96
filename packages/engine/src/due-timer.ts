import { isConnectionLoss, isLostRace } from '@holdfast/queries'
import type { Logger } from './logger.ts'

export interface DueTimerOptions {
  readonly name: string
  /** Does what is due and answers how much that was, and when the next is due (null: nothing waits). */
  readonly run: () => Promise<{ readonly count: number; readonly nextInMs: number | null }>
  /** Look at least this often, whatever was hinted: hints get lost. */
  readonly floorMs: number
  readonly logger: Logger
}

/**
 * Runs something when it is due, by a timer that every look and every hint sets anew: work starts within milliseconds of its time, without
 * tight polling and without a scan of what is far away.
 */
export class DueTimer {
  readonly #options: DueTimerOptions
  #timer: NodeJS.Timeout | undefined
  #atMs = Number.POSITIVE_INFINITY
  #running: Promise<void> | undefined
  #hintedMs = Number.POSITIVE_INFINITY
  #stopped = true
  #failures = 0
  lastProgressMs = performance.now()

  constructor(options: DueTimerOptions) {
    this.#options = options
  }

  start(): void {
    if (!this.#stopped) return
    this.#stopped = false
    this.#set(0)
  }

  /** Something will be due in so many milliseconds. */
  dueIn(ms: number): void {
    if (this.#stopped) return
    // A hint during a run may speak of what that run's snapshot did not see.
    if (this.#running !== undefined) this.#hintedMs = Math.min(this.#hintedMs, performance.now() + ms)
    else this.#set(ms)
  }

  async stop(): Promise<void> {
    this.#stopped = true
    clearTimeout(this.#timer)
    this.#atMs = Number.POSITIVE_INFINITY
    await this.#running
  }

  #set(ms: number): void {
    const atMs = performance.now() + Math.min(ms, this.#options.floorMs)
    if (atMs >= this.#atMs) return
    clearTimeout(this.#timer)
    this.#atMs = atMs
    this.#timer = setTimeout(() => this.#fire(), Math.max(0, Math.ceil(atMs - performance.now())))
  }

  #fire(): void {
    this.#atMs = Number.POSITIVE_INFINITY
    if (this.#stopped || this.#running !== undefined) return
    this.#running = this.#look().then((nextMs) => {
      this.#running = undefined
      if (this.#stopped) return
      const hintedMs = this.#hintedMs - performance.now()
      this.#hintedMs = Number.POSITIVE_INFINITY
      this.#set(Math.max(0, Math.min(nextMs, hintedMs)))
    })
  }

  async #look(): Promise<number> {
    try {
      const { count, nextInMs } = await this.#options.run()
      this.#failures = 0
      this.lastProgressMs = performance.now()
      return count > 0 ? 0 : (nextInMs ?? this.#options.floorMs)
    } catch (error) {
      this.#failures += 1
      if (this.#failures === 1 || this.#failures % 20 === 0 || !(isConnectionLoss(error) || isLostRace(error))) {
        this.#options.logger.warn(
          { err: error, timer: this.#options.name, consecutive: this.#failures },
          'looking for due work failed; trying again',
        )
      }
      return Math.min(this.#options.floorMs, 100 * 2 ** Math.min(this.#failures, 6))
    }
  }
}
