import type { InstanceId, JsonValue, ProjectId } from '@holdfast/contracts'
import { sql } from 'kysely'
import { statement } from '../statement.ts'

export interface ClaimParams {
  readonly queue: string
  readonly limit: number
  readonly worker: string
  readonly leaseMs: number
  /** `name/version` of every machine that this process can run; nothing else is taken (digest N9). */
  readonly machines: readonly string[]
}

export interface ClaimedRow {
  readonly id: InstanceId
  readonly project_id: ProjectId
  readonly claim_epoch: string
  readonly machine: string
  readonly version: number
  readonly step: string
  readonly state: JsonValue
  readonly attempt: number
  readonly reclaims: number
  readonly awaits: string[] | null
  readonly traceparent: string | null
}

/**
 * Takes the most urgent runnable instances of one queue for this worker.
 *
 * Locks: instance rows FOR NO KEY UPDATE SKIP LOCKED in (priority, eligible_at, id) order: it never waits for a row, so rows
 * claimed here cannot be part of a deadlock.
 * Serial keys (K = 1): the LATERAL probe leaves out rows whose key executes already; of the locked ones the first of each key
 * is taken; and the unique index instance_concurrency_active is what makes two executing rows of one key uncommittable when two
 * claims race (R6): the later one gets a unique violation and tries again (see engine/lost-race). `winner` comes out of its window
 * sorted by key, so that two such claims wait for each other's index entries in one order.
 * A LATERAL with LIMIT instead of NOT EXISTS, because an anti-join inside an OR is planned as a hash over everything that executes.
 * The ctid join is right because this same statement found and locked these tuples.
 *
 * Served by: instance_pick (equality on queue keeps its order, so LIMIT stops early), instance_concurrency_active, tid.
 */
export const claim = statement<ClaimParams, ClaimedRow>(
  'engine.claim',
  ({ queue, limit, worker, leaseMs, machines }) => sql<ClaimedRow>`
WITH candidate AS MATERIALIZED (
  SELECT g.ctid, g.id, g.project_id, g.concurrency_key, g.priority, g.eligible_at
  FROM holdfast.instance g
  LEFT JOIN LATERAL (
    SELECT true AS held FROM holdfast.instance e
    WHERE e.project_id = g.project_id AND e.concurrency_key = g.concurrency_key
      AND e.status = 'executing' AND e.concurrency_key IS NOT NULL
    LIMIT 1
  ) holder ON true
  WHERE g.status = 'runnable' AND g.queue = ${queue}::text
    AND (g.machine || '/' || g.version) = ANY (${machines}::text[])
    AND (g.concurrency_key IS NULL OR holder.held IS NULL)
    AND NOT EXISTS (SELECT FROM holdfast.queue q WHERE q.name = ${queue}::text AND q.paused_at IS NOT NULL)
  ORDER BY g.priority, g.eligible_at, g.id
  LIMIT ${limit}::integer
  FOR NO KEY UPDATE OF g SKIP LOCKED
), ranked AS (
  SELECT ctid, concurrency_key,
    row_number() OVER (PARTITION BY project_id, concurrency_key ORDER BY priority, eligible_at, id) AS place
  FROM candidate
), winner AS MATERIALIZED (
  SELECT ctid FROM ranked WHERE concurrency_key IS NULL OR place = 1
), claimed AS (
  UPDATE holdfast.instance g SET
    status = 'executing', claim_epoch = g.claim_epoch + 1, claimed_by = ${worker}::text,
    lease_expires_at = now() + ${leaseMs}::integer * interval '1 millisecond', updated_at = now()
  FROM winner WHERE g.ctid = winner.ctid
  RETURNING g.id, g.project_id, g.claim_epoch, g.machine, g.version, g.step, g.state, g.attempt, g.reclaims, g.awaits, g.traceparent,
    g.priority, g.eligible_at
)
SELECT id, project_id, claim_epoch, machine, version, step, state, attempt, reclaims, awaits, traceparent
FROM claimed ORDER BY priority, eligible_at, id`,
  { queue: 'default', limit: 100, worker: 'scheduler@host#1', leaseMs: 60_000, machines: ['checkout/1'] },
)

export interface InboxRow {
  readonly id: string
  readonly target_id: InstanceId
  readonly name: string
  readonly payload: JsonValue
  readonly inserted_at: Date
}

/**
 * Everything in the inboxes of a claimed batch, oldest first. Sorted outside, or the planner might walk the whole primary key for its order.
 * Served by: signal_target.
 */
export const loadInbox = statement<{ ids: readonly InstanceId[] }, InboxRow>(
  'engine.load_inbox',
  ({ ids }) => sql<InboxRow>`
SELECT * FROM (
  SELECT id, target_id, name, payload, inserted_at FROM holdfast.signal WHERE target_id = ANY (${ids}::bigint[]) OFFSET 0
) inbox ORDER BY id`,
  { ids: ['1' as InstanceId] },
)
