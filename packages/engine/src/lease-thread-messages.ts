import type { ConnectOptions } from '@holdfast/schema'
import type { ClaimTableMemory } from './claim-table.ts'
import type { HeldClaim } from './lease-keeper.ts'

export interface LeaseThreadData {
  readonly connection: ConnectOptions
  readonly leaseMs: number
  readonly heartbeatMs: number
  readonly claims: ClaimTableMemory
}
/** The other way there is only the message `stop`. */
export type FromLeaseThread =
  | { readonly lost: readonly HeldClaim[]; readonly cancelling: readonly HeldClaim[] }
  | { readonly error: string; readonly consecutive: number }
