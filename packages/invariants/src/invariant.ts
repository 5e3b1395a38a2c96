import { type Statement, statement } from '@holdfast/queries'
import { type RawBuilder, sql } from 'kysely'

export interface InvariantParams {
  /** What may be under way for so long without being wrong, such as a deadline that a reaper is about to fire. 0 for a system at rest. */
  readonly graceMs: number
}

/** What must hold, as a query for the rows that violate it. */
export interface Invariant {
  /** E1, E2, … of the engine, S1, … of schedules: stable, named in docs/guarantees.md. */
  readonly id: string
  /** What holds, as a sentence. */
  readonly statement: string
  /** `broken`: a constraint or a lock has failed; `stuck`: something that should have been healed by now has not been. */
  readonly severity: 'broken' | 'stuck'
  readonly query: Statement<InvariantParams, Record<string, unknown>>
}

/** Rows shown of one violation; the first ones say what is wrong, and a million of them would not say more. */
const LIMIT = 100
export const limit: RawBuilder<unknown> = sql.raw(`LIMIT ${LIMIT}`)

export const invariant = (
  id: string,
  severity: Invariant['severity'],
  sentence: string,
  query: (params: InvariantParams) => RawBuilder<Record<string, unknown>>,
): Invariant => ({ id, severity, statement: sentence, query: statement(`invariant.${id.toLowerCase()}`, query, { graceMs: 10_000 }) })
