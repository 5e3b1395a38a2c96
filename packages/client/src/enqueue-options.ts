import {
  type Duration,
  durationMs,
  type EnqueueRequest,
  type MachineRef,
  type RateLimit,
  type StateOf,
  type TerminalStatus,
} from '@holdfast/contracts'

export interface EnqueueOptions {
  readonly version?: number
  readonly queue?: string
  /** Lower runs first. Default 0. */
  readonly priority?: number
  /** Start no earlier than this from now, by the database's clock. */
  readonly delay?: Duration
  /** Start no earlier than this instant; not together with `delay`. */
  readonly eligibleAt?: Date
  /** At most one live instance of the project has this key; enqueueing a second one answers the first. */
  readonly correlationKey?: string
  /** Terminal statuses in which the key stays occupied. Default none. */
  readonly correlationScope?: readonly TerminalStatus[]
  /** `name` or `name:partition`: as many execute at once as the gate of that name allows; without a gate, one. */
  readonly concurrencyKey?: string
  /** A rate limit of the project, for the first step. */
  readonly rateLimit?: RateLimit
  /** Tokens of it that the first step takes. Default 1. */
  readonly weight?: number
}

/** One of many. */
export interface Enqueue<Machine extends MachineRef> extends EnqueueOptions {
  readonly machine: Machine | string
  readonly state?: StateOf<Machine>
}

const machineName = (machine: MachineRef | string): string => (typeof machine === 'string' ? machine : machine.name)

/** The wire form; a machine that is given as a definition pins its version. */
export function enqueueBody(machine: MachineRef | string, state: unknown, options: EnqueueOptions): EnqueueRequest {
  const version = options.version ?? (typeof machine === 'string' ? undefined : machine.version)
  return {
    machine: machineName(machine),
    ...(state === undefined ? {} : { state: state as NonNullable<EnqueueRequest['state']> }),
    ...(version === undefined ? {} : { version }),
    ...(options.queue === undefined ? {} : { queue: options.queue }),
    ...(options.priority === undefined ? {} : { priority: options.priority }),
    ...(options.delay === undefined ? {} : { delay_ms: durationMs(options.delay) }),
    ...(options.eligibleAt === undefined ? {} : { eligible_at: options.eligibleAt.toISOString() }),
    ...(options.correlationKey === undefined ? {} : { correlation_key: options.correlationKey }),
    ...(options.correlationScope === undefined ? {} : { correlation_scope: [...options.correlationScope] }),
    ...(options.concurrencyKey === undefined ? {} : { concurrency_key: options.concurrencyKey }),
    ...(options.rateLimit === undefined ? {} : { rate_limit: rateLimitBody(options.rateLimit, options.weight) }),
  }
}

function rateLimitBody(limit: RateLimit, weight: number | undefined): NonNullable<EnqueueRequest['rate_limit']> {
  const { name, partition } = typeof limit === 'string' ? { name: limit, partition: undefined } : limit
  return { name, ...(partition === undefined ? {} : { partition }), ...(weight === undefined ? {} : { weight }) }
}
