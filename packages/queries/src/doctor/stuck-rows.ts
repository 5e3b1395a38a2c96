import { type RawBuilder, sql } from 'kysely'
import { nobodyRunsIt } from '../engine/declare-machines.ts'
import { type Statement, statement } from '../statement.ts'

export interface StuckRow {
  readonly count: number
  /** How long the oldest of them has been so; null when there is none. */
  readonly oldest_ms: number | null
  /** Ids of the three oldest. */
  readonly sample: string[]
}
interface StuckParams {
  /** Later than this is too late. */
  readonly overdueMs: number
}

/** Rows that somebody should have moved on. `since`: the moment from which each waits; `from`: FROM and WHERE, by the index that its sweep goes by. */
const stuck = (name: string, id: string, since: string, from: string): Statement<StuckParams, StuckRow> => {
  const [key, moment, rows] = [sql.raw(id), sql.raw(since), sql.raw(from)]
  const late = ({ overdueMs }: StuckParams): RawBuilder<unknown> => sql`${moment} < now() - ${overdueMs}::bigint * interval '1 millisecond'`
  return statement<StuckParams, StuckRow>(
    `doctor.${name}`,
    (params) => sql<StuckRow>`
SELECT count(*)::integer AS count, (extract(epoch FROM now() - min(${moment})) * 1000)::float8 AS oldest_ms,
  ARRAY(
    SELECT ${key}::text ${rows}
    AND ${late(params)} ORDER BY ${moment}, ${key} LIMIT 3
  ) AS sample
${rows}
  AND ${late(params)}`,
    { overdueMs: 60_000 },
  )
}

/** Claims whose lease ran out and that no reaper has taken back. Served by: instance_lease, outcome_pkey. */
export const countExpiredClaims = stuck(
  'count_expired_claims',
  'g.id',
  'g.lease_expires_at',
  `FROM holdfast.instance g WHERE g.status = 'executing'
  AND NOT EXISTS (SELECT FROM holdfast.outcome o WHERE o.instance_id = g.id AND o.claim_epoch = g.claim_epoch)`,
)

/** Outcomes that no flusher has applied. Reads the whole table, which is empty where flushers keep up. */
export const countWaitingOutcomes = stuck('count_waiting_outcomes', 'o.instance_id', 'o.staged_at', 'FROM holdfast.outcome o WHERE true')

/** Due work that no scheduler and no reaper has promoted. Served by: instance_due. */
export const countOverdueScheduled = stuck(
  'count_overdue_scheduled',
  'g.id',
  'g.eligible_at',
  `FROM holdfast.instance g WHERE g.status = 'scheduled'`,
)

/** Awaits whose deadline no reaper has fired. Served by: instance_await_deadline. */
export const countOverdueAwaits = stuck(
  'count_overdue_awaits',
  'g.id',
  'g.await_deadline',
  `FROM holdfast.instance g WHERE g.status = 'awaiting_signal' AND g.await_deadline IS NOT NULL`,
)

/** Denied work whose time has come and that nobody has woken. Rows that wait for a holder to leave have no time of their own and are not counted. */
export const countOverdueThrottled = stuck(
  'count_overdue_throttled',
  'g.id',
  'g.throttled_until',
  `FROM holdfast.instance g WHERE g.status = 'throttled' AND g.throttled_until IS NOT NULL`,
)

/** Parents that nobody woke when their last child ended. Served by: instance_parent for the look at the children. */
export const countFinishedJoins = stuck(
  'count_finished_joins',
  'p.id',
  'p.updated_at',
  `FROM holdfast.instance p WHERE p.status = 'awaiting_children' AND NOT EXISTS (
    SELECT FROM holdfast.instance c WHERE c.parent_id = p.id AND c.status NOT IN ('done', 'failed', 'cancelled')
  )`,
)

/** Outcomes that the database refused; they stay until a person has looked. */
export const countQuarantined = stuck(
  'count_quarantined',
  'q.instance_id',
  'q.quarantined_at',
  'FROM holdfast.outcome_quarantine q WHERE true',
)

export interface UnclaimableRow {
  readonly machine: string
  readonly version: number
  readonly count: number
  readonly oldest_ms: number
}

/** Runnable work of machines and versions that no scheduler has had for five minutes. Served by: instance_pick, machine_pkey; reads what is runnable. */
export const listUnclaimable = statement<{ overdueMs: number }, UnclaimableRow>(
  'doctor.list_unclaimable',
  ({ overdueMs }) => sql<UnclaimableRow>`
SELECT g.machine, g.version, count(*)::integer AS count, (extract(epoch FROM now() - min(g.eligible_at)) * 1000)::float8 AS oldest_ms
FROM holdfast.instance g
WHERE g.status = 'runnable' AND g.eligible_at < now() - ${overdueMs}::bigint * interval '1 millisecond'
  AND ${nobodyRunsIt}
GROUP BY g.machine, g.version ORDER BY 3 DESC, 1, 2 LIMIT 100`,
  { overdueMs: 60_000 },
)
