import {
  type Duration,
  durationMs,
  Limits,
  type MachineRef,
  type RateLimit,
  rateKeyOf,
  type StateOf,
  storableJson,
  type TerminalStatus,
} from '@holdfast/contracts'
import type { SpawnedChild } from '@holdfast/queries'

export interface ChildOptions {
  readonly version?: number
  readonly queue?: string
  /** Lower runs first. Default 0. */
  readonly priority?: number
  readonly delay?: Duration
  /** A child whose key a live instance has is not spawned, and not waited for. */
  readonly correlationKey?: string
  readonly correlationScope?: readonly TerminalStatus[]
  readonly concurrencyKey?: string
  readonly rateLimit?: RateLimit
  readonly weight?: number
}

/** A child to spawn; made by {@link child}. */
export interface Child {
  readonly [spec]: SpawnedChild
}
const spec: unique symbol = Symbol('holdfast.child')

/** Longest list of children in one spawn; a step that wants more spawns in rounds. */
const MAX_CHILDREN = 10_000

/**
 * A child for `ctx.spawn`: a machine or job, its state or input as its own definition types it, and where it goes.
 * Throws a TypeError for a name or key that is too long, NotStorableError for a state that cannot be stored.
 */
export function child<Machine extends MachineRef>(machine: Machine, state?: StateOf<Machine>, options: ChildOptions = {}): Child {
  const { version = machine.version, queue, priority, delay, correlationKey, correlationScope, concurrencyKey, rateLimit, weight } = options
  requireLength('machine', machine.name, Limits.nameLength)
  requireLength('queue', queue, Limits.nameLength)
  requireLength('correlation key', correlationKey, Limits.keyLength)
  requireLength('concurrency key', concurrencyKey, Limits.keyLength)
  if (priority !== undefined && !(Number.isInteger(priority) && priority >= Limits.priorityMin && priority <= Limits.priorityMax))
    throw new TypeError(`the priority of a child is a whole number from ${Limits.priorityMin} to ${Limits.priorityMax}, not ${priority}`)
  if (state !== undefined) storableJson(state, `the state of child ${machine.name}`)
  const limit = rateKeyOf(rateLimit, weight)
  return {
    [spec]: {
      machine: machine.name,
      version,
      queue,
      state,
      priority,
      delay_ms: delay === undefined ? undefined : durationMs(delay),
      correlation_key: correlationKey,
      correlation_scope: correlationScope,
      concurrency_key: concurrencyKey,
      rate_key: limit?.rateKey,
      rate_weight: limit?.rateWeight,
    },
  }
}

/** The JSON of a list of children. Throws a TypeError for what `child()` has not made, or too many. */
export function encodeChildren(children: readonly Child[]): string {
  if (!Array.isArray(children) || children.length > MAX_CHILDREN)
    throw new TypeError(`spawn takes a list of at most ${MAX_CHILDREN} children; spawn the rest in another round`)
  return JSON.stringify(
    children.map((one, index) => {
      if (typeof one !== 'object' || one === null || !(spec in one))
        throw new TypeError(`child ${index} of spawn was not made by child(machine, state)`)
      return one[spec]
    }),
  )
}

function requireLength(what: string, value: string | undefined, most: number): void {
  if (value !== undefined && (typeof value !== 'string' || value.length === 0 || value.length > most))
    throw new TypeError(`the ${what} of a child has 1 to ${most} characters; got ${JSON.stringify(value)}`)
}
