/** How far ahead of its steps a queue claims, in time: 50 ms of work keeps small steps fed between two claims. */
const AHEAD_MS = 50
/** Never more than this ahead, however fast the steps are: what waits here is not seen by other schedulers. */
export const MAX_AHEAD = 2_000
/** Memory of the measured rate: an observation loses two thirds of its weight in this time. */
const WINDOW_MS = 200

/**
 * Decides how many claims a queue should hold beyond those that execute. Slow steps get none, so that work is shared between
 * processes and priorities stay fresh; steps of microseconds get enough for one claim to feed 50 ms of them. Measured, not configured:
 * a queue should be near its best without settings.
 */
export class ClaimPace {
  #ratePerMs = 0
  #lastMs: number | undefined

  /** Notes that `count` steps have ended. */
  finished(count: number, nowMs: number): void {
    if (this.#lastMs === undefined) {
      this.#lastMs = nowMs
      this.#ratePerMs = count / WINDOW_MS
      return
    }
    const elapsedMs = Math.max(0, nowMs - this.#lastMs)
    this.#lastMs = nowMs
    // Each end adds an impulse that decays exponentially: a rate without buckets.
    this.#ratePerMs = this.#ratePerMs * Math.exp(-elapsedMs / WINDOW_MS) + count / WINDOW_MS
  }

  /** Claims to hold ahead at this moment. */
  ahead(nowMs: number): number {
    if (this.#lastMs === undefined) return 0
    const rate = this.#ratePerMs * Math.exp(-Math.max(0, nowMs - this.#lastMs) / WINDOW_MS)
    return Math.min(MAX_AHEAD, Math.floor(rate * AHEAD_MS))
  }
}
