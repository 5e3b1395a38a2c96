import type { Statement } from '@holdfast/queries'

export interface InvariantParams {
  /** What may be under way for so long without being wrong, such as a deadline that a reaper is about to fire. 0 for a system at rest. */
  readonly graceMs: number
}

/** What must hold, as a query for the rows that violate it. */
export interface Invariant {
  /** E1, E2, …: stable, named in docs/guarantees.md. */
  readonly id: string
  /** What holds, as a sentence. */
  readonly statement: string
  /** `broken`: a constraint or a lock has failed; `stuck`: something that should have been healed by now has not been. */
  readonly severity: 'broken' | 'stuck'
  readonly query: Statement<InvariantParams, Record<string, unknown>>
}
