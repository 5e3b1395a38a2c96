import type { ClaimedRow } from '@holdfast/queries'

/** Instances that a claim looks at where the front of the queue is to be cleared. */
const WIDE = 1_000
/** Fewest instances to look at, and fewest that a claim admits where keys are let go fast. */
const NARROWEST = 32
/** How long after the last such claim its queue counts as moving: the way of a batch through its steps, its flush and the hint to claim again. */
const MOVES_FOR_MS = 100

interface Look {
  readonly limit: number
  readonly window: number
  readonly park: boolean
}

/**
 * How far the claims of a queue look, and whether those that a held key denies are parked.
 *
 * Parking clears the front of a queue for what is behind it, and costs two updates a row: out of the pick index and back. Where keys are let go as fast as
 * they are taken, a row that is denied now is admitted by the next claim. So a queue that moves keeps its rows, and its claims look at no more than about as many as
 * the last one could take (a gate of 1,000 drained at half the rate when they looked at a thousand each time and parked what was left). Where less than half
 * comes through and the queue does not move, they look wide and park, until nobody is denied: what stands behind a hundred thousand that wait is reached in
 * seconds.
 */
export class ClaimWindow {
  #size = Number.POSITIVE_INFINITY
  #clogged = false
  #movedAtMs = Number.NEGATIVE_INFINITY

  next(limit: number, nowMs: number): { readonly window: number; readonly park: boolean } {
    if (this.#clogged && nowMs - this.#movedAtMs >= MOVES_FOR_MS) return { window: Math.max(limit, WIDE), park: true }
    return { window: Math.min(limit, this.#size), park: false }
  }

  /** Takes note of all that a claim has answered; tells whether the next one is to follow at once. */
  looked(rows: readonly ClaimedRow[], { limit, window, park }: Look, nowMs: number): boolean {
    let [admitted, keyed, denied] = [0, 0, 0]
    for (const { status, concurrency_key: key } of rows) {
      if (status !== 'executing') denied += 1
      else {
        admitted += 1
        if (key !== null) keyed += 1
      }
    }
    this.#clogged = park ? denied > 0 : denied > admitted
    if (!this.#clogged && keyed >= NARROWEST) this.#movedAtMs = nowMs
    if (denied > 0) this.#size = Math.max(NARROWEST, Math.ceil(admitted * 1.5))
    else if (admitted === window) this.#size = window * 2
    if (admitted === limit) return false
    return this.#clogged ? nowMs - this.#movedAtMs >= MOVES_FOR_MS : admitted === window
  }
}
