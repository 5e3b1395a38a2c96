import { isConnectionLoss } from '@holdfast/queries'
import type { Logger } from './logger.ts'
import type { Loop } from './loop.ts'

export interface WorkLoopOptions {
  readonly name: string
  /** One turn. `busy`: there may be more, so go on at once. Must end by itself. */
  readonly run: () => Promise<{ readonly busy: boolean }>
  /** First pause after an idle turn; doubles up to `maxIdleMs`. */
  readonly idleMs: number
  readonly maxIdleMs: number
  readonly logger: Logger
}

const FIRST_ERROR_PAUSE_MS = 100
const MAX_ERROR_PAUSE_MS = 5_000
/** Errors in a row between two log lines: an outage of an hour is some lines, not thousands. */
const LOG_EVERY = 20
/** A turn that has not ended after this long has hung: statements time out long before. */
const STUCK_MS = 120_000

/** Does one kind of work for ever: at once while there is some, in pauses while there is none, patiently while it fails. */
export class WorkLoop implements Loop {
  readonly name: string
  readonly #options: WorkLoopOptions
  #stopped = true
  #looping: Promise<void> | undefined
  #endPause: (() => void) | undefined
  #woken = false
  #turnStartedMs: number | undefined

  constructor(options: WorkLoopOptions) {
    this.name = options.name
    this.#options = options
  }

  start(): void {
    if (!this.#stopped) return
    this.#stopped = false
    this.#looping = this.#loop()
  }

  /** Ends a pause, or has the turn that is under way followed by another. */
  wake(): void {
    this.#woken = true
    this.#endPause?.()
  }

  async stop(): Promise<void> {
    this.#stopped = true
    this.#endPause?.()
    await this.#looping
  }

  isHealthy(): string | null {
    if (this.#stopped) return `${this.name} is stopped`
    if (this.#turnStartedMs !== undefined && performance.now() - this.#turnStartedMs > STUCK_MS)
      return `${this.name} has been in one turn for over ${STUCK_MS / 1_000} s`
    return null
  }

  async #loop(): Promise<void> {
    const { run, idleMs, maxIdleMs } = this.#options
    let pauseMs = idleMs
    let failures = 0
    while (!this.#stopped) {
      this.#woken = false
      this.#turnStartedMs = performance.now()
      try {
        const { busy } = await run()
        failures = 0
        pauseMs = busy ? 0 : Math.max(idleMs, Math.min(maxIdleMs, pauseMs * 2))
      } catch (error) {
        failures += 1
        this.#report(error, failures)
        pauseMs = Math.min(MAX_ERROR_PAUSE_MS, FIRST_ERROR_PAUSE_MS * 2 ** Math.min(failures - 1, 10)) * (0.5 + Math.random() / 2)
      }
      this.#turnStartedMs = undefined
      if (failures === 0 && this.#woken) pauseMs = 0
      if (pauseMs > 0 && !this.#stopped) await this.#pause(pauseMs)
      // A wake in a pause begins the back-off anew: more may follow it.
      if (this.#woken) pauseMs = idleMs
    }
  }

  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const end = (): void => {
        clearTimeout(timer)
        this.#endPause = undefined
        resolve()
      }
      const timer = setTimeout(end, ms)
      this.#endPause = end
    })
  }

  #report(error: unknown, failures: number): void {
    if (failures !== 1 && failures % LOG_EVERY !== 0) return
    const fields = { err: error, loop: this.name, consecutive: failures }
    if (isConnectionLoss(error)) this.#options.logger.warn(fields, 'the database is away; trying again')
    else this.#options.logger.error(fields, 'a turn failed; trying again')
  }
}
