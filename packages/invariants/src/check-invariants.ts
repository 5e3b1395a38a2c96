import type { Executor } from '@holdfast/queries'
import { engineInvariants } from './engine-invariants.ts'
import type { Invariant } from './invariant.ts'

export interface Violation {
  readonly id: string
  readonly statement: string
  readonly severity: Invariant['severity']
  /** The violating rows, at most 100 of them. */
  readonly rows: readonly Record<string, unknown>[]
}

/**
 * Runs every invariant and answers those that are violated; the one runner for tests, chaos runs, doctor and metrics.
 * `graceMs` (default 10 s): how long something may wait to be healed before that counts. Each query may scan; not for hot paths.
 */
export async function checkInvariants(db: Executor, { graceMs = 10_000 }: { readonly graceMs?: number } = {}): Promise<Violation[]> {
  const violations: Violation[] = []
  for (const { id, statement, severity, query } of engineInvariants) {
    const rows = await query(db, { graceMs })
    if (rows.length > 0) violations.push({ id, statement, severity, rows })
  }
  return violations
}
