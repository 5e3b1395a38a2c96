import {
  countExpiredClaims,
  countFinishedJoins,
  countOverdueAwaits,
  countOverdueScheduled,
  countOverdueThrottled,
  countQuarantined,
  countWaitingOutcomes,
  type StuckRow,
} from '@holdfast/queries'
import { age } from '../answer.ts'
import { plural } from './figures.ts'
import type { Examination, Finding, SectionDefinition } from './finding.ts'

/** Every sweep of ours comes within seconds. */
const OVERDUE_MS = 60_000

type Count = (db: Examination['db'], params: { readonly overdueMs: number }) => Promise<StuckRow[]>

interface Kind extends Pick<Finding, 'code' | 'severity' | 'remedy'> {
  readonly count: Count
  /** Default: a minute. */
  readonly overdueMs?: (examination: Examination) => number
  readonly sentence: (rows: number) => string
}

const kinds: readonly Kind[] = [
  {
    code: 'claim_expired',
    severity: 'error',
    count: countExpiredClaims,
    // A step may be at its end, and a reaper comes once a second: twice the lease is nobody's any more.
    overdueMs: ({ leaseMs }) => 2 * leaseMs,
    sentence: (rows) =>
      `${plural(rows, 'claim has', 'claims have')} outlived the lease by more than twice its time and nobody has taken them back`,
    remedy: 'start a reaper; if one runs, read its log (HOLDFAST_LEASE_MS other than 60 s: say --lease)',
  },
  {
    code: 'outcome_waiting',
    severity: 'error',
    count: countWaitingOutcomes,
    sentence: (rows) => `${plural(rows, 'outcome waits', 'outcomes wait')} to be applied for more than a minute`,
    remedy: 'start a flusher, or more of them; if one runs, read its log. Nothing is lost or runs twice meanwhile',
  },
  {
    code: 'outcome_quarantined',
    severity: 'warning',
    count: countQuarantined,
    overdueMs: () => 0,
    sentence: (rows) =>
      `${plural(rows, 'outcome is', 'outcomes are')} in quarantine: the database refused to apply them, and their instances failed`,
    remedy:
      'read holdfast.outcome_quarantine (it has each outcome and the reason), mend the step, holdfast retry the instances, and delete the rows',
  },
  {
    code: 'scheduled_overdue',
    severity: 'error',
    count: countOverdueScheduled,
    sentence: (rows) => `${plural(rows, 'scheduled instance is', 'scheduled instances are')} overdue by more than a minute`,
    remedy: 'start a scheduler or a reaper: either promotes what is due',
  },
  {
    code: 'await_overdue',
    severity: 'error',
    count: countOverdueAwaits,
    sentence: (rows) => `${plural(rows, 'await is', 'awaits are')} past the deadline by more than a minute`,
    remedy: 'start a reaper; if one runs, read its log',
  },
  {
    code: 'throttled_overdue',
    severity: 'error',
    count: countOverdueThrottled,
    sentence: (rows) =>
      `${plural(rows, 'throttled instance has', 'throttled instances have')} not been woken for more than a minute after their time`,
    remedy: 'start a reaper: its sweep is the floor under every wake; if one runs, read its log',
  },
  {
    code: 'join_finished',
    severity: 'error',
    count: countFinishedJoins,
    sentence: (rows) => `${plural(rows, 'parent waits', 'parents wait')} for children that have all ended`,
    remedy:
      'a wake was lost, which must not happen: keep the database as it is for a report, then holdfast cancel them or set them runnable',
  },
]

/** Rows that a sweep or a flush should have moved on by now. */
export const stuckSection: SectionDefinition = {
  name: 'stuck',
  title: 'stuck rows',
  async examine(examination) {
    const findings: Finding[] = []
    for (const { code, severity, remedy, count, overdueMs = () => OVERDUE_MS, sentence } of kinds) {
      const [row] = await count(examination.db, { overdueMs: overdueMs(examination) })
      if (row === undefined || row.count === 0) continue
      const what = `${sentence(row.count)}; the oldest ${age(row.oldest_ms)} ago, instances ${row.sample.join(', ')}${row.count > row.sample.length ? ', …' : ''}`
      findings.push({ code, severity, what, value: row.count, remedy })
    }
    return { findings }
  },
}
