import { setTimeout as sleep } from 'node:timers/promises'
import type { ProjectId } from '@holdfast/contracts'
import { sql } from 'kysely'
import { type Executor, statement } from '../statement.ts'
import type { DueRow } from './timers.ts'

/** A concurrency key of a project. */
export interface Key {
  readonly projectId: ProjectId
  readonly key: string
}

/**
 * Sees to it that of everything which waits for a key, as many as may execute now are runnable: the first of each queue's line for a serial key that is free,
 * the first as many as there are free slots for a gate. Exactly as many, and those in front; whoever is runnable already counts. Answers the queues that have
 * got something to run, and null among them where a head was passed by. Run after the commit of whatever frees a key, and after the commit of a claim that parked somebody for it:
 *
 * The park decides by a snapshot in which the key was held; the holder's end looks for waiters in a snapshot in which the row was not parked. Run before
 * their commits, both could miss each other. After them, whichever of the two looks last has a snapshot that holds both: the row is parked
 * and the key free. So nobody here has to wait for a row. A head that the snapshot shows as runnable is let alone: whoever parks it looks for itself, after its commit. One
 * that somebody holds is passed by: another look wakes it, or its cancellation looks again. (When looks waited for the claims and for one another, sixty of
 * them took 6 s of a drain of 6 s, and woke eight rows.) Who dies between its commit and this leaves waiters to the reaper's sweep, and so does a signal that holds the
 * head's row at this moment in a transaction of its client's.
 *
 * Whether a head is to be woken is read once more from the version that was locked, which may have been claimed and parked for a rate limit since.
 *
 * Locks: heads of the lines FOR NO KEY UPDATE SKIP LOCKED.
 * In a gate's line those do not count that no scheduler has been able to run for five minutes: the slots are for those behind them. In a serial key's line they do,
 * because its order is strict.
 * Rows that wait for a rate limit stay: their time is set. The queues of a line are found by skipping from one to the next, and not by reading a line of a hundred
 * thousand for each end.
 * Served by: instance_line, instance_concurrency_active, gate_slot_pkey, limit_policy_pkey, machine_pkey, instance_pkey.
 */
export const wakeWaiters = statement<{ keys: readonly Key[] }, { queue: string | null }>(
  'engine.wake_waiters',
  ({ keys }) => sql<{ queue: string | null }>`
WITH given AS MATERIALIZED (
  SELECT DISTINCT project_id, key
  FROM unnest(${keys.map(({ projectId }) => projectId)}::bigint[], ${keys.map(({ key }) => key)}::text[]) AS k (project_id, key)
  ORDER BY project_id, key
), room AS MATERIALIZED (
  SELECT g.project_id, g.key, gate.capacity IS NOT NULL AS gate, CASE
      WHEN gate.capacity IS NULL THEN CASE WHEN EXISTS (
        SELECT FROM holdfast.instance e
        WHERE e.project_id = g.project_id AND e.concurrency_key = g.key
          AND e.status = 'executing' AND e.concurrency_key IS NOT NULL AND e.gate_slot IS NULL
      ) THEN 0 ELSE 1 END
      ELSE greatest(gate.capacity - (
        SELECT count(*) FROM holdfast.gate_slot s
        WHERE s.project_id = g.project_id AND s.key = g.key AND s.holder_id IS NOT NULL
      ), 0)
    END AS free
  FROM given g
  LEFT JOIN holdfast.limit_policy gate ON gate.project_id = g.project_id AND gate.kind = 'gate' AND gate.name = split_part(g.key, ':', 1)
), head AS MATERIALIZED (
  SELECT first.id, first.status, line.queue
  FROM room r
  CROSS JOIN LATERAL (
    WITH RECURSIVE skip AS (
      (SELECT w.queue FROM holdfast.instance w
        WHERE w.project_id = r.project_id AND w.concurrency_key = r.key AND w.status IN ('runnable', 'throttled') AND w.concurrency_key IS NOT NULL
        ORDER BY w.queue LIMIT 1)
      UNION ALL
      SELECT (SELECT w.queue FROM holdfast.instance w
        WHERE w.project_id = r.project_id AND w.concurrency_key = r.key AND w.status IN ('runnable', 'throttled') AND w.concurrency_key IS NOT NULL
          AND w.queue > skip.queue
        ORDER BY w.queue LIMIT 1)
      FROM skip WHERE skip.queue IS NOT NULL
    )
    SELECT queue FROM skip WHERE queue IS NOT NULL AND r.free > 0
  ) line
  CROSS JOIN LATERAL (
    SELECT w.id, w.status FROM holdfast.instance w
    WHERE w.project_id = r.project_id AND w.concurrency_key = r.key AND w.queue = line.queue
      AND w.status IN ('runnable', 'throttled') AND w.concurrency_key IS NOT NULL
      AND (NOT r.gate OR w.throttled_until IS NULL AND NOT EXISTS (
        SELECT FROM holdfast.machine m WHERE m.name = w.machine AND m.version = w.version AND m.seen_at <= now() - interval '5 minutes'
      ))
    ORDER BY w.priority, w.eligible_at, w.id LIMIT r.free
  ) first
), locked AS MATERIALIZED (
  SELECT newest.* FROM head h
  CROSS JOIN LATERAL (
    SELECT w.id FROM holdfast.instance w
    WHERE w.id = h.id AND w.status = 'throttled' AND w.throttled_until IS NULL LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
  ) newest
  WHERE h.status = 'throttled'
), woken AS (
  UPDATE holdfast.instance g SET status = 'runnable', updated_at = now()
  FROM locked WHERE g.id = ANY (ARRAY[locked.id])
  RETURNING g.queue
)
SELECT queue FROM woken
UNION
SELECT queue FROM head WHERE status = 'runnable'
UNION ALL
SELECT NULL WHERE (SELECT count(*) FROM head WHERE status = 'throttled') > (SELECT count(*) FROM locked)`,
  { keys: [{ projectId: '1' as ProjectId, key: 'account-1' }] },
)

/** Before the one look that follows when a head was passed by: another look, or a cancellation, holds it for less. */
const LOOK_AGAIN_MS = 10

/**
 * Runs {@link wakeWaiters}, once more a moment later if a head was passed by; answers the queues that have got something to run. What is held for longer, as by a client's
 * transaction that has signalled it, is left to the reaper's sweep (10 s at most).
 */
export async function wakeLines(db: Executor, keys: readonly Key[]): Promise<string[]> {
  if (keys.length === 0) return []
  const woken = (await wakeWaiters(db, { keys })).map(({ queue }) => queue)
  if (woken.includes(null)) {
    await sleep(LOOK_AGAIN_MS)
    woken.push(...(await wakeWaiters(db, { keys })).map(({ queue }) => queue))
  }
  return [...new Set(woken.filter((queue) => queue !== null))]
}

/**
 * The keys of rows that a claim has looked at and parked: for these its caller runs {@link wakeLines} after the claim has committed. Also of those that
 * a rate limit denied: they stood in their key's line, perhaps as the one that the last wake-up counted on, and are out of it now.
 */
export function keysToWake(
  looked: readonly { readonly status: string; readonly project_id: ProjectId; readonly concurrency_key: string | null }[],
): Key[] {
  const keys = new Map<string, Key>()
  for (const { status, project_id: projectId, concurrency_key: key } of looked)
    if (status === 'throttled' && key !== null) keys.set(`${projectId}/${key}`, { projectId, key })
  return [...keys.values()]
}

/**
 * Keys that somebody waits for, in order, from behind the one given: what the reaper's sweep hands to {@link wakeLines} some at a time, for those whose
 * holder's process died before it could. Reads one index entry for each key. Served by: instance_line.
 */
export const nextWaitedKeys = statement<Key & { readonly limit: number }, { project_id: ProjectId; key: string }>(
  'engine.next_waited_keys',
  ({ projectId, key, limit }) => sql<{ project_id: ProjectId; key: string }>`
WITH RECURSIVE skip AS (
  (SELECT w.project_id, w.concurrency_key AS key, 1 AS n FROM holdfast.instance w
    WHERE (w.project_id, w.concurrency_key) > (${projectId}::bigint, ${key}::text)
      AND w.status IN ('runnable', 'throttled') AND w.concurrency_key IS NOT NULL
    ORDER BY w.project_id, w.concurrency_key LIMIT 1)
  UNION ALL
  SELECT w.project_id, w.key, skip.n + 1 FROM skip
  CROSS JOIN LATERAL (
    SELECT w.project_id, w.concurrency_key AS key FROM holdfast.instance w
    WHERE (w.project_id, w.concurrency_key) > (skip.project_id, skip.key)
      AND w.status IN ('runnable', 'throttled') AND w.concurrency_key IS NOT NULL
    ORDER BY w.project_id, w.concurrency_key LIMIT 1
  ) w
  WHERE skip.n < ${limit}::integer
)
SELECT project_id, key FROM skip`,
  { projectId: '0' as ProjectId, key: '', limit: 1000 },
)

/**
 * Makes runnable what has waited long enough for its rate limit, and says when the next one will have.
 * Locks: instances FOR NO KEY UPDATE SKIP LOCKED in that order. Served by: instance_throttled_until, instance_pkey.
 */
export const promoteThrottled = statement<{ limit: number }, DueRow>(
  'engine.promote_throttled',
  ({ limit }) => sql<DueRow>`
WITH due AS MATERIALIZED (
  SELECT id FROM holdfast.instance WHERE status = 'throttled' AND throttled_until IS NOT NULL AND throttled_until <= now()
  ORDER BY throttled_until LIMIT ${limit}::integer FOR NO KEY UPDATE SKIP LOCKED
), promoted AS (
  UPDATE holdfast.instance g SET status = 'runnable', throttled_until = NULL, updated_at = now() FROM due WHERE g.id = ANY (ARRAY[due.id])
  RETURNING g.queue
)
SELECT count(*)::integer AS count, array_agg(DISTINCT queue) AS queues,
  (SELECT ceil(extract(epoch FROM throttled_until - now()) * 1000)::float8 FROM holdfast.instance
    WHERE status = 'throttled' AND throttled_until IS NOT NULL AND throttled_until > now() AND throttled_until < 'infinity'
    ORDER BY throttled_until LIMIT 1) AS next_in_ms
FROM promoted`,
  { limit: 1000 },
)

/**
 * Removes the slots of keys of which none is held and none has changed for `idleMs`; they are made again when they are wanted. All of a key or none, so that a key's
 * slots are always the first so many.
 * Locks: slots FOR UPDATE SKIP LOCKED; a key of which one is locked keeps them all. Served by: gate_slot_pkey; reads the whole table, which holds active keys only.
 */
export const removeIdleSlots = statement<{ idleMs: number; limit: number }, { count: number }>(
  'engine.remove_idle_slots',
  ({ idleMs, limit }) => sql<{ count: number }>`
WITH idle AS MATERIALIZED (
  SELECT project_id, key, count(*) AS slots FROM holdfast.gate_slot GROUP BY project_id, key
  HAVING count(holder_id) = 0 AND max(changed_at) < now() - ${idleMs}::bigint * interval '1 millisecond'
  LIMIT ${limit}::integer
), locked AS MATERIALIZED (
  SELECT i.project_id, i.key, i.slots, s.slot FROM idle i
  CROSS JOIN LATERAL (
    SELECT slot FROM holdfast.gate_slot s WHERE s.project_id = i.project_id AND s.key = i.key AND s.holder_id IS NULL FOR UPDATE SKIP LOCKED
  ) s
), whole AS (
  SELECT project_id, key FROM locked GROUP BY project_id, key, slots HAVING count(*) = slots
), removed AS (
  DELETE FROM holdfast.gate_slot s USING whole w WHERE s.project_id = w.project_id AND s.key = ANY (ARRAY[w.key])
  RETURNING 1
)
SELECT count(*)::integer AS count FROM removed`,
  { idleMs: 3_600_000, limit: 1000 },
)

/**
 * Removes buckets that have long been full again, and those whose policy is gone: a key that comes back starts with a full one, which is the same. All of a key or
 * none; never one whose rate is 0, because a new one would be full.
 * Locks and index as {@link removeIdleSlots}. Under the lock it looks again: a claim may have spent of it since, and what it spent would be forgotten.
 */
export const removeIdleBuckets = statement<{ idleMs: number; limit: number }, { count: number }>(
  'engine.remove_idle_buckets',
  ({ idleMs, limit }) => sql<{ count: number }>`
WITH idle AS MATERIALIZED (
  SELECT b.project_id, b.key, count(*) AS shards, c.before FROM holdfast.rate_bucket b
  LEFT JOIN holdfast.limit_policy p ON p.project_id = b.project_id AND p.kind = 'rate' AND p.name = split_part(b.key, ':', 1)
  CROSS JOIN LATERAL (
    SELECT now() - greatest(${idleMs}::bigint, coalesce(p.burst * p.period_ms / nullif(p.rate, 0), 0) + 1000) * interval '1 millisecond' AS before
  ) c
  GROUP BY b.project_id, b.key, p.rate, c.before
  HAVING (p.rate IS NULL OR p.rate > 0) AND max(b.refilled_at) < c.before
  LIMIT ${limit}::integer
), locked AS MATERIALIZED (
  SELECT i.project_id, i.key, i.shards, s.shard FROM idle i
  CROSS JOIN LATERAL (
    SELECT shard FROM holdfast.rate_bucket s WHERE s.project_id = i.project_id AND s.key = i.key AND s.refilled_at < i.before FOR UPDATE SKIP LOCKED
  ) s
), whole AS (
  SELECT project_id, key FROM locked GROUP BY project_id, key, shards HAVING count(*) = shards
), removed AS (
  DELETE FROM holdfast.rate_bucket s USING whole w WHERE s.project_id = w.project_id AND s.key = ANY (ARRAY[w.key])
  RETURNING 1
)
SELECT count(*)::integer AS count FROM removed`,
  { idleMs: 3_600_000, limit: 1000 },
)
