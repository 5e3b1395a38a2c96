import type { Channel } from '@holdfast/contracts'

/** Sends a NOTIFY some time soon, coalesced and out of band; never fails. `HintSender` of @holdfast/queries is one. */
export interface Hints {
  send(channel: Channel, payload: string): void
}

/** Waiting work further away than this is found by the poll that looks for due work anyway, so nobody is told. */
export const TIMER_HINT_WITHIN_MS = 5_000
