import type { Db } from '@holdfast/schema'
import { sql } from 'kysely'

/** How long a cancelled instance whose worker has crashed is waited for; the reaper's default, which a test engine does not change. */
const CANCEL_GRACE_MS = 30_000

/** Whole milliseconds, so that sums of them are exact; never negative. */
export interface Outlook {
  /** Until the first thing happens to an instance by the passing of time alone; null: nothing will. */
  readonly nextMs: number | null
  /** Until the next tick of a cron schedule; null: there is none. */
  readonly tickMs: number | null
  /** Until every claim that its worker has left behind is over; null: there is none. */
  readonly abandonedMs: number | null
  /** Where live instances are. */
  readonly queues: readonly string[]
  readonly throttled: boolean
}

/** What is ahead of a test's instances. Reads every live one. */
export async function lookAhead(db: Db): Promise<Outlook> {
  const { rows } = await sql<{
    next_ms: number | null
    tick_ms: number | null
    abandoned_ms: number | null
    queues: string[] | null
    throttled: boolean | null
  }>`
WITH ahead AS (
  SELECT queue, status,
    CASE status
      WHEN 'scheduled' THEN eligible_at
      WHEN 'throttled' THEN nullif(throttled_until, 'infinity')
      WHEN 'awaiting_signal' THEN await_deadline
      WHEN 'awaiting_children' THEN await_deadline
      WHEN 'executing' THEN least(lease_expires_at, cancel_requested_at + ${CANCEL_GRACE_MS}::bigint * interval '1 millisecond')
    END AS at,
    CASE status WHEN 'executing' THEN lease_expires_at END AS over_at
  FROM holdfast.instance WHERE status NOT IN ('done', 'failed', 'cancelled')
)
SELECT ceil(extract(epoch FROM min(at) - now()) * 1000)::float8 AS next_ms,
  ceil(extract(epoch FROM max(over_at) - now()) * 1000)::float8 AS abandoned_ms,
  (SELECT ceil(extract(epoch FROM min(due_at) - now()) * 1000)::float8 FROM holdfast.schedule) AS tick_ms,
  array_agg(DISTINCT queue) AS queues,
  bool_or(status = 'throttled') AS throttled
FROM ahead`.execute(db)
  const [row] = rows
  if (row === undefined) throw new Error('an aggregate answered no row')
  return {
    nextMs: ahead(row.next_ms),
    tickMs: ahead(row.tick_ms),
    abandonedMs: ahead(row.abandoned_ms),
    queues: row.queues ?? [],
    throttled: row.throttled === true,
  }
}

const ahead = (ms: number | null): number | null => (ms === null ? null : Math.max(0, ms))

/**
 * Ticks are instants of a calendar that is `aheadMs` ahead of the clock; when a scheduler looks at one is a matter of the clock. Whoever writes a schedule
 * knows nothing of that, so it is set right before it is looked at. One that has failed is looked at later, as it says.
 */
export async function alignTicks(db: Db, aheadMs: number): Promise<void> {
  const dueAt = sql`next_at - ${aheadMs}::bigint * interval '1 millisecond'`
  await sql`UPDATE holdfast.schedule SET due_at = ${dueAt} WHERE failures = 0 AND next_at IS NOT NULL AND due_at <> ${dueAt}`.execute(db)
}
