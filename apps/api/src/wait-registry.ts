import { type InstanceId, type InstanceStatus, isSettled, isTerminal } from '@holdfast/contracts'
import { getStatuses } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'

interface Waiter {
  readonly id: InstanceId
  readonly over: (status: InstanceStatus) => boolean
  readonly resolve: (settled: boolean) => void
}

const FIRST_TICK_MS = 25
const SLOW_TICK_MS = 250
/** Waits shorter than this are watched closely; longer ones are for steps that take their time. */
const CLOSE_MS = 2_000

/**
 * Waits for instances to settle: one statement a tick for all waiters of this process, none while nobody waits. The row is the truth; nothing has to
 * be told to us.
 */
export class WaitRegistry {
  readonly #db: Db
  readonly #waiters = new Set<Waiter>()
  #timer: NodeJS.Timeout | undefined
  #lastChangeMs = 0
  #stopped = false

  constructor(db: Db) {
    this.#db = db
  }

  /** Whether it settled before the time was over or `signal` aborted. An instance that is gone counts as settled. */
  async wait(id: InstanceId, until: 'settled' | 'terminal', timeoutMs: number, signal: AbortSignal): Promise<boolean> {
    if (this.#stopped || signal.aborted) return false
    const { promise, resolve } = Promise.withResolvers<boolean>()
    const waiter: Waiter = { id, over: until === 'settled' ? isSettled : isTerminal, resolve }
    const timer = setTimeout(() => resolve(false), timeoutMs)
    const abort = (): void => resolve(false)
    signal.addEventListener('abort', abort)
    this.#waiters.add(waiter)
    this.#lastChangeMs = performance.now()
    this.#tickIn(0)
    try {
      return await promise
    } finally {
      clearTimeout(timer)
      signal.removeEventListener('abort', abort)
      this.#waiters.delete(waiter)
    }
  }

  /** Ends every wait with «not yet»: the process is stopping, and clients ask again elsewhere. */
  stop(): void {
    this.#stopped = true
    clearTimeout(this.#timer)
    for (const waiter of this.#waiters) waiter.resolve(false)
  }

  #tickIn(ms: number): void {
    if (this.#stopped || (this.#timer !== undefined && ms > 0)) return
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => {
      this.#look().then(
        () => this.#next(),
        () => this.#next(), // the database is away: the waits go on, and end by their own time-outs
      )
    }, ms)
  }

  #next(): void {
    this.#timer = undefined
    if (this.#waiters.size > 0) this.#tickIn(performance.now() - this.#lastChangeMs < CLOSE_MS ? FIRST_TICK_MS : SLOW_TICK_MS)
  }

  async #look(): Promise<void> {
    const ids = [...new Set([...this.#waiters].map(({ id }) => id))]
    if (ids.length === 0) return
    const asked = new Set(this.#waiters)
    const statuses = new Map((await getStatuses(this.#db, { ids })).map((row) => [row.id, row.status]))
    for (const waiter of asked) {
      const status = statuses.get(waiter.id)
      if (status === undefined || waiter.over(status)) waiter.resolve(true)
    }
  }
}
