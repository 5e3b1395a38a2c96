import type { InstanceStatus, ProjectId } from '@holdfast/contracts'
import { sql } from 'kysely'
import { statement } from '../statement.ts'
import { nobodyRunsIt } from './declare-machines.ts'

export interface QueueDepthRow {
  readonly queue: string
  /** null for a queue with settings and nothing in it. */
  readonly status: InstanceStatus | null
  readonly count: number
  /** Age of the oldest one that could run, in milliseconds; only for `runnable`. */
  readonly oldest_ms: number | null
  /** Runnable, of a machine or version that no scheduler has had for five minutes. */
  readonly unclaimable: number
  readonly paused: boolean
}

/**
 * Live instances by queue and status, of one project or (null) of all. Counts what is live, so its cost grows with the backlog, not with
 * what is finished: about 0.4 µs a row. For people and dashboards, never on a timer of ours.
 * Served by: the partial index of each live status.
 */
export const getQueueDepths = statement<{ projectId: ProjectId | null }, QueueDepthRow>(
  'engine.get_queue_depths',
  ({ projectId }) => sql<QueueDepthRow>`
SELECT coalesce(live.queue, q.name) AS queue, live.status, coalesce(live.count, 0) AS count, live.oldest_ms,
  coalesce(live.unclaimable, 0) AS unclaimable, q.paused_at IS NOT NULL AS paused
FROM (
  SELECT g.queue, g.status, count(*)::integer AS count,
    (extract(epoch FROM now() - min(g.eligible_at) FILTER (WHERE g.status = 'runnable')) * 1000)::float8 AS oldest_ms,
    (count(*) FILTER (WHERE g.status = 'runnable' AND ${nobodyRunsIt}))::integer AS unclaimable
  FROM holdfast.instance g
  WHERE g.status NOT IN ('done', 'failed', 'cancelled')
    AND (${projectId}::bigint IS NULL OR g.project_id = ${projectId}::bigint)
  GROUP BY g.queue, g.status
) live
FULL JOIN holdfast.queue q ON q.name = live.queue
ORDER BY 1, 2`,
  { projectId: '1' as ProjectId },
)

export interface UnclaimableSample {
  readonly queue: string
  readonly machine: string
  readonly version: number
  readonly count: number
}

/**
 * What nobody can run, as far as it stands among the first `front` runnable ones of its queue, where it gathers because everything else is taken away before it:
 * for a metric, at a cost that does not grow with the backlog.
 * Locks: nothing. Served by: instance_pick (one look for each queue, and the front of each), machine_pkey.
 */
export const sampleUnclaimable = statement<{ front: number }, UnclaimableSample>(
  'engine.sample_unclaimable',
  ({ front }) => sql<UnclaimableSample>`
WITH RECURSIVE skip AS (
  (SELECT w.queue FROM holdfast.instance w WHERE w.status = 'runnable' ORDER BY w.queue LIMIT 1)
  UNION ALL
  SELECT (SELECT w.queue FROM holdfast.instance w WHERE w.status = 'runnable' AND w.queue > skip.queue ORDER BY w.queue LIMIT 1)
  FROM skip WHERE skip.queue IS NOT NULL
)
SELECT g.queue, g.machine, g.version, count(*)::integer AS count
FROM skip
CROSS JOIN LATERAL (
  SELECT w.queue, w.machine, w.version FROM holdfast.instance w
  WHERE w.status = 'runnable' AND w.queue = skip.queue ORDER BY w.priority, w.eligible_at, w.id LIMIT ${front}::integer
) g
WHERE ${nobodyRunsIt}
GROUP BY g.queue, g.machine, g.version`,
  { front: 1_000 },
)

/** Pauses or resumes a queue for every claim from the next one on; what executes goes on to the end of its step. */
export const setQueuePaused = statement<{ queue: string; paused: boolean }, { name: string; paused: boolean }>(
  'engine.set_queue_paused',
  ({ queue, paused }) => sql<{ name: string; paused: boolean }>`
INSERT INTO holdfast.queue (name, paused_at) VALUES (${queue}::text, CASE WHEN ${paused}::boolean THEN now() END)
ON CONFLICT (name) DO UPDATE SET updated_at = now(),
  paused_at = CASE WHEN ${paused}::boolean THEN coalesce(queue.paused_at, now()) END
RETURNING name, paused_at IS NOT NULL AS paused`,
  { queue: 'default', paused: true },
)
