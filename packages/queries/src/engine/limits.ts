import type { ProjectId } from '@holdfast/contracts'
import { type RawBuilder, sql } from 'kysely'
import { statement } from '../statement.ts'

export interface LimitPolicyRow {
  readonly kind: 'rate' | 'gate'
  readonly name: string
  /** Tokens every `period_ms`. */
  readonly rate: string | null
  readonly period_ms: string | null
  readonly burst: number | null
  readonly shards: number | null
  readonly capacity: number | null
  readonly updated_at: Date
}

/**
 * Declares or changes a rate limit; it holds from the next claim on. The revision counts changes, by which a bucket knows whether it has missed one.
 * Locks: the policy's row. Served by: limit_policy_pkey.
 */
export const putRateLimit = statement<
  { projectId: ProjectId; name: string; rate: number; periodMs: number; burst: number; shards: number },
  LimitPolicyRow
>(
  'engine.put_rate_limit',
  ({ projectId, name, rate, periodMs, burst, shards }) => sql<LimitPolicyRow>`
INSERT INTO holdfast.limit_policy AS p (project_id, kind, name, rate, period_ms, burst, shards)
VALUES (${projectId}::bigint, 'rate', ${name}::text, ${rate}::bigint, ${periodMs}::bigint, ${burst}::integer, ${shards}::smallint)
ON CONFLICT (project_id, kind, name) DO UPDATE SET rate = excluded.rate, period_ms = excluded.period_ms, burst = excluded.burst,
  shards = excluded.shards, updated_at = now(),
  revision = p.revision + ((p.burst, p.shards) IS DISTINCT FROM (excluded.burst, excluded.shards))::integer
RETURNING kind, name, rate, period_ms, burst, shards, capacity, updated_at`,
  { projectId: '1' as ProjectId, name: 'mail', rate: 10, periodMs: 1000, burst: 10, shards: 1 },
)

/**
 * Declares or changes a gate; it holds from the next claim on. Steps that execute when a name becomes a gate hold no slot, and a smaller capacity takes none away:
 * what executes goes on to the end of its step (R28).
 * Locks: the policy's row. Served by: limit_policy_pkey.
 */
export const putGate = statement<{ projectId: ProjectId; name: string; capacity: number }, LimitPolicyRow>(
  'engine.put_gate',
  ({ projectId, name, capacity }) => sql<LimitPolicyRow>`
INSERT INTO holdfast.limit_policy (project_id, kind, name, capacity) VALUES (${projectId}::bigint, 'gate', ${name}::text, ${capacity}::integer)
ON CONFLICT (project_id, kind, name) DO UPDATE SET capacity = excluded.capacity, updated_at = now()
RETURNING kind, name, rate, period_ms, burst, shards, capacity, updated_at`,
  { projectId: '1' as ProjectId, name: 'reports', capacity: 4 },
)

/**
 * What waits for a rate limit gets its time anew, because the old one was computed from the old rate: all of it is due now, in its order, and is admitted or parked
 * again by the claims that follow. Answers how many. Cost: the line's length, once for each change.
 * Locks: instances FOR NO KEY UPDATE SKIP LOCKED. Served by: instance_rate_line, by the prefix of its project.
 */
export const releaseRateLine = statement<{ projectId: ProjectId; name: string }, { count: number }>(
  'engine.release_rate_line',
  ({ projectId, name }) => sql<{ count: number }>`
WITH line AS MATERIALIZED (
  SELECT id FROM holdfast.instance
  WHERE project_id = ${projectId}::bigint AND status = 'throttled' AND throttled_until IS NOT NULL AND rate_key IS NOT NULL
    AND split_part(rate_key, ':', 1) = ${name}::text
  FOR NO KEY UPDATE SKIP LOCKED
), due AS (
  UPDATE holdfast.instance g SET status = 'runnable', throttled_until = NULL, updated_at = now()
  FROM line WHERE g.id = ANY (ARRAY[line.id])
  RETURNING 1
)
SELECT count(*)::integer AS count FROM due`,
  { projectId: '1' as ProjectId, name: 'mail' },
)

/**
 * The same for limits that have changed in the last ten minutes, for those who were parked before the change or within 5 s after it: a claim that has seen the old limit may park
 * its rows after {@link releaseRateLine} has looked, until an endless time if the old rate was 0; and the process that changed it may have died between the two. What is then
 * parked again is younger, and stays. For the reaper; answers the queues that have got something to run.
 * Locks: instances FOR NO KEY UPDATE SKIP LOCKED. Served by: instance_rate_line, by the prefix of the project; reads all policies.
 */
export const releaseChangedRateLines = statement<{ limit: number }, { count: number; queues: string[] | null }>(
  'engine.release_changed_rate_lines',
  ({ limit }) => sql<{ count: number; queues: string[] | null }>`
WITH changed AS MATERIALIZED (
  SELECT project_id, name, updated_at FROM holdfast.limit_policy WHERE kind = 'rate' AND updated_at > now() - interval '10 minutes'
), line AS MATERIALIZED (
  SELECT w.id FROM changed c
  CROSS JOIN LATERAL (
    SELECT g.id FROM holdfast.instance g
    WHERE g.project_id = c.project_id AND g.status = 'throttled' AND g.throttled_until IS NOT NULL AND g.rate_key IS NOT NULL
      AND split_part(g.rate_key, ':', 1) = c.name AND g.updated_at < c.updated_at + interval '5 seconds'
    LIMIT ${limit}::integer FOR NO KEY UPDATE SKIP LOCKED
  ) w
), due AS (
  UPDATE holdfast.instance g SET status = 'runnable', throttled_until = NULL, updated_at = now()
  FROM line WHERE g.id = ANY (ARRAY[line.id])
  RETURNING g.queue
)
SELECT count(*)::integer AS count, array_agg(DISTINCT queue) AS queues FROM due`,
  { limit: 1000 },
)

/**
 * Keys of a gate that somebody holds or waits for. Reads what waits in the project, once for each change of a gate.
 * Served by: gate_slot_pkey and instance_line, by the prefix of its project.
 */
export const listGateKeys = statement<{ projectId: ProjectId; name: string }, { key: string }>(
  'engine.list_gate_keys',
  ({ projectId, name }) => sql<{ key: string }>`
SELECT key FROM holdfast.gate_slot WHERE project_id = ${projectId}::bigint AND split_part(key, ':', 1) = ${name}::text
UNION
SELECT concurrency_key FROM holdfast.instance
WHERE project_id = ${projectId}::bigint AND status IN ('runnable', 'throttled') AND concurrency_key IS NOT NULL
  AND split_part(concurrency_key, ':', 1) = ${name}::text`,
  { projectId: '1' as ProjectId, name: 'reports' },
)

export interface LimitUseRow extends LimitPolicyRow {
  /** null: no key of it has been used lately. */
  readonly key: string | null
  /** Of a gate: slots that are held. */
  readonly held: number | null
  /** Of a rate: whole tokens at the last claim, not refilled since. */
  readonly tokens: string | null
  readonly waiting: number
}

const waitedKey = (and: RawBuilder<unknown>): RawBuilder<unknown> => sql`
  SELECT w.concurrency_key AS key FROM holdfast.instance w
  WHERE w.project_id = p.project_id AND w.status IN ('runnable', 'throttled') AND w.concurrency_key IS NOT NULL AND ${and}
  ORDER BY w.concurrency_key LIMIT 1`

/** The policies of a project with their keys in use; for people. At most `limit` keys of each. */
export const listLimits = statement<{ projectId: ProjectId; limit: number }, LimitUseRow>(
  'engine.list_limits',
  ({ projectId, limit }) => sql<LimitUseRow>`
SELECT p.kind, p.name, p.rate, p.period_ms, p.burst, p.shards, p.capacity, p.updated_at, k.key, k.held, k.tokens,
  coalesce(CASE p.kind
    WHEN 'gate' THEN (SELECT count(*) FROM holdfast.instance w
      WHERE w.project_id = p.project_id AND w.concurrency_key = k.key AND w.status IN ('runnable', 'throttled') AND w.concurrency_key IS NOT NULL
        AND w.status = 'throttled')
    ELSE (SELECT count(*) FROM holdfast.instance w
      WHERE w.project_id = p.project_id AND w.rate_key = k.key AND w.status = 'throttled' AND w.throttled_until IS NOT NULL)
  END, 0)::integer AS waiting
FROM holdfast.limit_policy p
LEFT JOIN LATERAL (
  SELECT key, count(holder_id)::integer AS held, NULL::bigint AS tokens FROM (
    SELECT s.key, s.holder_id FROM holdfast.gate_slot s
    WHERE p.kind = 'gate' AND s.project_id = p.project_id AND split_part(s.key, ':', 1) = p.name
    UNION ALL
    -- A gate that lets nobody in has no slots: its keys are those of who waits, found one by one, however many wait for each.
    SELECT waited.key, NULL FROM (
      WITH RECURSIVE seen AS (
        (${waitedKey(sql`p.capacity = 0`)})
        UNION ALL
        SELECT (${waitedKey(sql`w.concurrency_key > seen.key`)}) FROM seen WHERE seen.key IS NOT NULL
      ) SELECT key FROM seen
    ) waited
    WHERE p.kind = 'gate' AND split_part(waited.key, ':', 1) = p.name
  ) s
  GROUP BY key
  UNION ALL
  SELECT key, NULL, (sum(tokens) / 1000000)::bigint FROM holdfast.rate_bucket b
  WHERE p.kind = 'rate' AND b.project_id = p.project_id AND split_part(b.key, ':', 1) = p.name
  GROUP BY key
  ORDER BY key LIMIT ${limit}::integer
) k ON true
WHERE p.project_id = ${projectId}::bigint
ORDER BY p.kind, p.name, k.key`,
  { projectId: '1' as ProjectId, limit: 100 },
)
