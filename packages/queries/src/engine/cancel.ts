import type { InstanceId, InstanceStatus, ProjectId } from '@holdfast/contracts'
import { sql } from 'kysely'
import { statement } from '../statement.ts'

export interface CancelledRow {
  readonly id: InstanceId
  readonly project_id: ProjectId
  /** `executing`: it was asked to stop; `cancelled`: it has. */
  readonly status: 'executing' | 'cancelled'
  readonly concurrency_key: string | null
  readonly parent_id: string | null
  readonly parent_epoch: string | null
}

/**
 * Cancels live instances: at once where nothing runs; an executing one is asked to stop, and ends when its step answers, at the latest when the grace is over
 * (see {@link cancelOverdue}). With a `status`, only those that are still in it. Answers those it found live. apply_riders follows in the same transaction, and wake_waiters after its commit.
 *
 * Locks: instances FOR NO KEY UPDATE in id order; waits for a claim, a flush or a signal of the same instance, and decides on what they have left.
 * The SET is right for the snapshot's version of a row as well as for the newest: PostgreSQL checks constraints on what it would make of the former before it
 * notices the latter (see deliver-signal).
 * Served by: instance_pkey.
 */
export const cancelInstances = statement<
  { ids: readonly InstanceId[]; projectId: ProjectId | null; reason: string | null; status?: InstanceStatus | undefined },
  CancelledRow
>(
  'engine.cancel_instances',
  ({ ids, projectId, reason, status }) => sql<CancelledRow>`
WITH target AS MATERIALIZED (
  SELECT t.id
  FROM (SELECT DISTINCT id FROM unnest(${ids}::bigint[]) AS t (id) ORDER BY id) t
  CROSS JOIN LATERAL (
    SELECT FROM holdfast.instance g
    WHERE g.id = t.id AND (${projectId}::bigint IS NULL OR g.project_id = ${projectId}::bigint)
      AND g.status NOT IN ('done', 'failed', 'cancelled')
      AND (${status ?? null}::holdfast.instance_status IS NULL OR g.status = ${status ?? null}::holdfast.instance_status)
    FOR NO KEY UPDATE
  ) live
), cancelled AS (
  UPDATE holdfast.instance g SET
    status = CASE WHEN g.lease_expires_at IS NULL THEN 'cancelled' ELSE 'executing' END::holdfast.instance_status,
    cancel_requested_at = coalesce(g.cancel_requested_at, now()),
    cancel_reason = coalesce(g.cancel_reason, ${reason}::text),
    error = CASE WHEN g.lease_expires_at IS NULL
      THEN jsonb_build_object('code', 'cancelled', 'message', coalesce(${reason}::text, 'Cancelled.')) ELSE g.error END,
    awaits = CASE WHEN g.lease_expires_at IS NOT NULL THEN g.awaits END,
    children_pending = CASE WHEN g.lease_expires_at IS NOT NULL THEN g.children_pending ELSE 0 END,
    await_deadline = NULL, throttled_until = NULL, updated_at = now()
  FROM target WHERE g.id = ANY (ARRAY[target.id])
  RETURNING g.id, g.project_id, g.status, g.concurrency_key, g.parent_id, g.parent_epoch, g.claim_epoch, g.attempt, g.step, g.error
), recorded AS (
  INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, error)
  SELECT id, claim_epoch, attempt, 'cancel', status, step, error FROM cancelled WHERE status = 'cancelled'
)
SELECT id, project_id, status, concurrency_key, parent_id, parent_epoch FROM cancelled`,
  { ids: ['1' as InstanceId], projectId: '1' as ProjectId, reason: null },
)

/**
 * Ends executing instances that were asked to stop so long ago: their claims are over, and what their steps still answer is stale. One whose outcome is staged
 * is left to the flusher. apply_riders follows in the same transaction, and wake_waiters after its commit.
 *
 * Locks: instances FOR NO KEY UPDATE SKIP LOCKED. Served by: instance_cancelling, outcome_pkey.
 */
export const cancelOverdue = statement<{ graceMs: number; limit: number }, CancelledRow>(
  'engine.cancel_overdue',
  ({ graceMs, limit }) => sql<CancelledRow>`
WITH overdue AS MATERIALIZED (
  SELECT g.id, g.claimed_by
  FROM holdfast.instance g
  LEFT JOIN LATERAL (
    SELECT true AS staged FROM holdfast.outcome o WHERE o.instance_id = g.id AND o.claim_epoch = g.claim_epoch OFFSET 0
  ) outcome ON true
  WHERE g.status = 'executing' AND g.cancel_requested_at IS NOT NULL
    AND g.cancel_requested_at < now() - ${graceMs}::bigint * interval '1 millisecond' AND outcome.staged IS NULL
  ORDER BY g.cancel_requested_at LIMIT ${limit}::integer FOR NO KEY UPDATE OF g SKIP LOCKED
), cancelled AS (
  UPDATE holdfast.instance g SET status = 'cancelled', claimed_by = NULL, lease_expires_at = NULL, awaits = NULL, await_deadline = NULL,
    children_pending = 0, error = jsonb_build_object('code', 'cancelled', 'message',
      format('%s Its step did not end within the grace and was left behind.', coalesce(g.cancel_reason, 'Cancelled.'))),
    updated_at = now()
  FROM overdue WHERE g.id = ANY (ARRAY[overdue.id])
  RETURNING g.id, g.project_id, g.status, g.concurrency_key, g.parent_id, g.parent_epoch, g.claim_epoch, g.attempt, g.step, g.error, overdue.claimed_by
), recorded AS (
  INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, worker, error)
  SELECT id, claim_epoch, attempt, 'cancel', status, step, claimed_by, error FROM cancelled
)
SELECT id, project_id, status, concurrency_key, parent_id, parent_epoch FROM cancelled`,
  { graceMs: 30_000, limit: 500 },
)

/**
 * Some live children of one cancelled instance whose children are still to be cancelled; fewer than `limit` means that these are the last. The note is locked, so
 * that two reapers do not take the same. Children of a spawn that the parent has left behind are cancelled with the others; those that it spawns
 * after a person has retried it are younger than the note, and stay.
 * Locks: the note FOR UPDATE SKIP LOCKED. Served by: instance_parent; `cascade` is empty but for the moment.
 */
export const nextCascade = statement<{ limit: number }, { parent_id: InstanceId; children: InstanceId[] | null }>(
  'engine.next_cascade',
  ({ limit }) => sql<{ parent_id: InstanceId; children: InstanceId[] | null }>`
WITH note AS MATERIALIZED (
  SELECT parent_id, requested_at FROM holdfast.cascade ORDER BY parent_id LIMIT 1 FOR UPDATE SKIP LOCKED
)
SELECT note.parent_id, (
  SELECT array_agg(id) FROM (
    SELECT c.id FROM holdfast.instance c
    WHERE c.parent_id = note.parent_id AND c.inserted_at <= note.requested_at AND c.status NOT IN ('done', 'failed', 'cancelled')
      AND (c.status <> 'executing' OR c.cancel_requested_at IS NULL)
    ORDER BY c.id LIMIT ${limit}::integer
  ) live
) AS children
FROM note`,
  { limit: 1000 },
)

/** The children of this one have all been cancelled or asked to stop. Served by: cascade_pkey. */
export const endCascade = statement<{ parentId: InstanceId }, { parent_id: InstanceId }>(
  'engine.end_cascade',
  ({ parentId }) => sql<{ parent_id: InstanceId }>`DELETE FROM holdfast.cascade WHERE parent_id = ${parentId}::bigint RETURNING parent_id`,
  { parentId: '1' as InstanceId },
)

export interface RetriedRow {
  readonly id: InstanceId
  readonly queue: string
}

/**
 * Makes failed and cancelled instances runnable again at the step where they ended, with their state, as a first attempt. Their signals are gone with their end.
 * One whose correlation key another instance has taken meanwhile is left as it is, and of several that want the same key the youngest gets it. A child has been counted
 * by its parent when it ended, and is not counted again: it loses the epoch of its spawn. With a `status`, only those that are still in it. The reason is kept in the history.
 *
 * Locks: instances FOR NO KEY UPDATE in id order. If the key is taken at this moment, the unique index instance_correlation refuses the statement, and the caller
 * tries again: the occupant is seen then. Served by: instance_pkey, instance_correlation.
 */
export const retryInstances = statement<
  { ids: readonly InstanceId[]; projectId: ProjectId; reason?: string | null | undefined; status?: InstanceStatus | undefined },
  RetriedRow
>(
  'engine.retry_instances',
  ({ ids, projectId, reason, status }) => sql<RetriedRow>`
WITH target AS MATERIALIZED (
  SELECT t.id, ended.correlation_key
  FROM (SELECT DISTINCT id FROM unnest(${ids}::bigint[]) AS t (id) ORDER BY id) t
  CROSS JOIN LATERAL (
    SELECT g.correlation_key FROM holdfast.instance g
    WHERE g.id = t.id AND g.project_id = ${projectId}::bigint AND g.status IN ('failed', 'cancelled')
      AND (${status ?? null}::holdfast.instance_status IS NULL OR g.status = ${status ?? null}::holdfast.instance_status)
      AND (g.correlation_key IS NULL OR NOT EXISTS (
        SELECT FROM holdfast.instance o
        WHERE o.project_id = g.project_id AND o.correlation_guard = g.correlation_key AND o.id <> g.id
      ))
    FOR NO KEY UPDATE OF g
  ) ended
), winner AS MATERIALIZED (
  SELECT id FROM (SELECT id, correlation_key, row_number() OVER (PARTITION BY correlation_key ORDER BY id DESC) AS place FROM target) t
  WHERE place = 1 OR correlation_key IS NULL
), retried AS (
  UPDATE holdfast.instance g SET status = 'runnable', attempt = 0, reclaims = 0, error = NULL, cancel_requested_at = NULL, cancel_reason = NULL,
    children_pending = 0, parent_epoch = NULL, eligible_at = now(), updated_at = now()
  FROM winner WHERE g.id = ANY (ARRAY[winner.id]) AND g.status IN ('failed', 'cancelled')
  RETURNING g.id, g.queue, g.claim_epoch, g.step
), recorded AS (
  INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, to_step, error)
  SELECT id, claim_epoch, 0, 'retry', 'runnable', step, step, jsonb_build_object('code', 'retried', 'message', coalesce(${reason ?? null}::text, 'Retried.'))
  FROM retried
)
SELECT id, queue FROM retried`,
  { ids: ['1' as InstanceId], projectId: '1' as ProjectId },
)
