import type { InstanceId, ProjectId } from '@holdfast/contracts'
import { sql } from 'kysely'
import { statement } from '../statement.ts'

export interface ReapedRow {
  readonly id: InstanceId
  readonly project_id: ProjectId
  readonly queue: string
  readonly status: 'runnable' | 'failed' | 'cancelled'
  readonly reclaims: number
  readonly claimed_by: string
  readonly concurrency_key: string | null
  readonly parent_id: string | null
  readonly parent_epoch: string | null
}

/**
 * Takes back claims whose lease has run out: runnable again, or failed with `crash_loop` once the claim has been lost more often in one step
 * than the machine allows (N8): a step that kills its process must not do so for ever. One that was asked to stop is cancelled. apply_riders follows, for the
 * inboxes and the parents of those that ended.
 *
 * A claim with a staged outcome for its epoch is left alone: the work is done and durable, the flusher will apply it (rule of
 * design/architecture.md: nothing runs twice because a flusher is dead).
 * An outcome that commits after this statement's snapshot loses: the flush finds the claim gone and counts it as stale.
 *
 * Locks: instances FOR NO KEY UPDATE SKIP LOCKED in lease order; heart-beat, flush and release are skipped, not waited for (R16, R20);
 * on a row that was just renewed the WHERE is evaluated again on the newest version.
 * Served by: instance_lease, outcome_pkey, machine_pkey.
 */
export const reapExpired = statement<{ limit: number; defaultMaxReclaims: number }, ReapedRow>(
  'engine.reap_expired',
  ({ limit, defaultMaxReclaims }) => sql<ReapedRow>`
WITH expired AS MATERIALIZED (
  SELECT g.id, g.claimed_by, CASE
      WHEN g.cancel_requested_at IS NOT NULL THEN 'cancelled'
      WHEN g.reclaims >= coalesce(
        (SELECT m.max_reclaims FROM holdfast.machine m WHERE m.name = g.machine AND m.version = g.version),
        ${defaultMaxReclaims}::integer
      ) THEN 'failed'
      ELSE 'runnable'
    END::holdfast.instance_status AS to_status
  FROM holdfast.instance g
  LEFT JOIN LATERAL (
    SELECT true AS staged FROM holdfast.outcome o WHERE o.instance_id = g.id AND o.claim_epoch = g.claim_epoch OFFSET 0
  ) outcome ON true
  WHERE g.status = 'executing' AND g.lease_expires_at < now() AND outcome.staged IS NULL
  ORDER BY g.lease_expires_at LIMIT ${limit}::integer FOR NO KEY UPDATE OF g SKIP LOCKED
), reaped AS (
  UPDATE holdfast.instance g SET
    status = expired.to_status,
    reclaims = g.reclaims + 1,
    eligible_at = CASE WHEN expired.to_status = 'runnable' THEN now() ELSE g.eligible_at END,
    error = CASE expired.to_status WHEN 'failed' THEN jsonb_build_object(
      'code', 'crash_loop',
      'message', format('The claim of step %s was lost %s times in a row, last by %s. The step seems to end its process; retry the instance when that is mended.',
        g.step, g.reclaims + 1, g.claimed_by)
    ) WHEN 'cancelled' THEN jsonb_build_object('code', 'cancelled', 'message', coalesce(g.cancel_reason, 'Cancelled while its step ran.'))
    ELSE g.error END,
    awaits = CASE expired.to_status WHEN 'runnable' THEN g.awaits END,
    children_pending = CASE expired.to_status WHEN 'runnable' THEN g.children_pending ELSE 0 END,
    await_deadline = NULL, claimed_by = NULL, lease_expires_at = NULL, updated_at = now()
  FROM expired WHERE g.id = ANY (ARRAY[expired.id])
  RETURNING g.id, g.project_id, g.queue, g.status, g.reclaims, g.claim_epoch, g.attempt, g.step, g.error, g.concurrency_key, g.parent_id, g.parent_epoch,
    expired.claimed_by
), recorded AS (
  INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, worker, error)
  SELECT id, claim_epoch, attempt, CASE status WHEN 'failed' THEN 'fail' ELSE 'cancel' END::holdfast.outcome_kind, status, step, claimed_by, error
  FROM reaped WHERE status <> 'runnable'
)
SELECT id, project_id, queue, status, reclaims, claimed_by, concurrency_key, parent_id, parent_epoch FROM reaped`,
  { limit: 500, defaultMaxReclaims: 5 },
)

/**
 * Whether there is anything to take back, to end or to cancel: what an idle reaper asks, in one statement instead of three transactions.
 * Served by: instance_lease, instance_cancelling; `cascade` is empty but for the moment.
 */
export const hasReaperWork = statement<{ graceMs: number }, { expired: boolean; overdue: boolean; cascades: boolean }>(
  'engine.has_reaper_work',
  ({ graceMs }) => sql<{ expired: boolean; overdue: boolean; cascades: boolean }>`
SELECT
  EXISTS (SELECT FROM holdfast.instance WHERE status = 'executing' AND lease_expires_at < now()) AS expired,
  EXISTS (SELECT FROM holdfast.instance WHERE status = 'executing' AND cancel_requested_at IS NOT NULL
    AND cancel_requested_at < now() - ${graceMs}::bigint * interval '1 millisecond') AS overdue,
  EXISTS (SELECT FROM holdfast.cascade) AS cascades`,
  { graceMs: 30_000 },
)

/**
 * Deletes finished instances older than the retention, with their receipts and what is left of their inboxes; answers how many.
 * A child stays as long as its parent is live, because the parent's next step is shown its children (R23). Nothing is added to an instance that has ended, so
 * that what this statement's snapshot shows of its inbox is all there will ever be.
 *
 * Locks: instances FOR UPDATE SKIP LOCKED, oldest first; the delete goes by primary key. Served by: instance_finished, instance_pkey, signal_target,
 * signal_receipt_pkey.
 */
export const deleteFinished = statement<{ retentionMs: number; limit: number }, { count: number }>(
  'engine.delete_finished',
  ({ retentionMs, limit }) => sql<{ count: number }>`
WITH finished AS MATERIALIZED (
  SELECT array_agg(id) AS ids FROM (
    SELECT g.id FROM holdfast.instance g
    WHERE g.status IN ('done', 'failed', 'cancelled') AND g.updated_at < now() - ${retentionMs}::bigint * interval '1 millisecond'
      AND NOT EXISTS (
        SELECT FROM holdfast.instance p WHERE p.id = g.parent_id AND p.status NOT IN ('done', 'failed', 'cancelled')
      )
    ORDER BY g.updated_at LIMIT ${limit}::integer FOR UPDATE OF g SKIP LOCKED
  ) g
), deleted AS (
  DELETE FROM holdfast.instance WHERE id = ANY ((SELECT ids FROM finished)::bigint[]) RETURNING id
), purged AS (
  DELETE FROM holdfast.signal WHERE target_id = ANY ((SELECT ids FROM finished)::bigint[])
), forgotten AS (
  DELETE FROM holdfast.signal_receipt WHERE target_id = ANY ((SELECT ids FROM finished)::bigint[])
)
SELECT count(*)::integer AS count FROM deleted`,
  { retentionMs: 86_400_000, limit: 1000 },
)

/** Makes tomorrow's history partitions, and drops those whose days are older than `keepDays`. Both take a table lock for a moment. */
export const ensureTransitionPartitions = statement<{ daysAhead: number }, { made: number }>(
  'engine.ensure_transition_partitions',
  ({ daysAhead }) => sql<{ made: number }>`SELECT holdfast.ensure_transition_partitions(${daysAhead}::integer) AS made`,
  { daysAhead: 3 },
)
export const dropTransitionPartitions = statement<{ keepDays: number }, { dropped: number }>(
  'engine.drop_transition_partitions',
  ({ keepDays }) => sql<{ dropped: number }>`SELECT holdfast.drop_transition_partitions(${keepDays}::integer) AS dropped`,
  { keepDays: 14 },
)
