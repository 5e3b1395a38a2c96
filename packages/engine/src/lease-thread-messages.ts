import type { ConnectOptions } from '@holdfast/schema'
import type { EndedClaim, TimedClaim } from './lease-keeper.ts'

export interface LeaseThreadData {
  readonly connection: ConnectOptions
  readonly leaseMs: number
  readonly heartbeatMs: number
}
export type ToLeaseThread = { readonly hold: readonly TimedClaim[] } | { readonly drop: readonly EndedClaim[] } | { readonly stop: true }
export type FromLeaseThread = { readonly lost: readonly EndedClaim[] } | { readonly error: string; readonly consecutive: number }
