import { type InstanceId, type InstanceStatus, isSettled, isTerminal } from '@holdfast/contracts'
import { getStatuses } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'

interface Waiter {
  readonly id: InstanceId
  readonly until: WaitUntil
  readonly resolve: (settled: boolean) => void
}

const FIRST_TICK_MS = 25
const SLOW_TICK_MS = 250
/** Waits shorter than this are watched closely; longer ones are for steps that take their time. */
const CLOSE_MS = 2_000

export type WaitUntil = 'settled' | 'terminal'

/** Whether a wait of this kind is over in `status`. */
export const waitIsOver = (until: WaitUntil, status: InstanceStatus): boolean =>
  until === 'settled' ? isSettled(status) : isTerminal(status)

/**
 * Waits for instances to settle: one statement a tick for all waiters of this process, however many there are and come; none while nobody waits.
 * The row is the truth; nothing has to be told to us, and {@link nudge} only makes the next look sooner.
 */
export class InstanceWaits {
  readonly #db: Db
  readonly #waiters = new Set<Waiter>()
  #timer: NodeJS.Timeout | undefined
  #atMs = Number.POSITIVE_INFINITY
  #looking = false
  #lastArrivalMs = 0
  #stopped = false

  constructor(db: Db) {
    this.#db = db
  }

  /**
   * Whether it settled before the time was over or `signal` aborted. An instance that is gone counts as settled. The caller has seen it
   * unsettled a moment ago: the first look is a tick away.
   */
  async wait(id: InstanceId, until: WaitUntil, timeoutMs: number, signal?: AbortSignal): Promise<boolean> {
    if (this.#stopped || signal?.aborted === true) return false
    const { promise, resolve } = Promise.withResolvers<boolean>()
    const waiter: Waiter = { id, until, resolve }
    const timer = setTimeout(() => resolve(false), timeoutMs)
    const abort = (): void => resolve(false)
    signal?.addEventListener('abort', abort)
    this.#waiters.add(waiter)
    this.#lastArrivalMs = performance.now()
    this.#tickIn(FIRST_TICK_MS)
    try {
      return await promise
    } finally {
      clearTimeout(timer)
      signal?.removeEventListener('abort', abort)
      this.#waiters.delete(waiter)
    }
  }

  /** Something has ended in this process: look now, not at the next tick. Costs nothing while nobody waits. */
  nudge(): void {
    if (this.#waiters.size > 0) this.#tickIn(0)
  }

  /** Ends every wait with «not yet»: the process is stopping, and clients ask again elsewhere. */
  stop(): void {
    this.#stopped = true
    clearTimeout(this.#timer)
    for (const waiter of this.#waiters) waiter.resolve(false)
  }

  // One timer or one look at a time: an arrival during a look is seen by the next one.
  #tickIn(ms: number): void {
    const atMs = performance.now() + ms
    if (this.#stopped || this.#looking || atMs >= this.#atMs) return
    clearTimeout(this.#timer)
    this.#atMs = atMs
    this.#timer = setTimeout(() => {
      this.#atMs = Number.POSITIVE_INFINITY
      this.#looking = true
      this.#look()
        .catch(() => undefined) // the database is away: the waits go on, and end by their own time-outs
        .finally(() => this.#next())
    }, ms)
  }

  #next(): void {
    this.#looking = false
    if (this.#waiters.size > 0) this.#tickIn(performance.now() - this.#lastArrivalMs < CLOSE_MS ? FIRST_TICK_MS : SLOW_TICK_MS)
  }

  async #look(): Promise<void> {
    const asked = [...this.#waiters]
    if (asked.length === 0) return
    const statuses = new Map(
      (await getStatuses(this.#db, { ids: [...new Set(asked.map(({ id }) => id))] })).map((row) => [row.id, row.status]),
    )
    for (const waiter of asked) {
      const status = statuses.get(waiter.id)
      if (status === undefined || waitIsOver(waiter.until, status)) waiter.resolve(true)
    }
  }
}
