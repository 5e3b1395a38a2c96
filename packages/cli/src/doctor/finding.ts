import { sqlState } from '@holdfast/queries'
import type { Db } from '@holdfast/schema'

/** `error`: broken, or about to be; `warning`: costs speed or will hurt later; `info`: good to know. */
export type Severity = 'error' | 'warning' | 'info'

export interface Finding {
  /** Stable, for programs; docs/operations/doctor.md has each. */
  readonly code: FindingCode
  readonly severity: Severity
  /** What is so, as a sentence. */
  readonly what: string
  /** The figure that the sentence is about, in its unit; null where there is none. */
  readonly value: number | null
  readonly remedy: string
}

/** Every finding that there is. */
export const FindingCodes = Object.freeze([
  'not_migrated',
  'migration_unapplied',
  'migration_unknown',
  'migration_changed',
  'sequential_scan',
  'index_invalid',
  'never_analyzed',
  'statistics_stale',
  'dead_rows',
  'autovacuum_disabled',
  'long_transaction',
  'prepared_transaction',
  'replication_slot',
  'claim_expired',
  'outcome_waiting',
  'outcome_quarantined',
  'scheduled_overdue',
  'await_overdue',
  'throttled_overdue',
  'join_finished',
  'queue_waiting',
  'queue_paused',
  'unclaimable',
  'process_silent',
  'role_missing',
  'connections_used',
  'pools_exceed',
  'fsync_off',
  'full_page_writes_off',
  'synchronous_commit_off',
  'autovacuum_off',
  'track_counts_off',
  'isolation_not_read_committed',
  'not_permitted',
  'took_too_long',
] as const)
export type FindingCode = (typeof FindingCodes)[number]

/** What the sections are given to look with. */
export interface Examination {
  /** Read-only, with the planner as the server has it. */
  readonly db: Db
  /** Read-only, with the session settings that the engine's statements are sent under. */
  readonly engineDb: Db
  /** Folder of the migrations that this code belongs to. */
  readonly migrations: string
  /** How long a claim is trusted, as the schedulers have it. */
  readonly leaseMs: number
  /** An open transaction that is older than this holds vacuum back for too long. */
  readonly longMs: number
  /** How long autovacuum may leave a table alone that has changed much: it comes once a minute, and takes its time for a large one. */
  readonly neglectedMs: number
}

export interface SectionDefinition {
  readonly name: string
  readonly title: string
  /** `facts`: figures to show also when nothing is wrong. */
  readonly examine: (examination: Examination) => Promise<{ readonly findings: readonly Finding[]; readonly facts?: readonly string[] }>
}

export interface Section {
  readonly name: string
  readonly title: string
  readonly verdict: 'ok' | Severity
  readonly facts: readonly string[]
  readonly findings: readonly Finding[]
}

export async function examineSection({ name, title, examine }: SectionDefinition, examination: Examination): Promise<Section> {
  try {
    const { findings, facts = [] } = await examine(examination)
    return { name, title, verdict: worst(findings), facts, findings }
  } catch (error) {
    const finding = notLookedAt(error, title)
    if (finding === undefined) throw error
    return { name, title, verdict: finding.severity, facts: [], findings: [finding] }
  }
}

const RANK = { ok: 0, info: 1, warning: 2, error: 3 } as const
const worst = (findings: readonly Finding[]): Section['verdict'] =>
  findings.reduce<Section['verdict']>((worse, { severity }) => (RANK[severity] > RANK[worse] ? severity : worse), 'ok')

/** A finding for what the database would not let us see; undefined for any other error. */
export function notLookedAt(error: unknown, what: string): Finding | undefined {
  const state = sqlState(error)?.state
  if (state === '42501') {
    return {
      code: 'not_permitted',
      severity: 'warning',
      what: `${what} could not be looked at: ${(error as Error).message}`,
      value: null,
      remedy: 'connect as the owner of the schema, or as a login that is granted pg_read_all_data and pg_monitor',
    }
  }
  if (state === '57014') {
    return {
      code: 'took_too_long',
      severity: 'warning',
      what: `${what} could not be looked at: the database took too long`,
      value: null,
      remedy: 'give it more time with --timeout, in an hour with less load',
    }
  }
  return undefined
}
