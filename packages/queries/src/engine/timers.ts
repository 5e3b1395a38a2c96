import { sql } from 'kysely'
import { statement } from '../statement.ts'

export interface DueRow {
  readonly count: number
  readonly queues: string[] | null
  /** Milliseconds until the next one is due; null when nothing is waiting. */
  readonly next_in_ms: number | null
}

/**
 * Makes scheduled instances runnable whose time has come, in any queue, and says when the next one is due.
 *
 * Locks: instances FOR NO KEY UPDATE SKIP LOCKED in due order; any number of schedulers and reapers may call it at once.
 * `= ANY (ARRAY[…])`: see flush-outcomes.
 * `eligible_at > now()` in the look ahead lets the index start behind the dead entries of what was promoted before.
 * Served by: instance_due, instance_pkey.
 */
export const promoteDue = statement<{ limit: number }, DueRow>(
  'engine.promote_due',
  ({ limit }) => sql<DueRow>`
WITH due AS MATERIALIZED (
  SELECT id FROM holdfast.instance WHERE status = 'scheduled' AND eligible_at <= now()
  ORDER BY eligible_at LIMIT ${limit}::integer FOR NO KEY UPDATE SKIP LOCKED
), promoted AS (
  UPDATE holdfast.instance g SET status = 'runnable', updated_at = now() FROM due WHERE g.id = ANY (ARRAY[due.id])
  RETURNING g.queue
)
SELECT count(*)::integer AS count, array_agg(DISTINCT queue) AS queues,
  (SELECT ceil(extract(epoch FROM eligible_at - now()) * 1000)::float8 FROM holdfast.instance
    WHERE status = 'scheduled' AND eligible_at > now() ORDER BY eligible_at LIMIT 1) AS next_in_ms
FROM promoted`,
  { limit: 1000 },
)

/**
 * Wakes instances whose await has timed out, for signals or for children; a wake, not a failure: the step runs with nothing awaited, or with what has come of a pack,
 * or with those children that have ended; `children_pending` stays and says how many have not.
 * `awaits` stays, so that a signal which arrives before the claim still counts as awaited (R29).
 *
 * Locks: as {@link promoteDue}; a signal that is waking the same row at this moment holds it, and the row is skipped.
 * Served by: instance_await_deadline, instance_pkey.
 */
export const fireAwaitDeadlines = statement<{ limit: number }, DueRow>(
  'engine.fire_await_deadlines',
  ({ limit }) => sql<DueRow>`
WITH due AS MATERIALIZED (
  SELECT id FROM holdfast.instance
  WHERE status IN ('awaiting_signal', 'awaiting_children') AND await_deadline IS NOT NULL AND await_deadline <= now()
  ORDER BY await_deadline LIMIT ${limit}::integer FOR NO KEY UPDATE SKIP LOCKED
), woken AS (
  UPDATE holdfast.instance g SET status = 'runnable', eligible_at = now(), await_deadline = NULL, updated_at = now()
  FROM due WHERE g.id = ANY (ARRAY[due.id])
  RETURNING g.queue
)
SELECT count(*)::integer AS count, array_agg(DISTINCT queue) AS queues,
  (SELECT ceil(extract(epoch FROM await_deadline - now()) * 1000)::float8 FROM holdfast.instance
    WHERE status IN ('awaiting_signal', 'awaiting_children') AND await_deadline IS NOT NULL AND await_deadline > now()
    ORDER BY await_deadline LIMIT 1) AS next_in_ms
FROM woken`,
  { limit: 1000 },
)
