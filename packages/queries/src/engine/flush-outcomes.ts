import type { InstanceId } from '@holdfast/contracts'
import { sql } from 'kysely'
import { statement } from '../statement.ts'

export interface ApplyParams {
  /** Take outcomes with a `seq` above this; 0 looks from the very front. */
  readonly afterSeq: string
  readonly limit: number
}

export interface AppliedRow {
  readonly taken: number
  /** Taken minus applied is the number of stale outcomes: their claim was over, and they changed nothing. */
  readonly applied: number
  readonly max_seq: string | null
  /** Instances that ended: their inbox goes. */
  readonly ended: InstanceId[] | null
  /** Signals that were handed to a step which moved on. */
  readonly consumed: string[] | null
  /** Instances that parked, with the ids each was shown as an array literal: to be rechecked. */
  readonly parked: InstanceId[] | null
  readonly presented: (string | null)[] | null
  readonly queues: string[] | null
  readonly due_in_ms: number | null
}

/**
 * The first statement of a flush transaction: takes staged outcomes from the front and applies each to its instance, if the claim
 * it was made under still stands.
 *
 * Locks: outcome rows FOR UPDATE SKIP LOCKED (several flushers share the table without waiting), then the instances, by the UPDATE,
 * in id order, because the nested loop is driven by the sorted outcomes. It waits only for a signal delivery or a heart-beat, which hold one
 * statement's worth. Order is best effort against a client's transaction that signals several instances; the caller retries 40P01.
 * The fence is (claim_epoch, lease_expires_at IS NOT NULL), re-evaluated on the newest version of a row that somebody held: a reaper that was first makes the
 * outcome stale (R4, R16).
 *
 * `= ANY (ARRAY[…])` and not `=`: a plain equality would be the planner's to turn round. On statistics of an empty table, or of one where nothing was
 * leased, it walks the whole primary key and compares each row with the whole batch, until the next ANALYZE (1.4 s for 1,000 rows over 10,000 instead
 * of 40 ms). An equality that cannot be merged leaves it only the look-up by key. (Updating by ctid would do so too, but a row that a heart-beat has
 * changed meanwhile is then passed over, and its outcome lost.)
 *
 * Outcomes are only ever inserted and deleted, never updated, so their ctid is stable from the inner SELECT to the DELETE.
 *
 * Reading from the front walks over the dead rows of everything taken before until vacuum removes them (600 jobs/s instead of
 * 25,000); hence `afterSeq`, the caller's low-water mark.
 *
 * Served by: outcome_seq, tid, instance_pkey.
 */
export const applyOutcomes = statement<ApplyParams, AppliedRow>(
  'engine.apply_outcomes',
  ({ afterSeq, limit }) => sql<AppliedRow>`
WITH taken AS (
  DELETE FROM holdfast.outcome WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.outcome WHERE seq > ${afterSeq}::bigint ORDER BY seq LIMIT ${limit}::integer FOR UPDATE SKIP LOCKED
  ))
  RETURNING *
), moved AS (
  UPDATE holdfast.instance g SET
    status = CASE o.kind
      WHEN 'next' THEN 'runnable'
      WHEN 'await_signal' THEN 'awaiting_signal'
      WHEN 'done' THEN 'done'
      WHEN 'fail' THEN 'failed'
      WHEN 'cancel' THEN 'cancelled'
      ELSE CASE WHEN o.delay_ms > 0 THEN 'scheduled' ELSE 'runnable' END
    END::holdfast.instance_status,
    step = coalesce(o.step, g.step),
    state = coalesce(o.state, g.state),
    result = o.result,
    error = o.error,
    attempt = CASE WHEN o.kind IN ('next', 'sleep', 'await_signal') THEN 0 WHEN o.kind = 'retry' THEN g.attempt + 1 ELSE g.attempt END,
    reclaims = 0,
    eligible_at = CASE
      WHEN o.kind IN ('done', 'fail', 'cancel') THEN g.eligible_at
      ELSE now() + coalesce(o.delay_ms, 0) * interval '1 millisecond'
    END,
    awaits = CASE o.kind WHEN 'await_signal' THEN o.awaits WHEN 'retry' THEN g.awaits END,
    await_deadline = CASE o.kind WHEN 'await_signal' THEN now() + o.timeout_ms * interval '1 millisecond' END,
    claimed_by = NULL,
    lease_expires_at = NULL,
    updated_at = now()
  FROM (SELECT * FROM taken ORDER BY instance_id) o
  WHERE g.id = ANY (ARRAY[o.instance_id]) AND g.claim_epoch = o.claim_epoch AND g.lease_expires_at IS NOT NULL
  RETURNING g.id, g.status, g.queue, g.eligible_at, g.await_deadline, o.*
), recorded AS (
  INSERT INTO holdfast.transition (
    flushed_at, claimed_at, started_at, finished_at, instance_id, claim_epoch, attempt, kind, to_status, from_step, to_step, worker, error
  )
  SELECT now(), staged_at - claimed_ago_us * interval '1 microsecond', staged_at - started_ago_us * interval '1 microsecond',
    staged_at - finished_ago_us * interval '1 microsecond', instance_id, claim_epoch, attempt, kind, status, from_step, step, worker, error
  FROM moved WHERE keep_history
)
SELECT
  (SELECT count(*)::integer FROM taken) AS taken,
  (SELECT max(seq) FROM taken) AS max_seq,
  count(*)::integer AS applied,
  array_agg(id) FILTER (WHERE status IN ('done', 'failed', 'cancelled')) AS ended,
  (SELECT array_agg(c) FROM moved m, unnest(m.consumed) c WHERE m.kind IN ('next', 'sleep')) AS consumed,
  array_agg(id) FILTER (WHERE status = 'awaiting_signal') AS parked,
  array_agg(presented::text) FILTER (WHERE status = 'awaiting_signal') AS presented,
  array_agg(DISTINCT queue) FILTER (WHERE status = 'runnable') AS queues,
  ceil(extract(epoch FROM
    least(min(eligible_at) FILTER (WHERE status = 'scheduled'), min(await_deadline)) - now()) * 1000)::float8 AS due_in_ms
FROM moved`,
  { afterSeq: '0', limit: 1000 },
)

export interface RiderParams {
  readonly ended: readonly InstanceId[]
  readonly consumed: readonly string[]
  readonly parked: readonly InstanceId[]
  readonly presented: readonly (string | null)[]
}

/**
 * The second statement of a flush transaction: what follows from the outcomes that were applied. A statement of its own, because it
 * needs a snapshot taken after the instances were locked: a signal that committed while we waited for its target is in it.
 *
 * - inboxes of ended instances and signals that a step consumed are deleted;
 * - a park whose inbox already holds a signal it waits for, other than those its step was shown, is undone at once (R1, R2). The
 *   presented ids are a set and not a highest id, because ids commit out of order.
 *
 * Locks: signals, and instances that this transaction has locked already. Served by: signal_target, signal_pkey, instance_pkey.
 */
export const applyRiders = statement<RiderParams, { queues: string[] | null }>(
  'engine.apply_riders',
  ({ ended, consumed, parked, presented }) => sql<{ queues: string[] | null }>`
WITH purged AS (
  DELETE FROM holdfast.signal WHERE target_id = ANY (${ended}::bigint[])
), spent AS (
  DELETE FROM holdfast.signal WHERE id = ANY (${consumed}::bigint[])
), woken AS (
  UPDATE holdfast.instance g SET status = 'runnable', eligible_at = now(), await_deadline = NULL, updated_at = now()
  FROM unnest(${parked}::bigint[], ${presented}::text[]) AS p (id, presented)
  WHERE g.id = ANY (ARRAY[p.id]) AND (
    SELECT true FROM holdfast.signal s
    WHERE s.target_id = p.id AND s.name = ANY (g.awaits) AND s.id <> ALL (coalesce(p.presented::bigint[], '{}'))
    LIMIT 1
  )
  RETURNING g.queue
)
SELECT array_agg(DISTINCT queue) AS queues FROM woken`,
  { ended: ['1' as InstanceId], consumed: ['1'], parked: ['1' as InstanceId], presented: [null] },
)

/** Whether anything is staged at all: what an idle flusher asks, instead of opening a transaction to find nothing. Served by: outcome_seq. */
export const hasOutcomes = statement<Record<never, never>, { waiting: boolean }>(
  'engine.has_outcomes',
  () => sql<{ waiting: boolean }>`SELECT EXISTS (SELECT FROM holdfast.outcome WHERE seq > 0) AS waiting`,
  {},
)

/**
 * The number of the outcome at the front, locked until the transaction ends: what follows is about this one and no other.
 * Locks: the outcome FOR UPDATE SKIP LOCKED. Served by: outcome_seq.
 */
export const peekOutcome = statement<{ afterSeq: string }, { seq: string }>(
  'engine.peek_outcome',
  ({ afterSeq }) => sql<{ seq: string }>`
SELECT seq FROM holdfast.outcome WHERE seq > ${afterSeq}::bigint ORDER BY seq LIMIT 1 FOR UPDATE SKIP LOCKED`,
  { afterSeq: '0' },
)

/**
 * Takes the one outcome at the front that cannot be applied out of the way: into quarantine with the database's reason, its instance
 * failed so that a person sees it. Answers the instance, or nothing if another flusher was faster.
 *
 * Locks: the outcome FOR UPDATE SKIP LOCKED, then its instance. Served by: outcome_seq, instance_pkey.
 */
export const quarantineOutcome = statement<
  { afterSeq: string; error: string },
  { instance_id: InstanceId; claim_epoch: string; failed: boolean }
>(
  'engine.quarantine_outcome',
  ({ afterSeq, error }) => sql`
WITH taken AS (
  DELETE FROM holdfast.outcome WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.outcome WHERE seq > ${afterSeq}::bigint ORDER BY seq LIMIT 1 FOR UPDATE SKIP LOCKED
  ))
  RETURNING *
), kept AS (
  INSERT INTO holdfast.outcome_quarantine (instance_id, claim_epoch, outcome, error)
  SELECT instance_id, claim_epoch, to_jsonb(taken), ${error}::jsonb FROM taken
), failed AS (
  UPDATE holdfast.instance g SET status = 'failed', error = ${error}::jsonb, result = NULL, claimed_by = NULL, lease_expires_at = NULL,
    awaits = NULL, await_deadline = NULL, updated_at = now()
  WHERE g.id = (SELECT instance_id FROM taken) AND g.claim_epoch = (SELECT claim_epoch FROM taken) AND g.lease_expires_at IS NOT NULL
  RETURNING g.id
), purged AS (
  DELETE FROM holdfast.signal USING failed WHERE signal.target_id = ANY (ARRAY[failed.id])
), recorded AS (
  INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, worker, error)
  SELECT taken.instance_id, taken.claim_epoch, taken.attempt, 'fail', 'failed', taken.from_step, taken.worker, ${error}::jsonb
  FROM taken JOIN failed ON failed.id = taken.instance_id
)
SELECT taken.instance_id, taken.claim_epoch, EXISTS (SELECT FROM failed) AS failed FROM taken`,
  { afterSeq: '0', error: '{"code":"outcome_rejected","message":"…"}' },
)
