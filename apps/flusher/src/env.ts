import { type HostEnv, hostEnv, parseEnv } from '@holdfast/host'
import { z } from 'zod'

const flusherEnv = {
  ...hostEnv,
  /** Most outcomes applied in one transaction. 1: a commit each; some thousands: long transactions for no gain. */
  HOLDFAST_FLUSH_BATCH: z.coerce.number().int().min(1).max(10_000).default(1_000),
}
export type FlusherEnv = HostEnv & { readonly HOLDFAST_FLUSH_BATCH: number }
export const readEnv = (): FlusherEnv => parseEnv(flusherEnv)
