import type { InstanceId } from '@holdfast/contracts'
import { type RawBuilder, sql } from 'kysely'
import { column, statement } from '../statement.ts'
import { outcomeRows, type StagedOutcome, sampleOutcomes } from './stage-outcomes.ts'

export interface ApplyParams {
  /** Take outcomes with a `seq` above this; 0 looks from the very front. */
  readonly afterSeq: string
  readonly limit: number
}

export interface AppliedRow {
  readonly taken: number
  /** Taken minus applied is the number of stale outcomes: their claim was over, and they changed nothing. */
  readonly applied: number
  /** Of staged outcomes. */
  readonly max_seq: string | null
  /** Of outcomes that did not come from the table: whose it was. */
  readonly applied_ids: InstanceId[] | null
  /** Instances that go on under the same worker, and the epoch of their next step. */
  readonly continued: InstanceId[] | null
  readonly continued_epochs: string[] | null
  /** Instances that ended: their inbox goes. */
  readonly ended: InstanceId[] | null
  /** Instances that ended and were not kept: their inbox goes, and their receipts. */
  readonly removed: InstanceId[] | null
  /** Signals that were handed to a step which moved on. */
  readonly consumed: string[] | null
  /** Instances that parked on signals, with the ids each was shown as an array literal: to be rechecked. */
  readonly parked: InstanceId[] | null
  readonly presented: (string | null)[] | null
  /** Parents of instances that ended, with the epoch of their spawn and how many of it ended. */
  readonly joined: readonly JoinedParent[] | null
  /** Parents that wait for the children just inserted: how many landed, and how many must end. */
  readonly spawned: readonly SpawningParent[] | null
  /** Instances that were cancelled: their children are to be, too. */
  readonly cancelled: InstanceId[] | null
  /** Keys that claims held which are over now. */
  readonly freed: readonly { readonly project_id: string; readonly key: string }[] | null
  readonly queues: string[] | null
  readonly due_in_ms: number | null
}
export interface JoinedParent {
  readonly id: string
  readonly epoch: string
  readonly ended: number
}
export interface SpawningParent {
  readonly id: string
  readonly landed: number
  readonly join_count: number | null
}

/** The next step of outcome `o` asks for a rate limit that its project does not have, or for more than it can ever give. */
const unlimited = sql`o.rate_key IS NOT NULL AND coalesce((
        SELECT o.rate_weight > p.burst FROM holdfast.limit_policy p
        WHERE p.project_id = g.project_id AND p.kind = 'rate' AND p.name = split_part(o.rate_key, ':', 1)), true)`
/** What waits by outcome `o` will, and has not been ended by it. */
const lives = sql`g.cancel_requested_at IS NULL AND NOT (${unlimited})`

/**
 * Applies outcomes `taken` to their instances where the claim they were made under still stands.
 *
 * Locks: the instances, by the UPDATE, in id order, because the nested loop is driven by the sorted outcomes. It waits only for a signal delivery, a
 * heart-beat or a cancellation, which hold one statement's worth. Order is best effort against a client's transaction that signals several instances; the
 * caller retries 40P01. The fence is (claim_epoch, lease_expires_at IS NOT NULL), re-evaluated on the newest version of a row that somebody held: a reaper that was
 * first makes the outcome stale (R4, R16).
 *
 * An instance that was asked to stop while it ran ends here: what its step answered counts if it is an end, otherwise it is cancelled.
 * A next step whose rate limit does not exist, or is smaller than its weight, would wait for ever: the instance fails and says so.
 *
 * Children are inserted in the order of their correlation keys (R15), after their parent is locked and parked in the same statement, so that neither the reaper
 * nor the end of a child can come between (R12, R14). What landed of them is counted by the riders.
 *
 * `= ANY (ARRAY[…])` and not `=`: a plain equality would be the planner's to turn round. On statistics of an empty table, or of one where nothing was
 * leased, it walks the whole primary key and compares each row with the whole batch, until the next ANALYZE (1.4 s for 1,000 rows over 10,000 instead
 * of 40 ms). An equality that cannot be merged leaves it only the look-up by key. (Updating by ctid would do so too, but a row that a heart-beat has
 * changed meanwhile is then passed over, and its outcome lost.)
 */
const apply = (
  taken: RawBuilder<unknown>,
  goesOn: RawBuilder<unknown>,
  summary: RawBuilder<unknown>,
): RawBuilder<AppliedRow> => sql<AppliedRow>`
WITH taken AS (${taken}
), discarded AS (
  DELETE FROM holdfast.instance g
  USING (SELECT * FROM taken WHERE discard AND kind = 'done' ORDER BY instance_id) o
  WHERE g.id = ANY (ARRAY[o.instance_id]) AND g.claim_epoch = o.claim_epoch AND g.lease_expires_at IS NOT NULL
    AND g.parent_id IS NULL AND NOT 'done' = ANY (g.correlation_scope)
  RETURNING g.id, g.project_id, o.held_key
), moved AS (
  UPDATE holdfast.instance g SET
    status = CASE
      WHEN o.kind = 'done' THEN 'done'
      WHEN o.kind = 'fail' THEN 'failed'
      WHEN o.kind = 'cancel' OR g.cancel_requested_at IS NOT NULL THEN 'cancelled'
      WHEN ${unlimited} THEN 'failed'
      WHEN o.goes_on THEN 'executing'
      WHEN o.kind IN ('next', 'continue_as') THEN 'runnable'
      WHEN o.kind = 'await_signal' THEN 'awaiting_signal'
      WHEN o.kind = 'spawn' THEN CASE WHEN jsonb_array_length(o.children) > 0 THEN 'awaiting_children' ELSE 'runnable' END
      ELSE CASE WHEN o.delay_ms > 0 THEN 'scheduled' ELSE 'runnable' END
    END::holdfast.instance_status,
    step = coalesce(o.step, g.step),
    version = coalesce(o.version, g.version),
    state = coalesce(o.state, g.state),
    result = o.result,
    error = CASE
      WHEN o.kind IN ('done', 'fail', 'cancel') THEN o.error
      WHEN g.cancel_requested_at IS NOT NULL
        THEN jsonb_build_object('code', 'cancelled', 'message', coalesce(g.cancel_reason, 'Cancelled while its step ran.'))
      WHEN ${unlimited}
        THEN jsonb_build_object('code', 'invalid_limit', 'message', format(
          'Step %s asks for %s of the rate limit %s, which its project does not have or whose burst is smaller. Make the limit larger, or the weight smaller, and retry the instance.',
          o.step, o.rate_weight, o.rate_key))
      ELSE o.error
    END,
    attempt = CASE WHEN o.kind = 'retry' THEN g.attempt + 1 WHEN o.kind IN ('done', 'fail', 'cancel') THEN g.attempt ELSE 0 END,
    reclaims = 0,
    eligible_at = CASE
      WHEN o.kind IN ('done', 'fail', 'cancel') THEN g.eligible_at
      ELSE now() + coalesce(o.delay_ms, 0) * interval '1 millisecond'
    END,
    awaits = CASE WHEN ${lives} THEN CASE o.kind WHEN 'await_signal' THEN o.awaits WHEN 'retry' THEN g.awaits END END,
    await_deadline = CASE WHEN o.kind IN ('await_signal', 'spawn') AND ${lives} THEN now() + o.timeout_ms * interval '1 millisecond' END,
    children_pending = CASE WHEN o.kind = 'spawn' AND ${lives} THEN jsonb_array_length(o.children) ELSE 0 END,
    concurrency_key = CASE WHEN o.key_change THEN o.concurrency_key ELSE g.concurrency_key END,
    rate_key = CASE WHEN o.kind IN ('retry', 'done', 'fail', 'cancel') THEN g.rate_key ELSE o.rate_key END,
    rate_weight = CASE WHEN o.kind IN ('retry', 'done', 'fail', 'cancel') THEN g.rate_weight ELSE coalesce(o.rate_weight, 1) END,
    ${goesOn},
    gate_slot = CASE WHEN NOT o.key_change THEN g.gate_slot END,
    updated_at = now()
  FROM (SELECT * FROM taken ORDER BY instance_id) o
  WHERE g.id = ANY (ARRAY[o.instance_id]) AND g.claim_epoch = o.claim_epoch AND g.lease_expires_at IS NOT NULL
    AND NOT (o.discard AND o.kind = 'done' AND g.parent_id IS NULL AND NOT 'done' = ANY (g.correlation_scope))
  RETURNING g.id, g.project_id, g.status, g.queue, g.eligible_at, g.await_deadline, g.parent_id, g.parent_epoch, g.claim_epoch AS epoch_now,
    g.error AS error_now, o.claim_epoch, o.attempt, o.kind, o.keep_history, o.worker, o.from_step, o.step, o.presented, o.consumed, o.held_key, o.key_change,
    o.children, o.join_count, o.traceparent, o.staged_at, o.claimed_ago_us, o.started_ago_us, o.finished_ago_us
), born AS (
  INSERT INTO holdfast.instance (
    project_id, machine, version, queue, state, priority, status, eligible_at, correlation_key, correlation_scope, concurrency_key,
    rate_key, rate_weight, parent_id, parent_epoch, traceparent
  )
  SELECT m.project_id, c.machine, coalesce(c.version, declared.version, 1), coalesce(c.queue, declared.queue, 'default'), coalesce(c.state, '{}'),
    coalesce(c.priority, 0::smallint), CASE WHEN c.delay_ms > 0 THEN 'scheduled' ELSE 'runnable' END::holdfast.instance_status,
    now() + coalesce(c.delay_ms, 0) * interval '1 millisecond', c.correlation_key, coalesce(c.correlation_scope, '{}')::holdfast.instance_status[],
    c.concurrency_key, c.rate_key, coalesce(c.rate_weight, 1), m.id, m.claim_epoch, m.traceparent
  FROM moved m
  CROSS JOIN LATERAL ROWS FROM (jsonb_to_recordset(m.children) AS (
    machine text, version integer, queue text, state jsonb, priority smallint, delay_ms bigint, correlation_key text, correlation_scope text[],
    concurrency_key text, rate_key text, rate_weight integer
  )) WITH ORDINALITY AS c (
    machine, version, queue, state, priority, delay_ms, correlation_key, correlation_scope, concurrency_key, rate_key, rate_weight, ord
  )
  LEFT JOIN LATERAL (
    SELECT d.version, d.queue FROM holdfast.machine d
    WHERE d.name = c.machine AND (c.version IS NULL OR d.version = c.version)
    ORDER BY d.version DESC LIMIT 1
  ) declared ON true
  WHERE m.status = 'awaiting_children'
  ORDER BY c.correlation_key, m.id, c.ord
  ON CONFLICT (project_id, correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING
  RETURNING parent_id, queue, status, eligible_at
), recorded AS (
  INSERT INTO holdfast.transition (
    flushed_at, claimed_at, started_at, finished_at, instance_id, claim_epoch, attempt, kind, to_status, from_step, to_step, worker, error
  )
  SELECT now(), staged_at - claimed_ago_us * interval '1 microsecond', staged_at - started_ago_us * interval '1 microsecond',
    staged_at - finished_ago_us * interval '1 microsecond', id, claim_epoch, attempt, kind, status, from_step, step, worker, error_now
  FROM moved WHERE keep_history
)
SELECT
  (SELECT count(*)::integer FROM taken) AS taken,
  ${summary},
  count(*)::integer + (SELECT count(*)::integer FROM discarded) AS applied,
  array_agg(id) FILTER (WHERE status = 'executing') AS continued,
  array_agg(epoch_now) FILTER (WHERE status = 'executing') AS continued_epochs,
  array_agg(id) FILTER (WHERE status IN ('done', 'failed', 'cancelled')) AS ended,
  (SELECT array_agg(id) FROM discarded) AS removed,
  (SELECT array_agg(c) FROM moved m, unnest(m.consumed) c WHERE m.kind IN ('next', 'sleep', 'spawn', 'continue_as')) AS consumed,
  array_agg(id) FILTER (WHERE status = 'awaiting_signal') AS parked,
  array_agg(presented::text) FILTER (WHERE status = 'awaiting_signal') AS presented,
  CASE WHEN bool_or(parent_epoch IS NOT NULL AND status IN ('done', 'failed', 'cancelled')) THEN (
    SELECT jsonb_agg(jsonb_build_object('id', parent_id::text, 'epoch', parent_epoch::text, 'ended', ended)) FROM (
      SELECT parent_id, parent_epoch, count(*) AS ended FROM moved
      WHERE parent_epoch IS NOT NULL AND status IN ('done', 'failed', 'cancelled') GROUP BY parent_id, parent_epoch
    ) p
  ) END AS joined,
  CASE WHEN bool_or(status = 'awaiting_children') THEN (
    SELECT jsonb_agg(jsonb_build_object('id', m.id::text, 'landed', (SELECT count(*) FROM born b WHERE b.parent_id = m.id), 'join_count', m.join_count))
    FROM moved m WHERE m.status = 'awaiting_children'
  ) END AS spawned,
  array_agg(id) FILTER (WHERE status = 'cancelled') AS cancelled,
  CASE WHEN bool_or(held_key IS NOT NULL) OR EXISTS (SELECT FROM discarded WHERE held_key IS NOT NULL) THEN (
    SELECT jsonb_agg(jsonb_build_object('project_id', project_id::text, 'key', held_key)) FROM (
      SELECT project_id, held_key FROM moved WHERE held_key IS NOT NULL AND (status <> 'executing' OR key_change)
      UNION
      SELECT project_id, held_key FROM discarded WHERE held_key IS NOT NULL
    ) f
  ) END AS freed,
  (SELECT array_agg(DISTINCT q) FROM (
    SELECT queue AS q FROM moved WHERE status = 'runnable' UNION SELECT queue FROM born WHERE status = 'runnable'
  ) runnable) AS queues,
  ceil(extract(epoch FROM least(
    min(eligible_at) FILTER (WHERE status = 'scheduled'), min(await_deadline), (SELECT min(eligible_at) FROM born WHERE status = 'scheduled')
  ) - now()) * 1000)::float8 AS due_in_ms
FROM moved`

/**
 * The first statement of a flush transaction: takes staged outcomes from the front and applies them; see {@link apply}.
 *
 * Locks: outcome rows FOR UPDATE SKIP LOCKED (several flushers share the table without waiting), then the instances.
 * Outcomes are only ever inserted and deleted, never updated, so their ctid is stable from the inner SELECT to the DELETE.
 *
 * Reading from the front walks over the dead rows of everything taken before until vacuum removes them (600 jobs/s instead of
 * 25,000); hence `afterSeq`, the caller's low-water mark.
 *
 * Served by: outcome_seq, tid, instance_pkey, machine_pkey, limit_policy_pkey.
 */
export const applyOutcomes = statement<ApplyParams, AppliedRow>(
  'engine.apply_outcomes',
  ({ afterSeq, limit }) =>
    apply(
      sql`
  DELETE FROM holdfast.outcome WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.outcome WHERE seq > ${afterSeq}::bigint ORDER BY seq LIMIT ${limit}::integer FOR UPDATE SKIP LOCKED
  ))
  RETURNING *, false AS goes_on`,
      // A flusher has no right to a claim, and needs none.
      sql`claimed_by = NULL, lease_expires_at = NULL`,
      sql`(SELECT max(seq) FROM taken) AS max_seq, NULL::bigint[] AS applied_ids`,
    ),
  { afterSeq: '0', limit: 1000 },
)

export interface ApplyGivenParams {
  readonly worker: string
  readonly outcomes: readonly StagedOutcome[]
  /** Of these, in the same order: those whose next step this worker goes on with at once, keeping its claim. */
  readonly goesOn: readonly boolean[]
  readonly leaseMs: number
}

/**
 * The same for outcomes that never were in the table: the first statement of a scheduler that flushes itself (`HOLDFAST_FLUSH=direct`). An outcome sent twice,
 * because its commit was not answered, finds its claim over and is stale: nothing is applied twice.
 */
export const applyGiven = statement<ApplyGivenParams, AppliedRow>(
  'engine.apply_given',
  ({ worker, outcomes, goesOn, leaseMs }) =>
    apply(
      sql`
  SELECT r.*, ${worker}::text AS worker, now() AS staged_at, ${leaseMs}::bigint AS lease_ms,
    coalesce((${column(goesOn, (on) => on)}::boolean[])[row_number() OVER ()], false) AS goes_on
  FROM (${outcomeRows(outcomes)}) r`,
      sql`claim_epoch = g.claim_epoch + (o.goes_on AND g.cancel_requested_at IS NULL)::integer,
    claimed_by = CASE WHEN o.goes_on AND g.cancel_requested_at IS NULL THEN g.claimed_by END,
    lease_expires_at = CASE WHEN o.goes_on AND g.cancel_requested_at IS NULL THEN now() + o.lease_ms * interval '1 millisecond' END`,
      sql`NULL::bigint AS max_seq, array_cat(array_agg(id), (SELECT array_agg(id) FROM discarded)) AS applied_ids`,
    ),
  { worker: 'scheduler@host#1', outcomes: sampleOutcomes, goesOn: [false], leaseMs: 60_000 },
)

export interface RiderParams {
  readonly ended: readonly InstanceId[]
  readonly removed: readonly InstanceId[]
  readonly consumed: readonly string[]
  readonly parked: readonly InstanceId[]
  readonly presented: readonly (string | null)[]
  readonly joined: readonly JoinedParent[]
  readonly spawned: readonly SpawningParent[]
  readonly cancelled: readonly InstanceId[]
}

/**
 * The second statement of a transaction that ends or parks instances: what follows. A statement of its own, because it
 * needs a snapshot taken after the instances were locked: a signal that committed while we waited for its target is in it.
 *
 * - inboxes of ended instances and signals that a step consumed are deleted, and the receipts of instances that are not kept;
 * - a park whose inbox already holds a signal it waits for, other than those its step was shown, is undone at once (R1, R2). The
 *   presented ids are a set and not a highest id, because ids commit out of order;
 * - parents of ended children are counted down, each once for all its children of the batch (R13): row-resident arithmetic on the locked row, fenced by the epoch of the
 *   spawn, which the parent keeps while it waits. One that is woken already, by its quorum or its deadline, is not found;
 * - parents that have just spawned wait for as many as landed, or go on if none did;
 * - the children of cancelled instances are left to the reaper, with a note in `cascade`.
 *
 * Locks: signals; parents FOR NO KEY UPDATE in id order (N14): a parent is locked by whoever holds its children, never the other way round, so waits go up a
 * tree; otherwise instances that this transaction has locked already. Served by: signal_target, signal_pkey, instance_pkey, instance_parent.
 */
export const applyRiders = statement<RiderParams, { queues: string[] | null }>(
  'engine.apply_riders',
  ({ ended, removed, consumed, parked, presented, joined, spawned, cancelled }) => sql<{ queues: string[] | null }>`
WITH purged AS (
  DELETE FROM holdfast.signal WHERE target_id = ANY (${[...ended, ...removed]}::bigint[])
), forgotten AS (
  DELETE FROM holdfast.signal_receipt WHERE target_id = ANY (${removed}::bigint[])
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
), parent AS MATERIALIZED (
  SELECT j.id, j.ended
  FROM (
    SELECT * FROM unnest(
      ${column(joined, (row) => row.id)}::bigint[], ${column(joined, (row) => row.epoch)}::bigint[], ${column(joined, (row) => row.ended)}::integer[]
    ) AS j (id, epoch, ended) ORDER BY id
  ) j
  CROSS JOIN LATERAL (
    SELECT FROM holdfast.instance p
    WHERE p.id = j.id AND p.claim_epoch = j.epoch AND p.status = 'awaiting_children' FOR NO KEY UPDATE
  ) waiting
), counted AS (
  UPDATE holdfast.instance g SET
    children_pending = greatest(g.children_pending - parent.ended, 0),
    status = CASE WHEN g.status = 'awaiting_children' AND g.children_pending <= parent.ended THEN 'runnable' ELSE g.status END::holdfast.instance_status,
    eligible_at = CASE WHEN g.children_pending <= parent.ended THEN now() ELSE g.eligible_at END,
    await_deadline = CASE WHEN g.children_pending > parent.ended THEN g.await_deadline END,
    updated_at = now()
  FROM parent WHERE g.id = ANY (ARRAY[parent.id])
  RETURNING g.queue, g.status
), waiting AS (
  UPDATE holdfast.instance g SET
    children_pending = least(s.landed, coalesce(s.join_count, s.landed)),
    status = CASE WHEN s.landed = 0 THEN 'runnable' ELSE 'awaiting_children' END::holdfast.instance_status,
    await_deadline = CASE WHEN s.landed > 0 THEN g.await_deadline END
  FROM unnest(
    ${column(spawned, (row) => row.id)}::bigint[], ${column(spawned, (row) => row.landed)}::integer[], ${column(spawned, (row) => row.join_count)}::integer[]
  ) AS s (id, landed, join_count)
  WHERE g.id = ANY (ARRAY[s.id])
  RETURNING g.queue, g.status
), noted AS (
  INSERT INTO holdfast.cascade (parent_id)
  SELECT c.id FROM unnest(${cancelled}::bigint[]) AS c (id)
  WHERE (
    SELECT true FROM holdfast.instance child WHERE child.parent_id = c.id AND child.status NOT IN ('done', 'failed', 'cancelled') LIMIT 1
  )
  ON CONFLICT (parent_id) DO NOTHING
)
SELECT array_agg(DISTINCT queue) AS queues FROM (
  SELECT queue FROM woken
  UNION ALL SELECT queue FROM counted WHERE status = 'runnable'
  UNION ALL SELECT queue FROM waiting WHERE status = 'runnable'
) runnable`,
  {
    ended: ['1' as InstanceId],
    removed: ['1' as InstanceId],
    consumed: ['1'],
    parked: ['1' as InstanceId],
    presented: [null],
    joined: [{ id: '2', epoch: '1', ended: 1 }],
    spawned: [{ id: '3', landed: 1, join_count: null }],
    cancelled: ['1' as InstanceId],
  },
)

const NOTHING: RiderParams = { ended: [], removed: [], consumed: [], parked: [], presented: [], joined: [], spawned: [], cancelled: [] }

/** What apply_riders has to do after these outcomes; undefined where it has nothing to. */
export function ridersOf(applied: AppliedRow): RiderParams | undefined {
  const { ended, removed, consumed, parked, joined, spawned, cancelled } = applied
  if (
    ended === null &&
    removed === null &&
    consumed === null &&
    parked === null &&
    joined === null &&
    spawned === null &&
    cancelled === null
  )
    return undefined
  return {
    ended: ended ?? [],
    removed: removed ?? [],
    consumed: consumed ?? [],
    parked: parked ?? [],
    presented: applied.presented ?? [],
    joined: joined ?? [],
    spawned: spawned ?? [],
    cancelled: cancelled ?? [],
  }
}

/** The same for instances that ended otherwise than by an outcome. */
export function ridersOfEnded(
  rows: readonly {
    readonly id: InstanceId
    readonly status: string
    readonly parent_id: string | null
    readonly parent_epoch: string | null
  }[],
): RiderParams | undefined {
  const ended = rows.filter(({ status }) => status === 'failed' || status === 'cancelled')
  if (ended.length === 0) return undefined
  const parents = new Map<string, { id: string; epoch: string; ended: number }>()
  for (const { parent_id: id, parent_epoch: epoch } of ended) {
    if (id === null || epoch === null) continue
    const parent = parents.get(`${id}:${epoch}`)
    if (parent === undefined) parents.set(`${id}:${epoch}`, { id, epoch, ended: 1 })
    else parent.ended += 1
  }
  return {
    ...NOTHING,
    ended: ended.map(({ id }) => id),
    joined: [...parents.values()],
    cancelled: ended.filter(({ status }) => status === 'cancelled').map(({ id }) => id),
  }
}

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
 * failed so that a person sees it; apply_riders follows for its inbox and its parent. Answers the instance, or nothing if another flusher was faster.
 *
 * Locks: the outcome FOR UPDATE SKIP LOCKED, then its instance. Served by: outcome_seq, instance_pkey.
 */
export const quarantineOutcome = statement<
  { afterSeq: string; error: string },
  {
    instance_id: InstanceId
    claim_epoch: string
    failed: boolean
    project_id: string | null
    held_key: string | null
    parent_id: string | null
    parent_epoch: string | null
  }
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
    awaits = NULL, await_deadline = NULL, children_pending = 0, updated_at = now()
  WHERE g.id = (SELECT instance_id FROM taken) AND g.claim_epoch = (SELECT claim_epoch FROM taken) AND g.lease_expires_at IS NOT NULL
  RETURNING g.id, g.project_id, g.concurrency_key, g.parent_id, g.parent_epoch
), recorded AS (
  INSERT INTO holdfast.transition (instance_id, claim_epoch, attempt, kind, to_status, from_step, worker, error)
  SELECT taken.instance_id, taken.claim_epoch, taken.attempt, 'fail', 'failed', taken.from_step, taken.worker, ${error}::jsonb
  FROM taken JOIN failed ON failed.id = taken.instance_id
)
SELECT taken.instance_id, taken.claim_epoch, failed.id IS NOT NULL AS failed, failed.project_id, failed.concurrency_key AS held_key,
  failed.parent_id, failed.parent_epoch
FROM taken LEFT JOIN failed ON true`,
  { afterSeq: '0', error: '{"code":"outcome_rejected","message":"…"}' },
)
