import { type Examined, examineInvariants } from '@holdfast/invariants'
import { type DatabaseStateRow, getDatabaseState } from '@holdfast/queries'
import { connect, engineSessionSettings } from '@holdfast/schema'
import { bloatSection } from './bloat-section.ts'
import { connectionsSection } from './connections-section.ts'
import { type Examination, examineSection, type FindingCode, notLookedAt, type Section, type SectionDefinition } from './finding.ts'
import { plansSection } from './plans-section.ts'
import { processesSection } from './processes-section.ts'
import { queuesSection } from './queues-section.ts'
import { schemaSection } from './schema-section.ts'
import { settingsSection } from './settings-section.ts'
import { stuckSection } from './stuck-section.ts'

export interface ExamineOptions {
  readonly databaseUrl: string
  readonly migrations: string
  /** How long something may wait to be healed before an invariant counts it. */
  readonly graceMs: number
  readonly leaseMs: number
  /** Longest time for one statement. */
  readonly timeoutMs: number
  /** An open transaction that is older than this is a finding. Default 5 min. */
  readonly longMs?: number
  /** A much changed table that autovacuum has left alone for longer is a finding. Default 10 min. */
  readonly neglectedMs?: number
}

const UNUSABLE: ReadonlySet<FindingCode> = new Set(['not_migrated', 'migration_unapplied', 'not_permitted', 'took_too_long'])

/** Rows shown of a violation. */
const SAMPLE = 3

export interface CheckedInvariant {
  readonly id: string
  readonly statement: string
  readonly severity: Examined['severity']
  /** Violating rows; at most 100 are counted. null: the database would not say. */
  readonly violations: number | null
  readonly sample: readonly Record<string, unknown>[]
}

export interface Report {
  /** No invariant violated, and no finding that is an error. */
  readonly healthy: boolean
  readonly checked_at: string
  readonly database: Pick<DatabaseStateRow, 'server' | 'database' | 'login' | 'standby'>
  readonly invariants: readonly CheckedInvariant[]
  readonly sections: readonly Section[]
}

const sections: readonly SectionDefinition[] = [
  stuckSection,
  queuesSection,
  processesSection,
  plansSection,
  bloatSection,
  connectionsSection,
  settingsSection,
]

/**
 * Looks at everything and changes nothing: its sessions are read-only, which the database enforces. Two connections; invariants and figures may read whole
 * tables, each statement for at most `timeoutMs`.
 */
export async function examine(options: ExamineOptions): Promise<Report> {
  const { databaseUrl, migrations, graceMs, leaseMs, timeoutMs, longMs = 300_000, neglectedMs = 600_000 } = options
  const readOnly = { default_transaction_read_only: 'on', statement_timeout: String(timeoutMs), lock_timeout: '5s', jit: 'off' }
  const open = (settings: Readonly<Record<string, string>>) =>
    connect({ connectionString: databaseUrl, max: 1, applicationName: 'holdfast-doctor', settings: { ...settings, ...readOnly } })
  await using db = open({})
  await using engineDb = open(engineSessionSettings)
  const examination: Examination = { db, engineDb, migrations, leaseMs, longMs, neglectedMs }
  const [state] = await getDatabaseState(db, {})
  if (state === undefined) throw new Error('the server said nothing about itself')

  const schema = await examineSection(schemaSection, examination)
  // Without the schema, or the right to read it, there is nothing to look at, and with a part of it the rest may not fit what is asked.
  const usable = !schema.findings.some(({ code }) => UNUSABLE.has(code))
  const examined: Section[] = [schema]
  const invariants: CheckedInvariant[] = []
  if (usable) {
    for await (const each of examineInvariants(db, { graceMs })) invariants.push(checked(each, examined))
    for (const section of sections) examined.push(await examineSection(section, examination))
  }
  const { server, database, login, standby } = state
  return {
    // What could not be looked at is not known to hold.
    healthy: usable && invariants.every(({ violations }) => violations === 0) && examined.every(({ verdict }) => verdict !== 'error'),
    checked_at: new Date().toISOString(),
    database: { server, database, login, standby },
    invariants,
    sections: withRights(examined, state),
  }
}

function checked({ id, statement, severity, rows, failure }: Examined, examined: Section[]): CheckedInvariant {
  if (failure === undefined) return { id, statement, severity, violations: rows.length, sample: rows.slice(0, SAMPLE) }
  const finding = notLookedAt(failure, `invariant ${id}`)
  if (finding === undefined) throw failure
  examined.push({ name: `invariant_${id}`, title: `invariant ${id}`, verdict: finding.severity, facts: [], findings: [finding] })
  return { id, statement, severity, violations: null, sample: [] }
}

/** Who may not see the sessions of others is told so, instead of being told that there are none. */
function withRights(examined: readonly Section[], { may_monitor: mayMonitor, login }: DatabaseStateRow): readonly Section[] {
  if (mayMonitor) return examined
  const what = `${login} sees no transactions of other roles: whether one holds vacuum back is not known`
  const finding = { code: 'not_permitted', severity: 'info', what, value: null, remedy: `GRANT pg_monitor TO ${login}` } as const
  return examined.map((section) =>
    section.name === 'bloat'
      ? { ...section, verdict: section.verdict === 'ok' ? 'info' : section.verdict, findings: [...section.findings, finding] }
      : section,
  )
}
