import { type HostEnv, hostEnv, parseEnv } from '@holdfast/host'
import { z } from 'zod'

const ms = (min: number) => z.coerce.number().int().min(min).max(3_155_760_000_000)

const reaperEnv = {
  ...hostEnv,
  /** How often expired leases are looked for, in ms. Short: statements for nothing; long: a killed scheduler's work waits. */
  HOLDFAST_REAP_EVERY_MS: ms(50).default(1_000),
  /** How long the step of a cancelled instance may take to end by itself before its claim is taken away, in ms. */
  HOLDFAST_CANCEL_GRACE_MS: ms(0).default(30_000),
  /** How long finished instances are kept, in ms. Default 7 days; 0: until the next sweep, at most a minute. */
  HOLDFAST_RETENTION_MS: ms(0).default(604_800_000),
  /** Days of history kept, today not counted. */
  HOLDFAST_HISTORY_DAYS: z.coerce.number().int().min(0).max(36_500).default(14),
  /** Silence after which a process is taken for dead and its row removed, in ms. Above several of its beats. */
  HOLDFAST_PROCESS_SILENT_MS: ms(1_000).default(60_000),
}
export type ReaperEnv = HostEnv & {
  readonly HOLDFAST_REAP_EVERY_MS: number
  readonly HOLDFAST_CANCEL_GRACE_MS: number
  readonly HOLDFAST_RETENTION_MS: number
  readonly HOLDFAST_HISTORY_DAYS: number
  readonly HOLDFAST_PROCESS_SILENT_MS: number
}
export const readEnv = (): ReaperEnv => parseEnv(reaperEnv)
