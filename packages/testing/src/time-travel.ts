import type { Db } from '@holdfast/schema'
import { sql } from 'kysely'
import { movedColumns } from './time-columns.ts'

/** How long a cancelled instance whose worker has crashed is waited for; the reaper's default, which a test engine does not change. */
const CANCEL_GRACE_MS = 30_000

export interface Outlook {
  /** Microseconds until the first thing happens by the passing of time alone; null: nothing will. Never negative. */
  readonly nextUs: number | null
  /** Microseconds until every claim that its worker has left behind is over; null: there is none. */
  readonly abandonedUs: number | null
  /** Where live instances are. */
  readonly queues: readonly string[]
  /** Cancelled parents whose children are still to be cancelled. */
  readonly cascading: boolean
  readonly throttled: boolean
}

/** What is ahead of a test's instances. Reads every live one. */
export async function lookAhead(db: Db): Promise<Outlook> {
  const { rows } = await sql<{
    next_us: string | null
    abandoned_us: string | null
    queues: string[] | null
    cascading: boolean
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
SELECT greatest(ceil(extract(epoch FROM min(at) - now()) * 1000000), 0)::bigint AS next_us,
  greatest(ceil(extract(epoch FROM max(over_at) - now()) * 1000000), 0)::bigint AS abandoned_us,
  array_agg(DISTINCT queue) AS queues,
  bool_or(status = 'throttled') AS throttled,
  EXISTS (SELECT FROM holdfast.cascade) AS cascading
FROM ahead`.execute(db)
  const [row] = rows
  if (row === undefined) throw new Error('an aggregate answered no row')
  return {
    nextUs: row.next_us === null ? null : Number(row.next_us),
    abandonedUs: row.abandoned_us === null ? null : Number(row.abandoned_us),
    queues: row.queues ?? [],
    cascading: row.cascading,
    throttled: row.throttled === true,
  }
}

/**
 * Lets so much time pass: everything that the database knows of a time becomes that much older, in one transaction. The clocks of the database and of this process go
 * on as they are, so whatever is written from now on is later than all of it.
 */
export async function letPass(db: Db, us: number): Promise<void> {
  if (us <= 0) return
  await db.transaction().execute(async (trx) => {
    for (const [table, columns] of Object.entries(movedColumns)) {
      const changes = columns.map((column) => sql`${sql.ref(column)} = ${sql.ref(column)} - ${us}::bigint * interval '1 microsecond'`)
      await sql`UPDATE holdfast.${sql.ref(table)} SET ${sql.join(changes)}`.execute(trx)
    }
  })
}
