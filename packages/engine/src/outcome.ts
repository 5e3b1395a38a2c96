import type { OutcomeKind } from '@holdfast/contracts'
import type { Child } from './child.ts'

/**
 * What a step answers. Made only by the methods of its context, so that step and signal names are checked by the compiler.
 * `Result` is what the machine ends with; outcomes that do not end it have `never` there.
 */
export interface Outcome<Result = unknown> {
  readonly kind: OutcomeKind
  readonly step?: string | undefined
  /** Absent: the state stays as it is. */
  readonly state?: unknown
  readonly result?: Result | undefined
  readonly reason?: unknown
  readonly delayMs?: number | undefined
  readonly awaits?: readonly string[] | undefined
  readonly timeoutMs?: number | undefined
  readonly rateKey?: string | undefined
  readonly rateWeight?: number | undefined
  /** Absent: the key stays; null: it is let go. */
  readonly concurrencyKey?: string | null | undefined
  /** Absent: as the machine says. */
  readonly inline?: boolean | undefined
  readonly children?: readonly Child[] | undefined
  /** Absent: all of them. */
  readonly joinCount?: number | undefined
  readonly version?: number | undefined
  readonly [made]: true
}

const made: unique symbol = Symbol('holdfast.outcome')

export const makeOutcome = <Result>(fields: Omit<Outcome<Result>, typeof made>): Outcome<Result> => ({ ...fields, [made]: true })

export const isOutcome = (value: unknown): value is Outcome => typeof value === 'object' && value !== null && made in value
