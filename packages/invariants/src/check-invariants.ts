import type { Executor } from '@holdfast/queries'
import { engineInvariants } from './engine-invariants.ts'
import type { Invariant } from './invariant.ts'
import { scheduleInvariants } from './schedule-invariants.ts'

export interface Violation {
  readonly id: string
  readonly statement: string
  readonly severity: Invariant['severity']
  /** The violating rows, at most 100 of them. */
  readonly rows: readonly Record<string, unknown>[]
}

export interface CheckOptions {
  /** How long something may wait to be healed before that counts. Default 10 s. */
  readonly graceMs?: number
}

/** One invariant after the look: no rows where it holds; `failure` where the database would not say. */
export interface Examined extends Violation {
  readonly failure?: unknown
}

/**
 * Runs every invariant, one after the other, and answers each; the one runner for tests, chaos runs, doctor and metrics.
 * Each query may scan; not for hot paths.
 */
export async function* examineInvariants(db: Executor, { graceMs = 10_000 }: CheckOptions = {}): AsyncGenerator<Examined, void, undefined> {
  for (const { id, statement, severity, query } of [...engineInvariants, ...scheduleInvariants]) {
    try {
      yield { id, statement, severity, rows: await query(db, { graceMs }) }
    } catch (failure) {
      yield { id, statement, severity, rows: [], failure }
    }
  }
}

/** Those that are violated. Throws what the database threw if one of them could not be looked at. */
export async function checkInvariants(db: Executor, options: CheckOptions = {}): Promise<Violation[]> {
  const violations: Violation[] = []
  for await (const { failure, ...examined } of examineInvariants(db, options)) {
    if (failure !== undefined) throw failure
    if (examined.rows.length > 0) violations.push(examined)
  }
  return violations
}
