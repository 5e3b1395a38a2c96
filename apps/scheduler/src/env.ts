import { type HostEnv, hostEnv, parseEnv } from '@holdfast/host'
import { z } from 'zod'

const ms = (min: number, max: number) => z.coerce.number().int().min(min).max(max)

/** `default:100,mail:20` as `{ default: 100, mail: 20 }`. */
const queues = z.string().transform((text, context) => {
  const parsed: Record<string, number> = {}
  for (const part of text.split(',').filter((piece) => piece.trim() !== '')) {
    const [, name, count] = /^\s*(\S+):(\d{1,5})\s*$/.exec(part) ?? []
    if (name === undefined || Number(count) < 1) {
      context.addIssue({ code: 'custom', message: `expected name:steps pairs like default:100,mail:20; ${JSON.stringify(part)} is none` })
      return z.NEVER
    }
    parsed[name] = Number(count)
  }
  return parsed
})

const schedulerEnv = {
  ...hostEnv,
  /** Modules whose exported machines and jobs this process runs, separated by commas: package names, or paths from the working directory. */
  HOLDFAST_MACHINES: z.string().min(1, 'name at least one module that exports machines or jobs'),
  /** Steps that run at once in each queue. Default: 100 in each queue that the machines name. */
  HOLDFAST_QUEUES: queues.optional(),
  /**
   * `staged`: outcomes are stored for the flushers. `direct`: this process applies its own, as the database role of both; faster, and what inline steps need.
   */
  HOLDFAST_FLUSH: z.enum(['staged', 'direct']).default('staged'),
  /** How long a claim is trusted unrenewed. Short: a stalled network makes steps run twice; long: a killed process's work waits that long. */
  HOLDFAST_LEASE_MS: ms(500, 86_400_000).default(60_000),
  /** How often leases are renewed; at most half the lease. Default: a third of it. */
  HOLDFAST_HEARTBEAT_MS: ms(50, 43_200_000).optional(),
  /** Longest pause between two looks at an idle queue, in ms; hints come in between. */
  HOLDFAST_MAX_IDLE_MS: ms(10, 60_000).default(1_000),
  /** How long a stop waits for steps before it aborts them, and again before it hands their claims back. Twice this is below HOLDFAST_SHUTDOWN_MS. */
  HOLDFAST_DRAIN_MS: ms(0, 3_600_000).default(10_000),
}
export type SchedulerEnv = HostEnv & {
  readonly HOLDFAST_MACHINES: string
  readonly HOLDFAST_QUEUES?: Record<string, number> | undefined
  readonly HOLDFAST_FLUSH: 'staged' | 'direct'
  readonly HOLDFAST_LEASE_MS: number
  readonly HOLDFAST_HEARTBEAT_MS?: number | undefined
  readonly HOLDFAST_MAX_IDLE_MS: number
  readonly HOLDFAST_DRAIN_MS: number
}
export const readEnv = (): SchedulerEnv => parseEnv(schedulerEnv)
